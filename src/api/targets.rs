//! `/v1/targets`: list, pause and resume targets.
//!
//! A paused target still accepts new intents, which wait, and the deadlines of its intents still pass. The store refuses to
//! start attempts of a paused target, so a pause takes effect whichever instance leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpResponse, web};

use super::json::{CommonErrors, ErrorJson, PauseRequest, TargetJson, TargetListJson};
use super::redrives::json::optional_object;
use crate::domain::actor::Actor;
use crate::domain::contract::ContractSnapshot;
use crate::domain::intent::TargetName;
use crate::domain::limits::TargetLimits;
use crate::domain::pause::PauseReason;
use crate::store::{StoreError, TargetPause};
use crate::web::error::ApiError;
use crate::web::{ENVELOPE_BYTES, WebDeps};

/// A target as the registry and the store together describe it.
#[derive(Default)]
pub struct KnownTarget {
    /// The contract, or `None` if the target is no longer in the registry.
    pub snapshot: Option<Arc<ContractSnapshot>>,
    pub limits: TargetLimits,
    pub pause: Option<TargetPause>,
}

/// All targets: those in the registry, and those that only the store knows because it has had intents for them. A
/// management node is a target with the name `node:` and its id.
pub async fn known_targets(deps: &WebDeps) -> Result<BTreeMap<TargetName, KnownTarget>, StoreError> {
    let registry = deps.registry.get();
    let registered = registry.contracts().map(|snapshot| {
        let name = snapshot.contract.target.clone();
        let limits = registry.limits(&name);
        (name, KnownTarget { snapshot: Some(snapshot), limits, pause: None })
    });
    let mut targets: BTreeMap<_, _> = registered.collect();
    for stored in deps.store.targets().await? {
        targets.entry(stored.name).or_default().pause = stored.pause;
    }
    Ok(targets)
}

/// A change of a target.
pub enum TargetChange {
    Pause(Option<PauseReason>),
    Resume,
}

/// Pauses or resumes a target, and logs it. Returns the target after the change, or `None` if it does not exist.
pub async fn change_target(
    deps: &WebDeps,
    raw: &str,
    change: TargetChange,
    by: Actor,
) -> Result<Option<TargetJson>, StoreError> {
    let Ok(name) = TargetName::parse(raw) else { return Ok(None) };
    let Some(mut target) = known_targets(deps).await?.remove(&name) else { return Ok(None) };
    let label = by.label().to_owned();
    target.pause = match change {
        TargetChange::Pause(reason) => {
            let pause = deps.store.pause_target(name.clone(), reason, by).await?;
            log::info!("target_paused submission_target={name:?} by={label:?}");
            Some(pause)
        }
        TargetChange::Resume => {
            deps.store.resume_target(name.clone(), by).await?;
            log::info!("target_resumed submission_target={name:?} by={label:?}");
            None
        }
    };
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
/// accepted and wait; their deadlines still apply. Pausing a paused target changes nothing, not even its reason.
#[utoipa::path(post, path = "/v1/targets/{submissionTarget}/pause", tag = "targets", operation_id = "pauseTarget",
    security((), ("bearer" = ["admin"])),
    params(("submissionTarget" = String, Path, description = "The name of the target, percent-encoded")),
    request_body(content = Option<PauseRequest>),
    responses(
        (status = 200, body = TargetJson, description = "The target is paused"),
        (status = 400, body = ErrorJson, description = "The reason is invalid"),
        (status = 404, body = ErrorJson, description = "No such target"),
        CommonErrors,
    ))]
pub async fn pause(
    path: web::Path<String>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    let (body, _reservation) = deps.bodies.read(payload, ENVELOPE_BYTES).await?;
    let request: PauseRequest = optional_object(&body)?;
    let reason = PauseReason::parse(&request.reason.unwrap_or_default());
    let reason = reason.map_err(|error| ApiError::InvalidRequest(error.to_string()))?;
    respond(&path, &deps, TargetChange::Pause(reason), by).await
}

/// Resume a paused target
///
/// Attempts that are due start in order, as the limits of attempts in progress allow. Resuming an active target changes
/// nothing.
#[utoipa::path(post, path = "/v1/targets/{submissionTarget}/resume", tag = "targets", operation_id = "resumeTarget",
    security((), ("bearer" = ["admin"])),
    params(("submissionTarget" = String, Path, description = "The name of the target, percent-encoded")),
    responses(
        (status = 200, body = TargetJson, description = "The target is active"),
        (status = 404, body = ErrorJson, description = "No such target"),
        CommonErrors,
    ))]
pub async fn resume(path: web::Path<String>, deps: web::Data<WebDeps>, by: Actor) -> Result<HttpResponse, ApiError> {
    respond(&path, &deps, TargetChange::Resume, by).await
}

async fn respond(raw: &str, deps: &WebDeps, change: TargetChange, by: Actor) -> Result<HttpResponse, ApiError> {
    let changed = change_target(deps, raw, change, by).await?;
    let target = changed.ok_or_else(|| ApiError::NotFound(format!("no such target: {raw:?}")))?;
    Ok(HttpResponse::Ok().json(target))
}
