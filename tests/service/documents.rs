//! Checks the documents. Every fenced block is of a kind that is checked here: JSON, SQL and code parse, requests are
//! answered by the demo, commands exist with the flags that are shown, and the fleet of processes runs as shown. A
//! block or a command of an unknown kind is a failure. Links, heading anchors, files and tests that the documents name
//! exist.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use submission_manager::domain::signature::Secret;

use crate::events::Stream;
use crate::fleet::free_address;
use crate::support::{Api, BINARY, Demo, Killed, site};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every document with its text.
fn documents() -> Vec<(PathBuf, String)> {
    let clients = ["clients", "clients/python", "clients/typescript", "clients/dotnet"];
    let others = ["", "docs", "docs/decisions", "docs/guides", "registry", "schema", "examples"];
    let folders: Vec<_> = clients.iter().chain(&others).map(|folder| root().join(folder)).collect();
    let entries =
        folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let documents = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// A fenced block: its location, its language, and its text.
pub(crate) struct Block {
    place: String,
    language: String,
    pub text: String,
}

impl Block {
    pub(crate) fn is_in(&self, page: &str) -> bool {
        self.place == page
    }
}

/// The text of a document, with a line break before each line. Blocks in lists begin at the start of a line, as others do.
fn without_indents(text: &str) -> String {
    let (mut lines, mut indent) = (String::new(), None);
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        let own = indent.unwrap_or(if is_fence { line.len() - line.trim_start().len() } else { 0 });
        lines.extend(["\n", line.get(own..).unwrap_or_default()]);
        indent = match (is_fence, indent) {
            (true, None) => Some(own),
            (true, Some(_)) => None,
            (false, indent) => indent,
        };
    }
    lines
}

fn all_blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for (path, text) in documents() {
        let place = path.strip_prefix(root()).unwrap().display().to_string();
        // Text outside and inside of blocks alternates.
        for fenced in without_indents(&text).split("\n```").skip(1).step_by(2) {
            let (language, text) = fenced.split_once('\n').unwrap();
            let (place, language, text) = (place.clone(), language.to_owned(), text.to_owned());
            blocks.push(Block { place, language, text });
        }
    }
    blocks
}

pub(crate) fn blocks(language: &str) -> Vec<Block> {
    let found: Vec<_> = all_blocks().into_iter().filter(|block| block.language == language).collect();
    assert!(!found.is_empty(), "no {language}");
    found
}

/// Runs a program with this text as its standard input.
fn fed(program: &str, arguments: &[&str], text: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}; install it"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn assert_fine(output: &Output, what: &str) {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_block_is_of_a_known_kind_and_parses() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for Block { place, language, text } in all_blocks() {
        let here = format!("{place}:\n{text}");
        match language.as_str() {
            "json" => drop(serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error} in {here}"))),
            "sh" => assert_fine(&fed("bash", &["-n"], &text), &here),
            "python" => {
                assert_fine(&fed("python3", &["-c", "import ast, sys; ast.parse(sys.stdin.read())"], &text), &here)
            }
            "sql" => {
                // The parser does not know permissions on a schema.
                let text = text.replace("SCHEMA::dbo", "submission_intents");
                let dialect = sqlparser::dialect::MsSqlDialect {};
                assert!(sqlparser::parser::Parser::parse_sql(&dialect, &text).is_ok(), "{here}");
            }
            "http" => {
                let (head, body) = text.split_once("\n\n").unwrap();
                assert!(head.lines().next().unwrap().ends_with(" HTTP/1.1"), "{here}");
                assert!(head.lines().skip(1).all(|line| line.contains(": ")), "{here}");
                assert!(serde_json::from_str::<Value>(body).is_ok(), "{here}");
            }
            "mermaid" => {
                let kind = text.split_whitespace().next().unwrap();
                assert!(["flowchart", "sequenceDiagram", "stateDiagram-v2"].contains(&kind), "{here}");
                assert_eq!(text.matches(['(', '[', '{']).count(), text.matches([')', ']', '}']).count(), "{here}");
            }
            // promql is checked below, text is for people, clients/test.sh compiles and runs ts and csharp, and these few lines
            // of js are not run.
            "promql" | "ts" | "js" | "csharp" | "text" => {}
            other => panic!("nobody looks at {other:?} in {here}"),
        }
        *kinds.entry(language).or_default() += 1;
    }
    assert!(kinds["json"] >= 7 && kinds["sh"] >= 15, "{kinds:?}");
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect()
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).args(arguments).arg("--help").output().unwrap();
    assert_fine(&output, &format!("{arguments:?}"));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the commands of a block, one on each line. Continued lines are joined. Here documents, comments, the brackets of
