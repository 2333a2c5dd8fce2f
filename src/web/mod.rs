//! The HTTP server that the API and the console share: connections and their limits, TLS, authentication, request bodies,
//! the format of errors.
//!
//! No resource is served from here; [`crate::api`] and [`crate::console`] add theirs. [`error`] is the only place that maps
//! errors to HTTP statuses.

pub mod auth;
pub mod body;
mod connection;
pub mod error;
mod leaving;
mod measure;
pub mod origin;
pub mod query;
mod server;
pub mod tls;
pub mod trace;

use std::sync::Arc;

use actix_web::guard::{self, Guard};
use actix_web::{Resource, Route, web};

use crate::config::registry::CurrentRegistry;
use crate::config::settings::AuthMode;
use crate::config::variables::Variables;
use crate::engine::leader::LeadershipBoard;
use crate::platform::clock::WallClock;
use crate::store::client::StoreClient;
use crate::store::watchers::IntentWatchers;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Tracer;
use crate::web::error::ApiError;
use crate::web::origin::Listener;

pub use self::leaving::Leaving;
pub use self::server::{bind, start, workers};

/// What handlers share.
#[derive(Clone)]
pub struct WebDeps {
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub watchers: IntentWatchers,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    pub leaving: Leaving,
    pub max_payload_bytes: usize,
    /// Whether front doors other than that of jobs ask for tokens.
    pub auth: AuthMode,
    pub listener: Listener,
    /// Where the secrets of hooks are looked up.
    pub variables: Variables,
    /// For how recent the hooks of others are, and for spans; nothing else asks for the host's time here.
    pub clock: WallClock,
    pub tracer: Tracer,
}

/// What the JSON around a payload may add to its size: names, an id, a target, spaces.
pub const ENVELOPE_BYTES: usize = 8 * 1024;

/// A resource that answers other methods in our format, at its path with or without a slash at the end.
pub fn resource(path: &str, allowed: &'static str) -> Resource {
    refusing(web::resource(with_and_without_slash(path)), allowed)
}

/// The same at this path alone.
pub fn exact_resource(path: &str, allowed: &'static str) -> Resource {
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
