//! Sign-in to the console with OpenID Connect, sessions and sign-out. `browser.rs` uses a real provider and a real browser;
//! the other files use a provider that can be made to misbehave.

mod browser;
mod provider;
mod refusals;
mod sessions;

use std::collections::BTreeMap;
use std::process::Command;

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use submission_manager::devtools::stand_in_gateway::StandIn;
use url::Url;

use self::provider::{CLIENT, Provider, SECRET};
use crate::support::{Answer, Instance, PATIENCE, Site, site};

/// A key for sessions: 32 bytes in base64.
const SESSION_KEY: &str = "c2Vzc2lvbiBrZXkgb2YgdGhlIHRlc3RzLCAzMiBieXQ=";

/// The `oidc` of a file of console users.
fn oidc(issuer: &str) -> Value {
    json!({ "issuer": issuer, "clientId": CLIENT, "clientSecretEnv": "CLIENT_SECRET", "roleClaim": "groups",
        "roles": { "readers": "viewer", "ops": "operator", "chiefs": "admin" } })
}

/// A site whose console has the provider, and perhaps users.
struct Console {
    site: Site,
    _gateway: StandIn,
}

impl Console {
    fn new(file: &Value) -> Self {
        let (site, gateway) = site();
        let console = Self { site, _gateway: gateway };
        console.write(file);
        console
    }

    fn with(provider: &Provider) -> Self {
        Self::new(&json!({ "oidc": oidc(&provider.url) }))
    }

    fn write(&self, file: &Value) {
        std::fs::write(self.site.directory.path().join("users.json"), file.to_string()).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = self.site.command();
        command
            .env("SM_CONSOLE_USERS", self.site.directory.path().join("users.json"))
            .env("SM_SESSION_KEY", SESSION_KEY)
            .env("CLIENT_SECRET", SECRET);
        command
    }

    fn start(&self) -> Instance {
        Instance::start(self.command())
    }
}

/// A browser without scripts: it keeps cookies and follows no redirect.
#[derive(Default)]
struct Visitor {
    cookies: BTreeMap<String, String>,
}

impl Visitor {
    async fn send(&mut self, method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let client = awc::Client::builder().disable_redirects().timeout(PATIENCE).finish();
        let mut request = client.request(method.parse().unwrap(), url);
        for header in headers {
            request = request.insert_header(*header);
        }
        if !self.cookies.is_empty() {
            let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.insert_header(("Cookie", cookies.join("; ")));
        }
        let mut response = request.send_body(body.to_owned()).await.unwrap();
        let body = response.body().limit(16 * 1024 * 1024).await.unwrap().to_vec();
        let answer = Answer { status: response.status(), headers: response.headers().clone(), body };
        for cookie in answer.headers.get_all("set-cookie") {
            let (pair, attributes) = cookie.to_str().unwrap().split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            match attributes.contains("Max-Age=0") {
                true => drop(self.cookies.remove(name)),
                false => drop(self.cookies.insert(name.to_owned(), value.to_owned())),
            }
        }
        answer
    }

    /// Opens a page as a click on a link of another site does.
    async fn open(&mut self, url: &str) -> Answer {
        let link = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html")];
        self.send("GET", url, &link, "").await
    }

    /// Sends a form of a page of the console.
    async fn post(&mut self, url: &str, form: &str) -> Answer {
        let own = [("Sec-Fetch-Site", "same-origin"), ("Content-Type", "application/x-www-form-urlencoded")];
        self.send("POST", url, &own, form).await
    }

    /// Begins a sign-in, and returns what the console asks of the provider.
    async fn begin(&mut self, instance: &Instance, return_to: &str) -> Request {
        let answer = self.open(&format!("{}/ui/sign-in/start?return={return_to}", instance.url)).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text());
        Request::of(answer.header("location").unwrap())
    }

    /// Signs in: the provider lets everybody in.
    async fn sign_in(&mut self, instance: &Instance, provider: &Provider, return_to: &str) -> Answer {
        let request = self.begin(instance, return_to).await;
        let code = provider.code(&request);
        self.open(&request.answer(&code)).await
    }

    fn has_session(&self) -> bool {
        self.cookies.keys().any(|name| name.ends_with("sm-session"))
    }
}

/// What the console asks of the provider when a sign-in begins.
struct Request {
    url: Url,
}

impl Request {
    fn of(url: &str) -> Self {
        Self { url: Url::parse(url).unwrap() }
    }

    fn get(&self, wanted: &str) -> String {
        let found = self.url.query_pairs().find(|(name, _)| name == wanted);
        found.unwrap_or_else(|| panic!("no {wanted} in {}", self.url)).1.into_owned()
    }

    /// The address to which the provider sends the browser with a code.
    fn answer(&self, code: &str) -> String {
        format!("{}?code={code}&state={}", self.get("redirect_uri"), self.get("state"))
    }
}
