//! The audit log: one entry for each action, in the transaction of the action, and one chain of all entries.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Fixture, intent_id, new_intent, submit_to};
use crate::domain::actor::{Actor, ActorKind};
use crate::domain::audit::{AuditAction, AuditEntry, ChainLink, NewAuditEntry};
use crate::domain::audit_chain::{ChainCheck, IntactChain};
use crate::domain::contract::fixtures::{max_attempts, one_shot, with_webhook};
use crate::domain::inbox::{Channel, InboxSubmissionId, PayloadFormat};
use crate::domain::intent::{IntentId, TargetName};
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::domain::pause::PauseReason;
use crate::domain::redrive::{Conditions, RedriveChange, RedriveFilter, RedriveId, RedriveRate, redriven_id};
use crate::domain::role::Role;
use crate::domain::time::Timestamp;
use crate::store::{
    AuditActor, AuditPurge, AuditPurged, AuditQuery, FailedInboxTry, FencedError, NewInboxSubmission, NewIntent,
    NewRedrive, ProcessedInboxSubmission, RedriveLink, Reprocess, Store, Submitted, WriteBatch,
};

/// The length of a step of a purge that lets it delete everything.
const NO_PERIOD: Duration = Duration::from_micros(1);

fn ann() -> Actor {
    Actor::console("ann", Some(IpAddr::from([10, 0, 0, 7])))
}

fn target(name: &str) -> TargetName {
    TargetName::parse(name).unwrap()
}

fn redrive_id() -> RedriveId {
    RedriveId::from_random([3; 16])
}

fn submission_id() -> InboxSubmissionId {
    InboxSubmissionId::from_random([4; 16])
}

/// The whole log, the oldest entry first, in small steps.
async fn all(store: &dyn Store) -> (Vec<AuditEntry>, ChainLink) {
    let (mut entries, mut after): (Vec<AuditEntry>, _) = (Vec::new(), i64::MIN);
    loop {
        let chain = store.audit_chain(after, 3).await.unwrap();
        let Some(last) = chain.entries.last() else { return (entries, chain.head) };
        after = last.id;
        entries.extend(chain.entries);
    }
}

/// Checks the chain of the whole log.
async fn intact(fixture: &Fixture) -> IntactChain {
    let (entries, head) = all(&*fixture.other).await;
    let mut check = ChainCheck::new(None);
    entries.into_iter().try_for_each(|entry| check.add(entry)).unwrap();
    check.finish(head).unwrap()
}

/// Actions, subjects and details of the entries after the first `skip`.
async fn done(fixture: &Fixture, skip: usize) -> Vec<(String, String, Value)> {
    intact(fixture).await;
    let entries = all(&*fixture.store).await.0.into_iter().skip(skip);
    entries.map(|entry| (entry.action, entry.subject, serde_json::from_str(&entry.details).unwrap())).collect()
}

fn entry(action: AuditAction, subject: &str, details: Value) -> (String, String, Value) {
    (action.as_str().to_owned(), subject.to_owned(), details)
}

fn plan() -> NewRedrive {
    NewRedrive {
        id: redrive_id(),
        filter: RedriveFilter::Matching(Conditions::default()),
        filter_json: "{}".to_owned(),
        include_unknown: false,
        note: None,
        registered: Arc::new([one_shot().target].into()),
        by: ann(),
    }
}

/// Stores an inbox submission and lets its processing fail, so that it is parked.
async fn park(fixture: &Fixture, term: &Term) {
    let new = NewInboxSubmission {
        id: submission_id(),
        client_slug: "acme".to_owned(),
        channel: Channel::Form,
        payload: Bytes::from_static(b"{}"),
        format: PayloadFormat::Json,
        source_url: None,
        key_sha256: None,
    };
    let batch = WriteBatch { received: vec![new], ..WriteBatch::default() };
    fixture.store.commit(batch).await.unwrap().received[0].as_ref().unwrap();
    fail(fixture, term).await;
}

async fn fail(fixture: &Fixture, term: &Term) {
    let due = fixture.store.due_inbox(1).await.unwrap().due.remove(0);
    let result = Err(FailedInboxTry { error: "x".to_owned(), next_try_at: None });
    let processed = vec![ProcessedInboxSubmission { seq: due.seq, tries: due.tries, result }];
    fixture.store.process_inbox(term.clone(), processed).await.unwrap();
}

