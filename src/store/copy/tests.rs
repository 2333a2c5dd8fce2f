//! Copies between SQLite files, and what the tests of the SQL Server store share with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rusqlite::Connection;

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::ContractSnapshot;
use crate::domain::contract::fixtures::one_shot;
use crate::platform::clock::WallClock;
use crate::platform::errors::full_text;
use crate::store::LeaseStore;
use crate::store::sqlite::SqliteStore;

/// Tables that a copy leaves out, and why.
const LEFT_OUT: [(&str, &str); 11] = [
    ("submission_payloads", "the payload is a column of the intents"),
    ("submission_target_pause_notes", "its columns are those of the pauses"),
    ("submission_gateway_messages", "each store makes its index of message ids from the attempts"),
    ("submission_manager_leases", "the lease of the target only gets a higher epoch"),
    ("submission_clock", "the clock of the target is advanced"),
    ("submission_clock_pace", "it is about the clock of the source's host"),
    ("submission_numbers", "the numbers of the target are advanced"),
    ("submission_instances", "instances of the target report themselves"),
    ("submission_gateway_holds", "the leader of the target reports them"),
    ("submission_probes", "it holds what readiness checks write"),
    ("submission_schema_versions", "migrations of the target write it"),
];
/// Columns that a copy leaves out, and why.
const LEFT_OUT_COLUMNS: [(&str, &str, &str); 7] = [
    ("submission_gateways", "url_sha256", "it is made from the URL"),
    ("submission_contracts", "snapshot_sha256", "it is made from the snapshot"),
    ("submission_contracts", "attempt_limit", "it is not used any more"),
    ("submission_webhook_receivers", "origin_sha256", "it is made from the origin"),
    ("submission_intents", "payload", "in SQLite it is in a table of its own"),
    ("submission_target_pauses", "paused_by", "in SQLite it is in a table of its own"),
    ("submission_target_pauses", "reason", "in SQLite it is in a table of its own"),
];

/// Fails if a schema has a table or a column that the list does not know, or the other way round.
pub(in crate::store) fn assert_all_listed(schema: &BTreeMap<String, BTreeSet<String>>) {
    for (name, columns) in schema {
        if LEFT_OUT.iter().any(|(left_out, _)| left_out == name) {
            continue;
        }
        let table = TABLES.iter().find(|table| table.name == name);
        let table = table.unwrap_or_else(|| panic!("{name} is not copied: add it to TABLES, or to LEFT_OUT"));
        let is_known = |column: &str| {
            LEFT_OUT_COLUMNS.iter().any(|(of, left_out, _)| of == name && *left_out == column) || column == "only_row"
        };
        let listed: BTreeSet<_> =
            table.columns.iter().map(|column| column.name).filter(|name| !is_known(name)).collect();
        let exist: BTreeSet<_> = columns.iter().map(String::as_str).filter(|name| !is_known(name)).collect();
        assert_eq!(listed, exist, "columns of {name}");
    }
    for table in &TABLES {
        assert!(schema.contains_key(table.name), "there is no table {}", table.name);
    }
}

#[test]
fn every_table_and_column_of_sqlite_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let connection = empty(&folder.path().join("a.db"));
    let mut statement = connection
        .prepare("SELECT t.name, c.name FROM pragma_table_list AS t JOIN pragma_table_info(t.name) AS c WHERE t.name NOT LIKE 'sqlite%'")
        .unwrap();
    let mut schema: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap() {
        let (table, column) = row.unwrap();
        schema.entry(table).or_default().insert(column);
    }
    assert_all_listed(&schema);
}

fn empty(path: &Path) -> Connection {
    SqliteStore::migrate(path).unwrap();
    Connection::open(path).unwrap()
}

/// Intents that are copied in several batches.
const MANY: usize = 3 * side::BATCH_ROWS;
/// Message ids of gateways that can be searched for.
const SEARCHABLE: i64 = 3 * 1000 - 3;
/// The epoch of the last term of the source.
const SOURCE_EPOCH: i64 = 41;

