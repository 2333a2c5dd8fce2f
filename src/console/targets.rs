//! `/ui/targets`: the contract of each target, how it is doing, and how many of its intents wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpResponse, web};
use askama::Template;
use url::form_urlencoded;

use super::{PageError, page, words};
use crate::core::contract::ContractSnapshot;
use crate::core::intent::TargetName;
use crate::http::HttpParts;
use crate::store::{RECENT_MINUTES, TargetHealth};

#[derive(Template)]
#[template(path = "console/targets.html")]
struct TargetsPage {
    place: &'static str,
    recent_minutes: i64,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    href: String,
    contract: String,
    gateway: String,
    terminal: String,
    webhook: Option<String>,
    recent: String,
    mean: String,
    waiting: u64,
}

pub async fn show(parts: web::Data<HttpParts>) -> Result<HttpResponse, PageError> {
    let recent = parts.store.target_health().await?;
    let registry = parts.registry.get();
    let mut targets: BTreeMap<TargetName, (Option<Arc<ContractSnapshot>>, Option<TargetHealth>)> =
        registry.contracts().map(|snapshot| (snapshot.contract.target.clone(), (Some(snapshot), None))).collect();
    for health in recent {
        let (_, recent) = targets.entry(health.target.clone()).or_default();
        *recent = Some(health);
    }
    let rows = targets.iter().map(|(name, (snapshot, health))| Row::of(name, snapshot.as_deref(), health.as_ref()));
    page(&TargetsPage { place: "targets", recent_minutes: RECENT_MINUTES, rows: rows.collect() })
}

impl Row {
    fn of(name: &TargetName, snapshot: Option<&ContractSnapshot>, health: Option<&TargetHealth>) -> Self {
        let contract = snapshot.map(|snapshot| &snapshot.contract);
        let query =
            form_urlencoded::Serializer::new(String::new()).append_pair("submissionTarget", name.as_str()).finish();
        Self {
            name: name.to_string(),
            href: format!("/ui/intents?{query}"),
            contract: contract.map_or_else(|| "not in the registry any more".to_owned(), |c| words::contract(c)),
            gateway: contract.map(|c| c.gateway_url.to_string()).unwrap_or_default(),
            terminal: contract.map(|c| c.terminal_outcomes.names().collect::<Vec<_>>().join(", ")).unwrap_or_default(),
            webhook: contract.and_then(|c| c.webhook.as_ref()).map(|webhook| webhook.url.origin().to_owned()),
            recent: health.map(words::health).unwrap_or_default(),
            mean: health.and_then(|health| health.mean).map(words::span).unwrap_or_default(),
            waiting: health.map_or(0, |health| health.waiting),
        }
    }
}
