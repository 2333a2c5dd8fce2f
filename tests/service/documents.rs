//! What the documents say can be done: JSON parses, commands and variables exist, links lead somewhere, and the
//! requests that they show are answered by the demo.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{BINARY, Killed};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every document for readers, with its text.
fn documents() -> Vec<(PathBuf, String)> {
    let folders = ["", "docs", "registry", "schema"].map(|folder| root().join(folder));
    let entries =
        folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let documents = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The fenced blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect()
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).args(arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "there is no {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_in_the_documents_is_json() {
    let mut seen = 0;
    for (path, text) in documents() {
        for block in blocks(&text, "json") {
            seen += 1;
            let parsed: Result<Value, _> = serde_json::from_str(block);
            assert!(parsed.is_ok(), "{}: {parsed:?} in\n{block}", path.display());
        }
    }
    assert!(seen >= 7, "{seen}");
}

#[test]
fn commands_variables_and_targets_of_make_exist() {
    let all = ["serve", "migrate", "submit", "health"].map(|command| help(&[command])).join("\n");
    let known = words(&all);
    let haproxy = std::fs::read_to_string(root().join("deploy/haproxy.cfg")).unwrap();
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    for (path, text) in documents() {
        for variable in words(&text).into_iter().filter(|word| word.starts_with("SM_") && !word.ends_with('_')) {
            let ours = known.contains(variable) || haproxy.contains(&format!("presetenv {variable}"));
            let of_tests = ["SM_TEST_", "SM_REQUIRE_", "SM_CHAOS_"].iter().any(|prefix| variable.starts_with(prefix));
            assert!(ours || of_tests, "{}: nothing reads {variable}", path.display());
        }
        for block in blocks(&text, "sh") {
            for line in block.lines() {
                let mut parts = line.split_whitespace().skip_while(|word| *word != "submission-manager").skip(1);
                if let Some(command) = parts.next().filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase())) {
                    help(&[command]);
                }
                if let Some(target) = line.strip_prefix("make ").and_then(|rest| rest.split_whitespace().next()) {
                    assert!(makefile.contains(&format!("\n{target}:")), "{}: make {target}", path.display());
                }
            }
        }
    }
}

#[test]
fn links_lead_somewhere() {
    for (path, text) in documents() {
        let folder = path.parent().unwrap_or(Path::new("."));
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if file.is_empty() || file.starts_with("http") || target.contains(' ') {
                continue;
            }
            assert!(folder.join(file).exists(), "{} links to {target}", path.display());
        }
    }
}

/// Requests as the documents show them: method, path and body.
fn requests(text: &str) -> Vec<(&str, String, String)> {
    let mut found = Vec::new();
    for block in blocks(text, "sh") {
        for call in block.split("curl ").skip(1) {
            let Some(start) = call.find("/v1/") else { continue };
            let path: String = call[start..].chars().take_while(|c| !" '\"\n\\".contains(*c)).collect();
            let body = call.split("-d '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or_default();
            let method = if body.is_empty() && !call.contains("-X POST") { "GET" } else { "POST" };
            found.push((method, path, body.to_owned()));
        }
    }
    found
}

#[actix::test]
async fn the_requests_that_they_show_are_answered() {
    let mut demo = Command::new(BINARY);
    demo.args(["demo", "--listen", "127.0.0.1:0"]).stdout(std::process::Stdio::piped());
    let mut demo = Killed(demo.spawn().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(demo.0.stdout.take().unwrap()));
    let (mut url, mut token) = (None, None);
    while url.is_none() || token.is_none() {
        let line = lines.next().unwrap().unwrap();
        let word = |prefix: &str| line.split(['\'', ' ', '/']).find(|word| word.starts_with(prefix)).map(str::to_owned);
        url = url.or_else(|| {
            line.trim().strip_suffix("the operator console").map(|rest| rest.trim().trim_end_matches("/ui").to_owned())
        });
        token = token.or_else(|| word("smt_"));
    }
    let api = crate::support::Api::new(&url.unwrap());
    let bearer = format!("Bearer {}", token.unwrap());
    let mut answered = 0;
    for (path, text) in documents() {
        for (method, request, body) in requests(&text) {
            let answer = api.call_with(method, &request, &[("Authorization", &bearer)], body.clone()).await;
            assert!(answer.status.is_success(), "{}: {method} {request} {body}: {}", path.display(), answer.text());
            answered += 1;
        }
    }
    assert!(answered >= 4, "{answered}");
}
