//! Operators that redrive failed intents, and what a redrive promises.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use rusqlite::OptionalExtension;

use super::activities::Choice;
use super::checks::Promise;
use super::end::query;
use super::fleet::{Fleet, PATIENCE};
use super::rows::Row;
use super::store::pass;
use super::targets::TARGETS;
use super::world::World;
use crate::api::redrives::single::redrive_intent;
use crate::api::redrives::{PlanOrder, change_redrive, plan_redrive};
use crate::domain::actor::fixtures::somebody;
use crate::domain::intent::{IntentId, Payload};
use crate::domain::outcome::Contact;
use crate::domain::redrive::{Conditions, RedriveChange, RedriveFilter, RedriveId, RedriveState};
use crate::store::OpenAttempt;
use crate::web::error::ApiError;

/// How often an operator repeats a request.
const TRIES: usize = 20;
/// The payload of intents that are redriven with another payload.
const EDITED: &str = r#"{"edited":true}"#;

/// A redrive as it was planned.
pub(super) struct Planned {
    /// The numbers of its intents.
    intents: BTreeSet<i64>,
    /// Whether an operator was told that it is paused or cancelled, and has not resumed it.
    quiet: bool,
    /// Whether a request was not answered, so that it may still pause or resume the redrive.
    uncertain: bool,
}

/// Redrives one intent once it has failed.
pub(super) async fn redrive_one(fleet: &Rc<Fleet>, id: &str, edited: bool) {
    let world = &fleet.world;
    for _ in 0..TRIES {
        let asked = IntentId::parse(id).unwrap();
        let payload = edited.then(|| Payload::new(EDITED.into()));
        let answer = fleet.request(PATIENCE, move |running| {
            Box::pin(async move { redrive_intent(&running.web, asked, payload, None, &somebody()).await })
        });
        match answer.await {
            Some(Ok(created)) => {
                let exists = world.state().ledgers.changes.rows.contains_key(&created.seq.0);
                return world.check(Promise::RedrivenOnce, exists, || format!("{created:?} is not stored"));
            }
            Some(Err(ApiError::AlreadyRedriven { .. })) => return,
            Some(Err(error)) => world.log(format_args!("redrive of {id}: {}", error.code())),
            None => world.log(format_args!("redrive of {id}: no answer")),
        }
        let pause = world.draw_millis(200, 2_000);
        pass(pause).await;
    }
}

/// Plans a redrive, starts it, and changes it.
pub(super) async fn redrive_many(
    fleet: &Rc<Fleet>,
    choice: Choice,
    include_unknown: bool,
    changes: Vec<(Duration, RedriveChange)>,
) {
    let Some(id) = plan(fleet, &choice, include_unknown).await else { return };
    for (wait, change) in changes {
        pass(wait).await;
        if !change_state(fleet, id, change).await {
            return;
        }
    }
}

fn order(choice: &Choice, include_unknown: bool) -> PlanOrder {
    let filter = match choice {
        Choice::All => RedriveFilter::Matching(Conditions::default()),
        Choice::Target(target) => {
            let target = Some(TARGETS[*target].parsed_name());
            RedriveFilter::Matching(Conditions { target, ..Conditions::default() })
        }
        Choice::Ids(ids) => RedriveFilter::Ids(ids.iter().map(|id| IntentId::parse(id).unwrap()).collect()),
    };
    PlanOrder { filter, include_unknown, note: None }
}

/// Plans a redrive. A plan whose answer is lost stays, and is never started.
async fn plan(fleet: &Rc<Fleet>, choice: &Choice, include_unknown: bool) -> Option<RedriveId> {
    let world = &fleet.world;
    for _ in 0..TRIES {
        let order = order(choice, include_unknown);
        let answer = fleet.request(PATIENCE, move |running| {
            Box::pin(async move { plan_redrive(&running.web, order, somebody()).await })
        });
        match answer.await {
            Some(Ok(redrive)) => {
                world.log(format_args!("redrive {} of {choice:?} has {} intents", redrive.id, redrive.count));
                return Some(redrive.id);
            }
            Some(Err(error)) => world.log(format_args!("planning a redrive: {}", error.code())),
            None => world.log(format_args!("planning a redrive: no answer")),
        }
        let pause = world.draw_millis(100, 1_000);
        pass(pause).await;
    }
    None
}

