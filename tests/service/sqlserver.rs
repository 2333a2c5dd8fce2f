//! The service on a SQL Server behind a proxy that cuts, stalls, half-closes and refuses connections.
//!
//! Runs if `SM_TEST_SQLSERVER` is a connection string without a database. Otherwise the tests print that they are
//! skipped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tiberius::{Client, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_util::compat::TokioAsyncWriteCompatExt;

use crate::fleet::evidence::{Evidence, Record};
use crate::fleet::free_address;
use crate::support::{Api, BINARY, Instance, PATIENCE, Site, site};
use submission_manager::devtools::stand_in_gateway::StandIn;

/// Returns the connection string of the test server, or prints that there is none.
fn server() -> Option<String> {
    let server = std::env::var("SM_TEST_SQLSERVER").ok().filter(|text| !text.is_empty());
    if server.is_none() {
        let required = std::env::var("SM_REQUIRE_SQLSERVER").as_deref() == Ok("1");
        assert!(!required, "SM_REQUIRE_SQLSERVER=1, but SM_TEST_SQLSERVER names no server");
        eprintln!("not run: SM_TEST_SQLSERVER holds no connection string of a SQL Server");
    }
    server
}

/// A new database, which is dropped together with this value.
pub(crate) struct TestDatabase {
    server: String,
    name: String,
    /// The address of a proxy to use instead of the server.
    via: Option<SocketAddr>,
}

impl TestDatabase {
    pub(crate) fn create() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let server = server()?;
        let name = format!("sm_service_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        administer_alone(&server, format!("CREATE DATABASE {name}")).unwrap();
        Some(Self { server, name, via: None })
    }

    pub(crate) fn connection_string(&self) -> String {
        let server = match self.via {
            Some(proxy) => with_address(&self.server, proxy),
            None => self.server.clone(),
        };
        format!("{server};Database={}", self.name)
    }

    /// Starts a proxy. Connection strings that are requested later use it.
    pub(crate) fn behind_proxy(&mut self) -> Proxy {
        let proxy = Proxy::start(self.address());
        self.via = Some(proxy.address);
        proxy
    }

    fn address(&self) -> String {
        Config::from_ado_string(&self.server).unwrap().get_addr()
    }
}

/// Returns the connection string with another address.
fn with_address(server: &str, address: SocketAddr) -> String {
    let rest: Vec<_> = server.split(';').filter(|pair| !pair.to_ascii_lowercase().starts_with("server=")).collect();
    format!("Server=tcp:{},{};{}", address.ip(), address.port(), rest.join(";"))
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if administer_alone(&self.server, format!("DROP DATABASE {}", self.name)).is_err() {
            eprintln!("{} is left behind", self.name);
        }
    }
}

/// Creates or drops a database, one at a time, and retries for a while: some servers refuse several at the same time, and
/// connections of a stopped service may last a moment longer.
fn administer_alone(server: &str, sql: String) -> Result<(), String> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    const TRIES: usize = 50;
    for _ in 1..TRIES {
        let alone = ALONE.lock().unwrap();
        if administer(server, sql.clone()).is_ok() {
            return Ok(());
        }
        drop(alone);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    administer(server, sql)
}

/// Runs a statement in the server's own database, on a thread of its own.
fn administer(server: &str, sql: String) -> Result<(), String> {
    let server = format!("{server};Database=master");
    let work = async move {
        let config = Config::from_ado_string(&server).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect(config.get_addr()).await.map_err(|error| error.to_string())?;
        let mut client = Client::connect(config, stream.compat_write()).await.map_err(|error| error.to_string())?;
        let stream = client.simple_query(sql).await.map_err(|error| error.to_string())?;
        stream.into_results().await.map(drop).map_err(|error| error.to_string())
    };
    std::thread::spawn(move || {
        let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    })
    .join()
    .unwrap()
}

/// A proxy between the service and the database that can cut, stall and refuse connections.
#[derive(Clone)]
pub(crate) struct Proxy {
    address: SocketAddr,
    refuse: Arc<AtomicBool>,
    flowing: Arc<watch::Sender<bool>>,
    cut: Arc<Notify>,
    half_close: Arc<Notify>,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// Runs on a thread of its own, because tests block their thread while they wait for log lines.
    fn start(upstream: String) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            refuse: Arc::default(),
            flowing: Arc::new(watch::Sender::new(true)),
            cut: Arc::default(),
            half_close: Arc::default(),
            connections: Arc::default(),
        };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serving.serve(listener, upstream));
        });
        proxy
    }

    async fn serve(self, listener: std::net::TcpListener, upstream: String) {
        let listener = TcpListener::from_std(listener).unwrap();
        while let Ok((client, _)) = listener.accept().await {
            if self.refuse.load(Ordering::SeqCst) {
                continue;
            }
            let Ok(server) = TcpStream::connect(&upstream).await else { continue };
            self.connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(self.clone().carry(client, server));
        }
    }

    async fn carry(self, client: TcpStream, server: TcpStream) {
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = self.pump(from_client, to_server, false) => {}
            () = self.pump(from_server, to_client, true) => {}
            () = self.cut.notified() => {}
        }
    }

    /// Copies bytes in one direction. After a half-close the client sees the end of the stream, but can still send.
    async fn pump(
        &self,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        to_client: bool,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        let mut flowing = self.flowing.subscribe();
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read.unwrap_or(0),
                () = self.half_close.notified(), if to_client => 0,
            };
            if flowing.wait_for(|flows| *flows).await.is_err() || read == 0 {
                break;
            }
            if to.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        let _may_be_gone = to.shutdown().await;
        if to_client {
            // The other direction stays open until the client notices.
            let mut rest = tokio::time::interval(Duration::from_secs(1));
            rest.tick().await;
            rest.tick().await;
        }
    }

    pub(crate) fn stall(&self, stalled: bool) {
        self.flowing.send_replace(!stalled);
    }

    fn refuse(&self, refused: bool) {
        self.refuse.store(refused, Ordering::SeqCst);
        if refused {
            self.cut.notify_waiters();
        }
    }
}

