//! Counts and times every request by route, not by path: ids never become labels.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{Error, web};

use super::HttpParts;
use crate::clock::monotonic;

pub async fn requests(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = monotonic();
    let parts = request.app_data::<web::Data<HttpParts>>().cloned();
    let route = request.match_pattern().unwrap_or_else(|| "other".to_owned());
    let response = next.call(request).await;
    if let Some(parts) = parts {
        let status = match &response {
            Ok(response) => response.status(),
            Err(error) => error.as_response_error().status_code(),
        };
        parts.metrics.request_answered(&route, status.as_u16(), monotonic().duration_since(started));
    }
    response
}
