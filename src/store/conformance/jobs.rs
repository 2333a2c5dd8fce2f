//! Jobs: one for each key, stored together with its intent; lists that reveal nothing about others; nodes that do not answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Fixture, accepted, intent_id, submit_to};
use crate::domain::contract::fixtures::max_attempts;
use crate::domain::contract::{Contract, ContractSnapshot, GatewayType, GatewayUrl, TerminalOutcomes};
use crate::domain::intent::{IntentId, Payload, Status};
use crate::domain::job::fixtures::{command, submission_id};
use crate::domain::job::{JobCommand, SubmissionId};
use crate::domain::node::{FAILURES_UNTIL_GONE, PROBE_INTERVAL};
use crate::domain::outcome::Outcome;
use crate::domain::trace::TraceContext;
use crate::store::{
    Job, JobFacts, JobLookup, JobQuery, ListQuery, NewIntent, NewJob, PageCursor, StartResult, Submitted, WriteBatch,
};

fn contract() -> Contract {
    Contract {
        gateway_type: GatewayType::Node,
        gateway_url: GatewayUrl::parse("http://node.test").unwrap(),
        terminal_outcomes: TerminalOutcomes::new(GatewayType::Node, ["quota_exceeded"]).unwrap(),
        ..max_attempts(20)
    }
}

fn trace() -> TraceContext {
    TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap()
}

fn new_job(id: SubmissionId, command: &JobCommand) -> NewIntent {
    NewIntent {
        id: IntentId::of_job(id),
        contract: Arc::new(ContractSnapshot::of(contract()).unwrap()),
        payload: Payload::new(command.forwarded(id).unwrap().into()),
        not_before: None,
        redrive: None,
        trace: Some(trace()),
        job: Some(NewJob { id, key: command.key(), facts: JobFacts::from(command) }),
    }
}

pub(super) async fn submit(fixture: &Fixture, number: u8, command: &JobCommand) -> Job {
    match submit_to(&*fixture.store, new_job(submission_id(number), command)).await {
        Submitted::Created(_) => find(fixture, JobLookup::Id(submission_id(number))).await.unwrap(),
        other => panic!("not created: {other:?}"),
    }
}

async fn find(fixture: &Fixture, by: JobLookup) -> Option<Job> {
    fixture.other.find_job(by).await.unwrap().map(|found| found.job)
}

pub async fn a_job_is_stored_together_with_its_intent(fixture: Fixture) {
    let command = command("acme", "w~1 \"x\" \\", "ké\u{1f600}");
    let Submitted::Created(intent) = submit_to(&*fixture.store, new_job(submission_id(1), &command)).await else {
        panic!("not created");
    };
    for by in [JobLookup::Key(command.key()), JobLookup::Id(submission_id(1))] {
        let found = fixture.other.find_job(by).await.unwrap().unwrap();
        assert_eq!(found.job.intent, intent);
        assert_eq!(found.job.facts, JobFacts::from(&command));
        assert_eq!((found.job.id, found.job.trace), (submission_id(1), Some(trace())));
        assert!(JobCommand::of_forwarded(&found.payload).unwrap() == command);
    }
    assert_eq!(find(&fixture, JobLookup::Id(submission_id(2))).await, None);
    assert_eq!(intent.id.submission_id(), Some(submission_id(1)));
    let term = fixture.lead("a").await;
    let Some(StartResult::Started { attempt, payload, .. }) =
        fixture.start(&term, &fixture.waiting(&intent).await).await
    else {
        panic!("not started");
    };
    assert_eq!(attempt.trace, Some(trace()), "the attempt continues the trace of the submission");
    assert!(JobCommand::of_forwarded(&payload).unwrap() == command);
    fixture.finish(&term, &attempt, accepted()).await;
    let job = find(&fixture, JobLookup::Id(submission_id(1))).await.unwrap();
    assert_eq!(job.intent.state.status(), Status::Accepted);
}

