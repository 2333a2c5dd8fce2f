//! A store that is overloaded, that cannot write, and that recovers.

use std::time::Duration;

use futures_util::future::join_all;
use rusqlite::Connection;
use serde_json::json;
use submission_manager::platform::clock::monotonic;

use crate::support::{Instance, PATIENCE, site};

/// More than may wait for a commit: 100 MB, where the limit is 64 MiB.
const CLIENTS: usize = 500;
const PAYLOAD: usize = 200_000;

#[actix::test]
async fn full_queues_refuse_immediately_and_no_accepted_intent_is_lost() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut command = site.command();
    command.env("SM_LEASE_DURATION", "60s").env("SM_RENEW_INTERVAL", "20s");
    let instance = Instance::start(command);
    instance.wait_for_log("leader_ready");
    let api = instance.api();
    let lock = Connection::open(site.database()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let calls = join_all((0..CLIENTS).map(|n| {
        let api = api.clone();
        async move { api.submit(&format!("{n}"), "once", json!({ "text": "x".repeat(PAYLOAD) }), "").await }
    }));
    let release = async {
        // The metric is in memory, so it can be read while the store is locked.
        api.until("/metrics", |answer| {
            let refused = |line: &&str| {
                line.starts_with("submission_http_requests_total{route=\"/v1/intents\",status_class=\"5xx\"}")
            };
            answer.text().lines().any(|line| refused(&line))
        })
        .await;
        lock.execute_batch("ROLLBACK").unwrap();
    };
    let (answers, ()) = tokio::join!(calls, release);
    let (mut taken, mut refused) = (Vec::new(), 0);
    for (n, answer) in answers.iter().enumerate() {
        match answer.status.as_u16() {
            200 => taken.push(n),
            503 => {
                assert_eq!((answer.error().as_str(), answer.header("retry-after")), ("overloaded", Some("1")));
                refused += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    assert!(refused > 0 && taken.len() >= 256, "{} taken, {refused} refused", taken.len());
    api.until_nothing_is_pending().await;
    for n in taken {
        assert_eq!(api.get(&format!("/v1/intents/{n}")).await.json()["status"], "accepted");
    }
}

#[actix::test]
async fn a_store_that_cannot_be_written_is_reported_as_unavailable_and_recovers() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = site.start();
    let api = instance.api();
    api.submit("before", "once", json!({}), "?waitSeconds=30").await;
    let lock = Connection::open(site.database()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = api.submit("during", "once", json!({}), "").await;
    assert_eq!((answer.status.as_u16(), answer.error().as_str()), (503, "store_unavailable"));
    assert!(!answer.text().contains("locked"), "no internals: {}", answer.text());
    assert_eq!(api.get("/v1/intents/before").await.json()["status"], "accepted", "reads go on");
    instance.wait_for_log("leader_lost");
    lock.execute_batch("ROLLBACK").unwrap();
    let after = api.submit("after", "once", json!({}), "?waitSeconds=30").await;
    assert_eq!(after.json()["status"], "accepted");
    assert_eq!(api.get("/v1/intents/during").await.status.as_u16(), 404, "a refusal means that nothing was kept");
}

/// How long a request may take: the budget of the store and some time for a busy machine, but less than two budgets.
const BUDGET: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_secs(3);

#[actix::test]
async fn a_locked_store_is_an_error_within_the_budget_and_makes_the_instance_unready() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = site.start();
    instance.wait_for_log("leader_ready");
    let api = instance.api();
    assert_eq!(api.get("/readyz").await.status.as_u16(), 200);
    let lock = Connection::open(site.database()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Requests arrive for longer than two budgets: after waiting commits, after writes of the leader, and after probes.
    let calls = join_all((0..60).map(|n| {
        let api = api.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(200 * n)).await;
            let start = monotonic();
            let answer = api.submit(&format!("during-{n}"), "once", json!({}), "").await;
            (n, answer, monotonic().duration_since(start))
        }
    }));
    let unready = api.until("/readyz", |answer| answer.status.as_u16() == 503);
    let (calls, unready) = tokio::join!(calls, unready);
    assert_eq!(unready.error(), "store_unavailable");
    for (n, answer, waited) in &calls {
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (503, "store_unavailable"), "{n}");
        assert!(*waited < BUDGET + SLACK, "{n} was answered after {waited:?}");
    }
    lock.execute_batch("ROLLBACK").unwrap();
    api.until("/readyz", |answer| answer.status.as_u16() == 200).await;
    let after = api.submit("after", "once", json!({}), "?waitSeconds=30").await;
    assert_eq!(after.json()["status"], "accepted");
    for (n, ..) in calls {
        let kept = api.get(&format!("/v1/intents/during-{n}")).await;
        assert_eq!(kept.status.as_u16(), 404, "{n}: a refusal means that nothing was kept");
    }
}

#[actix::test]
async fn a_full_disk_refuses_and_damages_nothing() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    site.start().wait_for_log("leader_ready");
    // A limit of the file size replaces a full disk: writes fail in the same way.
    let script = format!("trap '' XFSZ; ulimit -f 512; exec {}", crate::support::BINARY);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]);
    site.settings(&mut command);
    let mut limited = Instance::start(command);
    let api = limited.api();
    let payload = json!({ "filler": "x".repeat(20_000) });
    let mut answered = Vec::new();
    for n in 0.. {
        let answer = api.submit(&format!("{n}"), "attempts", payload.clone(), "").await;
        match answer.status.as_u16() {
            200 => answered.push(n),
            503 => {
                assert_eq!(answer.error(), "store_unavailable");
                break;
            }
            other => panic!("{other}: {}", answer.text()),
        }
        assert!(n < 1000, "the limit was never reached");
    }
    assert_eq!(api.get("/healthz").await.status.as_u16(), 200, "the process lives");
    api.until("/readyz", |answer| answer.status.as_u16() == 503).await;
    limited.kill();
    let healed = site.start();
    let api = healed.api();
    healed.wait_for_log("leader_ready");
    tokio::time::timeout(PATIENCE + Duration::from_secs(1), api.until_nothing_is_pending()).await.unwrap();
    for n in answered {
        assert_eq!(api.get(&format!("/v1/intents/{n}")).await.json()["status"], "accepted", "{n}");
    }
    let sound: String =
        Connection::open(site.database()).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[actix::test]
async fn a_database_file_that_is_removed_is_not_written_to_any_more() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = site.start();
    let api = instance.api();
    api.submit("before", "once", json!({}), "?waitSeconds=30").await;
    let aside = site.directory.path().join("aside.db");
    std::fs::rename(site.database(), &aside).unwrap();
    let answer = api.submit("during", "once", json!({}), "").await;
    assert_eq!((answer.status.as_u16(), answer.error().as_str()), (503, "store_unavailable"));
    assert_eq!(api.get("/readyz").await.status.as_u16(), 503);
    std::fs::rename(&aside, site.database()).unwrap();
    let after = api.submit("after", "once", json!({}), "?waitSeconds=30").await;
    assert_eq!(after.json()["status"], "accepted", "it heals when the file is back");
}
