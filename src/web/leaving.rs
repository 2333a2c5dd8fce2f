//! Leaving in order: before the listener closes, proxies are told to send their requests elsewhere.
//!
//! From then on readiness says no and every answer closes its connection, but requests are served
//! in full, so that none has to fail because its instance is being replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::middleware::Next;
use actix_web::{Error, web};

use super::WebDeps;

/// Whether this instance is about to stop.
#[derive(Clone, Default)]
pub struct Leaving(Arc<AtomicBool>);

impl Leaving {
    pub fn announce(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_announced(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

pub async fn close_connections(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let deps = request.app_data::<web::Data<WebDeps>>().cloned();
    let mut response = next.call(request).await?;
    if deps.is_some_and(|deps| deps.leaving.is_announced()) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    Ok(response)
}
