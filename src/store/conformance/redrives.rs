//! Redrives in bulk: plans, their changes, and working them off.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Fixture, LONG, accepted, intent_id, new_intent, purge_all, rejected, submit_to};
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::fixtures::{deadline, max_attempts, one_shot};
use crate::domain::contract::{Contract, ContractSnapshot, GatewayUrl};
use crate::domain::intent::{Intent, IntentId, State, Status, TargetName};
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::domain::policy;
use crate::domain::redrive::{
    Conditions, FailedStatus, RedriveChange, RedriveFilter, RedriveId, RedriveRate, RedriveState, Refusal, redriven_id,
};
use crate::domain::schedule::Lane;
use crate::store::{
    ChangedRedrive, FencedError, ListQuery, NewIntent, NewRedrive, PageCursor, Planning, PurgeRequest, Redrive,
    RedriveAdmission, RedriveLink, RedriveOutcomes, RedriveWork, RedriveWorked, Submitted,
};

const START: RedriveChange = RedriveChange::Start { rate: RedriveRate::DEFAULT };

fn redrive_id(number: u8) -> RedriveId {
    RedriveId::from_random([number; 16])
}

/// Every target of the fixtures, as a registry would have them.
fn contracts() -> Vec<Contract> {
    vec![one_shot(), max_attempts(1), deadline(600)]
}

fn registered() -> Arc<BTreeSet<TargetName>> {
    Arc::new(contracts().into_iter().map(|contract| contract.target).collect())
}

fn new_redrive(number: u8, filter: RedriveFilter) -> NewRedrive {
    NewRedrive {
        id: redrive_id(number),
        filter,
        filter_json: r#"{"reason":"it's \"quoted\""}"#.to_owned(),
        include_unknown: false,
        note: Some("outage of 3 o'clock ✓".to_owned()),
        registered: registered(),
        by: somebody(),
    }
}

fn everything() -> RedriveFilter {
    RedriveFilter::Matching(Conditions::default())
}

