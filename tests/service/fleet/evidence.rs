//! Compares what clients were answered, what gateways got and what the store has.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use submission_manager::config::registry::Registry;
use submission_manager::config::variables::Variables;
use submission_manager::devtools::stand_in_gateway::Ledger;
use submission_manager::domain::contract::{Contract, ContractSnapshot, Policy};
use submission_manager::domain::event_json::EventJson;
use submission_manager::domain::intent::{ExhaustedReason, State};
use submission_manager::domain::outcome::Outcome;
use submission_manager::domain::policy::{self, Decision};
use submission_manager::domain::time::Timestamp;
use submission_manager::domain::webhook::{EventStatus, event_id};
use submission_manager::store::selection::{Credentials, StoreChoice};
use submission_manager::store::sqlserver::PoolSettings;
use submission_manager::store::{History, ListQuery, Store};
use submission_manager::telemetry::metrics::Metrics;

use crate::support::{PATIENCE, Site};

/// The record of the clients: every intent as it was first answered, and every history as it was first read after its end.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Notes>>);

#[derive(Clone, Default)]
struct Notes {
    answered: Vec<(String, String)>,
    ended: HashMap<String, Ended>,
    pauses: Vec<Pause>,
    /// The answers to cancellations, each with a moment after the answer, by the store's clock.
    cancelled: Vec<(Cancelled, Timestamp)>,
}

/// A time, by the store's clock, during which a target was certainly paused: from the moment in the answer to the pause
/// until a moment before the request to resume.
#[derive(Clone, Debug)]
pub(crate) struct Pause {
    pub target: String,
    pub from: Timestamp,
    pub until: Timestamp,
}

/// What the answer to a cancellation promised.
#[derive(Clone, Debug)]
pub(crate) enum Cancelled {
    /// 200: the intent has ended as cancelled.
    Now { id: String, may_have_been_sent: bool },
    /// 202: no further attempt starts.
    AfterAttempt { id: String },
}

impl Cancelled {
    fn id(&self) -> &str {
        match self {
            Self::Now { id, .. } | Self::AfterAttempt { id } => id,
        }
    }
}

/// The progress of a redrive as the API showed it after its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedriveRecord {
    completed: bool,
    count: u64,
    created: u64,
    skipped: u64,
    /// How many intents the API lists for it.
    listed: u64,
}

impl RedriveRecord {
    pub(crate) fn of(redrive: &Value, listed: usize) -> Self {
        let number = |field: &str| redrive[field].as_u64().unwrap_or_else(|| panic!("no {field} in {redrive}"));
        Self {
            completed: redrive["state"] == "completed",
            count: number("count"),
            created: number("created"),
            skipped: number("skipped"),
            listed: listed as u64,
        }
    }

    fn violation(&self) -> Option<String> {
        let worked_off = self.created + self.skipped;
        let wrong = match self {
            _ if self.listed != self.created => "created another number of intents than it counts",
            _ if self.completed && worked_off != self.count => "completed without all of its intents",
            _ if worked_off > self.count => "redrove more than its plan",
            _ => return None,
        };
        Some(format!("a redrive {wrong}: {self:?}"))
    }
}

/// The visible state of an intent that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ended {
    status: String,
    completed_at: String,
    attempts: usize,
}

impl Record {
    /// Records the answer to a submission: an intent as JSON.
    pub(crate) fn answered(&self, intent: &Value) {
        let text = |field: &str| intent[field].as_str().unwrap_or_else(|| panic!("no {field} in {intent}")).to_owned();
        self.0.lock().unwrap().answered.push((text("intentId"), text("createdAt")));
    }

    /// Records a history as JSON, if its intent has ended.
    pub(crate) fn seen(&self, history: &Value) {
        let intent = &history["intent"];
        let (Some(completed_at), Some(attempts)) = (intent["completedAt"].as_str(), history["attempts"].as_array())
        else {
            return;
        };
        let status = intent["status"].as_str().unwrap_or_default().to_owned();
        let ended = Ended { status, completed_at: completed_at.to_owned(), attempts: attempts.len() };
        let id = intent["intentId"].as_str().unwrap_or_default().to_owned();
        self.0.lock().unwrap().ended.entry(id).or_insert(ended);
    }