/// Makes a store with rows in every table and with texts and bytes of every kind.
pub(in crate::store) fn filled_source(path: &Path) -> StoreChoice {
    let connection = empty(path);
    let controls: String = (1..0xA0_u32).filter_map(char::from_u32).filter(|c| c.is_control()).collect();
    let odd = format!("~ ~0 ~1~A \" \\ ' % _ {{}} [] äöü 𝄞 日本 {controls} ends with blanks  ");
    let odd = odd.replace('\'', "''");
    let rows = format!(
        "
INSERT INTO submission_gateways VALUES (1, 'http://gateway.test'), (7, 'http://node.test/{odd}');
INSERT INTO submission_contracts VALUES (1, 1, 'once', '{snapshot}'), (5, 7, 'node', '{odd}');
INSERT INTO submission_webhook_receivers VALUES (3, 'http://hook.test');
INSERT INTO submission_contract_receivers VALUES (1, 3);
INSERT INTO submission_contract_uses VALUES (1, 1790000000000007);
INSERT INTO submission_fleet_minutes VALUES (29833333, 3, 4), (29833334, 5, NULL);
INSERT INTO submission_audit_log VALUES (1, 1790000000000008, 'console', 'ann', '127.0.0.1', 'pause_target', '{odd}',
    '{odd}', zeroblob(32), randomblob(32)), (2, 9, 'service', '', '', 'purge_audit_log', 'log', '{{}}',
    randomblob(32), randomblob(32));
UPDATE submission_audit_head SET last_id = 2, last_hash = randomblob(32);
INSERT INTO submission_terms VALUES (40, 'an instance', 1790000000000003), ({SOURCE_EPOCH}, '{odd}', 4);
INSERT INTO submission_gateway_reach VALUES (7, 2, 1790000000000001);
INSERT INTO submission_target_pauses VALUES ('sms.realtime', 1790000000000002), ('𝄞', 5), ('\u{FFFD}', 5);
INSERT INTO submission_target_pause_notes VALUES ('sms.realtime', 1790000000000002, 'ops', '{odd}'), ('𝄞', 5, 'ops', NULL);
INSERT INTO submission_minutes VALUES (29833333, 1, 'accepted', '', 'accepted', 3, 5),
    (29833333, 1, 'error', 'timeout 𝄞', 'pending', 3, 5), (29833333, 1, 'error', 'timeout \u{FFFD}', 'pending', 3, 5);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})
INSERT INTO submission_intents SELECT i, 'id-' || i, 1, 1, randomblob(32), 'accepted', 1, NULL, NULL, NULL, NULL,
    1790000000000000 + i, 1790000000000100 + i, NULL, NULL, 1790000000001000 + i FROM n;
UPDATE submission_intents SET intent_id = '{odd}' WHERE intent_seq = 1;
UPDATE submission_intents SET status = 'rejected', rejected_reason = 'invalid_recipient' WHERE intent_seq = 2;
UPDATE submission_intents SET status = 'exhausted', exhausted_reason = 'one_shot' WHERE intent_seq = 3;
UPDATE submission_intents SET status = 'pending', completed_at = NULL, next_attempt_at = 1790000000000005,
    deadline_at = 1890000000000000 WHERE intent_seq = 4;
UPDATE submission_intents SET status = 'pending', completed_at = NULL, open_lease_epoch = {SOURCE_EPOCH},
    open_started_at = 1790000000000006 WHERE intent_seq = 5;
INSERT INTO submission_intents SELECT -intent_seq, 'job-' || intent_seq, 5, 7, payload_sha256, status, attempt_count,
    next_attempt_at, deadline_at, open_lease_epoch, open_started_at, created_at, completed_at, rejected_reason,
    exhausted_reason, last_modified_at + 100000 FROM submission_intents WHERE intent_seq BETWEEN 10 AND 12;
INSERT INTO submission_payloads SELECT intent_seq, randomblob(abs(intent_seq) % 50) FROM submission_intents;
UPDATE submission_payloads SET payload = randomblob(5000000) WHERE intent_seq IN (20, 21);
INSERT INTO submission_intent_options VALUES (4, 1790000000000003, NULL, NULL, NULL, NULL),
    (5, NULL, 1790000000000004, 'id-9', '0189', 'id-8');
