//! `/ui/targets`: all targets with their contract, recent results and number of waiting intents, and a button to pause or
//! resume each.

use std::collections::BTreeMap;

use actix_web::{HttpResponse, web};
use askama::Template;

use super::form::Form;
use super::nav::Nav;
use super::search::redirect;
use super::{PageError, page, wording};
use crate::api::targets::{KnownTarget, TargetChange, change_target, known_targets};
use crate::domain::actor::Actor;
use crate::domain::intent::TargetName;
use crate::domain::pause::{MAX_REASON_CHARS, PauseReason};
use crate::store::{RECENT_MINUTES, TargetHealth, TargetPause};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/targets.html")]
struct TargetsPage {
    nav: Nav,
    recent_minutes: i64,
    max_reason_chars: usize,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    href: String,
    contract: String,
    limits: String,
    pause: Option<TargetPause>,
    /// The path that the button posts to.
    switch: String,
    gateway: String,
    /// The outcomes of recent attempts.
    recent: String,
    mean_duration: String,
    waiting: u64,
}

/// The list of targets.
pub(super) async fn show(deps: web::Data<WebDeps>, operator: Operator) -> Result<HttpResponse, PageError> {
    let recent = deps.store.target_health().await?.into_iter();
    let recent: BTreeMap<_, _> = recent.map(|health| (health.target.clone(), health)).collect();
    let rows = known_targets(&deps).await?.into_iter().filter_map(|(name, target)| {
        let health = recent.get(&name);
        let relevant = target.snapshot.is_some() || target.pause.is_some() || health.is_some();
        relevant.then(|| Row::of(&name, &target, health))
    });
    page(&TargetsPage {
        nav: Nav::new("targets", operator).at(deps.clock.now()),
        recent_minutes: RECENT_MINUTES,
        max_reason_chars: MAX_REASON_CHARS,
        rows: rows.collect(),
    })
}

/// Handles the form that pauses a target, with a reason or without.
pub(super) async fn pause(
    path: web::Path<String>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let reason = PauseReason::parse(form.text("reason"));
    let reason = reason.map_err(|error| PageError::NotDone(format!("The {error}.")))?;
    switch(&path, &deps, TargetChange::Pause(reason), by, &form).await
}

/// Handles the button that resumes a target.
pub(super) async fn resume(
    path: web::Path<String>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    switch(&path, &deps, TargetChange::Resume, by, &form).await
}

/// Changes a target, and redirects to the page that has the button.
async fn switch(
    raw: &str,
    deps: &WebDeps,
    change: TargetChange,
    by: Actor,
    form: &Form,
) -> Result<HttpResponse, PageError> {
    let no_such = || PageError::NotFound(format!("There is no target {raw:?}."));
    let changed = change_target(deps, raw, change, by).await?;
    changed.ok_or_else(no_such)?;
    let name = TargetName::parse(raw).map_err(|_| no_such())?;
    let back = if form.text("back") == "target" { wording::target_href(&name) } else { "/ui/targets".to_owned() };
    Ok(redirect(&back))
}

impl Row {
    fn of(name: &TargetName, target: &KnownTarget, health: Option<&TargetHealth>) -> Self {
        let contract = target.snapshot.as_ref().map(|snapshot| &snapshot.contract);
        let switch = if target.pause.is_some() { "resume" } else { "pause" };
        Self {
            name: name.to_string(),
            href: wording::target_href(name),
            limits: wording::limits(target.limits),
            pause: target.pause.clone(),
            switch: format!("{}/{switch}", wording::target_href(name)),
            contract: contract.map_or_else(|| "no longer in the registry".to_owned(), |c| wording::contract(c)),
            gateway: contract.map(|c| c.gateway_url.to_string()).unwrap_or_default(),
            recent: health.map(wording::health).unwrap_or_default(),
            mean_duration: health.and_then(|health| health.mean).map(wording::duration_text).unwrap_or_default(),
            waiting: health.map_or(0, |health| health.waiting),
        }
    }
}
