//! The command line: what it prints, what it refuses, and with which exit code.

use std::process::{Command, Output, Stdio};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::{BINARY, Instance, PATIENCE, file, site};

/// Runs a command that ends by itself. Returns its exit code, standard output and standard error.
fn run(command: &mut Command) -> (i32, String, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(PATIENCE) else {
        Command::new("kill").args(["-KILL", &pid]).status().unwrap();
        panic!("it does not end: {command:?}");
    };
    let Output { status, stdout, stderr } = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Asserts that the service does not start, and returns its last line of output.
fn refusal(command: &mut Command) -> String {
    let (code, stdout, stderr) = run(command);
    assert_ne!(code, 0, "{stdout}{stderr}");
    let said: Vec<_> = stderr.lines().filter(|line| !line.contains(" INFO ")).collect();
    assert_eq!(said.len(), 1, "one line that says what and what to do: {stderr}");
    said[0].to_owned()
}

#[actix::test]
async fn the_reason_for_not_starting_is_one_line() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let directory = site.directory.path();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    std::fs::write(directory.join("text.db"), "no database ".repeat(1000)).unwrap();
    Connection::open(directory.join("foreign.db")).unwrap().execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    let store = |name: &str| format!("sqlite:{}", directory.join(name).display());
    let cases: Vec<(&str, String, [&str; 2])> = vec![
        ("SM_LISTEN", port.clone(), [&port, "--listen or SM_LISTEN"]),
        ("SM_LISTEN", "nonsense".into(), ["--listen", "SM_LISTEN"]),
        ("SM_REGISTRY", "missing.json".into(), ["missing.json", "--registry or SM_REGISTRY"]),
        ("SM_STORE", "postgres://x".into(), ["--store or SM_STORE", "must be sqlite:"]),
        ("SM_STORE", store("text.db"), ["text.db", "not a SQLite file"]),
        ("SM_STORE", store("foreign.db"), ["foreign.db", "belongs to another program"]),
        ("SM_STORE", "sqlite:/proc/data/submission.db".into(), ["/proc/data", "set SM_STORE to another path"]),
        ("SM_STORE", "sqlite:/proc/submission.db".into(), ["/proc/submission.db", "that this user may write to it"]),
        ("SM_LEASE_DURATION", "900ms".into(), ["SM_LEASE_DURATION", "at most 360ms"]),
        ("SM_LEASE_DURATION", "15".into(), ["--lease-duration", "SM_LEASE_DURATION: must be a duration from"]),
        ("SM_MAX_IN_FLIGHT", "0".into(), ["--max-in-flight", "SM_MAX_IN_FLIGHT: must be a whole number from 1 to"]),
        ("SM_MAX_IN_FLIGHT", u64::MAX.to_string(), ["--max-in-flight or SM_MAX_IN_FLIGHT", "from 1 to 10000"]),
        ("SM_NODES", String::new(), ["--nodes or SM_NODES is empty", "do not set it"]),
        ("SM_AUTH", String::new(), ["--auth or SM_AUTH is empty", "do not set it"]),
        ("SM_TLS_KEY", "key.pem".into(), ["--tls-cert (SM_TLS_CERT)", "--tls-key (SM_TLS_KEY)"]),
        ("SM_STORE", store("mistyped/deeper/new.db"), ["mistyped/deeper", "mkdir -p"]),
        ("SM_HOLDER_ID", "two words".into(), ["--holder-id", "SM_HOLDER_ID: must be"]),
        ("SM_MIGRATE", "perhaps".into(), ["--migrate", "SM_MIGRATE"]),
        ("SM_GATEWAY_CA", "missing.pem".into(), ["missing.pem", "--gateway-ca or SM_GATEWAY_CA"]),
    ];
    let before = std::fs::read(directory.join("foreign.db")).unwrap();
    for (variable, value, expected) in cases {
        let line = refusal(site.command().env(variable, &value));
        assert!(expected.iter().all(|part| line.contains(part)), "{variable}={value}: {line}");
    }
    assert_eq!(std::fs::read(directory.join("foreign.db")).unwrap(), before, "a foreign file was changed");
    let line = refusal(site.command().env("SM_MIGRATE", "off").env("SM_STORE", store("new.db")));
    assert!(line.contains("new.db") && line.contains("run 'submission-manager migrate' first"), "{line}");
}