INSERT INTO submission_jobs VALUES (-10, randomblob(32), '0190', 'acme', 'w', 'j', 'key {odd}', 'node-a', 1790000000000010);
INSERT INTO submission_traces VALUES (6, '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01');
INSERT INTO submission_attempts SELECT intent_seq, 1, {SOURCE_EPOCH}, created_at, completed_at, 'accepted', NULL, NULL,
    'message ' || intent_seq FROM submission_intents WHERE status = 'accepted';
INSERT INTO submission_attempts VALUES (2, 1, 1, 5, 6, 'rejected', 'invalid_recipient', NULL, 'message \"{odd}'),
    (2, 2, 1, 5, 6, NULL, NULL, '{odd}', NULL), (3, 1, 1, 5, 6, 'rejected', 'r', NULL, '{long}');
INSERT INTO submission_webhook_events VALUES (1, 3, 'pending', 7, 0, 1, 8, NULL, NULL), (2, 3, 'delivered', 7, 0, 1, NULL, NULL, NULL);
INSERT INTO submission_webhook_tries VALUES (1, 1, 1, 5, 6, 500, NULL), (2, 1, 1, 5, 6, NULL, '{odd}');
INSERT INTO submission_redrives VALUES (2, '0189', 'running', 5, 6, NULL, '{{}}', 0, '{odd}', 10, 3, 1, 0, '{{}}', NULL);
INSERT INTO submission_redrive_items VALUES (2, 0, 0, 2), (2, 0, 1, 3), (2, 1, 0, 1);
INSERT INTO inbox_contacts VALUES (4, 'acme', 'a@example.com', NULL, '{odd}', 5), (5, 'acme', NULL, '+46700000001', NULL, 5);
INSERT INTO inbox_submissions VALUES (8, '0191', 'acme', 'form', X'00FF7B7D', 'http://x.test', randomblob(32),
    randomblob(32), 5, 6, 0, NULL, NULL, 9), (9, '0192', 'acme', 'email', X'', NULL, NULL, randomblob(32), 5, NULL, 2, '{odd}', 7, NULL);
INSERT INTO inbox_forms VALUES (8);
INSERT INTO inbox_messages VALUES (9, 8, 'acme', 4, 'form', 'Hello,\n\n{odd}', 'http://x.test', 6);
UPDATE submission_feed_start SET ended_at = 1780000000000000, intent_seq = 3;
UPDATE submission_numbers SET highest = 5000000, lowest = -13;
UPDATE submission_clock SET last_at = 1790000000900000;
INSERT INTO submission_manager_leases VALUES ('lease', 'somebody', {SOURCE_EPOCH}, 5, 6, 7);",
        long = "x".repeat(500),
        snapshot = ContractSnapshot::of(one_shot()).unwrap().json,
    );
    connection.execute_batch(&rows).unwrap();
    for table in &TABLES {
        let sql = format!("SELECT count(*) FROM {}", table.name);
        let rows: i64 = connection.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert!(rows > 0, "{} is empty, so the test does not show that it is copied", table.name);
    }
    StoreChoice::Sqlite(path.to_owned())
}

pub(in crate::store) async fn copy(from: &StoreChoice, to: &StoreChoice) -> Result<(), CopyError> {
    run(from, to, &Arc::new(Metrics::new().unwrap()), |_| {}).await
}

/// Starts a copy and drops it when it has written this many rows of intents, as if the process had been killed.
pub(in crate::store) async fn interrupted_copy(from: &StoreChoice, to: &StoreChoice, rows_of_intents: usize) {
    let reached = tokio::sync::Notify::new();
    let metrics = Arc::new(Metrics::new().unwrap());
    let progress = |progress| {
        if let Progress::Copied { table: "submission_intents", rows, .. } = progress
            && rows >= u64::try_from(rows_of_intents).unwrap()
        {
            reached.notify_one();
        }
    };
    tokio::select! {
        biased;
        () = reached.notified() => {}
        result = run(from, to, &metrics, progress) => panic!("it was not interrupted: {result:?}"),
    }
}

/// Two stores and a folder for them.
struct Pair {
    folder: tempfile::TempDir,
    from: StoreChoice,
    to: StoreChoice,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = filled_source(&folder.path().join("from.db"));
        let to = StoreChoice::Sqlite(folder.path().join("to.db"));
        Self { folder, from, to }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn store(&self, name: &str) -> SqliteStore {
        SqliteStore::open(&self.path(name), WallClock::system()).unwrap()
    }

