//! The deployment under test: a process of this binary with its own store, or one that already runs.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::clients::Submitted;
use super::error::{BenchResult, Step};
use super::fill;
use super::sqlserver::{self, BenchDatabase, Counters, Server};
use crate::config::registry::Registry;
use crate::config::variables::Variables;
use crate::domain::intent::TargetName;
use crate::domain::redrive::RedriveRate;
use crate::domain::time::Timestamp;
use crate::platform::clock::monotonic;

/// The content of the store and the registry before the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    /// Intents that were accepted.
    pub finished: u64,
    /// Intents that have failed.
    pub failed: u64,
    pub waiting: u64,
    pub targets: u32,
}

impl Fill {
    /// The number of intents in the store.
    pub(super) fn total(&self) -> u64 {
        self.finished + self.failed + self.waiting
    }
}

/// Gateways that accept connections and never respond, each with a backlog of intents.
pub(super) struct Hung {
    pub url: String,
    pub gateways: u32,
}

impl Hung {
    pub(super) fn none() -> Self {
        Self { url: String::new(), gateways: 0 }
    }
}

/// Intents that wait for each hung gateway: more than the slots that it ever gets.
const HUNG_BACKLOG: u32 = 20;

/// A running deployment.
pub(super) struct Deployment {
    pub url: String,
    pub targets: Vec<String>,
    /// The time from acquiring the lease to being ready to execute.
    pub leader_ready: Option<Duration>,
    own: Option<Own>,
    http: awc::Client,
}

/// A process that was started for this run, with its files.
struct Own {
    child: Process,
    site: Site,
}

/// A process that is killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ignored = self.0.kill();
        let _ignored = self.0.wait();
    }
}

/// Where a store is created.
pub(super) enum Place {
    /// A file in this directory, or in the directory for temporary files.
    Directory(Option<PathBuf>),
    Server(Server),
}

/// A directory with a registry, and a filled store in it or on a server; both removed when dropped.
pub(super) struct Site {
    directory: TempDir,
    /// The store, unless it is a file.
    database: Option<BenchDatabase>,
    targets: Vec<String>,
    /// The number of additional targets whose gateways hang.
    hung: u32,
}

impl Site {
    pub(super) async fn fill(
        gateway: &str,
        webhook: Option<&str>,
        hung: Hung,
        fill: &Fill,
        place: Place,
    ) -> BenchResult<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("submission-manager-bench-");
        let directory = match &place {
            Place::Directory(Some(parent)) => builder.tempdir_in(parent),
            Place::Directory(None) | Place::Server(_) => builder.tempdir(),
        }?;
        let targets: Vec<_> = (0..fill.targets).map(|number| format!("bench.{number}")).collect();
        let entry = |(number, name): (usize, &String)| {
            let mut entry = json!({ "submissionTarget": name, "gatewayType": "sms",
                "gatewayUrl": format!("{gateway}/{number}"), "policy": "max_attempts", "maxAttempts": 5,
                "terminalOutcomes": ["invalid_recipient"] });
            if let Some(url) = webhook {
                entry["webhook"] = json!({ "url": url });
            }
            entry
        };
        let mut entries: Vec<_> = targets.iter().enumerate().map(entry).collect();
        entries.extend((0..hung.gateways).map(|number| {
            json!({ "submissionTarget": format!("hung.{number}"), "gatewayType": "sms",
                "gatewayUrl": format!("{}/{number}", hung.url), "policy": "max_attempts", "maxAttempts": 1000,
                "terminalOutcomes": ["invalid_recipient"] })
        }));
        let registry = json!({ "allowUnsignedWebhooks": true, "targets": entries });
        let mut site = Self { directory, database: None, targets, hung: hung.gateways };
        std::fs::write(site.registry(), registry.to_string())?;
        let contracts =
            Registry::parse(&registry.to_string(), &Variables::of_process()).map_err(|errors| format!("{errors:?}"))?;
        let first = TargetName::parse(&site.targets[0]).ok().and_then(|name| contracts.contract(&name));
        let contract = first.ok_or("the registry has no target")?;
        let unfilled = || "cannot fill the store";
        match place {
            Place::Directory(_) => fill::fill(&site.file(), fill, &contract).step(unfilled)?,
            Place::Server(server) => {
                let database = server.create().await.step(unfilled)?;
                sqlserver::fill(&database, fill, &contract).await.step(unfilled)?;
                site.database = Some(database);
            }
        }
        Ok(site)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("bench.db")
    }

    /// Tells a service which store it has.
    fn name_store(&self, command: &mut Command) {
        let Some(database) = &self.database else {
            command.env("SM_STORE", format!("sqlite:{}", self.file().display()));
            return;
        };
        command.env("SM_STORE", database.connection_string());
        if let Some(password) = &database.server.password {
            command.env("SM_STORE_PASSWORD", password);
        }
        if let Some(file) = &database.server.token_file {
            command.env("SM_STORE_TOKEN_FILE", file);
        }
    }

    fn registry(&self) -> PathBuf {
        self.directory.path().join("targets.json")
    }
}

