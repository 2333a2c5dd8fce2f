//! The `submit`, `history` and `cancel` commands: an API client for shells and operators.

use std::io::Read;
use std::time::Duration;

use actix_web::http::StatusCode;
use awc::Client;
use awc::error::{PayloadError, SendRequestError};
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{CommandResult, submit_file};
use crate::config::settings::whole;
use crate::platform::errors::Context;

#[derive(Args)]
pub(super) struct ServiceArgs {
    /// Base URL of the service
    #[arg(long, env = "SM_URL", default_value = "http://127.0.0.1:8082", value_name = "URL")]
    url: String,

    /// Bearer token, if the service requires one
    #[arg(long, env = "SM_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
}

impl ServiceArgs {
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    pub(super) fn client(&self) -> Client {
        let builder = Client::builder().timeout(TIMEOUT);
        match &self.token {
            Some(token) => builder.bearer_auth(token).finish(),
            None => builder.finish(),
        }
    }
}

#[derive(Args)]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Your id for this intent; a repeated request with the same id does not submit it again
    #[arg(long, value_name = "INTENT-ID", required_unless_present = "file")]
    id: Option<String>,
    /// The name of a target in the registry
    #[arg(long, value_name = "TARGET", required_unless_present = "file")]
    target: Option<String>,
    /// Submit every line of this file, each a submission as JSON; - reads standard input. To continue after an
    /// interruption, run the same command again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "target", "payload", "not_before", "wait"])]
    file: Option<String>,
    /// With --file: how many lines each request has
    #[arg(long, default_value = "500", value_parser = whole(1, MOST_LINES), value_name = "LINES", requires = "file")]
    batch: usize,
    /// JSON to send to the gateway; @FILE reads it from a file, - from standard input
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// When the first attempt may start, such as 2026-11-17T08:00:00Z; at most 30 days ahead
    #[arg(long, value_name = "TIME")]
    not_before: Option<String>,
    /// Wait up to this many seconds for the first attempt
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u32>,
}

#[derive(Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// The intent to show
    #[arg(value_name = "INTENT-ID")]
    id: String,
    /// Print the JSON response of the service instead of a summary
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// The intent to cancel
    #[arg(value_name = "INTENT-ID")]
    id: String,
    /// If an attempt is in progress, cancel the intent after it
    #[arg(long)]
    after_attempt: bool,
}

/// The most lines in one request.
const MOST_LINES: usize = 1000;
/// The time limit of a request: longer than the maximum of `waitSeconds`.
const TIMEOUT: Duration = Duration::from_secs(40);
/// The largest response. It is large because the history of an intent with many attempts is long.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Runs `submit`.
pub(super) async fn submit(args: SubmitArgs) -> CommandResult {
    if let Some(file) = &args.file {
        return submit_file::run(&args.service, file, args.batch).await;
    }
    let payload = match args.payload.as_deref() {
        Some("-") => Some(std::io::read_to_string(std::io::stdin()).context(|| "cannot read standard input")?),
        Some(text) => match text.strip_prefix('@') {
            Some(path) => Some(read_file(path)?),
            None => Some(text.to_owned()),
        },
        None => None,
    };
    let raw = payload.map(RawValue::from_string).transpose().context(|| "--payload is not JSON")?;
    let mut body = serde_json::Map::new();
    body.insert("intentId".to_owned(), args.id.into());
    body.insert("submissionTarget".to_owned(), args.target.into());
    if let Some(time) = args.not_before {
        body.insert("notBefore".to_owned(), time.into());
    }
    let body = with_payload(&body, raw.as_deref())?;
    let wait = args.wait.map(|seconds| format!("?waitSeconds={seconds}")).unwrap_or_default();
    let request = args.service.client().post(args.service.url(&format!("/v1/intents{wait}")));
    let response = call(request.insert_header(("Content-Type", "application/json")).send_body(body)).await?;
    println!("{}", String::from_utf8_lossy(&response));
    Ok(())
}

/// The body of the request. It contains the payload byte for byte, not as a parser would write it again.
fn with_payload(fields: &serde_json::Map<String, Value>, payload: Option<&RawValue>) -> CommandResult<String> {
    let mut text = serde_json::to_string(fields)?;
    if let Some(payload) = payload {
        text.pop();
        text.push_str(&format!(",\"payload\":{}}}", payload.get()));
    }
    Ok(text)
}

fn read_file(path: &str) -> CommandResult<String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|mut file| file.read_to_string(&mut text))
        .context(|| format!("cannot read {path}"))?;
    Ok(text)
}