/// subshells and assignments of variables are left out.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let joined = text.replace("\\\n", " ");
    let mut lines = joined.lines();
    let mut quoted = false;
    while let Some(line) = lines.next() {
        let opens = line.matches('\'').count() % 2 == 1;
        if quoted || line.trim_start().starts_with('#') {
            quoted ^= opens;
            continue;
        }
        quoted = opens;
        for command in line.split(" # ").next().unwrap().split("&&") {
            let command = command.trim().trim_start_matches('(').trim_end_matches([')', '&']).trim();
            let set = |word: &&str| word.contains('=') && word.starts_with(|c: char| c.is_ascii_uppercase());
            let words: Vec<_> = command.split_whitespace().skip_while(set).collect();
            found.extend((!words.is_empty()).then(|| words.join(" ")));
        }
        if let Some((_, end)) = line.split_once("<<'") {
            let end = end.trim_end_matches('\'');
            lines.by_ref().take_while(|line| *line != end).for_each(drop);
        }
    }
    found
}

/// Splits a command at its blanks, except within single quotes.
fn shell_words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (place, part) in command.split('\'').enumerate() {
        for (number, piece) in part.split(|c: char| c.is_whitespace() && place % 2 == 0).enumerate() {
            if number > 0 {
                words.push(String::new());
            }
            words.last_mut().unwrap().push_str(piece);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn commands_exist_with_the_flags_that_are_shown() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut ours = 0;
    for Block { place, text, .. } in blocks("sh") {
        for command in commands(&text) {
            let mut words = command.split_whitespace();
            match words.next().unwrap() {
                "submission-manager" => {
                    let arguments = shell_words(&command);
                    let arguments = arguments.iter().map(String::as_str).skip(1).take_while(|word| *word != ">");
                    help(&arguments.collect::<Vec<_>>());
                    ours += 1;
                }
                "cargo" => {
                    let arguments: Vec<_> = words.skip_while(|word| *word != "--").skip(1).collect();
                    help(&arguments);
                    ours += 1;
                }
                "make" => {
                    let target = words.next().unwrap();
                    assert!(makefile.contains(&format!("\n{target}:")), "{place}: make {target}");
                }
                "python3" => {
                    let script = words.next().unwrap();
                    assert!(root().join(script).exists(), "{place}: {script}");
                }
                "cd" => {
                    let folder = words.next().unwrap();
                    assert!(root().join(folder).is_dir(), "{place}: {folder}");
                }
                // The fleet runs below and the backup in backup.rs; the demo answers requests; clients/test.sh runs what
                // npm, pip, mcs and mono do; deployment.rs parses compose.yaml.
                "haproxy" | "sqlite3" | "rm" | "cp" | "curl" | "npm" | "pip" | "dotnet" | "mcs" | "mono" | "docker" => {
                }
                // Run below, or by guides.rs.
                "echo" | "kill" => {}
                // packaging.rs compares the package with the code.
                "apt-get" | "systemctl" => {}
                "export" => {
                    let (name, _) = words.next().unwrap().split_once('=').unwrap();
                    assert!(name.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{place}: {command}");
                }
                // A measurement with other tools, which people make by hand.
                "cat" | "wrk" if place == "docs/performance.md" => {}
                other => panic!("{place}: nobody looks at {other}: {command}"),
            }
        }
    }
    assert!(ours >= 10, "{ours}");
}

#[test]
fn the_command_that_makes_a_secret_works() {
    let text = blocks("sh").into_iter().find(|block| block.text.contains("whsec_")).unwrap().text;
    let output = fed("bash", &[], &text);
    assert_fine(&output, &text);
    assert!(Secret::parse_list(String::from_utf8(output.stdout).unwrap().trim()).is_ok());
}

#[test]
fn every_variable_is_read_by_something() {
    let all = ["serve", "migrate", "submit", "health"].map(|command| help(&[command])).join("\n");
    let known = words(&all);
    let haproxy = std::fs::read_to_string(root().join("deploy/haproxy.cfg")).unwrap();
    for (path, text) in documents() {
        for variable in words(&text).into_iter().filter(|word| word.starts_with("SM_") && !word.ends_with('_')) {
            let ours = known.contains(variable) || haproxy.contains(&format!("presetenv {variable}"));
            let of_tests = ["SM_TEST_", "SM_REQUIRE_", "SM_CHAOS_", "SM_ATTACK_"]
                .iter()
                .any(|prefix| variable.starts_with(prefix));
            assert!(ours || of_tests, "{}: nothing reads {variable}", path.display());
        }
    }
}

/// The names of the events that a source file logs: the first word of the text of each line.
fn log_events(source: &str) -> BTreeSet<String> {
    let is_event = |word: &str| word.contains('_') || ["listening", "stopping", "stopped", "panic"].contains(&word);
    let calls = ["log::error!(", "log::warn!(", "log::info!(", "log::debug!("].map(|call| source.split(call).skip(1));
    let texts = calls.into_iter().flatten().filter_map(|call| call.trim_start().strip_prefix('"'));
    let words = texts.map(|text| text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>());
    words.filter(|word| is_event(word) && !word.ends_with('_')).collect()
}

#[test]
fn every_log_event_is_documented() {
    let document = std::fs::read_to_string(root().join("docs/log-lines.md")).unwrap();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let is_of_service = |path: &str| !["/devtools/", "/simulation/", "/tests"].iter().any(|part| path.contains(part));
    let events: BTreeSet<_> =
        files.iter().filter(|(path, _)| is_of_service(path)).flat_map(|(_, text)| log_events(text)).collect();
    assert!(events.len() >= 70, "{events:?}");
    for event in &events {
        assert!(document.contains(&format!("`{event}`")), "docs/log-lines.md does not explain {event}");
    }
    let every_source: String = files.into_iter().map(|(_, text)| text).collect();
    for row in document.lines().filter(|line| line.starts_with("| `")) {
        for named in row.split(" | ").next().unwrap().split('`').skip(1).step_by(2) {
            // Some names are put together, such as job_ and the event of an intent.
            let end = named.split_once('_').map_or(named, |(_, end)| end);
            assert!(every_source.contains(end), "nothing logs {named}");
        }
    }
}

/// The text of a document without its fenced blocks.
fn prose(text: &str) -> String {
    without_indents(text).split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The anchors that GitHub and mdBook make of the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).lines().filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        // A repeated heading gets a number.
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut anchored = 0;
    for (path, text) in documents() {
        let folder = path.parent().unwrap_or(Path::new("."));
        for target in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") || target.contains(' ') {
                continue;
            }
            let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            let file = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(file.exists(), "{} links to {target}", path.display());
            if let Some(anchor) = anchor {
                let anchors = anchors(&std::fs::read_to_string(&file).unwrap());
                assert!(anchors.contains(anchor), "{} links to {target}, but there are {anchors:?}", path.display());
                anchored += 1;
            }
        }
    }
    assert!(anchored >= 10, "{anchored}");
}

