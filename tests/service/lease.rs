//! Resetting the lease, and a host clock that jumps ahead and back.

use std::process::Output;

use rusqlite::Connection;
use serde_json::json;

use crate::support::{Site, site};

const HOUR: i64 = 3_600_000_000;

fn reset(site: &Site) -> (Output, String) {
    let output = site.command().args(["lease", "reset"]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, said)
}

#[actix::test]
async fn a_clock_that_jumped_ahead_and_back_is_reported_and_an_instance_still_leads() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.wait_for_log("leader_ready");
    assert!(!instance.api().get("/readyz").await.text().contains("clock_ahead"));
    instance.kill();
    // Moves all stored times an hour ahead.
    let store = Connection::open(site.database()).unwrap();
    store.execute("UPDATE submission_clock SET last_at = last_at + ?1", [HOUR]).unwrap();
    store
        .execute(
            "UPDATE submission_manager_leases SET acquired_at = acquired_at + ?1, renewed_at = renewed_at + ?1,
                 expires_at = expires_at + ?1",
            [HOUR],
        )
        .unwrap();
    let next = site.start();
    next.wait_for_log("store_clock_ahead");
    next.wait_for_log("leader_ready");
    let api = next.api();
    let intent = api.submit("a", "once", json!({}), "?waitSeconds=30").await.json();
    assert_eq!(intent["status"], "accepted");
    let ready = api.get("/readyz").await.text();
    let ahead = ready.split("clock_ahead_seconds=").nth(1).and_then(|rest| rest.trim().parse::<u64>().ok());
    assert!(ahead.is_some_and(|seconds| (3000..=3600).contains(&seconds)), "{ready}");
    let page = api.get("/ui").await.text();
    assert!(page.contains("ahead of the clock of its host") && page.contains("lease reset"), "{page}");
}

#[actix::test]
async fn a_lease_that_is_not_renewed_can_be_reset_and_a_renewed_one_cannot() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.wait_for_log("leader_ready");
    let (output, said) = reset(&site);
    assert!(!output.status.success() && said.contains("is alive"), "{said}");
    let intent = instance.api().submit("a", "once", json!({}), "?waitSeconds=30").await.json();
    assert_eq!(intent["status"], "accepted", "it leads as before");
    instance.kill();
    let store = Connection::open(site.database()).unwrap();
    store.execute("UPDATE submission_manager_leases SET expires_at = expires_at + ?1", [HOUR]).unwrap();
    let next = site.start();
    let (output, said) = reset(&site);
    assert!(output.status.success() && said.contains("reset the lease of"), "{said}");
    next.wait_for_log("leader_ready");
    let intent = next.api().submit("b", "once", json!({}), "?waitSeconds=30").await.json();
    assert_eq!(intent["status"], "accepted");
    let entries = next.api().get("/v1/audit").await.json()["entries"].clone();
    let actions: Vec<_> = entries.as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["reset_lease"], "the refused reset has no entry");
    assert_eq!((&entries[0]["actor"]["kind"], &entries[0]["address"]), (&json!("command_line"), &json!(null)));
}
