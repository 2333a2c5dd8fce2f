//! Everything that can go wrong with a sign-in: each has a page and a line in the log, and nobody is let in.

use std::time::Duration;

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use super::provider::{Fault, Provider};
use super::{Console, Visitor};
use crate::support::{Answer, Instance, PATIENCE};

const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The log lines about refused sign-ins.
fn refusals(instance: &Instance) -> Vec<String> {
    instance.log_lines().into_iter().filter(|line| line.contains("console_sign_in_refused")).collect()
}

/// Asserts that a sign-in was refused with this page, logged once for this reason, and left no session.
fn assert_refused(instance: &Instance, visitor: &Visitor, answer: &Answer, before: usize, expected: (u16, &str, &str)) {
    let (status, reason, title) = expected;
    let text = answer.text();
    assert_eq!(answer.status.as_u16(), status, "{reason}: {text}");
    assert!(text.contains(&format!("<h1>{title}</h1>")), "{reason}: {text}");
    assert!(!visitor.has_session(), "{reason}");
    // The log comes through a pipe.
    let lines = loop {
        let lines = refusals(instance);
        if lines.len() > before {
            break lines;
        }
        std::thread::yield_now();
    };
    assert_eq!(lines.len(), before + 1, "{reason}: {lines:#?}");
    assert!(lines[before].contains(&format!("reason={reason} ")), "{lines:#?}");
    for text in [&lines.join("\n"), &text] {
        assert!(!text.contains("PLANTED") && !text.contains("eyJ"), "a code or a token in {text}");
    }
}

/// Tries again and again until it succeeds.
async fn until(mut attempt: impl AsyncFnMut() -> bool) {
    let mut pace = tokio::time::interval(Duration::from_millis(250));
    let trying = async {
        while !attempt().await {
            pace.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, trying).await.expect("it never succeeded");
}

#[actix::test]
async fn each_wrong_token_has_a_page_and_lets_nobody_in() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    type Change = fn(&mut Value);
    let cases: [(Change, (u16, &str, &str)); 8] = [
        (
            |c| c["iss"] = "https://evil.example".into(),
            (403, "wrong_issuer", "The sign-in came from another identity provider"),
        ),
        (|c| c["aud"] = "another".into(), (403, "wrong_audience", "The sign-in was meant for another application")),
        (
            |c| c["aud"] = json!(["console", "another"]),
            (403, "wrong_audience", "The sign-in was meant for another application"),
        ),
        (|c| c["nonce"] = "another".into(), (403, "wrong_nonce", "The sign-in belongs to another request")),
        (
            |c| (c["iat"], c["exp"]) = (1_000_000_000.into(), 1_000_000_300.into()),
            (403, "expired", "The sign-in has expired"),
        ),
        (|c| c["iat"] = (c["iat"].as_i64().unwrap() + 300).into(), (403, "clock_skew", "The clocks do not agree")),
        (|c| c["groups"] = json!(["staff"]), (403, "no_role", "No role")),
        (|c| drop(c.as_object_mut().unwrap().remove("sub")), (502, "invalid_token", "The sign-in cannot be read")),
    ];
    for (index, (change, expected)) in cases.iter().enumerate() {
        provider.claims(*change);
        let mut visitor = Visitor::default();
        let answer = visitor.sign_in(&instance, &provider, "/ui").await;
        assert_refused(&instance, &visitor, &answer, index, *expected);
        assert_eq!(visitor.open(&format!("{}/ui", instance.url)).await.status, StatusCode::SEE_OTHER);
    }
    // A difference of the clocks of up to a minute does not matter. Of several roles the highest counts.
    provider.claims(|c| {
        c["iat"] = (c["iat"].as_i64().unwrap() + 30).into();
        c["groups"] = json!(["readers", "chiefs", "ops"]);
    });
    let mut visitor = Visitor::default();
    visitor.sign_in(&instance, &provider, "/ui").await;
    assert!(instance.wait_for_log("console_signed_in").contains("role=admin"));
    visitor.post(&format!("{}/ui/sign-out", instance.url), "").await;

    // Each of them is in the audit log. A person is named only if the provider has said who it is.
    let entries = instance.api().get("/v1/audit?limit=200").await.json()["entries"].clone();
    let reasons: Vec<_> = cases.iter().map(|(_, (_, reason, _))| *reason).collect();
    let mut entries = entries.as_array().unwrap().iter().rev();
    for reason in reasons {
        let entry = entries.next().unwrap();
        assert_eq!((&entry["action"], &entry["details"]["reason"]), (&json!("sign_in_refused"), &json!(reason)));
        assert_eq!(entry["actor"]["name"].is_string(), reason == "no_role", "{entry}");
    }
    let signed_in = entries.next().unwrap();
    let details = &signed_in["details"];
    assert_eq!((&signed_in["action"], &details["role"]), (&json!("sign_in"), &json!("admin")));
    assert!(details["with"] == "provider" && details["providerSubject"].is_string(), "{signed_in}");
    let signed_out = entries.next().unwrap();
    assert_eq!((&signed_out["action"], &signed_out["actor"]), (&json!("sign_out"), &signed_in["actor"]));
    assert!(entries.next().is_none());
}

