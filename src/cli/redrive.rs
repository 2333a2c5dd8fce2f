//! The `redrive` commands: plan a redrive, start it and watch its progress, pause, resume and cancel it.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::CommandResult;
use super::client::{ServiceArgs, ServiceError, call, parse};
use crate::platform::clock::monotonic;

#[derive(Subcommand)]
pub(super) enum RedriveCommand {
    /// Plan a redrive of failed intents; nothing is sent
    #[command(
        after_help = "Examples:\n  submission-manager redrive plan --target sms.realtime --reason deadline_exceeded \\\n    \
        --completed-after 2026-11-18T09:00:00Z\n  submission-manager redrive plan --id order-1001 --id order-1002"
    )]
    Plan(Box<PlanArgs>),
    /// Start a planned redrive and show its progress; Ctrl-C leaves it running
    #[command(
        after_help = "Example:\n  submission-manager redrive start 0b1f7f7e-3c55-4a39-9a52-0f3b6f6a9a11 --rate 50"
    )]
    Start(StartArgs),
    /// Show one redrive, or the latest ones
    Status(StatusArgs),
    /// Pause a running redrive
    Pause(IdArgs),
    /// Resume a paused redrive
    Resume(IdArgs),
    /// Cancel a redrive; intents that it created stay
    Cancel(IdArgs),
}

#[derive(Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Only intents with this status: rejected or exhausted
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only intents of this target
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Only intents with this rejectedReason or exhaustedReason
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only intents created after this time, such as 2026-11-18T09:00:00Z
    #[arg(long, value_name = "TIME")]
    created_after: Option<String>,
    /// Only intents created before this time
    #[arg(long, value_name = "TIME")]
    created_before: Option<String>,
    /// Only intents that ended after this time
    #[arg(long, value_name = "TIME")]
    completed_after: Option<String>,
    /// Only intents that ended before this time
    #[arg(long, value_name = "TIME")]
    completed_before: Option<String>,
    /// Only the intent with this id; repeat the flag for several; cannot be combined with other filters
    #[arg(long, value_name = "INTENT-ID")]
    id: Vec<String>,
    /// Include intents that the gateway may have accepted: their last attempt was interrupted or timed out
    #[arg(long)]
    include_unknown_outcome: bool,
    /// A note for other operators
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print the JSON response of the service instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    redrive: IdArgs,
    /// How many intents to create in a second, from 1 to 1000
    #[arg(long, value_name = "PER-SECOND", default_value_t = 10)]
    rate: u32,
    /// Return immediately instead of showing the progress
    #[arg(long)]
    detach: bool,
}

#[derive(Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// The redrive to show; without it, the latest ones are listed
    #[arg(value_name = "REDRIVE-ID")]
    id: Option<String>,
    /// Show the progress until the redrive ends; Ctrl-C leaves it running
    #[arg(long, requires = "id")]
    watch: bool,
    /// Print the JSON response of the service
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct IdArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// The id of the redrive
    #[arg(value_name = "REDRIVE-ID")]
    id: String,
}

/// How often the progress is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The rate is measured over this time.
const RATE_WINDOW: Duration = Duration::from_secs(15);
/// Reads of the progress that may fail in a row, for example while an instance restarts.
const MAX_FAILURES: u32 = 10;
/// A plan of a million intents takes longer than other requests.
const PLAN_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs a `redrive` command.
pub(super) async fn run(command: RedriveCommand) -> CommandResult {
    match command {
        RedriveCommand::Plan(args) => plan(*args).await,
        RedriveCommand::Start(args) => start(args).await,
        RedriveCommand::Status(args) => status(args).await,
        RedriveCommand::Pause(args) => change(args, "pause").await,
        RedriveCommand::Resume(args) => change(args, "resume").await,
        RedriveCommand::Cancel(args) => change(args, "cancel").await,
    }
}