async fn pause(millis: u64) {
    let mut pace = tokio::time::interval(Duration::from_millis(millis));
    pace.tick().await;
    pace.tick().await;
}

/// Submits with several clients, each of which repeats a request until it succeeds. Returns how often requests failed.
async fn persist(api: &Api, clients: usize, each: usize, record: &Record) -> usize {
    let refused = AtomicUsize::new(0);
    join_all((0..clients).map(|client| {
        let refused = &refused;
        async move {
            for n in 0..each {
                let id = format!("{client}-{n}");
                let target = ["attempts", "once", "deadline"][(client + n) % 3];
                let body = json!({ "intentId": id, "submissionTarget": target, "payload": { "simulate": "slow:20" } });
                loop {
                    let answer = api.call("POST", "/v1/intents", body.to_string()).await;
                    match answer.status.as_u16() {
                        200 => break record.answered(&answer.json()),
                        503 => assert!(["overloaded", "store_unavailable"].contains(&answer.error().as_str())),
                        other => panic!("{other}: {}", answer.text()),
                    }
                    refused.fetch_add(1, Ordering::SeqCst);
                    pause(100).await;
                }
            }
        }
    }))
    .await;
    refused.into_inner()
}

struct Scene {
    site: Site,
    gateway: StandIn,
    proxy: Proxy,
}

fn scene() -> Option<Scene> {
    let mut database = TestDatabase::create()?;
    let proxy = database.behind_proxy();
    let gateway = StandIn::start(true).unwrap();
    let mut site = Site::with_database(&gateway.url, Some(database));
    site.lease_duration = Duration::from_secs(6);
    Some(Scene { site, gateway, proxy })
}

impl Scene {
    fn start(&self, store_timeout: &str) -> Instance {
        let mut command = self.site.command();
        command.env("SM_STORE_TIMEOUT", store_timeout);
        Instance::start(command)
    }

    /// Checks the evidence of clients, gateways and the store. Returns how many attempts were interrupted.
    async fn check(&self, record: &Record, instance: &Instance) -> usize {
        let evidence = Evidence::collect(&self.site, &[self.gateway.witness()], record, &instance.log_lines()).await;
        evidence.hold();
        evidence.interrupted()
    }
}

#[actix::test]
async fn connections_that_are_cut_stalled_or_half_closed_lose_nothing_and_send_nothing_twice() {
    let Some(scene) = scene() else { return };
    let instance = scene.start("2s");
    instance.wait_for_log("leader_ready");
    let api = instance.api();
    let record = Record::default();
    let proxy = &scene.proxy;
    let chaos = async {
        for round in 0..12 {
            pause(400).await;
            match round % 3 {
                0 => proxy.cut.notify_waiters(),
                1 => {
                    proxy.stall(true);
                    pause(700).await;
                    proxy.stall(false);
                }
                _ => proxy.half_close.notify_waiters(),
            }
        }
        // Long enough that calls time out and the lease is in doubt.
        proxy.stall(true);
        pause(4000).await;
        proxy.stall(false);
    };
    let (refused, ()) = tokio::join!(persist(&api, 16, 80, &record), chaos);
    let more = persist(&api, 16, 10, &Record::default()).await;
    api.until_nothing_is_pending().await;
    let interrupted = scene.check(&record, &instance).await;
    let line = instance.wait_for_log("leader_lost");
    println!(
        "{} answered, {refused} refused during faults, {more} after, {interrupted} interrupted, {} connections; {line}",
        record.len(),
        proxy.connections.load(Ordering::SeqCst)
    );
    assert_eq!(more, 0, "it healed");
}