/// What documents show as code within their sentences, with the document.
fn code_spans() -> Vec<(PathBuf, String)> {
    let spans = |(path, text): (PathBuf, String)| {
        let spans: Vec<_> = prose(&text).split('`').skip(1).step_by(2).map(str::to_owned).collect();
        spans.into_iter().map(move |span| (path.clone(), span))
    };
    documents().into_iter().flat_map(spans).collect()
}

#[test]
fn tests_that_are_named_exist() {
    let (mut named, mut missing) = (0, Vec::new());
    for (path, span) in code_spans() {
        let is_source = span.starts_with("src/") || span.starts_with("tests/");
        let Some((file, test)) = span.split_once("::").filter(|_| is_source) else { continue };
        let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        if !source.contains(&format!("fn {test}(")) {
            missing.push(format!("{} names {span}", path.display()));
        }
        named += 1;
    }
    assert!(named >= 50 && missing.is_empty(), "{named} tests are named, and these do not exist: {missing:#?}");
}

#[test]
fn files_that_are_named_exist() {
    let folders = ["src/", "tests/", "docs/", "deploy/", "registry/", "schema/", "clients/", "examples/", "fuzz/"];
    let is_path = |span: &str| span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    for (path, span) in code_spans() {
        let inside = folders.iter().any(|folder| span.starts_with(folder));
        assert!(!inside || !is_path(&span) || root().join(&span).exists(), "{} names {span}", path.display());
    }
}

