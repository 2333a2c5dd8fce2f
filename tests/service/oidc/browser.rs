//! Sign-in with a real provider, npm's `oidc-provider`, in a real Chromium.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::provider::SECRET;
use super::{Console, oidc};
use crate::browser::{Browser, start};
use crate::support::{Instance, Killed};

const PACKAGE: &str = "oidc-provider@8.8.1";

/// The folder with the package, which npm installs into `target` once. `None` if npm cannot reach its registry.
fn node_modules() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join(PACKAGE.replace('@', "-"));
    let installed = folder.join("node_modules");
    if !installed.join("oidc-provider").is_dir() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("package.json"), "{}").unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", PACKAGE]);
        let output = npm.current_dir(&folder).output().expect("install the Debian packages nodejs and npm");
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(std::env::var("CI").as_deref() != Ok("true"), "npm cannot install {PACKAGE}: {why}");
            eprintln!("not run: npm cannot install {PACKAGE}: {why}");
            return None;
        }
    }
    Some(installed)
}

/// Starts the provider. Returns it with its address.
fn provider() -> Option<(Killed, String)> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/service/oidc/provider.mjs");
    let mut command = Command::new("node");
    command.arg(script).env("NODE_MODULES", node_modules()?).env("CLIENT_SECRET", SECRET);
    Some(start(command, "provider ready at "))
}

/// Fills the form of the provider.
async fn sign_in_as(browser: &Browser, name: &str) {
    browser.until_text("Who are you?").await;
    browser.run(&format!("document.querySelector('[name=login]').value = '{name}'")).await;
    browser.click("button").await;
}

#[actix::test]
async fn people_sign_in_with_a_real_provider_and_sign_out() {
    let Some((_provider, issuer)) = provider() else { return };
    let console = Console::new(&json!({ "oidc": oidc(&issuer) }));
    let (first, second) = (console.start(), console.start());
    let browser = Browser::open().await;

    browser.go(&format!("{}/ui/targets", first.url)).await;
    sign_in_as(&browser, "ada").await;
    browser.until("return location.pathname === '/ui/targets'").await;
    browser.until_text("ada@example.com (operator)").await;
    browser.look_at("signed-in").await;
    browser.click("button[aria-label='Pause once']").await;
    browser.until_text("paused since").await;
    let line = first.wait_for_log("console_signed_in");
    assert!(line.contains("subject=\"subject of ada\""), "{line}");

    // Another instance of the fleet knows the session.
    browser.go(&format!("{}/ui", second.url)).await;
    browser.until_text("ada@example.com (operator)").await;
    assert!(!second.log_lines().iter().any(|line| line.contains("console_signed_in")));

    // A page whose session expires goes to the sign-in by itself. The provider still knows the person.
    let mut command = console.command();
    command.env("SM_SESSION_LIFETIME", "5s");
    let brief = Instance::start(command);
    browser.go(&format!("{}/ui/targets", brief.url)).await;
    browser.until_text("ada@example.com (operator)").await;
    browser.run("window.sameDocument = true").await;
    browser.until("return window.sameDocument === undefined").await;
    browser.until("return location.pathname === '/ui/targets'").await;
    brief.wait_for_log("console_signed_in");
    drop(brief);

    browser.go(&format!("{}/ui", first.url)).await;
    browser.click(".leave button").await;
    browser.until("return document.querySelector('button[name=logout]') !== null").await;
    browser.click("button[name=logout]").await;
    browser.until_text("You are signed out").await;
    browser.until("return location.pathname === '/ui/sign-out'").await;
    browser.screenshot("signed-out").await;
    browser.go(&format!("{}/ui", second.url)).await;

    // Who has no role is not let in, and can sign in as somebody else.
    sign_in_as(&browser, "nora").await;
    browser.until_text("You are signed in as nora@example.com").await;
    browser.screenshot("no-role").await;
    browser.go(&format!("{}/ui/targets", second.url)).await;
    browser.until_text("You are signed in as nora@example.com").await;
    browser.click("main a").await;
    sign_in_as(&browser, "vera").await;
    browser.until_text("vera@example.com (viewer)").await;
}

#[actix::test]
async fn users_with_passwords_have_a_form_beside_the_provider() {
    let Some((_provider, issuer)) = provider() else { return };
    let hash = bcrypt::hash("tulip", 10).unwrap();
    let users = json!([{ "name": "vera", "passwordHash": hash, "role": "viewer" }]);
    let console = Console::new(&json!({ "oidc": oidc(&issuer), "users": users }));
    let instance = console.start();
    let browser = Browser::open().await;
    browser.go(&format!("{}/ui/targets", instance.url)).await;
    browser.until_text("Sign in with 127.0.0.1").await;
    browser.look_at("sign-in").await;
    let fill = async |password: &str| {
        let script = format!(
            "document.querySelector('#name').value = 'vera'; document.querySelector('#password').value = '{password}'"
        );
        browser.run(&script).await;
        browser.click("form.sign-in button").await;
    };
    fill("rose").await;
    browser.until_text("The name or the password is wrong.").await;
    fill("tulip").await;
    browser.until_text("vera (viewer)").await;
    browser.until("return location.pathname === '/ui/targets'").await;
    browser.click(".leave button").await;
    browser.until_text("You are signed out").await;
    browser.click("main a").await;
    browser.click("main a").await;
    sign_in_as(&browser, "ada").await;
    browser.until_text("ada@example.com (operator)").await;
}
