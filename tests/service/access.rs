//! Access: pages of other sites may not call an API without tokens, and guessing passwords locks no other user out.

use actix_web::http::StatusCode;
use futures_util::future::join_all;
use serde_json::json;

use crate::jobs::Jobs;
use crate::support::{Answer, Instance, PATIENCE, site};

/// Headers of requests from pages of other sites, and from a page whose host name resolves to this address.
const FOREIGN: [(&str, &str); 5] = [
    ("Origin", "http://evil.example"),
    ("Origin", "null"),
    ("Sec-Fetch-Site", "cross-site"),
    ("Sec-Fetch-Site", "same-site"),
    ("Host", "evil.example:8082"),
];

#[actix::test]
async fn pages_of_other_sites_can_neither_write_nor_read() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "once", json!({}), "?waitSeconds=30").await;
    let intent = r#"{"intentId":"stolen","submissionTarget":"once"}"#;
    let calls = [
        ("POST", "/v1/intents", intent),
        ("POST", "/%76%31/intents", intent),
        ("GET", "/v1/intents", ""),
        ("GET", "/v1/intents/a/history", ""),
        ("POST", "/v1/targets/once/pause", ""),
        ("POST", "/ui/history", "intentId=a"),
        ("POST", "/ui/histor%79", "intentId=a"),
    ];
    for header in FOREIGN {
        for (method, path, body) in calls {
            let answer = api.call_with(method, path, &[header], body).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{header:?} {method} {path}: {}", answer.text());
            assert_eq!(answer.error(), "forbidden");
        }
        for path in ["/ui", "/ui/intents", "/ui/targets/once/pause"] {
            let method = if path.ends_with("pause") { "POST" } else { "GET" };
            let answer = api.call_with(method, path, &[header], "").await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{header:?} {path}");
            assert!(!answer.text().contains("once"), "{header:?} {path}");
        }
    }
    assert_eq!(api.get("/v1/intents/stolen").await.status, StatusCode::NOT_FOUND);
    assert_eq!(gateway.ledger.len(), 1);
    let targets = api.get("/v1/targets").await.json();
    assert!(targets["targets"].as_array().unwrap().iter().all(|target| target["state"] == "active"), "{targets}");

    // Programs, our own pages, typed addresses, links, and every name of this machine.
    let origin = instance.url.clone();
    let host_name = gethostname::gethostname().into_string().unwrap();
    for headers in [
        vec![],
        vec![("Origin", origin.as_str())],
        vec![("Sec-Fetch-Site", "same-origin")],
        vec![("Sec-Fetch-Site", "none")],
        vec![("Host", "localhost:8082")],
        vec![("Host", "[::1]:8082")],
        vec![("Host", host_name.as_str())],
    ] {
        for (method, path, body) in [("GET", "/v1/intents", ""), ("POST", "/ui/history", "intentId=a")] {
            let answer = api.call_with(method, path, &headers, body).await;
            assert_eq!(answer.status, StatusCode::OK, "{headers:?} {path}: {}", answer.text());
        }
        assert_eq!(api.call_with("GET", "/ui", &headers, "").await.status, StatusCode::OK, "{headers:?}");
    }
    let link = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")];
    assert_eq!(api.call_with("GET", "/ui/intents/a", &link, "").await.status, StatusCode::OK);
    // Platforms may call these under any host name.
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(api.call_with("GET", path, &FOREIGN[4..], "").await.status, StatusCode::OK, "{path}");
    }
}

#[actix::test]
async fn with_tokens_or_beyond_loopback_any_host_name_is_accepted() {
    let jobs = Jobs::new();
    let mut command = jobs.command();
    command.env("SM_AUTH", "required");
    let guarded = Instance::start(command);
    let bearer = ("Authorization", "Bearer acme");
    for header in FOREIGN {
        let answer = guarded.api().call_with("GET", "/v1/intents", &[bearer, header], "").await;
        assert_eq!(answer.status, StatusCode::OK, "{header:?}: {}", answer.text());
    }
    drop(guarded);
    let (site, _gateway) = site();
    let mut command = site.command();
    command.env("SM_LISTEN", "0.0.0.0:0");
    let mut open = Instance::start(command);
    open.url = open.url.replace("0.0.0.0", "127.0.0.1");
    let list = async |header| open.api().call_with("GET", "/v1/intents", &[header], "").await.status;
    assert_eq!(list(("Host", "submissions.example")).await, StatusCode::OK);
    for header in &FOREIGN[..4] {
        assert_eq!(list(*header).await, StatusCode::FORBIDDEN, "{header:?}");
    }
}

/// Requests a page of the console from this local address.
async fn page(instance: &Instance, from: [u8; 4], authorization: &str) -> Answer {
    let connector = awc::Connector::new().limit(0).timeout(PATIENCE).local_address(from.into());
    let client = awc::Client::builder().connector(connector).timeout(PATIENCE).finish();
    let request = client.get(format!("{}/ui/targets", instance.url)).insert_header(("Authorization", authorization));
    let mut response = request.send().await.unwrap();
    let body = response.body().limit(16 * 1024 * 1024).await.unwrap().to_vec();
    Answer { status: response.status(), headers: response.headers().clone(), body }
}

fn basic(given: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(given))
}

#[actix::test]
async fn two_hundred_wrong_passwords_lock_no_other_user_out() {
    let (site, _gateway) = site();
    let mut command = site.command();
    command.env("SM_CONSOLE_AUTH", format!("ops:{}", bcrypt::hash("secret", 8).unwrap()));
    let instance = Instance::start(command);
    let (guesser, operator, colleague) = ([127, 0, 0, 1], [127, 0, 0, 2], [127, 0, 0, 3]);
    let right = basic("ops:secret");
    assert_eq!(page(&instance, operator, &right).await.status, StatusCode::OK);

    let guesses = join_all((0..200).map(|number| {
        let (instance, wrong) = (&instance, basic(&format!("ops:{number}")));
        async move { page(instance, guesser, &wrong).await }
    }));
    let known = async {
        for _ in 0..20 {
            assert_eq!(page(&instance, operator, &right).await.status, StatusCode::OK);
            assert_eq!(page(&instance, guesser, &right).await.status, StatusCode::OK, "also from where one guesses");
        }
    };
    let (answers, ()) = tokio::join!(guesses, known);
    for answer in &answers {
        match answer.status {
            StatusCode::UNAUTHORIZED => {}
            StatusCode::TOO_MANY_REQUESTS => {
                assert!(answer.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    let metrics = instance.api().get("/metrics").await.text();
    let counted = |result: &str| {
        let name = format!("submission_console_logins_total{{result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<usize>().ok()).unwrap_or(0)
    };
    let wrong = answers.iter().filter(|answer| answer.status == StatusCode::UNAUTHORIZED).count();
    assert_eq!((counted("right"), counted("wrong"), counted("limited")), (1, wrong, 200 - wrong));
    assert!((1..=20).contains(&wrong), "{wrong} were looked at");
    // A password that was not checked before is checked, if it comes from an address that did not guess.
    assert_eq!(page(&instance, colleague, &basic("ops:typo")).await.status, StatusCode::UNAUTHORIZED);
    let long = basic(&format!("ops:{}", "x".repeat(73)));
    assert_eq!(page(&instance, colleague, &long).await.status, StatusCode::UNAUTHORIZED);
}
