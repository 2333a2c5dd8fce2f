//! `/v1/inbox`: receives form posts, text messages, calls and emails of end users, and shows what was made of them.
//!
//! Any instance accepts an inbox submission and stores its exact bytes, even while there is no leader. The leader's inbox
//! actor ([`crate::engine`]) later turns submissions into contacts and messages.

pub(super) mod hooks;
pub(super) mod intake;
pub mod json;
pub(super) mod queries;
pub(super) mod reprocess;

use std::sync::Arc;

use actix_web::web;

use crate::config::registry::Registry;
use crate::domain::inbox::{Channel, InboxClient};
use crate::web::error::ApiError;
use crate::web::{get_or_head, resource};

pub use self::intake::{Incoming, parse_submission};
pub use self::queries::{cursor_text, inbox_query, parse_cursor};
pub use self::reprocess::{reprocess_one, reprocess_parked_of};

/// Registers the routes of the inbox.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            resource("/v1/inbox/submissions", "GET, HEAD, POST")
                .route(get_or_head().to(queries::submissions))
                .route(web::post().to(intake::submit)),
        )
        .service(resource("/v1/inbox/submissions/reprocess", "POST").route(web::post().to(reprocess::reprocess_parked)))
        .service(resource("/v1/inbox/submissions/{id}", "GET, HEAD").route(get_or_head().to(queries::submission)))
        .service(resource("/v1/inbox/submissions/{id}/reprocess", "POST").route(web::post().to(reprocess::reprocess)))
        .service(resource("/v1/inbox/contacts", "GET, HEAD").route(get_or_head().to(queries::contacts)))
        .service(resource("/v1/inbox/messages", "GET, HEAD").route(get_or_head().to(queries::messages)))
        .service(resource("/v1/inbox/hooks/{client_slug}/{channel}", "POST").route(web::post().to(hooks::hook)));
}

/// Fails with 404 if the inbox is not enabled, that is, no inbox clients are configured.
fn require_enabled(registry: &Registry) -> Result<(), ApiError> {
    match registry.inbox {
        Some(_) => Ok(()),
        None => Err(ApiError::NotFound("the inbox is not enabled; set SM_INBOX_CLIENTS".to_owned())),
    }
}

/// The client with this slug, if it has this channel.
fn client(registry: &Registry, slug: &str, channel: &str) -> Option<(Arc<InboxClient>, Channel)> {
    let channel = Channel::parse(channel)?;
    let client = registry.inbox.as_ref()?.get(slug).filter(|client| client.fields(channel).is_some())?;
    Some((Arc::clone(client), channel))
}