pub async fn every_action_has_one_entry_that_says_who_did_what(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.submit("waits", &one_shot()).await;
    let open = fixture.submit("open", &max_attempts(3)).await;
    fixture.start_due(&term, &open).await;
    let failed = fixture.submit("failed", &with_webhook("http://hook.test", one_shot())).await;
    fixture.attempt(&term, &failed, Outcome::error("x")).await;
    park(&fixture, &term).await;
    assert_eq!(all(&*fixture.store).await, (Vec::new(), ChainLink::START), "nobody has acted so far");
    let began = fixture.now().await;

    let (store, sms) = (&fixture.store, target("sms.x"));
    store.pause_target(sms.clone(), PauseReason::parse("maintenance").unwrap(), ann()).await.unwrap();
    store.resume_target(sms, ann()).await.unwrap();
    store.cancel(intent_id("waits"), true, ann()).await.unwrap();
    store.cancel(intent_id("open"), true, ann()).await.unwrap();
    store.redeliver_webhook(intent_id("failed"), ann()).await.unwrap();
    assert_eq!(store.reprocess(Reprocess::One(submission_id()), ann()).await, Ok(1));
    fail(&fixture, &term).await;
    let parked = Reprocess::ParkedOf { client_slug: "acme".to_owned(), limit: 10 };
    assert_eq!(store.reprocess(parked, ann()).await, Ok(1));
    store.plan_redrive(plan()).await.unwrap();
    let start = RedriveChange::Start { rate: RedriveRate::new(7).unwrap() };
    for change in [start, RedriveChange::Pause, RedriveChange::Resume, RedriveChange::Cancel] {
        store.change_redrive(redrive_id(), change, ann()).await.unwrap();
    }
    store.append_audit(NewAuditEntry::sign_out(&ann())).await.unwrap();
    let lease = store.lease_state().await.unwrap().lease.unwrap();
    assert_eq!(store.reset_lease(lease.epoch, lease.renewed_at, ann()).await, Ok(true));

    use AuditAction as A;
    let (redrive, submission) = (redrive_id().to_string(), submission_id().to_string());
    let plan = json!({ "filter": {}, "includeUnknownOutcome": false, "count": 1 });
    let expected = [
        entry(A::PauseTarget, "sms.x", json!({ "reason": "maintenance" })),
        entry(A::ResumeTarget, "sms.x", json!({})),
        entry(A::CancelIntent, "waits", json!({ "afterAttempt": false })),
        entry(A::CancelIntent, "open", json!({ "afterAttempt": true })),
        entry(A::RedeliverWebhook, "failed", json!({})),
        entry(A::ReprocessSubmission, &submission, json!({})),
        entry(A::ReprocessParked, "acme", json!({})),
        entry(A::PlanRedrive, &redrive, plan),
        entry(A::StartRedrive, &redrive, json!({ "ratePerSecond": 7 })),
        entry(A::PauseRedrive, &redrive, json!({})),
        entry(A::ResumeRedrive, &redrive, json!({})),
        entry(A::CancelRedrive, &redrive, json!({})),
        entry(A::SignOut, "console", json!({})),
        entry(A::ResetLease, "lease", json!({ "leaseEpoch": lease.epoch })),
    ];
    assert_eq!(done(&fixture, 0).await, expected);
    let (entries, _) = all(&*fixture.other).await;
    for (number, entry) in (1..).zip(&entries) {
        assert_eq!((entry.id, entry.actor_kind.as_str()), (number, ActorKind::Console.as_str()));
        assert_eq!((entry.actor_name.as_str(), entry.address.as_str()), ("ann", "10.0.0.7"));
    }
    assert!(entries[0].at > began && entries.is_sorted_by(|one, next| one.at < next.at));
    assert!(entries[entries.len() - 1].at <= fixture.now().await);
}

