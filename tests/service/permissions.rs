//! Who may call what: every route of the API and the console with every scope and every role. A new route fails a test here
//! until it has an entry in the table.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use submission_manager::domain::client::Scope;
use submission_manager::domain::role::Role;
use submission_manager::domain::signature::Secret;
use submission_manager::web::permissions::{Needs, ROUTES};

use crate::jobs::{self, Jobs};
use crate::support::{Answer, Api, Instance, site};

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Anyone,
    /// Whoever uses a page of the console.
    OwnPage,
    /// A token with this scope.
    Token(&'static str),
    /// A token with this scope and for this tenant.
    Tenant(&'static str),
    /// Whoever can sign the body.
    Signer,
    /// A console user in this role or a higher one.
    Person(&'static str),
}

use Who::{Anyone, OwnPage, Person, Signer, Tenant, Token};

const EXPECTED: &[(&str, &str, Who)] = &[
    ("GET", "/v1/intents", Token("intents:read")),
    ("POST", "/v1/intents", Token("intents:write")),
    ("POST", "/v1/intents/batch", Token("intents:write")),
    ("GET", "/v1/intents/{intentId}", Token("intents:read")),
    ("GET", "/v1/intents/{intentId}/history", Token("intents:read")),
    ("POST", "/v1/intents/{intentId}/webhook/redeliver", Token("intents:write")),
    ("POST", "/v1/intents/{intentId}/cancel", Token("intents:write")),
    ("POST", "/v1/intents/{intentId}/redrive", Token("admin")),
    ("GET", "/v1/redrives", Token("admin")),
    ("POST", "/v1/redrives", Token("admin")),
    ("GET", "/v1/redrives/{redriveId}", Token("admin")),
    ("POST", "/v1/redrives/{redriveId}/start", Token("admin")),
    ("POST", "/v1/redrives/{redriveId}/pause", Token("admin")),
    ("POST", "/v1/redrives/{redriveId}/resume", Token("admin")),
    ("POST", "/v1/redrives/{redriveId}/cancel", Token("admin")),
    ("GET", "/v1/targets", Token("admin")),
    ("POST", "/v1/targets/{submissionTarget}/pause", Token("admin")),
    ("POST", "/v1/targets/{submissionTarget}/resume", Token("admin")),
    ("GET", "/v1/audit", Token("admin")),
    ("GET", "/v1/events", Token("intents:read")),
    ("GET", "/v1/events/stream", Token("intents:read")),
    ("GET", "/v1/jobs", Tenant("jobs:read")),
    ("POST", "/v1/jobs", Tenant("jobs:submit")),
    ("GET", "/v1/jobs/events", Tenant("jobs:read")),
    ("GET", "/v1/jobs/events/stream", Tenant("jobs:read")),
    ("GET", "/v1/jobs/{submission_id}", Tenant("jobs:read")),
    ("GET", "/v1/jobs/{submission_id}/history", Tenant("jobs:read")),
    ("POST", "/v1/jobs/{submission_id}/cancel", Tenant("jobs:submit")),
    ("GET", "/v1/inbox/submissions", Token("inbox:read")),
    ("POST", "/v1/inbox/submissions", Token("inbox:write")),
    ("POST", "/v1/inbox/submissions/reprocess", Token("inbox:write")),
    ("GET", "/v1/inbox/submissions/{id}", Token("inbox:read")),
    ("POST", "/v1/inbox/submissions/{id}/reprocess", Token("inbox:write")),
    ("GET", "/v1/inbox/contacts", Token("inbox:read")),
    ("GET", "/v1/inbox/messages", Token("inbox:read")),
    ("POST", "/v1/inbox/hooks/{client_slug}/{channel}", Signer),
    ("GET", "/healthz", Anyone),
    ("GET", "/readyz", Anyone),
    ("GET", "/metrics", Anyone),
    ("GET", "/openapi.json", Anyone),
    ("GET", "/docs", Anyone),
    ("GET", "/docs/{file:.*}", Anyone),
    ("POST", "/ui/history", Token("intents:read")),
    ("GET", "/", Anyone),
    ("GET", "/ui", Person("viewer")),
    ("GET", "/ui/search", Person("viewer")),
    ("GET", "/ui/failures", Person("viewer")),
    ("GET", "/ui/intents", Person("viewer")),
    ("GET", "/ui/intents/{intentId}", Person("viewer")),
    ("GET", "/ui/intents/{intentId}/payload", Person("operator")),
    ("GET", "/ui/intents/{intentId}/edit", Person("operator")),
    ("POST", "/ui/intents/{intentId}/redrive", Person("operator")),
    ("POST", "/ui/intents/{intentId}/redeliver", Person("operator")),
    ("POST", "/ui/intents/{intentId}/cancel", Person("operator")),
    ("GET", "/ui/export", Person("viewer")),
    ("POST", "/ui/cancel-intents", Person("operator")),
    ("POST", "/ui/redeliver-events", Person("operator")),
    ("GET", "/ui/redrives", Person("viewer")),
    ("POST", "/ui/redrives", Person("operator")),
    ("GET", "/ui/redrives/{redriveId}", Person("viewer")),
    ("POST", "/ui/redrives/{redriveId}/start", Person("operator")),
    ("POST", "/ui/redrives/{redriveId}/pause", Person("operator")),
    ("POST", "/ui/redrives/{redriveId}/resume", Person("operator")),
    ("POST", "/ui/redrives/{redriveId}/cancel", Person("operator")),
    ("GET", "/ui/jobs", Person("viewer")),
    ("GET", "/ui/inbox", Person("viewer")),
    ("POST", "/ui/inbox/reprocess", Person("operator")),
    ("GET", "/ui/inbox/submissions/{id}", Person("viewer")),
    ("GET", "/ui/inbox/submissions/{id}/payload", Person("operator")),
    ("POST", "/ui/inbox/submissions/{id}/reprocess", Person("operator")),
    ("POST", "/ui/inbox/clients/{slug}/reprocess", Person("operator")),
    ("GET", "/ui/inbox/contacts", Person("viewer")),
    ("GET", "/ui/inbox/contacts/{id}", Person("viewer")),
    ("GET", "/ui/targets", Person("viewer")),
    ("GET", "/ui/targets/{submissionTarget}", Person("viewer")),
    ("POST", "/ui/targets/{submissionTarget}/pause", Person("operator")),
    ("POST", "/ui/targets/{submissionTarget}/resume", Person("operator")),
    ("GET", "/ui/audit", Person("admin")),
    ("GET", "/ui/assets/{name}", Anyone),
    ("GET", "/ui/sign-in", Anyone),
    ("GET", "/ui/sign-in/start", Anyone),
    ("GET", "/ui/sign-in/callback", Anyone),
    ("POST", "/ui/sign-in/password", OwnPage),
    ("GET", "/ui/sign-out", Anyone),
    ("POST", "/ui/sign-out", OwnPage),
];

#[test]
fn every_route_is_in_the_table() {
    let who = |needs| match needs {
        Needs::Nothing => Anyone,
        Needs::OwnPage => OwnPage,
        Needs::Scope(scope) => Token(scope.as_str()),
        Needs::TenantScope(scope) => Tenant(scope.as_str()),
        Needs::Signature => Signer,
        Needs::Role(role) => Person(role.as_str()),
    };
    for route in ROUTES {
        let (method, path) = (route.method, route.path);
        let entry = EXPECTED.iter().find(|entry| (entry.0, entry.1) == (method, path));
        let (.., expected) = entry.unwrap_or_else(|| panic!("{method} {path} has no entry"));
        assert_eq!(who(route.needs), *expected, "{method} {path}");
    }
    assert_eq!(ROUTES.len(), EXPECTED.len(), "an entry is not a route");
}

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every resource of the sources has a path of the table, and none is made without the check.
#[test]
fn every_resource_of_the_sources_is_checked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    let mut seen = BTreeSet::new();
    // The two folders of helpers for tests and benchmarks have servers of their own.
    for file in files.iter().filter(|file| !file.starts_with(root.join("devtools"))) {
        let text = std::fs::read_to_string(file).unwrap();
        let inside = file.strip_prefix(&root).unwrap().display().to_string();
        let prefix = if inside == "console/mod.rs" { "/ui" } else { "" };
        for call in ["resource(\"", "resource(with_and_without_slash(\""] {
            for rest in text.split(call).skip(1) {
                seen.insert(format!("{prefix}{}", rest.split('"').next().unwrap()));
            }
        }
        let unchecked = text.matches("web::resource(").count() + text.matches("web::scope(").count();
        let allowed = match inside.as_str() {
            // The helpers themselves, the 404 below `/v1/jobs`, and the scope of the console.
            "web/mod.rs" => 2,
            "console/mod.rs" => 3,
            "api/jobs/mod.rs" => 2,
            "api/history_fragment.rs" => 1,
            _ => 0,
        };
        assert_eq!(unchecked, allowed, "src/{inside} makes a resource that checks nobody");
        assert!(!text.contains(".route(\""), "src/{inside} makes a route that checks nobody");
    }
    seen.remove("/v1/jobs/{path:.*}");
    seen.insert("/ui/history".to_owned());
    let expected: BTreeSet<_> = EXPECTED.iter().map(|(_, path, _)| (*path).to_owned()).collect();
    assert_eq!(seen, expected);
}

/// A path with values for its parameters.
fn filled(path: &str) -> String {
    let id = "5f0c6c3e-8f5e-4a34-9f3a-0b6f0f3a1f10";
    [
        ("{intentId}", "a"),
        ("{submissionTarget}", "once"),
        ("{submission_id}", id),
        ("{client_slug}", "acme"),
        ("{channel}", "form"),
        ("{slug}", "acme"),
        ("{name}", "console.css"),
        ("{file:.*}", "index.html"),
        ("{id}", if path.starts_with("/ui/inbox/contacts") { "1" } else { id }),
    ]
    .iter()
    .fold(path.to_owned(), |path, (name, value)| path.replace(name, value))
}

async fn call(api: &Api, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let (body, query) = match (method, path) {
        ("POST", "/v1/intents") => (r#"{"intentId":"a","submissionTarget":"once"}"#.to_owned(), ""),
        ("POST", "/v1/jobs") => (jobs::command().to_string(), ""),
        ("GET" | "HEAD", "/v1/jobs") => (String::new(), "?tenant_id=acme"),
        ("POST", "/ui/history") => ("intentId=a".to_owned(), ""),
        ("GET" | "HEAD", "/v1/jobs/events") => (String::new(), "?tenant_id=acme"),
        // A stream would not end.
        ("GET" | "HEAD", "/v1/events/stream") => (String::new(), "?after=nothing"),
        ("GET" | "HEAD", "/v1/jobs/events/stream") => (String::new(), "?tenant_id=acme&after=nothing"),
        _ => (String::new(), ""),
    };
    api.call_with(method, &format!("{}{query}", filled(path)), headers, body).await
}

/// A service with jobs, an inbox, tokens for each scope, and console users in each role. Names of users are their roles;
/// tokens are scopes; passwords are `password of ` and the name.
struct Guarded {
    instance: Instance,
    directory: tempfile::TempDir,
    _jobs: Jobs,
}

fn user(name: &str, role: &str) -> Value {
    let hash = bcrypt::hash(format!("password of {name}"), 10).unwrap();
    json!({ "name": name, "passwordHash": hash, "role": role })
}

fn basic(name: &str) -> String {
    use base64::Engine;
    let given = format!("{name}:password of {name}");
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(given))
}

impl Guarded {
    fn start() -> Self {
        let jobs = Jobs::new();
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &Value| {
            let path = directory.path().join(name);
            std::fs::write(&path, content.to_string()).unwrap();
            path
        };
        let token = |scope: Scope| {
            let name = scope.as_str();
            let hash: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "clientId": name, "tokenSha256": hash, "scopes": [name],
                "tenants": [{ "tenantId": "acme", "workspaceIds": ["*"] }] })
        };
        let clients = json!({ "clients": Scope::ALL.map(token) });
        let inbox = json!({ "clients": [{ "clientSlug": "acme", "channels": ["form"], "hookSecretEnv": "HOOK" }] });
        let users = json!({ "users": Role::ALL.map(|role| user(role.as_str(), role.as_str())) });
        let mut command = jobs.command();
        command
            .env("SM_API_CLIENTS", write("clients.json", &clients))
            .env("SM_INBOX_CLIENTS", write("inbox.json", &inbox))
            .env("SM_CONSOLE_USERS", write("users.json", &users))
            .env("HOOK", Secret::text_of(&[7; 32]))
            .env("SM_AUTH", "required")
            .env("SM_CONSOLE_AUTH", format!("root:{}", bcrypt::hash("password of root", 4).unwrap()));
        Self { instance: Instance::start(command), directory, _jobs: jobs }
    }

    fn api(&self) -> Api {
        self.instance.api()
    }
}

