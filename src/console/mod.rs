//! The operator console: HTML pages under `/ui`.
//!
//! The server renders all pages, and the templates escape everything. A script refreshes the live part of a page in
//! place. All assets come from the binary. Every role can read. Roles that may act can cancel and redrive intents,
//! redeliver webhooks, reprocess inbox submissions, and pause and resume targets.

mod access;
mod assets;
mod audit;
mod bulk;
mod chart;
mod failures;
mod form;
mod health;
mod inbox;
mod intent;
mod intents;
mod jobs;
mod login_limits;
mod nav;
mod overview;
mod passwords;
mod payload;
mod query_form;
mod redrives;
mod resend;
mod search;
mod sign_in;
mod target;
mod targets;
mod time_input;
mod timeline;
mod when;
mod wording;

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::middleware::from_fn;
use actix_web::{HttpResponse, Resource, ResponseError, web};
use askama::Template;

use self::nav::Nav;
use self::passwords::{Passwords, Users};
pub use self::sign_in::MAX_CALLS as MAX_SIGN_IN_CALLS;
use self::sign_in::{SignIn, handlers};
use crate::config::registry::{ConsoleUser, Registry};
use crate::config::settings::{ConfigError, ConsoleConfig, Switch};
use crate::platform::errors::full_text;
use crate::store::StoreError;
use crate::web::error::ApiError;
use crate::web::permissions::{GuardedService, Refusal, guarded};
use crate::web::{get_or_head, with_and_without_slash};

/// The configuration of the console.
#[derive(Clone)]
pub struct Console {
    administrator: Option<ConsoleUser>,
    on_loopback: bool,
    passwords: Arc<Passwords>,
    sign_in: Arc<SignIn>,
    /// Whether sessions end with this process, because no key for them is configured.
    own_sessions: bool,
    /// Whether pages may show payloads.
    payloads: bool,
    /// The template of the address of a trace: see `SM_TRACE_URL`.
    trace_url: Option<String>,
    /// The origins whose pages may embed the console in a frame, separated by spaces; usually none.
    frames: String,
}

impl Console {
    /// The console of an instance that listens on this address, with https or without. It calls the provider of
    /// sign-ins with the TLS configuration `tls`.
    pub fn new(
        config: &ConsoleConfig,
        listens_on: IpAddr,
        https: bool,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            administrator: config.administrator()?,
            on_loopback: listens_on.is_loopback(),
            passwords: Arc::new(Passwords::new()?),
            sign_in: Arc::new(SignIn::new(config, https, tls)?),
            own_sessions: config.session_key.is_none(),
            payloads: config.console_payloads == Switch::On,
            trace_url: config.trace_url.clone(),
            frames: config.console_frames.clone(),
        })
    }

    /// Whether everyone on this machine can use the console without a login.
    pub fn is_open(&self, registry: &Registry) -> bool {
        self.on_loopback && self.users(registry).is_empty() && registry.oidc.is_none()
    }

    /// Logs what will not work for people who sign in with OpenID Connect.
    pub fn warn_about_sign_in(&self, registry: &Registry) {
        if registry.oidc.is_none() {
            return;
        }
        if self.own_sessions {
            let next = "set SM_SESSION_KEY to the same key on all instances: without it, people must sign in again after a \
                        restart, and a fleet cannot share sessions";
            log::warn!("console_sessions_not_shared next={next:?}");
        }
        if !self.on_loopback && !self.sign_in.uses_https() {
            let next = "set SM_CONSOLE_URL to the https URL of the proxy, or serve https with SM_TLS_CERT and SM_TLS_KEY: \
                        cookies of sessions can be read on the network";
            log::warn!("console_sign_in_without_https next={next:?}");
        }
    }

    fn users(&self, registry: &Registry) -> Users {
        Users { administrator: self.administrator.clone(), listed: registry.console_users.clone() }
    }
}

