//! The typed clients and the examples, against a running demo: generated from its document, compiled, and run.

use std::process::Command;

use crate::support::Demo;

#[test]
fn clients_and_examples_do_what_they_say() {
    let demo = Demo::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/test.sh");
    let output =
        Command::new("bash").arg(script).env("SM_URL", &demo.url).env("SM_TOKEN", &demo.token).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    // What was skipped, if anything was.
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{line}"));
}
