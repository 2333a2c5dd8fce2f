//! What all pages share: the search box, keyboard shortcuts, themes, the refresh, and what happens without a server or without
//! scripting.

use serde_json::json;

use super::Browser;
use crate::support::{Api, Demo};

const ESCAPE: &str = "\u{e00c}";
const ENTER: &str = "\u{e007}";

#[actix::test]
async fn everything_is_reached_by_keyboard() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    api.submit("order-1", "sms.otp", json!({}), "?waitSeconds=30").await;
    let browser = Browser::open().await;
    // The address of the service alone leads to the console.
    browser.go(url).await;
    browser.until("return location.pathname === '/ui'").await;
    browser.press("/").await;
    browser.until("return document.activeElement.id === 'find'").await;
    browser.press(&format!("order-1{ENTER}")).await;
    browser.until("return document.querySelector('h1').textContent === 'Intent order-1'").await;
    browser.press("/").await;
    browser.press(&format!("order-{ENTER}")).await;
    browser.until("return location.search === '?q=order-'").await;
    browser.press("j").await;
    browser.until("return document.activeElement.textContent === 'order-1'").await;
    browser.press("?").await;
    browser.until_text("Keyboard shortcuts").await;
    browser.look_at("shortcuts").await;
    browser.press(ESCAPE).await;
    browser.until("return document.querySelector('dialog[open]') === null").await;
    browser.press("gt").await;
    browser.until("return location.pathname === '/ui/targets'").await;
    let current = "return document.querySelector('nav [aria-current=page]').textContent";
    assert_eq!(browser.run(current).await, "Targets");
}

#[actix::test]
async fn a_chosen_theme_stays() {
    let demo = Demo::start();
    let url = &demo.url;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui")).await;
    browser
        .until(
            "return document.querySelector('#theme') !== null && document.querySelector('#theme').value === 'system'",
        )
        .await;
    let background = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.run(background).await;
    let choose = "const theme = document.querySelector('#theme'); theme.value = 'dark'; theme.dispatchEvent(new Event('change'))";
    browser.run(choose).await;
    let dark = browser.run(background).await;
    assert_ne!(light, dark);
    browser.go(&format!("{url}/ui/targets")).await;
    assert_eq!(browser.run(background).await, dark, "before any other script has run");
}

#[actix::test]
async fn the_refresh_keeps_focus_selection_and_ticked_boxes() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    api.submit("kept-1", "sms.otp", json!({ "simulate": "reject:invalid_recipient" }), "?waitSeconds=30").await;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui/intents?q=kept-")).await;
    browser.until_text("kept-1").await;
    browser.run("document.querySelector('input[value=kept-1]').checked = true").await;
    browser.run("window.link = document.querySelector('main tbody a'); window.link.focus()").await;
    api.submit("kept-0", "sms.otp", json!({}), "?waitSeconds=30").await;
    browser.until_text("kept-0").await;
    let kept = "return document.activeElement === window.link && window.link.isConnected
        && document.querySelector('input[value=kept-1]').checked";
    assert_eq!(browser.run(kept).await, true);
    // Nothing moves while text is selected; afterwards it goes on.
    browser.run("getSelection().selectAllChildren(document.querySelector('main tbody a'))").await;
    api.submit("kept-2", "sms.otp", json!({}), "?waitSeconds=30").await;
    browser.until("window.seen = (window.seen ?? 0) + 1; return window.seen > 80").await;
    assert!(!browser.text().await.contains("kept-2"), "changed while text was selected");
    browser.run("getSelection().removeAllRanges()").await;
    browser.until_text("kept-2").await;
    browser.press(".").await;
    browser.until_text("Paused at").await;
}

#[actix::test]
async fn a_page_says_when_the_server_is_gone() {
    let demo = Demo::start();
    let browser = Browser::open().await;
    browser.go(&format!("{}/ui/targets", demo.url)).await;
    browser.until_text("Live, updated").await;
    drop(demo);
    browser.until_text("No update since").await;
    browser.until_text("The server does not answer.").await;
    browser.click("button[aria-label='Pause sms.otp']").await;
    browser.until_text("It is not known whether this was done").await;
    browser.screenshot("server-gone").await;
    assert!(browser.text().await.contains("sms.realtime"), "the page is still there");
}

#[actix::test]
async fn pages_can_be_read_without_scripting() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    api.submit("plain-1", "sms.otp", json!({}), "?waitSeconds=30").await;
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui")).await;
    browser.protocol("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
    for (path, text) in [
        ("/ui", "Leader"),
        ("/ui/intents?q=plain", "plain-1"),
        ("/ui/intents/plain-1", "Accepted by the gateway on attempt 1."),
        ("/ui/search?q=plain-1", "Accepted by the gateway on attempt 1."),
        ("/ui/targets", "sms.realtime"),
        ("/ui/targets/sms.otp", "Contracts over time"),
        ("/ui/failures", "Failures"),
        ("/ui/intents/plain-1/payload", "SHA-256"),
        ("/ui/redrives", "There are no redrives."),
    ] {
        browser.go(&format!("{url}{path}")).await;
        let source = browser.call("GET", "/source", json!({})).await;
        assert!(source.as_str().unwrap().contains(text), "{path}");
    }
    browser.screenshot("without-scripting").await;
}