pub async fn an_action_that_changes_nothing_has_no_entry(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let open = fixture.submit("open", &max_attempts(3)).await;
    fixture.start_due(&term, &open).await;
    let ended = fixture.submit("ended", &one_shot()).await;
    fixture.attempt(&term, &ended, super::accepted()).await;
    let (store, sms) = (&fixture.store, target("sms.x"));
    store.pause_target(sms.clone(), None, ann()).await.unwrap();
    store.cancel(intent_id("open"), true, ann()).await.unwrap();
    store.plan_redrive(NewRedrive { registered: Arc::default(), ..plan() }).await.unwrap();
    let before = done(&fixture, 0).await.len();
    assert_eq!(before, 3);

    fixture.other.pause_target(sms, None, ann()).await.unwrap();
    store.resume_target(target("active"), ann()).await.unwrap();
    store.cancel(intent_id("open"), true, ann()).await.unwrap();
    store.cancel(intent_id("open"), false, ann()).await.unwrap();
    store.cancel(intent_id("ended"), true, ann()).await.unwrap();
    store.cancel(intent_id("unknown"), true, ann()).await.unwrap();
    store.redeliver_webhook(intent_id("open"), ann()).await.unwrap();
    store.redeliver_webhook(intent_id("ended"), ann()).await.unwrap();
    store.redeliver_webhook(intent_id("unknown"), ann()).await.unwrap();
    assert_eq!(store.reprocess(Reprocess::One(submission_id()), ann()).await, Ok(0));
    let parked = Reprocess::ParkedOf { client_slug: "acme".to_owned(), limit: 10 };
    assert_eq!(store.reprocess(parked, ann()).await, Ok(0));
    store.change_redrive(redrive_id(), RedriveChange::Resume, ann()).await.unwrap();
    store.change_redrive(RedriveId::from_random([9; 16]), RedriveChange::Cancel, ann()).await.unwrap();
    let lease = store.lease_state().await.unwrap().lease.unwrap();
    assert_eq!(store.reset_lease(lease.epoch + 1, lease.renewed_at, ann()).await, Ok(false));
    assert_eq!(done(&fixture, before).await, []);
}

/// A request to redrive this intent alone.
fn single(old: &IntentId) -> NewIntent {
    let id = redriven_id(old, "single");
    let audit = Some(NewAuditEntry::redrive_intent(&ann(), old, &id, false));
    let link = RedriveLink { of: old.clone(), redrive: None, gateway_key: old.clone(), audit };
    NewIntent { id, redrive: Some(link), ..new_intent("x", &one_shot(), b"{}") }
}

pub async fn a_single_redrive_has_an_entry_if_it_creates_an_intent(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let mut old = Vec::new();
    for id in ["a", "b", "c ~\"é"] {
        let intent = fixture.submit(id, &one_shot()).await;
        fixture.attempt(&term, &intent, Outcome::error("x")).await;
        old.push(intent.id);
    }
    assert!(matches!(submit_to(&*fixture.store, single(&old[0])).await, Submitted::Created(_)));
    assert!(matches!(submit_to(&*fixture.other, single(&old[0])).await, Submitted::Existing(_)));
    // Two in one batch, with other intents around them.
    let submits = vec![
        new_intent("new", &one_shot(), b"{}"),
        single(&old[1]),
        single(&old[0]),
        single(&old[2]),
        new_intent("newer", &one_shot(), b"{}"),
    ];
    let results = fixture.store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    let created: Vec<_> = results.submits.iter().map(|result| matches!(result, Ok(Submitted::Created(_)))).collect();
    assert_eq!(created, [true, true, false, true, true]);
    let expected = old.iter().map(|id| {
        let details = json!({ "redrivenAs": redriven_id(id, "single").as_str(), "editedPayload": false });
        entry(AuditAction::RedriveIntent, id.as_str(), details)
    });
    assert_eq!(done(&fixture, 0).await, expected.collect::<Vec<_>>());
}

