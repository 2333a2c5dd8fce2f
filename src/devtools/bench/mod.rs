//! `bench`: drives a deployment, its own or one that is named, and says what it held.
//!
//! Speed is compared inside one run on one machine, never as an absolute number: next to what the
//! service achieved stands what the same machine can do with the same libraries and no
//! orchestration ([`ceilings`]), and the ratio. Nothing here is used by the service.

mod ceilings;
mod clients;
mod fill;
mod gateway;
mod pages;
mod report;
mod retention;
mod service;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::ceilings::Ceilings;
use self::clients::{Load, Pace};
use self::gateway::BenchGateway;
use self::report::{Case, Held, Latencies};
use self::service::{Deployment, Fill, Hung, Site};
use crate::config::settings::{duration, whole};
use crate::platform::clock::monotonic;

/// A shorter run measures nothing; a longer one fills the disk.
const LEAST_DURATION: Duration = Duration::from_millis(1);
const MOST_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Each is a connection: more than the descriptors of one process.
const MOST_CLIENTS: usize = 10_000;
/// Far more than the service has ever taken.
const MOST_PER_SECOND: u32 = 1_000_000;
/// The largest payload that a service can be told to take.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Longer than any timeout of an attempt.
const MOST_MILLIS: u64 = 600_000;
/// About a terabyte of them.
const MOST_INTENTS: u64 = 1_000_000_000;

#[derive(Args)]
pub struct BenchArgs {
    /// Drive this deployment instead of starting one; its targets must lead to gateways that accept
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// With --url: the target to submit to
    #[arg(long, value_name = "TARGET", requires = "url")]
    target: Option<String>,
    /// For how long intents are submitted
    #[arg(long, default_value = "8s", value_parser = duration(LEAST_DURATION, MOST_DURATION), value_name = "TIME")]
    duration: Duration,
    /// Closed loop: so many clients, each submits when the one before is answered
    #[arg(long, default_value = "64", value_parser = whole(1, MOST_CLIENTS), value_name = "CLIENTS")]
    connections: usize,
    /// Open loop: so many submissions a second, whether answered or not; latency counts from when each was due
    #[arg(long, value_parser = whole(1, MOST_PER_SECOND), value_name = "PER-SECOND")]
    rate: Option<u32>,
    /// Bytes of payload
    #[arg(long, default_value = "200", value_parser = whole(0, MOST_BYTES), value_name = "BYTES")]
    payload: usize,
    /// How long the gateways take to answer
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_MILLIS), value_name = "MILLISECONDS")]
    gateway_millis: u64,
    /// How many percent of the intents fail at their first attempt
    #[arg(long, default_value = "0", value_parser = whole(0_u32, 100), value_name = "PERCENT")]
    retried: u32,
    /// Finished intents that are in the store beforehand
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_INTENTS), value_name = "INTENTS")]
    finished: u64,
    /// Intents that wait in the store, due tomorrow
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_INTENTS), value_name = "INTENTS")]
    waiting: u64,
    /// Targets in the registry, each with a gateway URL of its own
    #[arg(long, default_value = "2", value_name = "TARGETS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    targets: u32,
    /// Give every target a webhook: to a receiver that takes events, or to one that never answers
    #[arg(long, value_name = "RECEIVER")]
    webhook: Option<Receiver>,
    /// Measure twice: with gateways that all answer, and beside so many that accept connections and never answer
    #[arg(long, default_value = "0", value_name = "GATEWAYS", conflicts_with_all = ["url", "suite"], value_parser = clap::value_parser!(u32).range(0..=1_000))]
    hung: u32,
    /// Run all the mixes that docs/performance.md shows, one after the other
    #[arg(long, conflicts_with_all = ["url", "rate"])]
    suite: bool,
    /// Measure how purging old intents affects submissions, on a store with --finished old ones (a million by default)
    #[arg(long, conflicts_with_all = ["url", "suite", "pages", "webhook"])]
    retention: bool,
    /// Measure the pages of the console afterwards
    #[arg(long, conflicts_with = "url")]
    pages: bool,
    /// Leave out what this machine can do without the service
    #[arg(long)]
    no_ceilings: bool,
    /// Where stores are made; on the disk that is to be measured
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Save the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Who gets the webhooks.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Receiver {
    Alive,
    Dead,
}

