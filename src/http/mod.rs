//! The way in: HTTP requests become messages to the store, its answers become JSON.
//!
//! Handlers parse and translate; they decide nothing. [`error`] is the only place that maps errors
//! to statuses.

pub mod auth;
pub mod body;
mod connection;
pub mod error;
pub mod intents;
pub mod json;
mod leaving;
mod measure;
mod openapi;
mod ops;
pub mod origin;
pub mod query;
mod server;
pub mod targets;
pub mod tls;
pub mod trace;
mod wait;
mod webhooks;

use std::sync::Arc;

use actix_web::guard::{self, Guard};
use actix_web::{Resource, Route, web};

use crate::clock::WallClock;
use crate::console::{self, Console};
use crate::http::auth::AuthMode;
use crate::http::error::ApiError;
use crate::http::origin::Listener;
use crate::leader::LeadershipBoard;
use crate::metrics::Metrics;
use crate::notices::Notices;
use crate::registry::CurrentRegistry;
use crate::spans::Tracer;
use crate::store::client::StoreClient;
use crate::variables::Variables;
use crate::{inbox, jobs};

pub use self::leaving::Leaving;
pub use self::server::{bind, start, workers};

/// What handlers share.
#[derive(Clone)]
pub struct HttpParts {
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub notices: Notices,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    pub leaving: Leaving,
    pub max_payload_bytes: usize,
    /// Whether front doors other than that of jobs ask for tokens.
    pub auth: AuthMode,
    pub console: Console,
    pub listener: Listener,
    /// Where the secrets of hooks are looked up.
    pub variables: Variables,
    /// For how recent the hooks of others are, and for spans; nothing else asks for the host's time here.
    pub clock: WallClock,
    pub tracer: Tracer,
}

/// What the JSON around a payload may add to its size: names, an id, a target, spaces.
pub const ENVELOPE_BYTES: usize = 8 * 1024;

pub fn routes(config: &mut web::ServiceConfig, parts: HttpParts) {
    let console = parts.console.clone();
    config
        .app_data(web::Data::new(parts))
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
        .configure(|config| console::routes(config, console))
        .default_service(web::to(|| async {
            Err::<(), _>(ApiError::NotFound("there is nothing at this path".to_owned()))
        }));
}

/// A resource that answers other methods in our format, at its path with or without a slash at the end.
pub fn resource(path: &str, allowed: &'static str) -> Resource {
    refusing(web::resource(with_and_without_slash(path)), allowed)
}

/// The same at this path alone.
fn exact_resource(path: &str, allowed: &'static str) -> Resource {
    refusing(web::resource(path), allowed)
}

/// The first is what the path is called in metrics and spans.
pub fn with_and_without_slash(path: &str) -> [String; 2] {
    [path.to_owned(), format!("{path}/")]
}

fn refusing(resource: Resource, allowed: &'static str) -> Resource {
    resource.default_service(web::to(move || async move { Err::<(), _>(ApiError::MethodNotAllowed { allowed }) }))
}

/// GET, and HEAD, which is GET without the body.
pub fn read() -> Route {
    web::route().guard(get_or_head())
}

fn get_or_head() -> impl Guard {
    guard::Any(guard::Get()).or(guard::Head())
}