#[actix::test]
async fn check_reports_all_errors_together() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let (code, stdout, _) = run(site.command().arg("check"));
    assert_eq!(code, 0);
    assert!(stdout.contains("targets=3") && stdout.contains("will be created at start"), "{stdout}");
    let folder = site.database().parent().unwrap().to_owned();
    assert!(!folder.exists(), "check makes nothing");
    std::fs::create_dir(folder).unwrap();
    let (code, stdout, _) = run(site.command().arg("migrate").env_remove("SM_REGISTRY"));
    let migrations = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/sqlite")).unwrap().count();
    assert!(code == 0 && stdout.contains(&format!("ran {migrations} migrations")), "{stdout}");
    let (code, stdout, _) = run(site.command().arg("migrate"));
    assert!(code == 0 && stdout.contains("up to date"), "{stdout}");
    let (code, stdout, _) = run(site.command().arg("check"));
    assert!(code == 0 && stdout.contains("opens, schema up to date, no damage found"), "{stdout}");
    let bytes = std::fs::read(site.database()).unwrap();
    let mut damaged = bytes.clone();
    damaged[3 * 4096..].fill(0xff);
    std::fs::write(site.database(), &damaged).unwrap();
    let (code, _, stderr) = run(site.command().arg("check"));
    assert!(code == 1 && stderr.contains("damaged") && stderr.contains("restore"), "{stderr}");
    std::fs::write(site.database(), bytes).unwrap();

    std::fs::write(site.registry(), r#"{"targets": [{"policy": "deadline"}, {"policy": "never"}]}"#).unwrap();
    let (code, _, stderr) = run(site.command().arg("check").env("SM_LEASE_DURATION", "900ms"));
    assert_eq!(code, 1);
    for expected in [
        "targets[0].maxAcceptanceSeconds: is missing",
        "targets[1].policy: must be deadline, max_attempts or one_shot",
        "SM_LEASE_DURATION",
    ] {
        assert!(stderr.contains(expected), "{expected} is not in {stderr}");
    }
}

#[actix::test]
async fn check_reports_every_bad_setting_with_exit_code_1() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let bad = [
        (
            "SM_MAX_IN_FLIGHT",
            "18446744073709551615",
            "--max-in-flight or SM_MAX_IN_FLIGHT: must be a whole number from 1",
        ),
        ("SM_RETENTION", "1.5 days", "--retention or SM_RETENTION: must be a duration from 1s to 36500d"),
        ("SM_NODES", "", "--nodes or SM_NODES is empty"),
        ("SM_LEASE_DURATION", "15", "--lease-duration or SM_LEASE_DURATION: must be a duration from"),
        ("SM_AUTH", "maybe", "--auth or SM_AUTH: must be off or required"),
    ];
    let mut check = site.command();
    check
        .args(["check", "--max-payload-bytes", "0", "--renew-interval=40ms"])
        .envs(bad.map(|(name, value, _)| (name, value)));
    std::fs::write(site.registry(), r#"{"targets": [{"policy": "never"}]}"#).unwrap();
    let (code, _, stderr) = run(&mut check);
    assert_eq!(code, 1, "{stderr}");
    let payload = "\"0\" for --max-payload-bytes or SM_MAX_PAYLOAD_BYTES: must be a whole number from 1 to 16777216";
    let policy = "targets[0].policy: must be deadline, max_attempts or one_shot";
    for expected in bad.map(|(_, _, text)| text).into_iter().chain([payload, policy]) {
        assert_eq!(stderr.matches(expected).count(), 1, "{expected} in {stderr}");
    }
    // `serve` reports the same errors as a bad command line. Other commands ignore settings that they do not use.
    let (code, _, stderr) = run(site.command().arg("serve").env("SM_AUTH", "maybe").env("SM_NODES", ""));
    assert_eq!((code, stderr.lines().count()), (2, 2), "{stderr}");
    std::fs::create_dir(site.database().parent().unwrap()).unwrap();
    let (code, _, stderr) = run(site.command().arg("migrate").env("SM_AUTH", "maybe"));
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = run(site.command().args(["check", "--colour"]).env("SM_AUTH", "maybe"));
    assert!(code == 2 && stderr.contains("--colour"), "{stderr}");
}

#[actix::test]
async fn the_service_starts_with_settings_at_their_bounds() {
    let (site, _gateway) = site();
    let mut most = site.command();
    most.envs([
        ("SM_MAX_IN_FLIGHT", "10000"),
        ("SM_MAX_IN_FLIGHT_PER_GATEWAY", "10000"),
        ("SM_ATTEMPT_TIMEOUT", "10m"),
        ("SM_WEBHOOK_TIMEOUT", "9m60s"),
        ("SM_STORE_CONNECTIONS", "1000"),
        ("SM_MAX_PAYLOAD_BYTES", "16777216"),
        ("SM_RETENTION", "36500d"),
        ("SM_LEASE_DURATION", "1h"),
        ("SM_RENEW_INTERVAL", "0.25h"),
        ("SM_SCHEDULE_REFRESH_INTERVAL", "0.01s"),
    ]);
    let instance = Instance::start(most);
    let answer = instance.api().submit("a", "once", json!({}), "?waitSeconds=30").await;
    assert_eq!(answer.json()["status"], "accepted", "{}", answer.text());
}

