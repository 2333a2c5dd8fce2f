//! The `bench` command: puts load on a deployment, which it starts itself unless a URL is given, and reports throughput and
//! latency.
//!
//! Absolute numbers depend on the machine. The report therefore also shows what the same machine can do with the same
//! libraries without the service ([`ceilings`]), measured in the same run, and the ratio.

mod background;
mod ceilings;
mod clients;
mod error;
mod fill;
mod gateway;
mod pages;
mod report;
mod service;
mod sqlserver;

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::ceilings::Ceilings;
use self::clients::{Load, Pace};
use self::error::{BenchResult, Step};
use self::gateway::BenchGateway;
use self::report::{Case, Held, Latencies};
use self::service::{Deployment, Fill, Hung, Place, Site};
use self::sqlserver::Server;
use crate::config::settings::{duration, whole};
use crate::platform::clock::monotonic;

/// A shorter run measures nothing, and a longer one would fill the disk.
const LEAST_DURATION: Duration = Duration::from_millis(1);
const MOST_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Each client needs a connection, and so a file descriptor.
const MOST_CLIENTS: usize = 10_000;
/// Far more than the service can accept.
const MOST_PER_SECOND: u32 = 1_000_000;
/// What one request may have.
const MOST_IN_A_BATCH: usize = 1000;
/// The largest value of `SM_MAX_PAYLOAD_BYTES`.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Longer than any timeout of an attempt.
const MOST_MILLIS: u64 = 600_000;
/// So many intents need about a terabyte.
const MOST_INTENTS: u64 = 1_000_000_000;
/// What one redrive may have.
const MOST_REDRIVEN: u64 = crate::domain::redrive::MAX_PLANNED as u64;

#[derive(Args)]
pub struct BenchArgs {
    /// Measure this deployment instead of starting one; the gateways of its targets must accept all messages
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// With --url: the target to submit to
    #[arg(long, value_name = "TARGET", requires = "url")]
    target: Option<String>,
    /// Create the stores on this SQL Server instead of in files: its connection string without a Database. The login must be
    /// allowed to create databases
    // Checked later: an error of clap would repeat the value, which may hold a password.
    #[arg(long, value_name = "STORE", conflicts_with_all = ["url", "suite", "directory"])]
    store: Option<String>,
    /// Replaces the password in that string, so that the string holds no secret
    #[arg(long, env = "SM_STORE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    store_password: Option<String>,
    /// File with an access token to log in with, instead of a user and a password
    #[arg(long, env = "SM_STORE_TOKEN_FILE", value_name = "FILE")]
    store_token_file: Option<PathBuf>,
    /// How long to submit intents
    #[arg(long, default_value = "8s", value_parser = duration(LEAST_DURATION, MOST_DURATION), value_name = "TIME")]
    duration: Duration,
    /// Closed loop: the number of clients, each of which submits its next intent when it has the response to the last
    #[arg(long, default_value = "64", value_parser = whole(1, MOST_CLIENTS), value_name = "CLIENTS")]
    connections: usize,
    /// Open loop: submit this many intents a second, without waiting for responses; latency counts from when each was due
    #[arg(long, value_parser = whole(1, MOST_PER_SECOND), value_name = "PER-SECOND")]
    rate: Option<u32>,
    /// Submit this many intents with each request
    #[arg(long, default_value = "1", value_parser = whole(1, MOST_IN_A_BATCH), value_name = "INTENTS")]
    batch: usize,
    /// Size of each payload in bytes
    #[arg(long, default_value = "200", value_parser = whole(0, MOST_BYTES), value_name = "BYTES")]
    payload: usize,
    /// How long the gateways take to respond
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_MILLIS), value_name = "MILLISECONDS")]
    gateway_millis: u64,
    /// Percentage of intents whose first attempt fails
    #[arg(long, default_value = "0", value_parser = whole(0_u32, 100), value_name = "PERCENT")]
    retried: u32,
    /// Number of finished intents in the store at the start
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_INTENTS), value_name = "INTENTS")]
    finished: u64,
    /// Number of failed intents in the store at the start
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_INTENTS), value_name = "INTENTS")]
    failed: u64,
    /// Number of waiting intents in the store at the start, which are due a day later
    #[arg(long, default_value = "0", value_parser = whole(0, MOST_INTENTS), value_name = "INTENTS")]
    waiting: u64,
    /// Number of targets, each with its own gateway URL
    #[arg(long, default_value = "2", value_name = "TARGETS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    targets: u32,
    /// Give every target a webhook, to a receiver that accepts events or to one that never responds
    #[arg(long, value_name = "RECEIVER")]
    webhook: Option<Receiver>,
    /// Measure twice: without and with this many additional gateways that accept connections and never respond
    #[arg(long, default_value = "0", value_name = "GATEWAYS", conflicts_with_all = ["url", "suite"], value_parser = clap::value_parser!(u32).range(0..=1_000))]
    hung: u32,
    /// Run all cases of docs/performance.md, one after the other
    #[arg(long, conflicts_with_all = ["url", "rate"])]
    suite: bool,
    /// Measure how purging affects submissions, on a store with --finished old intents (a million by default)
    #[arg(long, conflicts_with_all = ["url", "suite", "pages", "webhook"])]
    retention: bool,
    /// Measure how a redrive of this many failed intents affects submissions (--connections or --rate sets the load)
    #[arg(long, value_name = "INTENTS", value_parser = whole(1, MOST_REDRIVEN),
        conflicts_with_all = ["url", "suite", "pages", "webhook", "retention", "store"])]
    redrive: Option<u64>,
    /// Also measure the pages of the console
    #[arg(long, conflicts_with = "url")]
    pages: bool,
    /// Do not measure what this machine can do without the service
    #[arg(long)]
    no_ceilings: bool,
    /// Directory for the stores, on the disk to measure
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Save the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The receiver of the webhooks.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Receiver {
    Alive,
    Dead,
}

