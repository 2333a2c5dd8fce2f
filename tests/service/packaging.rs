//! What packages install besides the binary: shell completions and manual pages.

use std::process::{Command, Output};

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
