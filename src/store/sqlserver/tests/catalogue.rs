//! A list of every statement that the store can send, built by the functions that send them.
//!
//! `make tsql` writes the statements to files for checkers of T-SQL. The list is complete: a test fails if the store
//! sends a statement that is not in it.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use sqlparser::dialect::MsSqlDialect;
use sqlparser::parser::Parser;

use super::super::attempts::{NotAllowed, Starts};
use super::super::contracts::{self, ContractRow, Contracts};
use super::super::database::{Batch, Database, PREPARE, Value};
use super::super::redrives::{self, plan, work};
use super::super::statements::{self, Part};
use super::super::submit::Submits;
use super::super::{
    audit, checks, console, copy, events, failures, fleet, inbox, jobs, leases, migrate, options, purge, status_counts,
    targets, webhooks, write,
};
use super::{metrics, settings};
use crate::domain::actor::fixtures::somebody;
use crate::domain::audit::{AuditAction, ChainLink, NewAuditEntry};
use crate::domain::contract::fixtures::{max_attempts, one_shot, with_webhook};
use crate::domain::contract::{Contract, ContractSnapshot, GatewayType};
use crate::domain::inbox::{Channel, Draft, InboxSubmissionId, PayloadFormat};
use crate::domain::intent::{ExhaustedReason, IntentId, IntentSeq, Status, TargetName};
use crate::domain::job::fixtures::{command, submission_id};
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::domain::redrive::{Conditions, FailedStatus, RedriveChange, RedriveFilter, RedriveId, RedriveState};
use crate::domain::schedule::{GatewayId, Lane, LaneId, LanePage, LanePosition, Waiting};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::store::conformance::attempts::OneSlot;
use crate::store::conformance::{accepted, finished, intent_id, new_intent};
use crate::store::copy::side::{Counters, HoldUntil};
use crate::store::copy::tables::{Cell, Column, Kind, Row, TABLES};
use crate::store::{
    AuditActor, AuditQuery, ChangeCursor, DueWebhooksQuery, EventFilter, EventPosition, EventQuery, EventsAfter,
    Examined, FailedInboxTry, FailureQuery, FencedWrites, IdRange, InboxQuery, InboxSubmissionSeq,
    InboxSubmissionState, InstanceReport, JobCursor, JobFacts, JobLookup, JobQuery, LeaderReport, ListOrder, ListQuery,
    NewInboxSubmission, NewIntent, NewJob, NewRedrive, OpenAttempt, PageCursor, PostponeAttempt,
    ProcessedInboxSubmission, PurgeRequest, RedriveAdmission, RedriveLink, RedriveSeq, RedriveWork, RefreshRequest,
    Reprocess, StartOnInsert, WriteBatch,
};

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// All subsets of `count` things.
fn choices(count: u32) -> impl Iterator<Item = Vec<bool>> {
    (0..1_u32 << count).map(move |number| (0..count).map(|place| number & (1 << place) != 0).collect())
}

fn term() -> Term {
    Term { lease_name: "lease".into(), holder_id: "me".into(), epoch: 1 }
}

fn target() -> TargetName {
    one_shot().target
}

fn lane(id: i64) -> Arc<Lane> {
    Arc::new(Lane { id: LaneId(id), gateway: GatewayId(1), target: target() })
}

/// A contract for each kind of intent: without a webhook or with one, of a target or of a node.
fn contract(webhook: bool, node: bool) -> Contract {
    let contract = if webhook { with_webhook("http://hook.test", max_attempts(3)) } else { max_attempts(3) };
    if node { Contract { gateway_type: GatewayType::Node, ..contract } } else { contract }
}

fn new(job: bool, trace: bool, options: bool, audited: bool) -> NewIntent {
    let command = command("acme", "w", "k");
    let trace = trace.then(|| TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap());
    let id = submission_id(1);
    let job = job.then(|| NewJob { id, key: command.key(), facts: JobFacts::from(&command) });
    let audit = audited.then(|| NewAuditEntry::redrive_intent(&somebody(), &intent_id("b"), &intent_id("a"), false));
    let redrive =
        options.then(|| RedriveLink { of: intent_id("b"), redrive: None, gateway_key: intent_id("b"), audit });
    NewIntent { trace, job, redrive, ..new_intent("a", &one_shot(), b"{}") }
}