    pub(crate) fn paused(&self, pause: Pause) {
        self.0.lock().unwrap().pauses.push(pause);
    }

    pub(crate) fn pauses(&self) -> usize {
        self.0.lock().unwrap().pauses.len()
    }

    /// Records the answer to a cancellation. `moment` is after that answer, by the store's clock.
    pub(crate) fn cancelled_before(&self, cancelled: Cancelled, moment: Timestamp) {
        self.0.lock().unwrap().cancelled.push((cancelled, moment));
    }

    pub(crate) fn cancellations(&self) -> usize {
        self.0.lock().unwrap().cancelled.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().answered.len()
    }

    /// Returns when an intent was created that was answered lately.
    pub(crate) fn latest(&self) -> Option<Timestamp> {
        self.0.lock().unwrap().answered.last().and_then(|(_, created_at)| Timestamp::parse(created_at))
    }

    /// Returns one of the answered ids.
    pub(crate) fn some_id(&self, number: usize) -> Option<String> {
        let notes = self.0.lock().unwrap();
        notes.answered.get(number % notes.answered.len().max(1)).map(|(id, _)| id.clone())
    }
}

/// A request that reached a gateway.
#[derive(Clone, Debug)]
struct Sent {
    id: String,
    number: u32,
    gateway: String,
    /// The intent id in the payload, if it has one.
    payload_id: Option<String>,
}

/// Everything that is known after a run.
pub(crate) struct Evidence {
    record: Notes,
    /// Every request that reached a gateway.
    sent: Vec<Sent>,
    stored: Vec<History>,
    /// When each term started, if its holder lived long enough to log it.
    terms: BTreeMap<i64, Timestamp>,
    registry: Registry,
    /// The ids of the webhook events that reached a receiver, if there was one.
    arrived: Option<HashSet<String>>,
}

