//! The inbox: submissions are stored first and processed later, even if they are invalid or the leader dies.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use actix_web::http::StatusCode;
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use submission_manager::domain::signature::Secret;
use submission_manager::platform::clock::WallClock;

use crate::support::{Answer, Api, Instance, Site, site};

const SUBMISSIONS: &str = "/v1/inbox/submissions";

fn secret() -> String {
    Secret::text_of(&[9; 32])
}

fn command(site: &Site) -> std::process::Command {
    let clients = json!({ "clients": [
        { "clientSlug": "acme", "channels": ["form", "sms"], "country": "SE", "hookSecretEnv": "ACME_HOOK",
          "fieldsByChannel": { "sms": { "phone": "From", "message": "Body" } } },
        { "clientSlug": "globex", "channels": ["email"] },
    ]});
    let path = site.directory.path().join("inbox.json");
    std::fs::write(&path, clients.to_string()).unwrap();
    let mut command = site.command();
    command.env("SM_INBOX_CLIENTS", path).env("ACME_HOOK", secret());
    command
}

async fn post(api: &Api, client: &str, channel: &str, payload: Value) -> Answer {
    let body = json!({ "client_slug": client, "channel": channel, "payload": payload });
    api.call("POST", SUBMISSIONS, body.to_string()).await
}

async fn until_processed(api: &Api, id: &str) -> Value {
    let path = format!("{SUBMISSIONS}/{id}");
    api.until(&path, |answer| answer.status.is_success() && answer.json()["state"] == "processed").await.json()
}

fn id_of(answer: &Answer) -> String {
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text());
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// Reads all pages of a list.
async fn all(api: &Api, what: &str, query: &str) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/inbox/{what}?{query}&limit=200{cursor}")).await.json();
        found.extend(page[what].as_array().unwrap_or_else(|| panic!("{page}")).clone());
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

