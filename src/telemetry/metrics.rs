//! Every number on `/metrics`, in one place. Labels come from small closed sets, never from ids or
//! targets. Nothing here decides anything or can fail after start.

use std::time::Duration;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::domain::attempt::FinishAttempt;
use crate::domain::inbox::Cause;
use crate::domain::intent::{ExhaustedReason, Intent, State, Status};
use crate::domain::outcome::{Contact, Outcome};
use crate::domain::webhook::Verdict;

pub struct Metrics {
    registry: Registry,
    pub intents_created: IntCounter,
    pub intents_purged: IntCounter,
    pub idempotent_hits: IntCounter,
    pub idempotency_conflicts: IntCounter,
    intents_terminal: IntCounterVec,
    exhausted: IntCounterVec,
    attempts: IntCounterVec,
    attempt_errors: IntCounterVec,
    local_resource_errors: IntCounterVec,
    retries_scheduled: IntCounter,
    time_to_terminal: HistogramVec,
    attempt_duration: Histogram,
    queue_delay: Histogram,
    pub queue_depth: IntGauge,
    pub schedule_held: IntGauge,
    spans: IntCounterVec,
    pub paused_targets: IntGauge,
    pub held_gateways: IntGauge,
    pub inflight_attempts: IntGauge,
    pub leader: IntGauge,
    pub lease_epoch: IntGauge,
    leader_transitions: IntCounterVec,
    jobs: IntCounterVec,
    inbox_received: IntCounter,
    inbox_processed: IntCounter,
    inbox_failed: IntCounterVec,
    inbox_oldest: Gauge,
    inbox_parked: IntGauge,
    webhook_tries: IntCounterVec,
    webhook_duration: Histogram,
    pub webhooks_inflight: IntGauge,
    pending_webhooks: IntGauge,
    webhook_oldest_owed: Gauge,
    store_batch_size: Histogram,
    store_commit_duration: Histogram,
    store_errors: IntCounterVec,
    pub store_queue: IntGauge,
    store_connections: IntGaugeVec,
    store_idle_connections: IntGaugeVec,
    store_connection_wait: Histogram,
    pub http_connections: IntGauge,
    http_connections_closed: IntCounterVec,
    http_requests: IntCounterVec,
    http_duration: HistogramVec,
    console_logins: IntCounterVec,
}

/// Seconds from half a millisecond to the longest timeout that a target may set.
const SECONDS: [f64; 17] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Seconds from an intent's arrival to its end: a retry or two, minutes, hours, a day.
const LONG_SECONDS: [f64; 17] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 3600.0, 86400.0];
/// Why the server closes a connection of a client before that one does.
const CLOSED_REASONS: [&str; 7] =
    ["slow_head", "slow_answer", "unread_body", "idle", "slow_reader", "replaced", "refused"];
