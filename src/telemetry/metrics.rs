//! All metrics that `/metrics` shows. Every name has the prefix `submission_`.
//!
//! Label values come from small fixed sets, never from ids, so that the number of time series stays small. Names of targets
//! are label values only in [`super::target_metrics`], which bounds them. Recording a metric cannot fail.

use std::time::Duration;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use super::target_metrics::TargetMetrics;
use crate::domain::attempt::FinishAttempt;
use crate::domain::inbox::Cause;
use crate::domain::intent::{ExhaustedReason, Intent, State, Status, TargetName};
use crate::domain::outcome::{Contact, Outcome};
use crate::domain::webhook::Verdict;

/// The metrics of one instance. Public fields are set directly; the methods record one event each.
pub struct Metrics {
    registry: Registry,
    pub intents_created: IntCounter,
    pub intents_purged: IntCounter,
    redrive_created: IntCounter,
    pub redrives_running: IntGauge,
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
    webhook_oldest_pending: Gauge,
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
    pub event_streams: IntGauge,
    pub event_streams_dropped: IntCounter,
    console_logins: IntCounterVec,
    by_target: TargetMetrics,
}

/// Histogram buckets in seconds, from half a millisecond to the longest attempt timeout of a target.
const SECONDS: [f64; 17] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Histogram buckets in seconds for the age of an intent when it ends: the first attempt, a few retries, hours, a day.
const LONG_SECONDS: [f64; 17] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 3600.0, 86400.0];
/// Why the server closes the connection of a client.
const CLOSED_REASONS: [&str; 7] =
    ["slow_head", "slow_answer", "unread_body", "idle", "slow_reader", "replaced", "refused"];
/// Histogram buckets for the number of writes in a commit. The store actor limits the writes of each kind, so that a commit
/// of several kinds can have a few thousand.
const BATCH_SIZES: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