#[test]
fn every_page_is_in_the_book() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    for (path, _) in documents() {
        let page = path.strip_prefix(root()).unwrap().display().to_string();
        let link = page.strip_prefix("docs/").map_or_else(|| format!("](../{page})"), |page| format!("]({page})"));
        assert!(page == "docs/SUMMARY.md" || summary.contains(&link), "docs/SUMMARY.md does not list {page}");
    }
    // The index of decisions lists each of them under its title.
    let index = std::fs::read_to_string(root().join("docs/decisions/README.md")).unwrap();
    for (path, text) in documents().into_iter().filter(|(path, _)| !path.ends_with("README.md")) {
        if path.parent().is_some_and(|folder| folder.ends_with("decisions")) {
            let (title, file) = (text.lines().next().unwrap().trim_start_matches("# "), path.file_name().unwrap());
            let line = format!("- [{title}]({})", file.to_str().unwrap());
            assert!(index.contains(&line) && summary.contains(title), "not listed: {line}");
            for part in ["\n## Context\n", "\n## Decision\n", "\n## Consequences\n"] {
                assert!(text.contains(part), "{title} has no {part:?}");
            }
        }
    }
}

/// Every list of rejection reasons in a schema of the registry. Tests beside the code compare the schemas with the code.
fn reasons_in(schema: &Value) -> Vec<Vec<String>> {
    match schema {
        Value::Array(values) if values.contains(&Value::from("duplicate_reference")) => {
            vec![values.iter().filter_map(|reason| reason.as_str().map(str::to_owned)).collect()]
        }
        Value::Array(values) => values.iter().flat_map(reasons_in).collect(),
        Value::Object(fields) => fields.values().flat_map(reasons_in).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_rejection_reason_is_documented() {
    let read = |file: &str| std::fs::read_to_string(root().join("registry").join(file)).unwrap();
    let readme = read("README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let schemas = ["submission_targets.schema.json", "management_nodes.schema.json"];
    let reasons = schemas.iter().flat_map(|file| reasons_in(&serde_json::from_str(&read(file)).unwrap()));
    let lists: Vec<_> = reasons.map(|reasons| format!("`{}`.", reasons.join("`, `"))).collect();
    assert_eq!(lists.len(), 3, "{lists:?}");
    for list in lists {
        assert!(readme.contains(&list), "registry/README.md does not list {list}");
    }
}

#[actix::test]
async fn the_configuration_of_the_readme_is_valid() {
    let (site, _gateway) = site();
    let shown = |block: &Block| block.place == "README.md" && block.text.contains("\"targets\"");
    let registry = blocks("json").into_iter().find(shown).unwrap().text;
    std::fs::write(site.registry(), registry).unwrap();
    // 'check' accepts a missing file, but not a database without a schema.
    let commands: &[&str] = if site.is_a_file() { &["check"] } else { &["migrate", "check"] };
    for name in commands {
        let mut command = Command::new(BINARY);
        command.arg(name).env("SM_REGISTRY", site.registry()).env("SM_STORE", site.store());
        assert_fine(&command.output().unwrap(), name);
    }
}

/// The sources under a folder: each path without its ending, and its text.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if let Some(name) = path.to_str().and_then(|path| path.strip_suffix(".rs")) {
            let name = name.strip_suffix("/mod").unwrap_or(name).to_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_test_on_the_conformance_page_exists() {
    let page = std::fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("tests"), &mut files);
    let mut rules = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [rule, tests, result] = cells[..] else { panic!("not three cells: {row}") };
        if rule == "rule" {
            continue;
        }
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty() && result.starts_with("holds"), "{row}");
        rules += 1;
        // Results may name tests too.
        for test in named.into_iter().chain(result.split('`').skip(1).step_by(2).filter(|word| word.contains("::"))) {
            let (file, name) = test.rsplit_once("::").unwrap();
            let (end, function) = (format!("/{}", file.replace("::", "/")), format!("fn {name}("));
            let exists = files.iter().any(|(path, text)| path.ends_with(&end) && text.contains(&function));
            assert!(exists, "there is no test {test}, which is to show: {rule}");
        }
    }
    assert!(rules >= 130, "{rules}");
}

