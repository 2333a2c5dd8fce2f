//! Limits of reads: which reads are refused first, which count as errors of the store, and which are not made at all.

use futures_util::future::join_all;

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::{GatewayType, TerminalOutcomes};
use crate::domain::intent::Payload;
use crate::domain::job::SubmissionId;
use crate::domain::job::fixtures::{command, submission_id};
use crate::store::actor::{MAX_OPTIONAL_READS, MAX_READS};
use crate::store::{JobFacts, NewIntent, NewJob, StoreError};

fn overloads(instance: &Instance) -> String {
    let text = String::from_utf8(instance.engine.metrics.text().unwrap()).unwrap();
    let line = text.lines().find(|line| line.starts_with("submission_store_errors_total{kind=\"overloaded\"}"));
    line.map_or("0".to_owned(), |line| line.rsplit_once(' ').unwrap().1.to_owned())
}

#[actix::test]
async fn optional_reads_leave_room_for_needed_ones_and_are_not_counted_as_store_errors() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("a", &one_shot()).await;
    instance.until_terminal("a").await;
    let store = &instance.engine.store;
    instance.faults.add("find", 5000, Fault::SlowAnswer(60 * SECOND));
    let mut reads = Box::pin(join_all((0..5000).map(|_| store.find_if_idle(intent_id("a")))));
    assert!(futures_util::poll!(&mut reads).is_pending());
    assert!(store.history(intent_id("a")).await.unwrap().is_some(), "a needed read is answered meanwhile");
    let answers = reads.await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(answered, MAX_OPTIONAL_READS);
    assert!(answers.iter().all(|answer| answer.is_ok() || *answer == Err(StoreError::Overloaded)));
    assert_eq!(overloads(&instance), "0");
    // A refused read that is needed counts as an error.
    let needed = join_all((0..5000).map(|_| store.find(intent_id("a")))).await;
    let refused = needed.iter().filter(|answer| **answer == Err(StoreError::Overloaded)).count();
    assert!(refused > 0);
    assert_eq!(overloads(&instance), refused.to_string());
}

/// Answers that their callers have not taken yet are in memory, so they count as reads in flight.
#[actix::test]
async fn answers_that_nobody_has_taken_count_as_reads() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("a", &one_shot()).await;
    instance.until_terminal("a").await;
    let store = &instance.engine.store;
    let mut asked: Vec<_> = (0..MAX_READS).map(|_| Box::pin(store.find(intent_id("a")))).collect();
    for read in &mut asked {
        assert!(futures_util::poll!(read).is_pending());
    }
    // The store answers during this time, and no caller takes its answer.
    tokio::time::sleep(SECOND).await;
    assert_eq!(store.find(intent_id("a")).await, Err(StoreError::Overloaded));
    drop(asked.split_off(1));
    assert!(store.find(intent_id("a")).await.unwrap().is_some(), "what nobody wants any more takes no room");
    assert!(asked.remove(0).await.unwrap().is_some());
}

fn job(number: u8, contract: &Contract) -> NewIntent {
    let id: SubmissionId = submission_id(number);
    let command = command("acme", "w1", &number.to_string());
    let terminal_outcomes = TerminalOutcomes::new(GatewayType::Node, ["quota_exceeded"]).unwrap();
    let contract = Contract { gateway_type: GatewayType::Node, terminal_outcomes, ..contract.clone() };
    let payload = command.forwarded(id).unwrap();
    NewIntent {
        id: IntentId::of_job(id),
        job: Some(NewJob { id, key: command.key(), facts: JobFacts::from(&command) }),
        payload: Payload::new(payload.into()),
        ..new_intent("x", &contract, b"")
    }
}

#[actix::test]
async fn logging_finished_attempts_of_jobs_reads_nothing_from_the_store() {
    let lab = Lab::new();
    let instance =
        lab.start(settings(), script(|_, number| (SECOND, Some(if number < 3 { error() } else { accepted() }))));
    instance.lease_after(0).await;
    instance.faults.add("find_job", 1000, Fault::Fail);
    for number in 0..20 {
        let submitted = instance.engine.store.submit(job(number, &max_attempts(5))).await.unwrap();
        assert!(matches!(submitted, Submitted::Created(_)));
    }
    for number in 0..20 {
        let history = instance.until_terminal(IntentId::of_job(submission_id(number)).as_str()).await;
        assert_eq!(history.attempts.len(), 3);
    }
    assert_eq!(instance.faults.left("find_job"), 1000);
}

#[actix::test]
async fn jobs_that_expire_together_are_looked_up_one_at_a_time() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let target = deadline(10).target;
    instance.engine.store.pause_target(target, None, somebody()).await.unwrap();
    for number in 0..20 {
        instance.engine.store.submit(job(number, &deadline(10))).await.unwrap();
    }
    instance.faults.add("find_job", 20, Fault::SlowAnswer(60 * SECOND));
    for number in 0..20 {
        let history = instance.until_terminal(IntentId::of_job(submission_id(number)).as_str()).await;
        assert_eq!(exhausted(&history), ExhaustedReason::DeadlineExceeded);
    }
    assert!(instance.faults.left("find_job") >= 19, "one at a time");
    pass(3600 * SECOND).await;
    assert_eq!(instance.faults.left("find_job"), 0, "all of them are looked up");
}
