//! What pages show, in light and dark, wide and narrow.

use serde_json::json;

use super::Browser;
use crate::support::{Api, Demo};

#[actix::test]
async fn an_operator_finds_intents_and_manages_targets() {
    let demo = Demo::start();
    let url = &demo.url;
    let api = Api::new(url);
    let browser = Browser::open().await;

    browser.go(&format!("{url}/ui")).await;
    browser.until_text("Leader:").await;
    browser.until("return document.querySelectorAll('figure.chart rect').length > 0").await;
    let hostile = "<img src=x onerror=\"window.pwned=1\">";
    let wish = json!({ "simulate": format!("reject:{hostile}"), "note": "</pre><script>window.pwned=1</script>" });
    api.submit(hostile, "sms.otp", wish, "?waitSeconds=30").await;
    browser.until_text("Attempts that failed").await;
    browser.until("return document.querySelectorAll('main table td').length > 0").await;
    browser.look_at("overview").await;

    // Search by prefix, page by page, with a link to share.
    for n in 0..60 {
        api.submit(&format!("page-{n:02}"), "sms.realtime", json!({}), "").await;
    }
    browser.go(&format!("{url}/ui/intents")).await;
    browser.run("document.querySelector('#q').value = 'page-'").await;
    browser.click("form.filter button.main").await;
    browser.until("return location.search.includes('q=page-')").await;
    browser.until("return document.querySelectorAll('main tbody tr').length === 50").await;
    browser.look_at("intents").await;
    browser.click(".pages a[rel=next]").await;
    browser.until("return document.querySelectorAll('main tbody tr').length === 10").await;
    assert!(browser.text().await.contains("page-59"));

    // The page updates itself from pending to accepted.
    let slow = json!({ "to": "+46700000001", "message": "Hello", "simulate": "fail:1" });
    api.submit("live-1", "sms.bulk", slow, "").await;
    browser.go(&format!("{url}/ui/intents/live-1")).await;
    browser.run("window.sameDocument = true").await;
    browser.until_text("Waiting for attempt 2").await;
    browser.screenshot("intent-waiting").await;
    browser.until_text("Accepted by the gateway on attempt 2.").await;
    browser.until_text("Delivered on try 1.").await;
    assert_eq!(browser.run("return window.sameDocument").await, true, "it was not loaded anew");
    let zoned = "return [...document.querySelectorAll('time')].every((time) => time.title.includes(time.dateTime))";
    browser.until(zoned).await;
    browser.look_at("intent").await;
    browser.click("form[action$=redeliver] button").await;
    browser.until_text("The message of the intent is not sent again.").await;
    browser.click("#confirm-button").await;
    browser.until_text("Delivered on try 2.").await;

    // Text of clients and gateways is shown as text.
    let encoded = percent_encoding::utf8_percent_encode(hostile, percent_encoding::NON_ALPHANUMERIC);
    browser.go(&format!("{url}/ui/intents/{encoded}")).await;
    browser.until_text(hostile).await;
    assert!(!browser.text().await.contains("</pre>"), "the payload is hidden until asked for");
    browser.click("#payload a").await;
    browser.until_text("</pre><script>window.pwned=1</script>").await;
    assert_eq!(browser.run("return document.images.length === 0 && window.pwned === undefined").await, true);
    browser.look_at("hostile").await;

    browser.go(&format!("{url}/ui/targets")).await;
    browser.until_text("sms.realtime").await;
    browser.until_text("accepted within 30 s").await;
    browser.look_at("targets").await;
    // Pause and resume a target with a click.
    browser.click("button[aria-label='Pause sms.otp']").await;
    browser.until("return document.querySelector(\"button[aria-label='Resume sms.otp']\") !== null").await;
    browser.until_text("paused since").await;
    browser.look_at("targets-paused").await;
    let waits = api.submit("paused-1", "sms.otp", json!({}), "?waitSeconds=1").await.json();
    assert_eq!(waits["status"], "pending");
    browser.go(&format!("{url}/ui/intents/paused-1")).await;
    browser.until_text("its target has been paused for").await;
    browser.go(&format!("{url}/ui/targets")).await;
    browser.click("button[aria-label='Resume sms.otp']").await;
    browser.until("return document.querySelector(\"button[aria-label='Pause sms.otp']\") !== null").await;
    browser.go(&format!("{url}/ui/intents/paused-1")).await;
    browser.until_text("Accepted by the gateway on attempt 1.").await;
    browser.go(&format!("{url}/ui/targets")).await;
    browser.run("document.querySelector('main tbody a').focus()").await;
    browser.click("main tbody a").await;
    browser.until("return location.pathname.startsWith('/ui/targets/')").await;
}

#[actix::test]
async fn no_page_requests_anything_from_another_host() {
    let demo = Demo::start();
    let url = &demo.url;
    Api::new(url).submit("a", "sms.otp", json!({}), "?waitSeconds=30").await;
    let browser = Browser::open().await;
    // Under a name that is not known as local, because browsers send some requests only then.
    let named = url.replace("127.0.0.1", "submissions.example");
    let pages = [
        (format!("{named}/docs/"), "Submit an intent"),
        (format!("{url}/docs"), "Submit an intent"),
        (format!("{url}/ui"), "Leader:"),
        (format!("{url}/ui/failures"), "Failures"),
        (format!("{url}/ui/targets/sms.otp"), "Contracts over time"),
        (format!("{url}/ui/intents"), "sms.otp"),
        (format!("{url}/ui/intents/a"), "Accepted by the gateway"),
        (format!("{url}/ui/redrives"), "Redrives"),
        (format!("{url}/ui/jobs"), "Jobs"),
        (format!("{url}/ui/inbox"), "Inbox"),
        (format!("{url}/ui/inbox/contacts"), "Contacts"),
        (format!("{url}/ui/targets"), "sms.realtime"),
        (format!("{url}/ui/audit"), "Audit log"),
        (format!("{url}/ui/nothing"), "Not found"),
    ];
    browser.go("about:blank").await;
    let _of_the_browser_itself = browser.requests().await;
    for (page, text) in pages {
        browser.go(&page).await;
        browser.until("return document.readyState === 'complete'").await;
        browser.until_text(text).await;
        if page.contains("/docs") {
            browser.click(".opblock-summary-control").await;
            browser.until("return document.querySelector('.try-out button') !== null").await;
            browser.is_without_errors(&page).await;
        }
        let requests = browser.requests().await;
        assert!(requests.contains(&page), "{page} is not among {requests:?}");
        for request in requests.iter().filter(|request| !request.starts_with("data:")) {
            assert!(request.starts_with(url) || request.starts_with(&named), "{page} asks for {request}");
        }
    }
}