/// Changes a redrive. Returns whether the operator goes on with it.
async fn change_state(fleet: &Rc<Fleet>, id: RedriveId, change: RedriveChange) -> bool {
    let world = &fleet.world;
    let mut unanswered = false;
    if change == RedriveChange::Resume {
        world.with_planned(id, |planned| planned.quiet = false);
    }
    for _ in 0..TRIES {
        let answer = fleet.request(PATIENCE, move |running| {
            Box::pin(async move { change_redrive(&running.web, id, change, somebody()).await })
        });
        match answer.await {
            Some(Ok(redrive)) => {
                world.log(format_args!("redrive {id} is {}", redrive.state.as_str()));
                world.with_planned(id, |planned| match redrive.state {
                    RedriveState::Paused => planned.quiet = !planned.uncertain,
                    RedriveState::Cancelled => planned.quiet = true,
                    _ => {}
                });
                return true;
            }
            Some(Err(ApiError::InvalidRedriveState { .. })) if unanswered => return true,
            Some(Err(ApiError::InvalidRedriveState { .. } | ApiError::NotFound(_))) => return false,
            Some(Err(error)) => world.log(format_args!("{} of redrive {id}: {}", change.as_str(), error.code())),
            None => world.log(format_args!("{} of redrive {id}: no answer", change.as_str())),
        }
        unanswered = true;
        world.with_planned(id, |planned| planned.uncertain = true);
        let pause = world.draw_millis(100, 1_000);
        pass(pause).await;
    }
    true
}

impl World {
    fn with_planned(&self, id: RedriveId, change: impl FnOnce(&mut Planned)) {
        if let Some(planned) = self.state().ledgers.redrives.get_mut(&id.to_string()) {
            change(planned);
        }
    }