impl Metrics {
    /// Creates and registers all metrics.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let make = Maker(&registry);
        let metrics = Self {
            intents_created: make.counter("intents_created_total", "Intents stored")?,
            redrive_created: make.counter(
                "redrive_created_total",
                "Intents that redrives in bulk created; intents_created_total counts them too",
            )?,
            redrives_running: make.gauge("redrives_running", "Running redrives; 0 on followers")?,
            intents_purged: make.counter("intents_purged_total", "Intents deleted after the retention time")?,
            idempotent_hits: make
                .counter("idempotent_hits_total", "Requests that repeated an intent and got the stored one")?,
            idempotency_conflicts: make.counter(
                "idempotency_conflicts_total",
                "Requests that used the id of an intent for a different intent",
            )?,
            intents_terminal: make.counters(
                "intents_terminal_total",
                "Intents that reached a terminal status",
                &["status"],
            )?,
            exhausted: make.counters(
                "exhausted_total",
                "Intents that ended without acceptance or rejection because their policy allowed no further attempt",
                &["reason"],
            )?,
            attempts: make.counters("attempts_total", "Finished attempts", &["outcome_status"])?,
            attempt_errors: make.counters(
                "attempt_errors_total",
                "Attempts that failed with an error, by whether the gateway may have received the request",
                &["contact"],
            )?,
            local_resource_errors: make.counters(
                "local_resource_errors_total",
                "Outgoing calls that were not made because file descriptors, ports or memory ran out on this machine",
                &["kind"],
            )?,
            retries_scheduled: make.counter("retries_scheduled_total", "Retries scheduled after a failed attempt")?,
            time_to_terminal: make.histograms(
                "intent_time_to_terminal_seconds",
                "Time from the creation of an intent to its terminal status",
                &LONG_SECONDS,
                &["status"],
            )?,
            attempt_duration: make.histogram("attempt_duration_seconds", "Duration of attempts", &SECONDS)?,
            queue_delay: make.histogram(
                "queue_delay_seconds",
                "Delay between the due time of an attempt and its start",
                &SECONDS,
            )?,
            queue_depth: make.gauge("queue_depth", "Intents waiting for an attempt; 0 on followers")?,
            schedule_held: make
                .gauge("schedule_held_intents", "Waiting intents that the leader has in memory; 0 on followers")?,
            spans: make.counters("spans_total", "Trace spans, by export result", &["result"])?,
            paused_targets: make.gauge("targets_paused", "Paused targets; 0 on followers")?,
            held_gateways: make.gauge(
                "gateways_on_hold",
                "Gateways that get no attempts until the time of their Retry-After; 0 on followers",
            )?,
            inflight_attempts: make.gauge("inflight_attempts", "Attempts in flight")?,
            leader: make.gauge("leader", "1 while this instance holds the lease, else 0")?,
            lease_epoch: make.gauge("lease_epoch", "Epoch of the lease that this instance held last")?,
            leader_transitions: make.counters(
                "leader_transitions_total",
                "Times that this instance became leader or follower",
                &["to"],
            )?,
            jobs: make.counters("jobs_total", "Job requests, by result", &["result"])?,
            inbox_received: make.counter("inbox_received_total", "Inbox submissions stored")?,
            inbox_processed: make.counter("inbox_processed_total", "Inbox submissions processed into a message")?,
            inbox_failed: make.counters(
                "inbox_failed_total",
                "Failed tries to process an inbox submission",
                &["cause"],
            )?,
            inbox_oldest: make.float_gauge(
                "inbox_oldest_unprocessed_seconds",
                "Age of the oldest inbox submission that is due for processing; 0 on followers",
            )?,
            inbox_parked: make
                .gauge("inbox_parked", "Inbox submissions that are parked until an operator acts; 0 on followers")?,
            webhook_tries: make.counters("webhook_tries_total", "Webhook delivery tries, by result", &["result"])?,
            webhook_duration: make.histogram("webhook_try_seconds", "Duration of webhook delivery tries", &SECONDS)?,
            webhooks_inflight: make.gauge("inflight_webhooks", "Webhook delivery tries in flight")?,
            pending_webhooks: make.gauge("webhooks_owed", "Pending webhook events; 0 on followers")?,
            webhook_oldest_pending: make.float_gauge(
                "webhook_oldest_owed_seconds",
                "Age of the oldest pending webhook event; 0 on followers",
            )?,
            store_batch_size: make.histogram("store_batch_size", "Writes in one commit", &BATCH_SIZES)?,
            store_commit_duration: make.histogram("store_commit_seconds", "Duration of commits", &SECONDS)?,
            store_errors: make.counters("store_errors_total", "Failed store calls", &["kind"])?,
            store_queue: make.gauge("store_queue_writes", "Writes that wait for a commit")?,
            store_connections: make.gauges("store_connections", "Open connections in the pool", &["pool"])?,
            store_idle_connections: make.gauges("store_idle_connections", "Idle connections in the pool", &["pool"])?,
            store_connection_wait: make.histogram(
                "store_connection_wait_seconds",
                "Time that store calls waited for a connection of the pool",
                &SECONDS,
            )?,
            http_connections: make.gauge("http_connections", "Open client connections")?,
            http_connections_closed: make.counters(
                "http_connections_closed_total",
                "Client connections that the server closed because of a limit, by limit",
                &["reason"],
            )?,
            http_requests: make.counters(
                "http_requests_total",
                "HTTP requests answered",
                &["route", "status_class"],
            )?,
            http_duration: make.histograms(
                "http_request_seconds",
                "Duration of HTTP requests",
                &SECONDS,
                &["route"],
            )?,
            event_streams: make.gauge("event_streams", "Open streams of events")?,
            event_streams_dropped: make.counter(
                "event_streams_dropped_total",
                "Streams of events that the server ended because their client read too slowly",
            )?,
            console_logins: make.counters("console_logins_total", "Logins to the console, by result", &["result"])?,
            by_target: TargetMetrics::new(&registry)?,
            registry: registry.clone(),
        };
        let info = Gauge::with_opts(
            Opts::new("submission_build_info", "Version of this instance")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        info.set(1.0);
        registry.register(Box::new(info))?;
        metrics.create_labels();
        Ok(metrics)
    }