pub async fn texts_are_stored_unchanged(fixture: Fixture) {
    let name = "~1 \"quoted\" \\ 'é' 😀 \u{fffd} x ";
    let reason = PauseReason::parse("it's ~0 \"é\" \\n 😀").unwrap();
    for actor in [
        Actor::token(name, Some("2001:db8::1".parse().unwrap())),
        Actor::not_signed_in(None),
        Actor::command_line(None),
        Actor::refused(None, Some(IpAddr::from([255; 4]))),
    ] {
        let target = target("Sms \"~1\" é");
        fixture.store.pause_target(target.clone(), reason.clone(), actor.clone()).await.unwrap();
        fixture.other.resume_target(target.clone(), actor.clone()).await.unwrap();
        let (entries, _) = all(&*fixture.other).await;
        let [.., paused, resumed] = &entries[..] else { panic!("two entries") };
        assert_eq!(paused.details, json!({ "reason": reason.as_ref().unwrap().as_str() }).to_string());
        for entry in [paused, resumed] {
            assert_eq!(entry.actor_name, actor.name().unwrap_or_default());
            assert_eq!(entry.address, actor.address().map(|address| address.to_string()).unwrap_or_default());
            assert_eq!((entry.actor_kind.as_str(), entry.subject.as_str()), (actor.kind().as_str(), target.as_str()));
        }
    }
    let long = NewAuditEntry::sign_in_refused(&ann(), "denied", &"é\u{1}\"".repeat(5000), 1);
    fixture.store.append_audit(long.clone()).await.unwrap();
    assert_eq!(all(&*fixture.other).await.0.last().map(|entry| entry.details.clone()), Some(long.details));
    assert_eq!(intact(&fixture).await.entries, 9);
}

