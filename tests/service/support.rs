//! Starts instances of the real binary and calls their API.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use awc::http::StatusCode;
use serde_json::{Value, json};
use submission_manager::devtools::stand_in_gateway::StandIn;
use submission_manager::platform::clock::monotonic;
use tokio::time::Instant;

use crate::sqlserver::TestDatabase;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_submission-manager");

/// The longest that a test waits for anything. It is long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a registry whose targets all use one gateway, and a store.
///
/// The store is a SQLite file in that directory; with `SM_TEST_SERVICE_STORE=sqlserver` it is a
/// fresh database on the server that `SM_TEST_SQLSERVER` names.
pub(crate) struct Site {
    pub directory: tempfile::TempDir,
    database: Option<TestDatabase>,
    pub lease_duration: Duration,
    /// What [`Self::command`] runs.
    pub binary: PathBuf,
}

impl Site {
    pub(crate) fn new(gateway_url: &str) -> Self {
        let on_server = std::env::var("SM_TEST_SERVICE_STORE").as_deref() == Ok("sqlserver");
        let database = on_server.then(|| TestDatabase::create().expect("SM_TEST_SQLSERVER names a server"));
        Self::with_database(gateway_url, database)
    }

    pub(crate) fn with_database(gateway_url: &str, database: Option<TestDatabase>) -> Self {
        // A server may need some time for the first statements of a connection.
        let lease_duration = Duration::from_secs(if database.is_some() { 15 } else { 2 });
        let site = Self { directory: tempfile::tempdir().unwrap(), database, lease_duration, binary: BINARY.into() };
        let target = |name: &str, policy: Value| {
            let mut target = json!({
                "submissionTarget": name, "gatewayType": "sms", "gatewayUrl": gateway_url,
                "terminalOutcomes": ["invalid_recipient"],
            });
            target.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
            target
        };
        let targets = json!({ "targets": [
            target("deadline", json!({ "policy": "deadline", "maxAcceptanceSeconds": 60 })),
            target("attempts", json!({ "policy": "max_attempts", "maxAttempts": 10 })),
            target("once", json!({ "policy": "one_shot" })),
        ]});
        std::fs::write(site.registry(), targets.to_string()).unwrap();
        site
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.directory.path().join("targets.json")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.directory.path().join("data/submission.db")
    }

    pub(crate) fn store(&self) -> String {
        match &self.database {
            Some(database) => database.connection_string(),
            None => format!("sqlite:{}", self.database().display()),
        }
    }

    /// Whether the store is a SQLite file, which a test may open itself.
    pub(crate) fn is_a_file(&self) -> bool {
        self.database.is_none()
    }

    /// Returns a command that runs the binary with this site's files, a free port and short lease times.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        self.settings(&mut command);
        command
    }

    pub(crate) fn settings(&self, command: &mut Command) {
        let millis = self.lease_duration.as_millis();
        command
            .env("SM_LISTEN", "127.0.0.1:0")
            .env("SM_LEASE_DURATION", format!("{millis}ms"))
            .env("SM_RENEW_INTERVAL", format!("{}ms", millis / 5))
            .env("SM_STORE", self.store())
            .env("SM_REGISTRY", self.registry())
            .env("SM_ACQUIRE_INTERVAL", "100ms")
            .env("SM_SHUTDOWN_DELAY", "0s");
        if !self.is_a_file() {
            command.env("SM_STORE_TIMEOUT", "30s");
        }
    }

    pub(crate) fn start(&self) -> Instance {
        Instance::start(self.command())
    }
}

/// A site with its own stand-in gateway.
pub(crate) fn site() -> (Site, StandIn) {
    let gateway = StandIn::start(true).unwrap();
    (Site::new(&gateway.url), gateway)
}

/// A running instance of the binary; killed when dropped.
pub(crate) struct Instance {
    child: Child,
    pub url: String,
    log: Log,
}

/// The log lines of an instance, and when each was read.
type Log = Arc<(Mutex<Vec<(Instant, String)>>, Condvar)>;

impl Instance {
    pub(crate) fn start(command: Command) -> Self {
        let mut instance = Self::spawn(command);
        let line = instance.wait_for_log("listening address=");
        let address = line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
        instance.url = format!("http://{address}");
        instance
    }

