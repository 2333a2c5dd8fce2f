//! `bench --retention` and `bench --redrive`: measure how work in the background affects submissions, on one store in one run.
//!
//! The same load runs three times: without the work, with it, and without it again. If the machine becomes slower or faster
//! during the run, the first and the last results differ.

use std::time::Duration;

use serde_json::json;

use super::clients::{self, Load};
use super::error::{BenchResult, Step};
use super::gateway::BenchGateway;
use super::report::{Case, Latencies};
use super::service::{Deployment, Fill, Hung, Site};
use super::{BenchArgs, progress};
use crate::platform::clock::monotonic;

/// The number of old intents in the store if `--finished` is not given.
const FINISHED: u64 = 1_000_000;
/// The old intents were completed a day ago, so all of them are purged, and none of this run.
const RETENTION: &str = "1h";

/// What the service does in the background during the second of the three runs.
#[derive(Clone, Copy)]
enum Work {
    /// It deletes the old intents.
    Purging,
    /// It redrives this many failed intents.
    Redriving { failed: u64 },
}

impl Work {
    fn of(args: &BenchArgs) -> Option<Self> {
        match args.redrive {
            Some(failed) => Some(Self::Redriving { failed }),
            None => args.retention.then_some(Self::Purging),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Purging => "purging",
            Self::Redriving { .. } => "redriving",
        }
    }

    /// The metric that counts the intents that the work has handled.
    fn counter(self) -> &'static str {
        match self {
            Self::Purging => "submission_intents_purged_total",
            Self::Redriving { .. } => "submission_redrive_created_total",
        }
    }

    fn fill(self, requested: Fill) -> Fill {
        match self {
            Self::Purging if requested.finished == 0 => Fill { finished: FINISHED, ..requested },
            Self::Purging => requested,
            Self::Redriving { failed } => Fill { failed, ..requested },
        }
    }

    /// Starts the service so that it does this work, and starts the work.
    async fn start(self, site: Site) -> BenchResult<Deployment> {
        match self {
            Self::Purging => Deployment::start(site, Some(RETENTION)).await,
            Self::Redriving { failed } => {
                let deployment = Deployment::start(site, None).await?;
                deployment.redrive(failed).await?;
                Ok(deployment)
            }
        }
    }

    /// Ends the work, unless it ends with the process.
    async fn end(self, deployment: &Deployment) -> BenchResult {
        match self {
            Self::Purging => Ok(()),
            Self::Redriving { .. } => deployment.cancel_redrives().await,
        }
    }
}

/// The results of one of the three runs.
struct Phase {
    submit_rate: f64,
    errors: usize,
    submit: Latencies,
    /// Intents that the work handled per second while intents were submitted.
    work_rate: f64,
    /// Intents that the work handled in all.
    handled: usize,
}

/// Measures, if one of the two options asks for it. Returns whether it did.
pub(super) async fn run(args: &BenchArgs) -> BenchResult<bool> {
    let Some(work) = Work::of(args) else { return Ok(false) };
    let name = work.name();
    let mut case = Case::of(args);
    case.fill = work.fill(case.fill);
    eprintln!("{name}: {}", case.describe());
    let gateway = BenchGateway::start(Duration::from_millis(case.gateway_millis), case.retried)?;
    let mut site = Site::fill(&gateway.url, None, Hung::none(), &case.fill, args.place()?).await?;
    let mut phases = Vec::new();
    for working in [false, true, false] {
        let deployment = match working {
            true => work.start(site).await?,
            false => Deployment::start(site, None).await?,
        };
        let phase = phase(args, &case, &deployment, work, working).await?;
        println!(
            "{:<14} {:.0} submitted a second, {} errors; {}; {name} {:.0} a second",
            if working { format!("with {name}") } else { "without".to_owned() },
            phase.submit_rate,
            phase.errors,
            phase.submit.text(),
            phase.work_rate
        );
        phases.push(phase);
        site = deployment.into_site().ok_or("the service was not started here")?;
    }
    gateway.stop().await;
    let [before, with, after] = phases.as_slice() else { return Err("a phase is missing".into()) };
    if with.handled == 0 {
        return Err(format!("the service did no {name}, so nothing was measured").into());
    }
    let without = (before.submit.p99() + after.submit.p99()) / 2;
    let ratio = with.submit.p99().as_secs_f64() / without.as_secs_f64().max(f64::MIN_POSITIVE);
    let per_submitted = with.work_rate / with.submit_rate.max(f64::MIN_POSITIVE);
    println!(
        "p99 of submissions {:.1} ms with {name}, {:.1} ms without (mean of both): ratio {ratio:.2}; \
         {name} / submitted {per_submitted:.2}",
        with.submit.p99().as_secs_f64() * 1000.0,
        without.as_secs_f64() * 1000.0
    );
    if let Some(path) = &args.json {
        let phase = |phase: &Phase| {
            json!({ "submitsPerSecond": phase.submit_rate, "errors": phase.errors, "submit": phase.submit.json(),
                "handledPerSecond": phase.work_rate })
        };
        let report = json!({ name: {
            "finishedBefore": case.fill.finished, "failedBefore": case.fill.failed, "without": phase(before),
            "with": phase(with), "withoutAgain": phase(after), "p99Ratio": ratio, "handledPerSubmitted": per_submitted,
        }});
        std::fs::write(path, format!("{report:#}\n")).step(|| format!("cannot write {}", path.display()))?;
    }
    Ok(true)
}

async fn phase(
    args: &BenchArgs,
    case: &Case,
    deployment: &Deployment,
    work: Work,
    working: bool,
) -> BenchResult<Phase> {
    let load = Load {
        url: deployment.url.clone(),
        targets: deployment.targets.clone(),
        pace: case.pace,
        payload: case.payload,
        batch: case.batch,
        duration: args.duration,
    };
    let (began, before) = (monotonic(), deployment.total(work.counter()).await?);
    let submitted = clients::drive(load, progress()).await?;
    let handled = deployment.total(work.counter()).await?.saturating_sub(before);
    let seconds = monotonic().duration_since(began).as_secs_f64();
    if working {
        work.end(deployment).await?;
    }
    deployment.until_terminal(&submitted, progress()).await?;
    Ok(Phase {
        submit_rate: submitted.rate(),
        errors: submitted.errors(),
        submit: Latencies::of(submitted.latencies()),
        work_rate: handled as f64 / seconds,
        handled,
    })
}
