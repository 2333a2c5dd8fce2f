//! The conformance suite on SQLite, and tests of what is specific to SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::*;
use crate::domain::contract::fixtures::{max_attempts, one_shot, with_webhook};
use crate::domain::time::Timestamp;
use crate::store::conformance::{self, Fixture, Passing, new_intent, submit_to};
use crate::store::{FencedWrites, FinishResult, Submitted};

/// Opens two stores on a new file, with a host clock that moves only when a case lets time pass. So only the store's own clock
/// gives the transactions of a case different timestamps.
async fn open() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    let micros = Arc::new(AtomicI64::new(1_790_000_000_000_000));
    let clock = {
        let micros = Arc::clone(&micros);
        WallClock::from_fn(move || Timestamp::from_micros(micros.load(Ordering::SeqCst)))
    };
    assert_eq!(SqliteStore::migrate(&path).unwrap(), migrate::MIGRATIONS.len());
    let pass = move |duration: Duration| -> Passing {
        // A little more, because each transaction has advanced the store's clock by a microsecond.
        let duration = duration + Duration::from_millis(1);
        micros.fetch_add(i64::try_from(duration.as_micros()).unwrap(), Ordering::SeqCst);
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

/// The audit row and the update of the intent are one transaction. Here the update fails, and the audit row must not exist
/// either, whichever of the two is written first.
#[tokio::test]
async fn an_attempt_whose_update_fails_has_no_audit_row() {
    let fixture = open().await;
    let term = fixture.lead("me").await;
    let attempt = fixture.start_due(&term, &fixture.submit("a", &one_shot()).await).await;
    let connection = Connection::open(path_in(&fixture)).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON submission_intents WHEN new.completed_at IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'refused by the test'); END";
    connection.execute_batch(refuse).unwrap();
    let finishes = vec![conformance::finished(&attempt, conformance::accepted(), fixture.now().await)];
    let results = fixture.fenced(FencedWrites { finishes, ..conformance::writes(&term) }).await.unwrap();
    assert!(results.finishes[0].is_err(), "the update was not refused");
    let history = fixture.history("a").await;
    assert!(history.attempts.is_empty() && history.intent.attempt_open, "{history:?}");

    connection.execute_batch("DROP TRIGGER refuse").unwrap();
    let recorded = fixture.finish(&term, &attempt, conformance::accepted()).await;
    assert_eq!((recorded, fixture.history("a").await.attempts.len()), (Some(FinishResult::Recorded), 1));
}

#[tokio::test]
async fn the_store_clock_never_goes_back_when_the_host_clock_does() {
    let fixture = open().await;
    let first = fixture.submit("first", &one_shot()).await;
    let cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    let old_clock = WallClock::from_fn(|| Timestamp::from_micros(1));
    let with_old_clock = SqliteStore::open(&path_in(&fixture), old_clock).unwrap();
    let Submitted::Created(second) = submit_to(&with_old_clock, new_intent("second", &one_shot(), b"")).await else {
        panic!("not created");
    };
    assert!(second.created_at > first.created_at);
    assert!(fixture.refresh(&cursor, 10).await.changed.iter().any(|waiting| waiting.seq == second.seq));
}

