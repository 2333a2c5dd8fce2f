//! Backup and restore of the embedded store, with the commands that docs/operations.md shows: what was answered
//! before the backup is there, and goes on from there.

use std::process::Command;

use serde_json::json;

use crate::documents::blocks;
use crate::support::{Site, site};

/// Runs the block of docs/operations.md that begins so, where the service runs.
fn run_as_shown(site: &Site, beginning: &str) {
    let shown = blocks("sh").into_iter().find(|block| block.text.starts_with(beginning)).expect(beginning);
    let output = Command::new("bash").args(["-ec", &shown.text]).current_dir(site.directory.path()).output().unwrap();
    assert!(output.status.success(), "{}: {}", shown.text, String::from_utf8_lossy(&output.stderr));
}

#[actix::test]
async fn a_running_store_is_backed_up_and_restored_as_the_documents_say() {
    let (site, gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.api().submit("before", "once", json!({}), "?waitSeconds=30").await;
    let history = instance.api().history("before").await;
    run_as_shown(&site, "sqlite3 data/submission.db");
    instance.api().submit("after", "once", json!({}), "?waitSeconds=30").await;
    instance.kill();
    run_as_shown(&site, "rm -f data/submission.db-wal");

    let restored = site.start();
    let api = restored.api();
    assert_eq!(api.history("before").await, history);
    assert_eq!(api.get("/v1/intents/after").await.status.as_u16(), 404);
    let again = api.submit("after", "once", json!({}), "?waitSeconds=30").await.json();
    assert_eq!(again["status"], "accepted", "it goes on from there");
    let seen: Vec<_> =
        gateway.ledger.entries().iter().map(|entry| (entry.idempotency_key.clone(), entry.attempt)).collect();
    let after = ("after".to_owned(), 1);
    assert_eq!(
        seen,
        [("before".to_owned(), 1), after.clone(), after],
        "as the documents warn: the same key and number"
    );
}
