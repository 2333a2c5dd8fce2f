//! The conformance suite on the server that `SM_TEST_SQLSERVER` names, each case in a database of its own, and tests of
//! what is specific to SQL Server.

pub(super) mod catalogue;
mod copy;
mod faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::database::Batch;
use super::*;
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::platform::errors::full_text;
use crate::store::conformance::{self, Fixture, Passing, new_intent, submit_to};
use crate::store::{FailedInboxTry, FencedWrites, InboxSubmissionSeq, Submitted};

const POOL: PoolSettings = PoolSettings { size: 4, timeout: Duration::from_secs(20) };

/// The connection string of the test server. Prints a line and returns `None` if there is none.
pub(super) fn server() -> Option<String> {
    let server = std::env::var("SM_TEST_SQLSERVER").ok().filter(|text| !text.is_empty());
    if server.is_none() {
        assert!(
            std::env::var("SM_REQUIRE_SQLSERVER").as_deref() != Ok("1"),
            "SM_REQUIRE_SQLSERVER=1, but SM_TEST_SQLSERVER names no server"
        );
        eprintln!("not run: SM_TEST_SQLSERVER holds no connection string of a SQL Server");
    }
    server
}

pub(super) fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new().unwrap())
}

fn settings(server: &str, database: &str) -> Settings {
    Settings::parse(&format!("{server};Database={database}"), None, POOL).unwrap()
}

/// A statement that only tests send, so it is not in the list of the store's statements.
pub(super) fn unlisted(sql: impl Into<std::borrow::Cow<'static, str>>) -> Batch {
    Batch { of_test: true, ..Batch::new(sql, Vec::new()) }
}

async fn administer(server: &str, sql: String) -> Result<(), StoreError> {
    let master = Database::new(&settings(server, "master"), "test", 1, metrics());
    master.run(unlisted(sql)).await.map(drop)
}

/// Creates or drops databases one at a time, and tries again for a while: some servers cannot do several at once, and
/// connections of a test may take a moment to close.
async fn administer_alone(server: &str, sql: String) -> Result<(), StoreError> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    const TRIES: usize = 50;
    for _ in 1..TRIES {
        let alone = ALONE.lock().await;
        if administer(server, sql.clone()).await.is_ok() {
            return Ok(());
        }
        drop(alone);
        pass(Duration::from_millis(100)).await;
    }
    administer(server, sql).await
}

/// A database that exists until this value is dropped.
pub(super) struct TestDatabase {
    server: String,
    name: String,
}

impl TestDatabase {
    pub(super) async fn create() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let server = server()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sm_test_{}_{number}", std::process::id());
        administer_alone(&server, format!("CREATE DATABASE {name}")).await.unwrap();
        Some(Self { server, name })
    }

    pub(super) fn settings(&self) -> Settings {
        settings(&self.server, &self.name)
    }

    pub(super) fn store(&self) -> SqlServerStore {
        SqlServerStore::new(&self.settings(), true, metrics())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            if runtime.block_on(administer_alone(&server, format!("DROP DATABASE {name}"))).is_err() {
                eprintln!("{name} is left behind");
            }
        });
        let _best_effort = dropping.join();
    }
}

async fn pass(span: Duration) {
    tokio::time::timeout(span, std::future::pending::<()>()).await.unwrap_err();
}

async fn open() -> Option<Fixture> {
    let database = TestDatabase::create().await?;
    let direct = Database::new(&settings(&database.server, &database.name), "test", 1, metrics());
    Some(Fixture {
        store: Arc::new(database.store()),
        other: Arc::new(database.store()),
        short: Duration::from_secs(6),
        pass: Box::new(|span| -> Passing { Box::pin(pass(span + Duration::from_millis(5))) }),
        garble: {
            let direct = direct.clone();
            Box::new(move |seq| -> Passing {
                let garble = format!(
                    "UPDATE submission_contracts SET snapshot = N'{{\"gatewayType\":\"pigeon\"}}'
                     WHERE contract_id = (SELECT contract_id FROM submission_intents WHERE intent_seq = {})",
                    seq.0
                );
                let direct = direct.clone();
                Box::pin(async move {
                    direct.run(unlisted(garble)).await.map(drop).unwrap();
                })
            })
        },
        spoil: Box::new(move |seq| -> Passing {
            let row = format!(
                "INSERT INTO submission_attempts VALUES ({}, 1, 1, SYSUTCDATETIME(), SYSUTCDATETIME(), 'accepted', NULL, NULL, NULL)",
                seq.0
            );
            let direct = direct.clone();
            Box::pin(async move { direct.run(unlisted(row)).await.map(drop).unwrap() })
        }),
        keep: Box::new(database),
    })
}

