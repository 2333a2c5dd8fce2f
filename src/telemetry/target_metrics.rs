//! Metrics by target: attempts by outcome, waiting intents, and the time until intents end.
//!
//! The number of time series is bounded, also over reloads. Only the first [`MOST_TARGETS`] targets of the registry, by name, have a
//! label value of their own; all others share `other`. When the registry is reloaded, the series of targets that are no
//! longer among them are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use super::metrics::Maker;
use crate::domain::intent::TargetName;

/// How many targets have series of their own. Each has 19, so that an instance has at most 3,819 of them.
const MOST_TARGETS: usize = 200;
/// The label value of all other targets, and of jobs. A target that has this name shares it.
const OTHER: &str = "other";
/// The values of the label `outcome_status`.
const OUTCOMES: [&str; 3] = ["accepted", "rejected", "error"];
/// Histogram buckets in seconds for the age of an intent when it ends. There are fewer than for all targets together, because
/// every target has them.
const SECONDS: [f64; 12] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 3600.0, 86400.0];

/// The metrics that have the label `target`.
pub(super) struct TargetMetrics {
    attempts: IntCounterVec,
    waiting: IntGaugeVec,
    time_to_terminal: HistogramVec,
    /// The targets that have series of their own. The lock is held while a value is recorded, so that no series is created
    /// for a target that is being removed.
    named: RwLock<BTreeSet<TargetName>>,
}

