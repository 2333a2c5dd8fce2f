//! Five everyday tasks, each with few clicks and key presses. docs/console.md shows the numbers.

use std::cell::Cell;

use serde_json::json;

use super::Browser;
use crate::support::{Api, Demo};

const ENTER: &str = "\u{e007}";

/// A person at the browser, whose clicks and key presses are counted.
struct Person<'a> {
    browser: &'a Browser,
    clicks: Cell<usize>,
    keys: Cell<usize>,
}

impl Person<'_> {
    async fn click(&self, selector: &str) {
        self.clicks.set(self.clicks.get() + 1);
        self.browser.click(selector).await;
    }

    async fn press(&self, keys: &str) {
        self.keys.set(self.keys.get() + keys.chars().count());
        self.browser.press(keys).await;
    }

    /// Returns the clicks and key presses since the last call.
    fn effort(&self) -> (usize, usize) {
        (self.clicks.take(), self.keys.take())
    }
}

#[actix::test]
async fn five_everyday_tasks_take_few_clicks_and_keys() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    let wish = json!({ "simulate": "reject:invalid_recipient" });
    for id in ["order-1041", "order-1042"] {
        api.submit(id, "sms.otp", wish.clone(), "?waitSeconds=30").await;
    }
    let browser = Browser::open().await;
    browser.go(&format!("{url}/ui")).await;
    let person = Person { browser: &browser, clicks: Cell::new(0), keys: Cell::new(0) };

    // Why did this message fail?
    person.press(&format!("/order-1042{ENTER}")).await;
    browser.until_text("Rejected by the gateway on attempt 1: invalid_recipient").await;
    assert_eq!(person.effort(), (0, 12));

    // Send again what failed on one target since a time.
    person.click("nav a[href='/ui/targets']").await;
    person.click("main a[href='/ui/targets/sms.otp']").await;
    person.click("main a[href^='/ui/redrives']").await;
    browser.until("return document.activeElement.id === 'plan-after'").await;
    person.press(&format!("15m{ENTER}")).await;
    browser.until_text("intents of sms.otp that failed after").await;
    person.click("form[action$=start] button").await;
    person.click("#confirm-button").await;
    browser.until_text("sent again").await;
    assert_eq!(person.effort(), (5, 4));

    // Is anything stuck?
    person.click(".brand").await;
    browser.until("return document.querySelector('.health .verdict') !== null").await;
    assert_eq!(person.effort(), (1, 0));

    // Pause a target and see it take effect.
    person.click("nav a[href='/ui/targets']").await;
    person.click("main a[href='/ui/targets/sms.otp']").await;
    person.click("#reason").await;
    person.press(&format!("maintenance{ENTER}")).await;
    browser.until_text("Paused since").await;
    api.submit("held", "sms.otp", json!({}), "").await;
    browser.until("return Number(document.querySelector('.card dd a').textContent) > 0").await;
    assert_eq!(person.effort(), (3, 12));

    // Who paused it, and why?
    person.click(".brand").await;
    person.click(".health a[href='#paused']").await;
    browser.until("return location.hash === '#paused'").await;
    browser.until_text("maintenance").await;
    assert_eq!(person.effort(), (2, 0));
}