#[tokio::test]
async fn leases_still_expire_after_the_host_clock_jumped_ahead_and_back() {
    const HOUR: i64 = 3_600_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    SqliteStore::migrate(&path).unwrap();
    let host = Arc::new(AtomicI64::new(1_790_000_000_000_000));
    let clock = {
        let host = Arc::clone(&host);
        WallClock::from_fn(move || Timestamp::from_micros(host.load(Ordering::SeqCst)))
    };
    let store = SqliteStore::open(&path, clock).unwrap();
    let pass = |micros: i64| host.fetch_add(micros, Ordering::SeqCst);
    pass(HOUR);
    let lease = Duration::from_secs(15);
    let dead = conformance::acquire_from(&store, "lease", "dead", lease).await.unwrap();
    pass(-HOUR);
    let state = store.lease_state().await.unwrap();
    assert!(state.clock_ahead >= Duration::from_secs(3599), "{state:?}");
    assert_eq!(conformance::acquire_from(&store, "lease", "next", lease).await, None, "it is held");
    // Fifteen seconds of a clock that runs at three quarters of its speed are twenty.
    pass(19_000_000);
    assert_eq!(conformance::acquire_from(&store, "lease", "next", lease).await, None);
    pass(2_000_000);
    let next = conformance::acquire_from(&store, "lease", "next", lease).await.expect("the lease has expired");
    assert!(next.now > dead.now && next.term.epoch == 2);
    // Many transactions, each a moment after the other, do not stop the clock.
    for _ in 0..1000 {
        pass(1_000);
        store.probe(1).await.unwrap();
    }
    let later = store.lease_state().await.unwrap().now;
    let went = later.since(next.now);
    assert!(went >= Duration::from_millis(749) && went <= Duration::from_millis(1000), "{went:?}");
    // Four hours later the host's clock has caught up and is used again.
    pass(4 * HOUR);
    store.probe(1).await.unwrap();
    let state = store.lease_state().await.unwrap();
    assert_eq!((state.clock_ahead, state.now.micros()), (Duration::ZERO, host.load(Ordering::SeqCst)));
}

/// Makes every write of one kind to a table fail, in every transaction, until it is dropped.
struct FailingWrites(Connection);

impl FailingWrites {
    fn on(fixture: &Fixture, write: &str) -> Self {
        let connection = Connection::open(path_in(fixture)).unwrap();
        let trigger = format!("CREATE TRIGGER failing_write BEFORE {write} BEGIN SELECT RAISE(ABORT, 'as told'); END");
        connection.execute_batch(&trigger).unwrap();
        Self(connection)
    }
}

impl Drop for FailingWrites {
    fn drop(&mut self) {
        self.0.execute_batch("DROP TRIGGER failing_write").unwrap();
    }
}

#[tokio::test]
async fn a_finish_takes_effect_as_a_whole_or_not_at_all() {
    let fixture = open().await;
    let term = fixture.lead("me").await;
    let contract = with_webhook("http://here.test/events", one_shot());
    for (number, write) in [
        "UPDATE ON submission_intents",
        "INSERT ON submission_attempts",
        "INSERT ON submission_webhook_events",
        "INSERT ON submission_gateway_messages",
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("intent-{number}");
        let attempt = fixture.start_due(&term, &fixture.submit(&id, &contract).await).await;
        let before = fixture.history(&id).await;
        let failing = FailingWrites::on(&fixture, write);
        let finishes = vec![conformance::finished(&attempt, conformance::accepted(), fixture.now().await)];
        let receipt = fixture.fenced(FencedWrites { finishes, ..conformance::writes(&term) }).await.unwrap();
        assert!(receipt.finishes[0].is_err(), "{write}");
        drop(failing);
        assert!(before.attempts.is_empty() && before.intent.attempt_open && before.webhook.is_none());
        assert_eq!(fixture.history(&id).await, before, "{write} failed");
        assert_eq!(fixture.finish(&term, &attempt, conformance::accepted()).await, Some(FinishResult::Recorded));
        let after = fixture.history(&id).await;
        assert_eq!((after.attempts.len(), after.webhook.is_some()), (1, true), "{write} works again");
    }
}

#[tokio::test]
async fn a_pending_intent_either_waits_or_has_an_open_attempt() {
    let fixture = open().await;
    fixture.submit("a", &one_shot()).await;
    let connection = Connection::open(path_in(&fixture)).unwrap();
    for (status, completed, next_attempt, open_epoch, allowed) in [
        ("pending", "NULL", "1", "NULL", true),
        ("pending", "NULL", "NULL", "1", true),
        ("pending", "NULL", "NULL", "NULL", false),
        ("pending", "NULL", "1", "1", false),
        ("accepted", "1", "NULL", "NULL", true),
        ("accepted", "1", "1", "NULL", false),
        ("accepted", "1", "NULL", "1", false),
        ("accepted", "NULL", "NULL", "NULL", false),
        ("pending", "1", "1", "NULL", false),
    ] {
        let row = format!(
            "UPDATE submission_intents SET status = '{status}', completed_at = {completed},
                 next_attempt_at = {next_attempt}, open_lease_epoch = {open_epoch}"
        );
        assert_eq!(connection.execute(&row, []).is_ok(), allowed, "{row}");
    }
}

