//! What operators do with the console: redrives, cancelling, exports.

use serde_json::json;

use super::Browser;
use crate::support::{Api, Demo};

#[actix::test]
async fn an_operator_sends_failed_intents_again() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    for n in 0..3 {
        let wish = json!({ "simulate": "reject:invalid_recipient" });
        api.submit(&format!("failed-{n}"), "sms.otp", wish, "?waitSeconds=30").await;
    }
    let browser = Browser::open().await;
    // Selected ones.
    browser.go(&format!("{url}/ui/intents?q=failed-&status=rejected")).await;
    browser.until("return document.querySelectorAll('main tbody tr').length === 3").await;
    browser.click("input[value='failed-0']").await;
    browser.click("#selection button").await;
    browser.until_text("Redrive of 1 selected intent").await;
    browser.until_text("nothing has been sent yet").await;
    browser.look_at("redrive-planned").await;
    browser.click("form[action$=start] button").await;
    browser.until_text("Each becomes a new intent.").await;
    browser.click("#confirm-button").await;
    browser.until_text("1 of 1 intent sent again").await;
    browser.until_text("The redrive runs.").await;
    // All of one target that failed lately.
    browser.go(&format!("{url}/ui/redrives")).await;
    browser.click("#plan summary").await;
    browser.run("document.querySelector('#plan-target').value = 'sms.otp'").await;
    browser.run("document.querySelector('#plan-after').value = 'soon'").await;
    browser.click("#plan button").await;
    browser.until_text("completedAfter must be a time such as 10m").await;
    browser.forget_errors().await;
    browser.run("document.querySelector('#plan-after').value = '10m'").await;
    browser.click("#plan button").await;
    browser.until_text("intents of sms.otp that failed after").await;
    browser.until_text("already redriven").await;
    browser.run("document.querySelector('#rate').value = 1").await;
    browser.click("form[action$=start] button").await;
    browser.click("#confirm-button").await;
    browser.until("return document.querySelector('form[action$=pause] button') !== null").await;
    browser.click("form[action$=pause] button").await;
    browser.until_text("The redrive is paused.").await;
    browser.look_at("redrive-paused").await;
    browser.click("form[action$=resume] button").await;
    browser.until("return document.querySelector('form[action$=cancel] button') !== null").await;
    browser.click("form[action$=cancel] button").await;
    browser.click("#confirm-button").await;
    browser.until_text("cancelled").await;
    browser.go(&format!("{url}/ui/redrives")).await;
    browser.until_text("1 selected intent").await;
    browser.look_at("redrives").await;
}

#[actix::test]
async fn an_operator_cancels_waiting_intents() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    api.call("POST", "/v1/targets/sms.otp/pause", "").await;
    for n in 0..2 {
        api.submit(&format!("later-{n}"), "sms.otp", json!({}), "").await;
    }
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui/intents?q=later-")).await;
    browser.until("return document.querySelectorAll('main tbody tr').length === 2").await;
    browser.click("#select-all").await;
    browser.click("#selection button[formaction='/ui/cancel-intents']").await;
    browser.until_text("This would cancel 2 intents.").await;
    browser.look_at("cancel-preview").await;
    browser.click("button.danger").await;
    browser.until_text("2 cancelled.").await;
    browser.go(&format!("{url}/ui/intents?q=later-")).await;
    browser.until_text("cancelled").await;
}

#[actix::test]
async fn a_list_is_exported_as_it_is_filtered() {
    let demo = Demo::start();
    let api = Api::new(&demo.url);
    for n in 0..3 {
        api.submit(
            &format!("out-{n}"),
            "sms.otp",
            json!({ "simulate": "reject:invalid_recipient" }),
            "?waitSeconds=30",
        )
        .await;
    }
    let csv = api.get("/ui/export?q=out-&format=csv").await;
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    let text = csv.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[1].starts_with("out-0,rejected,invalid_recipient,sms.otp,"), "{text}");
    let ndjson = api.get("/ui/export?q=out-&status=accepted&format=ndjson").await;
    assert_eq!(ndjson.text(), "");
    assert_eq!(api.get("/ui/export?createdAfter=soon").await.status.as_u16(), 400);
}
