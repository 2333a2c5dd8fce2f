//! Serves the stylesheet and the scripts of the console, which are part of the binary.

use actix_web::http::header;
use actix_web::{HttpResponse, web};

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The script of the pages, made of files with one idea each, in a scope of its own.
const CONSOLE_SCRIPT: &str = concat!(
    "\"use strict\";\n(function () {\n",
    include_str!("assets/script/times.js"),
    include_str!("assets/script/toasts.js"),
    include_str!("assets/script/live.js"),
    include_str!("assets/script/actions.js"),
    include_str!("assets/script/keys.js"),
    "})();\n"
);

/// Name, content type and content of each asset.
const ASSETS: [(&str, &str, &str); 5] = [
    ("htmx.js", SCRIPT, include_str!("assets/htmx-2.0.11.min.js")),
    ("idiomorph.js", SCRIPT, include_str!("assets/idiomorph-0.8.0.min.js")),
    ("theme.js", SCRIPT, include_str!("assets/theme.js")),
    ("console.js", SCRIPT, CONSOLE_SCRIPT),
    ("console.css", "text/css; charset=utf-8", include_str!("assets/console.css")),
];

pub(super) async fn asset(name: web::Path<String>) -> HttpResponse {
    match ASSETS.iter().find(|(known, ..)| **known == **name) {
        Some((_, content_type, text)) => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, *content_type))
            // A short time, because another version of the service has different files under the same names.
            .insert_header((header::CACHE_CONTROL, "max-age=300"))
            .body(*text),
        None => HttpResponse::NotFound().finish(),
    }
}