pub async fn run(args: BenchArgs) -> Result<(), String> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its numbers mean nothing; use cargo run --release -- bench");
    }
    if args.retention {
        return retention::run(&args).await;
    }
    let ceilings = if args.no_ceilings || args.url.is_some() {
        None
    } else {
        Some(Ceilings::measure(args.payload, args.connections, args.directory.as_deref()).await?)
    };
    if let Some(ceilings) = &ceilings {
        print!("{ceilings}");
    }
    let mut cases = Vec::new();
    for case in cases_of(&args) {
        let (held, pages) = hold(&args, &case, ceilings.as_ref()).await?;
        print!("{}{pages}", held.text());
        cases.push(held);
    }
    if let ([without, with], true) = (&cases[..], args.hung > 0) {
        print!("{}", report::beside_hung(without, with));
    }
    if let Some(path) = &args.json {
        let json = report::json(ceilings.as_ref(), &cases);
        std::fs::write(path, json).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn cases_of(args: &BenchArgs) -> Vec<Case> {
    let asked = Case::of(args);
    match args.hung {
        _ if args.suite => suite(args),
        0 => vec![asked],
        hung => {
            let named = |name: &str, hung| Case { name: name.to_owned(), hung, ..asked.clone() };
            vec![named("all gateways answer", 0), named("beside hung gateways", hung)]
        }
    }
}

impl Case {
    fn of(args: &BenchArgs) -> Self {
        Self {
            name: "as asked".to_owned(),
            pace: args.rate.map_or(Pace::Closed { clients: args.connections }, |rate| Pace::Open { rate }),
            payload: args.payload,
            gateway_millis: args.gateway_millis,
            retried: args.retried,
            webhook: args.webhook,
            hung: 0,
            fill: Fill { finished: args.finished, waiting: args.waiting, targets: args.targets },
        }
    }
}

/// The mixes of docs/performance.md.
fn suite(args: &BenchArgs) -> Vec<Case> {
    let base = Case::of(args);
    let case = |name: &str, change: &dyn Fn(&mut Case)| {
        let mut case = Case { name: name.to_owned(), ..base.clone() };
        change(&mut case);
        case
    };
    // Nine tenths of what so slow gateways allow: a closed loop would only pile intents up.
    let slow = |case: &mut Case, millis: u32| {
        case.gateway_millis = millis.into();
        case.pace = Pace::Open { rate: report::SLOTS as u32 * 900 / millis };
    };
    vec![
        case("all accepted", &|_| {}),
        case("one client", &|case| case.pace = Pace::Closed { clients: 1 }),
        case("10% retried", &|case| case.retried = 10),
        case("gateways at 50 ms", &|case| slow(case, 50)),
        case("gateways at 500 ms", &|case| slow(case, 500)),
        case("payloads of 20 KiB", &|case| case.payload = 20 * 1024),
    ]
}

/// One case from start to end; and how long pages took, in words, if that was asked for.
async fn hold(args: &BenchArgs, case: &Case, ceilings: Option<&Ceilings>) -> Result<(Held, String), String> {
    eprintln!("{}: {}", case.name, case.describe());
    let gateway = BenchGateway::start(Duration::from_millis(case.gateway_millis), case.retried)?;
    // Takes connections as far as the kernel does that by itself, and says nothing.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
    let silent_url = format!("http://{}", silent.local_addr().map_err(|error| error.to_string())?);
    let webhook = match case.webhook {
        None => None,
        Some(Receiver::Alive) => Some(format!("{}{}", gateway.url, gateway::RECEIVER_PATH)),
        Some(Receiver::Dead) => Some(silent_url.clone()),
    };
    let mut deployment = match &args.url {
        Some(url) => Deployment::at(url, args.target.as_deref().unwrap_or("sms.realtime")),
        None => {
            let hung = Hung { url: silent_url, gateways: case.hung };
            let site = Site::fill(&gateway.url, webhook.as_deref(), hung, &case.fill, args.directory.as_deref())?;
            Deployment::start(site, None).await?
        }
    };
    let before = deployment.usage();
    let load = Load {
        url: deployment.url.clone(),
        targets: deployment.targets.clone(),
        pace: case.pace,
        payload: case.payload,
        duration: args.duration,
    };
    let submitted = clients::drive(load, progress()).await?;
    let end_to_end = deployment.until_terminal(&submitted, progress()).await?;
    let usage = deployment.usage();
    let to_terminal = deployment.times_to_terminal(&submitted).await?;
    let held = Held {
        case: case.clone(),
        submitted: submitted.answered(),
        errors: submitted.errors(),
        submit_rate: submitted.rate(),
        end_to_end_rate: submitted.answered() as f64 / end_to_end.as_secs_f64(),
        submit: Latencies::of(submitted.latencies()),
        first_attempt: args.url.is_none().then(|| Latencies::of(submitted.to_first_attempt(&gateway.arrivals))),
        to_terminal: Latencies::of(to_terminal),
        cost: usage.zip(before).map(|(after, before)| after.since(&before, submitted.answered())),
        leader_ready: deployment.leader_ready,
        gateway_latency: (case.gateway_millis > 0).then(|| gateway.mean_latency()),
        ratio: ceilings.map(|ceilings| ceilings.ratio(submitted.answered() as f64 / end_to_end.as_secs_f64())),
    };
    let pages = if args.pages { pages::text(&pages::measure(&deployment).await?) } else { String::new() };
    deployment.stop();
    gateway.stop().await;
    Ok((held, pages))
}

/// Says now and then how it goes, where somebody watches.
fn progress() -> impl FnMut(&dyn Fn() -> String) {
    let watched = std::io::stderr().is_terminal();
    let mut last = monotonic();
    move |say| {
        if watched && monotonic().duration_since(last) >= Duration::from_millis(500) {
            last = monotonic();
            eprint!("\r\x1b[K  {}", say());
            let _nobody_may_watch = std::io::stderr().flush();
        }
    }
}