#[actix::test]
async fn a_submission_becomes_a_message_of_a_contact() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    let raw = r#"{ "email":" Ann@Example.COM","name" : "Ann","message":"Hi <b>\u00e9😀\u202e</b>", "x":1.0e0 }"#;
    let body =
        format!(r#"{{"client_slug":"acme","channel":"form","source_url":"https://acme.test/?a=1","payload":{raw}}}"#);
    let id = id_of(&api.call("POST", SUBMISSIONS, body).await);
    let shown = until_processed(&api, &id).await;
    assert_eq!(
        (&shown["client_slug"], &shown["channel"], &shown["error"]),
        (&json!("acme"), &json!("form"), &Value::Null)
    );
    assert!(shown["processed_at"].is_string() && shown["message_id"].is_i64(), "{shown}");
    let text = api.get(&format!("{SUBMISSIONS}/{id}")).await.text();
    assert!(text.contains(raw), "byte for byte: {text}");
    let text_message = json!({ "From": "070-174 06 05", "Body": "by text", "email": "ann@example.com" });
    until_processed(&api, &id_of(&post(&api, "acme", "sms", text_message).await)).await;
    let by_phone = json!({ "From": "+46 70 174 06 05", "Body": "by phone alone" });
    until_processed(&api, &id_of(&post(&api, "acme", "sms", by_phone).await)).await;
    let contacts = all(&api, "contacts", "client_slug=acme").await;
    assert_eq!(contacts.len(), 1, "one person: {contacts:?}");
    let ann = &contacts[0];
    assert_eq!(
        (&ann["email"], &ann["phone"], &ann["name"]),
        (&json!("ann@example.com"), &json!("+46701740605"), &json!("Ann"))
    );
    let messages = all(&api, "messages", &format!("client_slug=acme&contact_id={}", ann["id"])).await;
    let bodies: Vec<_> = messages.iter().map(|message| message["body"].as_str().unwrap()).collect();
    assert_eq!(bodies, ["by phone alone", "by text", "Hi <b>é😀\u{202e}</b>"]);
    assert_eq!(
        (&messages[2]["submission_id"], &messages[2]["source_url"]),
        (&json!(id), &json!("https://acme.test/?a=1"))
    );
    assert!(all(&api, "contacts", "client_slug=globex").await.is_empty());

    let page = api.get("/ui/inbox?client_slug=acme&state=processed").await.text();
    assert!(page.contains(&id) && page.contains("Reprocess all parked submissions of acme"), "{page}");
    let page = api.get(&format!("/ui/inbox/submissions/{id}")).await.text();
    assert!(page.contains("Hi &#60;b&#62;") && !page.contains("<b>é"), "{page}");
    let page = api.get(&format!("/ui/inbox/contacts/{}", ann["id"])).await.text();
    assert!(page.contains("ann@example.com") && page.contains("by phone alone"), "{page}");
    assert!(api.get("/ui/inbox/contacts?client_slug=acme").await.text().contains("+46701740605"));
    let metrics = api.get("/metrics").await.text();
    for line in ["submission_inbox_received_total 3", "submission_inbox_processed_total 3", "submission_inbox_parked 0"]
    {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let log = instance.log_lines().join("\n");
    assert!(!log.contains("by phone") && !log.contains("example.com"), "payloads are not logged: {log}");
}

#[actix::test]
async fn submissions_with_the_same_key_are_stored_once() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    let send = async |client: &str, channel: &str, key: &str, message: &str| {
        let body =
            json!({ "client_slug": client, "channel": channel, "payload": { "email": "a@b", "message": message } });
        api.call_with("POST", SUBMISSIONS, &[("Idempotency-Key", key)], body.to_string()).await
    };
    let first = send("acme", "form", "k", "1").await;
    let id = id_of(&first);
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = send("acme", "form", "k", "1").await;
    assert_eq!((id_of(&again), again.header("idempotent-replayed")), (id.clone(), Some("true")));
    let other = send("acme", "form", "k", "2").await;
    assert_eq!((other.status, other.error().as_str()), (StatusCode::CONFLICT, "idempotency_conflict"));
    assert_eq!(send("acme", "sms", "k", "1").await.status, StatusCode::CONFLICT);
    assert_ne!(id_of(&send("globex", "email", "k", "1").await), id, "a key is of its client");
    assert_eq!(send("acme", "form", "a\u{e9}", "1").await.status, StatusCode::BAD_REQUEST);
    let racing = (0..50).map(|_| send("acme", "form", "race", "1"));
    let ids: HashSet<_> = futures_util::future::join_all(racing).await.iter().map(id_of).collect();
    assert_eq!(ids.len(), 1);
}