impl Evidence {
    /// Reads the store and the requests of gateways. `logs` contain when terms started.
    pub(crate) async fn collect(site: &Site, gateways: &[(String, Ledger)], record: &Record, logs: &[String]) -> Self {
        let store = open(&site.store()).await;
        let mut stored = Vec::new();
        let mut query = ListQuery { limit: 500, ..ListQuery::default() };
        loop {
            let page = store.list(query.clone()).await.unwrap();
            for intent in page.intents {
                stored.push(store.history(intent.id).await.unwrap().expect("it was listed"));
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        let mut sent = Vec::new();
        for (url, ledger) in gateways {
            sent.extend(ledger.entries().into_iter().map(|received| {
                let payload: Value = serde_json::from_slice(&received.body).unwrap_or_default();
                Sent {
                    id: received.idempotency_key,
                    number: received.attempt,
                    gateway: url.clone(),
                    payload_id: payload["id"].as_str().map(str::to_owned),
                }
            }));
        }
        let text = std::fs::read_to_string(site.registry()).unwrap();
        let registry = Registry::parse(&text, &Variables::of_process()).unwrap();
        let terms = logs.iter().filter_map(|line| term_start(line, site.lease_duration)).collect();
        Self { record: record.0.lock().unwrap().clone(), sent, stored, terms, registry, arrived: None }
    }

    /// Adds the webhook events that reached a receiver.
    pub(crate) fn with_events(mut self, arrived: impl Iterator<Item = String>) -> Self {
        self.arrived = Some(arrived.collect());
        self
    }

    pub(crate) fn events(&self) -> usize {
        self.arrived.as_ref().map_or(0, HashSet::len)
    }

    pub(crate) fn interrupted(&self) -> usize {
        let attempts = self.stored.iter().flat_map(|history| &history.attempts);
        attempts.filter(|attempt| attempt.outcome == Outcome::interrupted()).count()
    }

    pub(crate) fn attempts_sent(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn terms(&self) -> usize {
        self.terms.len()
    }

    /// Panics with all violations, if there are any.
    pub(crate) fn hold(&self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "{} violations: {violations:#?}", violations.len());
    }

    /// Returns all contradictions in the evidence.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        let stored: HashMap<&str, &History> =
            self.stored.iter().map(|history| (history.intent.id.as_str(), history)).collect();
        for (id, created_at) in &self.record.answered {
            match stored.get(id.as_str()) {
                None => found.push(format!("{id} was answered, but is not stored")),
                Some(history) if history.intent.created_at.to_string() != *created_at => {
                    found.push(format!("{id} was answered as created at {created_at}: {history:?}"));
                }
                Some(_) => {}
            }
        }
        for (id, ended) in &self.record.ended {
            let now = stored.get(id.as_str()).and_then(|history| ended_of(history));
            if now.as_ref() != Some(ended) {
                found.push(format!("{id} changed after its end: {ended:?} became {now:?}"));
            }
        }
        let owed: HashSet<String> = self.stored.iter().map(|history| event_id(&history.intent)).collect();
        for event in self.arrived.iter().flatten().filter(|event| !owed.contains(*event)) {
            found.push(format!("{event} arrived, and is of no intent"));
        }
        for history in &self.stored {
            let contract = &self.registered(history).contract;
            let errors = errors_of(history)
                .into_iter()
                .chain(self.errors_of_cancellation(history))
                .map(str::to_owned)
                .chain(errors_of_policy(history, contract))
                .chain(self.error_of_webhook(history, contract))
                .chain(self.error_of_pause(history))
                .chain(self.errors_of_terms(history));
            found.extend(errors.map(|error| format!("{error}: {history:?}")));
        }
        found.extend(self.violations_of_chains(&stored));
        found
    }

    fn registered(&self, history: &History) -> Arc<ContractSnapshot> {
        self.registry.contract(&history.intent.target).expect("it was submitted")
    }

    /// Compares the requests that reached gateways with the intents: those of a chain of redrives have one `Idempotency-Key`,
    /// the id of the first.
    fn violations_of_chains(&self, stored: &HashMap<&str, &History>) -> Vec<String> {
        let mut sent: HashMap<&str, Vec<&Sent>> = HashMap::new();
        for request in &self.sent {
            sent.entry(&request.id).or_default().push(request);
        }
        let mut chains: HashMap<&str, Vec<&History>> = HashMap::new();
        let mut repeated = HashSet::new();
        let mut found = Vec::new();
        for history in &self.stored {
            let mut first = history;
            while let Some(of) = &first.intent.redrive_of {
                match stored.get(of.as_str()) {
                    Some(next) => first = *next,
                    None => {
                        found.push(format!("redrives an intent that is not stored: {first:?}"));
                        break;
                    }
                }
            }
            chains.entry(first.intent.id.as_str()).or_default().push(history);
            let Some(of) = history.intent.redrive_of.as_ref() else { continue };
            if !repeated.insert(of) {
                found.push(format!("{of:?} was redriven twice"));
            }
            let names_it = |old: &&History| old.redriven_as.as_ref() == Some(&history.intent.id);
            if !stored.get(of.as_str()).is_some_and(names_it) {
                found.push(format!("{of:?} does not name the intent that redrives it: {history:?}"));
            }
        }
        for id in sent.keys().filter(|id| !chains.contains_key(*id)) {
            found.push(format!("{id} was sent, but is not stored"));
        }
        for (key, chain) in &chains {
            let sent = sent.get(key).map(Vec::as_slice).unwrap_or_default();
            let errors = errors_of_chain(key, chain, sent, &self.registered(chain[0]).contract);
            found.extend(errors.into_iter().map(|error| format!("{error}: sent {sent:?}, stored {chain:?}")));
        }
        found
    }

    /// Returns what is wrong with the redrives that the API showed after their ends.
    pub(crate) fn violations_of_redrives(&self, redrives: &[RedriveRecord]) -> Vec<String> {
        let mut found: Vec<_> = redrives.iter().filter_map(RedriveRecord::violation).collect();
        let created: u64 = redrives.iter().map(|redrive| redrive.created).sum();
        if created != self.redriven() as u64 {
            found.push(format!("{created} intents were created by redrives, and {} are stored", self.redriven()));
        }
        found
    }

    /// How many stored intents repeat another one.
    pub(crate) fn redriven(&self) -> usize {
        self.stored.iter().filter(|history| history.intent.redrive_of.is_some()).count()
    }

    /// Checks what the answers to cancellations promised.
    fn errors_of_cancellation(&self, history: &History) -> Vec<&'static str> {
        let id = history.intent.id.as_str();
        let answers: Vec<_> = self.record.cancelled.iter().filter(|(cancelled, _)| cancelled.id() == id).collect();
        let is_cancelled = history.intent.state.exhausted_reason() == Some(ExhaustedReason::Cancelled);
        let mut errors = Vec::new();
        if is_cancelled && answers.is_empty() {
            errors.push("was cancelled without a request");
        }
        for (cancelled, before) in answers {
            if let Cancelled::Now { may_have_been_sent, .. } = cancelled {
                if !is_cancelled {
                    errors.push("was answered as cancelled, but did not end so");
                }
                if *may_have_been_sent == history.attempts.is_empty() {
                    errors.push("was cancelled with a wrong mayHaveBeenSent");
                }
            }
            if history.attempts.iter().any(|attempt| attempt.started_at > *before) {
                errors.push("was attempted after its cancellation");
            }
        }
        errors
    }