#[actix::test]
async fn migrate_creates_no_directory_but_the_default_one() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let folder = site.directory.path();
    let mistyped = format!("sqlite:{}", folder.join("mistyped/submission.db").display());
    let (code, _, stderr) = run(site.command().args(["migrate", "--store", &mistyped]));
    assert!(code == 1 && stderr.contains("mkdir -p") && stderr.contains("SM_STORE"), "{stderr}");
    assert!(!folder.join("mistyped").exists());
    let (code, _, stderr) = run(site.command().arg("migrate").env_remove("SM_STORE").current_dir(folder));
    assert_eq!(code, 0, "{stderr}");
    assert!(folder.join("data/submission.db").exists());
    // The service creates the last directory of the path.
    let instance = Instance::start({
        let mut command = site.command();
        command.env("SM_STORE", mistyped);
        command
    });
    assert!(instance.api().get("/readyz").await.status.is_success());
}

#[actix::test]
async fn submit_and_history_talk_to_a_service() {
    let (site, gateway) = site();
    let instance = site.start();
    // On another thread, because the stand-in gateway needs this one.
    let client = async |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.env("SM_URL", &instance.url).args(arguments);
        tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap()
    };
    let payload = r#"{ "simulate" : "reject:invalid_recipient" }"#;
    let (code, stdout, _) =
        client(&["submit", "--id", "a b", "--target", "once", "--payload", payload, "--wait", "30"]).await;
    let intent: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &intent["status"], &intent["rejectedReason"]),
        (0, &json!("rejected"), &json!("invalid_recipient"))
    );
    assert_eq!(gateway.ledger.entries()[0].body, payload);
    let from_file = site.directory.path().join("payload.json");
    std::fs::write(&from_file, payload).unwrap();
    let (code, _, _) =
        client(&["submit", "--id", "a b", "--target", "once", "--payload", &format!("@{}", file(&from_file))]).await;
    assert_eq!(code, 0, "the same bytes from a file are the same submission");

    let (code, stdout, _) = client(&["history", "a b"]).await;
    assert_eq!(code, 0);
    assert!(stdout.contains("rejected") && stdout.contains("(invalid_recipient)") && stdout.contains("#1"), "{stdout}");
    let (_, stdout, _) = client(&["history", "a b", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["attempts"][0]["attemptNumber"], 1);

    let (code, _, stderr) = client(&["history", "nobody"]).await;
    assert!(code == 1 && stderr.contains("not_found"), "{stderr}");
    let (code, _, stderr) = client(&["submit", "--id", "x", "--target", "nowhere"]).await;
    assert!(code == 1 && stderr.contains("not in the registry"), "{stderr}");
    let (code, _, stderr) = client(&["submit", "--id", "x", "--target", "once", "--payload", "{"]).await;
    assert!(code == 1 && stderr.contains("--payload is not JSON"), "{stderr}");
    let (code, _, stderr) = client(&["history", "x", "--url", "http://127.0.0.1:1"]).await;
    assert!(code == 1 && stderr.contains("--url or SM_URL"), "{stderr}");
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in ["serve", "demo", "check", "migrate", "backup", "submit", "history", "cancel", "bench"] {
        let (code, stdout, _) = run(Command::new(BINARY).args([command, "--help"]));
        let example = ["Example:\n  ", "Examples:\n  "].iter().any(|heading| stdout.contains(heading));
        assert!(code == 0 && example, "{command}: {stdout}");
    }
    let (code, stdout, _) = run(Command::new(BINARY).args(["serve", "--help"]));
    assert_eq!(code, 0);
    let flags = stdout.lines().filter(|line| line.trim_start().starts_with("--")).count();
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words.matches("[env: SM_").count(), flags, "every flag has a variable:\n{stdout}");
    let (code, _, stderr) = run(Command::new(BINARY).arg("--colour"));
    assert!(code == 2 && stderr.contains("--colour"), "{stderr}");
}

#[actix::test]
async fn bench_runs_against_a_deployment_and_saves_its_results() {
    let (site, gateway) = site();
    let instance = site.start();
    instance.wait_for_log("leader_ready");
    let json = site.directory.path().join("bench.json");
    let bench = async |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["bench", "--no-ceilings", "--duration", "300ms", "--json"]).arg(&json).args(arguments);
        let (code, stdout, stderr) = tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
        assert_eq!(code, 0, "{stdout}{stderr}");
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let case = report["cases"][0].clone();
        assert!(case["submitted"].as_u64().unwrap() > 0 && case["errors"] == 0, "{case}");
        (stdout, case)
    };
    let (stdout, case) =
        bench(&["--connections", "4", "--finished", "50", "--waiting", "2000", "--targets", "3"]).await;
    assert!(stdout.contains("CPU seconds") && stdout.contains("ready"), "{stdout}");
    assert!(case["firstAttemptAfterAnswer"]["p99Micros"].is_u64() && case["peakMemoryBytes"].is_u64(), "{case}");
    // Against an instance that runs already, which then has the intents.
    let (_, case) = bench(&["--url", &instance.url, "--target", "once", "--rate", "50"]).await;
    assert_eq!(gateway.ledger.len() as u64, case["submitted"].as_u64().unwrap() + 1, "and the one before the others");
}
