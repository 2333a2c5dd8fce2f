//! `/ui/search`, to which the search box of every page leads, and the redirect from `/` to the console.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, web};
use serde::Deserialize;
use url::form_urlencoded;

use super::PageError;
use super::wording::intent_href;
use crate::domain::intent::IntentId;
use crate::web::{WebDeps, exact_resource, get_or_head};

#[derive(Deserialize)]
pub(super) struct Search {
    #[serde(default)]
    q: String,
}

/// Redirects to the intent that has exactly this id, or to the list of intents that the search finds.
pub(super) async fn search(query: web::Query<Search>, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let text = query.q.trim();
    if text.is_empty() {
        return Ok(redirect("/ui/intents"));
    }
    if let Ok(id) = IntentId::parse(text)
        && deps.store.find(id.clone()).await?.is_some()
    {
        return Ok(redirect(&intent_href(&id)));
    }
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("q", text).finish();
    Ok(redirect(&format!("/ui/intents?{query}")))
}

/// Registers `/`, which leads to the console.
pub(super) fn home(config: &mut web::ServiceConfig) {
    let to_console = || async { HttpResponse::Found().insert_header((header::LOCATION, "/ui")).finish() };
    config.service(exact_resource("/", "GET, HEAD").route(get_or_head().to(to_console)));
}

/// Sends the browser to another page, after an action or a search.
pub(super) fn redirect(to: &str) -> HttpResponse {
    HttpResponse::build(StatusCode::SEE_OTHER).insert_header((header::LOCATION, to)).finish()
}
