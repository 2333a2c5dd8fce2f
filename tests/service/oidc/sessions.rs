//! Sessions: how they begin, what they allow, where they are accepted, and how they end.

use actix_web::http::StatusCode;
use serde_json::json;

use super::provider::Provider;
use super::{Console, SESSION_KEY, Visitor, oidc};
use crate::support::Instance;

const PAUSE: &str = "/ui/targets/once/pause";

#[actix::test]
async fn a_person_signs_in_with_the_role_of_a_claim_and_signs_out() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mut visitor = Visitor::default();
    let url = |path: &str| format!("{}{path}", instance.url);

    // A page leads to the provider, and back to the page.
    let answer = visitor.open(&url("/ui/intents?q=a%26b")).await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (StatusCode::SEE_OTHER, Some("/ui/sign-in?return=%2Fui%2Fintents%3Fq%3Da%2526b"))
    );
    let answer = visitor.open(&url(answer.header("location").unwrap())).await;
    assert_eq!(answer.header("location"), Some("/ui/sign-in/start?return=%2Fui%2Fintents%3Fq%3Da%2526b"));
    let answer = visitor.sign_in(&instance, &provider, "%2Fui%2Fintents%3Fq%3Da%2526b").await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (StatusCode::SEE_OTHER, Some("/ui/intents?q=a%26b")),
        "{}",
        answer.text()
    );
    let cookies: Vec<_> = answer.headers.get_all("set-cookie").map(|value| value.to_str().unwrap()).collect();
    assert!(
        cookies
            .iter()
            .any(|cookie| cookie.starts_with("sm-session=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax")),
        "{cookies:?}"
    );
    assert_eq!(visitor.cookies.len(), 1, "the sign-in is over: {:?}", visitor.cookies);
    let line = instance.wait_for_log("console_signed_in");
    assert!(line.contains(r#"name="ada@example.com" role=operator subject="subject-1""#), "{line}");

    let page = visitor.open(&url("/ui")).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text().contains("ada@example.com <span class=\"quiet\">(operator)</span>"), "{}", page.text());
    assert!(page.text().contains("action=\"/ui/sign-out\""));
    assert_eq!(visitor.post(&url(PAUSE), "").await.status, StatusCode::SEE_OTHER);
    for foreign in [("Sec-Fetch-Site", "cross-site"), ("Origin", "http://evil.example"), ("X-Any", "thing")] {
        let answer = visitor.send("POST", &url(PAUSE), &[foreign], "").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{foreign:?}");
        let answer = visitor.send("POST", &url("/ui/sign-out"), &[foreign], "").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{foreign:?}");
    }
    assert!(visitor.has_session(), "no other page can end it");

    // Sign-out ends the session here, and leads to the provider's own sign-out.
    let answer = visitor.post(&url("/ui/sign-out"), "").await;
    let refresh = answer.header("refresh").unwrap();
    let back = format!("0; url={}/end?client_id=console&post_logout_redirect_uri=", provider.url);
    assert!(refresh.starts_with(&back) && refresh.ends_with("%2Fui%2Fsign-out"), "{refresh}");
    assert!(!visitor.has_session());
    instance.wait_for_log("console_signed_out name=\"ada@example.com\"");
    let page = visitor.open(&url("/ui/sign-out")).await;
    assert!(page.text().contains("You are signed out"), "{}", page.text());
    assert_eq!(visitor.open(&url("/ui")).await.status, StatusCode::SEE_OTHER);
}

