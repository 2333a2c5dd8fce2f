//! The OpenAPI document at `/openapi.json`, and Swagger UI at `/docs` to read it and try calls. Both are part of the binary.

use std::borrow::Cow;

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::Config;

use super::{audit, batch, cancel, events, history_fragment, inbox, intents, jobs, ops, redrives, targets, webhooks};
use crate::web::error::ApiError;
use crate::web::{exact_resource, get_or_head, resource};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Submission Manager",
        description = "Submit an intent, and the service sends it to the gateway of its target. It retries as the \
                       target's contract allows, and records every attempt. Every intent ends with exactly one of the \
                       statuses accepted, rejected or exhausted."
    ),
    modifiers(&BearerScheme, &NoUnknownFields, &NumbersOfAnySize),
    paths(
        intents::submit,
        batch::submit_batch,
        intents::list,
        intents::get,
        intents::history,
        cancel::cancel_intent,
        webhooks::redeliver,
        events::list,
        events::stream,
        redrives::plan,
        redrives::list,
        redrives::get,
        redrives::start,
        redrives::pause,
        redrives::resume,
        redrives::cancel,
        redrives::single::redrive,
        targets::list,
        targets::pause,
        targets::resume,
        audit::list,
        jobs::submit::submit,
        jobs::queries::list,
        jobs::queries::get,
        jobs::queries::history,
        jobs::cancel::cancel_job,
        jobs::events::list,
        jobs::events::stream,
        inbox::intake::submit,
        inbox::hooks::hook,
        inbox::queries::submissions,
        inbox::queries::submission,
        inbox::reprocess::reprocess,
        inbox::reprocess::reprocess_parked,
        inbox::queries::contacts,
        inbox::queries::messages,
        history_fragment::fragment,
        ops::healthz,
        ops::readyz,
        ops::metrics
    ),
    tags(
        (name = "intents", description = "Submit intents and read their status and history"),
        (name = "events", description = "Read how intents ended, in order"),
        (name = "redrives", description = "Send failed intents again"),
        (name = "targets", description = "List, pause and resume targets"),
        (name = "audit", description = "Read what operators did"),
        (name = "jobs", description = "Submit jobs of a tenant to management nodes and read their status"),
        (name = "inbox", description = "Receive form posts, text messages, calls and emails, and read the contacts and messages made of them"),
        (name = "console", description = "HTML fragments for operator portals"),
        (name = "operations", description = "Health, readiness and metrics")
    )
)]
struct ApiDoc;

/// Adds the bearer token scheme to the document, so that `/docs` can send tokens.
struct BearerScheme;

impl Modify for BearerScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("bearer", scheme);
    }
}

/// Marks the schemas of a job command as closed, because the parser refuses unknown fields. The serde attribute
/// `deny_unknown_fields` cannot do that here: the same types also parse the command that was forwarded to a node, which has
/// one more field.
struct NoUnknownFields;

impl Modify for NoUnknownFields {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schemas = document.components.get_or_insert_default().schemas.iter_mut();
        let closed = ["JobCommand", "ExecutionProfile", "ResourceShape", "PayloadRef", "RequestedBy"];
        for (_, schema) in schemas.filter(|(name, _)| closed.contains(&name.as_str())) {
            if let RefOr::T(Schema::Object(object)) = schema {
                object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            }
        }
    }
}

/// Removes the formats of whole numbers in query strings, such as `int64`. They can have any number of digits, because a
/// number above the highest one counts as the highest.
struct NumbersOfAnySize;

impl Modify for NumbersOfAnySize {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let operations = document.paths.paths.values_mut().flat_map(|path| [&mut path.get, &mut path.post]).flatten();
        for parameter in operations.filter_map(|operation| operation.parameters.as_mut()).flatten() {
            let RefOr::T(Parameter { name, schema: Some(RefOr::T(Schema::Object(number))), .. }) = parameter else {
                continue;
            };
            if ["limit", "waitSeconds", "wait_seconds"].contains(&name.as_str()) {
                number.format = None;
            }
        }
    }
}

/// The Content-Security-Policy of `/docs`. Swagger UI inserts one style sheet into its page, which is allowed by its hash; a
/// browser test says which hash another version needs. The page loads nothing from other hosts and sends nothing to them.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' \
    'sha256-RL3ie0nH+Lzz2YNqQN83mnU0J1ot4QL7b99vMdIX99w='; \
    img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .app_data(web::Data::new(ApiDoc::openapi()))
        .app_data(web::Data::new(swagger()))
        .service(resource("/openapi.json", "GET, HEAD").route(get_or_head().to(document)))
        .service(exact_resource("/docs", "GET, HEAD").route(get_or_head().to(redirect_to_docs)))
        .service(exact_resource("/docs/{file:.*}", "GET, HEAD").route(get_or_head().to(docs)));
}

/// The configuration of Swagger UI. The online validator is off, because it would send the address of this service to a
/// third party.
fn swagger() -> Config<'static> {
    Config::from("/openapi.json").validator_url("none")
}

async fn document(document: web::Data<utoipa::openapi::OpenApi>) -> HttpResponse {
    HttpResponse::Ok().json(document.as_ref())
}

/// Redirects `/docs` to `/docs/`, because the page refers to its files by relative paths.
async fn redirect_to_docs() -> HttpResponse {
    HttpResponse::PermanentRedirect().insert_header((header::LOCATION, "/docs/")).finish()
}

async fn docs(file: web::Path<String>, config: web::Data<Config<'static>>) -> Result<HttpResponse, ApiError> {
    let file = utoipa_swagger_ui::serve(&file, config.into_inner()).map_err(|error| {
        log::error!("page_failed page=docs error={:?}", error.to_string());
        ApiError::Internal
    })?;
    let file = file.ok_or_else(|| ApiError::NotFound("no such path".to_owned()))?;
    let bytes = match file.bytes {
        Cow::Borrowed(bytes) => web::Bytes::from_static(bytes),
        Cow::Owned(bytes) => web::Bytes::from(bytes),
    };
    let mut response = HttpResponse::Ok();
    if file.gzpipped {
        response.insert_header((header::CONTENT_ENCODING, "gzip"));
    }
    Ok(response
        .content_type(file.content_type)
        .insert_header((header::CONTENT_SECURITY_POLICY, DOCS_POLICY))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .body(bytes))
}
