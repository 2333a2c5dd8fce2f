//! Targets for operators: which there are, and letting one rest.
//!
//! A paused target keeps its backlog and its deadlines; new intents for it are taken and wait. The store
//! refuses to begin attempts of it, so what is answered here holds whoever leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::json::{ErrorJson, Refused, TargetJson, TargetListJson};
use crate::domain::client::Scope;
use crate::domain::contract::ContractSnapshot;
use crate::domain::intent::TargetName;
use crate::domain::limits::TargetLimits;
use crate::domain::time::Timestamp;
use crate::store::StoreError;
use crate::web::error::ApiError;
use crate::web::{WebDeps, auth};

/// What is known of a target, from the registry and the store together.
#[derive(Default)]
pub struct KnownTarget {
    /// None if it is not in the registry any more.
    pub snapshot: Option<Arc<ContractSnapshot>>,
    pub limits: TargetLimits,
    pub paused_at: Option<Timestamp>,
}

/// Every target of the registry (management nodes are there as `node:` and their id), and every other one that
/// there have been intents for.
pub async fn known(deps: &WebDeps) -> Result<BTreeMap<TargetName, KnownTarget>, StoreError> {
    let registry = deps.registry.get();
    let registered = registry.contracts().map(|snapshot| {
        let name = snapshot.contract.target.clone();
        let limits = registry.limits(&name);
        (name, KnownTarget { snapshot: Some(snapshot), limits, paused_at: None })
    });
    let mut targets: BTreeMap<_, _> = registered.collect();
    for stored in deps.store.targets().await? {
        targets.entry(stored.name).or_default().paused_at = stored.paused_at;
    }
    Ok(targets)
}

/// Pauses a target, or lets it go on; as it is then, or `None` if there is no such target.
pub async fn set_paused(deps: &WebDeps, raw: &str, paused: bool) -> Result<Option<TargetJson>, StoreError> {
    let Ok(name) = TargetName::parse(raw) else { return Ok(None) };
    let Some(mut target) = known(deps).await?.remove(&name) else { return Ok(None) };
    target.paused_at = if paused {
        Some(deps.store.pause_target(name.clone()).await?)
    } else {
        deps.store.resume_target(name.clone()).await?;
        None
    };
    log::info!("{} submission_target={name:?}", if paused { "target_paused" } else { "target_resumed" });
    Ok(Some(TargetJson::of(&name, &target)))
}

/// List targets, with their limits and whether they are paused
#[utoipa::path(get, path = "/v1/targets", tag = "targets", operation_id = "listTargets",
    security((), ("bearer" = ["admin"])),
    responses((status = 200, body = TargetListJson, description = "All of them, by name"), Refused))]
pub async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &deps, Scope::Admin)?;
    let targets = known(&deps).await?.iter().map(|(name, target)| TargetJson::of(name, target)).collect();
    Ok(HttpResponse::Ok().json(TargetListJson { targets }))
}

/// Pause a target: from the answer on no attempt of it begins
///
/// Attempts under way are finished and recorded. Intents for it are taken and wait; deadlines go on passing.
/// Pausing one that is paused changes nothing.
#[utoipa::path(post, path = "/v1/targets/{submissionTarget}/pause", tag = "targets", operation_id = "pauseTarget",
    security((), ("bearer" = ["admin"])),
    params(("submissionTarget" = String, Path, description = "Percent-encoded where a URL needs it")),
    responses(
        (status = 200, body = TargetJson, description = "It is paused"),
        (status = 404, body = ErrorJson, description = "No such target"),
        Refused,
    ))]
pub async fn pause(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    change(&request, &path, &deps, true).await
}

/// Let a paused target go on: what is due is attempted at once, in order
#[utoipa::path(post, path = "/v1/targets/{submissionTarget}/resume", tag = "targets", operation_id = "resumeTarget",
    security((), ("bearer" = ["admin"])),
    params(("submissionTarget" = String, Path, description = "Percent-encoded where a URL needs it")),
    responses(
        (status = 200, body = TargetJson, description = "It goes on"),
        (status = 404, body = ErrorJson, description = "No such target"),
        Refused,
    ))]
pub async fn resume(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    change(&request, &path, &deps, false).await
}

async fn change(request: &HttpRequest, raw: &str, deps: &WebDeps, paused: bool) -> Result<HttpResponse, ApiError> {
    auth::allow(request, deps, Scope::Admin)?;
    let changed = set_paused(deps, raw, paused).await?;
    let target = changed.ok_or_else(|| ApiError::NotFound(format!("there is no target {raw:?}")))?;
    Ok(HttpResponse::Ok().json(target))
}
