//! From what fails to what is done about it: the pages of failures, of one target and of one failed intent.

use serde_json::json;

use super::Browser;
use crate::support::{Api, Demo};

const HTTP_500: &str = "gateway answered HTTP 500";

/// Two intents that end with the same error, and one that is rejected.
async fn fail(api: &Api) {
    for n in 0..2 {
        api.submit(&format!("broken-{n}"), "sms.otp", json!({ "simulate": "fail" }), "?waitSeconds=30").await;
    }
    let wrong = json!({ "simulate": "reject:invalid_recipient" });
    api.submit("wrong-1", "sms.realtime", wrong, "?waitSeconds=30").await;
}

#[actix::test]
async fn failures_lead_to_their_intents_and_to_a_redrive_of_exactly_these() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    fail(&api).await;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui")).await;
    browser.until_text("Leader:").await;
    browser.press("gf").await;
    browser.until("return location.pathname === '/ui/failures'").await;
    browser.until_text(HTTP_500).await;
    browser.until_text("invalid_recipient").await;
    browser.look_at("failures").await;

    // The group leads to the list of its intents.
    let group = format!(
        "[...document.querySelectorAll('main tbody tr')].find((row) => row.textContent.includes('{HTTP_500}'))"
    );
    browser.run(&format!("{group}.querySelector('td.id a').click()")).await;
    browser.until("return location.pathname === '/ui/intents'").await;
    // The demo submits intents of its own, which may fail for the same cause.
    browser.until_text("broken-0").await;
    browser.until_text("broken-1").await;
    browser.until_text("its only attempt failed").await;
    assert!(!browser.text().await.contains("wrong-1"), "that one has another cause");
    browser.look_at("intents-of-a-cause").await;

    // And to the plan of a redrive.
    browser.go(&format!("{url}/ui/failures?period=1h&submissionTarget=sms.otp")).await;
    browser.until_text(HTTP_500).await;
    assert!(!browser.text().await.contains("invalid_recipient"), "that is another target");
    browser.run(&format!("{group}.querySelector('form button').click()")).await;
    browser.until("return location.pathname.startsWith('/ui/redrives/')").await;
    browser.until_text("intents would be sent again").await;
    browser.until_text(HTTP_500).await;
    browser.go(&format!("{url}/ui/failures?period=1w")).await;
    browser.until_text("There is no such period.").await;
}

#[actix::test]
async fn a_target_is_paused_and_resumed_on_its_page() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    fail(&api).await;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui/targets")).await;
    browser.until_text("sms.otp").await;
    browser.go(&format!("{url}/ui/targets/sms.otp")).await;
    browser.until_text(HTTP_500).await;
    browser.until("return document.querySelectorAll('figure.chart').length === 2").await;
    browser.click("#contract-json summary").await;
    browser.until_text("\"gatewayType\": \"sms\"").await;
    browser.look_at("target").await;
    browser.run("document.querySelector('#reason').value = 'maintenance of the provider'").await;
    browser.click("button[aria-label='Pause sms.otp']").await;
    browser.until_text("Paused sms.otp.").await;
    browser.until_text("Reason: maintenance of the provider").await;
    assert_eq!(browser.run("return location.pathname").await, "/ui/targets/sms.otp");
    api.submit("held", "sms.otp", json!({}), "").await;
    browser.look_at("target-paused").await;
    // The overview says so, with a link.
    browser.go(&format!("{url}/ui")).await;
    browser.until_text("1 target is paused").await;
    browser.until_text("maintenance of the provider").await;
    browser.until_text("(this one)").await;
    browser.look_at("overview-degraded").await;
    browser.click("#live a[href='/ui?range=day']").await;
    browser.until("return location.search === '?range=day'").await;
    browser.until_text("per 15 minutes").await;
    browser.go(&format!("{url}/ui/targets/sms.otp")).await;
    browser.click("button[aria-label='Resume sms.otp']").await;
    browser.until_text("Resumed sms.otp.").await;
    api.until("/v1/intents/held", |answer| answer.json()["status"] == "accepted").await;
    browser.go(&format!("{url}/ui/targets/nobody")).await;
    browser.until_text("There is no target").await;
    browser.forget_errors().await;
}

#[actix::test]
async fn a_failed_intent_is_edited_and_sent_again() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    fail(&api).await;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui/intents/wrong-1")).await;
    browser.until_text("Rejected by the gateway on attempt 1").await;
    browser.click("#facts-1 summary").await;
    browser.until_text("as the leader with epoch 1").await;
    browser.click("#payload a").await;
    browser.until_text("SHA-256").await;
    browser.until_text("\"simulate\": \"reject:invalid_recipient\"").await;
    browser.look_at("intent-failed").await;
    browser.click("a[href$='/edit']").await;
    browser.until("return document.querySelector('#payload-text') !== null").await;
    browser.look_at("edit").await;
    browser.run("document.querySelector('#payload-text').value = '{'").await;
    browser.click("main form button").await;
    browser.click("#confirm-button").await;
    browser.until_text("The payload is not JSON").await;
    browser.forget_errors().await;
    browser.run("document.querySelector('#payload-text').value = '{\\n  \"to\": \"+46700000001\"\\n}'").await;
    browser.click("main form button").await;
    browser.click("#confirm-button").await;
    browser.until("return location.pathname.includes('redrive')").await;
    browser.until_text("Accepted by the gateway on attempt 1.").await;
    browser.until_text("Sent again as a new intent.").await;
    // Both pages show the chain.
    browser.until("return document.querySelectorAll('.chain li').length === 2").await;
    browser.click(".chain a").await;
    browser.until("return location.pathname === '/ui/intents/wrong-1'").await;
    browser.until("return document.querySelectorAll('.chain li').length === 2").await;
    assert_eq!(browser.run("return document.querySelector('form[action$=redrive]')").await, json!(null));
}