#[actix::test]
async fn an_answer_that_does_not_belong_to_a_sign_in_is_refused() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mismatch = (400, "state_mismatch", "This sign-in did not begin here");
    let mut visitor = Visitor::default();
    let request = visitor.begin(&instance, "/ui").await;
    let code = provider.code(&request);
    // Somebody else follows the link with this person's code.
    let mut other = Visitor::default();
    let answer = other.open(&request.answer(&code)).await;
    assert_refused(&instance, &other, &answer, 0, mismatch);
    other.begin(&instance, "/ui").await;
    let answer = other.open(&request.answer(&code)).await;
    assert_refused(&instance, &other, &answer, 1, mismatch);
    let answer = other.open(&format!("{}/ui/sign-in/callback", instance.url)).await;
    assert_refused(&instance, &other, &answer, 2, mismatch);
    assert_eq!(provider.requests("/token"), 0, "no code was exchanged");
    // An answer of another provider, and one that says no.
    let answer = visitor.open(&format!("{}&iss=https%3A%2F%2Fevil.example", request.answer(&code))).await;
    assert_refused(
        &instance,
        &visitor,
        &answer,
        3,
        (403, "wrong_issuer", "The sign-in came from another identity provider"),
    );
    let request = visitor.begin(&instance, "/ui").await;
    let no = format!(
        "{}?error=access_denied&error_description=PLANTED&state={}",
        request.get("redirect_uri"),
        request.get("state")
    );
    let answer = visitor.open(&no).await;
    assert_refused(
        &instance,
        &visitor,
        &answer,
        4,
        (403, "denied_by_provider", "The identity provider refused the sign-in"),
    );
    assert!(refusals(&instance)[4].contains("access_denied"));
}

#[actix::test]
async fn a_code_works_once() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mut visitor = Visitor::default();
    let request = visitor.begin(&instance, "/ui").await;
    let before = visitor.cookies.clone();
    let answer = request.answer(&provider.code(&request));
    assert_eq!(visitor.open(&answer).await.status, StatusCode::SEE_OTHER);
    // The browser has forgotten the sign-in. Somebody who kept its cookie can use the answer no second time, either.
    let mut replaying = Visitor::default();
    let refused = replaying.open(&answer).await;
    assert_refused(&instance, &replaying, &refused, 0, (400, "state_mismatch", "This sign-in did not begin here"));
    replaying.cookies = before;
    let refused = replaying.open(&answer).await;
    assert_refused(&instance, &replaying, &refused, 1, (403, "code_refused", "This sign-in was already used"));
}

#[actix::test]
async fn new_keys_of_the_provider_are_found_and_invented_ones_are_not_asked_for_again() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    assert_eq!(Visitor::default().sign_in(&instance, &provider, "/ui").await.status, StatusCode::SEE_OTHER);
    assert_eq!(Visitor::default().sign_in(&instance, &provider, "/ui").await.status, StatusCode::SEE_OTHER);
    assert_eq!((provider.requests("/keys"), provider.requests(DISCOVERY)), (1, 1), "both are kept");
    provider.rotate(1, &[0, 1]);
    let answer = Visitor::default().sign_in(&instance, &provider, "/ui").await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text());
    assert_eq!(provider.requests("/keys"), 2);
    provider.rotate(2, &[0, 1]);
    for before in 0..3 {
        let mut visitor = Visitor::default();
        let answer = visitor.sign_in(&instance, &provider, "/ui").await;
        let expected = (403, "unknown_key", "The signature of the sign-in is not valid");
        assert_refused(&instance, &visitor, &answer, before, expected);
    }
    assert_eq!(provider.requests("/keys"), 2, "the keys were read a moment ago");
}

