//! Lists: numbers per status, order and pages, actions on selected rows, and lists on paper.

use serde_json::json;

use super::Browser;
use crate::support::{Api, Demo};

/// The numbers on the tabs of a list, by status.
const COUNTS: &str = "return Object.fromEntries([...document.querySelectorAll('#live .tabs a')].map((tab) =>
    [tab.firstChild.textContent.trim(), Number(tab.querySelector('.count')?.textContent)]))";
/// When the intents of a list were created, in its order.
const CREATED: &str =
    "return [...document.querySelectorAll('main tbody td[data-label=Created] time')].map((time) => time.dateTime)";

async fn created(browser: &Browser) -> Vec<String> {
    serde_json::from_value(browser.run(CREATED).await).unwrap()
}

#[actix::test]
async fn a_list_has_numbers_per_status_an_order_and_pages() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    for n in 0..60 {
        api.submit(&format!("row-{n:02}"), "sms.realtime", json!({}), "?waitSeconds=30").await;
    }
    let wish = json!({ "simulate": "reject:invalid_recipient" });
    let wrong = api.submit("wrong", "sms.otp", wish, "?waitSeconds=30").await.json();
    let browser = Browser::open().await;
    // The demo submits intents of its own.
    browser.go(&format!("{url}/ui/intents")).await;
    let counts = browser.run(COUNTS).await;
    let number = |name: &str| counts[name].as_u64().unwrap();
    assert!(number("accepted") >= 60 && number("rejected") >= 1, "{counts}");
    let sum: u64 = ["pending", "accepted", "rejected", "exhausted"].into_iter().map(number).sum();
    assert_eq!(sum, number("all"), "{counts}");
    browser.look_at("intents-counts").await;
    // The numbers follow the other filters.
    let before = wrong["createdAt"].as_str().unwrap();
    browser.go(&format!("{url}/ui/intents?submissionTarget=sms.realtime&createdBefore={before}&status=rejected")).await;
    let filtered = browser.run(COUNTS).await;
    assert!(filtered["accepted"].as_u64().unwrap() >= 60 && filtered["rejected"] == 0, "{filtered}");
    assert!(filtered["all"].as_u64().unwrap() < number("all"), "{filtered} of {counts}");
    assert!(browser.text().await.contains(" UTC"), "the time of the filter");
    browser.go(&format!("{url}/ui/intents?q=row")).await;
    browser.until_text("A list by id or by cause has no numbers per status.").await;
    assert_eq!(browser.run("return document.querySelectorAll('#live .count').length").await, 0);
    // Oldest first, page by page and back.
    browser.go(&format!("{url}/ui/intents?status=accepted")).await;
    browser.click("main a[href$='order=oldest']").await;
    browser.until("return location.search === '?status=accepted&order=oldest'").await;
    let first = created(&browser).await;
    assert!(first.len() == 50 && first.is_sorted(), "{first:?}");
    browser.press("n").await;
    browser.until("return location.search.includes('cursor=')").await;
    let second = created(&browser).await;
    assert!(second.len() >= 10 && second.is_sorted() && first[49] <= second[0], "{second:?}");
    browser.press("p").await;
    browser.until("return !location.search.includes('cursor=')").await;
    assert_eq!(created(&browser).await, first);
    // By keyboard.
    browser.press("jjx").await;
    let ticked = "return [...document.querySelectorAll('main tbody tr')].map((row) => row.querySelector('input').checked).indexOf(true)";
    assert_eq!(browser.run(ticked).await, 1);
    // On paper: the rows without the buttons.
    browser.protocol("Emulation.setEmulatedMedia", json!({ "media": "print" })).await;
    let shown = "return [document.querySelector('main table').offsetHeight > 0,
        document.querySelector('#selection button').offsetHeight > 0, document.querySelector('.filter').offsetHeight > 0]";
    assert_eq!(browser.run(shown).await, json!([true, false, false]));
    browser.screenshot("intents-print").await;
}