fn open_attempt(contract: Contract) -> OpenAttempt {
    OpenAttempt {
        seq: IntentSeq(1),
        intent_id: intent_id("a"),
        contract: Arc::new(contract),
        begins_at: NOW,
        attempt_number: 1,
        lease_epoch: 1,
        started_at: NOW,
        idempotency_key: None,
        trace: None,
        job: None,
    }
}

fn inbox_id() -> InboxSubmissionId {
    InboxSubmissionId::from_random([1; 16])
}

fn received() -> NewInboxSubmission {
    NewInboxSubmission {
        id: inbox_id(),
        client_slug: "acme".to_owned(),
        channel: Channel::Form,
        payload: Bytes::from_static(b"{}"),
        format: PayloadFormat::Json,
        source_url: None,
        key_sha256: Some([1; 32]),
    }
}

/// Batches of writes with every combination of sections.
async fn writes() -> Vec<Batch> {
    // This never connects, because all contracts are in the cache.
    let database = Database::new(&settings("Server=tcp:127.0.0.1,1;User Id=u;Password=p", "d"), "test", 1, metrics());
    let known = Contracts::default();
    known.learn(&ContractSnapshot::of(one_shot()).unwrap(), ContractRow { lane: lane(1) });
    let mut batches = Vec::new();
    // An audit entry belongs to a redriven intent, which has options.
    let submits = choices(5).filter(|kind| kind[3] || !kind[4]);
    let submits = std::iter::once(None).chain(submits.map(Some));
    for submits in submits {
        for finishes in std::iter::once(None).chain(choices(3).map(Some)) {
            for others in choices(5) {
                let [starts, postpones, expire, receives, fenced] = others[..] else { unreachable!() };
                // Rare sections are combined with the common ones only.
                let options = submits.as_ref().is_some_and(|kind| kind[3]);
                let retries = finishes.as_ref().is_some_and(|kind| kind[2]);
                if (options || retries) && (postpones || expire || receives) {
                    continue;
                }
                let writes = FencedWrites {
                    starts: if starts {
                        vec![Waiting { seq: IntentSeq(2), lane: lane(1), due: NOW, attempt_count: 0 }]
                    } else {
                        Vec::new()
                    },
                    finishes: finishes
                        .iter()
                        .map(|kind| {
                            let outcome = if kind[2] { Outcome::error("x") } else { accepted() };
                            finished(&open_attempt(contract(kind[0], kind[1])), outcome, NOW)
                        })
                        .collect(),
                    postpones: if postpones {
                        vec![PostponeAttempt { seq: IntentSeq(3), attempt_number: 1, due: NOW }]
                    } else {
                        Vec::new()
                    },
                    expire: expire.then_some(10),
                    ..FencedWrites::new(&term())
                };
                if !fenced && !writes.is_empty() {
                    continue;
                }
                let starts = submits.as_ref().is_some_and(|kind| kind[2]);
                let batch = WriteBatch {
                    submits: submits.iter().map(|kind| new(kind[0], kind[1], kind[3], kind[4])).collect(),
                    received: receives.then(received).into_iter().collect(),
                    start_on_insert: starts
                        .then(|| StartOnInsert { term: term(), slots: Arc::new(OneSlot::default()) }),
                    fenced: fenced.then_some(writes),
                    ..WriteBatch::default()
                };
                let mut submits = Submits::prepare(&database, &known, &batch.submits).await.unwrap();
                if let Some(start_on_insert) = &batch.start_on_insert {
                    submits.take_slots(&*start_on_insert.slots, NOW);
                }
                let waiting = batch.fenced.as_ref().map(|writes| writes.starts.as_slice()).unwrap_or_default();
                let starts = Starts::prepare(&database, &known, waiting).await.unwrap();
                batches.push(write::write_batch(&batch, &submits, &starts));
            }
        }
    }
    batches
}