pub async fn run(args: BenchArgs) -> Result<(), Box<dyn Error>> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build, whose numbers mean nothing; use cargo run --release -- bench");
    }
    if background::run(&args).await? {
        return Ok(());
    }
    let server = args.server()?;
    let ceilings = if args.no_ceilings || args.url.is_some() {
        None
    } else {
        let place = args.directory.as_deref();
        Some(Ceilings::measure(args.payload, args.connections, place, server.as_ref()).await?)
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
        std::fs::write(path, json).step(|| format!("cannot write {}", path.display()))?;
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
            vec![named("all gateways respond", 0), named("some gateways hang", hung)]
        }
    }
}

impl BenchArgs {
    /// The SQL Server that stores are made on, if there is one.
    fn server(&self) -> BenchResult<Option<Server>> {
        let server = |text: &String| Server::new(text, self.store_password.clone(), self.store_token_file.clone());
        self.store.as_ref().map(server).transpose()
    }

    /// Where stores are made.
    fn place(&self) -> BenchResult<Place> {
        Ok(match self.server()? {
            Some(server) => Place::Server(server),
            None => Place::Directory(self.directory.clone()),
        })
    }
}

impl Case {
    fn of(args: &BenchArgs) -> Self {
        Self {
            name: "as requested".to_owned(),
            pace: args.rate.map_or(Pace::Closed { clients: args.connections }, |rate| Pace::Open { rate }),
            payload: args.payload,
            batch: args.batch,
            gateway_millis: args.gateway_millis,
            retried: args.retried,
            webhook: args.webhook,
            hung: 0,
            fill: Fill { finished: args.finished, failed: args.failed, waiting: args.waiting, targets: args.targets },
        }
    }
}

