//! The REST API: one file or folder for each resource.
//!
//! Handlers parse a request, call the store and convert the result; decisions about intents are made in
//! [`crate::domain`]. [`json`] has the JSON types that several resources share, and `openapi.rs` serves the description of
//! all of them.

pub mod audit;
mod batch;
pub mod cancel;
pub(crate) mod events;
pub mod history_fragment;
pub mod inbox;
pub mod intents;
pub mod jobs;
pub mod json;
mod openapi;
mod ops;
pub mod redrives;
pub mod targets;
pub(crate) mod wait;
mod webhooks;

use actix_web::{guard, web};

use crate::web::error::ApiError;
use crate::web::{get_or_head, resource};

/// Registers all routes of the API, and the 404 for paths that do not exist.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            resource("/v1/intents", "GET, HEAD, POST")
                .route(get_or_head().to(intents::list))
                .route(web::post().to(intents::submit)),
        )
        // An intent may have the id `batch`, so GET and HEAD are for that intent.
        .service(
            resource("/v1/intents/batch", "GET, HEAD, POST")
                .guard(guard::Not(guard::Any(guard::Get()).or(guard::Head())))
                .route(web::post().to(batch::submit_batch)),
        )
        .service(resource("/v1/intents/{intentId}", "GET, HEAD").route(get_or_head().to(intents::get)))
        .service(resource("/v1/intents/{intentId}/history", "GET, HEAD").route(get_or_head().to(intents::history)))
        .service(resource("/v1/intents/{intentId}/cancel", "POST").route(web::post().to(cancel::cancel_intent)))
        .service(
            resource("/v1/intents/{intentId}/webhook/redeliver", "POST").route(web::post().to(webhooks::redeliver)),
        )
        .service(resource("/v1/targets", "GET, HEAD").route(get_or_head().to(targets::list)))
        .service(resource("/v1/targets/{submissionTarget}/pause", "POST").route(web::post().to(targets::pause)))
        .service(resource("/v1/targets/{submissionTarget}/resume", "POST").route(web::post().to(targets::resume)))
        .service(resource("/v1/intents/{intentId}/redrive", "POST").route(web::post().to(redrives::single::redrive)))
        .configure(redrives::routes)
        .service(resource("/v1/audit", "GET, HEAD").route(get_or_head().to(audit::list)))
        .service(resource("/v1/events", "GET, HEAD").route(get_or_head().to(events::list)))
        .service(resource("/v1/events/stream", "GET, HEAD").route(get_or_head().to(events::stream)))
        .configure(jobs::routes)
        .configure(inbox::routes)
        .service(resource("/healthz", "GET, HEAD").route(get_or_head().to(ops::healthz)))
        .service(resource("/readyz", "GET, HEAD").route(get_or_head().to(ops::readyz)))
        .service(resource("/metrics", "GET, HEAD").route(get_or_head().to(ops::metrics)))
        .configure(openapi::routes)
        .configure(history_fragment::routes)
        .default_service(web::to(|| async { Err::<(), _>(ApiError::NotFound("no such path".to_owned())) }));
}