#[tokio::test]
async fn a_panic_in_a_read_loses_no_connection() {
    let fixture = open().await;
    let store = SqliteStore::open(&path_in(&fixture), WallClock::system()).unwrap();
    for _ in 0..2 * READERS {
        let reserved = store.read_reserved(|connection, _| -> Result<(), rusqlite::Error> {
            let _open = connection.transaction()?;
            panic!("on purpose");
        });
        assert!(matches!(reserved.await, Err(StoreError::Unavailable(_))));
        let read = store.read(|_, _| -> Result<(), rusqlite::Error> { panic!("on purpose") });
        assert!(matches!(read.await, Err(StoreError::Unavailable(_))));
    }
    assert!(store.backlog().await.is_ok(), "a reserved connection");
    assert!(store.overview().await.is_ok(), "a connection for clients");
}

#[tokio::test]
async fn a_read_whose_caller_stops_waiting_loses_no_connection() {
    let fixture = open().await;
    let store = SqliteStore::open(&path_in(&fixture), WallClock::system()).unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    for _ in 0..READERS {
        let released = Arc::clone(&released);
        let slow = store.read(move |_, _| {
            let _or_dropped = released.lock().unwrap().recv();
            Ok(())
        });
        let given_up = tokio::time::timeout(Duration::from_millis(20), slow).await;
        assert!(given_up.is_err(), "it timed out");
    }
    drop(release);
    assert!(store.overview().await.is_ok());
}

#[tokio::test]
async fn damage_is_found_and_an_intact_store_passes() {
    let fixture = open().await;
    for n in 0..200 {
        fixture.submit(&format!("{n}"), &one_shot()).await;
    }
    let path = path_in(&fixture);
    let minute = Duration::from_secs(60);
    assert_eq!(integrity::quick_check(&path, minute).unwrap(), integrity::Examined::All);
    let whole = Connection::open(&path).unwrap();
    whole.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let copy = path.with_file_name("damaged.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let root: i64 = whole
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'submission_attempts'", [], |row| row.get(0))
        .unwrap();
    let root = usize::try_from(root).unwrap();
    bytes[(root - 1) * 4096..root * 4096].fill(0xff);
    std::fs::write(&copy, bytes).unwrap();
    let refused = integrity::quick_check(&copy, minute).unwrap_err().to_string();
    assert!(refused.contains("damaged") && refused.contains("restore a backup"), "{refused}");
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
async fn frequent_queries_use_their_indexes() {
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
            "SELECT intent_seq FROM submission_intents WHERE completed_at IS NOT NULL
             AND (last_modified_at, intent_seq) > (5, 5) ORDER BY last_modified_at, intent_seq LIMIT 9",
            "submission_intents_ended (last_modified_at>?)",
        ),
        (super::schedule::OPEN_ATTEMPTS, "submission_intents_pending (contract_id=? AND next_attempt_at=?"),
        (super::schedule::WAITING, "SCAN submission_intents USING COVERING INDEX submission_intents_pending"),
        (
            "SELECT 1 FROM submission_intents WHERE status = 'rejected' AND intent_seq < 9 ORDER BY intent_seq DESC",
            "submission_intents_rejected (status=? AND rowid<?",
        ),
        (super::redrives::OUTCOMES, "submission_intent_options_redrive (redrive_id=?)"),
        (messages::BUCKETS, "SEARCH submission_gateway_messages USING PRIMARY KEY"),
        (super::redrives::work::NEXT, "PRIMARY KEY (redrive_seq=? AND target_number=?)"),
    ] {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan: Result<Vec<String>, _> = explain.raw_query().mapped(|row| row.get("detail")).collect();
        let plan = plan.unwrap().join("; ");
        assert!(plan.contains(index), "{plan}");
    }
}