    async fn copy(&self) -> Result<(), CopyError> {
        copy(&self.from, &self.to).await
    }

    /// Asserts that all tables but those of the lease and the clock have the same rows in both files.
    fn assert_equal(&self) {
        let connection = Connection::open(self.path("to.db")).unwrap();
        connection.execute("ATTACH ?1 AS source", [self.path("from.db").to_str()]).unwrap();
        let both = "SELECT name FROM source.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
        let names: Vec<String> =
            connection.prepare(both).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert!(names.len() > TABLES.len());
        for name in names {
            let only_in = |one: &str, other: &str| -> i64 {
                let sql =
                    format!("SELECT count(*) FROM (SELECT * FROM {one}.{name} EXCEPT SELECT * FROM {other}.{name})");
                connection.query_row(&sql, [], |row| row.get(0)).unwrap()
            };
            let is_of_store = [
                "submission_clock",
                "submission_clock_pace",
                "submission_manager_leases",
                "submission_gateway_messages",
            ]
            .contains(&name.as_str());
            assert!(is_of_store || (only_in("source", "main"), only_in("main", "source")) == (0, 0), "{name} differs");
        }
        let indexed = "SELECT count(*) FROM main.submission_gateway_messages";
        assert_eq!(
            connection.query_row(indexed, [], |row| row.get(0)),
            Ok(SEARCHABLE),
            "the ids of jobs and long ids are not"
        );
        let clock = "SELECT (SELECT last_at FROM main.submission_clock) >= 1790000000900000";
        assert!(connection.query_row(clock, [], |row| row.get::<_, bool>(0)).unwrap());
    }
}

/// The epoch of a new term of an instance; `None` if it cannot lead.
async fn next_epoch(store: &dyn LeaseStore) -> Option<i64> {
    let lease = store.acquire_lease("lease".into(), "me".into(), Duration::from_secs(600)).await.unwrap();
    lease.map(|lease| lease.term.epoch)
}

#[tokio::test]
async fn everything_is_copied_and_only_the_target_can_be_used() {
    let pair = Pair::new();
    let steps = Mutex::new(Vec::new());
    run(&pair.from, &pair.to, &Arc::new(Metrics::new().unwrap()), |step| steps.lock().unwrap().push(step))
        .await
        .unwrap();
    pair.assert_equal();
    assert!(next_epoch(&pair.store("to.db")).await.unwrap() > SOURCE_EPOCH + 1, "also above the lease of the copy");
    let source = pair.store("from.db");
    assert_eq!(next_epoch(&source).await, None, "an instance that is started on the source must not send");
    let lease = source.lease_state().await.unwrap().lease.unwrap();
    assert!(
        source.reset_lease(lease.epoch, lease.renewed_at, somebody()).await.unwrap(),
        "an operator can go back to it"
    );
    assert!(next_epoch(&source).await.is_some());

    let steps = steps.into_inner().unwrap();
    let verified = steps.iter().filter(|step| matches!(step, Progress::Verified { .. })).count();
    assert_eq!(verified, TABLES.len());
    let of_intents = |step: &&Progress| matches!(step, Progress::Copied { table: "submission_intents", .. });
    let batches = steps.iter().filter(of_intents).count();
    assert!(batches > 4, "full batches of small rows, and large rows alone: {batches}");
}

#[tokio::test]
async fn an_interrupted_copy_continues() {
    let pair = Pair::new();
    interrupted_copy(&pair.from, &pair.to, MANY / 2).await;
    assert_eq!(next_epoch(&pair.store("to.db")).await, None, "no instance uses half a copy");
    let steps = Mutex::new(Vec::new());
    run(&pair.from, &pair.to, &Arc::new(Metrics::new().unwrap()), |step| steps.lock().unwrap().push(step))
        .await
        .unwrap();
    pair.assert_equal();
    // How far the first run came depends on how fast the disk was.
    let least = u64::try_from(MANY / 2).unwrap();
    for step in steps.into_inner().unwrap() {
        if let Progress::Copied { table, rows, .. } = step {
            assert!(table != "submission_gateways", "the first table was complete");
            assert!(table != "submission_intents" || rows > least, "{rows} rows were there already");
        }
    }
    let again = pair.copy().await.unwrap_err().to_string();
    assert!(again.contains("to.db is not empty: submission_gateways has 2 rows"), "{again}");
}

