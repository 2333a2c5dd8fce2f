//! The operator console in a real Chromium, on a running demo. This file drives the browser; its folder has the tests.
//!
//! Uses the protocol of ChromeDriver directly. Screenshots of every page are saved in `target/screenshots`. If `SM_AXE` is
//! the path of axe-core, that checks every page too; `make accessibility` sets it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::{Killed, PATIENCE};

mod actions;
mod failures;
mod frame;
mod lists;
mod pages;
mod tasks;

/// Starts a process, waits for a line with `text`, and returns the word after it.
pub(crate) fn start(mut command: Command, text: &str) -> (Killed, String) {
    try_start(&mut command, text).unwrap_or_else(|| panic!("{:?} did not say {text:?}", command.get_program()))
}

/// Does the same, but returns `None` if the process ends without such a line.
fn try_start(command: &mut Command, text: &str) -> Option<(Killed, String)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap_or_else(|error| {
        panic!("{:?}: {error}; install the Debian packages chromium and chromium-driver", command.get_program())
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let running = Killed(child);
    let rest =
        lines.by_ref().map_while(Result::ok).find_map(|line| line.split_once(text).map(|(_, rest)| rest.to_owned()))?;
    // Read the rest of its output, so that a full pipe does not stop it.
    std::thread::spawn(move || lines.for_each(drop));
    Some((running, rest.split_whitespace().next().unwrap_or_default().trim_end_matches('.').to_owned()))
}

/// Starts ChromeDriver and returns its port. It chooses a free port for IPv6 and then needs the same one for IPv4, so it ends
/// if another process has that one.
fn start_driver() -> (Killed, String) {
    let mut command = Command::new("chromedriver");
    command.arg("--port=0");
    let started = (0..10).find_map(|_| try_start(&mut command, "started successfully on port "));
    started.expect("ChromeDriver starts")
}

pub(crate) struct Browser {
    session: String,
    client: awc::Client,
    _driver: Killed,
    _profile: tempfile::TempDir,
}

/// A browser outlives a ChromeDriver that is killed, so it is closed first.
impl Drop for Browser {
    fn drop(&mut self) {
        let _chromedriver_is_gone = self.close();
    }
}

impl Browser {
    pub(crate) async fn open() -> Self {
        let (driver, port) = start_driver();
        let profile = tempfile::tempdir().unwrap();
        let mut args: Vec<String> = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--window-size=1100,900",
            "--host-resolver-rules=MAP submissions.example 127.0.0.1",
        ]
        .map(str::to_owned)
        .to_vec();
        args.push(format!("--user-data-dir={}", profile.path().display()));
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": args }, "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        }}});
        let client = awc::Client::builder().timeout(PATIENCE).finish();
        let base = format!("http://127.0.0.1:{port}/session");
        let made = Self::send(&client, "POST", &base, &wanted).await;
        let session = format!("{base}/{}", made["sessionId"].as_str().unwrap());
        Self { session, client, _driver: driver, _profile: profile }
    }

    /// Asks ChromeDriver to end the browser, and waits until it has.
    fn close(&self) -> std::io::Result<()> {
        let (address, path) = self.session.trim_start_matches("http://").split_once('/').unwrap_or_default();
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "DELETE /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        stream.read(&mut [0]).map(drop)
    }

    async fn send(client: &awc::Client, method: &str, url: &str, body: &Value) -> Value {
        let request = client.request(method.parse().unwrap(), url);
        let sent = if method == "GET" { request.send() } else { request.send_json(body) };
        let mut response = sent.await.unwrap();
        let answer: Value = serde_json::from_slice(&response.body().limit(64 << 20).await.unwrap()).unwrap();
        assert!(response.status().is_success(), "{url}: {answer}");
        answer["value"].clone()
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        Self::send(&self.client, method, &format!("{}{path}", self.session), &body).await
    }

    pub(crate) async fn go(&self, url: &str) {
        self.call("POST", "/url", json!({ "url": url })).await;
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Returns the visible text of the page.
    pub(crate) async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap().to_owned()
    }

    pub(crate) async fn until(&self, script: &str) {
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        let looking = async {
            while self.run(script).await != true {
                pace.tick().await;
            }
        };
        if tokio::time::timeout(PATIENCE, looking).await.is_err() {
            panic!("never: {script}\n{}", self.text().await);
        }
    }

    pub(crate) async fn until_text(&self, text: &str) {
        self.until(&format!("return document.body.innerText.includes({})", json!(text))).await;
    }

    pub(crate) async fn click(&self, selector: &str) {
        let element = self.call("POST", "/element", json!({ "using": "css selector", "value": selector })).await;
        let id = element.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned();
        self.call("POST", &format!("/element/{id}/click"), json!({})).await;
    }

    /// Types text, or presses keys by their codes in WebDriver, where the focus is.
    async fn press(&self, keys: &str) {
        let keys = keys.chars().flat_map(|key| {
            [
                json!({ "type": "keyDown", "value": key.to_string() }),
                json!({ "type": "keyUp", "value": key.to_string() }),
            ]
        });
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys.collect::<Vec<_>>() }] });
        self.call("POST", "/actions", actions).await;
    }

    async fn protocol(&self, command: &str, params: Value) {
        self.call("POST", "/goog/cdp/execute", json!({ "cmd": command, "params": params })).await;
    }

    pub(crate) async fn screenshot(&self, name: &str) {
        let png = STANDARD.decode(self.call("GET", "/screenshot", json!({})).await.as_str().unwrap()).unwrap();
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screenshots");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("{name}.png")), png).unwrap();
    }

    /// Checks a page: no errors, readable on a phone, in light and dark.
    pub(crate) async fn look_at(&self, name: &str) {
        self.until("return document.readyState === 'complete'").await;
        self.screenshot(name).await;
        let media = |scheme: &str| json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.protocol("Emulation.setEmulatedMedia", media("dark")).await;
        self.screenshot(&format!("{name}-dark")).await;
        self.axe(&format!("{name}, dark")).await;
        self.protocol("Emulation.setEmulatedMedia", media("light")).await;
        self.axe(name).await;
        let phone = json!({ "width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true });
        self.protocol("Emulation.setDeviceMetricsOverride", phone).await;
        let width = self.run("return document.documentElement.scrollWidth").await;
        assert!(width.as_u64().unwrap() <= 360, "{name} is {width} wide on a phone");
        self.screenshot(&format!("{name}-phone")).await;
        self.protocol("Emulation.clearDeviceMetricsOverride", json!({})).await;
        self.is_without_errors(name).await;
    }

    /// Asserts that no error and no violation of the content security policy was logged since the last call.
    pub(crate) async fn is_without_errors(&self, name: &str) {
        let log = self.call("POST", "/se/log", json!({ "type": "browser" })).await;
        let severe: Vec<_> = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE").collect();
        assert!(severe.is_empty(), "{name}: {severe:#?}");
    }

    /// Forgets the errors that a test has caused on purpose.
    async fn forget_errors(&self) {
        self.call("POST", "/se/log", json!({ "type": "browser" })).await;
    }

    /// Returns the requests of pages since the last call.
    async fn requests(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", json!({ "type": "performance" })).await;
        let events = log.as_array().unwrap().iter().map(|entry| {
            let event: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            event["message"].clone()
        });
        let sent = events.filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }

    async fn axe(&self, name: &str) {
        let Ok(path) = std::env::var("SM_AXE") else { return };
        let axe = std::fs::read_to_string(path).unwrap();
        self.run(&axe).await;
        let script = "const done = arguments[arguments.length - 1];
            axe.run().then((found) => done(found.violations.map((v) => v.id + ': ' + v.help + ' ' + v.nodes.map((n) => n.html).join(' '))));";
        let found = self.call("POST", "/execute/async", json!({ "script": script, "args": [] })).await;
        assert_eq!(found, json!([]), "{name}");
    }
}
