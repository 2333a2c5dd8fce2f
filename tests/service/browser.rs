//! The operator console in a real Chromium, on a running demo: what a person sees and does.
//!
//! Talks to ChromeDriver in its own protocol, which is a handful of calls. Screenshots of every page
//! are left in `target/screenshots`. With `SM_AXE` naming a file with axe-core, every page is looked
//! at by that too; `make accessibility` does so.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::{Api, Demo, Killed, PATIENCE};

/// Starts it and waits for a line with `text`; what follows there up to the next blank.
fn start(mut command: Command, text: &str) -> (Killed, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap_or_else(|error| {
        panic!("{:?}: {error}; install the Debian packages chromium and chromium-driver", command.get_program())
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let running = Killed(child);
    let found =
        lines.by_ref().map_while(Result::ok).find_map(|line| line.split_once(text).map(|(_, rest)| rest.to_owned()));
    let rest = found.unwrap_or_else(|| panic!("{:?} did not say {text:?}", command.get_program()));
    // Whatever else it says must not stop it.
    std::thread::spawn(move || lines.for_each(drop));
    (running, rest.split_whitespace().next().unwrap_or_default().trim_end_matches('.').to_owned())
}

struct Browser {
    session: String,
    client: awc::Client,
    _driver: Killed,
    _profile: tempfile::TempDir,
}

impl Browser {
    async fn open() -> Self {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0");
        let (driver, port) = start(command, "started successfully on port ");
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

    async fn go(&self, url: &str) {
        self.call("POST", "/url", json!({ "url": url })).await;
    }

    async fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// The text of the page, as a person reads it.
    async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap().to_owned()
    }

    async fn until(&self, script: &str) {
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

    async fn until_text(&self, text: &str) {
        self.until(&format!("return document.body.innerText.includes({})", json!(text))).await;
    }

    async fn click(&self, selector: &str) {
        let element = self.call("POST", "/element", json!({ "using": "css selector", "value": selector })).await;
        let id = element.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned();
        self.call("POST", &format!("/element/{id}/click"), json!({})).await;
    }

    async fn protocol(&self, command: &str, params: Value) {
        self.call("POST", "/goog/cdp/execute", json!({ "cmd": command, "params": params })).await;
    }

    async fn screenshot(&self, name: &str) {
        let png = STANDARD.decode(self.call("GET", "/screenshot", json!({})).await.as_str().unwrap()).unwrap();
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screenshots");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("{name}.png")), png).unwrap();
    }

    /// What every page must be: without errors, and readable on a phone, in light and dark.
    async fn look_at(&self, name: &str) {
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

    /// Nothing went wrong since this was asked last, nor was anything against the page's policy.
    async fn is_without_errors(&self, name: &str) {
        let log = self.call("POST", "/se/log", json!({ "type": "browser" })).await;
        let severe: Vec<_> = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE").collect();
        assert!(severe.is_empty(), "{name}: {severe:#?}");
    }

    /// What pages have asked for since this was asked last.
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

#[actix::test]
async fn a_person_finds_out_what_happened() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    let browser = Browser::open().await;

    browser.go(&format!("{url}/ui")).await;
    browser.until_text("Leader:").await;
    browser.until("return document.querySelectorAll('svg.chart rect').length > 0").await;
    let hostile = "<img src=x onerror=\"window.pwned=1\">";
    let wish = json!({ "simulate": format!("reject:{hostile}"), "note": "</pre><script>window.pwned=1</script>" });
    api.submit(hostile, "sms.otp", wish, "?waitSeconds=30").await;
    browser.until_text("Recent failures").await;
    browser.until("return document.querySelectorAll('table td').length > 0").await;
    browser.look_at("overview").await;

    // Found by how it begins, page by page, with a link to share.
    for n in 0..60 {
        api.submit(&format!("page-{n:02}"), "sms.realtime", json!({}), "").await;
    }
    browser.go(&format!("{url}/ui/intents")).await;
    browser.run("document.querySelector('#q').value = 'page-'").await;
    browser.click("form.filter button").await;
    browser.until("return location.search.includes('q=page-')").await;
    browser.until("return document.querySelectorAll('tbody tr').length === 50").await;
    browser.look_at("intents").await;
    browser.click(".pages a").await;
    browser.until("return document.querySelectorAll('tbody tr').length === 10").await;
    assert!(browser.text().await.contains("page-59"));

    // From pending to accepted before one's eyes.
    let slow = json!({ "to": "+46700000001", "message": "Hello", "simulate": "fail:1" });
    api.submit("live-1", "sms.bulk", slow, "").await;
    browser.go(&format!("{url}/ui/intents/live-1")).await;
    browser.run("window.sameDocument = true").await;
    browser.until_text("Waiting for attempt 2").await;
    browser.screenshot("intent-waiting").await;
    browser.until_text("Accepted by the gateway on attempt 2.").await;
    browser.until_text("Delivered on try 1.").await;
    assert_eq!(browser.run("return window.sameDocument").await, true, "it was not loaded anew");
    let zoned = "return [...document.querySelectorAll('time')].every((time) => time.title === time.dateTime)";
    browser.until(zoned).await;
    browser.look_at("intent").await;
    browser.click("form button").await;
    browser.until_text("Delivered on try 2.").await;

    // Whatever others wrote is shown as text.
    let encoded = percent_encoding::utf8_percent_encode(hostile, percent_encoding::NON_ALPHANUMERIC);
    browser.go(&format!("{url}/ui/intents/{encoded}")).await;
    browser.until_text(hostile).await;
    assert!(!browser.text().await.contains("</pre>"), "the payload is hidden until asked for");
    browser.click("#payload button").await;
    browser.until_text("</pre><script>window.pwned=1</script>").await;
    assert_eq!(browser.run("return document.images.length === 0 && window.pwned === undefined").await, true);
    browser.look_at("hostile").await;

    browser.go(&format!("{url}/ui/targets")).await;
    browser.until_text("sms.realtime").await;
    browser.until_text("accepted within 30 s").await;
    browser.look_at("targets").await;
    // Paused and resumed by a click.
    browser.click("button[aria-label='Pause sms.otp']").await;
    browser.until("return document.querySelector(\"button[aria-label='Resume sms.otp']\") !== null").await;
    browser.until_text("paused since").await;
    browser.look_at("targets-paused").await;
    let waits = api.submit("paused-1", "sms.otp", json!({}), "?waitSeconds=1").await.json();
    assert_eq!(waits["status"], "pending");
    browser.go(&format!("{url}/ui/intents/paused-1")).await;
    browser.until_text("its target has been paused for").await;
    browser.go(&format!("{url}/ui/targets")).await;
    browser.click("button[aria-label='Resume sms.otp']").await;
    browser.until("return document.querySelector(\"button[aria-label='Pause sms.otp']\") !== null").await;
    browser.go(&format!("{url}/ui/intents/paused-1")).await;
    browser.until_text("Accepted by the gateway on attempt 1.").await;
    browser.go(&format!("{url}/ui/targets")).await;
    browser.run("document.querySelector('tbody a').focus()").await;
    browser.click("tbody a").await;
    browser.until("return location.pathname === '/ui/intents'").await;
}

#[actix::test]
async fn no_page_asks_another_host_for_anything() {
    let demo = Demo::start();
    let url = &demo.url;
    Api::new(url).submit("a", "sms.otp", json!({}), "?waitSeconds=30").await;
    let browser = Browser::open().await;
    // Under a name that does not say that it is this machine: what would be told to others is told only then.
    let named = url.replace("127.0.0.1", "submissions.example");
    let pages = [
        (format!("{named}/docs/"), "Submit an intent"),
        (format!("{url}/docs"), "Submit an intent"),
        (format!("{url}/ui"), "Leader:"),
        (format!("{url}/ui/intents"), "sms.otp"),
        (format!("{url}/ui/intents/a"), "Accepted by the gateway"),
        (format!("{url}/ui/jobs"), "Jobs"),
        (format!("{url}/ui/inbox"), "Inbox"),
        (format!("{url}/ui/inbox/contacts"), "Contacts"),
        (format!("{url}/ui/targets"), "sms.realtime"),
        (format!("{url}/ui/nothing"), "Not found"),
    ];
    browser.go("about:blank").await;
    let _of_the_browser_itself = browser.requests().await;
    for (page, text) in pages {
        browser.go(&page).await;
        browser.until("return document.readyState === 'complete'").await;
        browser.until_text(text).await;
        if page.contains("/docs") {
            browser.click(".opblock-summary-control").await;
            browser.until("return document.querySelector('.try-out button') !== null").await;
            browser.is_without_errors(&page).await;
        }
        let requests = browser.requests().await;
        assert!(requests.contains(&page), "{page} is not among {requests:?}");
        for request in requests.iter().filter(|request| !request.starts_with("data:")) {
            assert!(request.starts_with(url) || request.starts_with(&named), "{page} asks for {request}");
        }
    }
}
