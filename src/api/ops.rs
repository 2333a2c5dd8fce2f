//! Endpoints for platforms: `/healthz`, `/readyz` and `/metrics`.

use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, HttpResponseBuilder, web};

use super::json::ErrorJson;
use crate::web::WebDeps;
use crate::web::error::ApiError;

/// Check that the process is running
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "health",
    responses((status = 200, description = "The process is running", body = String, content_type = "text/plain")))]
pub(super) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::plaintext()).body("ok\n")
}

/// Check that the instance can serve requests
///
/// Leaders and followers are both ready as long as the store accepts writes.
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "readiness",
    responses(
        (status = 200, description = "The instance is ready. The text has its role, and `clock_ahead_seconds` while the store's clock is ahead of the clock of its host", body = String, content_type = "text/plain",
            example = "mode=leader holder_id=sm-01 lease_epoch=2 lease_expires_at=2026-11-16T09:00:15.000000Z\n"),
        (status = 503, description = "The store does not accept writes, or the instance is shutting down; in the second case the body is plain text with `mode=stopping`",
            content((ErrorJson = "application/json"), (String = "text/plain"))),
    ))]
pub(super) async fn readyz(deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let stopping = || deps.shutdown.is_announced();
    let text = |mut response: HttpResponseBuilder, body| response.content_type(ContentType::plaintext()).body(body);
    // Shutdown may be announced while the write check runs, so this is checked after it.
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

/// Get the metrics of this instance
#[utoipa::path(get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, description = "Metrics in the Prometheus text format", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let text = deps.metrics.text().map_err(|error| {
        log::error!("metrics_failed error={error:?}");
        ApiError::Internal
    })?;
    Ok(HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(text))
}
