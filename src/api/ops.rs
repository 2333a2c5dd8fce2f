//! For platforms: is it running, can it work, what does it count.

use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, HttpResponseBuilder, web};

use super::json::ErrorJson;
use crate::web::WebDeps;
use crate::web::error::ApiError;

/// Is the process running
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "health",
    responses((status = 200, description = "It is", body = String, content_type = "text/plain")))]
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::plaintext()).body("ok\n")
}

/// Can it serve requests: leaders and followers alike can, as long as the store takes writes
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "readiness",
    responses(
        (status = 200, description = "Ready, and in which role; with `clock_ahead_seconds` while the store's clock is ahead of its host's", body = String, content_type = "text/plain",
            example = "mode=leader holder_id=sm-01 lease_epoch=2 lease_expires_at=2026-11-16T09:00:15.000000Z\n"),
        (status = 503, description = "The store takes no writes; or, as text with `mode=stopping`, the instance is being stopped",
            content((ErrorJson = "application/json"), (String = "text/plain"))),
    ))]
pub async fn readyz(deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let stopping = || deps.leaving.is_announced();
    let text = |mut answer: HttpResponseBuilder, body| answer.content_type(ContentType::plaintext()).body(body);
    // A probe may take long enough to be overtaken by a stop.
    if stopping() || (deps.store.can_write().await.map(|()| stopping())?) {
        let body = format!("mode=stopping holder_id={}\n", deps.board.holder_id);
        return Ok(text(HttpResponse::ServiceUnavailable(), body));
    }
    let role = match deps.board.lease() {
        Some(lease) => format!("mode=leader {} lease_expires_at={}", lease.term, lease.expires_at),
        None => format!("mode=follower holder_id={}", deps.board.holder_id),
    };
    let ahead = deps.store.clock_ahead().map(|ahead| format!(" clock_ahead_seconds={}", ahead.as_secs()));
    Ok(text(HttpResponse::Ok(), format!("{role}{}\n", ahead.unwrap_or_default())))
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, description = "Prometheus text", body = String, content_type = "text/plain")))]
pub async fn metrics(deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let text = deps.metrics.text().map_err(|error| {
        log::error!("metrics_failed error={error:?}");
        ApiError::Internal
    })?;
    Ok(HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(text))
}