async fn plan(args: PlanArgs) -> CommandResult {
    let request = args.service.client().post(args.service.url("/v1/redrives")).timeout(PLAN_TIMEOUT);
    let planning = call(request.send_json(&order(&args)));
    let response = with_elapsed("planning", planning).await?;
    if args.json {
        println!("{}", String::from_utf8_lossy(&response));
        return Ok(());
    }
    print!("{}", plan_text(&parse(&response)?));
    Ok(())
}

/// The body of a plan.
fn order(args: &PlanArgs) -> Value {
    let ids = (!args.id.is_empty()).then(|| json!(args.id));
    let text = |text: &Option<String>| text.as_ref().map(|text| json!(text));
    let conditions = [
        ("status", text(&args.status)),
        ("submissionTarget", text(&args.target)),
        ("reason", text(&args.reason)),
        ("createdAfter", text(&args.created_after)),
        ("createdBefore", text(&args.created_before)),
        ("completedAfter", text(&args.completed_after)),
        ("completedBefore", text(&args.completed_before)),
        ("intentIds", ids),
    ];
    let filter: Map<_, _> =
        conditions.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    json!({ "filter": filter, "includeUnknownOutcome": args.include_unknown_outcome, "note": args.note })
}

/// Waits for something, and shows how long it takes.
async fn with_elapsed<T>(what: &str, work: impl Future<Output = T>) -> T {
    let started = monotonic();
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(POLL_INTERVAL, work.as_mut()).await {
            clear();
            return done;
        }
        show(&format!("{what}: {} s", monotonic().duration_since(started).as_secs()));
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// A plan as a table: its groups, the intents that are not in it, and the command that starts it.
fn plan_text(plan: &Value) -> String {
    let (id, count) = (text(&plan["redriveId"]), number(&plan["count"]));
    let mut lines = vec![format!("redrive {id}: {}, {count} intents", text(&plan["state"]))];
    let groups: Vec<_> = plan["groups"].as_array().into_iter().flatten().collect();
    if !groups.is_empty() {
        let header = ["target", "status", "reason", "intents"].map(str::to_owned);
        let row = |group: &&Value| {
            let name = |field: &str| text(&group[field]).to_owned();
            [name("submissionTarget"), name("status"), name("reason"), number(&group["count"]).to_string()]
        };
        lines.push(String::new());
        lines.extend(table(std::iter::once(header).chain(groups.iter().map(row)).collect()));
    }
    let excluded = plan["excluded"].as_object().into_iter().flatten();
    let excluded: Vec<_> = excluded.filter(|(_, count)| number(count) > 0).collect();
    if !excluded.is_empty() {
        lines.push("\nnot in the plan:".to_owned());
        lines.extend(excluded.iter().map(|(reason, count)| format!("  {count} {}", explained(reason))));
    }
    let sample: Vec<_> = plan["sample"].as_array().into_iter().flatten().map(text).collect();
    if !sample.is_empty() {
        lines.push(format!("\nfirst ids: {}", sample.join(", ")));
        lines.push(format!("\nstart it within a day with: submission-manager redrive start {id}"));
    }
    lines.join("\n") + "\n"
}

/// Why intents are not in a plan.
fn explained(reason: &str) -> &str {
    match reason {
        "already_redriven" => "already_redriven: another intent repeats them",
        "target_not_in_registry" => "target_not_in_registry: the registry has no contract for their target",
        "outcome_unknown" => {
            "outcome_unknown: the gateway may have accepted them; --include-unknown-outcome includes them"
        }
        other => other,
    }
}

/// Lines with aligned columns; the last column has numbers.
fn table<const N: usize>(rows: Vec<[String; N]>) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let cell = |(column, text): (usize, &String)| match column + 1 == N {
        true => format!("{text:>0$}", widths[column]),
        false => format!("{text:<0$}", widths[column]),
    };
    rows.iter().map(|row| format!("  {}", row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  "))).collect()
}

impl IdArgs {
    fn path(&self) -> String {
        let id = percent_encoding::utf8_percent_encode(&self.id, percent_encoding::NON_ALPHANUMERIC);
        self.service.url(&format!("/v1/redrives/{id}"))
    }

    async fn get(&self) -> Result<Value, ServiceError> {
        parse(&call(self.service.client().get(self.path()).send()).await?)
    }

    async fn post(&self, change: &str, body: &Value) -> Result<Value, ServiceError> {
        parse(&call(self.service.client().post(format!("{}/{change}", self.path())).send_json(body)).await?)
    }
}

async fn start(args: StartArgs) -> CommandResult {
    let started = args.redrive.post("start", &json!({ "ratePerSecond": args.rate })).await?;
    if args.detach {
        println!("{}", progress_text(&started));
        return Ok(());
    }
    watch(&args.redrive).await
}

async fn status(args: StatusArgs) -> CommandResult {
    let Some(id) = args.id else {
        let response = call(args.service.client().get(args.service.url("/v1/redrives")).send()).await?;
        if args.json {
            println!("{}", String::from_utf8_lossy(&response));
            return Ok(());
        }
        for redrive in parse(&response)?["redrives"].as_array().into_iter().flatten() {
            println!("{}  {}", text(&redrive["plannedAt"]), progress_text(redrive));
        }
        return Ok(());
    };
    let redrive = IdArgs { service: args.service, id };
    if args.watch {
        return watch(&redrive).await;
    }
    let found = redrive.get().await?;
    if args.json {
        println!("{found}");
    } else if text(&found["state"]) == "planned" {
        print!("{}", plan_text(&found));
    } else {
        println!("{}", progress_text(&found));
    }
    Ok(())
}

async fn change(args: IdArgs, change: &str) -> CommandResult {
    println!("{}", progress_text(&args.post(change, &json!({})).await?));
    Ok(())
}

/// A redrive as a line.
fn progress_text(redrive: &Value) -> String {
    let outcomes = &redrive["outcomes"];
    let counts = ["accepted", "pending", "rejected", "exhausted"].map(|name| (name, number(&outcomes[name])));
    let counts = counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}"));
    let counts: Vec<_> = counts.collect();
    let skipped = match number(&redrive["skipped"]) {
        0 => String::new(),
        skipped => format!(", {skipped} skipped"),
    };
    let outcomes = if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    format!(
        "redrive {}: {}, {} of {} created{outcomes}{skipped}",
        text(&redrive["redriveId"]),
        text(&redrive["state"]),
        number(&redrive["created"]),
        number(&redrive["count"])
    )
}

/// Shows the progress of a redrive until it has ended. Ctrl-C stops the display and leaves the redrive running.
async fn watch(redrive: &IdArgs) -> CommandResult {
    let mut interrupted = std::pin::pin!(actix_web::rt::signal::ctrl_c());
    let mut speed = Speed::default();
    let mut failures = 0;
    loop {
        match redrive.get().await {
            Ok(found) => {
                failures = 0;
                let done = number(&found["created"]) + number(&found["skipped"]);
                speed.add(monotonic(), done);
                if matches!(text(&found["state"]), "completed" | "cancelled") {
                    clear();
                    println!("{}", progress_text(&found));
                    return Ok(());
                }
                show(&bar(&found, speed.per_second()));
            }
            Err(_) if failures < MAX_FAILURES => failures += 1,
            Err(error) => return Err(error.into()),
        }
        if tokio::time::timeout(POLL_INTERVAL, interrupted.as_mut()).await.is_ok() {
            clear();
            let id = &redrive.id;
            println!("redrive {id} is still running; watch it with: submission-manager redrive status {id} --watch");
            return Ok(());
        }
    }
}

/// How many intents were done at which time, over the last [`RATE_WINDOW`].
#[derive(Default)]
struct Speed(VecDeque<(Instant, u64)>);

impl Speed {
    fn add(&mut self, now: Instant, done: u64) {
        self.0.push_back((now, done));
        while self.0.front().is_some_and(|(at, _)| now.duration_since(*at) > RATE_WINDOW) {
            self.0.pop_front();
        }
    }

    fn per_second(&self) -> f64 {
        let (Some((from, before)), Some((to, after))) = (self.0.front(), self.0.back()) else { return 0.0 };
        let seconds = to.duration_since(*from).as_secs_f64();
        if seconds > 0.0 { after.saturating_sub(*before) as f64 / seconds } else { 0.0 }
    }
}

/// A progress bar with the rate and the time left.
fn bar(redrive: &Value, per_second: f64) -> String {
    const WIDTH: u64 = 30;
    let (count, remaining) = (number(&redrive["count"]).max(1), number(&redrive["remaining"]));
    let done = count.saturating_sub(remaining);
    let filled = usize::try_from(done * WIDTH / count).unwrap_or(0);
    let left = match per_second {
        rate if rate > 0.0 => format!(", {} left", span(Duration::from_secs_f64((remaining as f64 / rate).min(1e9)))),
        _ => String::new(),
    };
    format!(
        "{} [{:<30}] {done}/{count}, {per_second:.1}/s{left}, {} accepted, {} failed again",
        text(&redrive["state"]),
        "#".repeat(filled),
        number(&redrive["outcomes"]["accepted"]),
        number(&redrive["outcomes"]["rejected"]) + number(&redrive["outcomes"]["exhausted"])
    )
}

/// A duration in its two largest units.
fn span(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Shows a line in place of the last one, if standard error is a terminal.
fn show(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
        // An error is ignored: the progress is only for display.
        let _ignored = std::io::stderr().flush();
    }
}

fn clear() {
    show("");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_shown_as_a_table() {
        let plan = json!({ "redriveId": "r", "state": "planned", "count": 1203, "groups": [
            { "submissionTarget": "sms.realtime", "status": "exhausted", "reason": "deadline_exceeded", "count": 1200 },
            { "submissionTarget": "push", "status": "rejected", "reason": "provider_failure", "count": 3 },
        ], "excluded": { "already_redriven": 0, "outcome_unknown": 12 }, "sample": ["a", "b"] });
        let expected = "redrive r: planned, 1203 intents\n\n  \
            target        status     reason             intents\n  \
            sms.realtime  exhausted  deadline_exceeded     1200\n  \
            push          rejected   provider_failure         3\n\n\
            not in the plan:\n  \
            12 outcome_unknown: the gateway may have accepted them; --include-unknown-outcome includes them\n\n\
            first ids: a, b\n\nstart it within a day with: submission-manager redrive start r\n";
        assert_eq!(plan_text(&plan), expected);
        let empty =
            json!({ "redriveId": "r", "state": "planned", "count": 0, "groups": [], "excluded": {}, "sample": [] });
        assert_eq!(plan_text(&empty), "redrive r: planned, 0 intents\n");
    }

    #[test]
    fn progress_shows_rate_and_time_left() {
        let redrive = json!({ "redriveId": "r", "state": "running", "count": 1000, "created": 240, "skipped": 10,
            "remaining": 750, "outcomes": { "pending": 20, "accepted": 200, "rejected": 15, "exhausted": 5 } });
        let shown = bar(&redrive, 10.0);
        let expected = "running [#######                       ] 250/1000, 10.0/s, 1 min 15 s left, 200 accepted, \
            20 failed again";
        assert_eq!(shown, expected);
        assert!(!bar(&redrive, 0.0).contains("left"));
        let line =
            "redrive r: running, 240 of 1000 created (200 accepted, 20 pending, 15 rejected, 5 exhausted), 10 skipped";
        assert_eq!(progress_text(&redrive), line);
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut speed = Speed::default();
        let start = monotonic();
        assert_eq!(speed.per_second(), 0.0);
        for second in 0..60_u64 {
            speed.add(start + Duration::from_secs(second), if second < 30 { 0 } else { (second - 30) * 10 });
        }
        assert_eq!(speed.per_second(), 10.0);
    }
}
