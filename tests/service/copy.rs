//! `submission-manager copy`: a service moves to another store, with intents that wait and an attempt that was open. The
//! target is a SQL Server if `SM_TEST_SQLSERVER` names one, and another SQLite file otherwise.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::json;
use submission_manager::devtools::stand_in_gateway::StandIn;
use submission_manager::platform::clock::monotonic;

use crate::sqlserver::TestDatabase;
use crate::support::{BINARY, PATIENCE, Site};

fn copy(from: &str, to: &str) -> (Output, String) {
    let output = Command::new(BINARY).args(["copy", "--from", from, "--to", to]).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

#[actix::test]
async fn a_service_continues_on_the_store_to_which_it_was_copied() {
    let gateway = StandIn::start(true).unwrap();
    let old = Site::with_database(&gateway.url, None);
    let new = Site::with_database(&gateway.url, TestDatabase::create());
    if new.is_a_file() {
        std::fs::create_dir(new.database().parent().unwrap()).unwrap();
    }
    let mut instance = old.start();
    let api = instance.api();
    api.submit("done", "attempts", json!({}), "?waitSeconds=30").await;
    let history = api.history("done").await;
    api.submit("retried", "attempts", json!({ "simulate": "fail:1" }), "").await;
    api.submit("open", "once", json!({ "simulate": "hang" }), "").await;
    let sent = |id: &str| {
        let entries = gateway.ledger.entries();
        entries.into_iter().filter(|entry| entry.idempotency_key == id).map(|entry| entry.attempt).collect::<Vec<_>>()
    };
    let deadline = monotonic() + PATIENCE;
    while sent("open").is_empty() || api.history("retried").await["attempts"][0].is_null() {
        assert!(monotonic() < deadline, "the first attempts were not made");
        actix_web::rt::time::sleep(Duration::from_millis(20)).await;
    }
    let (from, to) = (old.store(), new.store());
    let refused = copy(&from, &to).1;
    assert!(refused.contains("is in use") && refused.contains("stop all instances"), "{refused}");
    instance.kill();
    // Until the lease of the killed instance has expired, nobody knows that it is dead.
    let text = loop {
        let (output, text) = copy(&from, &to);
        if output.status.success() {
            break text;
        }
        assert!(text.contains("is in use") && monotonic() < deadline, "{text}");
    };
    assert!(text.contains("verified submission_intents: 3 rows, hash "), "{text}");
    assert!(text.contains("3 intents, 2 attempts and all other tables copied and verified"), "{text}");
    assert!(!text.contains("Password"), "{text}");

    let instance = new.start();
    let api = instance.api();
    let ended = |status: &'static str| move |answer: &crate::support::Answer| answer.json()["status"] == status;
    api.until("/v1/intents/retried", ended("accepted")).await;
    api.until("/v1/intents/open", ended("exhausted")).await;
    assert_eq!(api.history("done").await, history);
    let open = api.history("open").await;
    assert_eq!(open["attempts"][0]["attemptNumber"], 1, "{open}");
    assert_eq!((sent("done"), sent("retried"), sent("open")), (vec![1], vec![1, 2], vec![1]));

    let again = copy(&from, &to).1;
    assert!(again.contains("is not empty") || again.contains("is in use"), "{again}");
}

#[test]
fn mistakes_are_named_without_passwords() {
    for (from, to, said) in [
        ("a.db", "sqlite:b.db", "--from must be sqlite:<path of a file>"),
        ("sqlite:missing.db", "sqlite:b.db", "there is no store missing.db"),
        ("sqlite:a.db", "sqlite:a.db", "is the source and the target"),
        ("sqlite:a.db", "Server=db;User Id=u;Password=tr0ub4dor", "--to is not a connection string"),
    ] {
        let (output, text) = copy(from, to);
        assert!(!output.status.success() && text.contains(said) && !text.contains("tr0ub4dor"), "{text}");
    }
}
