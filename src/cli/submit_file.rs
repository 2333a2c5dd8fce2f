//! `submit --file`: submits the lines of an NDJSON file in batches, with progress and a summary by result.
//!
//! After an interruption, the same command can be run again: the ids make that safe, and intents that already exist are
//! counted separately.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;

use super::CommandResult;
use super::client::{ServiceArgs, ServiceError, call, parse};
use crate::platform::clock::monotonic;
use crate::platform::errors::Context;

/// Bytes of one request: half of what the service takes, so that a last line always fits.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// A request that fails for lack of capacity or connection is repeated this often before the command gives up.
const TRIES: u32 = 6;
/// The pause before the first repetition; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// How many refused lines are printed. Further ones are only counted.
const MOST_PRINTED: usize = 20;

/// Runs `submit --file`. `-` is standard input.
pub(super) async fn run(service: &ServiceArgs, path: &str, batch: usize) -> CommandResult {
    let cannot_read = || format!("cannot read {path}");
    let (mut lines, size): (Box<dyn BufRead>, Option<u64>) = match path {
        "-" => (Box::new(BufReader::new(std::io::stdin())), None),
        _ => {
            let file = std::fs::File::open(path).context(cannot_read)?;
            let size = file.metadata().map(|metadata| metadata.len()).ok();
            (Box::new(BufReader::new(file)), size)
        }
    };
    let mut run = Run::new(size);
    loop {
        let taken = next_batch(&mut *lines, batch, &mut run.line).context(cannot_read)?;
        if taken.numbers.is_empty() {
            break;
        }
        let sent = send(service, &taken.body).await;
        let results = sent.map_err(|error| run.given_up(&taken, error))?;
        run.count(&taken, &results)?;
        run.show();
    }
    run.finish()
}

/// Lines that are sent together, with their numbers in the file.
struct Batch {
    body: Vec<u8>,
    numbers: Vec<u64>,
    /// How many bytes of the file they take, with blank lines.
    read: u64,
}

/// Reads the next lines, without blank ones. `line` is the number of the last line that was read.
fn next_batch(lines: &mut dyn BufRead, most: usize, line: &mut u64) -> Result<Batch, std::io::Error> {
    let mut batch = Batch { body: Vec::new(), numbers: Vec::new(), read: 0 };
    let mut text = Vec::new();
    while batch.numbers.len() < most && batch.body.len() < MAX_BYTES {
        text.clear();
        let read = lines.read_until(b'\n', &mut text)?;
        if read == 0 {
            break;
        }
        *line += 1;
        batch.read += read as u64;
        let trimmed = text.trim_ascii();
        if !trimmed.is_empty() {
            batch.body.extend_from_slice(trimmed);
            batch.body.push(b'\n');
            batch.numbers.push(*line);
        }
    }
    Ok(batch)
}

/// Sends a batch, and repeats it while the service has no capacity or cannot be reached. The ids make the repetition
/// safe.
async fn send(service: &ServiceArgs, body: &[u8]) -> Result<Vec<Value>, ServiceError> {
    let mut pause = FIRST_PAUSE;
    let mut tries = 1;
    loop {
        let request = service.client().post(service.url("/v1/intents/batch"));
        let request = request.insert_header(("Content-Type", "application/x-ndjson"));
        match call(request.send_body(body.to_vec())).await {
            Ok(response) => {
                let results = parse(&response)?["results"].take();
                return serde_json::from_value(results).map_err(ServiceError::NoResults);
            }
            Err(error) if tries < TRIES && error.is_temporary() => {
                tokio::time::sleep(pause).await;
                pause *= 2;
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The error of a run that ended early.
#[derive(Debug, thiserror::Error)]
#[error(
    "{stored} intents are stored, and those from line {line} on may not be; run the same command again, which submits no \
     intent twice"
)]
struct GivenUp {
    stored: u64,
    line: u64,
    source: ServiceError,
}

/// What has been sent so far.
struct Run {
    began: tokio::time::Instant,
    /// The bytes of the file, if it is one.
    size: Option<u64>,
    read: u64,
    /// The last line that was read.
    line: u64,
    created: u64,
    existing: u64,
    /// Refused lines by error code.
    refused: BTreeMap<String, u64>,
    printed: usize,
    on_terminal: bool,
}

impl Run {
    fn new(size: Option<u64>) -> Self {
        Self {
            began: monotonic(),
            size,
            read: 0,
            line: 0,
            created: 0,
            existing: 0,
            refused: BTreeMap::new(),
            printed: 0,
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn stored(&self) -> u64 {
        self.created + self.existing
    }

    fn count(&mut self, batch: &Batch, results: &[Value]) -> CommandResult {
        if results.len() != batch.numbers.len() {
            return Err(format!("the response has {} results for {} lines", results.len(), batch.numbers.len()).into());
        }
        self.read += batch.read;
        for (line, result) in batch.numbers.iter().zip(results) {
            match (result["status"].as_u64(), result["replayed"].as_bool()) {
                (Some(200), Some(true)) => self.existing += 1,
                (Some(200), _) => self.created += 1,
                _ => self.refuse(*line, &result["error"]),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, line: u64, error: &Value) {
        let code = error["code"].as_str().unwrap_or("unknown").to_owned();
        if self.printed < MOST_PRINTED {
            self.printed += 1;
            let clear = if self.on_terminal { "\r\x1b[K" } else { "" };
            eprintln!("{clear}line {line}: {} ({code})", error["message"].as_str().unwrap_or("no message"));
        }
        *self.refused.entry(code).or_default() += 1;
    }

    fn per_second(&self) -> f64 {
        self.stored() as f64 / monotonic().duration_since(self.began).as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Shows the progress, if standard error is a terminal.
    fn show(&self) {
        if !self.on_terminal {
            return;
        }
        const WIDTH: usize = 30;
        let share = self.size.filter(|size| *size > 0).map(|size| (self.read as f64 / size as f64).min(1.0));
        let bar = share.map(|share| {
            let full = (share * WIDTH as f64) as usize;
            format!("[{}{}] {:3.0}%  ", "#".repeat(full), " ".repeat(WIDTH - full), share * 100.0)
        });
        eprint!("\r\x1b[K{}{} intents, {:.0}/s", bar.unwrap_or_default(), self.stored(), self.per_second());
        let _ignored = std::io::stderr().flush();
    }

    fn given_up(&self, batch: &Batch, source: ServiceError) -> GivenUp {
        GivenUp { stored: self.stored(), line: batch.numbers.first().copied().unwrap_or_default(), source }
    }

    fn finish(self) -> CommandResult {
        if self.on_terminal {
            eprint!("\r\x1b[K");
        }
        let (created, existing, rate) = (self.created, self.existing, self.per_second());
        println!("created {created}, existed {existing}, {rate:.0}/s");
        if self.refused.is_empty() {
            return Ok(());
        }
        let by_code = self.refused.iter().map(|(code, count)| format!("{code} {count}"));
        Err(format!("refused lines by code: {}", by_code.collect::<Vec<_>>().join(", ")).into())
    }
}
