//! The conformance suite on SQLite, and what only SQLite can get wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::*;
use crate::core::contract::fixtures::{max_attempts, one_shot};
use crate::core::time::Timestamp;
use crate::store::Submitted;
use crate::store::conformance::{self, Fixture, Passing, new_intent, submit_to};

/// A fresh file with two stores on it, and a clock that moves only when told to: every transaction
/// of a case would have the same timestamp, were it not for the store's own clock.
async fn open() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    let micros = Arc::new(AtomicI64::new(1_790_000_000_000_000));
    let clock = {
        let micros = Arc::clone(&micros);
        WallClock::from_fn(move || Timestamp::from_micros(micros.load(Ordering::SeqCst)))
    };
    assert_eq!(SqliteStore::migrate(&path).unwrap(), migrate::MIGRATIONS.len());
    let pass = move |span: Duration| -> Passing {
        // A little more: transactions have moved the store's clock on by a microsecond each.
        let span = span + Duration::from_millis(1);
        micros.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
        Box::pin(async {})
    };
    Fixture {
        store: Arc::new(SqliteStore::open(&path, clock.clone()).unwrap()),
        other: Arc::new(SqliteStore::open(&path, clock).unwrap()),
        short: Duration::from_secs(1),
        pass: Box::new(pass),
        garble: {
            let path = path.clone();
            Box::new(move |seq| -> Passing {
                let garble = "UPDATE submission_contracts SET snapshot = '{\"gatewayType\":\"pigeon\"}'
                    WHERE contract_id = (SELECT contract_id FROM submission_intents WHERE intent_seq = ?1)";
                Connection::open(&path).unwrap().execute(garble, [seq.0]).unwrap();
                Box::pin(async {})
            })
        },
        spoil: Box::new(move |seq| -> Passing {
            let row = "INSERT INTO submission_attempts VALUES (?1, 1, 1, 0, 0, 'accepted', NULL, NULL, NULL)";
            Connection::open(&path).unwrap().execute(row, [seq.0]).unwrap();
            Box::pin(async {})
        }),
        keep: Box::new(directory),
    }
}

async fn open_case() -> Option<Fixture> {
    Some(open().await)
}

conformance::for_store!(open_case);

fn path_in(fixture: &Fixture) -> PathBuf {
    fixture.keep.downcast_ref::<tempfile::TempDir>().unwrap().path().join("test.db")
}

#[tokio::test]
async fn a_clock_that_jumps_back_does_not_turn_time_back() {
    let fixture = open().await;
    let first = fixture.submit("first", &one_shot()).await;
    let cursor = fixture.store.build_schedule(10).await.unwrap().cursor;
    let back = WallClock::from_fn(|| Timestamp::from_micros(1));
    let behind = SqliteStore::open(&path_in(&fixture), back).unwrap();
    let Submitted::Created(second) = submit_to(&behind, new_intent("second", &one_shot(), b"")).await else {
        panic!("not created");
    };
    assert!(second.created_at > first.created_at);
    assert!(fixture.refresh(&cursor, 10).await.changed.iter().any(|waiting| waiting.seq == second.seq));
}

#[tokio::test]
async fn commits_are_synced_and_survive_in_another_connection() {
    let fixture = open().await;
    fixture.submit("a", &one_shot()).await;
    let connection = Connection::open(path_in(&fixture)).unwrap();
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    let writer = connection::open_existing(&path_in(&fixture)).unwrap();
    let level: i64 = writer.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!(level, 2, "FULL");
}

#[tokio::test]
async fn the_hot_queries_use_their_indexes() {
    let fixture = open().await;
    fixture.submit("a", &max_attempts(2)).await;
    let connection = Connection::open(path_in(&fixture)).unwrap();
    for (sql, index) in [
        (
            "SELECT intent_seq FROM submission_intents WHERE contract_id = 1 AND status = 'pending'
             AND (next_attempt_at, intent_seq) >= (1, 1) ORDER BY next_attempt_at, intent_seq LIMIT 9",
            "submission_intents_pending (contract_id=? AND",
        ),
        (
            "SELECT intent_seq FROM submission_intents WHERE next_attempt_at IS NOT NULL
             AND (last_modified_at, intent_id) > (1, 'a') ORDER BY last_modified_at, intent_id LIMIT 9",
            "submission_intents_changed ((last_modified_at,intent_id)>",
        ),
        (
            "SELECT 1 FROM submission_intents WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL
             AND deadline_at <= 5 LIMIT 1",
            "submission_intents_deadline (deadline_at",
        ),
        (
            "SELECT intent_seq FROM submission_intents WHERE completed_at < 5 ORDER BY completed_at LIMIT 9",
            "submission_intents_completed (completed_at",
        ),
        (super::schedule::OPEN_ATTEMPTS, "submission_intents_pending (contract_id=? AND next_attempt_at=?"),
        (
            "SELECT 1 FROM submission_intents WHERE status = 'rejected' AND intent_seq < 9 ORDER BY intent_seq DESC",
            "submission_intents_rejected (status=? AND rowid<?",
        ),
    ] {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan: Result<Vec<String>, _> = explain.raw_query().mapped(|row| row.get("detail")).collect();
        let plan = plan.unwrap().join("; ");
        assert!(plan.contains(index), "{plan}");
    }
}