#[actix::test]
async fn every_call_of_the_api_needs_its_scope() {
    let guarded = Guarded::start();
    let api = guarded.api();
    let known = Scope::ALL.map(Scope::as_str);
    for (method, path, who) in EXPECTED {
        let methods: &[&str] = if *method == "GET" { &["GET", "HEAD"] } else { &[method] };
        for method in methods {
            for token in ["", "unknown"].iter().chain(&known) {
                let bearer = format!("Bearer {token}");
                let headers = [("Authorization", bearer.as_str())];
                let answer = call(&api, method, path, if token.is_empty() { &[] } else { &headers }).await;
                let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&answer.status);
                let expected = match who {
                    Anyone => None,
                    OwnPage => Some(StatusCode::FORBIDDEN),
                    Token(scope) | Tenant(scope) if token == scope => None,
                    Token(_) | Tenant(_) if known.contains(token) => Some(StatusCode::FORBIDDEN),
                    Token(_) | Tenant(_) | Signer | Person(_) => Some(StatusCode::UNAUTHORIZED),
                };
                match expected {
                    // It leads to the console, which needs a person.
                    None if *path == "/" => {}
                    None => assert!(!refused, "{method} {path} with {token:?}: {}", answer.text()),
                    Some(status) => assert_eq!(answer.status, status, "{method} {path} with {token:?}"),
                }
            }
        }
        for other in ["PUT", "PATCH", "DELETE", "POST", "GET"] {
            // An intent may have the id `batch`.
            let is_intent = other == "GET" && *path == "/v1/intents/batch";
            if !is_intent && !EXPECTED.iter().any(|entry| (entry.0, entry.1) == (other, *path)) {
                let root = [("Authorization", basic("root")), ("Sec-Fetch-Site", "same-origin".to_owned())];
                let root = root.each_ref().map(|(name, value)| (*name, value.as_str()));
                let console = path.starts_with("/ui") && *path != "/ui/history";
                let headers = if console { &root[..] } else { &[] };
                let status = call(&api, other, path, headers).await.status;
                assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{other} {path}");
            }
        }
    }
}

