//! A copy that was made of a running store is a store: what was answered before is in it, and goes on from there.

use rusqlite::Connection;
use serde_json::json;

use crate::support::site;

#[actix::test]
async fn a_backup_of_a_running_store_can_be_started_from() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.api().submit("before", "once", json!({}), "?waitSeconds=30").await;
    let history = instance.api().history("before").await;
    let copy = site.directory.path().join("copy.db");
    let running = Connection::open(site.database()).unwrap();
    running.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    instance.api().submit("after", "once", json!({}), "?waitSeconds=30").await;
    drop(running);
    instance.kill();

    let mut command = site.command();
    command.env("SM_STORE", format!("sqlite:{}", copy.display()));
    let restored = crate::support::Instance::start(command);
    let api = restored.api();
    assert_eq!(api.history("before").await, history);
    assert_eq!(api.get("/v1/intents/after").await.status.as_u16(), 404);
    let again = api.submit("after", "once", json!({}), "?waitSeconds=30").await.json();
    assert_eq!(again["status"], "accepted", "it goes on from there");
}