    /// Creates every label value with 0, so that rates count the first event of each.
    fn create_labels(&self) {
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

    /// Records that an attempt started, `delay` after it was due.
    pub fn attempt_started(&self, delay: Duration) {
        self.queue_delay.observe(delay.as_secs_f64());
    }

    /// Records the outcome of an attempt, and the end of its intent if that was the last one.
    pub fn attempt_finished(&self, finish: &FinishAttempt) {
        use crate::domain::policy::Decision;
        let attempt = &finish.attempt;
        let target = &attempt.contract.target;
        self.attempts.with_label_values(&[finish.outcome.kind()]).inc();
        self.by_target.attempt_finished(target, finish.outcome.kind());
        if let Outcome::Error { contact, .. } = &finish.outcome {
            self.attempt_errors.with_label_values(&[contact.as_str()]).inc();
        }
        self.attempt_duration.observe(finish.finished_at.since(attempt.started_at).as_secs_f64());
        let age = finish.finished_at.since(attempt.begins_at);
        match &finish.decision {
            Decision::Accept => self.ended(target, Status::Accepted, None, age),
            Decision::Reject { .. } => self.ended(target, Status::Rejected, None, age),
            Decision::Exhaust(reason) => self.ended(target, Status::Exhausted, Some(*reason), age),
            Decision::RetryAt(_) => self.retries_scheduled.inc(),
        }
    }

    /// The counter of calls that were not made because a local resource ran out. `kind` is `gateway` or `webhook`.
    pub fn local_resource_errors(&self, kind: &str) -> IntCounter {
        self.local_resource_errors.with_label_values(&[kind])
    }

    /// Records that a redrive in bulk created this many intents.
    pub fn intents_redriven(&self, count: u64) {
        self.redrive_created.inc_by(count);
        self.intents_created.inc_by(count);
    }

    /// Records that an intent ended without an attempt.
    pub fn intent_ended(&self, intent: &Intent) {
        if let State::Exhausted { at, reason } = &intent.state {
            self.ended(&intent.target, Status::Exhausted, Some(*reason), at.since(intent.begins_at()));
        }
    }

    fn ended(&self, target: &TargetName, status: Status, reason: Option<ExhaustedReason>, age: Duration) {
        self.by_target.intent_ended(target, age);
        self.intents_terminal.with_label_values(&[status.as_str()]).inc();
        self.time_to_terminal.with_label_values(&[status.as_str()]).observe(age.as_secs_f64());
        if let Some(reason) = reason {
            self.exhausted.with_label_values(&[reason.as_str()]).inc();
        }
    }

    /// Records one try to deliver a webhook event.
    pub fn webhook_tried(&self, verdict: Verdict, took: Duration) {
        let result = match verdict {
            Verdict::Delivered => "delivered",
            Verdict::RetryAt(_) => "retry",
            Verdict::Failed => "failed",
        };
        self.webhook_tries.with_label_values(&[result]).inc();
        self.webhook_duration.observe(took.as_secs_f64());
    }

    /// Gives the first 200 targets of a registry, by name, time series of their own. All others share one.
    pub fn name_targets<'a>(&self, targets: impl Iterator<Item = &'a TargetName>) {
        self.by_target.name_targets(targets);
    }

    /// Sets the numbers of waiting intents by target, which the leader counts from time to time.
    pub fn show_waiting(&self, waiting: &[(TargetName, u64)]) {
        self.by_target.show_waiting(waiting);
    }

    /// Sets the numbers of waiting intents and pending webhook events, which the leader counts from time to time.
    pub fn show_backlog(&self, waiting: u64, webhooks: u64, oldest_webhook: Option<Duration>) {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.queue_depth.set(gauge(waiting));
        self.pending_webhooks.set(gauge(webhooks));
        self.webhook_oldest_pending.set(oldest_webhook.unwrap_or_default().as_secs_f64());
    }

