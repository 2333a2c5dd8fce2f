//! The contract as `/openapi.json`, and `/docs` to read and try it, both from the binary.

use std::borrow::Cow;

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::Config;

use super::{history_fragment, inbox, intents, jobs, ops, targets, webhooks};
use crate::web::error::ApiError;
use crate::web::{exact_resource, read, resource};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Submission Manager",
        description = "Hand in an intent; it is attempted at once, retried as its target's contract allows, ends in \
                       exactly one outcome, and every attempt is kept."
    ),
    modifiers(&Bearer, &Closed),
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
        history_fragment::fragment,
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

/// Says of a job's command what the parser does: fields that are not named here are refused. The type itself is also read
/// from what was forwarded to nodes, which has one more.
struct Closed;

impl Modify for Closed {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schemas = document.components.get_or_insert_default().schemas.iter_mut();
        let deps = ["JobCommand", "ExecutionProfile", "ResourceShape", "PayloadRef", "RequestedBy"];
        for (_, schema) in schemas.filter(|(name, _)| deps.contains(&name.as_str())) {
            if let RefOr::T(Schema::Object(object)) = schema {
                object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            }
        }
    }
}

/// Swagger UI puts styles of its own into the page. Nothing is loaded from, or sent to, any other host.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .app_data(web::Data::new(ApiDoc::openapi()))
        .app_data(web::Data::new(swagger()))
        .service(resource("/openapi.json", "GET, HEAD").route(read().to(document)))
        .service(exact_resource("/docs", "GET, HEAD").route(read().to(to_docs)))
        .service(exact_resource("/docs/{file:.*}", "GET, HEAD").route(read().to(docs)));
}

/// Without the validator: that is a third party which would be told the address of this service.
fn swagger() -> Config<'static> {
    Config::from("/openapi.json").validator_url("none")
}

async fn document(document: web::Data<utoipa::openapi::OpenApi>) -> HttpResponse {
    HttpResponse::Ok().json(document.as_ref())
}

/// The page refers to its files by relative paths.
async fn to_docs() -> HttpResponse {
    HttpResponse::PermanentRedirect().insert_header((header::LOCATION, "/docs/")).finish()
}

async fn docs(file: web::Path<String>, config: web::Data<Config<'static>>) -> Result<HttpResponse, ApiError> {
    let file = utoipa_swagger_ui::serve(&file, config.into_inner()).map_err(|error| {
        log::error!("page_failed page=docs error={:?}", error.to_string());
        ApiError::Internal
    })?;
    let file = file.ok_or_else(|| ApiError::NotFound("there is nothing at this path".to_owned()))?;
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