    /// Returns the differences between the ends of stored intents and the events of the feed, which are JSON.
    pub(crate) fn missing_events(&self, events: &[Value]) -> Vec<String> {
        let of_feed: HashMap<&str, &Value> =
            events.iter().map(|event| (event["eventId"].as_str().unwrap_or_default(), event)).collect();
        let ended = self.stored.iter().filter(|history| history.intent.state.is_terminal());
        let mut found: Vec<_> = ended
            .filter_map(|history| {
                let expected = serde_json::to_value(EventJson::from(&history.intent)).unwrap();
                let event = of_feed.get(event_id(&history.intent).as_str()).copied();
                (event != Some(&expected)).then(|| format!("the event of {history:?} is {event:?}"))
            })
            .collect();
        let ended = self.stored.iter().filter(|history| history.intent.state.is_terminal()).count();
        if events.len() != ended {
            found.push(format!("the feed has {} events of {ended} intents that have ended", events.len()));
        }
        found
    }

    /// Checks that no attempt started while its target was paused.
    fn error_of_pause(&self, history: &History) -> Option<String> {
        let pauses = self.record.pauses.iter().filter(|pause| pause.target == history.intent.target.as_str());
        let started = |pause: &&Pause| {
            let within = |moment: Timestamp| moment > pause.from && moment < pause.until;
            history.attempts.iter().any(|attempt| within(attempt.started_at))
        };
        let pause = pauses.into_iter().find(started)?;
        Some(format!("started while its target was paused: {pause:?}"))
    }

    /// Checks that every ended intent has an event, and that every delivered event reached the receiver.
    fn error_of_webhook(&self, history: &History, contract: &Contract) -> Option<String> {
        let fault = match (&contract.webhook, &history.webhook) {
            (None, None) => return None,
            (None, Some(_)) => "has an event without a webhook",
            (Some(_), None) if history.intent.state.is_terminal() => "ended without owing its event",
            (Some(_), Some(webhook)) if webhook.status == EventStatus::Delivered => {
                let arrived = self.arrived.as_ref()?.contains(&event_id(&history.intent));
                return (!arrived).then(|| "its event counts as delivered and never arrived".to_owned());
            }
            (Some(_), _) => return None,
        };
        Some(fault.to_owned())
    }