fn lists() -> Vec<Batch> {
    let mut batches = Vec::new();
    let range = |excludes_from, before: bool| IdRange {
        from: "a".to_owned(),
        excludes_from,
        before: before.then(|| "b".to_owned()),
    };
    let parts = [
        Part::All,
        Part::ByMessage("m"),
        Part::ById("a", range(false, false)),
        Part::ById("a", range(false, true)),
        Part::ById("a", range(true, false)),
        Part::ById("a", range(true, true)),
    ];
    for wanted in choices(5) {
        let query = ListQuery {
            status: wanted[0].then_some(Status::Accepted),
            target: wanted[1].then(target),
            created_after: wanted[2].then_some(NOW),
            created_before: wanted[3].then_some(NOW),
            redrive: wanted[4].then(redrive_id),
            limit: 10,
            ..ListQuery::default()
        };
        let (created_at, id) = (NOW, intent_id("a"));
        let newer = Some(PageCursor::Newer { created_at, id: id.clone() });
        let message = Some(PageCursor::Message { created_at, id });
        batches.extend(parts.iter().map(|part| statements::list(&query, part, 10)));
        batches.push(statements::list(&ListQuery { after: newer.clone(), ..query.clone() }, &Part::All, 10));
        let oldest = ListQuery { order: ListOrder::OldestFirst, ..query.clone() };
        batches.push(statements::list(&oldest, &Part::All, 10));
        batches.push(statements::list(&ListQuery { after: newer.clone(), ..oldest.clone() }, &Part::All, 10));
        batches.push(status_counts::batch(&query));
        for examined in choices(4).filter(|examined| examined.contains(&true)) {
            let examined = Examined {
                cause: examined[0].then(|| "x".to_owned()),
                min_attempts: examined[1].then_some(2),
                ended_since: examined[2].then_some(NOW),
                ended_before: examined[3].then_some(NOW),
            };
            for after in [None, newer.clone()] {
                for order in [ListOrder::NewestFirst, ListOrder::OldestFirst] {
                    batches.push(failures::examine_batch(&ListQuery {
                        after: after.clone(),
                        examined: examined.clone(),
                        order,
                        ..query.clone()
                    }));
                }
            }
            batches.push(status_counts::batch(&ListQuery { examined, ..query.clone() }));
        }
        batches.push(statements::list(&ListQuery { after: message, ..query }, &Part::ByMessage("m"), 10));
    }
    for wanted in choices(5) {
        batches.push(jobs::list_batch(&JobQuery {
            tenant: wanted[0].then(|| "acme".to_owned()),
            workspaces: wanted[1].then(|| vec!["w".to_owned()].into_iter().collect()),
            job_id: wanted[2].then(|| "j".to_owned()),
            status: wanted[3].then_some(Status::Accepted),
            after: wanted[4].then(|| JobCursor { accepted_at: NOW, id: submission_id(1) }),
            limit: 10,
        }));
    }
    let states = InboxSubmissionState::ALL.into_iter().map(Some).chain([None]);
    for state in states {
        for wanted in choices(3) {
            let query = InboxQuery {
                state,
                client_slug: wanted[0].then(|| "acme".to_owned()),
                after: wanted[1].then_some(1),
                contact_id: wanted[2].then_some(1),
                limit: 10,
            };
            if query.contact_id.is_none() {
                batches.push(inbox::SUBMISSIONS.batch(&query));
            }
            if state.is_none() {
                batches.extend([inbox::CONTACTS, inbox::MESSAGES].map(|list| list.batch(&query)));
            }
        }
    }
    batches
}

fn feeds() -> Vec<Batch> {
    let workspaces = |some: bool| some.then(|| vec!["w".to_owned()]);
    let afters = [
        EventsAfter::Oldest,
        EventsAfter::Now,
        EventsAfter::Position(EventPosition::after_all(NOW)),
        EventsAfter::Job(submission_id(1)),
    ];
    let filters = [
        EventFilter::All,
        EventFilter::Intents { target: None },
        EventFilter::Intents { target: Some(target()) },
        EventFilter::Jobs { tenant: "acme".to_owned(), workspaces: workspaces(false) },
        EventFilter::Jobs { tenant: "acme".to_owned(), workspaces: workspaces(true) },
    ];
    let all = afters.into_iter().flat_map(|after| filters.iter().map(move |filter| (after, filter.clone())));
    all.map(|(after, filter)| events::batch(&EventQuery { after, filter, limit: 10, examine: 10 })).collect()
}