/// Registers the routes of the console.
pub fn routes(config: &mut web::ServiceConfig, console: Console) {
    config.app_data(web::Data::new(console)).configure(search::home);
    // These come first, because all other pages below `/ui` need a person who is known.
    config
        .service(public_resource("/sign-in").route(get_or_head().to(handlers::show)).wrap(from_fn(access::public)))
        .service(
            public_resource("/sign-in/start").route(get_or_head().to(handlers::start)).wrap(from_fn(access::public)),
        )
        .service(
            public_resource("/sign-in/callback")
                .route(get_or_head().to(handlers::callback))
                .wrap(from_fn(access::public)),
        )
        .service(
            public_resource("/sign-in/password")
                .route(web::post().to(handlers::password))
                .wrap(from_fn(access::public)),
        )
        .service(
            public_resource("/sign-out")
                .route(get_or_head().to(handlers::signed_out))
                .route(web::post().to(handlers::sign_out))
                .wrap(from_fn(access::public)),
        )
        .service(
            public_resource("/assets/{name}").route(get_or_head().to(assets::asset)).wrap(from_fn(access::public)),
        );
    config.service(
        web::scope(ROOT)
            .wrap(from_fn(access::guard))
            .service(resource("").route(get_or_head().to(overview::show)))
            .service(resource("/failures").route(get_or_head().to(failures::show)))
            .service(resource("/search").route(get_or_head().to(search::search)))
            .service(resource("/intents").route(get_or_head().to(intents::show)))
            .service(resource("/intents/{intentId}").route(get_or_head().to(intent::show)))
            .service(resource("/intents/{intentId}/payload").route(get_or_head().to(intent::payload)))
            .service(resource("/intents/{intentId}/edit").route(get_or_head().to(resend::edit)))
            .service(resource("/intents/{intentId}/redrive").route(web::post().to(resend::redrive)))
            .service(resource("/intents/{intentId}/redeliver").route(web::post().to(intent::redeliver)))
            .service(resource("/intents/{intentId}/cancel").route(web::post().to(intent::cancel)))
            .service(resource("/export").route(get_or_head().to(intents::export::export)))
            .service(resource("/cancel-intents").route(web::post().to(intents::bulk::cancel_selected)))
            .service(resource("/redeliver-events").route(web::post().to(intents::bulk::redeliver_selected)))
            .service(
                resource("/redrives").route(get_or_head().to(redrives::list)).route(web::post().to(redrives::plan)),
            )
            .service(resource("/redrives/{redriveId}").route(get_or_head().to(redrives::show)))
            .service(resource("/redrives/{redriveId}/start").route(web::post().to(redrives::start)))
            .service(resource("/redrives/{redriveId}/pause").route(web::post().to(redrives::pause)))
            .service(resource("/redrives/{redriveId}/resume").route(web::post().to(redrives::resume)))
            .service(resource("/redrives/{redriveId}/cancel").route(web::post().to(redrives::cancel)))
            .service(resource("/jobs").route(get_or_head().to(jobs::show)))
            .service(resource("/inbox").route(get_or_head().to(inbox::submissions)))
            .service(resource("/inbox/reprocess").route(web::post().to(inbox::reprocess_selected)))
            .service(resource("/inbox/submissions/{id}").route(get_or_head().to(inbox::submission)))
            .service(resource("/inbox/submissions/{id}/payload").route(get_or_head().to(inbox::payload)))
            .service(resource("/inbox/submissions/{id}/reprocess").route(web::post().to(inbox::reprocess)))
            .service(resource("/inbox/clients/{slug}/reprocess").route(web::post().to(inbox::reprocess_parked)))
            .service(resource("/inbox/contacts").route(get_or_head().to(inbox::contacts)))
            .service(resource("/inbox/contacts/{id}").route(get_or_head().to(inbox::contact)))
            .service(resource("/audit").route(get_or_head().to(audit::show)))
            .service(resource("/targets").route(get_or_head().to(targets::show)))
            .service(resource("/targets/{submissionTarget}").route(get_or_head().to(target::show)))
            .service(resource("/targets/{submissionTarget}/pause").route(web::post().to(targets::pause)))
            .service(resource("/targets/{submissionTarget}/resume").route(web::post().to(targets::resume)))
            .default_service(web::to(|| async {
                Err::<(), _>(PageError::NotFound("There is no such page.".to_owned()))
            })),
    );
}

const ROOT: &str = "/ui";

/// A resource at `path` below `/ui`, with or without a slash at the end. A role that may not call it gets a page that says
/// which role it needs.
fn resource(path: &str) -> Resource<impl GuardedService + use<>> {
    checked(web::resource(with_and_without_slash(path)), path)
}

/// Like [`resource`], but outside the part of the console that needs somebody who is signed in.
fn public_resource(path: &str) -> Resource<impl GuardedService + use<>> {
    checked(web::resource(with_and_without_slash(&format!("{ROOT}{path}"))), path)
}

fn checked(resource: Resource, path: &str) -> Resource<impl GuardedService + use<>> {
    guarded(resource, &format!("{ROOT}{path}"), |_, refusal| match refusal {
        Refusal::Role(needed) => {
            let text = format!("This needs the role {}. Ask an administrator of the service for it.", needed.as_str());
            notice(StatusCode::FORBIDDEN, "Not allowed", &text)
        }
        refusal => refusal.into_api_error("GET, HEAD, POST").error_response(),
    })
}

/// Why a page cannot be shown. The response is a page with the error.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Refused(String),
    /// The action is not possible, for example because a field is invalid. Nothing was changed.
    #[error("{0}")]
    NotDone(String),
    /// An action that the API shares failed; its texts are meant for people.
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Template(#[from] askama::Error),
}

impl ResponseError for PageError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Refused(_) => StatusCode::FORBIDDEN,
            Self::NotDone(_) => StatusCode::BAD_REQUEST,
            Self::Api(error) => error.status_code(),
            Self::Store(StoreError::Overloaded | StoreError::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(StoreError::Unexpected(_)) | Self::Template(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let status = self.status_code();
        match self {
            Self::NotFound(text) => notice(status, "Not found", text),
            Self::Refused(text) => notice(status, "Refused", text),
            Self::NotDone(text) => notice(status, "Not done", text),
            Self::Api(error) => {
                let title = match status {
                    StatusCode::NOT_FOUND => "Not found",
                    _ if status.is_server_error() => "Try again in a moment",
                    _ => "Not done",
                };
                notice(status, title, &error.to_string())
            }
            Self::Store(StoreError::Overloaded | StoreError::Unavailable(_)) => {
                log::warn!("page_failed error={:?}", full_text(self));
                notice(status, "Try again in a moment", "The store is not responding or is overloaded.")
            }
            Self::Store(StoreError::Unexpected(_)) | Self::Template(_) => {
                log::error!("page_failed error={:?}", full_text(self));
                notice(status, "Internal error", "The log of the service has the details.")
            }
        }
    }
}

#[derive(Template)]
#[template(path = "console/notice.html")]
struct Notice<'a> {
    nav: Nav,
    title: &'a str,
    text: &'a str,
}

/// A page with a title and one sentence.
fn notice(status: StatusCode, title: &str, text: &str) -> HttpResponse {
    let html = Notice { nav: Nav::of_nobody(), title, text }.render().unwrap_or_else(|_| title.to_owned());
    HttpResponse::build(status).content_type(ContentType::html()).body(html)
}

/// Renders a page.
fn page(template: &impl Template) -> Result<HttpResponse, PageError> {
    Ok(HttpResponse::Ok().content_type(ContentType::html()).body(template.render()?))
}
