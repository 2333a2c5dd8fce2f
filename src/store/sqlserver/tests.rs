//! The conformance suite on the server that `SM_TEST_SQLSERVER` names, each case in a database of
//! its own; and what needs no server: every statement parses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlparser::dialect::MsSqlDialect;
use sqlparser::parser::Parser;

use super::database::Batch;
use super::inbox as inbox_statements;
use super::jobs as job_statements;
use super::targets as target_statements;
use super::webhooks as webhook_statements;
use super::*;
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::store::conformance::{self, Fixture, Passing, new_intent, submit_to};
use crate::store::{InboxSubmissionState, Submitted};

const POOL: PoolSettings = PoolSettings { size: 4, timeout: Duration::from_secs(20) };

/// The connection string of the test server; says in one line when there is none.
fn server() -> Option<String> {
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

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new().unwrap())
}

fn settings(server: &str, database: &str) -> Settings {
    Settings::parse(&format!("{server};Database={database}"), None, POOL).unwrap()
}

async fn administer(server: &str, sql: String) -> Result<(), StoreError> {
    let master = Database::new(&settings(server, "master"), "test", 1, metrics());
    master.run(Batch { sql: sql.into(), values: Vec::new() }).await.map(drop)
}

/// Makes or drops a database, one at a time and with patience: servers differ in how they take
/// several at once, and connections of a test may take a moment to go away.
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

/// A database that is dropped with this.
struct TestDatabase {
    server: String,
    name: String,
}

impl TestDatabase {
    async fn create() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let server = server()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sm_test_{}_{number}", std::process::id());
        administer_alone(&server, format!("CREATE DATABASE {name}")).await.unwrap();
        Some(Self { server, name })
    }

    fn store(&self) -> SqlServerStore {
        SqlServerStore::new(&settings(&self.server, &self.name), true, metrics())
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
                    direct.run(Batch { sql: garble.into(), values: Vec::new() }).await.map(drop).unwrap();
                })
            })
        },
        spoil: Box::new(move |seq| -> Passing {
            let row = format!(
                "INSERT INTO submission_attempts VALUES ({}, 1, 1, SYSUTCDATETIME(), SYSUTCDATETIME(), 'accepted', NULL, NULL, NULL)",
                seq.0
            );
            let direct = direct.clone();
            Box::pin(async move { direct.run(Batch { sql: row.into(), values: Vec::new() }).await.map(drop).unwrap() })
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
    let refused = bare.prepare().await.unwrap_err().to_string();
    assert!(refused.contains("run 'submission-manager migrate' first"), "{refused}");
    test.store().migrate().await.unwrap();
    let direct = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let newer = "INSERT INTO submission_schema_versions VALUES (99, SYSUTCDATETIME())";
    direct.run(Batch { sql: newer.into(), values: Vec::new() }).await.unwrap();
    let refused = test.store().prepare().await.unwrap_err().to_string();
    assert!(refused.contains("newer version of this program"), "{refused}");
    assert!(matches!(test.store().probe(1).await, Err(StoreError::Unavailable(_))));
}

/// A future dropped in the middle of a transaction must not hand it, or its answer, to the next user.
#[tokio::test]
async fn a_call_that_is_given_up_leaves_nothing_behind() {
    let Some(test) = TestDatabase::create().await else { return };
    let database = Database::new(&settings(&test.server, &test.name), "test", 1, metrics());
    let run = |sql: &'static str| database.run(Batch { sql: sql.into(), values: Vec::new() });
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
        Err(StoreError::Unavailable(what)) => assert!(!what.contains("tr0ub4dor"), "{what}"),
        other => panic!("{other:?}"),
    }
    let submit = store
        .commit(WriteBatch { submits: vec![new_intent("a", &max_attempts(1), b"")], ..WriteBatch::default() })
        .await;
    assert!(matches!(submit, Err(StoreError::Unavailable(_))));
}

/// 256 in one batch against 256 alone, in the same run on the same server.
#[tokio::test]
async fn a_batch_costs_a_tenth_of_its_items_alone() {
    const COUNT: usize = 256;
    let Some(test) = TestDatabase::create().await else { return };
    let store = test.store();
    store.prepare().await.unwrap();
    submit_to(&store, new_intent("warm", &one_shot(), b"{}")).await;
    let started = crate::platform::clock::monotonic();
    for n in 0..COUNT {
        submit_to(&store, new_intent(&format!("single {n}"), &one_shot(), b"{}")).await;
    }
    let singles = crate::platform::clock::monotonic().duration_since(started);
    let started = crate::platform::clock::monotonic();
    let submits = (0..COUNT).map(|n| new_intent(&format!("batch {n}"), &one_shot(), b"{}")).collect();
    let receipt = store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    let batch = crate::platform::clock::monotonic().duration_since(started);
    assert!(receipt.submits.iter().all(|result| matches!(result, Ok(Submitted::Created(_)))));
    let ratio = singles.as_secs_f64() / batch.as_secs_f64();
    println!("{COUNT} submissions: {singles:?} one by one, {batch:?} in one batch, ratio {ratio:.1}");
    assert!(ratio >= 10.0, "only {ratio:.1} times cheaper");
}

