//! `/v1/targets`: list, pause and resume targets.
//!
//! A paused target still accepts new intents, which wait, and the deadlines of its intents still pass. The store refuses to
//! start attempts of a paused target, so a pause takes effect whichever instance leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpResponse, web};

use super::json::{CommonErrors, ErrorJson, TargetJson, TargetListJson};
use crate::domain::contract::ContractSnapshot;
use crate::domain::intent::TargetName;
use crate::domain::limits::TargetLimits;
use crate::domain::time::Timestamp;
use crate::store::StoreError;
use crate::web::WebDeps;
use crate::web::error::ApiError;

/// A target as the registry and the store together describe it.
#[derive(Default)]
pub struct KnownTarget {
    /// The contract, or `None` if the target is no longer in the registry.
    pub snapshot: Option<Arc<ContractSnapshot>>,
    pub limits: TargetLimits,
    pub paused_at: Option<Timestamp>,
}

/// All targets: those in the registry, and those that only the store knows because it has had intents for them. A
/// management node is a target with the name `node:` and its id.
pub async fn known_targets(deps: &WebDeps) -> Result<BTreeMap<TargetName, KnownTarget>, StoreError> {
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

/// Pauses or resumes a target. Returns the target after the change, or `None` if it does not exist.
pub async fn set_paused(deps: &WebDeps, raw: &str, paused: bool) -> Result<Option<TargetJson>, StoreError> {
    let Ok(name) = TargetName::parse(raw) else { return Ok(None) };
    let Some(mut target) = known_targets(deps).await?.remove(&name) else { return Ok(None) };
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
    responses((status = 200, body = TargetListJson, description = "All targets, in order of their names"), CommonErrors))]
pub async fn list(deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let targets = known_targets(&deps).await?.iter().map(|(name, target)| TargetJson::of(name, target)).collect();
    Ok(HttpResponse::Ok().json(TargetListJson { targets }))
}

/// Pause a target
///
/// After the response no attempt of this target starts. Attempts in progress are finished and recorded. New intents are
/// accepted and wait; their deadlines still apply. Pausing a paused target changes nothing.
#[utoipa::path(post, path = "/v1/targets/{submissionTarget}/pause", tag = "targets", operation_id = "pauseTarget",
    security((), ("bearer" = ["admin"])),
    params(("submissionTarget" = String, Path, description = "The name of the target, percent-encoded")),
    responses(
        (status = 200, body = TargetJson, description = "The target is paused"),
        (status = 404, body = ErrorJson, description = "No such target"),
        CommonErrors,
    ))]
pub async fn pause(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    change(&path, &deps, true).await
}

/// Resume a paused target
///
/// Attempts that are due start in order, as slots become free. Resuming an active target changes nothing.
#[utoipa::path(post, path = "/v1/targets/{submissionTarget}/resume", tag = "targets", operation_id = "resumeTarget",
    security((), ("bearer" = ["admin"])),
    params(("submissionTarget" = String, Path, description = "The name of the target, percent-encoded")),
    responses(
        (status = 200, body = TargetJson, description = "The target is active"),
        (status = 404, body = ErrorJson, description = "No such target"),
        CommonErrors,
    ))]
pub async fn resume(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    change(&path, &deps, false).await
}

async fn change(raw: &str, deps: &WebDeps, paused: bool) -> Result<HttpResponse, ApiError> {
    let changed = set_paused(deps, raw, paused).await?;
    let target = changed.ok_or_else(|| ApiError::NotFound(format!("no such target: {raw:?}")))?;
    Ok(HttpResponse::Ok().json(target))
}