conformance::for_store!(open);

#[tokio::test]
async fn several_instances_may_migrate_at_once() {
    let Some(test) = TestDatabase::create().await else { return };
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let store = test.store();
            tokio::spawn(async move { store.migrate().await.unwrap() })
        })
        .collect();
    let mut ran = 0;
    for run in runs {
        ran += run.await.unwrap();
    }
    assert_eq!(ran, migrate::MIGRATIONS.len(), "each migration was run by exactly one of them");
    assert_eq!(test.store().migrate().await.unwrap(), 0);
    let bare = SqlServerStore::new(&settings(&test.server, &test.name), false, metrics());
    assert_eq!(bare.probe(1).await, Ok(()));
}

#[tokio::test]
async fn a_schema_that_is_missing_or_newer_is_refused() {
    let Some(test) = TestDatabase::create().await else { return };
    let bare = SqlServerStore::new(&settings(&test.server, &test.name), false, metrics());
    let refused = full_text(&bare.prepare().await.unwrap_err());
    assert!(refused.contains("run 'submission-manager migrate' first"), "{refused}");
    test.store().migrate().await.unwrap();
    let direct = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let newer = "INSERT INTO submission_schema_versions VALUES (99, SYSUTCDATETIME())";
    direct.run(unlisted(newer)).await.unwrap();
    let refused = full_text(&test.store().prepare().await.unwrap_err());
    assert!(refused.contains("newer version of this program"), "{refused}");
    assert!(matches!(test.store().probe(1).await, Err(StoreError::Unavailable(_))));
}

#[tokio::test]
async fn a_clock_that_is_ahead_is_found_at_start_and_the_rest_is_fine() {
    let Some(test) = TestDatabase::create().await else { return };
    let store = test.store();
    store.migrate().await.unwrap();
    let clock = async || {
        let found = store.examine().await.unwrap();
        found.into_iter().filter(|warning| warning.name == "store_clock_ahead").collect::<Vec<_>>()
    };
    assert_eq!(clock().await, []);
    let direct = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let ahead = "UPDATE submission_clock SET last_at = DATEADD(HOUR, 1, SYSUTCDATETIME())";
    direct.run(unlisted(ahead)).await.unwrap();
    let found = clock().await;
    assert!(found.len() == 1 && found[0].text.contains("submission-manager lease reset"), "{found:?}");
    assert_eq!(store.prepare().await, Ok(()), "a warning is no error");
}

/// Only SQL Server itself has these settings; on other servers that speak its protocol the test ends early.
#[tokio::test]
async fn a_database_with_the_wrong_settings_is_refused_or_warned_of() {
    let Some(test) = TestDatabase::create().await else { return };
    let store = test.store();
    store.migrate().await.unwrap();
    let set =
        async |setting: &str| administer(&test.server, format!("ALTER DATABASE {} SET {setting}", test.name)).await;
    if let Err(refused) = set("COMPATIBILITY_LEVEL = 120").await {
        eprintln!("not run: this server has no compatibility levels: {refused}");
        return;
    }
    let refused = full_text(&store.examine().await.unwrap_err());
    let command = format!("ALTER DATABASE [{}] SET COMPATIBILITY_LEVEL = 130", test.name);
    assert!(refused.contains(&command), "{refused}");
    assert!(store.migrate().await.is_err(), "nothing is changed in such a database");
    set("COMPATIBILITY_LEVEL = 130").await.unwrap();
    for (setting, warned) in [("OFF", true), ("ON", false)] {
        set(&format!("READ_COMMITTED_SNAPSHOT {setting} WITH ROLLBACK IMMEDIATE")).await.unwrap();
        // The change has closed the connections of the store, so its next call may fail once.
        let examined = match store.examine().await {
            Err(StoreError::Unavailable(_)) => store.examine().await,
            examined => examined,
        };
        let found = examined.unwrap();
        let texts: Vec<_> = found.iter().filter(|warning| warning.name == "read_committed_snapshot_off").collect();
        assert_eq!(!texts.is_empty(), warned, "{found:?}");
    }
}

