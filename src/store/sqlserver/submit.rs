//! New intents in a batch of writes: they are inserted, and started in the same transaction if a slot is free.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::BytesMut;
use serde_json::{Value as Json, json};
use tiberius::Row;

use super::contracts::{ContractRow, Contracts};
use super::database::Database;
use super::rows::{self, INTENT_COLUMNS};
use super::script::{Column, Script, json_text};
use super::{audit, jobs, options};
use crate::domain::audit::NewAuditEntry;
use crate::domain::contract::Policy;
use crate::domain::intent::{Intent, IntentId};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::store::{
    BatchResults, InFlightGuard, NewIntent, NewJob, OpenAttempt, SlotGuard, SlotSource, StartedOnInsert, StoreError,
    StoredIntent, Submitted,
};

/// The new intents of a batch, with their contracts and slots.
pub(super) struct Submits<'a> {
    new: &'a [NewIntent],
    contracts: Vec<ContractRow>,
    /// The slots of intents that may be started in this transaction, by their position in the batch.
    slots: HashMap<usize, (SlotGuard, InFlightGuard)>,
    /// The positions in `new` of the intents that are inserted. If several have the same id or key, only the first is
    /// inserted; the others are compared with it afterwards.
    written: Vec<usize>,
}

impl<'a> Submits<'a> {
    pub(super) async fn prepare(
        database: &Database,
        contracts: &Contracts,
        new: &'a [NewIntent],
    ) -> Result<Self, StoreError> {
        let mut rows = Vec::with_capacity(new.len());
        for new in new {
            rows.push(contracts.row(database, &new.contract).await?);
        }
        let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
        let is_first = |(_, new): &(usize, &'a NewIntent)| {
            ids.insert(&new.id) && new.job.as_ref().is_none_or(|job| keys.insert(job.key))
        };
        let written = new.iter().enumerate().filter(is_first).map(|(place, _)| place).collect();
        Ok(Self { new, contracts: rows, slots: HashMap::new(), written })
    }

    /// Takes slots for intents that may be started at `now`. If an intent is not started after all, its slot is
    /// released when the answer has been read.
    pub(super) fn take_slots(&mut self, source: &dyn SlotSource, now: Timestamp) {
        for place in &self.written {
            // The scheduler starts an intent that has a notBefore, even if that time has passed.
            let starts_now = self.new.get(*place).is_some_and(|new| new.not_before.is_none());
            let contract = self.contracts.get(*place).filter(|_| starts_now);
            let slot = contract.and_then(|row| source.take(&row.lane, now));
            self.slots.extend(slot.map(|slot| (*place, slot)));
        }
    }

    /// Whether an intent has a slot. The batch must then be fenced.
    pub(super) fn may_start(&self) -> bool {
        !self.slots.is_empty()
    }

    fn has_jobs(&self) -> bool {
        self.new.iter().any(|new| new.job.is_some())
    }