#[tokio::test]
async fn a_store_that_an_instance_uses_is_refused() {
    for used in ["from.db", "to.db"] {
        let pair = Pair::new();
        SqliteStore::migrate(&pair.path("to.db")).unwrap();
        next_epoch(&pair.store(used)).await.unwrap();
        let refused = pair.copy().await.unwrap_err().to_string();
        assert!(refused.contains(used) && refused.contains("is in use: me holds its lease"), "{refused}");
    }
}

#[tokio::test]
async fn an_earlier_run_cannot_write_any_more() {
    let pair = Pair::new();
    let reached = tokio::sync::Notify::new();
    let metrics = Arc::new(Metrics::new().unwrap());
    let earlier = run(&pair.from, &pair.to, &metrics, |_| reached.notify_one());
    tokio::pin!(earlier);
    tokio::select! {
        biased;
        () = reached.notified() => {}
        result = &mut earlier => panic!("it was not held: {result:?}"),
    }
    pair.copy().await.unwrap();
    let refused = earlier.await.unwrap_err();
    assert!(matches!(refused, CopyError::LeaseLost { .. }), "{refused}");
    pair.assert_equal();
}

#[tokio::test]
async fn another_copy_or_a_source_that_was_used_since_is_refused() {
    let pair = Pair::new();
    interrupted_copy(&pair.from, &pair.to, 1).await;
    let other = filled_source(&pair.path("other.db"));
    let refused = copy(&other, &pair.to).await.unwrap_err();
    assert!(matches!(refused, CopyError::OtherCopy { .. }), "{refused}");
    let source = pair.store("from.db");
    let lease = source.lease_state().await.unwrap().lease.unwrap();
    source.reset_lease(lease.epoch, lease.renewed_at, somebody()).await.unwrap();
    let epoch = next_epoch(&source).await.unwrap();
    let lease = source.lease_state().await.unwrap().lease.unwrap();
    assert!(source.reset_lease(epoch, lease.renewed_at, somebody()).await.unwrap());
    let refused = pair.copy().await.unwrap_err();
    assert!(matches!(refused, CopyError::OtherCopy { .. }), "{refused}");
}

#[tokio::test]
async fn a_change_of_the_source_during_the_copy_is_found() {
    for change in [
        "UPDATE submission_intents SET attempt_count = 2 WHERE intent_seq = 7",
        "INSERT INTO submission_traces VALUES (8, 't')",
        "DELETE FROM submission_attempts WHERE intent_seq = 9",
    ] {
        let pair = Pair::new();
        let direct = Connection::open(pair.path("from.db")).unwrap();
        let changed = std::cell::Cell::new(false);
        let progress = |progress| {
            if matches!(progress, Progress::Verifying { .. }) && !changed.replace(true) {
                direct.execute_batch(change).unwrap();
            }
        };
        let refused = run(&pair.from, &pair.to, &Arc::new(Metrics::new().unwrap()), progress).await.unwrap_err();
        assert!(matches!(refused, CopyError::Differs { .. }), "{refused}");
        assert_eq!(next_epoch(&pair.store("to.db")).await, None, "a copy that was not verified is not used");
        assert!(next_epoch(&pair.store("from.db")).await.is_some(), "the source is");
    }
}

#[tokio::test]
async fn unsuitable_stores_are_refused_with_what_to_do() {
    let pair = Pair::new();
    let text = async |from: &StoreChoice, to: &StoreChoice| full_text(&copy(from, to).await.unwrap_err());
    assert!(text(&pair.from, &pair.from).await.contains("is the source and the target"));
    let missing = StoreChoice::Sqlite(pair.path("missing.db"));
    assert!(text(&missing, &pair.to).await.contains("there is no store"));
    assert!(!pair.path("to.db").exists(), "nothing is created for a copy that cannot be made");
    Connection::open(pair.path("from.db")).unwrap().pragma_update(None, "user_version", 3).unwrap();
    let old = text(&pair.from, &pair.to).await;
    assert!(
        old.contains("its schema has version 3") && old.contains("run 'submission-manager migrate' first"),
        "{old}"
    );
}
