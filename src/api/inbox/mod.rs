//! The third front door: edge workers post raw forms, texts, calls and mails. What comes is kept as it came,
//! on any instance and also while nobody leads; the leader's [`processor`] makes contacts and messages of it.

mod hooks;
mod intake;
mod json;
mod look;

use std::sync::Arc;

use actix_web::web;

use crate::config::registry::Registry;
use crate::domain::inbox::{Channel, InboxClient};
use crate::web::error::ApiError;
use crate::web::{read, resource};

pub use self::hooks::*;
pub use self::intake::*;
pub use self::json::*;
pub use self::look::*;

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            resource("/v1/inbox/submissions", "GET, HEAD, POST")
                .route(read().to(submissions))
                .route(web::post().to(submit)),
        )
        .service(resource("/v1/inbox/submissions/reprocess", "POST").route(web::post().to(reprocess_parked)))
        .service(resource("/v1/inbox/submissions/{id}", "GET, HEAD").route(read().to(submission)))
        .service(resource("/v1/inbox/submissions/{id}/reprocess", "POST").route(web::post().to(reprocess)))
        .service(resource("/v1/inbox/contacts", "GET, HEAD").route(read().to(contacts)))
        .service(resource("/v1/inbox/messages", "GET, HEAD").route(read().to(messages)))
        .service(resource("/v1/inbox/hooks/{client_slug}/{channel}", "POST").route(web::post().to(hook)));
}

/// This door is closed while nobody's submissions are taken.
fn open(registry: &Registry) -> Result<(), ApiError> {
    match registry.inbox {
        Some(_) => Ok(()),
        None => Err(ApiError::NotFound("there is nothing at this path: the inbox needs SM_INBOX_CLIENTS".to_owned())),
    }
}

/// The client that has this channel.
fn client(registry: &Registry, slug: &str, channel: &str) -> Option<(Arc<InboxClient>, Channel)> {
    let channel = Channel::parse(channel)?;
    let client = registry.inbox.as_ref()?.get(slug).filter(|client| client.fields(channel).is_some())?;
    Some((Arc::clone(client), channel))
}
