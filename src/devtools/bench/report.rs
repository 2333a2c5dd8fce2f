//! The report of a run, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::Receiver;
use super::ceilings::Ceilings;
use super::clients::Pace;
use super::service::{Cost, Fill};
use super::sqlserver::Spent;

/// One load that is measured.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub name: String,
    pub pace: Pace,
    pub payload: usize,
    /// How many intents each request has.
    pub batch: usize,
    pub gateway_millis: u64,
    pub retried: u32,
    pub webhook: Option<Receiver>,
    /// The number of additional gateways that never respond.
    pub hung: u32,
    pub fill: Fill,
}

impl Case {
    /// A description of the load in one line.
    pub(super) fn describe(&self) -> String {
        let pace = match self.pace {
            Pace::Closed { clients: 1 } => "one client".to_owned(),
            Pace::Closed { clients } => format!("{clients} clients"),
            Pace::Open { rate } => format!("{rate} a second"),
        };
        let Self { payload, gateway_millis, retried, fill, .. } = self;
        let mut text =
            format!("{pace}, payloads of {payload} bytes, gateways at {gateway_millis} ms, {retried}% retried");
        text += match self.webhook {
            None => "",
            Some(Receiver::Alive) => ", a webhook each",
            Some(Receiver::Dead) => ", a webhook each to a dead receiver",
        };
        if self.batch > 1 {
            text += &format!(", {} intents in each request", self.batch);
        }
        if self.hung > 0 {
            text += &format!(", with {} gateways that never respond", self.hung);
        }
        if fill.total() > 0 || fill.targets > 2 {
            let Fill { finished, failed, waiting, targets } = fill;
            text += &format!("; {finished} finished, {failed} failed and {waiting} waiting before, {targets} targets");
        }
        text
    }
}

/// Percentiles of a latency.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latencies {
    p50: Duration,
    p90: Duration,
    p99: Duration,
    max: Duration,
}

impl Latencies {
    pub(super) fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let at = |share: f64| {
            let last = all.len().saturating_sub(1);
            let index = ((all.len() as f64 * share).ceil() as usize).saturating_sub(1).min(last);
            all.get(index).copied().unwrap_or_default()
        };
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }

    pub(super) fn p99(&self) -> Duration {
        self.p99
    }

    pub(super) fn text(&self) -> String {
        let millis = |duration: Duration| format!("{:.1}", duration.as_secs_f64() * 1000.0);
        let Self { p50, p90, p99, max } = *self;
        format!("p50 {} p90 {} p99 {} max {} ms", millis(p50), millis(p90), millis(p99), millis(max))
    }

    pub(super) fn json(&self) -> Value {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let Self { p50, p90, p99, max } = *self;
        json!({ "p50Micros": micros(p50), "p90Micros": micros(p90), "p99Micros": micros(p99), "maxMicros": micros(max) })
    }
}

/// How much longer attempts take when other gateways hang, as a line of text.
pub(super) fn beside_hung(without: &Held, with: &Held) -> String {
    let ratio = |of: fn(&Held) -> Option<Duration>| match (of(without), of(with)) {
        (Some(before), Some(after)) if !before.is_zero() => {
            format!("{:.2}", after.as_secs_f64() / before.as_secs_f64())
        }
        _ => "-".to_owned(),
    };
    format!(
        "p99 with {} hung gateways, as a multiple of the p99 without: first attempt {}, to terminal {}\n",
        with.case.hung,
        ratio(|held| held.first_attempt.map(|latencies| latencies.p99)),
        ratio(|held| Some(held.to_terminal.p99))
    )
}

/// The default of `SM_MAX_IN_FLIGHT`, with which the service is started.
pub(super) const SLOTS: usize = 256;

/// The results of one case.
pub(super) struct Held {
    pub case: Case,
    pub submitted: usize,
    pub errors: usize,
    /// Had ended when the last one was submitted.
    pub ended_with_load: Option<usize>,
    pub submit_rate: f64,
    pub end_to_end_rate: f64,
    pub submit: Latencies,
    /// Time from the response to the arrival of the first attempt.
    pub first_attempt: Option<Latencies>,
    pub to_terminal: Latencies,
    pub cost: Option<Cost>,
    /// What a SQL Server had to do.
    pub spent: Option<Spent>,
    pub leader_ready: Option<Duration>,
    /// The ratio to the composed ceiling.
    pub ratio: Option<f64>,
    /// The ratio to what a SQL Server does without the service.
    pub store_ratio: Option<f64>,
    /// The measured duration of a gateway call, if the gateways are the bottleneck.
    pub gateway_latency: Option<Duration>,
}