#[actix::test]
async fn requests_without_a_session_are_led_to_the_sign_in_or_refused() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mut visitor = Visitor::default();
    let url = format!("{}/ui/targets", instance.url);
    // The parts of a page that htmx requests make the browser go to the sign-in, and from there back to the page.
    let current = format!("{}/ui/intents?q=a", instance.url);
    let headers = [("HX-Request", "true"), ("HX-Current-URL", current.as_str()), ("Sec-Fetch-Mode", "cors")];
    let answer = visitor.send("GET", &url, &headers, "").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert_eq!(answer.header("hx-redirect"), Some("/ui/sign-in?return=%2Fui%2Fintents%3Fq%3Da"));
    let answer = visitor.send("GET", &url, &[("X-Refresh", "1"), ("Sec-Fetch-Mode", "cors")], "").await;
    assert_eq!(
        (answer.status, answer.header("hx-redirect")),
        (StatusCode::UNAUTHORIZED, Some("/ui/sign-in?return=%2Fui"))
    );
    for headers in [
        &[("Accept", "*/*")][..],
        &[("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Site", "same-origin"), ("Accept", "text/html")],
    ] {
        let answer = visitor.send("GET", &url, headers, "").await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::UNAUTHORIZED, None), "{headers:?}");
        assert_eq!(answer.header("www-authenticate"), None, "there is no password");
    }
    let answer = visitor.post(&format!("{}{PAUSE}", instance.url), "").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert!(answer.text().contains("nothing was done"), "{}", answer.text());
    // A link to the console cannot lead elsewhere after the sign-in.
    for elsewhere in
        ["https%3A%2F%2Fevil.example", "%2F%2Fevil.example%2Fui", "%2Fui%2F..%2Fv1%2Fintents", "%2F%5Cevil.example"]
    {
        let answer = visitor.sign_in(&instance, &provider, elsewhere).await;
        assert_eq!(answer.header("location"), Some("/ui"), "{elsewhere}");
    }
}

#[actix::test]
async fn every_instance_with_the_same_key_accepts_a_session() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let first = console.start();
    let started = |keys: &str| {
        let mut command = console.command();
        command.env("SM_SESSION_KEY", keys);
        Instance::start(command)
    };
    let other_key = "b3RoZXIga2V5LCBhbHNvIG9mIDMyIGJ5dGVzLCB5ZXM=";
    let (second, rotated, other) =
        (console.start(), started(&format!("{other_key},{SESSION_KEY}")), started(other_key));
    // A sign-in that began at one instance ends at another.
    let mut visitor = Visitor::default();
    let request = visitor.begin(&first, "/ui/targets").await;
    let code = provider.code(&request);
    let answer = visitor.open(&request.answer(&code).replace(&first.url, &second.url)).await;
    assert_eq!(answer.header("location"), Some("/ui/targets"), "{}", answer.text());
    for (instance, expected) in [
        (&first, StatusCode::OK),
        (&second, StatusCode::OK),
        (&rotated, StatusCode::OK),
        (&other, StatusCode::SEE_OTHER),
    ] {
        assert_eq!(visitor.open(&format!("{}/ui", instance.url)).await.status, expected);
    }
    // A changed cookie is no session.
    let session = visitor.cookies["sm-session"].clone();
    for (index, replaced) in [(0, 'A'), (30, 'B'), (session.len() - 2, 'C')] {
        let mut changed: Vec<char> = session.chars().collect();
        changed[index] = if changed[index] == replaced { 'D' } else { replaced };
        visitor.cookies.insert("sm-session".to_owned(), changed.into_iter().collect());
        assert_eq!(visitor.open(&format!("{}/ui", first.url)).await.status, StatusCode::SEE_OTHER, "{index}");
    }
}

#[actix::test]
async fn without_a_key_the_service_warns_that_a_fleet_cannot_share_sessions() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let mut command = console.command();
    command.env_remove("SM_SESSION_KEY").env("SM_LISTEN", "0.0.0.0:0");
    let instance = Instance::start(command);
    assert!(instance.wait_for_log("console_sessions_not_shared").contains("SM_SESSION_KEY"));
    assert!(instance.wait_for_log("console_sign_in_without_https").contains("SM_CONSOLE_URL"));
}