/// Runs `history`.
pub(super) async fn history(args: HistoryArgs) -> CommandResult {
    let id = utf8_percent_encode(&args.id, NON_ALPHANUMERIC);
    let request = args.service.client().get(args.service.url(&format!("/v1/intents/{id}/history")));
    let response = call(request.send()).await?;
    if args.json {
        println!("{}", String::from_utf8_lossy(&response));
        return Ok(());
    }
    print!("{}", summary(&parse(&response)?));
    Ok(())
}

/// Runs `cancel`.
pub(super) async fn cancel(args: CancelArgs) -> CommandResult {
    let id = utf8_percent_encode(&args.id, NON_ALPHANUMERIC);
    let path = format!("/v1/intents/{id}/cancel?afterAttempt={}", args.after_attempt);
    let response = call(args.service.client().post(args.service.url(&path)).send()).await?;
    let intent = parse(&response)?;
    let sent = match intent["mayHaveBeenSent"].as_bool() {
        Some(false) => "no attempt was ever started",
        _ => "its gateway may have received it",
    };
    match intent["status"].as_str() {
        Some("pending") => println!("{}: an attempt is in progress; no further attempt starts after it", args.id),
        _ => println!("{}: cancelled; {sent}", args.id),
    }
    Ok(())
}

/// A text field of a response; empty if it is absent.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The history of an intent as lines of text: the intent, its attempts, and its webhook.
fn summary(history: &Value) -> String {
    let intent = &history["intent"];
    let reason = [&intent["rejectedReason"], &intent["exhaustedReason"]].into_iter().find_map(Value::as_str);
    let mut lines = vec![
        format!("{}  to {}", text(&intent["intentId"]), text(&intent["submissionTarget"])),
        format!("created   {}", text(&intent["createdAt"])),
        format!(
            "{:<9} {}{}",
            text(&intent["status"]),
            text(&intent["completedAt"]),
            reason.map(|reason| format!("  ({reason})")).unwrap_or_default()
        ),
    ];
    for attempt in history["attempts"].as_array().into_iter().flatten() {
        let outcome = match attempt["outcomeStatus"].as_str() {
            Some(status) => {
                let details = [&attempt["outcomeReason"], &attempt["gatewayMessageId"]];
                let details: Vec<_> = details.into_iter().filter_map(Value::as_str).collect();
                format!("{status} {}", details.join(" "))
            }
            None => format!("error: {}", text(&attempt["error"])),
        };
        lines.push(format!(
            "  #{:<3} {}  {}",
            attempt["attemptNumber"],
            text(&attempt["startedAt"]),
            outcome.trim_end()
        ));
    }
    if let Some(webhook) = history["webhook"].as_object() {
        let next = webhook.get("nextTryAt").and_then(Value::as_str).map(|at| format!(", next try {at}"));
        lines.push(format!("webhook   {}{}", text(&webhook["status"]), next.unwrap_or_default()));
        for tried in webhook["tries"].as_array().into_iter().flatten() {
            let status = tried["httpStatus"].as_u64().map(|status| format!("HTTP {status}"));
            let error = tried["error"].as_str().map(str::to_owned);
            let result = [status, error].into_iter().flatten().collect::<Vec<_>>().join(" ");
            lines.push(format!("  #{:<3} {}  {result}", tried["tryNumber"], text(&tried["startedAt"])));
        }
    }
    lines.join("\n") + "\n"
}

/// Why a call of the service failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("cannot reach the service: {0}; check that it runs, and set its URL with --url or SM_URL")]
    Unreachable(#[source] SendRequestError),
    #[error("cannot read the response of the service")]
    BrokeOff(#[source] PayloadError),
    #[error("the service responded with {status}: {message} ({code})")]
    Refused { status: StatusCode, message: String, code: String },
    #[error("the response is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the response has no results")]
    NoResults(#[source] serde_json::Error),
}

impl ServiceError {
    /// Whether the same call may succeed later: the service could not be reached, or has no capacity.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::BrokeOff(_) => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 502..=504),
            Self::NotJson(_) | Self::NoResults(_) => false,
        }
    }
}

/// The body of a successful response.
pub(super) async fn call(request: awc::SendClientRequest) -> Result<Vec<u8>, ServiceError> {
    let mut response = request.await.map_err(ServiceError::Unreachable)?;
    let body = response.body().limit(MAX_RESPONSE_BYTES).await.map_err(ServiceError::BrokeOff)?;
    if response.status().is_success() {
        return Ok(body.to_vec());
    }
    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
    let field = |name: &str| error["error"][name].as_str().unwrap_or("?").to_owned();
    Err(ServiceError::Refused { status: response.status(), message: field("message"), code: field("code") })
}

/// The JSON of a response.
pub(super) fn parse(response: &[u8]) -> Result<Value, ServiceError> {
    serde_json::from_slice(response).map_err(ServiceError::NotJson)
}
