//! `kill -9` under load, and an orderly stop: no intent is lost, and no attempt is sent twice.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use submission_manager::devtools::stand_in_gateway::Ledger;

use crate::fleet::evidence::{Evidence, Record};
use crate::support::{Api, PATIENCE, site};

const TARGETS: [&str; 3] = ["attempts", "once", "deadline"];

/// Submits intents with many clients, one after the other, until the service does not answer any more.
async fn submit_until_refused(api: &Api, clients: usize, each: usize, payload: Value, record: &Record) {
    join_all((0..clients).map(|client| {
        let payload = payload.clone();
        async move {
            for n in 0..each {
                let id = format!("{client}-{n}");
                let target = TARGETS[(client + n) % TARGETS.len()];
                let body = json!({ "intentId": id, "submissionTarget": target, "payload": payload }).to_string();
                match api.try_call("POST", "/v1/intents", body.into_bytes()).await {
                    Ok(answer) if answer.status.is_success() => record.answered(&answer.json()),
                    Ok(answer) => panic!("{}: {}", answer.status, answer.text()),
                    Err(_) => break,
                }
            }
        }
    }))
    .await;
}

async fn until_ledger_has(ledger: &Ledger, count: usize) {
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while ledger.len() < count {
            pace.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("the gateway gets attempts");
}

#[actix::test]
async fn kill_minus_nine_with_thousands_in_flight_loses_no_intent_and_sends_nothing_twice() {
    let (site, gateway) = site();
    let mut first = site.start();
    first.wait_for_log("leader_ready");
    let record = Record::default();
    let api = first.api();
    // Slow enough that attempts are under way and thousands wait when the process dies.
    let payload = json!({ "simulate": "slow:40" });
    let load = submit_until_refused(&api, 64, 100, payload, &record);
    let ledger = gateway.ledger.clone();
    let kill = async {
        until_ledger_has(&ledger, 1000).await;
        first.kill();
    };
    tokio::join!(load, kill);
    let told = record.len();
    assert!(told > 1000, "only {told} were answered before the kill");

    let second = site.start();
    let api = second.api();
    second.wait_for_log("leader_ready");
    api.until_nothing_is_pending().await;
    let evidence = Evidence::collect(&site, &[gateway.witness()], &record, &second.log_lines()).await;
    evidence.hold();
    let interrupted = evidence.interrupted();
    assert!(interrupted > 0, "the kill hit no attempt; the test shows nothing");
    let line = second.wait_for_log("leader_ready");
    assert!(line.contains(&format!("interrupted_attempts={interrupted}")), "{line}, but {interrupted} were seen");
}

#[actix::test]
async fn an_orderly_stop_finishes_attempts_under_way_and_a_follower_takes_over() {
    let (site, gateway) = site();
    let mut leader = site.start();
    leader.wait_for_log("leader_ready");
    let follower = site.start();
    let record = Record::default();
    let api = follower.api();
    let load = submit_until_refused(&api, 16, 40, json!({ "simulate": "slow:100" }), &record);
    let ledger = gateway.ledger.clone();
    let stop = async {
        until_ledger_has(&ledger, 100).await;
        leader.signal("TERM");
    };
    tokio::join!(load, stop);
    assert_eq!(leader.wait().code(), Some(0));
    assert_eq!(record.len(), 16 * 40);
    api.until_nothing_is_pending().await;
    let evidence = Evidence::collect(&site, &[gateway.witness()], &record, &follower.log_lines()).await;
    evidence.hold();
    assert_eq!(
        evidence.interrupted(),
        0,
        "attempts were interrupted: {:#?} {:#?}",
        leader.log_lines(),
        follower.log_lines()
    );
    assert!(follower.wait_for_log("leader_ready").contains("lease_epoch=2"));
}
