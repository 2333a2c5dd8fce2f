//! Orderly shutdown of the HTTP server: what changes between the signal to stop and the closing of the listener.
//!
//! Once shutdown is announced, readiness fails and every response closes its connection, so that proxies send new
//! requests to other instances. Requests that still arrive are served in full, so none fails because its instance is
//! being replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::middleware::Next;
use actix_web::{Error, web};

use super::WebDeps;

/// Whether this instance is about to stop. Clones share one flag.
#[derive(Clone, Default)]
pub struct ShutdownFlag(Arc<AtomicBool>);

impl ShutdownFlag {
    /// Announces that this instance is about to stop. This cannot be undone.
    pub fn announce(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_announced(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Middleware that adds `Connection: close` to every response once shutdown is announced.
pub(super) async fn close_connections(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let deps = request.app_data::<web::Data<WebDeps>>().cloned();
    let mut response = next.call(request).await?;
    if deps.is_some_and(|deps| deps.shutdown.is_announced()) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    Ok(response)
}