/// A foreign key of the schema.
struct Reference {
    table: String,
    column: String,
    parent: String,
}

fn references(connection: &Connection) -> Vec<Reference> {
    let sql = "SELECT t.name, f.\"from\", f.\"table\" FROM sqlite_schema t, pragma_foreign_key_list(t.name) f
        WHERE t.type = 'table' ORDER BY 1, 2";
    let mut statement = connection.prepare(sql).unwrap();
    let references =
        statement.query_map([], |row| Ok(Reference { table: row.get(0)?, column: row.get(1)?, parent: row.get(2)? }));
    references.unwrap().collect::<Result<_, _>>().unwrap()
}

/// Whether rows of `table` are found by `column` without a scan: the primary key, or an index over all rows, starts with it.
fn is_found_by(connection: &Connection, table: &str, column: &str) -> bool {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) l, pragma_index_info(l.name) c
            WHERE NOT l.partial AND c.seqno = 0 AND c.name = ?2)
        OR EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE pk = 1 AND name = ?2)";
    connection.query_row(sql, [table, column], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn no_deletion_scans_a_table_for_rows_that_refer_to_it() {
    let fixture = open().await;
    let connection = Connection::open(path_in(&fixture)).unwrap();
    let all = references(&connection);
    assert!(all.len() >= 10, "the schema has foreign keys");
    let deletions: Vec<&str> = purge::DELETIONS.to_vec();
    let is_deleted_from = |table: &str| deletions.iter().any(|sql| sql.contains(&format!("DELETE FROM {table} ")));
    assert!(is_deleted_from("submission_intents") && is_deleted_from("submission_webhook_events"));
    for Reference { table, column, parent } in all.iter().filter(|reference| is_deleted_from(&reference.parent)) {
        assert!(is_found_by(&connection, table, column), "{table}.{column} refers to {parent} and has no index");
    }
    // Rows of the other parents are never deleted. If that changes, the references to them need indexes.
    let kept = ["submission_contracts", "submission_gateways", "submission_webhook_receivers"];
    for Reference { table, column, parent } in all {
        let fine =
            is_deleted_from(&parent) || kept.contains(&parent.as_str()) || is_found_by(&connection, &table, &column);
        assert!(fine, "{table}.{column} refers to {parent} and has no index");
    }
    for sql in purge::DELETIONS.into_iter().chain([purge::OLD, messages::DELETE]) {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan: Result<Vec<String>, _> = explain.raw_query().mapped(|row| row.get("detail")).collect();
        let plan = plan.unwrap().join("; ");
        assert!(!plan.replace("SCAN json_each", "").contains("SCAN") && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
}

#[tokio::test]
async fn a_migration_removes_the_foreign_key_without_an_index() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    let old = Connection::open(&path).unwrap();
    for migration in &migrate::MIGRATIONS[..8] {
        old.execute_batch(migration).unwrap();
    }
    old.execute_batch("PRAGMA application_id = 0x534d4752; PRAGMA user_version = 8; PRAGMA journal_mode = WAL")
        .unwrap();
    let refers = |connection: &Connection| {
        references(connection).iter().any(|reference| reference.table == "submission_gateway_messages")
    };
    assert!(refers(&old));
    SqliteStore::migrate(&path).unwrap();
    assert!(!refers(&old), "connections that were open before see it too");
    let sound: String = old.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[tokio::test]
async fn a_purge_ends_after_its_time_limit_and_continues_with_the_next_call() {
    let fixture = open().await;
    let term = fixture.lead("me").await;
    for n in 0..purge::CHUNK * 2 + 1 {
        let intent = fixture.submit(&format!("{n}"), &one_shot()).await;
        fixture.attempt(&term, &intent, conformance::accepted()).await;
    }
    fixture.pass(2 * fixture.short).await;
    let mut connection = connection::open_existing(&path_in(&fixture)).unwrap();
    let request = |after| PurgeRequest { older_than: Duration::ZERO, after, limit: 100 };
    let mut purge = |after| {
        let clock = WallClock::from_fn(|| Timestamp::from_micros(1_790_000_100_000_000));
        purge::run(&mut connection, &clock, &term, &request(after), Duration::ZERO).unwrap()
    };
    let Purged { intents, next, .. } = purge(None).expect("the term holds the lease");
    assert_eq!(intents, purge::CHUNK, "even without any time it deletes one chunk");
    let Purged { intents, next: further, .. } = purge(next).expect("the term holds the lease");
    assert!(intents == purge::CHUNK && further.is_some() && further != next);
    let level: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!(level, 2, "commits that follow are synced again");
}

#[test]
fn several_processes_may_migrate_at_the_same_time() {
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
fn unusable_files_are_refused_with_a_remedy_and_not_changed() {
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
        ("newer.db", "use that version"),
        ("file/below.db", "set SM_STORE to another path"),
        ("mistyped/test.db", "create that directory (mkdir -p)"),
    ] {
        let path = at(name);
        let before = std::fs::read(&path).ok();
        let error = SqliteStore::migrate(&path).unwrap_err().to_string();
        assert!(error.contains(remedy) && error.contains(name), "{error}");
        assert_eq!(error.lines().count(), 1);
        assert_eq!(std::fs::read(&path).ok(), before, "{name} was changed");
    }
    assert!(!at("mistyped").exists(), "a directory was created");
    assert!(SqliteStore::could_be_made(&at("new/test.db")).is_ok());
    for name in ["mistyped/deeper/test.db", "file/below.db"] {
        for error in [SqliteStore::make_directory(&at(name)), SqliteStore::could_be_made(&at(name))] {
            assert!(error.unwrap_err().to_string().contains("mkdir -p"), "{name}");
        }
    }
    assert!(!at("mistyped").exists() && !at("new").exists(), "a directory was created");
    let missing = SqliteStore::open(&at("missing.db"), WallClock::system()).err().unwrap().to_string();
    assert!(missing.contains("migrate"), "{missing}");
}

#[tokio::test]
async fn the_log_is_copied_into_the_file_in_the_background() {
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
    tokio::time::timeout(Duration::from_secs(60), copied).await.expect("copied long before the writer would do it");
}

#[tokio::test]
async fn a_node_that_answered_before_its_probe_gets_all_jobs() {
    use super::jobs::{reach, take_probe};
    use crate::domain::node::PROBE_INTERVAL;
    let fixture = open().await;
    let gateway = one_shot().gateway_url;
    fixture.submit("a", &one_shot()).await;
    let mut connection = Connection::open(path_in(&fixture)).unwrap();
    let clock = WallClock::from_fn(|| Timestamp::from_micros(1_790_000_000_000_000));
    let gone = "INSERT INTO submission_gateway_reach (gateway_id, unreachable, tried_at)
        SELECT gateway_id, 5, ?1 FROM submission_gateways";
    let long_ago = clock.now().micros() - i64::try_from(PROBE_INTERVAL.as_micros()).unwrap();
    connection.execute(gone, [long_ago]).unwrap();
    assert!(matches!(reach(&connection, &clock, &gateway).unwrap(), Reach::GoneForLong));
    // The attempt of another job is answered between `reach` and `take_probe`.
    connection.execute("DELETE FROM submission_gateway_reach", []).unwrap();
    for _ in 0..2 {
        assert!(take_probe(&mut connection, &clock, &gateway).unwrap(), "it answers, so every job may");
    }
    connection.execute(gone, [long_ago]).unwrap();
    assert!(take_probe(&mut connection, &clock, &gateway).unwrap(), "one job may try");
    assert!(!take_probe(&mut connection, &clock, &gateway).unwrap(), "only one job may try");
}