    /// Checks the redrives that were planned since the last time.
    pub(super) fn check_plans(&self) {
        let plans: Vec<(String, bool)> = self.store.inspect(|connection| {
            let sql = "SELECT redrive_id, include_unknown FROM submission_redrives WHERE state = 'planned'";
            query(connection, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
        });
        for (id, include_unknown) in plans {
            if self.state().ledgers.redrives.contains_key(&id) {
                continue;
            }
            let intents: BTreeSet<i64> = self.store.inspect(|connection| {
                let sql = "SELECT intent_seq FROM submission_redrive_items JOIN submission_redrives USING (redrive_seq)
                    WHERE redrive_id = ?1";
                query(connection, sql, [&id], |row| row.get(0)).into_iter().collect()
            });
            self.log(format_args!("redrive {id} was planned with {} intents", intents.len()));
            for seq in &intents {
                self.check_planned(*seq, include_unknown);
            }
            let planned = Planned { intents, quiet: false, uncertain: false };
            self.state().ledgers.redrives.insert(id, planned);
        }
    }

    /// Checks that an intent may be in a plan: it has failed, and was not redriven.
    fn check_planned(&self, seq: i64, include_unknown: bool) {
        let (row, unknown) = {
            let state = self.state();
            let row = state.ledgers.changes.rows.get(&seq).cloned();
            let outcome = row.as_ref().and_then(|row| state.ledgers.calls.get(&(seq, row.attempts)));
            // A call whose outcome did not arrive may have been accepted.
            let unknown = outcome.is_some_and(|call| {
                call.outcome.as_ref().is_none_or(|(outcome, _)| outcome.contact() == Contact::Unknown)
            });
            (row, unknown)
        };
        let redriven = row.as_ref().is_some_and(|row| !self.successors(&row.id).is_empty());
        let failed = row.as_ref().is_some_and(Row::has_failed);
        self.check(Promise::RedriveKeepsRules, failed && !redriven && (include_unknown || !unknown), || {
            format!("{row:?} is in a plan; redriven {redriven}, outcome unknown {unknown}")
        });
    }

    /// Returns the stored intents that repeat an intent. Those that retention has deleted do not count: their intent may
    /// still be kept, for its webhook, and can then be redriven again.
    fn successors(&self, id: &str) -> Vec<i64> {
        let of_intent = |row: &&Row| row.redrive_of.as_deref() == Some(id);
        let all: Vec<i64> = self.state().ledgers.changes.rows.values().filter(of_intent).map(|row| row.seq).collect();
        all.into_iter().filter(|seq| self.payload(*seq).is_some()).collect()
    }

    /// Checks a new intent that repeats another one.
    pub(super) fn check_redriven(&self, row: &Row) {
        let Some(of) = &row.redrive_of else { return };
        // After a deletion an id may be used again, so the newest row with the id is meant.
        let old = self
            .state()
            .ledgers
            .changes
            .rows
            .values()
            .filter(|other| other.id == *of)
            .max_by_key(|other| other.seq)
            .cloned();
        let twins = self.successors(of).len();
        let Some(old) = old else {
            return self.check(Promise::RedriveKeepsRules, false, || format!("{row:?} repeats an unknown intent"));
        };
        self.check(Promise::RedrivenOnce, twins == 1, || format!("{old:?} was redriven {twins} times"));
        let same_target = self.contract(old.contract).target == self.contract(row.contract).target;
        self.check(Promise::RedriveKeepsRules, old.has_failed() && same_target, || {
            let (contract, before) = (self.contract(row.contract), self.contract(old.contract));
            format!("{row:?} of {contract:?} repeats {old:?} of {before:?}")
        });
        let (payload, old_payload) = (self.payload(row.seq), self.payload(old.seq));
        let edited = payload.as_deref() == Some(EDITED.as_bytes());
        // A single redrive reads the payload before its transaction, and retention may delete the old intent in between.
        let excused = row.redrive_id.is_none() && (edited || old_payload.is_none());
        self.check(Promise::PayloadUnchanged, excused || payload == old_payload, || {
            format!("{row:?} has the payload {payload:?}, and {old:?} had {old_payload:?}")
        });
        if let Some(redrive) = &row.redrive_id {
            let planned = self
                .state()
                .ledgers
                .redrives
                .get(redrive)
                .is_some_and(|planned| planned.intents.contains(&old.seq) && !planned.quiet);
            self.check(Promise::RedriveKeepsRules, planned, || {
                format!("{row:?} was created, and its redrive is paused, cancelled or does not have {of}")
            });
        }
    }

    fn payload(&self, seq: i64) -> Option<Vec<u8>> {
        self.store.inspect(|connection| {
            let sql = "SELECT payload FROM submission_payloads WHERE intent_seq = ?1";
            connection.prepare_cached(sql).unwrap().query_row([seq], |row| row.get(0)).optional().unwrap()
        })
    }

    /// Checks that a call has the key of the first intent of its chain.
    pub(super) fn check_key(&self, attempt: &OpenAttempt) {
        let first = {
            let state = self.state();
            let rows = &state.ledgers.changes.rows;
            let mut first = rows.get(&attempt.seq.0);
            while let Some(of) = first.and_then(|row| row.redrive_of.as_ref()) {
                first = rows.values().find(|row| row.id == *of);
            }
            first.map(|row| row.id.clone())
        };
        let key = attempt.idempotency_key.as_ref().unwrap_or(&attempt.intent_id);
        self.check(Promise::KeyOfFirstIntent, first.as_deref() == Some(key.as_str()), || {
            format!(
                "{:?} was sent with the key {key}, and the first intent of its chain is {first:?}",
                attempt.intent_id
            )
        });
    }

    /// Checks that no redrive has handled more intents than it has.
    pub(super) fn check_progress(&self) {
        for Progress { id, count, created, skipped, .. } in self.progress() {
            let of_redrive = |row: &&Row| row.redrive_id.as_ref() == Some(&id);
            let exist = self.state().ledgers.changes.rows.values().filter(of_redrive).count();
            let kept = created + skipped <= count && usize::try_from(created).is_ok_and(|created| created == exist);
            self.check(Promise::RedriveComplete, kept, || {
                format!("redrive {id} of {count} counts {created} created, {skipped} skipped; {exist} exist")
            });
        }
    }

    /// Checks at the end that completed redrives have handled every intent of their plans.
    pub(super) fn check_redrives(&self) {
        for Progress { id, state, count, created, skipped } in self.progress() {
            if state != "completed" {
                continue;
            }
            let lost: Vec<i64> = {
                let state = self.state();
                let rows = &state.ledgers.changes.rows;
                let is_redriven = |seq: &i64| {
                    let id = rows.get(seq).map(|row| row.id.as_str());
                    rows.values().any(|row| row.redrive_of.as_deref() == id)
                };
                let planned = state.ledgers.redrives.get(&id).map(|planned| &planned.intents);
                planned.into_iter().flatten().filter(|seq| !is_redriven(seq)).copied().collect()
            };
            // Intents that retention deleted meanwhile were skipped.
            let lost: Vec<i64> = lost.into_iter().filter(|seq| self.payload(*seq).is_some()).collect();
            self.check(Promise::RedriveComplete, lost.is_empty() && created + skipped == count, || {
                format!(
                    "redrive {id} of {count} has completed with {created} created, {skipped} skipped; lost {lost:?}"
                )
            });
        }
    }

    fn progress(&self) -> Vec<Progress> {
        let sql = "SELECT redrive_id, state, intent_count, created_count, skipped_count FROM submission_redrives
            WHERE state NOT IN ('planning', 'planned') ORDER BY redrive_seq";
        self.store.inspect(|connection| {
            query(connection, sql, [], |row| {
                let (id, state) = (row.get(0)?, row.get(1)?);
                Ok(Progress { id, state, count: row.get(2)?, created: row.get(3)?, skipped: row.get(4)? })
            })
        })
    }

    /// Resumes paused redrives, when their operators have ended.
    pub(super) async fn resume_redrives(&self) {
        for Progress { id, state, .. } in self.progress() {
            if state == "paused" {
                let id = RedriveId::parse(&id).unwrap();
                self.with_planned(id, |planned| planned.quiet = false);
                let _changed = self.calls.change_redrive(id, RedriveChange::Resume, somebody()).await.unwrap();
            }
        }
    }
}

/// How far a redrive has come, as its row says.
struct Progress {
    id: String,
    state: String,
    count: i64,
    created: i64,
    skipped: i64,
}