#[actix::test]
async fn a_provider_that_fails_lets_nobody_in() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let down = (503, "provider_down", "The identity provider does not respond");
    let unusable = (502, "provider_answer", "The answer of the identity provider cannot be used");
    for (fault, expected) in
        [(Fault::Status(500), down), (Fault::Status(404), down), (Fault::Huge, down), (Fault::NotJson, unusable)]
    {
        let (instance, other) = (console.start(), console.start());
        let start = format!("{}/ui/sign-in/start", instance.url);
        provider.fault(DISCOVERY, Some(fault));
        let mut visitor = Visitor::default();
        let answer = visitor.open(&start).await;
        assert_refused(&instance, &visitor, &answer, 0, expected);
        provider.fault(DISCOVERY, None);
        // After a moment the console asks again.
        until(async || visitor.open(&start).await.status == StatusCode::SEE_OTHER).await;
        for (before, path) in ["/token", "/keys"].into_iter().enumerate() {
            provider.fault(path, Some(fault));
            let expected = if path == "/token" && fault == Fault::Status(404) { unusable } else { expected };
            let answer = visitor.sign_in(&other, &provider, "/ui").await;
            assert_refused(&other, &visitor, &answer, before, expected);
            provider.fault(path, None);
        }
        until(async || visitor.sign_in(&other, &provider, "/ui").await.header("location") == Some("/ui")).await;
    }
}

#[actix::test]
async fn many_refused_sign_ins_do_not_fill_the_log() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mut visitor = Visitor::default();
    for _ in 0..300 {
        let answer = visitor.open(&format!("{}/ui/sign-in/callback?state=x&code=y", instance.url)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    }
    let metrics = instance.api().get("/metrics").await.text();
    assert!(metrics.contains("submission_console_logins_total{result=\"refused\"} 300"), "{metrics}");
    // One a second may follow the first sixty.
    let logged = refusals(&instance).len();
    assert!((50..200).contains(&logged), "{logged}");
}

#[actix::test]
async fn a_provider_that_hangs_or_is_gone_is_given_up() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let down = (503, "provider_down", "The identity provider does not respond");
    let mut visitor = Visitor::default();
    provider.fault("/token", Some(Fault::Hang));
    let answer = visitor.sign_in(&instance, &provider, "/ui").await;
    assert_refused(&instance, &visitor, &answer, 0, down);
    assert!(refusals(&instance)[0].contains("timed out"), "{:?}", refusals(&instance));
    let request = visitor.begin(&instance, "/ui").await;
    let code = provider.code(&request);
    provider.stop().await;
    let answer = visitor.open(&request.answer(&code)).await;
    assert_refused(&instance, &visitor, &answer, 1, down);
    // Who has signed in before is not affected, and the rest of the service neither.
    assert_eq!(instance.api().get("/readyz").await.status, StatusCode::OK);
}

#[actix::test]
async fn a_wrong_client_secret_and_a_foreign_configuration_are_told_apart() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    provider.expect_secret("another");
    let mut visitor = Visitor::default();
    let answer = visitor.sign_in(&instance, &provider, "/ui").await;
    let refused = (502, "client_refused", "The identity provider does not know this console");
    assert_refused(&instance, &visitor, &answer, 0, refused);
    drop(instance);
    let instance = console.start();
    provider.discovery(|document| document["issuer"] = "https://evil.example".into());
    let answer = visitor.open(&format!("{}/ui/sign-in/start", instance.url)).await;
    let issuer = (403, "wrong_issuer", "The sign-in came from another identity provider");
    assert_refused(&instance, &visitor, &answer, 0, issuer);
    drop(instance);
    let instance = console.start();
    provider.discovery(|document| document["token_endpoint"] = "http://idp.example/token".into());
    let answer = visitor.open(&format!("{}/ui/sign-in/start", instance.url)).await;
    let unusable = (502, "provider_answer", "The answer of the identity provider cannot be used");
    assert_refused(&instance, &visitor, &answer, 0, unusable);
}