#[actix::test]
async fn every_page_and_button_of_the_console_needs_its_role() {
    let guarded = Guarded::start();
    let api = guarded.api();
    let rank = |role: &str| Role::ALL.iter().position(|known| known.as_str() == role);
    for (method, path, who) in EXPECTED {
        let Person(needed) = who else { continue };
        for (name, role) in [
            ("", ""),
            ("nobody", ""),
            ("viewer", "viewer"),
            ("operator", "operator"),
            ("admin", "admin"),
            ("root", "admin"),
        ] {
            let authorization = basic(name);
            let headers = [("Sec-Fetch-Site", "same-origin"), ("Authorization", authorization.as_str())];
            let answer = call(&api, method, path, &headers[..if name.is_empty() { 1 } else { 2 }]).await;
            let what = format!("{method} {path} as {name:?}: {}", answer.text());
            let limited = answer.status == StatusCode::TOO_MANY_REQUESTS;
            match rank(role) {
                None => assert!(answer.status == StatusCode::UNAUTHORIZED || limited && name == "nobody", "{what}"),
                role if role >= rank(needed) => {
                    assert!(![401, 403, 429].contains(&answer.status.as_u16()), "{what}");
                }
                _ => {
                    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{what}");
                    assert!(answer.text().contains(&format!("This needs the role {needed}.")), "{what}");
                }
            }
            let policy = answer.header("content-security-policy").unwrap();
            assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{what}");
        }
        // Every action, of whatever role, must come from a page of the console.
        if *method == "POST" {
            let authorization = basic("admin");
            for foreign in [("Sec-Fetch-Site", "cross-site"), ("Origin", "https://evil.example"), ("X-Any", "thing")] {
                let answer = call(&api, method, path, &[foreign, ("Authorization", &authorization)]).await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{foreign:?} {path}");
                assert!(answer.text().contains("did not come from a page of this console"), "{}", answer.text());
            }
        }
    }
}