pub async fn racing_instances_append_to_one_chain(fixture: Fixture) {
    const WRITERS: usize = 4;
    const EACH: usize = 12;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = if writer % 2 == 0 { fixture.store.clone() } else { fixture.other.clone() };
            tokio::spawn(async move {
                let by = Actor::token(&format!("writer-{writer}"), None);
                for number in 0..EACH {
                    let target = target(&format!("{writer}-{number}"));
                    match number % 3 {
                        0 => store.append_audit(NewAuditEntry::resume_target(&by, &target)).await.unwrap(),
                        1 => drop(store.pause_target(target, None, by.clone()).await.unwrap()),
                        _ => {
                            let id = format!("{writer}-{number}");
                            submit_to(&*store, new_intent(&id, &one_shot(), b"")).await;
                            store.cancel(intent_id(&id), false, by.clone()).await.unwrap();
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(intact(&fixture).await.entries, u64::try_from(WRITERS * EACH).unwrap());
    let (entries, _) = all(&*fixture.store).await;
    for writer in 0..WRITERS {
        let own = entries.iter().filter(|entry| entry.actor_name == format!("writer-{writer}"));
        let subjects: Vec<_> = own.map(|entry| entry.subject.clone()).collect();
        let expected: Vec<_> = (0..EACH).map(|number| format!("{writer}-{number}")).collect();
        assert_eq!(subjects, expected, "each entry once, in the order of its writer");
    }
}

pub async fn entries_are_listed_newest_first_and_filtered(fixture: Fixture) {
    let bob = Actor::token("bob", None);
    let nobody = Actor::not_signed_in(None);
    for number in 0..6 {
        let by = [ann(), bob.clone(), nobody.clone()][number % 3].clone();
        let entry = match number % 2 {
            0 => NewAuditEntry::sign_out(&by),
            _ => NewAuditEntry::sign_in(&by, Role::Viewer, crate::domain::audit::SignInWith::Password),
        };
        fixture.store.append_audit(entry).await.unwrap();
    }
    let (entries, _) = all(&*fixture.store).await;
    let at = |number: usize| Some(entries[number - 1].at);
    let ids = async |query: AuditQuery| {
        let page = fixture.other.list_audit(AuditQuery { limit: 10, ..query }).await.unwrap();
        assert_eq!(page.next, None);
        page.entries.iter().map(|entry| entry.id).collect::<Vec<_>>()
    };
    let none = AuditQuery::default;
    let label = |text: &str| Some(AuditActor::of_label(text));
    assert_eq!(ids(none()).await, [6, 5, 4, 3, 2, 1]);
    assert_eq!(ids(AuditQuery { actor: label("ann"), ..none() }).await, [4, 1]);
    assert_eq!(ids(AuditQuery { actor: label("bob"), ..none() }).await, [5, 2]);
    assert_eq!(ids(AuditQuery { actor: label("loopback"), ..none() }).await, [6, 3]);
    assert!(ids(AuditQuery { actor: label("anonymous"), ..none() }).await.is_empty());
    assert!(ids(AuditQuery { actor: label("Ann"), ..none() }).await.is_empty(), "names are compared exactly");
    let sign_out = Some(AuditAction::SignOut);
    assert_eq!(ids(AuditQuery { action: sign_out, ..none() }).await, [5, 3, 1]);
    assert_eq!(ids(AuditQuery { action: sign_out, actor: label("ann"), ..none() }).await, [1]);
    assert_eq!(ids(AuditQuery { after: at(2), ..none() }).await, [6, 5, 4, 3]);
    assert_eq!(ids(AuditQuery { before: at(2), ..none() }).await, [1]);
    assert_eq!(ids(AuditQuery { after: at(2), before: at(5), action: sign_out, ..none() }).await, [3]);
    assert!(ids(AuditQuery { after: at(6), ..none() }).await.is_empty());
    assert_eq!(ids(AuditQuery { before: Some(Timestamp::LATEST), ..none() }).await.len(), 6);
    assert!(ids(AuditQuery { before: Some(Timestamp::EARLIEST), ..none() }).await.is_empty());

    let (mut pages, mut older_than) = (Vec::new(), None);
    loop {
        let page = fixture.store.list_audit(AuditQuery { limit: 2, older_than, ..none() }).await.unwrap();
        // An entry that is appended meanwhile does not shift the pages.
        fixture.store.append_audit(NewAuditEntry::sign_out(&ann())).await.unwrap();
        pages.push(page.entries.iter().map(|entry| entry.id).collect::<Vec<_>>());
        older_than = page.next;
        if older_than.is_none() {
            break;
        }
    }
    assert_eq!(pages, [[6, 5], [4, 3], [2, 1]]);
}

pub async fn a_purge_deletes_the_oldest_entries_and_is_an_entry_itself(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let purge = async |keep_for, limit| {
        let request = AuditPurge { keep_for, period: NO_PERIOD, limit };
        fixture.store.purge_audit(term.clone(), request).await.unwrap()
    };
    let sign_out = || fixture.store.append_audit(NewAuditEntry::sign_out(&ann()));
    for _ in 0..4 {
        sign_out().await.unwrap();
    }
    assert_eq!(purge(10 * fixture.short, 100).await, AuditPurged::Deleted(0), "none is old enough");
    fixture.pass(2 * fixture.short).await;
    sign_out().await.unwrap();
    let (before, _) = all(&*fixture.store).await;
    assert_eq!(purge(fixture.short, 3).await, AuditPurged::Deleted(3));
    assert_eq!(purge(fixture.short, 3).await, AuditPurged::Deleted(1));
    assert_eq!(purge(fixture.short, 3).await, AuditPurged::Deleted(0));

    let chain = intact(&fixture).await;
    let (first, last) = chain.ends.unwrap();
    assert_eq!((chain.entries, first.id, last.id), (3, 5, 7), "entry 5 and two purges");
    let recorded = chain.purge.unwrap();
    assert_eq!((recorded.id, recorded.last), (7, before[3].link()));
    assert_eq!((last.action.as_str(), last.actor_kind.as_str()), ("purge_audit_log", "service"));
    assert_eq!((last.actor_name.as_str(), last.subject.as_str()), ("me", "audit_log"));

    sign_out().await.unwrap();
    fixture.pass(2 * fixture.short).await;
    assert_eq!(purge(fixture.short, 100).await, AuditPurged::Deleted(4));
    let chain = intact(&fixture).await;
    assert_eq!(chain.ends.map(|(first, last)| (first.id, last.id)), Some((9, 9)), "the purge itself is left");
    sign_out().await.unwrap();
    assert_eq!(intact(&fixture).await.entries, 2);
}

pub async fn only_the_leader_purges_entries(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.store.append_audit(NewAuditEntry::sign_out(&ann())).await.unwrap();
    fixture.pass(fixture.short).await;
    let stale = Term { epoch: term.epoch - 1, ..term };
    let request = AuditPurge { keep_for: Duration::ZERO, period: NO_PERIOD, limit: 10 };
    assert_eq!(fixture.store.purge_audit(stale, request).await, Err(FencedError::TermOver));
    assert_eq!(intact(&fixture).await.entries, 1);
}