impl Held {
    pub(super) fn text(&self) -> String {
        const MIB: f64 = 1024.0 * 1024.0;
        let Self { case, submitted, errors, submit_rate, end_to_end_rate, .. } = self;
        let mut lines = vec![
            format!("{} ({})", case.name, case.describe()),
            format!(
                "  {submitted} intents, {errors} errors; {submit_rate:.0} submitted and {end_to_end_rate:.0} finished per second"
            ),
            format!("  submit          {}", self.submit.text()),
        ];
        lines.extend(self.first_attempt.map(|first| format!("  first attempt   {} after the response", first.text())));
        lines.push(format!("  to terminal     {}", self.to_terminal.text()));
        lines.extend(self.cost.map(|cost| {
            let (idle, peak) = (cost.idle_memory as f64 / MIB, cost.peak_memory as f64 / MIB);
            let disk = cost.disk_bytes.map(|bytes| format!(", {:.0} KiB of disk", bytes / 1024.0)).unwrap_or_default();
            let cpu = cost.cpu_seconds;
            format!("  per thousand    {cpu:.3} CPU seconds{disk}; memory {idle:.0} MiB idle, {peak:.0} at most")
        }));
        lines.extend(self.spent.map(|spent| format!("  server          {} per thousand", spent.text())));
        lines.extend(self.share_ended_with_load().map(|share| {
            format!("  ended with load {:.0}% had ended when the last intent was submitted", share * 100.0)
        }));
        lines.extend(
            self.leader_ready.map(|time| format!("  leader          ready {time:.0?} after acquiring the lease")),
        );
        lines.extend(self.gateway_latency.map(|latency| {
            let (most, millis) = (SLOTS as f64 / latency.as_secs_f64(), latency.as_secs_f64() * 1000.0);
            let share = end_to_end_rate / most;
            format!(
                "  gateways        {millis:.1} ms measured: {SLOTS} slots allow {most:.0} per second; ratio {share:.2}"
            )
        }));
        lines.extend(self.ratio.map(|ratio| format!("  ratio           {ratio:.2} of the composed ceiling")));
        lines.extend(self.store_ratio.map(|ratio| format!("  ratio           {ratio:.2} of the server's own ceiling")));
        lines.join("\n") + "\n"
    }

    /// How much of what was submitted had ended with the load. The one that is sent before the others may be among them.
    fn share_ended_with_load(&self) -> Option<f64> {
        let ended = self.ended_with_load?.min(self.submitted);
        (self.submitted > 0).then(|| ended as f64 / self.submitted as f64)
    }

    fn json(&self) -> Value {
        let Case { name, pace, payload, batch, gateway_millis, retried, webhook, hung, fill } = &self.case;
        let pace = match pace {
            Pace::Closed { clients } => json!({ "clients": clients }),
            Pace::Open { rate } => json!({ "perSecond": rate }),
        };
        json!({
            "name": name, "pace": pace, "payloadBytes": payload, "batch": batch, "gatewayMillis": gateway_millis,
            "retriedPercent": retried, "hungGateways": hung, "webhook": webhook.map(|receiver| format!("{receiver:?}").to_lowercase()),
            "finishedBefore": fill.finished, "waitingBefore": fill.waiting,
            "targets": fill.targets, "submitted": self.submitted, "errors": self.errors,
            "submitsPerSecond": self.submit_rate, "endToEndPerSecond": self.end_to_end_rate,
            "submit": self.submit.json(), "firstAttemptAfterAnswer": self.first_attempt.map(|first| first.json()),
            "toTerminal": self.to_terminal.json(),
            "cpuSecondsPerThousand": self.cost.map(|cost| cost.cpu_seconds),
            "diskBytesPerThousand": self.cost.and_then(|cost| cost.disk_bytes),
            "endedWithLoad": self.ended_with_load,
            "serverPerThousand": self.spent.map(|spent| json!({
                "roundTrips": spent.round_trips, "statements": spent.statements, "transactions": spent.transactions,
                "logWrites": spent.log_writes,
            })),
            "idleMemoryBytes": self.cost.map(|cost| cost.idle_memory),
            "peakMemoryBytes": self.cost.map(|cost| cost.peak_memory),
            "leaderReadyMillis": self.leader_ready.map(|time| time.as_millis() as u64),
            "ratioToComposedCeiling": self.ratio,
            "ratioToServerCeiling": self.store_ratio,
            "gatewayMicrosInTruth": self.gateway_latency.map(|latency| latency.as_micros() as u64),
        })
    }
}

pub(super) fn json(ceilings: Option<&Ceilings>, cases: &[Held]) -> String {
    let ceilings = ceilings.map(|ceilings| {
        let Ceilings { http_in, http_out, store } = *ceilings;
        let composed = ceilings.composed();
        json!({ "inPerSecond": http_in, "outPerSecond": http_out, "storePerSecond": store, "composedPerSecond": composed })
    });
    let report = json!({ "ceilings": ceilings, "cases": cases.iter().map(Held::json).collect::<Vec<_>>() });
    format!("{report:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let millis = |number| Duration::from_millis(number);
        let latencies = Latencies::of((1..=200).rev().map(millis).collect());
        assert_eq!((latencies.p50, latencies.p90), (millis(100), millis(180)));
        assert_eq!((latencies.p99, latencies.max), (millis(198), millis(200)));
        let lonely = Latencies::of(vec![millis(7)]);
        assert_eq!((lonely.p50, lonely.max), (millis(7), millis(7)));
        assert_eq!(Latencies::of(Vec::new()).max, Duration::ZERO);
    }

    #[test]
    fn the_composed_ceiling_is_the_rate_of_all_parts_in_sequence() {
        let ceilings = Ceilings { http_in: 30_000.0, http_out: 30_000.0, store: 30_000.0 };
        assert!((ceilings.composed() - 10_000.0).abs() < 1e-6);
        assert!((ceilings.ratio(6_000.0) - 0.6).abs() < 1e-9);
    }
}
