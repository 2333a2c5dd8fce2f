//! Redrives: new intents that repeat intents which failed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::StoreError;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::contract::ContractSnapshot;
use crate::domain::intent::{Intent, IntentId, Status, TargetName};
use crate::domain::outcome::Contact;
use crate::domain::redrive::{PlanSummary, RedriveFilter, RedriveId, RedriveRate, RedriveState, Refusal};
use crate::domain::schedule::{GatewayId, Lane};
use crate::domain::time::Timestamp;

/// How a new intent is connected with the intent that it repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveLink {
    /// The intent that is repeated.
    pub of: IntentId,
    /// The redrive in bulk that creates the new intent; `None` if it was asked for alone.
    pub redrive: Option<RedriveId>,
    /// The id of the first intent of the chain, which gateways get as `Idempotency-Key`.
    pub gateway_key: IntentId,
    /// The entry of the audit log, if the new intent was asked for alone. It is appended if the intent is created.
    pub audit: Option<NewAuditEntry>,
}

/// An intent with everything that a new intent repeats of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveSource {
    pub intent: Intent,
    pub payload: Bytes,
    /// The id of the first intent of its chain.
    pub gateway_key: IntentId,
}

/// A redrive to be planned.
#[derive(Clone, Debug)]
pub struct NewRedrive {
    pub id: RedriveId,
    pub filter: RedriveFilter,
    /// The filter as it is shown: a JSON object.
    pub filter_json: String,
    /// Whether intents are included that the gateway may have accepted.
    pub include_unknown: bool,
    pub note: Option<String>,
    /// The targets of the registry in force.
    pub registered: Arc<BTreeSet<TargetName>>,
    /// Who plans it.
    pub by: Actor,
}

impl NewRedrive {
    /// The entry of the audit log for a plan with this many intents.
    pub(super) fn audit_entry(&self, count: usize) -> NewAuditEntry {
        let note = self.note.as_deref();
        NewAuditEntry::plan_redrive(&self.by, self.id, &self.filter_json, self.include_unknown, note, count)
    }
}

/// The result of planning a redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planning {
    Planned(Box<Redrive>),
    /// The filter matches more than [`MAX_PLANNED`](crate::domain::redrive::MAX_PLANNED) intents. Nothing was stored.
    TooMany,
}

/// A stored redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    pub id: RedriveId,
    pub state: RedriveState,
    pub planned_at: Timestamp,
    pub started_at: Option<Timestamp>,
    /// When it was completed or cancelled.
    pub ended_at: Option<Timestamp>,
    /// A JSON object.
    pub filter: String,
    pub include_unknown: bool,
    pub note: Option<String>,
    pub rate: Option<RedriveRate>,
    /// How many intents the plan has.
    pub count: u64,
    pub created: u64,
    pub skipped: u64,
    pub plan: PlanSummary,
    pub outcomes: RedriveOutcomes,
}

impl Redrive {
    /// How many intents of the plan are still to be redriven; 0 if it was cancelled.
    pub fn remaining(&self) -> u64 {
        match self.state.is_over() {
            true => 0,
            false => self.count.saturating_sub(self.created + self.skipped),
        }
    }
}

/// How many of the intents that a redrive created have which status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveOutcomes {
    pub pending: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub exhausted: u64,
}

impl RedriveOutcomes {
    pub(super) fn add(&mut self, status: Status, intents: u64) {
        *match status {
            Status::Pending => &mut self.pending,
            Status::Accepted => &mut self.accepted,
            Status::Rejected => &mut self.rejected,
            Status::Exhausted => &mut self.exhausted,
        } += intents;
    }

    /// What is stored once none of the intents is pending.
    pub(super) fn to_text(self) -> String {
        format!("{} {} {}", self.accepted, self.rejected, self.exhausted)
    }

    pub(super) fn of_text(text: &str) -> Option<Self> {
        let mut counts = text.split(' ').map(str::parse);
        let mut next = || counts.next()?.ok();
        Some(Self { pending: 0, accepted: next()?, rejected: next()?, exhausted: next()? })
    }
}

/// A page of redrives, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedrivePage {
    pub redrives: Vec<Redrive>,
    /// Continue after this redrive, if there are more.
    pub next: Option<RedriveId>,
}

impl RedrivePage {
    /// Stores read one redrive more than the page has, to know whether there is a next page.
    pub(super) fn of(mut redrives: Vec<Redrive>, limit: usize) -> Self {
        let more = redrives.len() > limit;
        redrives.truncate(limit);
        let next = redrives.last().filter(|_| more).map(|last| last.id);
        Self { redrives, next }
    }
}

