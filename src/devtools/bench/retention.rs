//! `bench --retention`: measures how purging affects submissions, on one store in one run.
//!
//! The same load runs three times: without purging, with it, and without it again. If the machine becomes slower or faster
//! during the run, the first and the last results differ.

use std::time::Duration;

use serde_json::json;

use super::clients::{self, Load};
use super::gateway::BenchGateway;
use super::report::{Case, Latencies};
use super::service::{Deployment, Fill, Hung, Site};
use super::{BenchArgs, progress};
use crate::platform::clock::monotonic;

/// The number of old intents in the store if `--finished` is not given.
const FINISHED: u64 = 1_000_000;
/// The old intents were completed a day ago, so all of them are purged, and none of this run.
const RETENTION: &str = "1h";

/// The results of one of the three runs.
struct Phase {
    submit_rate: f64,
    errors: usize,
    submit: Latencies,
    /// Intents purged per second while intents were submitted.
    purge_rate: f64,
}

pub(super) async fn run(args: &BenchArgs) -> Result<(), String> {
    let mut case = Case::of(args);
    if case.fill.finished == 0 {
        case.fill = Fill { finished: FINISHED, ..case.fill };
    }
    eprintln!("retention: {}", case.describe());
    let gateway = BenchGateway::start(Duration::from_millis(case.gateway_millis), case.retried)?;
    let mut site = Site::fill(&gateway.url, None, Hung::none(), &case.fill, args.place()?).await?;
    let mut phases = Vec::new();
    for (name, retention) in [("without", None), ("with purging", Some(RETENTION)), ("without", None)] {
        let deployment = Deployment::start(site, retention).await?;
        let phase = phase(args, &case, &deployment).await?;
        println!(
            "{name:<13} {:.0} submitted a second, {} errors; {}; {:.0} purged a second",
            phase.submit_rate,
            phase.errors,
            phase.submit.text(),
            phase.purge_rate
        );
        phases.push(phase);
        site = deployment.into_site().ok_or("the service was not started here")?;
    }
    gateway.stop().await;
    let [before, purging, after] = phases.as_slice() else { return Err("a phase is missing".to_owned()) };
    let without = (before.submit.p99() + after.submit.p99()) / 2;
    let ratio = purging.submit.p99().as_secs_f64() / without.as_secs_f64().max(f64::MIN_POSITIVE);
    let keeps_up = purging.purge_rate / purging.submit_rate.max(f64::MIN_POSITIVE);
    println!(
        "p99 of submissions {:.1} ms with purging, {:.1} ms without (mean of both): ratio {ratio:.2}; \
         purged / submitted {keeps_up:.2}",
        purging.submit.p99().as_secs_f64() * 1000.0,
        without.as_secs_f64() * 1000.0
    );
    if let Some(path) = &args.json {
        let phase = |phase: &Phase| {
            json!({ "submitsPerSecond": phase.submit_rate, "errors": phase.errors, "submit": phase.submit.json(),
                "purgedPerSecond": phase.purge_rate })
        };
        let report = json!({ "retention": {
            "finishedBefore": case.fill.finished, "without": phase(before), "purging": phase(purging),
            "withoutAgain": phase(after), "p99Ratio": ratio, "purgedPerSubmitted": keeps_up,
        }});
        std::fs::write(path, format!("{report:#}\n"))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

async fn phase(args: &BenchArgs, case: &Case, deployment: &Deployment) -> Result<Phase, String> {
    let load = Load {
        url: deployment.url.clone(),
        targets: deployment.targets.clone(),
        pace: case.pace,
        payload: case.payload,
        batch: case.batch,
        duration: args.duration,
    };
    const PURGED: &str = "submission_intents_purged_total";
    let (began, purged_before) = (monotonic(), deployment.total(PURGED).await?);
    let submitted = clients::drive(load, progress()).await?;
    let purged = deployment.total(PURGED).await?.saturating_sub(purged_before);
    let seconds = monotonic().duration_since(began).as_secs_f64();
    deployment.until_terminal(&submitted, progress()).await?;
    Ok(Phase {
        submit_rate: submitted.rate(),
        errors: submitted.errors(),
        submit: Latencies::of(submitted.latencies()),
        purge_rate: purged as f64 / seconds,
    })
}