    /// Adds the statements that insert the intents. `epoch` is the epoch of the term under which attempts are started.
    pub(super) fn write(&self, script: &mut Script, epoch: Option<&str>) {
        let (jobs, traces) = (self.has_jobs(), self.new.iter().any(|new| new.trace.is_some()));
        let has_options = self.new.iter().any(options::has_any);
        let mut payloads = BytesMut::with_capacity(self.new.iter().map(|new| new.payload.bytes().len()).sum());
        let mut hashes = BytesMut::new();
        let mut items = Vec::with_capacity(self.written.len());
        for place in &self.written {
            let (Some(new), Some(contract)) = (self.new.get(*place), self.contracts.get(*place)) else { continue };
            let seconds = match new.contract.contract.policy {
                // DATEADD takes an INT. Its maximum is 68 years, and a longer deadline makes no difference.
                Policy::Deadline { max_acceptance_seconds } => Some(max_acceptance_seconds.get().min(i32::MAX as u32)),
                Policy::MaxAttempts { .. } | Policy::OneShot => None,
            };
            let mut hash = |bytes: &[u8; 32]| {
                hashes.extend_from_slice(bytes);
                hashes.len() - 31
            };
            let mut item = json!({
                "place": place, "intent_id": json_text(new.id.as_str()), "contract_id": contract.lane.id.0,
                "gateway_id": contract.lane.gateway.0, "payload_from": payloads.len() + 1,
                "payload_length": new.payload.bytes().len(), "payload_sha256": hash(new.payload.sha256()),
            });
            let optional = [
                ("deadline_seconds", seconds.map(Json::from)),
                ("starts", self.slots.contains_key(place).then(|| Json::from(1))),
                ("traceparent", new.trace.map(|trace| Json::from(trace.to_string()))),
            ];
            if let Some(item) = item.as_object_mut() {
                item.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
                if let Some(job) = &new.job {
                    item.extend(job_fields(job, hash(&job.key.0)));
                }
                item.extend(options::input_fields(new));
            }
            payloads.extend_from_slice(new.payload.bytes());
            items.push(item);
        }
        let payloads = script.values.bytes(payloads.freeze());
        let hashes = script.values.bytes(hashes.freeze());
        let mut columns = vec![
            Column::key("place"),
            Column::text("intent_id", 400),
            Column::of("contract_id", "BIGINT"),
            Column::of("gateway_id", "BIGINT"),
            Column::of("deadline_seconds", "INT"),
            Column::of("payload_from", "BIGINT"),
            Column::of("payload_length", "BIGINT"),
            Column::hash("payload_sha256", &hashes),
            Column::of("starts", "BIGINT"),
        ];
        if traces {
            columns.push(Column::code("traceparent", 60));
        }
        if has_options {
            columns.extend(options::input_columns());
        }
        if jobs {
            columns.extend(jobs::input_columns(&hashes));
        }
        script.input("new", items, columns);
        let unless_job_exists = if jobs { jobs::UNLESS_KEY_EXISTS } else { "" };
        let unless_refused = if has_options { options::unless_refused() } else { String::new() };
        let due = if has_options { options::DUE } else { "@now" };
        let epoch = epoch.filter(|_| self.may_start());
        let (check, state) = match epoch {
            Some(epoch) => (CHECK_STARTS, started(epoch, due)),
            None => ("", format!("0, {due}, NULL, NULL")),
        };
        if epoch.is_some() {
            script.starts_attempts();
        }
        script.change(&format!(
            "{check}
INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload, payload_sha256, status, attempt_count,
    next_attempt_at, open_lease_epoch, open_started_at, deadline_at, created_at, last_modified_at)
SELECT n.intent_id, n.contract_id, n.gateway_id, SUBSTRING({payloads}, n.payload_from, n.payload_length),
    n.payload_sha256, 'pending', {state}, DATEADD(SECOND, n.deadline_seconds, {due}), @now, @now
FROM @new AS n
WHERE n.place BETWEEN @first AND @last
    AND NOT EXISTS (SELECT 1 FROM submission_intents AS i WHERE i.intent_id = n.intent_id){unless_job_exists}{unless_refused}
ORDER BY n.place;"
        ));
        if has_options {
            script.change(options::INSERT);
        }
        if jobs {
            script.change(jobs::INSERT_JOBS);
        }
        if traces {
            script.change(jobs::INSERT_TRACES);
        }
        self.write_audit(script);
        script.answer(&format!(
            "
SELECT {INTENT_COLUMNS}, i.payload_sha256
FROM @new AS n
JOIN submission_intents AS i ON i.intent_id = n.intent_id
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE n.place BETWEEN @first AND @last;"
        ));
        if jobs {
            script.answer(&jobs::submitted());
        }
    }

    /// Adds the entry of the audit log, if the batch has one: it is appended if its intent was created.
    fn write_audit(&self, script: &mut Script) {
        let Some((new, entry)) = self.new.iter().find_map(|new| audit_entry(new).map(|entry| (new, entry))) else {
            return;
        };
        script.variable(&format!("@audited BIGINT = 0, {}", audit::VARIABLES));
        let id = script.values.text(new.id.as_str());
        let append = audit::append(&mut script.values, entry);
        // No two transactions share a timestamp, so it tells that this one created the intent.
        script.change(&format!(
            "
SELECT @audited = COUNT_BIG(*) FROM submission_intents WHERE intent_id = {id} AND created_at = @now;
IF @audited > 0
BEGIN{append}
END;"
        ));
    }

    /// Adds the result of each intent, and the attempts that were started, to `results`. `sets` returns the result sets
    /// of the queries that [`Self::write`] added, one after the other; `now` is the time of the transaction.
    pub(super) fn read(
        mut self,
        mut sets: impl FnMut() -> Result<Vec<Row>, StoreError>,
        now: Timestamp,
        term: Option<&Term>,
        results: &mut BatchResults,
    ) -> Result<(), StoreError> {
        let found: HashMap<IntentId, StoredIntent> = sets()?
            .iter()
            .map(|row| rows::found(row).map(|found| (found.intent.id.clone(), found)))
            .collect::<Result<_, _>>()?;
        let by_key: HashMap<Vec<u8>, Intent> = match self.has_jobs() {
            true => sets()?
                .iter()
                .map(|row| Ok((rows::need::<&[u8]>(row, "key_sha256")?.to_vec(), rows::intent(row)?)))
                .collect::<Result<_, StoreError>>()?,
            false => HashMap::new(),
        };
        let mut created_ids = HashSet::new();
        for (place, new) in self.new.iter().enumerate() {
            // Each transaction has its own timestamp, so intents created at `now` were created by this one.
            let answer = match &new.job {
                Some(job) => {
                    let intent = by_key.get(job.key.0.as_slice()).cloned().ok_or_else(missing)?;
                    match intent.id == new.id && intent.created_at == now {
                        true => Submitted::Created(intent),
                        false => Submitted::Existing(intent),
                    }
                }
                None => match found.get(&new.id).cloned() {
                    Some(found) if found.intent.created_at == now && created_ids.insert(&new.id) => {
                        Submitted::Created(found.intent)
                    }
                    Some(found) => found.resubmitted(&new.contract.contract.target, &new.payload, new.not_before),
                    None if new.redrive.is_some() => Submitted::AlreadyRedriven,
                    None if new.not_before.is_some() => Submitted::TooFarAhead,
                    None => return Err(missing()),
                },
            };
            if let (Submitted::Created(intent), Some(term)) = (&answer, term)
                && intent.attempt_open
                && let Some((slot, in_flight)) = self.slots.remove(&place)
            {
                let attempt = OpenAttempt {
                    seq: intent.seq,
                    intent_id: intent.id.clone(),
                    contract: Arc::clone(&new.contract.contract),
                    begins_at: now,
                    attempt_number: 1,
                    lease_epoch: term.epoch,
                    started_at: now,
                    idempotency_key: new.redrive.as_ref().map(|link| link.gateway_key.clone()),
                    trace: new.trace,
                    job: None,
                };
                let payload = new.payload.bytes().clone();
                results.started.push(StartedOnInsert { attempt, payload, slot, in_flight });
            }
            results.submits.push(Ok(answer));
        }
        Ok(())
    }
}