#[actix::test]
async fn a_session_ends_after_its_lifetime_and_without_activity() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    for (setting, polls) in [("SM_SESSION_LIFETIME", false), ("SM_SESSION_IDLE", true)] {
        let mut command = console.command();
        command.env(setting, "1s");
        let instance = Instance::start(command);
        let mut visitor = Visitor::default();
        visitor.sign_in(&instance, &provider, "/ui/targets").await;
        let url = format!("{}/ui", instance.url);
        // The polls of an open page do not keep a session alive, and requests do not keep it longer than its lifetime.
        let headers = [("X-Refresh", "1"), ("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Site", "same-origin")];
        let until_it_ends = async {
            let mut requests = 0;
            loop {
                let answer =
                    if polls { visitor.send("GET", &url, &headers, "").await } else { visitor.open(&url).await };
                if answer.status != StatusCode::OK {
                    return (requests, answer);
                }
                requests += 1;
            }
        };
        let (requests, answer) = tokio::time::timeout(crate::support::PATIENCE, until_it_ends).await.unwrap();
        assert!(requests > 0, "{setting}");
        let expected = if polls { StatusCode::UNAUTHORIZED } else { StatusCode::SEE_OTHER };
        assert_eq!(answer.status, expected, "{setting}");
    }
}

#[actix::test]
async fn behind_a_proxy_with_tls_cookies_are_for_https_only() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let mut command = console.command();
    command.env("SM_CONSOLE_URL", "https://submissions.example");
    let instance = Instance::start(command);
    let mut visitor = Visitor::default();
    let request = visitor.begin(&instance, "/ui").await;
    assert_eq!(request.get("redirect_uri"), "https://submissions.example/ui/sign-in/callback");
    let code = provider.code(&request);
    let answer = visitor.open(&request.answer(&code).replace("https://submissions.example", &instance.url)).await;
    let cookies: Vec<_> = answer.headers.get_all("set-cookie").map(|value| value.to_str().unwrap()).collect();
    let session = cookies.iter().find(|cookie| cookie.starts_with("__Host-sm-session=")).unwrap();
    assert!(session.ends_with("; Path=/; HttpOnly; SameSite=Lax; Secure"), "{session}");
    assert_eq!(visitor.open(&format!("{}/ui", instance.url)).await.status, StatusCode::OK);
    // A cookie that something without TLS could have planted does not count.
    let session = visitor.cookies.remove("__Host-sm-session").unwrap();
    visitor.cookies.insert("sm-session".to_owned(), session);
    assert_eq!(visitor.open(&format!("{}/ui", instance.url)).await.status, StatusCode::SEE_OTHER);
}

#[actix::test]
async fn a_reload_changes_what_existing_sessions_may_do() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mut visitor = Visitor::default();
    visitor.sign_in(&instance, &provider, "/ui").await;
    let url = format!("{}{PAUSE}", instance.url);
    assert_eq!(visitor.post(&url, "").await.status, StatusCode::SEE_OTHER);
    let mut reloads = 0;
    let mut reload = |file: &serde_json::Value| {
        console.write(file);
        instance.signal("HUP");
        reloads += 1;
        while instance.log_lines().iter().filter(|line| line.contains("registry_reloaded")).count() < reloads {
            std::thread::yield_now();
        }
    };
    let mut changed = oidc(&provider.url);
    changed["roles"] = json!({ "ops": "viewer" });
    reload(&json!({ "oidc": changed }));
    assert_eq!(visitor.post(&url, "").await.status, StatusCode::FORBIDDEN);
    changed["roles"] = json!({ "chiefs": "admin" });
    reload(&json!({ "oidc": changed }));
    assert_eq!(visitor.post(&url, "").await.status, StatusCode::UNAUTHORIZED);
}