/// A statement that waits too long for a lock ends with the server's own error, after which nothing was changed. A
/// timeout of the command would leave that unknown.
#[tokio::test]
async fn a_lock_that_is_not_granted_ends_before_the_command_times_out() {
    let Some(test) = TestDatabase::create().await else { return };
    let pool = PoolSettings { size: 2, timeout: Duration::from_secs(4) };
    let text = format!("{};Database={}", test.server, test.name);
    let database = Database::new(&Settings::parse(&text, None, pool).unwrap(), "test", 2, metrics());
    let run = |sql: &'static str| database.run(unlisted(sql));
    run("CREATE TABLE t (n INT); INSERT INTO t VALUES (1);").await.unwrap();
    let mut holder = connect(&settings(&test.server, &test.name)).await.unwrap();
    let hold = "BEGIN TRANSACTION; UPDATE t SET n = 2;";
    holder.simple_query(hold).await.unwrap().into_results().await.unwrap();
    let refused = run("UPDATE t SET n = 3").await.unwrap_err();
    let refused = full_text(&refused);
    assert!(refused.to_lowercase().contains("lock"), "{refused}");
    holder.simple_query("ROLLBACK TRANSACTION;").await.unwrap().into_results().await.unwrap();
    run("UPDATE t SET n = 3").await.unwrap();
}

