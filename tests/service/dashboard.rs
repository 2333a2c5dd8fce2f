//! The Grafana dashboard and the reference of metrics agree with `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::site;

const DASHBOARD: &str = include_str!("../../deploy/grafana/submission-manager.json");
const REFERENCE: &str = include_str!("../../docs/metrics.md");

/// Returns the names of our metrics in an expression.
fn names(expression: &str) -> Vec<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression.split(|c| !word(c)).filter(|name| name.starts_with("submission_")).map(str::to_owned).collect()
}

/// Returns the labels that an expression groups by.
fn grouped_by(expression: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for part in expression.split(" by (").skip(1) {
        let list = part.split(')').next().unwrap();
        labels.extend(list.split(',').map(|label| label.trim().to_owned()));
    }
    labels
}

/// Returns every metric of the text format with its labels.
fn offered(metrics: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = all.entry(name.to_owned()).or_default();
        if let Some((_, rest)) = line.split_once('{') {
            let pairs = rest.rsplit_once('}').unwrap().0.split("\",");
            labels.extend(pairs.filter_map(|pair| pair.split_once('=')).map(|(label, _)| label.to_owned()));
        }
    }
    all
}

#[actix::test]
async fn the_dashboard_uses_only_existing_metrics_and_labels() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "once", json!({}), "?waitSeconds=30").await;
    let offered = offered(&api.get("/metrics").await.text());
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut used = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let top = dashboard["panels"].as_array().unwrap();
    // A collapsed row has its panels inside.
    let nested = top.iter().flat_map(|row| row["panels"].as_array().into_iter().flatten());
    for panel in top.iter().chain(nested) {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let names = names(expression);
            assert!(!names.is_empty(), "{expression} asks for nothing of ours");
            for name in &names {
                // Only SQL Server has the metrics of connections.
                if name.starts_with("submission_store_connections") || name.starts_with("submission_store_idle") {
                    continue;
                }
                assert!(offered.contains_key(name), "{}: there is no {name}", panel["title"]);
            }
            for label in grouped_by(expression).iter().filter(|label| *label != "instance" && *label != "pool") {
                let known = names.iter().any(|name| offered.get(name).is_some_and(|labels| labels.contains(label)));
                assert!(known, "{}: no {label} on {names:?}", panel["title"]);
            }
            used.extend(names);
        }
    }
    let selector = &dashboard["templating"]["list"][1];
    assert_eq!(selector["query"]["query"], "label_values(submission_target_attempts_total, target)");
    assert!(top.iter().any(|panel| panel["repeat"] == selector["name"]), "a row for each target");
    let base = |name: &str| {
        let suffix = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| name.strip_suffix(suffix));
        suffix.unwrap_or(name).to_owned()
    };
    let used: BTreeSet<_> = used.iter().map(|name| base(name)).collect();
    let unused: Vec<_> = offered.keys().map(|name| base(name)).filter(|name| !used.contains(name)).collect();
    assert!(unused.is_empty(), "no panel shows {unused:?}");
}

#[actix::test]
async fn the_reference_has_every_metric_with_its_type_and_labels() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "once", json!({}), "?waitSeconds=30").await;
    let text = api.get("/metrics").await.text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: BTreeMap<_, _> = types.collect();
    let offered = offered(&text);
    let labels_of = |name: &str| {
        let mut labels =
            ["", "_bucket"].into_iter().find_map(|suffix| offered.get(&format!("{name}{suffix}"))).unwrap().clone();
        labels.remove("le");
        labels
    };
    let mut documented = BTreeSet::new();
    for row in REFERENCE.lines().filter(|line| line.starts_with("| `submission_")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("{row}") };
        let name = name.trim_matches('`');
        assert!(documented.insert(name) && meaning.ends_with('.'), "{row}");
        // Only SQL Server has connections, and nobody logged in.
        if name.starts_with("submission_store_connections")
            || name.starts_with("submission_store_idle")
            || name == "submission_console_logins_total"
        {
            continue;
        }
        assert_eq!(types.get(name), Some(&kind), "{name}");
        let labels = labels.split(", ").map(|label| label.trim_matches('`').to_owned());
        assert_eq!(labels.filter(|label| !label.is_empty()).collect::<BTreeSet<_>>(), labels_of(name), "{name}");
    }
    let missing: Vec<_> = types.keys().filter(|name| !documented.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/metrics.md has no row for {missing:?}");
}
