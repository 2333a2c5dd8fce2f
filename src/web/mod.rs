//! The HTTP server that the API and the console share: connections and their limits, TLS, authentication, request bodies
//! and the format of errors.
//!
//! This folder serves no resource of its own; [`crate::api`] and [`crate::console`] register theirs. [`error`] is the only
//! place that maps errors to HTTP statuses.

pub mod actor;
pub mod auth;
pub mod body;
mod connection;
pub mod error;
pub mod operator;
pub mod origin;
pub mod permissions;
pub mod query;
mod request_metrics;
mod server;
mod shutdown;
pub mod streams;
pub mod tls;
pub mod trace;

use std::sync::Arc;

use actix_web::guard;
use actix_web::{Resource, ResponseError, Route, web};

use crate::config::registry::CurrentRegistry;
use crate::config::settings::AuthMode;
use crate::config::variables::Variables;
use crate::engine::event_feed::EventFeed;
use crate::engine::leader::LeadershipBoard;
use crate::platform::clock::WallClock;
use crate::platform::random;
use crate::store::client::StoreClient;
use crate::store::watchers::IntentWatchers;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Tracer;
use crate::web::body::BodyBudget;
use crate::web::error::ApiError;
use crate::web::origin::Listener;
use crate::web::permissions::{GuardedService, guarded};

pub use self::server::{bind, start, workers};
pub use self::shutdown::ShutdownFlag;
use self::streams::StreamSlots;

/// The dependencies that all handlers of the API and the console share.
#[derive(Clone)]
pub struct WebDeps {
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub watchers: IntentWatchers,
    pub events: EventFeed,
    pub streams: StreamSlots,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    pub shutdown: ShutdownFlag,
    /// The memory that request bodies share.
    pub bodies: BodyBudget,
    pub max_payload_bytes: usize,
    /// Whether calls need a token. Jobs need one in either mode.
    pub auth: AuthMode,
    pub listener: Listener,
    /// The environment variables that hold the secrets of inbound webhooks.
    pub variables: Variables,
    /// The host's clock: checks the age of inbound webhooks and times trace spans. Everything else uses the store's time.
    pub clock: WallClock,
    pub tracer: Tracer,
}

/// Returns the random bytes of a new id.
pub fn id_bytes() -> Result<[u8; 16], ApiError> {
    random::id_bytes().map_err(|error| {
        log::error!("no_random_numbers error={error}");
        ApiError::Internal
    })
}

/// How many bytes a request body may have besides its payload: field names, an id, a target and whitespace.
pub const ENVELOPE_BYTES: usize = 8 * 1024;

/// A resource at `path`, with or without a slash at the end. Every request is checked as [`permissions::ROUTES`] says, and
/// gets errors in the JSON format of all errors; so do methods other than `allowed`.
pub fn resource(path: &str, allowed: &'static str) -> Resource<impl GuardedService> {
    json_errors(web::resource(with_and_without_slash(path)), path, allowed)
}

/// Like [`resource`], but only at exactly this path.
pub fn exact_resource(path: &str, allowed: &'static str) -> Resource<impl GuardedService> {
    json_errors(web::resource(path), path, allowed)
}

/// Both forms of a path. The first one is the route's name in metrics and trace spans.
pub fn with_and_without_slash(path: &str) -> [String; 2] {
    [path.to_owned(), format!("{path}/")]
}

fn json_errors(resource: Resource, path: &str, allowed: &'static str) -> Resource<impl GuardedService> {
    guarded(resource, path, move |_, refusal| refusal.into_api_error(allowed).error_response())
}

/// A route for GET and HEAD. The server drops the body of a response to HEAD.
pub fn get_or_head() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}