    /// Returns attempts that started outside of their term.
    fn errors_of_terms(&self, history: &History) -> Vec<String> {
        let mut errors = Vec::new();
        let mut last = 0;
        for attempt in &history.attempts {
            let epoch = attempt.lease_epoch;
            let later = self.terms.range(epoch + 1..).map(|(_, start)| *start).min();
            if later.is_some_and(|start| attempt.started_at >= start) {
                errors.push(format!("attempt {} started in a term that had ended", attempt.attempt_number));
            }
            if self.terms.get(&epoch).is_some_and(|start| attempt.started_at < *start) || epoch < last {
                errors.push(format!("attempt {} started before its term", attempt.attempt_number));
            }
            last = epoch;
        }
        errors
    }
}

/// Returns the contradictions within one intent.
fn errors_of(history: &History) -> Vec<&'static str> {
    let History { intent, attempts, .. } = history;
    let numbers = attempts.iter().map(|attempt| attempt.attempt_number);
    let end = intent.state.completed_at();
    let after_its_end = |started: Timestamp| end.is_some_and(|end| started > end);
    [
        (!intent.state.is_terminal() || intent.attempt_open, "not ended"),
        (!numbers.eq(1..=intent.attempt_count), "attempt numbers have a gap"),
        (attempts.iter().any(|attempt| after_its_end(attempt.started_at)), "attempted after its end"),
    ]
    .into_iter()
    .filter_map(|(wrong, text)| wrong.then_some(text))
    .collect()
}

/// Returns the contradictions between the intents of a chain (mostly a single one) and the requests with their key.
fn errors_of_chain(key: &str, chain: &[&History], sent: &[&Sent], contract: &Contract) -> Vec<&'static str> {
    let count = |numbers: &mut dyn Iterator<Item = u32>| {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        numbers.for_each(|number| *counts.entry(number).or_default() += 1);
        counts
    };
    let attempts = || chain.iter().flat_map(|history| &history.attempts);
    let heard = attempts().filter(|attempt| !matches!(attempt.outcome, Outcome::Error { .. }));
    let recorded = count(&mut attempts().map(|attempt| attempt.attempt_number));
    let heard = count(&mut heard.map(|attempt| attempt.attempt_number));
    let arrived = count(&mut sent.iter().map(|request| request.number));
    let exceeds = |some: &HashMap<u32, usize>, others: &HashMap<u32, usize>| {
        some.iter().any(|(number, times)| others.get(number).is_some_and(|others| times > others))
    };
    let unknown = |some: &HashMap<u32, usize>, others: &HashMap<u32, usize>| {
        some.keys().any(|number| !others.contains_key(number))
    };
    let one_shot = matches!(contract.policy, Policy::OneShot);
    let once_each = sent.len() <= attempts().count() && chain.iter().all(|history| history.attempts.len() <= 1);
    let foreign = |request: &&Sent| request.payload_id.as_ref().is_some_and(|id| id != key);
    let another_answer = attempts().any(|attempt| {
        let expected = format!("gw-{key}-{}", attempt.attempt_number);
        attempt.outcome.gateway_message_id().is_some_and(|id| id != expected)
    });
    [
        (exceeds(&arrived, &recorded), "an attempt number was sent twice"),
        (unknown(&arrived, &recorded), "an attempt was sent, but not recorded"),
        (one_shot && !once_each, "a one_shot was attempted twice"),
        (sent.iter().any(|request| request.gateway != contract.gateway_url.as_str()), "sent to another gateway"),
        (sent.iter().any(foreign), "sent with another intent's payload"),
        (unknown(&heard, &arrived) || exceeds(&heard, &arrived), "answered without having been sent"),
        (another_answer, "another message's answer"),
    ]
    .into_iter()
    .filter_map(|(wrong, text)| wrong.then_some(text))
    .collect()
}

