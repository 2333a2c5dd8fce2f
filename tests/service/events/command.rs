//! The command that prints events.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::end;
use crate::fleet::free_address;
use crate::support::{BINARY, Instance, Killed, PATIENCE, site};

#[actix::test]
async fn the_command_prints_events_and_follows_them() {
    let (site, _gateway) = site();
    let address = free_address().to_string();
    let at_address = || {
        let mut command = site.command();
        command.env("SM_LISTEN", &address);
        command
    };
    let mut instance = Instance::start(at_address());
    let api = instance.api();
    end(&api, "a", "once", json!({})).await;
    end(&api, "b", "deadline", json!({})).await;
    end(&api, "c", "once", json!({ "simulate": "reject:invalid_recipient" })).await;
    let url = instance.url.clone();
    let run = async |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("events").args(arguments).env("SM_URL", &url);
        actix_web::rt::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    };
    let printed = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let output = run(&[]).await;
    let lines: Vec<_> = printed(&output).lines().map(|line| line.split_once("  ").unwrap().1.to_owned()).collect();
    assert_eq!(lines, ["accepted   once  a", "accepted   deadline  b", "rejected   once  c  (invalid_recipient)"]);
    let output = run(&["--json", "--target", "once"]).await;
    let events: Vec<Value> = printed(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json!(events), api.get("/v1/events?submissionTarget=once").await.json()["events"]);
    let hint = String::from_utf8_lossy(&output.stderr).into_owned();
    let after = hint.trim().strip_prefix("continue from here with: --after ").unwrap_or_else(|| panic!("{hint}"));
    assert_eq!(printed(&run(&["--after", after]).await), "", "nothing is new");
    let output = run(&["--after", "x"]).await;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("after must be a cursor"), "{error}");

    let mut command = Command::new(BINARY);
    command.args(["events", "--follow", "--after", after, "--url", &url]);
    let mut follower = Killed(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut events = lines_of(follower.0.stdout.take().unwrap());
    let mut notes = lines_of(follower.0.stderr.take().unwrap());
    end(&api, "d", "once", json!({})).await;
    assert!(next(&mut events).await.ends_with("accepted   once  d"));
    instance.kill();
    assert!(next(&mut notes).await.contains("trying again"));
    let instance = Instance::start(at_address());
    end(&instance.api(), "e", "once", json!({})).await;
    assert!(next(&mut events).await.ends_with("accepted   once  e"), "it goes on where it was");
    let interrupt = Command::new("kill").args(["-INT", &follower.0.id().to_string()]).status().unwrap();
    assert!(interrupt.success() && next(&mut notes).await.starts_with("continue from here with: --after e"));
    assert!(follower.0.wait().unwrap().success());
}

/// The lines that a process writes.
fn lines_of(output: impl std::io::Read + Send + 'static) -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    std::thread::spawn(move || {
        let all = BufReader::new(output).lines().map_while(Result::ok);
        all.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
    });
    lines
}

async fn next(lines: &mut UnboundedReceiver<String>) -> String {
    tokio::time::timeout(PATIENCE, lines.recv()).await.expect("no line came").expect("the process has ended")
}