#[actix::test]
async fn a_role_sees_only_the_buttons_that_it_may_use() {
    let guarded = Guarded::start();
    let api = guarded.api();
    let write = [("Authorization", "Bearer intents:write")];
    let intent = r#"{"intentId":"a","submissionTarget":"once","payload":{"secret":"of the payload"}}"#;
    api.call_with("POST", "/v1/intents?waitSeconds=30", &write, intent).await;
    let failing =
        r#"{"intentId":"failed","submissionTarget":"attempts","payload":{"simulate":"reject:invalid_recipient"}}"#;
    api.call_with("POST", "/v1/intents?waitSeconds=30", &write, failing).await;
    api.call_with("POST", "/v1/targets/attempts/pause", &[("Authorization", "Bearer admin")], "").await;
    api.call_with("POST", "/v1/intents", &write, r#"{"intentId":"b","submissionTarget":"attempts"}"#).await;
    let inbox = [("Authorization", "Bearer inbox:write")];
    let message = r#"{"client_slug":"acme","channel":"form","payload":{"email":"ann@example.com","message":"of Ann"}}"#;
    let id = api.call_with("POST", "/v1/inbox/submissions", &inbox, message).await.json()["id"].clone();
    // Without a way to answer, it fails and keeps its button.
    let failing = r#"{"client_slug":"acme","channel":"form","payload":{"message":"nobody"}}"#;
    let failed = api.call_with("POST", "/v1/inbox/submissions", &inbox, failing).await.json()["id"].clone();
    let (processed, failed) = (id.as_str().unwrap().to_owned(), failed.as_str().unwrap().to_owned());
    let read = [("Authorization", "Bearer inbox:read")];
    let path = format!("/v1/inbox/submissions/{processed}");
    while api.call_with("GET", &path, &read, "").await.json()["state"] != "processed" {
        tokio::task::yield_now().await;
    }
    for (path, always, button) in [
        ("/ui/targets".to_owned(), "one attempt", "Pause once"),
        ("/ui/targets/once".to_owned(), "Contracts over time", "Pause once"),
        ("/ui/targets/attempts".to_owned(), "Paused since", "Resume attempts"),
        ("/ui/failures".to_owned(), "invalid_recipient", "Plan redrive"),
        ("/ui/intents/failed".to_owned(), "Rejected by the gateway", "Edit and redrive"),
        ("/ui/intents/a".to_owned(), "Accepted by the gateway", "Show payload"),
        ("/ui/intents/b".to_owned(), "Submitted", "Cancel intent"),
        (format!("/ui/inbox/submissions/{failed}"), "Client", "<button>Reprocess</button>"),
        (format!("/ui/inbox/submissions/{processed}"), "Contact", "of Ann"),
        (format!("/ui/inbox/submissions/{processed}"), "Contact", "Show payload"),
        ("/ui/inbox?client_slug=acme".to_owned(), "Newest first", "Reprocess all parked submissions"),
        ("/ui/inbox/contacts/1".to_owned(), "ann@example.com", "of Ann"),
    ] {
        for name in ["viewer", "operator", "admin"] {
            let page = api.call_with("GET", &path, &[("Authorization", &basic(name))], "").await.text();
            assert!(page.contains(always), "{name} {path}: {page}");
            assert_eq!(page.contains(button), name != "viewer", "{name} {path}: {page}");
            assert!(page.contains(&format!("{name} <span class=\"quiet\">({name})</span>")), "{page}");
            let post = page.contains("method=\"post\"");
            assert!(name != "viewer" || !post, "{path} shows a viewer a button: {page}");
        }
    }
}

#[actix::test]
async fn changed_users_count_from_the_reload_on() {
    let guarded = Guarded::start();
    let api = guarded.api();
    let path = "/ui/targets/once/pause";
    let pause = async |name: &str| {
        let headers = [("Sec-Fetch-Site", "same-origin"), ("Authorization", &basic(name))];
        // After an action the browser is sent to the page.
        api.call_with("POST", path, &headers, "").await.status
    };
    assert_eq!((pause("viewer").await, pause("operator").await), (StatusCode::FORBIDDEN, StatusCode::OK));
    let file = guarded.directory.path().join("users.json");
    std::fs::write(&file, json!({ "users": [user("viewer", "operator")] }).to_string()).unwrap();
    guarded.instance.signal("HUP");
    guarded.instance.wait_for_log("registry_reloaded");
    assert_eq!((pause("viewer").await, pause("operator").await), (StatusCode::OK, StatusCode::UNAUTHORIZED));
    assert_eq!(pause("root").await, StatusCode::OK, "the administrator of the settings stays");
    std::fs::write(&file, json!({ "users": [] }).to_string()).unwrap();
    guarded.instance.signal("HUP");
    guarded.instance.wait_for_log("registry_kept");
    assert_eq!(pause("viewer").await, StatusCode::OK);
}

#[actix::test]
async fn check_reports_every_error_in_the_users() {
    let (site, _gateway) = site();
    let path = site.directory.path().join("users.json");
    let users = json!({ "users": [{ "name": "a:b", "passwordHash": "hunter2", "role": "root" }] });
    std::fs::write(&path, users.to_string()).unwrap();
    let output = site.command().arg("check").env("SM_CONSOLE_USERS", &path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for expected in
        ["users[0].name: must not contain a colon", "users[0].passwordHash: must be a bcrypt", "users[0].role"]
    {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    assert!(!output.status.success() && !said.contains("hunter2"), "{said}");
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/registry/console_users.json");
    let output = site.command().arg("check").env("SM_CONSOLE_USERS", sample).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("console_users=3"));
}