impl TargetMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let make = Maker(registry);
        let metrics = Self {
            attempts: make.counters(
                "target_attempts_total",
                "Finished attempts, by target; the target other counts all targets after the first 200 by name, and jobs",
                &["target", "outcome_status"],
            )?,
            waiting: make.gauges(
                "target_waiting",
                "Intents waiting for an attempt, by target; 0 on followers",
                &["target"],
            )?,
            time_to_terminal: make.histograms(
                "target_time_to_terminal_seconds",
                "Time from the creation of an intent to its terminal status, by target",
                &SECONDS,
                &["target"],
            )?,
            named: RwLock::default(),
        };
        metrics.create(OTHER);
        Ok(metrics)
    }

    /// Gives the first targets of a registry, by name, series of their own, and removes the series of all others.
    pub(super) fn name_targets<'a>(&self, targets: impl Iterator<Item = &'a TargetName>) {
        let all: BTreeSet<_> = targets.collect();
        let named: BTreeSet<_> = all.into_iter().take(MOST_TARGETS).cloned().collect();
        let mut current = self.named.write().unwrap_or_else(PoisonError::into_inner);
        current.difference(&named).map(TargetName::as_str).filter(|name| *name != OTHER).for_each(|name| {
            self.remove(name);
        });
        named.difference(&current).for_each(|target| self.create(target.as_str()));
        *current = named;
    }

    /// Creates the series of a label value with 0, so that rates count the first event.
    fn create(&self, target: &str) {
        for outcome in OUTCOMES {
            self.attempts.with_label_values(&[target, outcome]);
        }
        self.waiting.with_label_values(&[target]);
        self.time_to_terminal.with_label_values(&[target]);
    }

    fn remove(&self, target: &str) {
        // An error says only that the series does not exist.
        for outcome in OUTCOMES {
            let _absent = self.attempts.remove_label_values(&[target, outcome]);
        }
        let _absent = self.waiting.remove_label_values(&[target]);
        let _absent = self.time_to_terminal.remove_label_values(&[target]);
    }

    /// Calls `record` with the label value of a target.
    fn with_label(&self, target: &TargetName, record: impl FnOnce(&str)) {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        record(if named.contains(target) { target.as_str() } else { OTHER });
    }

    /// Counts a finished attempt. `outcome` is `accepted`, `rejected` or `error`.
    pub(super) fn attempt_finished(&self, target: &TargetName, outcome: &str) {
        self.with_label(target, |label| self.attempts.with_label_values(&[label, outcome]).inc());
    }

    /// Records how old an intent was when it ended.
    pub(super) fn intent_ended(&self, target: &TargetName, age: Duration) {
        self.with_label(target, |label| self.time_to_terminal.with_label_values(&[label]).observe(age.as_secs_f64()));
    }

    /// Sets the numbers of waiting intents. Targets that are not in the list have none.
    pub(super) fn show_waiting(&self, waiting: &[(TargetName, u64)]) {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        let labels = named.iter().map(TargetName::as_str).chain([OTHER]);
        let mut by_label: BTreeMap<&str, u64> = labels.map(|label| (label, 0)).collect();
        for (target, count) in waiting {
            let label = if named.contains(target) { target.as_str() } else { OTHER };
            by_label.entry(label).and_modify(|sum| *sum = sum.saturating_add(*count));
        }
        for (label, count) in by_label {
            self.waiting.with_label_values(&[label]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, TextEncoder};

    use super::*;

    fn name(text: &str) -> TargetName {
        TargetName::parse(text).unwrap()
    }

    struct Fixture {
        registry: Registry,
        metrics: TargetMetrics,
    }

    impl Fixture {
        fn new(targets: &[&str]) -> Self {
            let registry = Registry::new();
            let metrics = TargetMetrics::new(&registry).unwrap();
            let fixture = Self { registry, metrics };
            fixture.name_targets(targets);
            fixture
        }

        fn name_targets(&self, targets: &[&str]) {
            let targets: Vec<_> = targets.iter().map(|target| name(target)).collect();
            self.metrics.name_targets(targets.iter());
        }

        fn lines(&self) -> Vec<String> {
            let mut text = Vec::new();
            TextEncoder::new().encode(&self.registry.gather(), &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        }

        fn assert_shows(&self, line: &str) {
            assert!(self.lines().iter().any(|other| other == line), "{line} in {:#?}", self.lines());
        }
    }

    #[test]
    fn series_begin_at_zero_and_count_by_target() {
        let fixture = Fixture::new(&["a", "b"]);
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"error\",target=\"a\"} 0");
        fixture.metrics.attempt_finished(&name("a"), "error");
        fixture.metrics.attempt_finished(&name("unknown"), "accepted");
        fixture.metrics.intent_ended(&name("b"), Duration::from_secs(3));
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"error\",target=\"a\"} 1");
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"error\",target=\"b\"} 0");
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"accepted\",target=\"other\"} 1");
        fixture.assert_shows("submission_target_time_to_terminal_seconds_bucket{target=\"b\",le=\"5\"} 1");
        fixture.assert_shows("submission_target_time_to_terminal_seconds_count{target=\"a\"} 0");
    }

    #[test]
    fn waiting_intents_of_unnamed_targets_are_added_up() {
        let fixture = Fixture::new(&["a", "b"]);
        fixture.metrics.show_waiting(&[(name("a"), 3), (name("x"), 4), (name("y"), 5)]);
        fixture.assert_shows("submission_target_waiting{target=\"a\"} 3");
        fixture.assert_shows("submission_target_waiting{target=\"b\"} 0");
        fixture.assert_shows("submission_target_waiting{target=\"other\"} 9");
        fixture.metrics.show_waiting(&[]);
        fixture.assert_shows("submission_target_waiting{target=\"a\"} 0");
        fixture.assert_shows("submission_target_waiting{target=\"other\"} 0");
    }

    #[test]
    fn a_reload_keeps_the_counts_of_targets_that_stay_and_removes_the_others() {
        let fixture = Fixture::new(&["a", "b"]);
        fixture.metrics.attempt_finished(&name("a"), "error");
        fixture.metrics.attempt_finished(&name("b"), "error");
        fixture.name_targets(&["b", "c"]);
        assert!(!fixture.lines().iter().any(|line| line.contains("target=\"a\"")), "{:#?}", fixture.lines());
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"error\",target=\"b\"} 1");
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"error\",target=\"c\"} 0");
        // Intents of a target that was removed from the registry still end.
        fixture.metrics.attempt_finished(&name("a"), "accepted");
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"accepted\",target=\"other\"} 1");
    }

    #[test]
    fn the_first_200_targets_by_name_have_series_and_reloads_add_none() {
        let all: Vec<_> = (0..1_000).map(|number| format!("target-{number:04}")).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let fixture = Fixture::new(&all[500..]);
        let series = fixture.lines().len();
        assert_eq!(series, (MOST_TARGETS + 1) * 19);
        for start in (0..500).step_by(50) {
            fixture.name_targets(&all[start..]);
            for target in &all {
                fixture.metrics.attempt_finished(&name(target), "error");
                fixture.metrics.intent_ended(&name(target), Duration::ZERO);
            }
            fixture.metrics.show_waiting(&all.iter().map(|target| (name(target), 1)).collect::<Vec<_>>());
            assert_eq!(fixture.lines().len(), series, "from {start}");
        }
        fixture.assert_shows("submission_target_waiting{target=\"target-0649\"} 1");
        fixture.assert_shows("submission_target_waiting{target=\"other\"} 800");
    }

    #[test]
    fn a_target_that_is_called_other_shares_the_label() {
        let fixture = Fixture::new(&["other"]);
        fixture.metrics.attempt_finished(&name("other"), "error");
        fixture.metrics.attempt_finished(&name("unknown"), "error");
        fixture.metrics.show_waiting(&[(name("other"), 1), (name("unknown"), 2)]);
        fixture.name_targets(&["a"]);
        fixture.assert_shows("submission_target_attempts_total{outcome_status=\"error\",target=\"other\"} 2");
        fixture.assert_shows("submission_target_waiting{target=\"other\"} 3");
    }
}