/// Returns where the intent did not continue or end as its policy requires after its recorded attempts.
fn errors_of_policy(history: &History, contract: &Contract) -> Vec<String> {
    let History { intent, attempts, .. } = history;
    let mut errors = Vec::new();
    let mut due = Some(intent.begins_at());
    let mut ended = None;
    for attempt in attempts {
        if due.is_none_or(|due| attempt.started_at < due) {
            errors.push(format!("attempt {} was not due", attempt.attempt_number));
        }
        let (number, outcome) = (attempt.attempt_number, &attempt.outcome);
        match policy::decide(contract, intent.begins_at(), number, outcome, attempt.finished_at) {
            Decision::RetryAt(next) => due = Some(next),
            decision => {
                due = None;
                ended = Some(decision);
            }
        }
    }
    let as_decided = match (&intent.state, &ended) {
        (State::Accepted { .. }, Some(Decision::Accept)) => true,
        (State::Rejected { reason, .. }, Some(Decision::Reject { reason: decided })) => reason == decided,
        (State::Exhausted { reason, .. }, Some(Decision::Exhaust(decided))) => reason == decided,
        (State::Exhausted { reason: ExhaustedReason::DeadlineExceeded, at }, None) => {
            policy::deadline(contract, intent.begins_at()).is_some_and(|deadline| *at >= deadline)
        }
        // Whether it was to be cancelled is checked elsewhere.
        (State::Exhausted { reason: ExhaustedReason::Cancelled, .. }, None) => true,
        _ => false,
    };
    if !as_decided {
        errors.push(format!("did not end as its policy says ({ended:?})"));
    }
    errors
}

fn ended_of(history: &History) -> Option<Ended> {
    let completed_at = history.intent.state.completed_at()?.to_string();
    let status = history.intent.state.status().as_str().to_owned();
    Some(Ended { status, completed_at, attempts: history.attempts.len() })
}

/// Reads the epoch and the start of a term from its log line.
fn term_start(line: &str, lease_duration: std::time::Duration) -> Option<(i64, Timestamp)> {
    let fields = line.split_once("leader_acquired ")?.1;
    let field = |name: &str| fields.split_whitespace().find_map(|field| field.strip_prefix(name));
    let expires_at = Timestamp::parse(field("expires_at=")?)?;
    let micros = i64::try_from(lease_duration.as_micros()).ok()?;
    Some((field("lease_epoch=")?.parse().ok()?, Timestamp::from_micros(expires_at.micros() - micros)))
}

async fn open(store: &str) -> Arc<dyn Store> {
    let pool = PoolSettings { size: 4, timeout: PATIENCE };
    let choice = StoreChoice::parse(store, Credentials::default(), pool).unwrap();
    choice.open(false, Arc::new(Metrics::new().unwrap())).await.unwrap()
}

/// Tests of the checker: it must find every kind of tampering with a consistent record.
mod tests {
    use submission_manager::domain::intent::{Intent, IntentId, IntentSeq, TargetName};
    use submission_manager::store::{Attempt, WebhookHistory};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn attempt(number: u32, epoch: i64, started: i64, outcome: Outcome) -> Attempt {
        let (started_at, finished_at) = (at(started), at(started + 1));
        Attempt { attempt_number: number, lease_epoch: epoch, started_at, finished_at, outcome }
    }

    fn accepted(message: &str) -> Outcome {
        Outcome::Accepted { gateway_message_id: Some(message.to_owned()) }
    }

    fn sent(id: &str, number: u32) -> Sent {
        let (id, gateway) = (id.to_owned(), "http://gateway.test".to_owned());
        Sent { payload_id: Some(id.clone()), id, number, gateway }
    }

    fn registry() -> Registry {
        let target = |name: &str, policy: Value| {
            let mut target = serde_json::json!({ "submissionTarget": name, "gatewayType": "sms",
                "gatewayUrl": "http://gateway.test", "terminalOutcomes": ["invalid_recipient"] });
            target.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
            target
        };
        let attempts = target("attempts", serde_json::json!({ "policy": "max_attempts", "maxAttempts": 2 }));
        let once =
            target("once", serde_json::json!({ "policy": "one_shot", "webhook": { "url": "http://hook.test" } }));
        let registry = serde_json::json!({ "allowUnsignedWebhooks": true, "targets": [attempts, once] });
        Registry::parse(&registry.to_string(), &Variables::of_process()).unwrap()
    }