/// The entry of the audit log that belongs to a new intent.
fn audit_entry(new: &NewIntent) -> Option<&NewAuditEntry> {
    new.redrive.as_ref()?.audit.as_ref()
}

/// Whether a batch has more than one entry of the audit log. Such a batch is rare, and its intents are committed one by one,
/// so that the text of a batch does not depend on how many there are.
pub(super) fn has_several_audit_entries(new: &[NewIntent]) -> bool {
    new.iter().filter_map(audit_entry).nth(1).is_some()
}

/// Cancels starts if the term is over, and starts of paused targets. Pausing a target locks the clock's row too, so
/// every start is either before the pause or sees it.
const CHECK_STARTS: &str = "
IF @held = 0 OR EXISTS (SELECT 1 FROM submission_target_pauses)
    UPDATE n SET starts = NULL FROM @new AS n
    WHERE @held = 0 OR EXISTS (SELECT 1 FROM submission_contracts AS c
        JOIN submission_target_pauses AS p ON p.submission_target = c.submission_target
        WHERE c.contract_id = n.contract_id);";

/// The values of the columns `attempt_count`, `next_attempt_at`, `open_lease_epoch` and `open_started_at` of a new
/// intent that may be started.
fn started(epoch: &str, due: &str) -> String {
    let when_starts = |value: &str| format!("CASE WHEN n.starts = 1 THEN {value} END");
    format!(
        "COALESCE(n.starts, 0), CASE WHEN n.starts IS NULL THEN {due} END, {}, {}",
        when_starts(epoch),
        when_starts("@now")
    )
}

/// The additional JSON fields of an intent that belongs to a job.
fn job_fields(job: &NewJob, key_from: usize) -> impl Iterator<Item = (String, Json)> {
    let NewJob { id, facts, .. } = job;
    let fields = [
        ("key_sha256", Json::from(key_from)),
        ("submission_id", Json::from(id.to_string())),
        ("tenant_id", Json::from(json_text(&facts.tenant_id))),
        ("workspace_id", Json::from(json_text(&facts.workspace_id))),
        ("job_id", Json::from(json_text(&facts.job_id))),
        ("idempotency_key", Json::from(json_text(&facts.idempotency_key))),
        ("management_node_id", Json::from(json_text(&facts.management_node_id))),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter()
}

fn missing() -> StoreError {
    StoreError::unavailable("the server did not return an intent that was just inserted")
}