    /// Records a commit.
    pub fn batch_committed(&self, writes: usize, took: Duration) {
        self.store_batch_size.observe(f64::from(u32::try_from(writes).unwrap_or(u32::MAX)));
        self.store_commit_duration.observe(took.as_secs_f64());
    }

    /// Records the state of a connection pool after a store call waited for a connection.
    pub fn store_pool(&self, pool: &str, connections: u32, idle: u32, waited: Duration) {
        self.store_connections.with_label_values(&[pool]).set(i64::from(connections));
        self.store_idle_connections.with_label_values(&[pool]).set(i64::from(idle));
        self.store_connection_wait.observe(waited.as_secs_f64());
    }

    /// Counts a failed store call. `kind` is `overloaded`, `unavailable` or `unexpected`.
    pub fn store_failed(&self, kind: &str) {
        self.store_errors.with_label_values(&[kind]).inc();
    }

    pub fn became_leader(&self, epoch: i64) {
        self.leader.set(1);
        self.lease_epoch.set(epoch);
        self.leader_transitions.with_label_values(&["leader"]).inc();
    }

    /// Records that this instance lost the lease, and resets the gauges that only the leader sets.
    pub fn became_follower(&self) {
        self.leader.set(0);
        self.show_backlog(0, 0, None);
        self.show_waiting(&[]);
        self.schedule_held.set(0);
        self.paused_targets.set(0);
        self.held_gateways.set(0);
        self.leader_transitions.with_label_values(&["follower"]).inc();
    }

    /// Counts trace spans. `result` is `exported`, `failed` (the collector did not accept them) or `dropped` (the queue was
    /// full).
    pub fn spans(&self, result: &str, count: usize) {
        self.spans.with_label_values(&[result]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Counts a login to the console.
    pub fn console_login(&self, result: &str) {
        self.console_logins.with_label_values(&[result]).inc();
    }

    /// Counts a job request. `result` is `accepted`, `replayed` or the code of the error.
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

    /// Sets the age of the oldest unprocessed inbox submission and the number of parked ones.
    pub fn inbox_backlog(&self, oldest: Option<Duration>, parked: u64) {
        self.inbox_oldest.set(oldest.unwrap_or_default().as_secs_f64());
        self.inbox_parked.set(i64::try_from(parked).unwrap_or(i64::MAX));
    }

    /// Counts a client connection that the server closed. `reason` is one of [`CLOSED_REASONS`].
    pub fn connection_closed(&self, reason: &str) {
        self.http_connections_closed.with_label_values(&[reason]).inc();
    }

    /// Records a request and its response.
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

    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(32 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// Creates metrics with the prefix `submission_` and registers them.
pub(super) struct Maker<'a>(pub(super) &'a Registry);

impl Maker<'_> {
    fn register<M: prometheus::core::Collector + Clone + 'static>(&self, metric: M) -> Result<M, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(format!("submission_{name}"), help)?)
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.register(IntCounterVec::new(Opts::new(format!("submission_{name}"), help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::new(format!("submission_{name}"), help)?)
    }

    fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.register(Gauge::new(format!("submission_{name}"), help)?)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.register(IntGaugeVec::new(Opts::new(format!("submission_{name}"), help), labels)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts::new(format!("submission_{name}"), help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(opts)?)
    }

    pub(super) fn histograms(
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
    fn the_histogram_of_times_to_terminal_has_buckets_around_two_seconds_and_two_minutes() {
        let text = String::from_utf8(Metrics::new().unwrap().text().unwrap()).unwrap();
        for bound in ["1", "2", "5", "60", "120", "300"] {
            let bucket =
                format!("submission_intent_time_to_terminal_seconds_bucket{{status=\"accepted\",le=\"{bound}\"}}");
            assert!(text.contains(&bucket), "{bucket} in {text}");
        }
    }
}