    fn history(id: &str, target: &str, state: State, attempts: Vec<Attempt>) -> History {
        let intent = Intent {
            seq: IntentSeq(1),
            id: IntentId::parse(id).unwrap(),
            target: TargetName::parse(target).unwrap(),
            created_at: at(1),
            not_before: None,
            redrive_of: None,
            state,
            attempt_count: u32::try_from(attempts.len()).unwrap(),
            attempt_open: false,
        };
        History { intent, attempts, webhook: None, redriven_as: None }
    }

    /// Two terms. One intent was interrupted between them and then accepted; a one-shot intent failed.
    fn consistent() -> Evidence {
        let retried = vec![attempt(1, 1, 2, Outcome::interrupted()), attempt(2, 2, 12, accepted("gw-retried-2"))];
        let shot = vec![attempt(1, 2, 11, Outcome::error("timeout"))];
        let stored = vec![
            history("retried", "attempts", State::Accepted { at: at(13) }, retried),
            history("shot", "once", State::Exhausted { at: at(12), reason: ExhaustedReason::OneShot }, shot),
        ];
        let record = Record::default();
        for id in ["retried", "shot"] {
            record.answered(&serde_json::json!({ "intentId": id, "createdAt": at(1).to_string() }));
        }
        let intent =
            serde_json::json!({ "intentId": "shot", "status": "exhausted", "completedAt": at(12).to_string() });
        record.seen(&serde_json::json!({ "intent": intent, "attempts": [{}] }));
        record.paused(Pause { target: "attempts".to_owned(), from: at(3), until: at(11) });
        let sent = vec![sent("retried", 1), sent("retried", 2), sent("shot", 1)];
        let terms = BTreeMap::from([(1, at(1)), (2, at(10))]);
        let mut stored = stored;
        stored[1].webhook = Some(delivered());
        let mut again =
            history("again", "once", State::Exhausted { at: at(16), reason: ExhaustedReason::Cancelled }, vec![]);
        again.intent.redrive_of = Some(stored[1].intent.id.clone());
        again.webhook = Some(WebhookHistory { status: EventStatus::Pending, ..delivered() });
        stored[1].redriven_as = Some(again.intent.id.clone());
        stored.push(again);
        let cancelled = Cancelled::Now { id: "again".to_owned(), may_have_been_sent: false };
        record.cancelled_before(cancelled, at(17));
        let record = record.0.lock().unwrap().clone();
        let arrived = Some(HashSet::from([event_id(&stored[1].intent)]));
        Evidence { record, sent, stored, terms, registry: registry(), arrived }
    }

    fn delivered() -> WebhookHistory {
        WebhookHistory { status: EventStatus::Delivered, next_try_at: None, tries: Vec::new() }
    }

    #[test]
    fn a_consistent_record_has_no_violations() {
        consistent().hold();
        assert_eq!(consistent().interrupted(), 1);
    }