/// Batches of inbox results. Each result is a section of its own, so batches of up to three show every order in which
/// two can follow each other.
fn processed() -> Vec<Batch> {
    let row = |well: bool| ProcessedInboxSubmission {
        seq: InboxSubmissionSeq(1),
        tries: 0,
        result: match well {
            true => Ok(Draft { email: None, phone: None, name: None, body: "b".to_owned() }),
            false => Err(FailedInboxTry { error: "e".to_owned(), next_try_at: None }),
        },
    };
    let ways = (1..=3).flat_map(choices);
    ways.map(|way| inbox::process_batch(&term(), &way.into_iter().map(row).collect::<Vec<_>>())).collect()
}

fn redrive_id() -> RedriveId {
    RedriveId::from_random([1; 16])
}

fn redrives() -> Vec<Batch> {
    struct Always;
    impl RedriveAdmission for Always {
        fn room(&self, _: &Lane) -> usize {
            1
        }
    }
    let (seq, id) = (RedriveSeq(1), redrive_id());
    let new = NewRedrive {
        id,
        filter: RedriveFilter::Ids(Vec::new()),
        filter_json: String::new(),
        include_unknown: false,
        note: None,
        registered: Arc::default(),
        by: somebody(),
    };
    let work = RedriveWork { seq, id, limit: 1, contracts: Vec::new(), admission: Arc::new(Always) };
    let mut batches = vec![
        redrives::source_batch(&intent_id("a")),
        redrives::find_batch(id),
        redrives::list_batch(None, 10),
        redrives::list_batch(Some(id), 10),
        redrives::change_batch(id, RedriveState::Running, RedriveState::Paused, RedriveChange::Pause, &somebody()),
        redrives::running_batch(),
        redrives::tidy_batch(&term(), None),
        redrives::tidy_batch(&term(), Some(Duration::ZERO)),
        plan::page_batch(&plan::Page::Ids(&[])),
        plan::sample_batch(std::iter::empty()),
        plan::begin_batch(&new),
        plan::insert_batch(seq, 0, &[]),
        plan::finish_batch(seq, 0, "", &new.audit_entry(0)),
        work::next_batch(seq, std::iter::empty(), 1),
        work::create_batch(&term(), &work, std::iter::empty()),
    ];
    for wanted in choices(7) {
        let conditions = Conditions {
            statuses: Vec::new(),
            target: wanted[0].then(target),
            reason: wanted[1].then(|| "r".to_owned()),
            cause: wanted[6].then(|| "c".to_owned()),
            created_after: wanted[2].then_some(NOW),
            created_before: wanted[3].then_some(NOW),
            completed_after: wanted[4].then_some(NOW),
            completed_before: wanted[5].then_some(NOW),
        };
        batches.extend(
            FailedStatus::ALL.map(|status| plan::page_batch(&plan::Page::Matching(status, &conditions, IntentSeq(0)))),
        );
    }
    batches
}

fn audit_log() -> Vec<Batch> {
    let entry = NewAuditEntry::sign_out(&somebody());
    let link = ChainLink::START;
    let mut batches =
        vec![audit::append_batch(&entry), audit::chain_batch(0, 10), audit::purge_batch(&term(), link, NOW)];
    for wanted in choices(5) {
        let actor = if wanted[4] { AuditActor::of_label("loopback") } else { AuditActor::of_label("ann") };
        batches.push(audit::list_batch(&AuditQuery {
            after: wanted[0].then_some(NOW),
            before: wanted[1].then_some(NOW),
            action: wanted[2].then_some(AuditAction::SignIn),
            actor: wanted[3].then_some(actor),
            limit: 10,
            older_than: None,
        }));
    }
    batches
}