#[actix::test]
async fn users_with_passwords_and_people_of_the_provider_sign_in_on_one_page() {
    let provider = Provider::start();
    let hash = |password: &str| bcrypt::hash(password, 10).unwrap();
    let user = |password: &str| json!({ "name": "vera", "passwordHash": hash(password), "role": "viewer" });
    let console = Console::new(&json!({ "oidc": oidc(&provider.url), "users": [user("tulip")] }));
    let instance = console.start();
    let url = |path: &str| format!("{}{path}", instance.url);
    let mut visitor = Visitor::default();
    let page = visitor.open(&url("/ui/sign-in?return=%2Fui%2Ftargets")).await;
    assert_eq!(page.status, StatusCode::OK);
    let text = page.text();
    assert!(text.contains("Sign in with 127.0.0.1") && text.contains("name=\"password\""), "{text}");
    assert!(text.contains("value=\"/ui/targets\""), "{text}");

    let wrong = visitor.post(&url("/ui/sign-in/password"), "name=vera&password=rose").await;
    assert_eq!(wrong.status, StatusCode::FORBIDDEN);
    assert!(wrong.text().contains("The name or the password is wrong.") && !wrong.text().contains("rose"));
    instance.wait_for_log("console_sign_in_refused reason=wrong_password");
    let foreign = [("Sec-Fetch-Site", "cross-site"), ("Content-Type", "application/x-www-form-urlencoded")];
    let form = "name=vera&password=tulip&return=%2Fui%2Ftargets";
    let forged = visitor.send("POST", &url("/ui/sign-in/password"), &foreign, form).await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    assert!(!visitor.has_session());
    let answer = visitor.post(&url("/ui/sign-in/password"), form).await;
    assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, Some("/ui/targets")));
    let page = visitor.open(&url("/ui")).await.text();
    assert!(page.contains("vera <span class=\"quiet\">(viewer)</span>") && page.contains("action=\"/ui/sign-out\""));
    assert_eq!(visitor.post(&url(PAUSE), "").await.status, StatusCode::FORBIDDEN);
    // Programs go on to send the password with each request.
    let mut program = Visitor::default();
    let challenged = program.send("GET", &url("/ui"), &[], "").await;
    assert_eq!(challenged.status, StatusCode::UNAUTHORIZED);
    assert!(challenged.header("www-authenticate").unwrap().starts_with("Basic"));
    let basic = [("Authorization", "Basic dmVyYTp0dWxpcA==")];
    assert_eq!(program.send("GET", &url("/ui"), &basic, "").await.status, StatusCode::OK);

    // A new password ends the session.
    console.write(&json!({ "oidc": oidc(&provider.url), "users": [user("rose")] }));
    instance.signal("HUP");
    instance.wait_for_log("registry_reloaded");
    assert_eq!(visitor.open(&url("/ui")).await.status, StatusCode::SEE_OTHER);
    // Signing out of a session with a password does not involve the provider.
    visitor.post(&url("/ui/sign-in/password"), "name=vera&password=rose").await;
    assert!(visitor.has_session());
    let answer = visitor.post(&url("/ui/sign-out"), "").await;
    assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, Some("/ui/sign-out")));
    assert!(!visitor.has_session());
}

#[actix::test]
async fn several_tabs_sign_in_at_the_same_time() {
    let provider = Provider::start();
    let console = Console::with(&provider);
    let instance = console.start();
    let mut visitor = Visitor::default();
    let mut requests = Vec::new();
    for page in ["/ui/targets", "/ui/intents", "/ui/jobs"] {
        requests.push((page, visitor.begin(&instance, page).await));
    }
    for (page, request) in requests {
        let code = provider.code(&request);
        assert_eq!(visitor.open(&request.answer(&code)).await.header("location"), Some(page));
    }
    for _ in 0..30 {
        visitor.begin(&instance, "/ui").await;
    }
    assert!(visitor.cookies.len() <= 6, "abandoned sign-ins are forgotten: {}", visitor.cookies.len());
}

#[actix::test]
async fn check_reports_what_is_wrong_with_the_provider_and_the_key() {
    let console = Console::new(&json!({ "oidc": oidc("http://idp.example") }));
    let output = console
        .command()
        .arg("check")
        .env_remove("CLIENT_SECRET")
        .env("SM_SESSION_KEY", "hunter2")
        .env("SM_CONSOLE_URL", "submissions.example")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for expected in [
        "oidc.issuer: must be an https URL; this value is http and not on this machine",
        "oidc.clientSecretEnv: the environment variable CLIENT_SECRET is not set; set it before you start the service",
        "SM_SESSION_KEY holds a key (number 1)",
        "SM_CONSOLE_URL",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    assert!(!output.status.success() && !said.contains("hunter2"), "{said}");
}