/// Every text that this store can send, in every combination of its parts.
fn all_statements() -> Vec<String> {
    let bit = |number: u32, place: u32| number & (1 << place) != 0;
    let mut all = vec![
        statements::ENSURE_CONTRACT.to_owned(),
        statements::ENSURE_RECEIVER.to_owned(),
        statements::CONTRACTS.to_owned(),
        statements::ACQUIRE_LEASE.to_owned(),
        statements::RENEW_LEASE.to_owned(),
        statements::RELEASE_LEASE.to_owned(),
        statements::OPEN_ATTEMPTS.to_owned(),
        statements::LEASE_STATE.to_owned(),
        statements::RESET_LEASE.to_owned(),
        statements::BACKLOG.to_owned(),
        statements::probe(),
        statements::schedule_snapshot(),
        statements::refresh_schedule(false),
        statements::refresh_schedule(true),
        purge::statement(),
        statements::find(),
        statements::history(),
        insight::detail_statement(),
        insight::PAYLOAD.to_owned(),
        insight::overview_statement(),
        insight::health_statement(),
        webhook_statements::DUE.to_owned(),
        webhook_statements::begin_statement(),
        webhook_statements::finish_statement(),
        webhook_statements::close_statement(),
        webhook_statements::put_off_statement(),
        webhook_statements::redeliver_statement(),
        target_statements::ALL.to_owned(),
        target_statements::RESUME.to_owned(),
        target_statements::pause_statement(),
        job_statements::ADMITS.to_owned(),
        job_statements::find_by_key(),
        job_statements::find_by_id(),
        inbox_statements::LOOK.to_owned(),
        inbox_statements::process_statement(&[true, false, true]),
        inbox_statements::process_statement(&[false]),
        inbox_statements::REPROCESS_ONE.to_owned(),
        inbox_statements::REPROCESS_PARKED.to_owned(),
        inbox_statements::find_statement(),
        migrate::VERSION.to_owned(),
        migrate::MAKE_VERSIONS.to_owned(),
    ];
    all.extend((0..migrate::MIGRATIONS.len()).map(migrate::migration));
    all.extend((0..2048).map(|n| {
        statements::writes(statements::Parts {
            fenced: bit(n, 0),
            submits: bit(n, 1),
            starts: bit(n, 2),
            finishes: bit(n, 3),
            expire: bit(n, 4),
            exhaust: bit(n, 5),
            jobs: bit(n, 6),
            traces: bit(n, 7),
            nodes: bit(n, 8),
            received: bit(n, 9),
            postpones: bit(n, 10),
        })
    }));
    all.extend((0..512).map(|n| {
        statements::list(statements::ListParts {
            status: bit(n, 0),
            target: bit(n, 1),
            created_after: bit(n, 2),
            created_before: bit(n, 3),
            newer: bit(n, 4),
            ids: bit(n, 5).then(|| statements::IdParts { behind: bit(n, 6), before: bit(n, 7) }),
            message: bit(n, 8) && !bit(n, 5),
        })
    }));
    for list in [inbox_statements::SUBMISSIONS, inbox_statements::CONTACTS, inbox_statements::MESSAGES] {
        all.extend((0..8).map(|n| list.statement(None, bit(n, 0), bit(n, 1), bit(n, 2))));
    }
    all.extend(
        InboxSubmissionState::ALL.map(|state| inbox_statements::SUBMISSIONS.statement(Some(state), true, false, true)),
    );
    all.extend((0..32).map(|n| {
        job_statements::list_statement(job_statements::ListParts {
            tenant: bit(n, 0),
            workspaces: bit(n, 1),
            job_id: bit(n, 2),
            status: bit(n, 3),
            behind: bit(n, 4),
        })
    }));
    all
}

#[test]
fn every_statement_parses() {
    for sql in all_statements() {
        if let Err(error) = Parser::parse_sql(&MsSqlDialect {}, &sql) {
            panic!("{error} in\n{sql}");
        }
        assert!(!sql.contains("@value"), "a value without its place:\n{sql}");
    }
    assert!(Parser::parse_sql(&MsSqlDialect {}, "SELECT * FORM t WHERE").is_err(), "the parser objects to nonsense");
}
