//! The operator console over HTTP: access, headers, and the content of pages. `browser.rs` tests it in a real browser.

use actix_web::http::StatusCode;
use serde_json::json;
use submission_manager::devtools::webhook_sink::Sink;
use submission_manager::domain::signature::Secret;

use crate::support::{Answer, Instance, PATIENCE, Site, site};

/// The output of `htpasswd -nbB ops secret`, with the lowest bcrypt cost.
const LOGIN: &str = "ops:$2y$04$KO6AKOYrq.Y70AC.aOtHR.1JwEEPCLX7tjzDcsnDO4hZaIFmUIP3O";
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'&amp;/../ \u{202e}é";

async fn get(instance: &Instance, path: &str, headers: &[(&str, &str)]) -> Answer {
    call(instance, "GET", path, headers).await
}

async fn call(instance: &Instance, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let client = awc::Client::builder().disable_redirects().timeout(PATIENCE).finish();
    let mut request = client.request(method.parse().unwrap(), format!("{}{path}", instance.url));
    for header in headers {
        request = request.insert_header(*header);
    }
    let mut response = request.send().await.unwrap();
    let body = response.body().limit(16 * 1024 * 1024).await.unwrap().to_vec();
    Answer { status: response.status(), headers: response.headers().clone(), body }
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[actix::test]
async fn pages_show_what_happened_and_hostile_text_as_text() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let hostile = json!({ "simulate": format!("reject:{HOSTILE}"), "text": "</pre><script>alert(2)</script>" });
    api.submit(HOSTILE, "once", hostile, "?waitSeconds=30").await;
    api.submit("plain", "attempts", json!({ "simulate": "reject:invalid_recipient" }), "?waitSeconds=30").await;

    let page = get(&instance, &format!("/ui/intents/{}", encoded(HOSTILE)), &[]).await;
    assert_eq!(page.status, StatusCode::OK);
    let text = page.text();
    assert!(text.contains("Exhausted after the one attempt that the contract allows."), "{text}");
    assert!(text.contains("&lt;img src=x onerror=alert(1)&gt;") || text.contains("&#60;img src=x"), "{text}");
    assert!(!text.contains("<img") && !text.contains("simulate"), "not escaped, or a payload unasked for: {text}");
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("script-src 'self';") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!((page.header("referrer-policy"), page.header("cache-control")), (Some("no-referrer"), Some("no-store")));

    let payload = get(&instance, &format!("/ui/intents/{}/payload", encoded(HOSTILE)), &[]).await.text();
    assert!(
        payload.contains("<pre id=\"payload-stored\">") && payload.contains("SHA-256") && !payload.contains("<script>"),
        "{payload}"
    );
    let plain = get(&instance, "/ui/intents/plain", &[]).await.text();
    assert!(plain.contains("Rejected by the gateway on attempt 1: invalid_recipient"), "{plain}");
    assert!(plain.contains("<svg class=\"timeline\"") && !plain.contains("data-every"), "it is over: {plain}");

    for (query, shown, hidden) in [
        ("", vec!["/ui/intents/plain", "onerror"], vec![]),
        ("?q=pla", vec!["/ui/intents/plain"], vec!["onerror=alert(1)&gt;</code>"]),
        ("?status=rejected", vec!["/ui/intents/plain"], vec!["/ui/intents/%3Cimg"]),
        ("?submissionTarget=once", vec!["/ui/intents/%3Cimg"], vec!["/ui/intents/plain"]),
        ("?status=pending", vec!["No intents found."], vec!["/ui/intents/plain"]),
        ("?createdAfter=1d", vec!["/ui/intents/plain"], vec![]),
        ("?createdAfter=soon", vec!["Write a time such as 10m", "aria-invalid"], vec!["/ui/intents/plain"]),
        ("?stauts=x", vec!["There is no filter"], vec!["/ui/intents/plain"]),
        ("?q=%3Cscript%3E", vec!["No intents found.", "&#60;script&#62;"], vec!["<script>"]),
    ] {
        let list = get(&instance, &format!("/ui/intents{query}"), &[]).await.text();
        for text in shown {
            assert!(list.contains(text), "{query}: no {text} in {list}");
        }
        for text in hidden {
            assert!(!list.contains(text), "{query}: {text} in {list}");
        }
    }
    let overview = get(&instance, "/ui", &[]).await.text();
    assert!(overview.contains("Leader: <code>") && overview.contains("(this one)"), "{overview}");
    let targets = get(&instance, "/ui/targets", &[]).await.text();
    assert!(targets.contains("up to 10 attempts") && targets.contains("accepted within 1 min"), "{targets}");
    for (path, status) in [
        ("/ui/intents/nobody", StatusCode::NOT_FOUND),
        ("/ui/nothing", StatusCode::NOT_FOUND),
        ("/ui/assets/console.css", StatusCode::OK),
        ("/ui/assets/htmx.js", StatusCode::OK),
        ("/ui/assets/secrets", StatusCode::NOT_FOUND),
    ] {
        assert_eq!(get(&instance, path, &[]).await.status, status, "{path}");
    }
    // Failures by cause, with links to exactly these intents.
    let failures = get(&instance, "/ui/failures", &[]).await.text();
    assert!(failures.contains("invalid_recipient") && !failures.contains("<img"), "{failures}");
    let list = get(&instance, "/ui/intents?status=rejected&cause=invalid_recipient&endedSince=10m", &[]).await.text();
    assert!(list.contains("/ui/intents/plain") && !list.contains("onerror=alert(1)&gt;</code>"), "{list}");
    let other = get(&instance, "/ui/intents?cause=provider_failure", &[]).await.text();
    assert!(!other.contains("/ui/intents/plain\""), "{other}");
    let json = api.get("/v1/intents?q=pla").await.json();
    assert_eq!(json["intents"][0]["intentId"], "plain");
}

