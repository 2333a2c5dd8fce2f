//! The contract as `/openapi.json`, and `/docs` to read and try it, both from the binary.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::SwaggerUi;

use super::{intents, ops, read, resource, targets, webhooks};
use crate::{inbox, jobs};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Submission Manager",
        description = "Hand in an intent; it is attempted at once, retried as its target's contract allows, ends in \
                       exactly one outcome, and every attempt is kept."
    ),
    modifiers(&Bearer),
    paths(
        intents::submit,
        intents::list,
        intents::get,
        intents::history,
        webhooks::redeliver,
        targets::list,
        targets::pause,
        targets::resume,
        jobs::submit,
        jobs::list,
        jobs::get,
        jobs::history,
        inbox::submit,
        inbox::hook,
        inbox::submissions,
        inbox::submission,
        inbox::reprocess,
        inbox::reprocess_parked,
        inbox::contacts,
        inbox::messages,
        crate::console::history::fragment,
        ops::healthz,
        ops::readyz,
        ops::metrics
    ),
    tags(
        (name = "intents", description = "Submissions and what became of them"),
        (name = "targets", description = "Letting a target rest"),
        (name = "jobs", description = "Execution requests of tenants for management nodes"),
        (name = "inbox", description = "What comes in: forms, texts, calls and mails, and who they are from"),
        (name = "console", description = "Pages and fragments for operators"),
        (name = "operations", description = "For platforms")
    )
)]
pub struct ApiDoc;

/// Tokens as `/docs` lets them be typed in.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("bearer", scheme);
    }
}

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/docs", "GET, HEAD").route(
            read().to(|| async {
                HttpResponse::PermanentRedirect().insert_header((header::LOCATION, "/docs/")).finish()
            }),
        ))
        .service(SwaggerUi::new("/docs/{_:.*}").url("/openapi.json", ApiDoc::openapi()));
}