/// If the future of a call is dropped during a transaction, the next user of the connection gets neither its
/// transaction nor its answer.
#[tokio::test]
async fn a_call_that_is_given_up_leaves_nothing_behind() {
    let Some(test) = TestDatabase::create().await else { return };
    let database = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let run = |sql: &'static str| database.run(unlisted(sql));
    run("CREATE TABLE t (n INT)").await.unwrap();
    let slow = run("BEGIN TRANSACTION; INSERT INTO t VALUES (1);
        DECLARE @until DATETIME2(6) = DATEADD(SECOND, 2, SYSUTCDATETIME());
        WHILE SYSUTCDATETIME() < @until SELECT 1 AS one WHERE 1 = 0;
        COMMIT TRANSACTION;");
    let given_up = tokio::time::timeout(Duration::from_secs(1), slow).await;
    assert!(given_up.is_err(), "it was to be given up half-way: {given_up:?}");
    let look = "SELECT CAST(@@TRANCOUNT AS BIGINT) AS open_transactions, (SELECT COUNT_BIG(*) FROM t) AS written";
    let results = run(look).await.unwrap();
    let number = |name: &'static str| rows::need::<i64>(&results[0][0], name).unwrap();
    assert_eq!((number("open_transactions"), number("written")), (0, 1), "it ran to its end, and this is the answer");
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_and_says_no_password() {
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let pool = PoolSettings { size: 2, timeout: Duration::from_millis(500) };
    let text = "Server=tcp:127.0.0.1,1;Database=s;User Id=u;Password=tr0ub4dor";
    let store = SqlServerStore::new(&Settings::parse(text, None, pool).unwrap(), true, metrics());
    match store.probe(1).await {
        Err(error @ StoreError::Unavailable(_)) => {
            let what = full_text(&error);
            assert!(!what.contains("tr0ub4dor"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    let submit = store
        .commit(WriteBatch { submits: vec![new_intent("a", &max_attempts(1), b"")], ..WriteBatch::default() })
        .await;
    assert!(matches!(submit, Err(StoreError::Unavailable(_))));
}

/// A refresh returns changes up to the clock only, because it could see a later transaction in part.
#[tokio::test]
async fn changes_are_shown_up_to_the_clock_and_the_rest_later() {
    let Some(test) = TestDatabase::create().await else { return };
    let store = test.store();
    let cursor = store.schedule_snapshot(1).await.unwrap().cursor;
    submit_to(&store, new_intent("a", &one_shot(), b"")).await;
    let direct = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let set_clock = async |to: &str| {
        let clock = format!("UPDATE submission_clock SET last_at = {to}");
        direct.run(unlisted(clock)).await.unwrap();
        let request = RefreshRequest { cursor: cursor.clone(), limit: 10, pages: Vec::new() };
        let refresh = store.refresh_schedule(request).await.unwrap();
        assert_eq!(refresh.cursor == cursor, refresh.changed.is_empty(), "the cursor stands at what was shown");
        refresh.changed.len()
    };
    assert_eq!(set_clock("DATEADD(MICROSECOND, -1, last_at)").await, 0, "it is later than the clock");
    assert_eq!(set_clock("DATEADD(MICROSECOND, 1, last_at)").await, 1);
}

/// A server need not lock a row whose update changes nothing, so the fence must change the lease's row.
#[tokio::test]
async fn every_write_of_a_leader_changes_the_row_of_its_lease() {
    let Some(test) = TestDatabase::create().await else { return };
    let store = test.store();
    let term = store.acquire_lease("lease".into(), "me".into(), Duration::from_secs(600)).await.unwrap().unwrap().term;
    let direct = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let look = async || {
        let sql =
            "SELECT l.fenced_writes, c.last_at FROM submission_manager_leases AS l CROSS JOIN submission_clock AS c";
        let results = direct.run(unlisted(sql)).await.unwrap();
        let row = &results[0][0];
        (rows::need::<i64>(row, "fenced_writes").unwrap(), rows::need_moment(row, "last_at").unwrap())
    };
    let mut before = look().await;
    for what in ["commit", "purge", "webhooks", "inbox"] {
        match what {
            "commit" => {
                let writes = FencedWrites { expire: Some(1), ..FencedWrites::new(&term) };
                let batch = WriteBatch { fenced: Some(writes), ..WriteBatch::default() };
                assert!(store.commit(batch).await.unwrap().fenced.is_ok());
            }
            "purge" => drop(store.purge(term.clone(), conformance::purge_all()).await.unwrap()),
            "webhooks" => assert_eq!(store.close_webhooks(term.clone(), Vec::new()).await, Ok(0)),
            _ => {
                let failed = FailedInboxTry { error: "e".to_owned(), next_try_at: None };
                let row = ProcessedInboxSubmission { seq: InboxSubmissionSeq(1), tries: 0, result: Err(failed) };
                assert!(store.process_inbox(term.clone(), vec![row]).await.is_ok());
            }
        }
        let after = look().await;
        assert!(after.0 > before.0 && after.1 > before.1, "{what}: {before:?} {after:?}");
        before = after;
    }
}

/// Counts the requests to the server. Each waits for a connection first, and the metrics count these waits.
fn requests(metrics: &Metrics) -> u64 {
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("submission_store_connection_wait_seconds_count "));
    count.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_batch_takes_as_many_requests_as_a_single_intent() {
    let Some(test) = TestDatabase::create().await else { return };
    let metrics = metrics();
    let store = SqlServerStore::new(&settings(&test.server, &test.name), true, Arc::clone(&metrics));
    store.prepare().await.unwrap();
    // The first intent of a contract also stores the contract.
    submit_to(&store, new_intent("first", &one_shot(), b"{}")).await;
    let before = requests(&metrics);
    submit_to(&store, new_intent("single", &one_shot(), b"{}")).await;
    let single = requests(&metrics) - before;
    let submits = (0..256).map(|n| new_intent(&format!("batch {n}"), &one_shot(), b"{}")).collect();
    let receipt = store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    assert!(receipt.submits.iter().all(|result| matches!(result, Ok(Submitted::Created(_)))));
    assert_eq!(requests(&metrics) - before - single, single, "256 intents in one batch");
}