#[actix::test]
async fn the_button_redelivers_the_webhook_and_works_only_from_our_own_page() {
    let (site, _gateway) = site();
    let secret = Secret::text_of(&[3; 32]);
    let sink = Sink::start(Secret::parse_list(&secret).unwrap(), Box::new(|_| ())).unwrap();
    let text = std::fs::read_to_string(site.registry()).unwrap();
    let mut registry: serde_json::Value = serde_json::from_str(&text).unwrap();
    registry["targets"][2]["webhook"] = json!({ "url": sink.url, "secretEnv": "HOOK_SECRET" });
    std::fs::write(site.registry(), registry.to_string()).unwrap();
    let mut command = site.command();
    command.env("HOOK_SECRET", secret);
    let instance = Instance::start(command);
    let api = instance.api();
    api.submit("a", "once", json!({}), "?waitSeconds=30").await;
    api.until("/v1/intents/a/history", |answer| answer.json()["webhook"]["status"] == "delivered").await;
    let page = get(&instance, "/ui/intents/a", &[]).await.text();
    assert!(page.contains("Delivered on try 1.") && page.contains("/ui/intents/a/redeliver"), "{page}");

    let press = async |headers: &[(&str, &str)]| call(&instance, "POST", "/ui/intents/a/redeliver", headers).await;
    for foreign in [vec![], vec![("Sec-Fetch-Site", "cross-site")], vec![("Origin", "http://elsewhere.test")]] {
        assert_eq!(press(&foreign).await.status, StatusCode::FORBIDDEN, "{foreign:?}");
    }
    let done = press(&[("Sec-Fetch-Site", "same-origin")]).await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, Some("/ui/intents/a")));
    let two = |answer: &Answer| answer.json()["webhook"]["tries"].as_array().is_some_and(|tries| tries.len() == 2);
    api.until("/v1/intents/a/history", two).await;
    assert_eq!(sink.arrived().len(), 2);
}

fn start(site: &Site, change: impl FnOnce(&mut std::process::Command)) -> Instance {
    let mut command = site.command();
    change(&mut command);
    Instance::start(command)
}

#[actix::test]
async fn beyond_loopback_a_password_is_required() {
    let (site, _gateway) = site();
    let mut open = start(&site, |command| {
        command.env("SM_LISTEN", "0.0.0.0:0");
    });
    open.url = open.url.replace("0.0.0.0", "127.0.0.1");
    let closed = get(&open, "/ui", &[]).await;
    assert_eq!(closed.status, StatusCode::FORBIDDEN);
    assert!(closed.text().contains("SM_CONSOLE_AUTH"), "{}", closed.text());
    assert_eq!(get(&open, "/v1/intents", &[]).await.status, StatusCode::OK, "the API is not concerned");
    drop(open);

    let guarded = start(&site, |command| {
        command.env("SM_CONSOLE_AUTH", LOGIN).env("SM_CONSOLE_PAYLOADS", "off");
        command.env("SM_CONSOLE_FRAMES", "https://portal.example");
    });
    let right = ("Authorization", "Basic b3BzOnNlY3JldA==");
    let wrong = ("Authorization", "Basic b3BzOmd1ZXNz");
    for headers in [vec![], vec![wrong]] {
        let refused = get(&guarded, "/ui/intents", &headers).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        assert!(refused.header("www-authenticate").unwrap().starts_with("Basic "));
    }
    let page = get(&guarded, "/ui/intents", &[right]).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.header("content-security-policy").unwrap().ends_with("frame-ancestors https://portal.example"));
    guarded.api().submit("a", "once", json!({ "secret": "payload" }), "?waitSeconds=30").await;
    let intent = get(&guarded, "/ui/intents/a", &[right]).await.text();
    assert!(!intent.contains("Show payload"), "{intent}");
    assert_eq!(get(&guarded, "/ui/intents/a/payload", &[right]).await.status, StatusCode::FORBIDDEN);

    let output = site.command().arg("check").env("SM_CONSOLE_AUTH", "ops:hunter2").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--console-auth or SM_CONSOLE_AUTH must be a line") && !said.contains("hunter2"), "{said}");
}
