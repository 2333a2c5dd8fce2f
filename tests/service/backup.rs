//! Backup and restore of the embedded store with the commands of docs/operations.md: all intents that were answered before
//! the backup are in it, and continue after the restore.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use rusqlite::Connection;
use serde_json::json;

use crate::documents::blocks;
use crate::support::{BINARY, Site, site};

/// Runs the block of docs/operations.md that starts with this text, in the site's directory, with this binary.
fn run_as_shown(site: &Site, beginning: &str) {
    let shown = blocks("sh").into_iter().find(|block| block.text.starts_with(beginning)).expect(beginning);
    let text = shown.text.replace("submission-manager ", &format!("{BINARY} "));
    let output = Command::new("bash").args(["-ec", &text]).current_dir(site.directory.path()).output().unwrap();
    assert!(output.status.success(), "{}: {}", shown.text, String::from_utf8_lossy(&output.stderr));
}

fn backup(site: &Site, file: &Path) -> Output {
    site.command().arg("backup").arg(file).output().unwrap()
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[actix::test]
async fn a_running_store_is_backed_up_and_restored_as_documented() {
    let (site, gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.api().submit("before", "once", json!({}), "?waitSeconds=30").await;
    let history = instance.api().history("before").await;
    run_as_shown(&site, "submission-manager backup");
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

/// Payloads so large that the copy takes many steps, with commits between them.
const PAYLOADS: usize = 120;
const PAYLOAD: usize = 200_000;
const CLIENTS: usize = 4;

#[actix::test]
async fn a_backup_under_load_ends_and_shows_one_moment() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.wait_for_log("leader_ready");
    let api = instance.api();
    for n in 0..PAYLOADS {
        let answer = api.submit(&format!("large-{n}"), "attempts", json!({ "text": "x".repeat(PAYLOAD) }), "").await;
        assert!(answer.status.is_success(), "{}", answer.text());
    }
    let over = Arc::new(AtomicBool::new(false));
    let load = join_all((0..CLIENTS).map(|client| {
        let (api, over) = (api.clone(), Arc::clone(&over));
        async move {
            let mut submitted = 0;
            while !over.load(Ordering::SeqCst) {
                let answer = api.submit(&format!("load-{client}-{submitted}"), "attempts", json!({}), "").await;
                assert!(answer.status.is_success(), "{}", answer.text());
                submitted += 1;
            }
            submitted
        }
    }));
    let copy = site.directory.path().join("copy.db");
    let copying = async {
        // Some intents exist before the backup, and some are submitted during it.
        api.until("/v1/intents/load-0-20", |answer| answer.status.is_success()).await;
        let (command, file) = (site.command(), copy.clone());
        let output = actix_web::rt::task::spawn_blocking(move || {
            let mut command = command;
            command.arg("backup").arg(file).output().unwrap()
        });
        let output = output.await.unwrap();
        over.store(true, Ordering::SeqCst);
        output
    };
    let (submitted, output) = tokio::join!(load, copying);
    let text = output_text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("copied ") && text.contains("verifying") && text.contains("verified"), "{text}");
    let names: Vec<_> =
        std::fs::read_dir(site.directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    let left = names.iter().filter(|name| name.to_string_lossy().contains("backup-")).count();
    assert_eq!(left, 0, "nothing is left behind: {names:?}");

    // The backup shows one moment: for every client all intents up to some number, and for every intent everything that
    // belongs to it.
    let inside = Connection::open(&copy).unwrap();
    let ids: BTreeSet<String> = inside
        .prepare("SELECT intent_id FROM submission_intents")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    for (client, submitted) in submitted.iter().enumerate() {
        let kept = (0..*submitted).take_while(|n| ids.contains(&format!("load-{client}-{n}"))).count();
        let all = ids.iter().filter(|id| id.starts_with(&format!("load-{client}-"))).count();
        assert_eq!(kept, all, "client {client}: no gap");
        assert!(client > 0 || kept >= 20, "what was answered before is there");
    }
    let torn: i64 = inside
        .query_row(
            "SELECT count(*) FROM submission_intents i LEFT JOIN submission_payloads p USING (intent_seq)
             WHERE p.payload IS NULL OR (i.status = 'accepted') <> EXISTS
                 (SELECT 1 FROM submission_attempts a WHERE a.intent_seq = i.intent_seq)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(torn, 0);
    drop(inside);
    instance.kill();

    let again = backup(&site, &copy);
    assert!(!again.status.success() && output_text(&again).contains("exists already"), "{}", output_text(&again));
    for suffix in ["", "-wal", "-shm"] {
        let _may_not_exist = std::fs::remove_file(format!("{}{suffix}", site.database().display()));
    }
    std::fs::rename(&copy, site.database()).unwrap();
    let restored = site.start();
    restored.wait_for_log("leader_ready");
    restored.api().until_nothing_is_pending().await;
    for id in &ids {
        assert_eq!(restored.api().get(&format!("/v1/intents/{id}")).await.json()["status"], "accepted", "{id}");
    }
}

#[test]
fn a_failed_backup_reports_why_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let run = |store: &str, file: &str| {
        let output = Command::new(BINARY)
            .current_dir(directory.path())
            .args(["backup", file])
            .env("SM_STORE", store)
            .output()
            .unwrap();
        assert!(!output.status.success());
        output_text(&output)
    };
    assert!(run("sqlite:missing.db", "copy.db").contains("no such file"));
    assert!(run("Server=db;Database=s;User Id=u;Password=p", "copy.db").contains("BACKUP DATABASE"));
    std::fs::write(directory.path().join("text.db"), "no database ".repeat(1000)).unwrap();
    assert!(run("sqlite:text.db", "copy.db").contains("not a SQLite file"));
    let migrated = Command::new(BINARY)
        .current_dir(directory.path())
        .args(["migrate", "--store", "sqlite:a.db"])
        .output()
        .unwrap();
    assert!(migrated.status.success());
    assert!(run("sqlite:a.db", "nowhere/copy.db").contains("cannot write nowhere/copy.db"));
    assert!(run("sqlite:a.db", "a.db").contains("exists already"));
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.db", "text.db"]);
}
