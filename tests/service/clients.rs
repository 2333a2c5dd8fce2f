//! The typed clients and the examples: generated from the OpenAPI document of a running demo, compiled, and run against it.

use std::process::Command;

use crate::support::Demo;

#[test]
fn clients_and_examples_work_as_documented() {
    let demo = Demo::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/test.sh");
    let output =
        Command::new("bash").arg(script).env("SM_URL", &demo.url).env("SM_TOKEN", &demo.token).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    // Print what was skipped, if anything was.
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{line}"));
}