/// The cases of docs/performance.md.
fn suite(args: &BenchArgs) -> Vec<Case> {
    let base = Case::of(args);
    let case = |name: &str, change: &dyn Fn(&mut Case)| {
        let mut case = Case { name: name.to_owned(), ..base.clone() };
        change(&mut case);
        case
    };
    // Offers nine tenths of what the slots allow with slow gateways. In a closed loop the backlog would only grow.
    let slow = |case: &mut Case, millis: u32| {
        case.gateway_millis = millis.into();
        case.pace = Pace::Open { rate: report::SLOTS as u32 * 900 / millis };
    };
    vec![
        case("all accepted", &|_| {}),
        case("in batches of 100", &|case| case.batch = 100),
        case("one client", &|case| case.pace = Pace::Closed { clients: 1 }),
        case("one client, in batches of 100", &|case| {
            case.pace = Pace::Closed { clients: 1 };
            case.batch = 100;
        }),
        case("10% retried", &|case| case.retried = 10),
        case("gateways at 50 ms", &|case| slow(case, 50)),
        case("gateways at 500 ms", &|case| slow(case, 500)),
        case("payloads of 20 KiB", &|case| case.payload = 20 * 1024),
    ]
}

/// Runs one case. Also returns the times of the console pages as text, if they were requested.
async fn hold(args: &BenchArgs, case: &Case, ceilings: Option<&Ceilings>) -> BenchResult<(Held, String)> {
    eprintln!("{}: {}", case.name, case.describe());
    let gateway = BenchGateway::start(Duration::from_millis(case.gateway_millis), case.retried)?;
    // The kernel accepts connections for this listener, but nothing ever reads from them.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let silent_url = format!("http://{}", silent.local_addr()?);
    let webhook = match case.webhook {
        None => None,
        Some(Receiver::Alive) => Some(format!("{}{}", gateway.url, gateway::RECEIVER_PATH)),
        Some(Receiver::Dead) => Some(silent_url.clone()),
    };
    let mut deployment = match &args.url {
        Some(url) => Deployment::at(url, args.target.as_deref().unwrap_or("sms.realtime")),
        None => {
            let hung = Hung { url: silent_url, gateways: case.hung };
            let site = Site::fill(&gateway.url, webhook.as_deref(), hung, &case.fill, args.place()?).await?;
            Deployment::start(site, None).await?
        }
    };
    let (before, spent_before) = (deployment.usage(), deployment.spent().await?);
    let load = Load {
        url: deployment.url.clone(),
        targets: deployment.targets.clone(),
        pace: case.pace,
        payload: case.payload,
        batch: case.batch,
        duration: args.duration,
    };
    let submitted = clients::drive(load, progress()).await?;
    let ended_with_load = deployment.ended().await?;
    let end_to_end = deployment.until_terminal(&submitted, progress()).await?;
    let (usage, spent) = (deployment.usage(), deployment.spent().await?);
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
        ended_with_load,
        spent: spent.zip(spent_before).map(|((after, round_trips), (before, round_trips_before))| {
            after.since(&before, round_trips.saturating_sub(round_trips_before), submitted.answered())
        }),
        cost: usage.zip(before).map(|(after, before)| after.since(&before, submitted.answered())),
        leader_ready: deployment.leader_ready,
        gateway_latency: (case.gateway_millis > 0).then(|| gateway.mean_latency()),
        ratio: ceilings.map(|ceilings| ceilings.ratio(submitted.answered() as f64 / end_to_end.as_secs_f64())),
        store_ratio: ceilings
            .filter(|_| args.store.is_some())
            .map(|ceilings| submitted.answered() as f64 / end_to_end.as_secs_f64() / ceilings.store),
    };
    let pages = if args.pages { pages::text(&pages::measure(&deployment).await?) } else { String::new() };
    deployment.stop();
    gateway.stop().await;
    Ok((held, pages))
}

/// Prints the progress twice a second, if standard error is a terminal.
fn progress() -> impl FnMut(&dyn Fn() -> String) {
    let watched = std::io::stderr().is_terminal();
    let mut last = monotonic();
    move |say| {
        if watched && monotonic().duration_since(last) >= Duration::from_millis(500) {
            last = monotonic();
            eprint!("\r\x1b[K  {}", say());
            let _ignored = std::io::stderr().flush();
        }
    }
}
