//! The `events` command: prints how intents ended, in order, or with `--follow` new events as intents end.
//!
//! It reads pages with ordinary requests that wait for new events. While the service cannot be reached, it tries again
//! and continues from its last cursor, also if a proxy then sends it to another instance.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use serde_json::value::RawValue;

use super::CommandResult;
use super::client::{ServiceArgs, ServiceError, call, text};
use crate::platform::errors::{Context, full_text};

#[derive(Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Print new events as intents end, until the command is interrupted; without --after, no older events
    #[arg(long, short)]
    follow: bool,
    /// Start after this cursor, or with 'now' at the end of the feed [default: now with --follow, else the oldest event
    /// that is kept]
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Only intents of this target
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Print each event as a line of JSON, in the form in which a webhook delivers it
    #[arg(long)]
    json: bool,
}

/// Events in one response: as many as one may have.
const PAGE: usize = 1000;
/// How long the service holds a response until there is an event.
const WAIT_SECONDS: u64 = 30;
/// The pause after a failed request, which doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// One response of the service.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    events: Vec<Box<RawValue>>,
    next_cursor: String,
    /// Whether there may be more events already.
    #[serde(default)]
    more: bool,
}

/// Runs `events`.
pub(super) async fn run(args: EventsArgs) -> CommandResult {
    let start = args.after.clone().or_else(|| args.follow.then(|| "now".to_owned()));
    let mut after = start.unwrap_or_default();
    let result = tokio::select! {
        result = print_all(&args, &mut after) => result,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted.context(|| "cannot wait for an interruption")?),
    };
    // The cursor to continue with goes to standard error, because the events are on standard output.
    if result.is_ok() && !after.is_empty() {
        eprintln!("continue from here with: --after {after}");
    }
    result
}

/// Prints pages until there are no more, or for ever with `--follow`. `after` is the cursor after what was printed.
async fn print_all(args: &EventsArgs, after: &mut String) -> CommandResult {
    let wait = if args.follow { WAIT_SECONDS } else { 0 };
    loop {
        // The end of the feed has its cursor only when the service has answered once.
        let wait = if after == "now" { 0 } else { wait };
        let page = page(args, after, wait).await?;
        match print(&page.events, args.json) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            printed => printed.context(|| "cannot write to standard output")?,
        }
        *after = page.next_cursor;
        if !args.follow && !page.more {
            return Ok(());
        }
    }
}

/// Reads a page. With `--follow`, waits as long as it takes until the service can be reached.
async fn page(args: &EventsArgs, after: &str, wait: u64) -> CommandResult<Page> {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let target = args.target.as_deref().map(|target| format!("&submissionTarget={}", encode(target)));
    let path =
        format!("/v1/events?limit={PAGE}&waitSeconds={wait}&after={}{}", encode(after), target.unwrap_or_default());
    let mut pause = FIRST_PAUSE;
    loop {
        match call(args.service.client().get(args.service.url(&path)).send()).await {
            Ok(response) => return Ok(serde_json::from_slice(&response).map_err(ServiceError::NotJson)?),
            Err(error) if args.follow && error.is_temporary() => {
                if pause == FIRST_PAUSE {
                    eprintln!("{}; trying again", full_text(&error));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn print(events: &[Box<RawValue>], json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for event in events {
        if json {
            writeln!(out, "{}", event.get())?;
        } else {
            writeln!(out, "{}", line(&serde_json::from_str(event.get())?))?;
        }
    }
    out.flush()
}

/// An event as a line of text.
fn line(event: &Value) -> String {
    let intent = &event["intent"];
    let reason = [&intent["rejectedReason"], &intent["exhaustedReason"]].into_iter().find_map(Value::as_str);
    format!(
        "{}  {:<9}  {}  {}{}",
        text(&event["occurredAt"]),
        text(&intent["status"]),
        text(&intent["submissionTarget"]),
        text(&intent["intentId"]),
        reason.map(|reason| format!("  ({reason})")).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_an_intent_ended() {
        let intent = |more: &str| {
            let text = format!(
                r#"{{"occurredAt":"2026-11-16T09:00:00Z","intent":{{"intentId":"a","submissionTarget":"t",{more}}}}}"#
            );
            line(&serde_json::from_str(&text).unwrap())
        };
        assert_eq!(intent(r#""status":"accepted""#), "2026-11-16T09:00:00Z  accepted   t  a");
        let rejected = intent(r#""status":"rejected","rejectedReason":"invalid_recipient""#);
        assert_eq!(rejected, "2026-11-16T09:00:00Z  rejected   t  a  (invalid_recipient)");
    }
}