#[test]
fn several_processes_may_migrate_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/test.db");
    let runs: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || {
                SqliteStore::make_directory(&path).unwrap();
                SqliteStore::migrate(&path).unwrap()
            })
        })
        .collect();
    let run: usize = runs.into_iter().map(|run| run.join().unwrap()).sum();
    assert_eq!(run, migrate::MIGRATIONS.len(), "exactly one of them ran all migrations");
    assert_eq!(SqliteStore::migrate(&path).unwrap(), 0);
}

#[test]
fn unusable_files_are_refused_with_what_to_do_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("text.db"), "this is not a database, it is a shopping list\n".repeat(99)).unwrap();
    let foreign = Connection::open(at("foreign.db")).unwrap();
    foreign.execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    SqliteStore::migrate(&at("newer.db")).unwrap();
    Connection::open(at("newer.db")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    std::fs::write(at("file"), "").unwrap();
    for (name, remedy) in [
        ("text.db", "it is not a SQLite file"),
        ("foreign.db", "it belongs to another program"),
        ("newer.db", "start that one"),
        ("file/below.db", "name another one with SM_STORE"),
        ("mistyped/test.db", "create that directory (mkdir -p)"),
    ] {
        let path = at(name);
        let before = std::fs::read(&path).ok();
        let error = SqliteStore::migrate(&path).unwrap_err().to_string();
        assert!(error.contains(remedy) && error.contains(name), "{error}");
        assert_eq!(error.lines().count(), 1);
        assert_eq!(std::fs::read(&path).ok(), before, "{name} was changed");
    }
    assert!(!at("mistyped").exists(), "a directory was made");
    assert!(SqliteStore::could_be_made(&at("new/test.db")).is_ok());
    for name in ["mistyped/deeper/test.db", "file/below.db"] {
        for error in [SqliteStore::make_directory(&at(name)), SqliteStore::could_be_made(&at(name))] {
            assert!(error.unwrap_err().to_string().contains("mkdir -p"), "{name}");
        }
    }
    assert!(!at("mistyped").exists() && !at("new").exists(), "a directory was made");
    let missing = SqliteStore::open(&at("missing.db"), WallClock::system()).err().unwrap().to_string();
    assert!(missing.contains("migrate"), "{missing}");
}

#[tokio::test]
async fn the_log_is_copied_into_the_file_beside_the_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    SqliteStore::migrate(&path).unwrap();
    let store = SqliteStore::open(&path, WallClock::system()).unwrap();
    let length = || std::fs::metadata(&path).unwrap().len();
    let before = length();
    for n in 0..300 {
        submit_to(&store, new_intent(&format!("{n}"), &max_attempts(1), &[b'x'; 8192])).await;
    }
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    let copied = async {
        while length() < before + 30 * 8192 {
            pace.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), copied).await.expect("far below what the writer would wait for");
}

#[tokio::test]
async fn a_node_that_answered_before_its_probe_refuses_nobody() {
    use super::jobs::{reach, take_probe};
    use crate::core::node::REST_BEFORE_PROBE;
    let fixture = open().await;
    let gateway = one_shot().gateway_url;
    fixture.submit("a", &one_shot()).await;
    let mut connection = Connection::open(path_in(&fixture)).unwrap();
    let clock = WallClock::from_fn(|| Timestamp::from_micros(1_790_000_000_000_000));
    let gone = "INSERT INTO submission_gateway_reach (gateway_id, unreachable, tried_at)
        SELECT gateway_id, 5, ?1 FROM submission_gateways";
    let long_ago = clock.now().micros() - i64::try_from(REST_BEFORE_PROBE.as_micros()).unwrap();
    connection.execute(gone, [long_ago]).unwrap();
    assert!(matches!(reach(&connection, &clock, &gateway).unwrap(), Reach::GoneForLong));
    // Another job's attempt is answered between the look and the probe.
    connection.execute("DELETE FROM submission_gateway_reach", []).unwrap();
    for _ in 0..2 {
        assert!(take_probe(&mut connection, &clock, &gateway).unwrap(), "it answers, so anybody may");
    }
    connection.execute(gone, [long_ago]).unwrap();
    assert!(take_probe(&mut connection, &clock, &gateway).unwrap(), "one may try");
    assert!(!take_probe(&mut connection, &clock, &gateway).unwrap(), "and no more than one");
}