/// Room in the lanes of all targets but one.
struct AllBut(Option<&'static str>, usize);

/// Room in every lane.
const ALL: AllBut = AllBut(None, 100);

impl RedriveAdmission for AllBut {
    fn room(&self, lane: &Lane) -> usize {
        if Some(lane.target.as_str()) == self.0 { 0 } else { self.1 }
    }
}

impl Fixture {
    async fn plan(&self, new: NewRedrive) -> Redrive {
        match self.store.plan_redrive(new).await.unwrap() {
            Planning::Planned(redrive) => *redrive,
            Planning::TooMany => panic!("too many"),
        }
    }

    /// Plans a redrive of everything that has failed, and starts it.
    async fn started(&self, number: u8) -> Redrive {
        self.plan(new_redrive(number, everything())).await;
        self.change(number, START).await.unwrap()
    }

    /// Changes a redrive on the other instance.
    async fn change(&self, number: u8, change: RedriveChange) -> Result<Redrive, Option<Refusal>> {
        match self.other.change_redrive(redrive_id(number), change, somebody()).await.unwrap() {
            ChangedRedrive::Changed(redrive) => Ok(*redrive),
            ChangedRedrive::Refused(refusal) => Err(Some(refusal)),
            ChangedRedrive::NotFound => Err(None),
        }
    }

    async fn redrive(&self, number: u8) -> Redrive {
        self.other.find_redrive(redrive_id(number)).await.unwrap().expect("the redrive is found")
    }

    /// Makes a step of a running redrive; `None` if the term is over.
    async fn work(&self, term: &Term, number: u8, limit: usize, admission: AllBut) -> Option<RedriveWorked> {
        let running = self.store.running_redrives().await.unwrap();
        let running = running.into_iter().find(|running| running.id == redrive_id(number)).expect("it runs");
        let contract = |target: &String| {
            let contract = contracts().into_iter().find(|contract| contract.target.as_str() == target)?;
            Some(Arc::new(ContractSnapshot::of(contract).unwrap()))
        };
        let contracts = running.targets.iter().map(contract).collect();
        let (seq, id, admission) = (running.seq, running.id, Arc::new(admission));
        match self.store.work_redrive(term.clone(), RedriveWork { seq, id, limit, contracts, admission }).await {
            Ok(worked) => Some(worked),
            Err(error) => {
                assert_eq!(error, FencedError::TermOver);
                None
            }
        }
    }

    /// Stores an intent that failed with this outcome.
    async fn failed(&self, term: &Term, id: &str, contract: &Contract, outcome: Outcome) -> Intent {
        let intent = self.submit(id, contract).await;
        self.attempt(term, &intent, outcome).await;
        let failed = self.intent(id).await;
        assert!(matches!(failed.state.status(), Status::Rejected | Status::Exhausted), "{failed:?}");
        failed
    }

    async fn created_by(&self, number: u8) -> Vec<String> {
        let query = ListQuery { redrive: Some(redrive_id(number)), limit: 100, ..ListQuery::default() };
        let page = self.store.list(query).await.unwrap();
        let of = |intent: &Intent| intent.redrive_of.as_ref().map(ToString::to_string).expect("it names the old one");
        page.intents.iter().rev().map(of).collect()
    }
}

fn error() -> Outcome {
    Outcome::error("gateway answered HTTP 500")
}

fn id_of(old: &Intent, number: u8) -> IntentId {
    redriven_id(&old.id, &redrive_id(number).to_string())
}

pub async fn a_plan_has_failed_intents_and_says_what_it_leaves_out(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let one_shot = one_shot();
    fixture.failed(&term, "error \"1\" ~", &one_shot, error()).await;
    fixture.failed(&term, "rejected", &max_attempts(1), rejected("invalid_recipient")).await;
    fixture.failed(&term, "not sent", &one_shot, Outcome::not_sent("connection refused")).await;
    fixture.failed(&term, "timed out", &one_shot, Outcome::unknown("no response within 35 s")).await;
    fixture.failed(&term, "interrupted", &one_shot, Outcome::interrupted()).await;
    let gone = Contract { target: TargetName::parse("gone").unwrap(), ..one_shot.clone() };
    fixture.failed(&term, "of a removed target", &gone, error()).await;
    let before = fixture.failed(&term, "redriven before", &one_shot, error()).await;
    let link = RedriveLink { of: before.id.clone(), redrive: None, gateway_key: before.id.clone(), audit: None };
    let again = NewIntent { redrive: Some(link), ..new_intent("again", &one_shot, b"{}") };
    assert!(matches!(submit_to(&*fixture.store, again).await, Submitted::Created(_)));
    let sent = fixture.submit("accepted", &one_shot).await;
    fixture.attempt(&term, &sent, accepted()).await;
    fixture.submit("pending", &one_shot).await;

    let planned = fixture.plan(new_redrive(1, everything())).await;
    assert_eq!((planned.state, planned.count, planned.remaining()), (RedriveState::Planned, 3, 3));
    assert_eq!((planned.created, planned.skipped, planned.rate), (0, 0, None));
    assert_eq!((planned.started_at, planned.ended_at), (None, None));
    assert_eq!(planned.filter, r#"{"reason":"it's \"quoted\""}"#);
    assert_eq!(planned.note.as_deref(), Some("outage of 3 o'clock ✓"));
    assert_eq!(planned.plan.sample, ["error \"1\" ~", "rejected", "not sent"], "in the order of completion");
    let groups: Vec<_> = planned
        .plan
        .groups
        .iter()
        .map(|group| (group.submission_target.as_str(), group.status.as_str(), group.reason.as_str(), group.count))
        .collect();
    let expected =
        [("sms.one_shot", "exhausted", "one_shot", 2), ("sms.max_attempts", "rejected", "invalid_recipient", 1)];
    assert_eq!(groups, expected);
    let excluded: Vec<_> = planned.plan.excluded.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    assert_eq!(excluded, [("already_redriven", 1), ("outcome_unknown", 2), ("target_not_in_registry", 1)]);
    assert_eq!(fixture.redrive(1).await, planned);
    assert_eq!(fixture.store.running_redrives().await.unwrap(), []);

    let all = NewRedrive { include_unknown: true, note: None, ..new_redrive(2, everything()) };
    let planned = fixture.plan(all).await;
    assert_eq!((planned.count, planned.note.as_deref(), planned.include_unknown), (5, None, true));
    assert_eq!(planned.plan.excluded.get("outcome_unknown"), Some(&0));
}

pub async fn filters_choose_intents(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let a = fixture.failed(&term, "a", &one_shot(), error()).await;
    let b = fixture.failed(&term, "b", &max_attempts(1), rejected("invalid_recipient")).await;
    let c = fixture.submit("c", &one_shot()).await;
    let d = fixture.failed(&term, "d", &max_attempts(1), error()).await;
    fixture.attempt(&term, &c, error()).await;
    let completed = |intent: &Intent| intent.state.completed_at().unwrap();
    let c_at = completed(&fixture.intent("c").await);
    let conditions = Conditions::default;
    let cases = [
        (conditions(), vec!["a", "b", "d", "c"]),
        (Conditions { statuses: vec![FailedStatus::Rejected], ..conditions() }, vec!["b"]),
        (Conditions { statuses: vec![FailedStatus::Exhausted], ..conditions() }, vec!["a", "d", "c"]),
        (Conditions { statuses: FailedStatus::ALL.to_vec(), ..conditions() }, vec!["a", "b", "d", "c"]),
        (Conditions { target: Some(one_shot().target), ..conditions() }, vec!["a", "c"]),
        (Conditions { target: TargetName::parse("SMS.one_shot").ok(), ..conditions() }, vec![]),
        (Conditions { reason: Some("max_attempts".to_owned()), ..conditions() }, vec!["d"]),
        (Conditions { reason: Some("invalid_recipient".to_owned()), ..conditions() }, vec!["b"]),
        (Conditions { reason: Some("Invalid_recipient".to_owned()), ..conditions() }, vec![]),
        (Conditions { reason: Some("x".repeat(200)), ..conditions() }, vec![]),
        (Conditions { cause: Some("invalid_recipient".to_owned()), ..conditions() }, vec!["b"]),
        (Conditions { cause: Some("gateway answered HTTP 500".to_owned()), ..conditions() }, vec!["a", "d", "c"]),
        (Conditions { cause: Some("gateway answered HTTP".to_owned()), ..conditions() }, vec![]),
        (Conditions { created_after: Some(b.created_at), ..conditions() }, vec!["d", "c"]),
        (Conditions { created_before: Some(d.created_at), ..conditions() }, vec!["a", "b", "c"]),
        (Conditions { completed_after: Some(completed(&b)), ..conditions() }, vec!["d", "c"]),
        (Conditions { completed_before: Some(completed(&d)), ..conditions() }, vec!["a", "b"]),
        (
            Conditions { completed_before: Some(c_at), created_after: Some(a.created_at), ..conditions() },
            vec!["b", "d"],
        ),
        (
            Conditions {
                statuses: vec![FailedStatus::Exhausted],
                target: Some(one_shot().target),
                reason: Some("one_shot".to_owned()),
                cause: Some("gateway answered HTTP 500".to_owned()),
                created_after: Some(a.created_at),
                created_before: Some(d.created_at),
                completed_after: Some(completed(&d)),
                completed_before: Some(c_at + Duration::from_micros(1)),
            },
            vec!["c"],
        ),
    ];
    for (number, (conditions, expected)) in (1..).zip(cases) {
        let planned = fixture.plan(new_redrive(number, RedriveFilter::Matching(conditions.clone()))).await;
        assert_eq!(planned.plan.sample, expected, "{conditions:?}");
        assert_eq!(planned.count, u64::try_from(expected.len()).unwrap());
    }
    let pending = fixture.submit("pending", &one_shot()).await;
    let ids = ["d", "a", "unknown", "pending"].map(intent_id).to_vec();
    let planned = fixture.plan(new_redrive(100, RedriveFilter::Ids(ids))).await;
    assert_eq!(planned.plan.sample, ["a", "d"]);
    assert_eq!(fixture.intent("pending").await, pending);
}

pub async fn states_follow_one_another(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.failed(&term, "a", &one_shot(), error()).await;
    assert_eq!(fixture.change(1, START).await, Err(None), "not planned yet");
    let planned = fixture.plan(new_redrive(1, everything())).await;
    let wrong = |state| Err(Some(Refusal::WrongState(state)));
    assert_eq!(fixture.change(1, RedriveChange::Pause).await, wrong(RedriveState::Planned));
    let rate = RedriveRate::new(1000).unwrap();
    let started = fixture.change(1, RedriveChange::Start { rate }).await.unwrap();
    assert_eq!((started.state, started.rate), (RedriveState::Running, Some(rate)));
    assert!(started.started_at.is_some_and(|at| at >= planned.planned_at));
    assert_eq!(fixture.change(1, START).await, wrong(RedriveState::Running));
    let paused = fixture.change(1, RedriveChange::Pause).await.unwrap();
    assert_eq!(paused, Redrive { state: RedriveState::Paused, ..started.clone() });
    assert_eq!(fixture.store.running_redrives().await.unwrap(), []);
    let resumed = fixture.change(1, RedriveChange::Resume).await.unwrap();
    assert_eq!(resumed, started, "at the rate that it had");
    assert_eq!(fixture.store.running_redrives().await.unwrap().len(), 1);
    let cancelled = fixture.change(1, RedriveChange::Cancel).await.unwrap();
    assert_eq!((cancelled.state, cancelled.remaining()), (RedriveState::Cancelled, 0));
    assert!(cancelled.ended_at.is_some());
    assert_eq!(fixture.change(1, RedriveChange::Resume).await, wrong(RedriveState::Cancelled));
    assert_eq!(fixture.redrive(1).await, cancelled);

    let none = RedriveFilter::Ids(vec![intent_id("unknown")]);
    assert_eq!(fixture.plan(new_redrive(2, none)).await.count, 0);
    assert_eq!(fixture.change(2, START).await, Err(Some(Refusal::EmptyPlan)));
    assert!(fixture.change(2, RedriveChange::Cancel).await.is_ok());
}

pub async fn redrives_are_listed_newest_first(fixture: Fixture) {
    for number in 1..=5 {
        fixture.plan(new_redrive(number, everything())).await;
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = fixture.other.list_redrives(after, 2).await.unwrap();
        assert!(page.redrives.len() <= 2);
        seen.extend(page.redrives.iter().map(|redrive| redrive.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, [5, 4, 3, 2, 1].map(redrive_id));
    assert_eq!(fixture.other.list_redrives(Some(redrive_id(9)), 2).await.unwrap().redrives, []);
    assert!(fixture.other.find_redrive(redrive_id(9)).await.unwrap().is_none());
}

pub async fn a_redrive_creates_an_intent_for_each_of_its_plan(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let new = new_intent("a \"1\" ~", &one_shot(), b"{ \"exact\" :  \"bytes\"}");
    let Submitted::Created(intent) = submit_to(&*fixture.store, new).await else { panic!("not created") };
    fixture.attempt(&term, &intent, error()).await;
    let a = fixture.intent("a \"1\" ~").await;
    let b = fixture.failed(&term, "b", &deadline(600), rejected("invalid_recipient")).await;
    let c = fixture.failed(&term, "c", &max_attempts(1), error()).await;
    fixture.started(1).await;
    let worked = fixture.work(&term, 1, 2, ALL).await.unwrap();
    assert_eq!(worked, RedriveWorked { now_created: 2, now_skipped: 0, created: Some(2), completed: false });
    assert_eq!(fixture.created_by(1).await, ["a \"1\" ~", "b"]);
    let progress = fixture.redrive(1).await;
    assert_eq!((progress.state, progress.created, progress.remaining()), (RedriveState::Running, 2, 1));
    assert_eq!(progress.outcomes, RedriveOutcomes { pending: 2, ..RedriveOutcomes::default() });
    assert_eq!(fixture.store.running_redrives().await.unwrap()[0].created, 2);

    let first = fixture.intent(id_of(&a, 1).as_str()).await;
    assert_eq!((first.redrive_of.as_ref(), &first.target, first.attempt_count), (Some(&a.id), &a.target, 0));
    assert_eq!(fixture.history(a.id.as_str()).await.redriven_as.as_ref(), Some(&first.id));
    assert_eq!(fixture.intent(a.id.as_str()).await, a, "the old one is left as it is");
    let payload = fixture.store.payload(first.id.clone()).await.unwrap().unwrap();
    assert_eq!(payload, "{ \"exact\" :  \"bytes\"}".as_bytes());
    let hash = fixture.find(first.id.as_str()).await.unwrap().payload_sha256;
    assert_eq!(hash, fixture.find(a.id.as_str()).await.unwrap().payload_sha256);
    let attempt = fixture.start_due(&term, &first).await;
    assert_eq!(attempt.idempotency_key.as_ref(), Some(&a.id));
    fixture.finish(&term, &attempt, accepted()).await.unwrap();
    let second = fixture.intent(id_of(&b, 1).as_str()).await;
    let attempt = fixture.start_due(&term, &second).await;
    assert_eq!(
        policy::deadline(&attempt.contract, attempt.begins_at),
        Some(second.created_at + Duration::from_secs(600)),
        "the deadline counts from the redrive"
    );
    fixture.finish(&term, &attempt, rejected("invalid_recipient")).await.unwrap();

    let worked = fixture.work(&term, 1, 2, ALL).await.unwrap();
    assert_eq!(worked, RedriveWorked { now_created: 1, now_skipped: 0, created: Some(3), completed: true });
    let third = fixture.intent(id_of(&c, 1).as_str()).await;
    fixture.attempt(&term, &third, error()).await;
    let completed = fixture.redrive(1).await;
    assert_eq!((completed.state, completed.remaining(), completed.skipped), (RedriveState::Completed, 0, 0));
    assert!(completed.ended_at.is_some());
    assert_eq!(completed.outcomes, RedriveOutcomes { pending: 0, accepted: 1, rejected: 1, exhausted: 1 });
    assert_eq!(fixture.store.running_redrives().await.unwrap(), []);

    let planned = fixture.plan(new_redrive(2, everything())).await;
    assert_eq!(planned.count, 2, "intents that were redriven can be redriven again");
    assert_eq!(planned.plan.excluded.get("already_redriven"), Some(&3));
    fixture.change(2, START).await.unwrap();
    fixture.work(&term, 2, 10, ALL).await.unwrap();
    let again = fixture.intent(id_of(&third, 2).as_str()).await;
    let attempt = fixture.start_due(&term, &again).await;
    assert_eq!(attempt.idempotency_key.as_ref(), Some(&c.id), "the key of the first intent of the chain");
}

pub async fn intents_that_cannot_be_redriven_any_more_are_skipped(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let (one_shot, removed) = (one_shot(), Contract { target: TargetName::parse("gone").unwrap(), ..one_shot() });
    fixture.failed(&term, "purged", &one_shot, error()).await;
    let redriven = fixture.failed(&term, "redriven", &one_shot, error()).await;
    let taken = fixture.failed(&term, "taken", &one_shot, error()).await;
    fixture.failed(&term, "of a removed target", &removed, error()).await;
    fixture.failed(&term, "left", &one_shot, error()).await;
    let registered: BTreeSet<_> = registered().iter().cloned().chain([removed.target.clone()]).collect();
    let new = NewRedrive { registered: Arc::new(registered), ..new_redrive(1, everything()) };
    assert_eq!(fixture.plan(new).await.count, 5);
    fixture.change(1, START).await.unwrap();
    let oldest = PurgeRequest { limit: 1, ..purge_all() };
    assert_eq!(fixture.store.purge(term.clone(), oldest).await.unwrap().intents, 1);
    assert!(fixture.find("purged").await.is_none());
    let link = RedriveLink { of: redriven.id.clone(), redrive: None, gateway_key: redriven.id.clone(), audit: None };
    let alone = NewIntent { redrive: Some(link), ..new_intent("alone", &one_shot, b"{}") };
    assert!(matches!(submit_to(&*fixture.store, alone).await, Submitted::Created(_)));
    let own = NewIntent { id: id_of(&taken, 1), ..new_intent("x", &one_shot, b"{}") };
    assert!(matches!(submit_to(&*fixture.store, own).await, Submitted::Created(_)));

    let worked = fixture.work(&term, 1, 10, ALL).await.unwrap();
    assert_eq!(worked, RedriveWorked { now_created: 1, now_skipped: 4, created: Some(1), completed: true });
    assert_eq!(fixture.created_by(1).await, ["left"]);
    let completed = fixture.redrive(1).await;
    assert_eq!((completed.created, completed.skipped, completed.remaining()), (1, 4, 0));
}

pub async fn a_busy_gateway_holds_up_its_own_targets_only(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for number in 0..3 {
        fixture.failed(&term, &format!("busy {number}"), &one_shot(), error()).await;
    }
    fixture.failed(&term, "free", &max_attempts(1), error()).await;
    fixture.started(1).await;
    let worked = fixture.work(&term, 1, 2, AllBut(Some("sms.one_shot"), 100)).await.unwrap();
    assert_eq!((worked.now_created, worked.completed), (1, false));
    assert_eq!(fixture.created_by(1).await, ["free"]);
    let worked = fixture.work(&term, 1, 2, AllBut(Some("sms.one_shot"), 100)).await.unwrap();
    assert_eq!(worked, RedriveWorked::NOTHING);
    let worked = fixture.work(&term, 1, 10, AllBut(None, 1)).await.unwrap();
    assert_eq!(worked.now_created, 1, "as many as there is room for");
    assert_eq!(fixture.work(&term, 1, 2, ALL).await.unwrap().created, Some(4));
    assert_eq!(fixture.created_by(1).await, ["free", "busy 0", "busy 1", "busy 2"]);
}

/// The registry may have a new contract for a target. A step that creates no intent also stores no contract, and intents that
/// come later still get their own one.
pub async fn a_step_that_creates_nothing_confuses_no_contracts(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.failed(&term, "old", &one_shot(), error()).await;
    let running = fixture.started(1).await;
    let seq = fixture.store.running_redrives().await.unwrap()[0].seq;
    let changed = Contract { gateway_url: GatewayUrl::parse("http://changed.test").unwrap(), ..one_shot() };
    let contracts = vec![Some(Arc::new(ContractSnapshot::of(changed.clone()).unwrap()))];
    let admission = Arc::new(AllBut(Some("sms.one_shot"), 0));
    let work = RedriveWork { seq, id: running.id, limit: 10, contracts, admission };
    assert_eq!(fixture.store.work_redrive(term, work).await.unwrap(), RedriveWorked::NOTHING);
    let other = max_attempts(3);
    for (id, contract) in [("other", &other), ("changed", &changed)] {
        fixture.submit(id, contract).await;
        let stored = fixture.store.detail(intent_id(id)).await.unwrap().unwrap().contract;
        assert_eq!((&stored.target, &stored.gateway_url), (&contract.target, &contract.gateway_url), "{id}");
    }
}

pub async fn only_the_term_that_leads_works_off_redrives_that_run(fixture: Fixture) {
    let old = fixture.lead("me").await;
    for id in ["a", "b", "c"] {
        fixture.failed(&old, id, &one_shot(), error()).await;
    }
    let running = fixture.started(1).await;
    assert_eq!(fixture.work(&old, 1, 1, ALL).await.unwrap().now_created, 1);
    fixture.store.release_lease(old.clone()).await.unwrap();
    assert_eq!(fixture.work(&old, 1, 1, ALL).await, None);
    assert_eq!(fixture.store.tidy_redrives(old, None).await, Err(FencedError::TermOver));
    let new = fixture.lead("other").await;
    assert_eq!(fixture.work(&new, 1, 1, ALL).await.unwrap().created, Some(2), "the next term goes on");
    assert_eq!(fixture.created_by(1).await, ["a", "b"]);

    let seq = fixture.store.running_redrives().await.unwrap()[0].seq;
    fixture.change(1, RedriveChange::Cancel).await.unwrap();
    let contracts = vec![Some(Arc::new(ContractSnapshot::of(one_shot()).unwrap()))];
    let work = RedriveWork { seq, id: running.id, limit: 10, contracts, admission: Arc::new(ALL) };
    assert_eq!(fixture.store.work_redrive(new, work).await.unwrap(), RedriveWorked::NOTHING);
    let cancelled = fixture.redrive(1).await;
    assert_eq!((cancelled.created, cancelled.skipped, cancelled.remaining()), (2, 0, 0));
    assert_eq!(cancelled.outcomes.pending, 2, "what was created stays");
}

/// Tidies until nothing is left.
async fn tidy(fixture: &Fixture, term: &Term, keep_for: Option<Duration>) {
    while fixture.store.tidy_redrives(term.clone(), keep_for).await.unwrap() {}
}

pub async fn the_outcomes_of_a_redrive_outlive_its_intents(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for id in ["a", "b"] {
        fixture.failed(&term, id, &one_shot(), error()).await;
    }
    fixture.started(1).await;
    fixture.work(&term, 1, 10, ALL).await.unwrap();
    let [a, b] = [id_of(&fixture.intent("a").await, 1), id_of(&fixture.intent("b").await, 1)];
    fixture.attempt(&term, &fixture.intent(a.as_str()).await, accepted()).await;
    tidy(&fixture, &term, Some(Duration::ZERO)).await;
    let open = fixture.redrive(1).await;
    assert_eq!(open.outcomes, RedriveOutcomes { pending: 1, accepted: 1, ..RedriveOutcomes::default() });
    fixture.attempt(&term, &fixture.intent(b.as_str()).await, error()).await;
    tidy(&fixture, &term, None).await;
    fixture.pass(fixture.short).await;
    assert_eq!(fixture.purge(&term, Duration::ZERO, 10).await.iter().sum::<usize>(), 4);
    let ended = fixture.redrive(1).await;
    assert_eq!(ended.outcomes, RedriveOutcomes { accepted: 1, exhausted: 1, ..RedriveOutcomes::default() });
    assert_eq!(ended.created, 2);
    tidy(&fixture, &term, Some(LONG)).await;
    assert_eq!(fixture.redrive(1).await, ended);
    tidy(&fixture, &term, Some(Duration::ZERO)).await;
    assert!(fixture.store.find_redrive(redrive_id(1)).await.unwrap().is_none(), "retention deletes it");
}

pub async fn pages_of_a_redrive_have_its_intents_only(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for id in ["a", "b", "c"] {
        fixture.failed(&term, id, &one_shot(), error()).await;
    }
    fixture.started(1).await;
    fixture.work(&term, 1, 10, ALL).await.unwrap();
    fixture.submit("another", &one_shot()).await;
    let query = ListQuery { redrive: Some(redrive_id(1)), limit: 2, ..ListQuery::default() };
    let first = fixture.store.list(query.clone()).await.unwrap();
    assert_eq!(first.intents.len(), 2);
    let Some(after @ PageCursor::Newer { .. }) = first.next else { panic!("no cursor") };
    let second = fixture.store.list(ListQuery { after: Some(after), ..query.clone() }).await.unwrap();
    let old: Vec<_> = first.intents.iter().chain(&second.intents).flat_map(|intent| &intent.redrive_of).collect();
    assert_eq!(old.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["c", "b", "a"]);
    for (status, found) in [(Status::Pending, 2), (Status::Accepted, 0), (Status::Exhausted, 0)] {
        let query = ListQuery { status: Some(status), ..query.clone() };
        assert_eq!(fixture.store.list(query).await.unwrap().intents.len(), found, "{status:?}");
    }
    let other = ListQuery { redrive: Some(redrive_id(2)), ..query };
    assert_eq!(fixture.store.list(other).await.unwrap().intents, []);
}

pub async fn a_redrive_source_has_the_payload_and_the_key_of_the_chain(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let old = fixture.failed(&term, "a", &one_shot(), error()).await;
    let source = fixture.store.redrive_source(old.id.clone()).await.unwrap().unwrap();
    assert_eq!((source.intent, source.payload.as_ref(), &source.gateway_key), (old.clone(), &b"{}"[..], &old.id));
    let link = RedriveLink { of: old.id.clone(), redrive: None, gateway_key: intent_id("first"), audit: None };
    submit_to(&*fixture.store, NewIntent { redrive: Some(link), ..new_intent("again", &one_shot(), b"") }).await;
    let source = fixture.store.redrive_source(intent_id("again")).await.unwrap().unwrap();
    assert_eq!((source.payload.as_ref(), source.gateway_key.as_str()), (&b""[..], "first"));
    assert_eq!(source.intent.state, State::Pending);
    assert!(fixture.store.redrive_source(intent_id("unknown")).await.unwrap().is_none());
}
