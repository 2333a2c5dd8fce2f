//! What packages install besides the binary: shell completions, manual pages, and what the Debian package adds to them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::BINARY;

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let script = stdout(&["completions", "bash"]);
    let complete = |words: &[&str]| {
        // What bash does when somebody presses the tabulator key.
        let ask = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}\n\
             $(complete -p submission-manager | grep -o '_[a-z_]*') submission-manager '{}' '{}'\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1,
            words.last().unwrap(),
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["submission-manager", "hist"]), ["history"]);
    assert_eq!(complete(&["submission-manager", "serve", "--lease-d"]), ["--lease-duration"]);
    assert_eq!(complete(&["submission-manager", "completions", "f"]), ["fish"]);
    assert_eq!(complete(&["submission-manager", "nothing-like-that"]), [""]);
}

#[test]
fn other_shells_have_completions_too() {
    assert!(stdout(&["completions", "zsh"]).starts_with("#compdef submission-manager\n"));
    assert!(stdout(&["completions", "fish"]).contains("complete -c submission-manager"));
    let refused = run(&["completions", "tcsh"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("bash, zsh, fish"));
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    assert_eq!(stdout(&["man", "--directory", folder]), "");
    let page =
        |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(page("submission-manager.1"), stdout(&["man"]));
    let help = stdout(&["--help"]);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Long texts continue on lines with a deeper indent.
    let names = listed.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let names: Vec<_> =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        assert!(page(&format!("submission-manager-{name}.1")).contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(page("submission-manager-serve.1").contains("SM_LEASE_DURATION"));
    let refused = run(&["man", "--directory", "/nowhere"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("name a folder that exists"), "{error}");
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The metadata of the Debian package in Cargo.toml.
fn package() -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"][0]["metadata"]["deb"].clone()
}

/// Returns what the package installs: the path in the repository, and the path on the machine.
fn installed() -> Vec<(String, String)> {
    let package = package();
    let pair = |asset: &Value| {
        let [from, to] = [0, 1].map(|place| asset[place].as_str().unwrap().to_owned());
        let name = from.rsplit('/').next().unwrap().to_owned();
        (from, format!("/{to}{name}"))
    };
    package["assets"].as_array().unwrap().iter().map(pair).collect()
}

/// The values of a key in the unit of the service.
fn unit(key: &str) -> Vec<String> {
    let unit = text("deploy/debian/submission-manager.service");
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned).collect()
}

#[test]
fn the_debian_package_and_its_unit_agree_with_the_code() {
    let (package, installed) = (package(), installed());
    let makefile = text("Makefile");
    for (from, to) in &installed {
        let is_made = from.strip_prefix("target/package/").is_some_and(|made| {
            let folder = made.split('/').next().unwrap();
            makefile.contains(&format!("target/package/{folder}")) && (made.contains('*') || makefile.contains(from))
        });
        assert!(is_made || from == "target/release/submission-manager" || root().join(from).is_file(), "{from}");
        assert!(
            !to.starts_with("/etc/") || package["conf-files"].as_array().unwrap().contains(&to.as_str().into()),
            "{to}"
        );
    }
    let is_installed = |path: &str| installed.iter().any(|(_, to)| to == path);
    // The unit runs the binary that is installed, with a command that exists and files that are there.
    let start = unit("ExecStart").concat();
    let (binary, command) = start.split_once(' ').unwrap();
    assert!(is_installed(binary) && stdout(&[command, "--help"]).contains("SM_LISTEN"), "{start}");
    assert!(is_installed(&unit("EnvironmentFile").concat()));
    let settings = text("deploy/debian/submission-manager.env");
    let help = stdout(&["serve", "--help"]);
    let known: Vec<_> = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let mut values = Vec::new();
    for line in settings.lines().filter(|line| line.trim_start_matches('#').starts_with("SM_")) {
        let (name, value) = line.trim_start_matches('#').split_once('=').unwrap();
        assert!(known.contains(&name), "serve knows no {name}");
        values.extend((!line.starts_with('#')).then_some((name, value)));
    }
    let value = |name: &str| values.iter().find(|(other, _)| *other == name).unwrap().1;
    assert!(is_installed(value("SM_REGISTRY")));
    let folder = unit("WorkingDirectory").concat();
    assert_eq!(folder, format!("/var/lib/{}", unit("StateDirectory").concat()));
    assert!(value("SM_STORE").starts_with(&format!("sqlite:{folder}/")), "the store is where the service may write");
    // The scripts make and delete the user and the folder of the unit.
    let (postinst, postrm) = (text("deploy/debian/postinst"), text("deploy/debian/postrm"));
    let user = unit("User").concat();
    assert!(postinst.contains(&format!("--home {folder} {user}\n")) && postinst.contains(&format!(" {folder}\n")));
    assert!(postrm.contains(&format!("--system {user} ")) && postrm.contains(&format!(" {folder}\n")));
    for script in [postinst, postrm] {
        assert!(script.contains("\n#DEBHELPER#\n"), "cargo-deb puts the handling of the unit there");
    }
    // Requests and attempts end in order, as in the other deployments.
    let seconds: u64 = unit("TimeoutStopSec").concat().trim_end_matches('s').parse().unwrap();
    assert!(seconds > 31 + 35, "{seconds}");
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_well_confined() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("submission-manager.service");
    let text = text("deploy/debian/submission-manager.service");
    // The binary is not installed on this machine.
    std::fs::write(&unit, text.replace("/usr/bin/submission-manager", BINARY)).unwrap();
    let analyze = |arguments: &[&str], unit: &Path| {
        let output = Command::new("systemd-analyze").args(arguments).arg(unit).output();
        let output =
            output.unwrap_or_else(|error| panic!("systemd-analyze: {error}; install the Debian package systemd"));
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let said = analyze(&["verify", "--man=no"], &unit);
    assert!(!said.contains("submission-manager.service"), "{said}");
    // From 0 (confined) to 10: fails above 2.0.
    analyze(&["security", "--offline=true", "--threshold=20"], &unit);
}