/// The statements of a copy: reads and writes of every table, also with texts that the statement must restore.
fn copies() -> Vec<Batch> {
    let mut batches = vec![
        copy::last_lease_batch(),
        copy::take_lease_batch("me", 1, HoldUntil::Forever),
        copy::hold_lease_batch("me", HoldUntil::Now),
        copy::counters_batch(),
        copy::advance_batch(Counters { clock: NOW, highest: 1, lowest: 0 }),
    ];
    for table in &TABLES {
        let row = |text: &str| -> Row {
            let cell = |column: &Column| match column.kind {
                Kind::Number => Cell::Number(1),
                Kind::Text => Cell::Text(text.to_owned()),
                Kind::Moment => Cell::Moment(NOW),
                Kind::Bytes => Cell::Bytes(Bytes::from_static(b"b")),
            };
            table.columns.iter().map(cell).collect()
        };
        let after = (!table.has_one_row()).then(|| row("a").into_iter().take(table.key).collect::<Row>());
        batches.extend([copy::count_batch(table), copy::read_batch(table, None, 1)]);
        batches.extend(["a", "~"].map(|text| copy::write_batch("me", table, &[row(text)]).unwrap()));
        if let Some(after) = &after {
            batches.extend([copy::key_batch(table, 1), copy::read_batch(table, Some(after), 1)]);
        }
        if let Some(large) = table.large {
            batches.extend([None, after.as_ref()].map(|after| copy::sizes_batch(table, large, after)));
        }
    }
    batches
}

fn report() -> InstanceReport {
    InstanceReport {
        instance_id: "i".to_owned(),
        holder_id: "me".to_owned(),
        version: "1".to_owned(),
        submitted: 1,
        leading: Some(LeaderReport::default()),
    }
}

pub(crate) fn all() -> Vec<Batch> {
    // This runs on a thread of its own, because the caller may be inside a runtime.
    let writes = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(writes())
    });
    let (term, id) = (&term(), &intent_id("a"));
    let cursor = ChangeCursor { last_modified_at: NOW, intent_id: String::new() };
    let page = LanePage { lane: lane(1), from: LanePosition::START, limit: 10 };
    let look = RefreshRequest { cursor, limit: 10, pages: Vec::new() };
    let seqs = [IntentSeq(1)];
    let not_allowed = [NotAllowed { seq: IntentSeq(1), attempts: 1, reason: ExhaustedReason::OneShot.as_str() }];
    let checks = [checks::LEVEL, checks::JSON, checks::ISOLATION, checks::CLOCK];
    let mut all = vec![
        contracts::ensure_contract("http://x", "{}", "t"),
        contracts::ensure_receiver("http://x", 1),
        contracts::contracts(Vec::new()),
        leases::acquire_batch("lease", "me", Duration::from_secs(1)),
        leases::renew_batch(term, Duration::from_secs(1)),
        leases::release_batch(term),
        leases::state_batch(),
        leases::reset_batch(1, NOW, &somebody()),
        statements::open_attempts(1, 10),
        statements::schedule_snapshot(10),
        statements::refresh_schedule(&look),
        statements::refresh_schedule(&RefreshRequest { pages: vec![page], ..look }),
        statements::backlog(),
        statements::find(id),
        statements::history(id),
        statements::probe(),
        write::end_batch(term, &not_allowed),
        purge::batch(term, &PurgeRequest { older_than: Duration::ZERO, after: None, limit: 10 }),
        options::cancel_batch(id, true, &somebody()),
        console::detail_batch(id),
        console::payload_batch(id),
        console::overview_batch(),
        console::health_batch(),
        failures::report_batch(&FailureQuery { minutes: 60, target: None }),
        failures::report_batch(&FailureQuery { minutes: 60, target: Some(target()) }),
        failures::newest_batch(FailedStatus::Rejected),
        failures::causes_batch(&seqs),
        fleet::record_batch(&InstanceReport { leading: None, ..report() }),
        fleet::record_batch(&report()),
        fleet::forget_batch("i"),
        fleet::activity_batch(60),
        webhooks::due_batch(&DueWebhooksQuery { limit: 10, per_receiver: 10, except: Vec::new() }),
        webhooks::begin_batch(term, &seqs),
        webhooks::finish_batch(term, &[]),
        webhooks::close_batch(term, &seqs),
        webhooks::put_off_batch(term, &seqs),
        webhooks::redeliver_batch(id, &somebody()),
        targets::all_batch(),
        targets::activity_batch(&target(), 60),
        targets::pause_batch(&target(), None, &somebody()),
        targets::resume_batch(&target(), &somebody()),
        jobs::find_batch(&JobLookup::Key(command("acme", "w", "k").key())),
        jobs::find_batch(&JobLookup::Id(submission_id(1))),
        jobs::admits_batch(&[1; 32]),
        inbox::look_batch(10),
        inbox::find_batch(inbox_id()),
        inbox::reprocess_batch(&Reprocess::One(inbox_id()), &somebody()),
        inbox::reprocess_batch(&Reprocess::ParkedOf { client_slug: "acme".to_owned(), limit: 10 }, &somebody()),
        Batch::new(PREPARE, vec![Value::Text(String::new()), Value::Json(String::new())]),
        Batch::new(migrate::VERSION, Vec::new()),
        Batch::new(migrate::MAKE_VERSIONS, Vec::new()),
    ];
    all.extend(checks.map(|sql| Batch::new(sql, Vec::new())));
    all.extend(
        (0..migrate::MIGRATIONS.len()).map(|number| Batch::new(migrate::migration(number), vec![Value::Number(1)])),
    );
    all.extend(writes.join().unwrap());
    all.extend(lists());
    all.extend(feeds());
    all.extend(processed());
    all.extend(redrives());
    all.extend(audit_log());
    all.extend(copies());
    let mut seen = HashSet::new();
    all.retain(|batch| seen.insert(batch.sql.clone()));
    all
}