#[actix::test]
async fn an_outage_of_the_database_of_ten_seconds_only_delays() {
    let Some(scene) = scene() else { return };
    let mut instance = scene.start("2s");
    instance.wait_for_log("leader_ready");
    let api = instance.api();
    let record = Record::default();
    let outage = async {
        pause(300).await;
        scene.proxy.refuse(true);
        let unready = api.until("/readyz", |answer| answer.status.as_u16() == 503).await;
        assert_eq!(unready.error(), "store_unavailable");
        pause(10_000).await;
        scene.proxy.refuse(false);
    };
    let (refused, ()) = tokio::join!(persist(&api, 16, 120, &record), outage);
    assert!(refused > 0, "the outage was not felt; the test shows nothing");
    assert_eq!(persist(&api, 8, 5, &Record::default()).await, 0, "it healed without a restart");
    tokio::time::timeout(PATIENCE, api.until_nothing_is_pending()).await.unwrap();
    let interrupted = scene.check(&record, &instance).await;
    println!("{} answered, {refused} refused during the outage, {interrupted} interrupted", record.len());
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

#[actix::test]
async fn check_prints_what_should_be_changed_on_the_server() {
    let Some(database) = TestDatabase::create() else { return };
    let (server, name) = (database.server.clone(), database.name.clone());
    let gateway = StandIn::start(true).unwrap();
    let site = Site::with_database(&gateway.url, Some(database));
    let run = |subcommand: &str| {
        let output = site.command().arg(subcommand).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run("migrate");
    let said = run("check");
    assert!(said.contains("schema up to date") && !said.contains("ahead of the server's clock"), "{said}");
    let ahead = format!("UPDATE {name}.dbo.submission_clock SET last_at = DATEADD(HOUR, 1, SYSUTCDATETIME())");
    administer(&server, ahead).unwrap();
    let said = run("check");
    assert!(said.contains("\nwarning: stored times are 35"), "{said}");
}

#[actix::test]
async fn bench_makes_a_database_fills_it_and_reports_what_the_server_did() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let mut command = std::process::Command::new(BINARY);
    command
        .args(["bench", "--duration", "300ms", "--connections", "4", "--finished", "30", "--waiting", "20"])
        .args(["--store", &server, "--json"])
        .arg(&json);
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("of the server's own ceiling"), "{stdout}{stderr}");
    assert!(!stderr.contains("drop it yourself"), "{stderr}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let case = &report["cases"][0];
    assert!(case["submitted"].as_u64().unwrap() > 0 && case["errors"] == 0, "{case}");
    assert!(report["ceilings"]["storePerSecond"].as_f64().unwrap() > 0.0, "{report}");
    let spent = &case["serverPerThousand"];
    // Each intent is inserted and ended by round trips that commit.
    assert!(spent["roundTrips"].as_f64().unwrap() > 0.0, "{spent}");
    assert!(spent["transactions"].as_f64().is_none_or(|transactions| transactions > 0.0), "{spent}");
}

/// Needs no database: no server listens, or one that never answers.
#[actix::test]
async fn requests_without_a_server_fail_in_time_and_not_one_after_the_other() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for (address, cause) in [(free_address(), "refused"), (silent.local_addr().unwrap(), "did not answer within")] {
        let (site, _gateway) = site();
        let store = format!("Server=tcp:{},{};Database=d;User Id=u;Password=p", address.ip(), address.port());
        let command = |subcommand: &str| {
            let mut command = site.command();
            command.arg(subcommand).env("SM_STORE", &store).env("SM_STORE_TIMEOUT", "1s");
            command
        };
        let check = command("check").output().unwrap();
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(!check.status.success() && said.contains(cause), "{said}");

        let instance = Instance::start(command("serve"));
        let api = instance.api();
        assert!(instance.wait_for_log("store_unavailable").contains(cause));
        // One after the other they would take longer than this test waits.
        let asked = (0..100).map(|number| {
            let api = api.clone();
            async move {
                match number % 2 {
                    0 => api.get("/readyz").await,
                    _ => api.submit(&number.to_string(), "once", json!({}), "").await,
                }
            }
        });
        for answer in join_all(asked).await {
            assert_eq!((answer.status.as_u16(), answer.error().as_str()), (503, "store_unavailable"));
        }
        assert_eq!(api.get("/healthz").await.status.as_u16(), 200);
    }
}

#[actix::test]
async fn the_service_starts_before_its_database() {
    let Some(scene) = scene() else { return };
    scene.proxy.refuse(true);
    let instance = scene.start("20s");
    let api = instance.api();
    assert_eq!(api.get("/healthz").await.status.as_u16(), 200);
    let answer = api.submit("early", "once", json!({}), "").await;
    assert_eq!((answer.status.as_u16(), answer.error().as_str()), (503, "store_unavailable"));
    scene.proxy.refuse(false);
    api.until("/readyz", |answer| answer.status.is_success()).await;
    let intent = api.submit("late", "once", json!({}), "?waitSeconds=30").await.json();
    assert_eq!(intent["status"], "accepted");
    let password = scene.site.store().split(';').find_map(|pair| pair.strip_prefix("Password=")).unwrap().to_owned();
    let metrics = api.get("/metrics").await.text();
    for line in instance.log_lines().iter().map(String::as_str).chain(metrics.lines()) {
        assert!(!line.contains(&password), "the password is in {line:?}");
    }
    assert!(metrics.contains("submission_store_connections{pool=\"work\"}"), "{metrics}");
}
