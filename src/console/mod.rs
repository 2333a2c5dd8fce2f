//! The operator console: HTML pages under `/ui`.
//!
//! The server renders all pages, and the templates escape everything. htmx polls the live part of a page and replaces it.
//! All assets come from the binary. Operators can read everything here; the only actions are to cancel an intent, to
//! redeliver a webhook, to reprocess inbox submissions, and to pause and resume targets.

pub mod access;
mod assets;
mod chart;
mod inbox;
mod intent;
mod intents;
mod jobs;
mod login;
mod login_limits;
mod overview;
mod payload;
mod query_form;
mod targets;
mod timeline;
mod wording;

use std::net::IpAddr;

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::middleware::from_fn;
use actix_web::{HttpResponse, ResponseError, web};
use askama::Template;

pub use self::access::Access;
pub use self::login::Login;
use crate::config::settings::{ConfigError, ConsoleConfig, Switch};
use crate::store::StoreError;
use crate::web::{get_or_head, resource};

/// The configuration of the console.
#[derive(Clone)]
pub struct Console {
    pub access: Access,
    /// Whether pages may show payloads.
    pub payloads: bool,
    /// The origins whose pages may embed the console in a frame, separated by spaces; usually none.
    pub frames: String,
}

impl Console {
    /// The console of an instance that listens on this address.
    pub fn new(config: &ConsoleConfig, listens_on: IpAddr) -> Result<Self, ConfigError> {
        Ok(Self {
            access: Access::new(Login::new(config)?, listens_on),
            payloads: config.console_payloads == Switch::On,
            frames: config.console_frames.clone(),
        })
    }
}

/// Registers the routes of the console.
pub fn routes(config: &mut web::ServiceConfig, console: Console) {
    config.service(
        web::scope("/ui")
            .app_data(web::Data::new(console))
            .wrap(from_fn(access::guard))
            .service(resource("", "GET, HEAD").route(get_or_head().to(overview::show)))
            .service(resource("/intents", "GET, HEAD").route(get_or_head().to(intents::show)))
            .service(resource("/intents/{intentId}", "GET, HEAD").route(get_or_head().to(intent::show)))
            .service(resource("/intents/{intentId}/payload", "GET, HEAD").route(get_or_head().to(intent::payload)))
            .service(resource("/intents/{intentId}/redeliver", "POST").route(web::post().to(intent::redeliver)))
            .service(resource("/intents/{intentId}/cancel", "POST").route(web::post().to(intent::cancel)))
            .service(resource("/jobs", "GET, HEAD").route(get_or_head().to(jobs::show)))
            .service(resource("/inbox", "GET, HEAD").route(get_or_head().to(inbox::submissions)))
            .service(resource("/inbox/submissions/{id}", "GET, HEAD").route(get_or_head().to(inbox::submission)))
            .service(resource("/inbox/submissions/{id}/payload", "GET, HEAD").route(get_or_head().to(inbox::payload)))
            .service(resource("/inbox/submissions/{id}/reprocess", "POST").route(web::post().to(inbox::reprocess)))
            .service(resource("/inbox/clients/{slug}/reprocess", "POST").route(web::post().to(inbox::reprocess_parked)))
            .service(resource("/inbox/contacts", "GET, HEAD").route(get_or_head().to(inbox::contacts)))
            .service(resource("/inbox/contacts/{id}", "GET, HEAD").route(get_or_head().to(inbox::contact)))
            .service(resource("/targets", "GET, HEAD").route(get_or_head().to(targets::show)))
            .service(resource("/targets/{submissionTarget}/pause", "POST").route(web::post().to(targets::pause)))
            .service(resource("/targets/{submissionTarget}/resume", "POST").route(web::post().to(targets::resume)))
            .service(resource("/assets/{name}", "GET, HEAD").route(get_or_head().to(assets::asset)))
            .default_service(web::to(|| async {
                Err::<(), _>(PageError::NotFound("There is no such page.".to_owned()))
            })),
    );
}

/// Why a page cannot be shown. The response is a page with the error.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Template(#[from] askama::Error),
}

impl ResponseError for PageError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Refused(_) => StatusCode::FORBIDDEN,
            Self::Store(StoreError::Overloaded | StoreError::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(StoreError::Unexpected(_)) | Self::Template(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let status = self.status_code();
        match self {
            Self::NotFound(text) => notice(status, "Not found", text),
            Self::Refused(text) => notice(status, "Refused", text),
            Self::Store(StoreError::Overloaded | StoreError::Unavailable(_)) => {
                log::warn!("page_failed error={:?}", self.to_string());
                notice(status, "Try again in a moment", "The store is not responding or is overloaded.")
            }
            Self::Store(StoreError::Unexpected(_)) | Self::Template(_) => {
                log::error!("page_failed error={:?}", self.to_string());
                notice(status, "Internal error", "The log of the service has the details.")
            }
        }
    }
}

#[derive(Template)]
#[template(path = "console/notice.html")]
struct Notice<'a> {
    section: &'static str,
    title: &'a str,
    text: &'a str,
}

/// A page with a title and one sentence.
fn notice(status: StatusCode, title: &str, text: &str) -> HttpResponse {
    let html = Notice { section: "", title, text }.render().unwrap_or_else(|_| title.to_owned());
    HttpResponse::build(status).content_type(ContentType::html()).body(html)
}

/// Renders a page.
fn page(template: &impl Template) -> Result<HttpResponse, PageError> {
    Ok(HttpResponse::Ok().content_type(ContentType::html()).body(template.render()?))
}