#[actix::test]
async fn webhook_events_of_selected_intents_are_redelivered() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    api.submit("hook-ended", "sms.bulk", json!({}), "?waitSeconds=30").await;
    api.call("POST", "/v1/targets/sms.otp/pause", "").await;
    api.submit("hook-waits", "sms.otp", json!({}), "").await;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui/intents/hook-ended")).await;
    browser.until_text("Delivered on try 1.").await;
    browser.go(&format!("{url}/ui/intents?q=hook-")).await;
    browser.click("#select-all").await;
    browser.click("#selection button[formaction='/ui/redeliver-events']").await;
    browser.until_text("This would redeliver 1 webhook event. Nothing has been done yet.").await;
    browser.until_text("Not among them: 1 still pending, so without an event yet.").await;
    browser.until_text("delivered after 1 try").await;
    browser.look_at("redeliver-preview").await;
    browser.click("main form button").await;
    browser.until_text("1 to be delivered now.").await;
    browser.look_at("redeliver-results").await;
    browser.click("main a.button").await;
    browser.until("return location.search === '?q=hook-'").await;
    browser.go(&format!("{url}/ui/intents/hook-ended")).await;
    browser.until_text("Delivered on try 2.").await;
    browser.go(&format!("{url}/ui/audit?action=redeliver_webhook")).await;
    browser.until_text("hook-ended").await;
}

#[actix::test]
async fn selected_inbox_submissions_are_reprocessed() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    for payload in [json!({ "message": "no contact" }), json!({ "email": "ann@example.com", "message": "Hi" })] {
        let body = json!({ "client_slug": "acme", "channel": "form", "payload": payload });
        let answer = api.call("POST", "/v1/inbox/submissions", body.to_string()).await;
        assert_eq!(answer.status.as_u16(), 202, "{}", answer.text());
    }
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui/inbox")).await;
    let rows =
        "return [...document.querySelectorAll('main tbody td[data-label=State]')].map((cell) => cell.innerText).join()";
    browser.until("return document.querySelectorAll('main tbody .status.processed').length === 1").await;
    browser.until("return document.querySelectorAll('main tbody input').length === 1").await;
    assert!(browser.run(rows).await.as_str().unwrap().contains("processed"));
    browser.look_at("inbox").await;
    browser.click("#select-all").await;
    browser.click("#selection button").await;
    browser.until_text("This would reprocess 1 submission. Nothing has been done yet.").await;
    browser.look_at("reprocess-preview").await;
    browser.click("main form button").await;
    browser.until_text("1 to be processed now.").await;
    browser.click("main a.button").await;
    browser.until("return location.pathname === '/ui/inbox'").await;
    browser.go(&format!("{url}/ui/audit?action=reprocess_submission")).await;
    browser.until("return document.querySelectorAll('main tbody tr').length === 1").await;
}

#[actix::test]
async fn pages_of_jobs_the_inbox_and_the_audit_log_are_readable() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    let job = json!({ "tenant_id": "acme", "workspace_id": "w1", "job_id": "job-1", "idempotency_key": "k1",
        "management_node_id": "node-a", "execution_profile": { "queue_name": "short" },
        "resource_shape": { "cpu": 1, "memory_mib": 512, "walltime_seconds": 60 },
        "payload_ref": { "input_uri": "s3://acme-jobs/j1/input.json" }, "requested_by": { "user_id": "u" } });
    let token = format!("Bearer {}", demo.token);
    let answer = api.call_with("POST", "/v1/jobs", &[("Authorization", &token)], job.to_string()).await;
    assert_eq!(answer.status.as_u16(), 202, "{}", answer.text());
    let form = json!({ "email": "ann@example.com", "name": "Ann", "message": "Hi" });
    let body = json!({ "client_slug": "acme", "channel": "form", "payload": form }).to_string();
    let id = api.call("POST", "/v1/inbox/submissions", body).await.json()["id"].as_str().unwrap().to_owned();
    api.until(&format!("/v1/inbox/submissions/{id}"), |answer| answer.json()["state"] == "processed").await;
    let browser = Browser::open().await;
    for (name, path, text) in [
        ("jobs", "/ui/jobs".to_owned(), "job-1"),
        ("submission", format!("/ui/inbox/submissions/{id}"), "processed"),
        ("contacts", "/ui/inbox/contacts".to_owned(), "ann@example.com"),
        ("contact", "/ui/inbox/contacts/1".to_owned(), "ann@example.com"),
        ("audit", "/ui/audit".to_owned(), "looked at"),
    ] {
        browser.go(&format!("{url}{path}")).await;
        browser.until_text(text).await;
        browser.look_at(name).await;
    }
}