pub async fn one_key_is_one_job(fixture: Fixture) {
    let first = command("acme", "w1", "k");
    let mut other = first.clone();
    other.job_id = "another".to_owned();
    let job = submit(&fixture, 1, &first).await;
    for (number, command) in [(2, &first), (3, &other)] {
        let again = submit_to(&*fixture.other, new_job(submission_id(number), command)).await;
        assert_eq!(again, Submitted::Existing(job.intent.clone()));
        assert_eq!(
            fixture.find(IntentId::of_job(submission_id(number)).as_str()).await,
            None,
            "no intent without its job"
        );
    }
    // The same key in another workspace is another job. Several submissions of one key in a batch are one job.
    let elsewhere = command("acme", "w2", "k");
    let submits = (4..8).map(|number| new_job(submission_id(number), &elsewhere)).collect();
    let results = fixture.store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    let answers: Vec<_> = results.submits.into_iter().map(Result::unwrap).collect();
    assert!(matches!(&answers[0], Submitted::Created(intent) if intent.id.submission_id() == Some(submission_id(4))));
    for answer in &answers[1..] {
        assert!(matches!(answer, Submitted::Existing(intent) if intent.id.submission_id() == Some(submission_id(4))));
    }
}

pub async fn racing_instances_create_one_job(fixture: Fixture) {
    let command = command("acme", "w1", "k");
    let race = |store: &Arc<dyn crate::store::Store>, number: u8| {
        let store = Arc::clone(store);
        let new = new_job(submission_id(number), &command);
        tokio::spawn(async move { submit_to(&*store, new).await })
    };
    let racers: Vec<_> =
        (0..10).map(|number| race(if number % 2 == 0 { &fixture.store } else { &fixture.other }, number + 1)).collect();
    let mut created = 0;
    let mut ids = std::collections::HashSet::new();
    for racer in racers {
        match racer.await.unwrap() {
            Submitted::Created(intent) => {
                created += 1;
                ids.insert(intent.id);
            }
            Submitted::Existing(intent) => drop(ids.insert(intent.id)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((created, ids.len()), (1, 1));
}

pub async fn jobs_are_listed_by_tenant_and_workspace(fixture: Fixture) {
    let mut expected = Vec::new();
    for (number, (tenant, workspace)) in
        [("acme", "w1"), ("acme", "w2"), ("globex", "w1"), ("acme", "w1"), ("acme", "w3")].into_iter().enumerate()
    {
        let number = u8::try_from(number).unwrap();
        expected.push(submit(&fixture, number + 1, &command(tenant, workspace, &format!("k{number}"))).await);
    }
    expected.reverse();
    let list = async |query: JobQuery| fixture.store.list_jobs(query).await.unwrap();
    let all = list(JobQuery { limit: 10, ..JobQuery::default() }).await;
    assert_eq!((all.jobs, all.next), (expected.clone(), None));
    let of = |tenant: &str, workspaces: &[&str]| -> Vec<Job> {
        let fits =
            |job: &&Job| job.facts.tenant_id == tenant && workspaces.iter().any(|name| *name == job.facts.workspace_id);
        expected.iter().filter(fits).cloned().collect()
    };
    let tenant = |name: &str| JobQuery { tenant: Some(name.to_owned()), limit: 10, ..JobQuery::default() };
    assert_eq!(list(tenant("acme")).await.jobs, of("acme", &["w1", "w2", "w3"]));
    assert_eq!(list(tenant("initech")).await.jobs, []);
    let some = JobQuery { workspaces: Some(vec!["w1".to_owned(), "w2".to_owned()]), ..tenant("acme") };
    assert_eq!(list(some).await.jobs, of("acme", &["w1", "w2"]));
    assert_eq!(list(JobQuery { workspaces: Some(Vec::new()), ..tenant("acme") }).await.jobs, []);
    let named = JobQuery { job_id: Some("job-of-k3".to_owned()), ..tenant("acme") };
    assert_eq!(list(named).await.jobs, expected[1..2]);
    let term = fixture.lead("a").await;
    fixture.attempt(&term, &expected[1].intent, accepted()).await;
    let ended = JobQuery { status: Some(Status::Accepted), ..tenant("acme") };
    assert_eq!(list(ended).await.jobs.len(), 1);
    let mut paged = Vec::new();
    let mut after = None;
    loop {
        let page = list(JobQuery { limit: 1, after, ..tenant("acme") }).await;
        paged.extend(page.jobs.into_iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(paged, of("acme", &["w1", "w2", "w3"]).iter().map(|job| job.id).collect::<Vec<_>>());
}

pub async fn intents_of_jobs_are_never_listed(fixture: Fixture) {
    let job = submit(&fixture, 1, &command("acme", "w1", "k")).await;
    fixture.submit("mine", &max_attempts(3)).await;
    let term = fixture.lead("a").await;
    fixture.attempt(&term, &job.intent, accepted()).await;
    let ids = async |query: ListQuery| -> Vec<String> {
        let page = fixture.store.list(query).await.unwrap();
        page.intents.iter().map(|intent| intent.id.to_string()).collect()
    };
    let without = ListQuery { limit: 10, ..ListQuery::default() };
    assert_eq!(ids(without.clone()).await, ["mine"]);
    for text in ["sm-job:", "sm-", "s", job.intent.id.as_str(), "gw-1"] {
        assert_eq!(
            ids(ListQuery { prefix: Some(text.to_owned()), ..without.clone() }).await,
            [] as [&str; 0],
            "{text}"
        );
    }
    assert_eq!(ids(ListQuery { status: Some(Status::Accepted), ..without.clone() }).await, [] as [&str; 0]);
    // However many jobs there are, the cursor of a page does not reveal them.
    for number in 2..9 {
        submit(&fixture, number, &command("acme", "w1", &number.to_string())).await;
    }
    fixture.submit("sm-", &max_attempts(3)).await;
    fixture.submit("sm-k", &max_attempts(3)).await;
    let around = ListQuery { prefix: Some("sm-".to_owned()), status: Some(Status::Pending), limit: 1, ..without };
    let first = fixture.store.list(around.clone()).await.unwrap();
    assert_eq!((first.intents.len(), &first.next), (1, &Some(PageCursor::Id(intent_id("sm-")))));
    let second = fixture.store.list(ListQuery { after: first.next, ..around }).await.unwrap();
    assert_eq!((second.intents[0].id.as_str(), second.next), ("sm-k", None));
}

pub async fn a_node_that_does_not_answer_gets_no_jobs_except_probes(fixture: Fixture) {
    let url = contract().gateway_url;
    let admits = async || fixture.other.admits_jobs(url.clone()).await.unwrap();
    let term = fixture.lead("a").await;
    let mut number = 0;
    let mut attempt = async |outcome: Outcome| {
        number += 1;
        let job = submit(&fixture, number, &command("acme", "w1", &number.to_string())).await;
        fixture.attempt(&term, &job.intent, outcome).await;
    };
    for _ in 1..FAILURES_UNTIL_GONE {
        attempt(Outcome::not_sent("cannot connect")).await;
    }
    assert!(admits().await, "too few failures");
    attempt(Outcome::error("gateway answered HTTP 500")).await;
    for _ in 1..FAILURES_UNTIL_GONE {
        attempt(Outcome::not_sent("cannot connect")).await;
    }
    assert!(admits().await, "the node answered in between");
    attempt(Outcome::interrupted()).await;
    attempt(Outcome::unknown("timed out")).await;
    assert!(admits().await, "these outcomes do not tell whether the node was reached");
    attempt(Outcome::not_sent("cannot connect")).await;
    assert!(!admits().await && !admits().await);
    fixture.pass(PROBE_INTERVAL / 2).await;
    attempt(Outcome::not_sent("cannot connect")).await;
    fixture.pass(PROBE_INTERVAL / 2).await;
    assert!(admits().await, "one job may try, although attempts failed meanwhile");
    assert!(!admits().await, "only one job may try");
    assert!(fixture.other.admits_jobs(GatewayUrl::parse("http://other.test").unwrap()).await.unwrap());
    attempt(accepted()).await;
    assert!(admits().await, "the node answers again");
}

pub async fn retention_deletes_jobs_with_their_intents(fixture: Fixture) {
    let job = submit(&fixture, 1, &command("acme", "w1", "k")).await;
    let term = fixture.lead("a").await;
    fixture.attempt(&term, &job.intent, accepted()).await;
    fixture.pass(Duration::from_secs(2)).await;
    let purged = fixture.purge(&term, Duration::from_secs(1), 10).await;
    assert_eq!(purged, [1]);
    assert_eq!(find(&fixture, JobLookup::Key(command("acme", "w1", "k").key())).await, None);
    assert_eq!(fixture.store.find(intent_id(job.intent.id.as_str())).await.unwrap(), None);
    let again = submit(&fixture, 2, &command("acme", "w1", "k")).await;
    assert_ne!(again.intent.seq, job.intent.seq, "numbers are not reused");
}
