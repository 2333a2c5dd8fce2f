//! `submission-manager init`: the folder that it writes, the steps that it prints, and what it refuses.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::fleet::free_address;
use crate::support::{Api, BINARY};

fn init(directory: &Path) -> Output {
    Command::new(BINARY).arg("init").arg(directory).output().unwrap()
}

/// Returns the commands that `init` printed: its lines with an indent, in the groups between which it prints prose.
fn steps(printed: &str) -> Vec<String> {
    let groups = printed.split("\n\n").filter(|group| group.lines().all(|line| line.starts_with("  ")));
    groups.skip(1).map(|group| format!("{group}\n")).collect()
}

#[actix::test]
async fn the_steps_that_it_prints_work() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a new folder's folder");
    let output = init(&directory);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut steps = steps(&printed);
    assert_eq!(steps.len(), 3, "{printed}");

    // Only the ports are changed, so that tests can run at the same time.
    let gateway = free_address().to_string();
    let service = free_address().to_string();
    let replace = |text: &str| text.replace("127.0.0.1:8080", &gateway).replace("127.0.0.1:8082", &service);
    for name in ["submission_targets.json", "submission-manager.env"] {
        let file = directory.join(name);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(replace(&text) != text, "{name} names an address");
        std::fs::write(&file, replace(&text)).unwrap();
    }
    steps.iter_mut().for_each(|group| *group = replace(group));

    let path = format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.arg("-e").current_dir(parent.path()).env("PATH", path).env("SM_URL", format!("http://{service}"));
    let log = std::fs::File::create(parent.path().join("log")).unwrap();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut shell = command.spawn().unwrap();
    let mut input = shell.stdin.take().unwrap();
    // Job control, as in the shell of a person. Every started process ends with the shell.
    write!(input, "set -m\ntrap 'kill $(jobs -p)' EXIT\n{}", steps[0]).unwrap();
    Api::new(&format!("http://{service}")).until("/readyz", |answer| answer.status.is_success()).await;
    writeln!(input, "{}{}exit 0", steps[1], steps[2]).unwrap();
    drop(input);
    let output = actix_web::rt::task::spawn_blocking(move || shell.wait_with_output().unwrap()).await.unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let log = std::fs::read_to_string(parent.path().join("log")).unwrap();
    assert!(output.status.success(), "{stdout}{log}");
    assert!(
        stdout.contains("targets=1") && stdout.contains(r#""status":"accepted""#) && stdout.contains("#1"),
        "{stdout}"
    );
    assert!(directory.join("submission.db").exists(), "the store is in the folder");
}

#[test]
fn it_replaces_no_files() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    let output = init(directory.path());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("is not empty, it has notes.txt"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was written");

    let output = init(&directory.path().join("notes.txt"));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("name another folder"), "{error}");
    assert_eq!(std::fs::read_to_string(directory.path().join("notes.txt")).unwrap(), "mine");
}

#[test]
fn without_a_folder_it_writes_to_the_current_one() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(BINARY).arg("init").current_dir(directory.path()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !printed.contains("cd "), "{printed}");
    let written = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let named: BTreeSet<_> = written.map(|name| name.into_string().unwrap()).collect();
    assert!(named.len() == 2 && named.iter().all(|name| printed.contains(name)), "{named:?}");
}
