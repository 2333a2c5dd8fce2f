//! The stylesheet and scripts of the console, out of the binary.

use actix_web::http::header;
use actix_web::{HttpResponse, web};

const ASSETS: [(&str, &str, &str); 3] = [
    ("htmx.js", "text/javascript; charset=utf-8", include_str!("assets/htmx-2.0.11.min.js")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("assets/console.js")),
    ("console.css", "text/css; charset=utf-8", include_str!("assets/console.css")),
];

pub async fn asset(name: web::Path<String>) -> HttpResponse {
    match ASSETS.iter().find(|(known, ..)| **known == **name) {
        Some((_, content_type, text)) => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, *content_type))
            // Another version of this program may have others under the same names.
            .insert_header((header::CACHE_CONTROL, "max-age=300"))
            .body(*text),
        None => HttpResponse::NotFound().finish(),
    }
}