/// The transactions of a statement without the numbers of their parameters. Two statements with the same transactions
/// count as the same.
fn essence(sql: &str) -> BTreeSet<String> {
    let without_numbers = |text: &str| {
        let mut kept = String::with_capacity(text.len());
        for (number, piece) in text.split("@P").enumerate() {
            let piece = if number > 0 { piece.trim_start_matches(|c: char| c.is_ascii_digit()) } else { piece };
            kept.push_str(if number > 0 { "@P" } else { "" });
            kept.push_str(piece);
        }
        kept
    };
    sql.split_inclusive("COMMIT TRANSACTION;").map(without_numbers).collect()
}

/// Panics if a statement is not in the list.
pub(crate) fn assert_listed(sql: &str) {
    static ALL: LazyLock<HashSet<BTreeSet<String>>> =
        LazyLock::new(|| all().iter().map(|batch| essence(&batch.sql)).collect());
    assert!(ALL.contains(&essence(sql)), "this statement is not in the list of all statements:\n{sql}");
}

#[test]
fn every_statement_parses_and_has_its_values() {
    for Batch { sql, values, .. } in all() {
        // This parser does not know OUTPUT arguments.
        if sql != PREPARE
            && let Err(error) = Parser::parse_sql(&MsSqlDialect {}, &sql)
        {
            panic!("{error} in\n{sql}");
        }
        for number in 1..=values.len() {
            assert!(sql.contains(&format!("@P{number}")), "value {number} is not used in\n{sql}");
        }
        assert!(!sql.contains(&format!("@P{}", values.len() + 1)), "a value is missing in\n{sql}");
    }
    assert!(Parser::parse_sql(&MsSqlDialect {}, "SELECT * FORM t WHERE").is_err(), "the parser objects to nonsense");
}

#[test]
fn a_statement_that_is_not_listed_is_noticed() {
    let longer = "SELECT @held AS held; SELECT 1 AS one;";
    assert!(std::panic::catch_unwind(|| assert_listed(longer)).is_err());
    assert_listed(&statements::find(&IntentId::parse("another").unwrap()).sql);
}

/// Writes every statement to a file. `make tsql` runs this.
#[test]
#[ignore = "writes files: run it with 'make tsql'"]
fn write_all_to_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tsql");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    std::fs::create_dir_all(&folder).unwrap();
    let all = all();
    for (number, batch) in all.iter().enumerate() {
        std::fs::write(folder.join(format!("{number:04}.sql")), batch.sql.as_bytes()).unwrap();
    }
    println!("{} statements in {}", all.len(), folder.display());
}