    /// Starts an instance without waiting until it listens, so its address is not known.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::default();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.0.lock().unwrap().push((monotonic(), line));
                kept.1.notify_all();
            }
        });
        Self { child, url: String::new(), log }
    }

    /// Waits for a log line that contains `text`, and returns it.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        let (lines, changed) = &*self.log;
        let guard = lines.lock().unwrap();
        let found =
            |lines: &Vec<(_, String)>| lines.iter().find(|(_, line)| line.contains(text)).map(|(_, line)| line.clone());
        let (guard, _) = changed.wait_timeout_while(guard, PATIENCE, |lines| found(lines).is_none()).unwrap();
        found(&guard).unwrap_or_else(|| panic!("no {text:?} in {guard:#?}"))
    }

    pub(crate) fn log_lines(&self) -> Vec<String> {
        self.log.0.lock().unwrap().iter().map(|(_, line)| line.clone()).collect()
    }

    /// Returns when the first line with `text` was read after `since`.
    pub(crate) fn logged_after(&self, since: Instant, text: &str) -> Option<Instant> {
        let lines = self.log.0.lock().unwrap();
        lines.iter().find(|(at, line)| *at >= since && line.contains(text)).map(|(at, _)| *at)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn api(&self) -> Api {
        Api::new(&self.url)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_waited_for = self.child.wait();
    }
}

/// A running demo, with its address and the token that it printed.
pub(crate) struct Demo {
    pub url: String,
    pub token: String,
    _process: Killed,
}

impl Demo {
    pub(crate) fn start() -> Self {
        let mut command = Command::new(BINARY);
        command.args(["demo", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Killed(command.spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (mut url, mut token) = (None, None);
        while url.is_none() || token.is_none() {
            let line = lines.next().expect("the demo says where it is");
            let console = line.trim().strip_suffix("the operator console");
            url = url.or_else(|| console.map(|rest| rest.trim().trim_end_matches("/ui").to_owned()));
            let mut words = line.split(['\'', ' ', '/']);
            token = token.or_else(|| words.find(|word| word.starts_with("smt_")).map(str::to_owned));
        }
        // Read the rest of its output, so that a full pipe does not stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { url: url.unwrap(), token: token.unwrap(), _process: process }
    }
}

/// A process that is killed when the test ends, even by a panic.
pub(crate) struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _already_waited_for = self.0.wait();
    }
}

/// A client of the HTTP API.
#[derive(Clone)]
pub(crate) struct Api {
    client: awc::Client,
    url: String,
}

pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: awc::http::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Checks the format of an error response, and returns its code.
    pub(crate) fn error(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("not an error: {json}"));
        assert!(error.keys().all(|key| ["code", "message", "details"].contains(&key.as_str())), "{json}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert_eq!(self.header("content-type"), Some("application/json"));
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Api {
    pub(crate) fn new(url: &str) -> Self {
        Self::with_patience(url, PATIENCE)
    }

    pub(crate) fn with_patience(url: &str, patience: Duration) -> Self {
        let connector = awc::Connector::new().limit(0).timeout(patience);
        Self { client: awc::Client::builder().connector(connector).timeout(patience).finish(), url: url.to_owned() }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.call_with(method, path, &[], body).await
    }

    /// Calls with further headers.
    pub(crate) async fn call_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let answer = self.try_call_with(method, path, headers, body.into()).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub(crate) async fn try_call(&self, method: &str, path: &str, body: Vec<u8>) -> Result<Answer, String> {
        self.try_call_with(method, path, &[], body).await
    }

    async fn try_call_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Answer, String> {
        let request = self
            .client
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
            .insert_header(("Content-Type", "application/json"));
        let request = headers.iter().fold(request, |request, header| request.insert_header(*header));
        let mut response = request.send_body(body).await.map_err(|error| error.to_string())?;
        let body = response.body().limit(64 * 1024 * 1024).await.map_err(|error| error.to_string())?.to_vec();
        Ok(Answer { status: response.status(), headers: response.headers().clone(), body })
    }

    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.try_call("GET", path, Vec::new()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    pub(crate) async fn submit(&self, id: &str, target: &str, payload: Value, query: &str) -> Answer {
        let body = json!({ "intentId": id, "submissionTarget": target, "payload": payload });
        self.call("POST", &format!("/v1/intents{query}"), body.to_string()).await
    }

    pub(crate) async fn history(&self, id: &str) -> Value {
        self.get(&format!("/v1/intents/{id}/history")).await.json()
    }

    /// Reads a path again and again until `done` returns true for the answer.
    pub(crate) async fn until(&self, path: &str, done: impl Fn(&Answer) -> bool) -> Answer {
        let mut pace = tokio::time::interval(Duration::from_millis(25));
        let looking = async {
            loop {
                pace.tick().await;
                if let Ok(answer) = self.try_get(path).await
                    && done(&answer)
                {
                    return answer;
                }
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("{path} never got there"))
    }

    pub(crate) async fn until_nothing_is_pending(&self) {
        self.until("/v1/intents?status=pending&limit=1", |answer| {
            answer.status.is_success() && answer.json()["intents"].as_array().is_some_and(Vec::is_empty)
        })
        .await;
    }
}

pub(crate) fn file(path: &Path) -> String {
    path.display().to_string()
}