const BATCH_SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let make = Maker(&registry);
        let metrics = Self {
            intents_created: make.counter("intents_created_total", "Intents made durable")?,
            intents_purged: make.counter("intents_purged_total", "Old intents that retention deleted")?,
            idempotent_hits: make.counter("idempotent_hits_total", "Submissions that returned an existing intent")?,
            idempotency_conflicts: make
                .counter("idempotency_conflicts_total", "Submissions that reused an id for something else")?,
            intents_terminal: make.counters("intents_terminal_total", "Intents that ended", &["status"])?,
            exhausted: make.counters("exhausted_total", "Intents that policy ended", &["reason"])?,
            attempts: make.counters("attempts_total", "Attempts finished", &["outcome_status"])?,
            attempt_errors: make.counters(
                "attempt_errors_total",
                "Attempts that ended with an error, by how far they got",
                &["contact"],
            )?,
            local_resource_errors: make.counters(
                "local_resource_errors_total",
                "Calls not made because this machine or process lacked descriptors, ports or memory",
                &["kind"],
            )?,
            retries_scheduled: make.counter("retries_scheduled_total", "Further attempts scheduled")?,
            time_to_terminal: make.histograms(
                "intent_time_to_terminal_seconds",
                "From arrival to the end of an intent",
                &LONG_SECONDS,
                &["status"],
            )?,
            attempt_duration: make.histogram("attempt_duration_seconds", "Duration of attempts", &SECONDS)?,
            queue_delay: make.histogram("queue_delay_seconds", "From due time to start of an attempt", &SECONDS)?,
            queue_depth: make.gauge("queue_depth", "Intents waiting for an attempt, as the leader counted last")?,
            schedule_held: make.gauge("schedule_held_intents", "Waiting intents that the leader holds in memory")?,
            spans: make.counters("spans_total", "Spans of sampled traces, by what became of them", &["result"])?,
            paused_targets: make.gauge("targets_paused", "Targets that are paused, as the leader saw last")?,
            held_gateways: make.gauge("gateways_on_hold", "Gateways that asked to be left alone for a while")?,
            inflight_attempts: make.gauge("inflight_attempts", "Attempts under way")?,
            leader: make.gauge("leader", "1 while this instance holds the lease")?,
            lease_epoch: make.gauge("lease_epoch", "Epoch of the lease last held by this instance")?,
            leader_transitions: make.counters("leader_transitions_total", "Leadership gained and lost", &["to"])?,
            jobs: make.counters("jobs_total", "Jobs submitted, by what was answered", &["result"])?,
            inbox_received: make.counter("inbox_received_total", "Submissions that came into the inbox")?,
            inbox_processed: make.counter("inbox_processed_total", "Submissions that became messages")?,
            inbox_failed: make.counters("inbox_failed_total", "Tries to process that failed", &["cause"])?,
            inbox_oldest: make.float_gauge(
                "inbox_oldest_unprocessed_seconds",
                "How long the oldest that is due has been waiting; on the leader",
            )?,
            inbox_parked: make.gauge("inbox_parked", "Submissions that wait for a person; on the leader")?,
            webhook_tries: make.counters("webhook_tries_total", "Tries to deliver an event", &["result"])?,
            webhook_duration: make.histogram("webhook_try_seconds", "Duration of tries", &SECONDS)?,
            webhooks_inflight: make.gauge("inflight_webhooks", "Tries under way")?,
            pending_webhooks: make.gauge("webhooks_owed", "Events that are owed; on the leader")?,
            webhook_oldest_owed: make.float_gauge(
                "webhook_oldest_owed_seconds",
                "How long the oldest of them has been owed; on the leader",
            )?,
            store_batch_size: make.histogram("store_batch_size", "Writes committed together", &BATCH_SIZES)?,
            store_commit_duration: make.histogram("store_commit_seconds", "Duration of a commit", &SECONDS)?,
            store_errors: make.counters("store_errors_total", "Failed store calls", &["kind"])?,
            store_queue: make.gauge("store_queue_writes", "Writes that wait for the next commit")?,
            store_connections: make.gauges("store_connections", "Connections to the database server", &["pool"])?,
            store_idle_connections: make.gauges("store_idle_connections", "Of those, not in use", &["pool"])?,
            store_connection_wait: make.histogram(
                "store_connection_wait_seconds",
                "Time until a connection was free",
                &SECONDS,
            )?,
            http_connections: make.gauge("http_connections", "Open connections of clients")?,
            http_connections_closed: make.counters(
                "http_connections_closed_total",
                "Connections that the server closed because a limit was reached, by limit",
                &["reason"],
            )?,
            http_requests: make.counters("http_requests_total", "Requests answered", &["route", "status_class"])?,
            http_duration: make.histograms("http_request_seconds", "Time to answer", &SECONDS, &["route"])?,
            console_logins: make.counters("console_logins_total", "Passwords given to the console", &["result"])?,
            registry: registry.clone(),
        };
        let info = Gauge::with_opts(
            Opts::new("submission_build_info", "Version of this instance")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        info.set(1.0);
        registry.register(Box::new(info))?;
        metrics.show_zeroes();
        Ok(metrics)
    }

    /// Makes every label value appear from the start, so that a rate over it is right.
    fn show_zeroes(&self) {
        for status in Status::ALL.into_iter().filter(|status| *status != Status::Pending) {
            self.intents_terminal.with_label_values(&[status.as_str()]);
            self.time_to_terminal.with_label_values(&[status.as_str()]);
        }
        for reason in ExhaustedReason::ALL {
            self.exhausted.with_label_values(&[reason.as_str()]);
        }
        for result in ["exported", "failed", "dropped"] {
            self.spans.with_label_values(&[result]);
        }
        for result in ["accepted", "replayed", "idempotency_conflict", "policy_rejected", "execution_unavailable"] {
            self.jobs.with_label_values(&[result]);
        }
        for cause in Cause::ALL {
            self.inbox_failed.with_label_values(&[cause.as_str()]);
        }
        for outcome in ["accepted", "rejected", "error"] {
            self.attempts.with_label_values(&[outcome]);
        }
        for contact in Contact::ALL {
            self.attempt_errors.with_label_values(&[contact.as_str()]);
        }
        for kind in ["gateway", "webhook"] {
            self.local_resource_errors.with_label_values(&[kind]);
        }
        for result in ["delivered", "retry", "failed"] {
            self.webhook_tries.with_label_values(&[result]);
        }
        for mode in ["leader", "follower"] {
            self.leader_transitions.with_label_values(&[mode]);
        }
        for reason in CLOSED_REASONS {
            self.http_connections_closed.with_label_values(&[reason]);
        }
        for kind in ["overloaded", "unavailable", "unexpected"] {
            self.store_errors.with_label_values(&[kind]);
        }
    }

    pub fn attempt_started(&self, delay: Duration) {
        self.queue_delay.observe(delay.as_secs_f64());
    }

    pub fn attempt_finished(&self, finish: &FinishAttempt) {
        use crate::domain::policy::Decision;
        let attempt = &finish.attempt;
        self.attempts.with_label_values(&[finish.outcome.kind()]).inc();
        if let Outcome::Error { contact, .. } = &finish.outcome {
            self.attempt_errors.with_label_values(&[contact.as_str()]).inc();
        }
        self.attempt_duration.observe(finish.finished_at.since(attempt.started_at).as_secs_f64());
        let age = finish.finished_at.since(attempt.created_at);
        match &finish.decision {
            Decision::Accept => self.ended(Status::Accepted, None, age),
            Decision::Reject { .. } => self.ended(Status::Rejected, None, age),
            Decision::Exhaust(reason) => self.ended(Status::Exhausted, Some(*reason), age),
            Decision::RetryAt(_) => self.retries_scheduled.inc(),
        }
    }

    /// Counts calls that were not made for want of a local resource; `kind`: gateway or webhook.
    pub fn local_resource_errors(&self, kind: &str) -> IntCounter {
        self.local_resource_errors.with_label_values(&[kind])
    }

    /// An intent ended without a further attempt.
    pub fn intent_expired(&self, intent: &Intent) {
        if let State::Exhausted { at, reason } = &intent.state {
            self.ended(Status::Exhausted, Some(*reason), at.since(intent.created_at));
        }
    }

    fn ended(&self, status: Status, reason: Option<ExhaustedReason>, age: Duration) {
        self.intents_terminal.with_label_values(&[status.as_str()]).inc();
        self.time_to_terminal.with_label_values(&[status.as_str()]).observe(age.as_secs_f64());
        if let Some(reason) = reason {
            self.exhausted.with_label_values(&[reason.as_str()]).inc();
        }
    }

    pub fn webhook_tried(&self, verdict: Verdict, took: Duration) {
        let result = match verdict {
            Verdict::Delivered => "delivered",
            Verdict::RetryAt(_) => "retry",
            Verdict::Failed => "failed",
        };
        self.webhook_tries.with_label_values(&[result]).inc();
        self.webhook_duration.observe(took.as_secs_f64());
    }

    /// What waits in the store, as the leader has counted it.
    pub fn show_backlog(&self, waiting: u64, webhooks: u64, oldest_webhook: Option<Duration>) {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.queue_depth.set(gauge(waiting));
        self.pending_webhooks.set(gauge(webhooks));
        self.webhook_oldest_owed.set(oldest_webhook.unwrap_or_default().as_secs_f64());
    }

    pub fn batch_committed(&self, writes: usize, took: Duration) {
        self.store_batch_size.observe(f64::from(u32::try_from(writes).unwrap_or(u32::MAX)));
        self.store_commit_duration.observe(took.as_secs_f64());
    }

    pub fn store_pool(&self, pool: &str, connections: u32, idle: u32, waited: Duration) {
        self.store_connections.with_label_values(&[pool]).set(i64::from(connections));
        self.store_idle_connections.with_label_values(&[pool]).set(i64::from(idle));
        self.store_connection_wait.observe(waited.as_secs_f64());
    }

    /// `kind`: overloaded, unavailable or unexpected.
    pub fn store_failed(&self, kind: &str) {
        self.store_errors.with_label_values(&[kind]).inc();
    }

    pub fn became_leader(&self, epoch: i64) {
        self.leader.set(1);
        self.lease_epoch.set(epoch);
        self.leader_transitions.with_label_values(&["leader"]).inc();
    }

    pub fn became_follower(&self) {
        self.leader.set(0);
        self.show_backlog(0, 0, None);
        self.schedule_held.set(0);
        self.paused_targets.set(0);
        self.held_gateways.set(0);
        self.leader_transitions.with_label_values(&["follower"]).inc();
    }

    /// `result`: exported, failed (the collector did not take them), dropped (too many waited).
    pub fn spans(&self, result: &str, count: usize) {
        self.spans.with_label_values(&[result]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// `result`: accepted, replayed, or the code of the error.
    pub fn console_login(&self, result: &str) {
        self.console_logins.with_label_values(&[result]).inc();
    }

    pub fn job_answered(&self, result: &str) {
        self.jobs.with_label_values(&[result]).inc();
    }

    pub fn inbox_received(&self) {
        self.inbox_received.inc();
    }

    pub fn inbox_processed(&self) {
        self.inbox_processed.inc();
    }

    pub fn inbox_failed(&self, cause: Cause) {
        self.inbox_failed.with_label_values(&[cause.as_str()]).inc();
    }

    pub fn inbox_backlog(&self, oldest: Option<Duration>, parked: u64) {
        self.inbox_oldest.set(oldest.unwrap_or_default().as_secs_f64());
        self.inbox_parked.set(i64::try_from(parked).unwrap_or(i64::MAX));
    }

    /// `reason`: one of [`CLOSED_REASONS`].
    pub fn connection_closed(&self, reason: &str) {
        self.http_connections_closed.with_label_values(&[reason]).inc();
    }

    pub fn request_answered(&self, route: &str, status: u16, took: Duration) {
        let class = match status {
            100..=199 => "1xx",
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            _ => "5xx",
        };
        self.http_requests.with_label_values(&[route, class]).inc();
        self.http_duration.with_label_values(&[route]).observe(took.as_secs_f64());
    }

    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(32 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// Makes metrics with the prefix and registers them.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn register<M: prometheus::core::Collector + Clone + 'static>(&self, metric: M) -> Result<M, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(format!("submission_{name}"), help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.register(IntCounterVec::new(Opts::new(format!("submission_{name}"), help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::new(format!("submission_{name}"), help)?)
    }

    fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.register(Gauge::new(format!("submission_{name}"), help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.register(IntGaugeVec::new(Opts::new(format!("submission_{name}"), help), labels)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts::new(format!("submission_{name}"), help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(opts)?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> Result<HistogramVec, prometheus::Error> {
        let opts = HistogramOpts::new(format!("submission_{name}"), help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(opts, labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_terminal_are_told_apart_around_two_seconds_and_two_minutes() {
        let text = String::from_utf8(Metrics::new().unwrap().text().unwrap()).unwrap();
        for bound in ["1", "2", "5", "60", "120", "300"] {
            let bucket =
                format!("submission_intent_time_to_terminal_seconds_bucket{{status=\"accepted\",le=\"{bound}\"}}");
            assert!(text.contains(&bucket), "{bucket} in {text}");
        }
    }
}