#[actix::test]
async fn invalid_input_is_refused_clearly_or_stored_and_parked() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    let deep =
        format!(r#"{{"client_slug":"acme","channel":"form","payload":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    let huge = format!(r#"{{"client_slug":"acme","channel":"form","payload":"{}"}}"#, "x".repeat(10 * 1024 * 1024));
    let envelope = |rest: &str| format!(r#"{{"client_slug":"acme","channel":"form",{rest}}}"#);
    for (body, status) in [
        (String::new(), 400),
        ("hello".to_owned(), 400),
        ("[1,2]".to_owned(), 400),
        (envelope(r#""payload":{"a":}"#), 400),
        (envelope(r#""payload":1} x"#), 400),
        (envelope(r#""colour":1,"payload":1"#), 400),
        (envelope(r#""source_url":7,"payload":1"#), 400),
        (envelope(&format!(r#""source_url":"{}","payload":1"#, "x".repeat(2001))), 400),
        (r#"{"client_slug":"acme","channel":"form"}"#.to_owned(), 400),
        (r#"{"client_slug":"acme","channel":"fax","payload":1}"#.to_owned(), 400),
        (r#"{"client_slug":"acme","channel":"voice","payload":1}"#.to_owned(), 400),
        (r#"{"client_slug":"nobody","channel":"form","payload":1}"#.to_owned(), 400),
        (r#"{"client_slug":7,"channel":"form","payload":1}"#.to_owned(), 400),
        (huge, 413),
    ] {
        let shown: String = body.chars().take(80).collect();
        let answer = api.call("POST", SUBMISSIONS, body).await;
        assert_eq!(answer.status.as_u16(), status, "{shown}: {}", answer.text());
        answer.error();
    }
    // A payload that cannot be parsed is stored unchanged, fails, and is shown as text.
    let hostile = r#"{"email":"\u0000 <script>alert(1)</script> \u202e 😀"}"#;
    for (body, error) in [
        (deep, "not a JSON object"),
        (envelope(&format!(r#""payload":{hostile}"#)), "holds no email address"),
        (envelope(r#""payload":null"#), "not a JSON object"),
        (envelope(r#""payload":[1,2,3]"#), "not a JSON object"),
        (envelope(r#""payload":{"email":{"a":1}}"#), "must be text, not an object"),
        (
            envelope(r#""payload":{"email":"a@x.example, b@x.example","phone":"+46701740605"}"#),
            "more than one email address",
        ),
        (envelope(r#""payload":{"email":"nobody","phone":"+46701740605"}"#), "holds no email address"),
    ] {
        let id = id_of(&api.call("POST", SUBMISSIONS, body).await);
        let path = format!("{SUBMISSIONS}/{id}");
        let row = api.until(&path, |answer| answer.json()["state"] == "failed").await;
        let json: Value = serde_json::from_slice(&row.body).unwrap();
        assert!(json["error"].as_str().unwrap().contains(error), "{json}");
        assert!(json["next_try_at"].is_string() && json["tries"] == 1);
        for path in [format!("/ui/inbox/submissions/{id}"), format!("/ui/inbox/submissions/{id}/payload")] {
            let page = api.get(&path).await;
            assert_eq!(page.status, StatusCode::OK);
            assert!(!page.text().contains("<script>alert"), "{}", page.text());
        }
    }
    // A valid submission is processed immediately nevertheless.
    until_processed(&api, &id_of(&post(&api, "acme", "form", json!({ "email": "ok@x" })).await)).await;
    for (method, path, status) in [
        ("GET", "/v1/inbox/submissions", 400),
        ("GET", "/v1/inbox/contacts", 400),
        ("GET", "/v1/inbox/messages?client_slug=acme&contact_id=x", 400),
        ("GET", "/v1/inbox/submissions?client_slug=acme&state=odd", 400),
        ("GET", "/v1/inbox/submissions?client_slug=acme&cursor=1", 400),
        ("GET", "/v1/inbox/submissions/nobody", 404),
        ("POST", "/v1/inbox/submissions/nobody/reprocess", 404),
        ("POST", "/v1/inbox/submissions/f47ac10b-58cc-4372-a567-0e02b2c3d479/reprocess", 404),
        ("POST", "/v1/inbox/submissions/reprocess", 400),
        ("POST", "/v1/inbox/submissions/reprocess?client_slug=acme", 202),
        ("DELETE", "/v1/inbox/contacts", 405),
    ] {
        assert_eq!(api.call(method, path, "").await.status.as_u16(), status, "{method} {path}");
    }
}

#[actix::test]
async fn signed_webhooks_are_stored_unchanged() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    let signer = standardwebhooks::Webhook::new(&secret()).unwrap();
    let now = u64::try_from(WallClock::system().now().micros()).unwrap() / 1_000_000;
    let send = async |path: &str, id: &str, at: u64, body: &str, signed: &str| {
        let signature = signer.sign(id, i64::try_from(at).unwrap(), signed.as_bytes()).unwrap();
        let timestamp = at.to_string();
        let headers =
            [("webhook-id", id), ("webhook-timestamp", timestamp.as_str()), ("webhook-signature", signature.as_str())];
        api.call_with("POST", &format!("/v1/inbox/hooks/{path}"), &headers, body).await
    };
    let body = r#"{"From":"+46701740605","Body":"signed"}"#;
    let id = id_of(&send("acme/sms", "m1", now, body, body).await);
    assert_eq!(id_of(&send("acme/sms", "m1", now, body, body).await), id, "an id is kept once");
    until_processed(&api, &id).await;
    let odd = id_of(&send("acme/sms", "m2", now, "From=x&Body=y \u{0}", "From=x&Body=y \u{0}").await);
    let shown = api.until(&format!("{SUBMISSIONS}/{odd}"), |answer| answer.json()["state"] == "failed").await.json();
    assert_eq!((&shown["payload"], &shown["payload_text"]), (&Value::Null, &json!("From=x&Body=y \u{0}")));
    assert!(shown["error"].as_str().unwrap().contains("not JSON"), "nobody said that it is a form: {shown}");
    // With its content type it is parsed as fields, and still stored unchanged.
    let form = "ToCountry=SE&From=%2B46+70+174+06+06&Body=a+form%21&email=Eve+%3Ceve%40x.example%3E";
    let signature = signer.sign("m4", i64::try_from(now).unwrap(), form.as_bytes()).unwrap();
    let timestamp = now.to_string();
    let headers = [
        ("webhook-id", "m4"),
        ("webhook-timestamp", timestamp.as_str()),
        ("webhook-signature", signature.as_str()),
        ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
    ];
    let id = id_of(&api.call_with("POST", "/v1/inbox/hooks/acme/sms", &headers, form).await);
    let shown = until_processed(&api, &id).await;
    assert_eq!(shown["payload_text"], form);
    let contacts = all(&api, "contacts", "client_slug=acme").await;
    assert_eq!((&contacts[0]["email"], &contacts[0]["phone"]), (&json!("eve@x.example"), &json!("+46701740606")));
    let messages = all(&api, "messages", "client_slug=acme").await;
    assert_eq!((&messages[0]["body"], &messages[0]["contact_id"]), (&json!("a form!"), &contacts[0]["id"]));
    for (path, id, at, signed, status) in [
        ("acme/sms", "m3", now, "other", 401),
        ("acme/sms", "m3", now - 3600, body, 401),
        ("acme/sms", "m3", now + 3600, body, 401),
        ("acme/voice", "m3", now, body, 404),
        ("globex/email", "m3", now, body, 404),
        ("nobody/sms", "m3", now, body, 404),
        ("acme/sms", "m1", now, "x", 401),
    ] {
        let answer = send(path, id, at, body, signed).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {id}: {}", answer.text());
    }
    assert_eq!(api.call("POST", "/v1/inbox/hooks/acme/sms", body).await.status, StatusCode::UNAUTHORIZED);
    let other = r#"{"From":"+46701740605","Body":"changed"}"#;
    assert_eq!(send("acme/sms", "m1", now, other, other).await.status, StatusCode::CONFLICT);
}

/// Posts `count` submissions of several clients. Returns their ids with the text of each.
async fn fill(api: &Api, from: u32, count: u32) -> HashMap<String, u32> {
    let posts = stream::iter(from..from + count).map(|number| {
        let api = api.clone();
        async move {
            let payload = json!({ "email": format!("u{}@x", number % 50), "message": number.to_string() });
            let client = if number % 2 == 0 { ("acme", "form") } else { ("globex", "email") };
            (id_of(&post(&api, client.0, client.1, payload).await), number)
        }
    });
    posts.buffered(64).collect().await
}

/// Asserts that every submission is processed and became one message of one contact.
async fn assert_nothing_lost_or_duplicated(api: &Api, ids: &HashMap<String, u32>) {
    for client in ["acme", "globex"] {
        let waits = format!("{SUBMISSIONS}?client_slug={client}&limit=1&state=");
        for state in ["received", "failed"] {
            let empty = |answer: &Answer| {
                answer.status.is_success() && answer.json()["submissions"].as_array().is_some_and(Vec::is_empty)
            };
            api.until(&format!("{waits}{state}"), empty).await;
        }
    }
    let mut seen = HashMap::new();
    for client in ["acme", "globex"] {
        for message in all(api, "messages", &format!("client_slug={client}")).await {
            let id = message["submission_id"].as_str().unwrap().to_owned();
            let number: u32 = message["body"].as_str().unwrap().parse().unwrap();
            assert_eq!(ids.get(&id), Some(&number));
            assert!(seen.insert(id, number).is_none(), "two messages of one row");
        }
        let contacts = all(api, "contacts", &format!("client_slug={client}")).await;
        let emails: HashSet<_> = contacts.iter().map(|contact| contact["email"].to_string()).collect();
        assert_eq!((contacts.len(), emails.len()), (25, 25), "one contact a person");
    }
    assert_eq!(seen.len(), ids.len());
}

#[actix::test]
async fn killed_leaders_lose_and_duplicate_nothing() {
    let (site, _gateway) = site();
    let mut leaders = vec![Instance::start(command(&site)), Instance::start(command(&site))];
    let survivor = Instance::start(command(&site));
    let api = survivor.api();
    let mut ids = fill(&api, 0, 600).await;
    for round in 1..=2 {
        let from = round * 600;
        let more = fill(&api, from, 600);
        let killing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            leaders.pop().unwrap().kill();
        };
        let (more, ()) = tokio::join!(more, killing);
        ids.extend(more);
    }
    assert_nothing_lost_or_duplicated(&api, &ids).await;
}

#[actix::test]
async fn ten_thousand_submissions_wait_for_a_leader_and_keep_their_order() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = Instance::start(command(&site));
    let api = instance.api();
    api.until("/readyz", |answer| answer.text().contains("mode=leader")).await;
    // Another holder has the lease for a long time.
    let store = rusqlite::Connection::open(site.database()).unwrap();
    store.busy_timeout(Duration::from_secs(30)).unwrap();
    let usurp = "UPDATE submission_manager_leases SET holder_id = 'nobody', lease_epoch = lease_epoch + 1,
        expires_at = expires_at + 1000000000000";
    store.execute(usurp, []).unwrap();
    api.until("/readyz", |answer| answer.text().contains("mode=follower")).await;
    let ids = fill(&api, 0, 10_000).await;
    assert_eq!(ids.len(), 10_000);
    assert!(all(&api, "messages", "client_slug=acme").await.is_empty(), "nobody leads");
    store.execute("UPDATE submission_manager_leases SET expires_at = 0", []).unwrap();
    assert_nothing_lost_or_duplicated(&api, &ids).await;
    for client in ["acme", "globex"] {
        let mut came: Vec<_> = all(&api, "submissions", &format!("client_slug={client}")).await;
        came.reverse();
        let numbers: Vec<_> = came.iter().map(|row| row["message_id"].as_i64().unwrap()).collect();
        assert!(numbers.is_sorted(), "in the order of arrival");
    }
}

#[actix::test]
async fn the_inbox_is_disabled_without_its_file_and_requires_tokens() {
    let (site, _gateway) = site();
    let closed = site.start();
    for (method, path) in
        [("POST", SUBMISSIONS), ("GET", "/v1/inbox/contacts?client_slug=a"), ("POST", "/v1/inbox/hooks/a/sms")]
    {
        assert_eq!(closed.api().call(method, path, "{}").await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let hash = |token: &str| -> String {
        use sha2::Digest;
        sha2::Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let clients = json!({ "clients": [
        { "clientId": "edge", "tokenSha256": hash("edge"), "scopes": ["inbox:write"] },
        { "clientId": "desk", "tokenSha256": hash("desk"), "scopes": ["inbox:read"] },
    ]});
    let path = site.directory.path().join("clients.json");
    std::fs::write(&path, clients.to_string()).unwrap();
    let mut command = command(&site);
    command.env("SM_API_CLIENTS", path);
    let instance = Instance::start(command);
    let api = instance.api();
    let body = json!({ "client_slug": "acme", "channel": "form", "payload": { "email": "a@b" } }).to_string();
    for (token, write, read) in [("", 401, 401), ("edge", 202, 403), ("desk", 403, 200)] {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        assert_eq!(api.call_with("POST", SUBMISSIONS, &headers, body.clone()).await.status.as_u16(), write, "{token}");
        let list = api.call_with("GET", "/v1/inbox/messages?client_slug=acme", &headers, "").await;
        assert_eq!(list.status.as_u16(), read, "{token}");
    }
}