    #[test]
    fn every_kind_of_tampering_is_found() {
        type Tamper = fn(&mut Evidence);
        let tampered: [(&str, Tamper); 38] = [
            ("started while its target was paused", |e| e.record.pauses[0].until = at(13)),
            ("ended without owing its event", |e| e.stored[1].webhook = None),
            ("has an event without a webhook", |e| e.stored[0].webhook = Some(delivered())),
            ("delivered and never arrived", |e| e.arrived = Some(HashSet::new())),
            ("is of no intent", |e| e.arrived.as_mut().unwrap().extend(["evt_x".to_owned()])),
            ("answered, but is not stored", |e| drop(e.stored.remove(1))),
            ("was sent, but is not stored", |e| e.sent.push(sent("nobody", 1))),
            ("was answered as created at", |e| e.stored[0].intent.created_at = at(2)),
            ("not ended", |e| e.stored[0].intent.state = State::Pending),
            ("not ended", |e| e.stored[0].intent.attempt_open = true),
            ("have a gap", |e| drop(e.stored[0].attempts.remove(0))),
            ("have a gap", |e| e.stored[0].intent.attempt_count = 3),
            ("was sent twice", |e| e.sent.push(sent("retried", 2))),
            ("but not recorded", |e| e.sent.push(sent("retried", 3))),
            ("one_shot was attempted twice", |e| e.sent.push(sent("shot", 2))),
            ("answered without having been sent", |e| drop(e.sent.remove(1))),
            ("sent to another gateway", |e| e.sent[0].gateway = "http://other.test".to_owned()),
            ("another intent's payload", |e| e.sent[0].payload_id = Some("shot".to_owned())),
            ("another message's answer", |e| e.stored[0].attempts[1].outcome = accepted("gw-shot-1")),
            ("not end as its policy says", |e| e.stored[1].intent.state = State::Accepted { at: at(12) }),
            ("not end as its policy says", |e| {
                let reason = ExhaustedReason::MaxAttempts;
                e.stored[0].intent.state = State::Exhausted { at: at(13), reason };
            }),
            ("not end as its policy says", |e| e.stored[1].attempts.clear()),
            ("not end as its policy says", |e| {
                let rejected = Outcome::Rejected { reason: "provider_failure".to_owned(), gateway_message_id: None };
                e.stored[0].attempts[1].outcome = rejected;
            }),
            ("attempt 2 was not due", |e| e.stored[0].attempts[0].outcome = accepted("gw-retried-1")),
            ("attempt 2 was not due", |e| e.stored[0].attempts[1].started_at = at(7)),
            ("started in a term that had ended", |e| e.stored[0].attempts[1].lease_epoch = 1),
            ("started before its term", |e| e.stored[0].attempts[0].lease_epoch = 2),
            ("changed after its end", |e| e.stored[1].intent.state = State::Accepted { at: at(13) }),
            ("attempted after its end", |e| e.stored[0].attempts[1].started_at = at(20)),
            ("was redriven twice", |e| {
                let mut third = e.stored[2].clone();
                third.intent.id = IntentId::parse("third").unwrap();
                e.stored.push(third);
            }),
            ("does not name the intent that redrives it", |e| e.stored[1].redriven_as = None),
            ("redrives an intent that is not stored", |e| {
                e.stored[2].intent.redrive_of = Some(IntentId::parse("nobody").unwrap());
            }),
            ("was sent twice", |e| e.sent.push(sent("shot", 1))),
            ("was sent, but is not stored", |e| e.sent.push(sent("again", 1))),
            ("cancelled without a request", |e| e.record.cancelled.clear()),
            ("but did not end so", |e| e.stored[2].intent.state = State::Accepted { at: at(16) }),
            ("wrong mayHaveBeenSent", |e| e.stored[2].attempts = vec![attempt(1, 2, 14, Outcome::error("timeout"))]),
            ("attempted after its cancellation", |e| {
                e.stored[2].attempts = vec![attempt(1, 2, 18, Outcome::error("timeout"))];
            }),
        ];
        for (objection, tamper) in tampered {
            let mut evidence = consistent();
            tamper(&mut evidence);
            let violations = evidence.violations();
            assert!(violations.iter().any(|text| text.contains(objection)), "{objection}: {violations:#?}");
        }
    }

    #[test]
    fn wrong_progress_of_a_redrive_is_found() {
        let right = RedriveRecord { completed: true, count: 3, created: 1, skipped: 2, listed: 1 };
        assert_eq!(consistent().violations_of_redrives(std::slice::from_ref(&right)), Vec::<String>::new());
        for (objection, wrong) in [
            ("another number of intents", RedriveRecord { listed: 0, ..right }),
            ("without all of its intents", RedriveRecord { count: 4, ..right }),
            ("more than its plan", RedriveRecord { count: 2, completed: false, ..right }),
            ("are stored", RedriveRecord { created: 2, skipped: 1, listed: 2, ..right }),
        ] {
            let violations = consistent().violations_of_redrives(&[wrong]);
            assert!(violations.iter().any(|text| text.contains(objection)), "{objection}: {violations:#?}");
        }
    }
}
