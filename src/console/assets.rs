//! Serves the stylesheet and the scripts of the console, which are part of the binary.

use actix_web::http::header;
use actix_web::{HttpResponse, web};

/// Name, content type and content of each asset.
const ASSETS: [(&str, &str, &str); 3] = [
    ("htmx.js", "text/javascript; charset=utf-8", include_str!("assets/htmx-2.0.11.min.js")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("assets/console.js")),
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