impl Deployment {
    /// A deployment that already runs at this URL.
    pub(super) fn at(url: &str, target: &str) -> Self {
        let url = url.trim_end_matches('/').to_owned();
        Self { url, targets: vec![target.to_owned()], leader_ready: None, own: None, http: client() }
    }

    /// Starts the service on a site, with `SM_RETENTION` set to `retention` if it is given.
    pub(super) async fn start(site: Site, retention: Option<&str>) -> BenchResult<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .env("SM_LISTEN", "127.0.0.1:0")
            .env("SM_REGISTRY", site.registry())
            .env_remove("RUST_LOG")
            .env_remove("SM_API_CLIENTS")
            .env_remove("SM_AUTH")
            .env_remove("SM_RETENTION")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        site.name_store(&mut command);
        if let Some(retention) = retention {
            command.env("SM_RETENTION", retention);
        }
        let mut child = command.spawn().step(|| "cannot start the service")?;
        let log = child.stderr.take().ok_or("the service has no log")?;
        let own = Own { child: Process(child), site };
        let (url, leader_ready) = tokio::task::spawn_blocking(move || watch_start(log)).await??;
        let (targets, hung) = (own.site.targets.clone(), own.site.hung);
        let deployment = Self { url, targets, leader_ready: Some(leader_ready), own: Some(own), http: client() };
        deployment.submit_to_hung(hung).await?;
        Ok(deployment)
    }

    async fn submit_to_hung(&self, gateways: u32) -> BenchResult {
        for (number, gateway) in
            (0..HUNG_BACKLOG).flat_map(|number| (0..gateways).map(move |gateway| (number, gateway)))
        {
            let intent = json!({ "intentId": format!("hung {gateway} {number}"), "submissionTarget": format!("hung.{gateway}"),
                "payload": {} });
            let request = self.http.post(format!("{}/v1/intents", self.url)).send_json(&intent);
            let response = request.await.step(|| "cannot submit to a hung gateway")?;
            if !response.status().is_success() {
                return Err(format!(
                    "cannot submit to a hung gateway: the service responded with {}",
                    response.status()
                )
                .into());
            }
        }
        Ok(())
    }

    /// Plans and starts a redrive of all failed intents, as fast as one may be. Fails if it has other than `failed` intents.
    pub(super) async fn redrive(&self, failed: u64) -> BenchResult {
        let plan = self.post("/v1/redrives", json!({ "filter": {} })).await?;
        if plan["count"] != failed {
            return Err(format!("the redrive has {} intents instead of {failed}", plan["count"]).into());
        }
        let id = plan["redriveId"].as_str().ok_or("the redrive has no id")?;
        self.post(&format!("/v1/redrives/{id}/start"), json!({ "ratePerSecond": RedriveRate::MAX })).await.map(drop)
    }

    /// Cancels the redrives that run.
    pub(super) async fn cancel_redrives(&self) -> BenchResult {
        let page: Value = parsed(&self.get("/v1/redrives").await?)?;
        let running = page["redrives"].as_array().into_iter().flatten().filter(|redrive| redrive["state"] == "running");
        for id in running.filter_map(|redrive| redrive["redriveId"].as_str()) {
            self.post(&format!("/v1/redrives/{id}/cancel"), json!({})).await?;
        }
        Ok(())
    }

    async fn post(&self, path: &str, body: Value) -> BenchResult<Value> {
        let request = self.http.post(format!("{}{path}", self.url)).send_json(&body);
        let mut response = request.await.step(|| format!("POST {path}"))?;
        let body = response.body().await.step(|| format!("POST {path}"))?;
        let text = String::from_utf8_lossy(&body);
        if !response.status().is_success() {
            return Err(format!("POST {path}: the service responded with {}: {text}", response.status()).into());
        }
        parsed(&text)
    }

    /// Ends the process and keeps its files for another one.
    pub(super) fn into_site(self) -> Option<Site> {
        self.own.map(|own| own.site)
    }

    pub(super) fn stop(&mut self) {
        self.own = None;
    }

    /// What the process has used so far; `None` if the bench did not start it.
    pub(super) fn usage(&self) -> Option<Usage> {
        let own = self.own.as_ref()?;
        let files = own.site.database.is_none().then(|| own.site.directory.path());
        Usage::of(own.child.0.id(), files)
    }

    /// What its SQL Server has counted so far, and the round trips to it; `None` if it has none.
    pub(super) async fn spent(&self) -> BenchResult<Option<(Counters, usize)>> {
        // Each call waits for a connection once.
        const ROUND_TRIPS: &str = "submission_store_connection_wait_seconds_count";
        let Some(database) = self.own.as_ref().and_then(|own| own.site.database.as_ref()) else { return Ok(None) };
        Ok(Some((Counters::read(database).await?, self.total(ROUND_TRIPS).await?)))
    }

    /// How many intents have ended by now; `None` if the process is not ours and may have others.
    pub(super) async fn ended(&self) -> BenchResult<Option<usize>> {
        match self.own {
            Some(_) => self.terminal_total().await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits until all submitted intents have ended, and returns the time since the start of the run.
    pub(super) async fn until_terminal(
        &self,
        submitted: &Submitted,
        mut progress: impl FnMut(&dyn Fn() -> String),
    ) -> BenchResult<Duration> {
        const PATIENCE: Duration = Duration::from_secs(600);
        let wanted = submitted.answered() + 1; // One more intent was submitted before the others.
        loop {
            let ended = match self.own {
                Some(_) => self.terminal_total().await?,
                None => wanted - usize::from(self.some_pending().await?),
            };
            let waited = monotonic().duration_since(submitted.began);
            if ended >= wanted {
                return Ok(waited);
            }
            if waited > PATIENCE {
                return Err(format!("{} intents have not ended after {waited:?}", wanted - ended).into());
            }
            progress(&|| format!("{ended} of {wanted} have ended"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn terminal_total(&self) -> BenchResult<usize> {
        self.total("submission_intents_terminal_total").await
    }

    /// The sum of a counter over its labels.
    pub(super) async fn total(&self, counter: &str) -> BenchResult<usize> {
        let text = self.get("/metrics").await?;
        let counts = text.lines().filter(|line| line.starts_with(counter));
        let total: f64 = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        Ok(total as usize)
    }

    async fn some_pending(&self) -> BenchResult<bool> {
        let page: Value = parsed(&self.get("/v1/intents?status=pending&limit=1").await?)?;
        Ok(page["intents"].as_array().is_some_and(|intents| !intents.is_empty()))
    }

    /// The times from creation to end of all intents of the run, by the store's clock.
    pub(super) async fn times_to_terminal(&self, submitted: &Submitted) -> BenchResult<Vec<Duration>> {
        let wanted = submitted.answered();
        let mut times = Vec::with_capacity(wanted);
        let mut cursor = String::new();
        while times.len() < wanted {
            let page: Value = parsed(&self.get(&format!("/v1/intents?limit=200&cursor={cursor}")).await?)?;
            for intent in page["intents"].as_array().into_iter().flatten() {
                let moment = |field: &str| intent[field].as_str().and_then(Timestamp::parse);
                let ours = intent["intentId"].as_str().is_some_and(|id| id.contains(&submitted.run));
                if let (true, Some(created), Some(ended)) = (ours, moment("createdAt"), moment("completedAt")) {
                    times.push(ended.since(created));
                }
            }
            match page["nextCursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
        Ok(times)
    }

    pub(super) async fn get(&self, path: &str) -> BenchResult<String> {
        let request = self.http.get(format!("{}{path}", self.url));
        let mut response = request.send().await.step(|| format!("GET {path}"))?;
        let body = response.body().limit(64 * 1024 * 1024).await.step(|| format!("GET {path}"))?;
        if !response.status().is_success() {
            return Err(format!("GET {path}: the service responded with {}", response.status()).into());
        }
        Ok(String::from_utf8(body.to_vec())?)
    }
}

fn client() -> awc::Client {
    awc::Client::builder().timeout(Duration::from_secs(60)).finish()
}

fn parsed(text: &str) -> BenchResult<Value> {
    Ok(serde_json::from_str(text).step(|| format!("not JSON: {text}"))?)
}

/// The service ended before it led.
#[derive(Debug, thiserror::Error)]
#[error("the service did not start: {last_line}")]
struct NotStarted {
    last_line: String,
}

/// Reads the log until the service leads. Returns its URL, and how long it took from acquiring the lease until it was ready.
/// A thread continues to read the log, so that the service never blocks on a full pipe.
fn watch_start(log: impl std::io::Read + Send + 'static) -> Result<(String, Duration), NotStarted> {
    let mut lines = BufReader::new(log).lines();
    let (mut url, mut acquired) = (None, None::<Instant>);
    let mut seen = String::new();
    while let Some(Ok(line)) = lines.next() {
        if let Some(address) = line.split("listening address=").nth(1).and_then(|rest| rest.split(' ').next()) {
            url = Some(format!("http://{address}"));
        }
        if line.contains("leader_acquired") {
            acquired = Some(monotonic());
        }
        if let (true, Some(url), Some(acquired)) = (line.contains("leader_ready"), &url, acquired) {
            let ready = (url.clone(), monotonic().duration_since(acquired));
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(ready);
        }
        seen = line;
    }
    Err(NotStarted { last_line: seen })
}

/// The resources that a process and its files, if it keeps any, use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub cpu: Duration,
    pub peak_memory: u64,
    pub memory: u64,
    pub disk: Option<u64>,
}

impl Usage {
    fn of(pid: u32, directory: Option<&Path>) -> Option<Self> {
        /// The unit of CPU time in `/proc` on Linux.
        const TICKS_PER_SECOND: u64 = 100;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let kib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        let files = directory.and_then(|directory| std::fs::read_dir(directory).ok());
        let disk = files.map(|files| files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum());
        Some(Self {
            cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
            peak_memory: kib("VmHWM:")? * 1024,
            memory: kib("VmRSS:")? * 1024,
            disk,
        })
    }

    /// The cost of `intents` since `before`.
    pub(super) fn since(&self, before: &Self, intents: usize) -> Cost {
        let thousands = (intents as f64 / 1000.0).max(f64::MIN_POSITIVE);
        Cost {
            cpu_seconds: (self.cpu.saturating_sub(before.cpu)).as_secs_f64() / thousands,
            disk_bytes: self
                .disk
                .zip(before.disk)
                .map(|(after, before)| after.saturating_sub(before) as f64 / thousands),
            idle_memory: before.memory,
            peak_memory: self.peak_memory,
        }
    }
}

/// What a thousand intents cost; the two memory figures are totals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub cpu_seconds: f64,
    /// `None` if the store is not a file.
    pub disk_bytes: Option<f64>,
    pub idle_memory: u64,
    pub peak_memory: u64,
}
