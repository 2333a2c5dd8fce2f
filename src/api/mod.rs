//! The REST API: one file or folder a resource.
//!
//! Handlers parse a request, message the store and translate its answer; they decide nothing. [`json`] has the JSON forms
//! that several resources share, [`openapi`] describes all of them.

pub mod history_fragment;
pub mod inbox;
pub mod intents;
pub mod jobs;
pub mod json;
mod openapi;
mod ops;
pub mod targets;
mod wait;
mod webhooks;

use actix_web::web;

use crate::web::error::ApiError;
use crate::web::{read, resource};

/// Everything but the console, and the answer to paths that do not exist.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            resource("/v1/intents", "GET, HEAD, POST")
                .route(read().to(intents::list))
                .route(web::post().to(intents::submit)),
        )
        .service(resource("/v1/intents/{intentId}", "GET, HEAD").route(read().to(intents::get)))
        .service(resource("/v1/intents/{intentId}/history", "GET, HEAD").route(read().to(intents::history)))
        .service(
            resource("/v1/intents/{intentId}/webhook/redeliver", "POST").route(web::post().to(webhooks::redeliver)),
        )
        .service(resource("/v1/targets", "GET, HEAD").route(read().to(targets::list)))
        .service(resource("/v1/targets/{submissionTarget}/pause", "POST").route(web::post().to(targets::pause)))
        .service(resource("/v1/targets/{submissionTarget}/resume", "POST").route(web::post().to(targets::resume)))
        .configure(jobs::routes)
        .configure(inbox::routes)
        .service(resource("/healthz", "GET, HEAD").route(read().to(ops::healthz)))
        .service(resource("/readyz", "GET, HEAD").route(read().to(ops::readyz)))
        .service(resource("/metrics", "GET, HEAD").route(read().to(ops::metrics)))
        .configure(openapi::routes)
        .configure(history_fragment::routes)
        .default_service(web::to(|| async {
            Err::<(), _>(ApiError::NotFound("there is nothing at this path".to_owned()))
        }));
}
