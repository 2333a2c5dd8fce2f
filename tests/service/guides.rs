//! The steps of docs/getting-started.md work as they are written, and the guides show files that exist.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use submission_manager::platform::clock::monotonic;

use crate::documents::{Block, blocks};
use crate::fleet::free_address;
use crate::support::{Api, BINARY, PATIENCE};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn of_page(language: &str, page: &str) -> Vec<String> {
    blocks(language).into_iter().filter(|block| block.is_in(page)).map(|Block { text, .. }| text).collect()
}

#[test]
fn the_gateway_of_the_guide_is_the_example() {
    let shown = of_page("python", "docs/guides/gateway-in-python.md").concat();
    assert_eq!(shown.trim(), std::fs::read_to_string(root().join("examples/gateway/gateway.py")).unwrap().trim());
}

#[actix::test]
async fn the_first_ten_minutes_work_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples")).unwrap();
    let gateway = free_address();
    let service = free_address().to_string();
    // Only the ports are changed.
    let replace = |text: &str| text.replace("9000", &gateway.port().to_string());
    let registry = of_page("json", "docs/getting-started.md").concat();
    std::fs::write(folder.path().join("targets.json"), replace(&registry)).unwrap();
    let steps: Vec<_> = of_page("sh", "docs/getting-started.md").iter().map(|text| replace(text) + "\n").collect();
    let [build, start_gateway, start_service, accepted, rejected, retried, history] = &steps[..] else {
        panic!("the page has other steps: {steps:#?}")
    };
    assert!(build.contains("cargo build --release --locked"), "the test runs the binary that is built already");

    let path = format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut command = Command::new("bash");
    command.current_dir(folder.path()).env("PATH", path).env("SM_LISTEN", &service);
    command.env("SM_URL", format!("http://{service}")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut shell = command.spawn().unwrap();
    let mut input = shell.stdin.take().unwrap();
    // Job control, as in the shell of a person. Every started process ends with the shell.
    write!(input, "set -m\ntrap 'kill $(jobs -p)' EXIT\n{start_gateway}{start_service}").unwrap();
    let api = Api::new(&format!("http://{service}"));
    api.until("/readyz", |answer| answer.status.is_success()).await;
    let deadline = monotonic() + PATIENCE;
    while std::net::TcpStream::connect(gateway).is_err() {
        assert!(monotonic() < deadline, "the gateway does not listen");
        actix_web::rt::task::yield_now().await;
    }
    // A person types slowly enough for the gateway to have ended.
    let retried = retried.replace("kill %1\n", "kill %1; wait %1\n");
    write!(input, "{accepted}{rejected}{retried}").unwrap();
    api.until("/v1/intents/hello-3", |answer| answer.json()["status"] == "accepted").await;
    writeln!(input, "{history}exit 0").unwrap();
    drop(input);
    let output = actix_web::rt::task::spawn_blocking(move || shell.wait_with_output().unwrap()).await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    for expected in [
        "attempt 1 of hello-1",
        r#""status":"accepted""#,
        "attempt 1 of hello-2",
        r#""rejectedReason":"invalid_recipient""#,
        "attempt 2 of hello-3",
        "#2",
    ] {
        assert!(printed.contains(expected), "no {expected} in {printed}{log}");
    }
}