/// The result of changing a redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedRedrive {
    Changed(Box<Redrive>),
    Refused(Refusal),
    NotFound,
}

/// The store's number for a redrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RedriveSeq(pub i64);

/// A redrive that the leader runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningRedrive {
    pub seq: RedriveSeq,
    pub id: RedriveId,
    pub rate: RedriveRate,
    /// How many intents it has created so far.
    pub created: u64,
    /// The targets of its intents, by their numbers.
    pub targets: Vec<String>,
}

/// One step of a running redrive: which intents to create next.
pub struct RedriveWork {
    pub seq: RedriveSeq,
    pub id: RedriveId,
    /// How many intents of the plan are handled at most.
    pub limit: usize,
    /// The current contract of each target of the redrive, in the order of their numbers. Intents of targets without a
    /// contract are skipped.
    pub contracts: Vec<Option<Arc<ContractSnapshot>>>,
    pub admission: Arc<dyn RedriveAdmission>,
}

/// Decides which redriven intents may be created now.
pub trait RedriveAdmission: Send + Sync {
    /// How many redriven intents of this lane may be created now: none while an intent of its gateway waits for a slot.
    fn room(&self, lane: &Lane) -> usize;
}

/// How many intents of each target of a redrive may be created in one step.
pub(super) struct Rooms {
    /// By the number of the target: its gateway and the room of its lane. `None` for a target that the registry does not have:
    /// its intents are skipped.
    targets: Vec<Option<(GatewayId, usize)>>,
    /// What is left for all targets of a gateway.
    gateways: HashMap<GatewayId, usize>,
}

impl Rooms {
    pub(super) fn new<'a>(lanes: impl IntoIterator<Item = Option<&'a Lane>>, admission: &dyn RedriveAdmission) -> Self {
        let room = |lane: &Lane| (lane.gateway, admission.room(lane));
        let targets: Vec<_> = lanes.into_iter().map(|lane| lane.map(room)).collect();
        let mut gateways = HashMap::new();
        for (gateway, room) in targets.iter().flatten() {
            let most: &mut usize = gateways.entry(*gateway).or_default();
            *most = (*most).max(*room);
        }
        Self { targets, gateways }
    }

    /// The numbers of the targets that have room, and how much.
    pub(super) fn admitted(&self) -> impl Iterator<Item = (usize, usize)> {
        let room = |target: &Option<(GatewayId, usize)>| target.map_or(usize::MAX, |(_, room)| room);
        self.targets.iter().map(room).enumerate().filter(|(_, room)| *room > 0)
    }

    /// Whether every target has room.
    pub(super) fn all_admitted(&self) -> bool {
        self.admitted().count() == self.targets.len()
    }

    /// Takes room for one intent of a target; returns whether there was any.
    pub(super) fn take(&mut self, target: usize) -> bool {
        let Some(Some((gateway, room))) = self.targets.get_mut(target) else { return true };
        let Some(left) = self.gateways.get_mut(gateway).filter(|left| **left > 0 && *room > 0) else { return false };
        *left -= 1;
        *room -= 1;
        true
    }
}

/// The result of [`RedriveWork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedriveWorked {
    /// How many intents this step created.
    pub now_created: usize,
    /// How many intents of the plan this step skipped.
    pub now_skipped: usize,
    /// How many intents the redrive has created in all; `None` if nothing was done, because it does not run any more or none
    /// of its targets is admitted.
    pub created: Option<u64>,
    /// Whether nothing is left to do.
    pub completed: bool,
}

impl RedriveWorked {
    pub(super) const NOTHING: Self = Self { now_created: 0, now_skipped: 0, created: None, completed: false };
}

/// Plans that were cut off are deleted after this time. It is longer than any plan takes.
pub(super) const STALE_PLANNING: std::time::Duration = std::time::Duration::from_secs(60 * 60);

/// Items of plans that one transaction inserts or deletes at most. SQL Server locks the whole table from 5,000 rows on.
pub(super) const ITEMS_EACH: usize = 2000;

/// Whether the gateway may have accepted an intent whose last attempt has this error.
pub(super) fn is_unknown(error: Option<&str>) -> bool {
    error.is_some_and(|text| Contact::of_text(text) == Contact::Unknown)
}

/// The error of a plan whose row was deleted while it was made.
pub(super) fn plan_lost() -> StoreError {
    StoreError::unavailable("planning the redrive took too long; narrow its filter and plan it again")
}