/// Returns the requests of the documents: location, method, path and body.
fn requests() -> Vec<(String, &'static str, String, String)> {
    let mut found = Vec::new();
    for Block { place, text, .. } in blocks("sh") {
        for call in text.split("curl ").skip(1) {
            let Some(start) = call.find("/v1/") else { continue };
            let path: String = call[start..].chars().take_while(|c| !" '\"\n\\".contains(*c)).collect();
            let body = call.split("-d '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or_default();
            let method = if body.is_empty() && !call.contains("-X POST") { "GET" } else { "POST" };
            found.push((place.clone(), method, path, body.to_owned()));
        }
    }
    found
}

#[actix::test]
async fn the_documented_requests_are_answered() {
    let demo = Demo::start();
    let api = Api::new(&demo.url);
    let bearer = format!("Bearer {}", demo.token);
    let requests = requests();
    assert!(requests.len() >= 7, "{requests:?}");
    for (place, method, path, body) in requests {
        if path.contains("/stream") {
            let stream = Stream::open(&demo.url, &path, &[("Authorization", &bearer)]).await;
            assert!(stream.unwrap().block().await.unwrap().is_some(), "{place}: {path}");
            continue;
        }
        let answer = api.call_with(method, &path, &[("Authorization", &bearer)], body.clone()).await;
        assert!(answer.status.is_success(), "{place}: {method} {path} {body}: {}", answer.text());
    }
    // The start of the client's README does what it says; clients/test.sh runs all of it.
    let python = blocks("python").into_iter().find(|block| block.place == "clients/python/README.md").unwrap();
    let text = python.text.replace("http://127.0.0.1:8082", &demo.url);
    let run = actix_web::rt::task::spawn_blocking(move || {
        let mut command = Command::new("python3");
        command
            .args(["-c", &text])
            .env("PYTHONPATH", root().join("clients/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.output().unwrap()
    });
    let output = run.await.unwrap();
    assert_fine(&output, &python.text);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("accepted "), "{output:?}");
}

#[actix::test]
async fn expressions_for_prometheus_use_only_existing_metrics() {
    let (site, _gateway) = site();
    let instance = site.start();
    let shown = instance.api().get("/metrics").await.text();
    for Block { place, text, .. } in blocks("promql") {
        assert_eq!(text.matches(['(', '[', '{']).count(), text.matches([')', ']', '}']).count(), "{place}: {text}");
        for name in words(&text).into_iter().filter(|word| word.starts_with("submission_")) {
            let name = name.trim_end_matches("_bucket");
            assert!(shown.contains(&format!("# TYPE {name} ")), "{place}: there is no {name}");
        }
    }
}

#[actix::test]
async fn the_documented_fleet_of_processes_runs() {
    let (site, _gateway) = site();
    let fleet = blocks("sh").into_iter().find(|block| block.text.contains("haproxy -f")).unwrap().text;
    // Only the ports, also in the sample registry, and the path of the store are changed.
    let mut text = format!("trap 'kill $(jobs -p)' EXIT\n{} &\nwait\n", fleet.trim_end());
    let mut registry = std::fs::read_to_string(root().join("registry/submission_targets.json")).unwrap();
    let mut front = String::new();
    for port in 8080..=8085 {
        let (shown, free) = (format!("127.0.0.1:{port}"), free_address().to_string());
        assert!(text.contains(&shown), "no {shown} in {text}");
        text = text.replace(&shown, &free);
        registry = registry.replace(&format!("localhost:{port}"), &free);
        front = free;
    }
    std::fs::write(site.registry(), registry).unwrap();
    let stats = free_address();
    let binary = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:/usr/sbin:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", &text]).current_dir(root()).env("PATH", path);
    command.env("SM_REGISTRY", site.registry()).env("SM_STORE", site.store());
    command.env("SM_STATS", stats.to_string());
    let shell = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // SIGTERM, so that it stops the processes that it started.
    struct Told(Killed);
    impl Drop for Told {
        fn drop(&mut self) {
            let _gone = Command::new("kill").arg(self.0.0.id().to_string()).status();
            let _waited = self.0.0.wait();
        }
    }
    let _fleet = Told(Killed(shell));
    let api = Api::new(&format!("http://{front}"));
    api.until("/readyz", |answer| answer.status.is_success()).await;
    for target in ["sms.realtime", "push.realtime"] {
        let answer = api.submit(target, target, serde_json::json!({}), "?waitSeconds=30").await;
        assert_eq!(answer.json()["status"], "accepted", "{}", answer.text());
    }
}
