//! The load: clients that submit intents and record when each was due and when its response arrived.
//!
//! In a closed loop each client submits its next intent when it has the response to the last one, which hides queueing. In
//! an open loop intents are due at a fixed rate, and latency counts from when an intent was due, not from when it was sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::error::{BenchResult, Step};
use super::gateway::FirstArrivals;
use crate::platform::clock::monotonic;

/// How intents are submitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    Closed { clients: usize },
    Open { rate: u32 },
}

/// The maximum number of open requests in an open loop. An intent that is due beyond that is sent late, which counts as
/// latency.
const MAX_OUTSTANDING: u32 = 4096;

/// More than the results of the largest batch.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// What the response to a batch has if an item was refused.
const REFUSED: &[u8] = b"\"error\":";

/// What to submit, where and for how long.
pub(super) struct Load {
    pub url: String,
    pub targets: Vec<String>,
    pub pace: Pace,
    pub payload: usize,
    /// How many intents each request has. More than one makes it a batch submission.
    pub batch: usize,
    pub duration: Duration,
}

/// The result of every submission of a run.
pub(super) struct Submitted {
    /// A text that only the intent ids of this run contain.
    pub run: String,
    pub began: Instant,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    number: usize,
    due: Instant,
    /// When the response arrived; `None` if the submission failed.
    answered: Option<Instant>,
}

impl Submitted {
    /// The number of successful submissions.
    pub(super) fn answered(&self) -> usize {
        self.entries.iter().filter(|entry| entry.answered.is_some()).count()
    }

    pub(super) fn errors(&self) -> usize {
        self.entries.len() - self.answered()
    }

    /// Successful submissions per second.
    pub(super) fn rate(&self) -> f64 {
        let last = self.entries.iter().filter_map(|entry| entry.answered).max().unwrap_or(self.began);
        self.answered() as f64 / last.duration_since(self.began).as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The times from when each successful submission was due to its response.
    pub(super) fn latencies(&self) -> Vec<Duration> {
        self.entries.iter().filter_map(|entry| Some(entry.answered?.duration_since(entry.due))).collect()
    }

    /// The times from the response to the arrival of the first attempt at the gateway. They are zero if the attempt arrived
    /// before the response.
    pub(super) fn to_first_attempt(&self, arrivals: &FirstArrivals) -> Vec<Duration> {
        let delay = |entry: &Entry| Some(arrivals.of(entry.number)?.saturating_duration_since(entry.answered?));
        self.entries.iter().filter_map(delay).collect()
    }
}

/// Submits for as long as the load says.
pub(super) async fn drive(load: Load, mut progress: impl FnMut(&dyn Fn() -> String)) -> BenchResult<Submitted> {
    let run = format!("{:08x}", fastrand::u32(..));
    let client = Rc::new(Client::new(&load, &run));
    client.submit(&[0]).await.step(|| "the service does not take a first intent")?;
    let began = monotonic();
    let shared = Rc::new(Shared { entries: RefCell::default(), next: RefCell::new(1) });
    let until = began + load.duration;
    let watch = async {
        while monotonic() < until {
            tokio::time::sleep(Duration::from_millis(100)).await;
            progress(&|| {
                let count = shared.entries.borrow().len();
                format!("{:.0} submitted a second", count as f64 / monotonic().duration_since(began).as_secs_f64())
            });
        }
    };
    match load.pace {
        Pace::Closed { clients } => {
            let clients = (0..clients).map(|_| closed(Rc::clone(&client), Rc::clone(&shared), until));
            tokio::join!(join_all(clients), watch);
        }
        Pace::Open { rate } => {
            tokio::join!(open(client, Rc::clone(&shared), began, until, rate), watch);
        }
    }
    let entries = shared.entries.take();
    Ok(Submitted { run, began, entries })
}

struct Shared {
    entries: RefCell<Vec<Entry>>,
    next: RefCell<usize>,
}

impl Shared {
    async fn submit(&self, client: &Client, due: Instant) {
        let first = self.next.replace_with(|number| *number + client.batch);
        let numbers: Vec<usize> = (first..first + client.batch).collect();
        let answered = client.submit(&numbers).await.is_ok().then(monotonic);
        self.entries.borrow_mut().extend(numbers.into_iter().map(|number| Entry { number, due, answered }));
    }
}

async fn closed(client: Rc<Client>, shared: Rc<Shared>, until: Instant) {
    loop {
        let now = monotonic();
        if now >= until {
            return;
        }
        shared.submit(&client, now).await;
    }
}

async fn open(client: Rc<Client>, shared: Rc<Shared>, began: Instant, until: Instant, rate: u32) {
    let slots = Arc::new(Semaphore::new(MAX_OUTSTANDING as usize));
    for number in 0.. {
        let due = began + Duration::from_secs_f64(f64::from(number) / f64::from(rate.max(1)));
        if due >= until {
            break;
        }
        if due > monotonic() {
            tokio::time::sleep_until(due).await;
        }
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { break };
        let (client, shared) = (Rc::clone(&client), Rc::clone(&shared));
        actix::spawn(async move {
            shared.submit(&client, due).await;
            drop(slot);
        });
    }
    // All slots are free again when the last response has arrived.
    let _ignored = slots.acquire_many(MAX_OUTSTANDING).await;
}

struct Client {
    http: awc::Client,
    url: String,
    targets: Vec<String>,
    run: String,
    padding: String,
    batch: usize,
}

impl Client {
    fn new(load: &Load, run: &str) -> Self {
        let connector = awc::Connector::new().limit(0).timeout(Duration::from_secs(30));
        let http = awc::Client::builder().connector(connector).timeout(Duration::from_secs(60)).finish();
        let padding = "x".repeat(load.payload.saturating_sub(r#"{"to":"+46700000001","message":""}"#.len()));
        let url = format!("{}/v1/intents", load.url);
        Self { http, url, targets: load.targets.clone(), run: run.to_owned(), padding, batch: load.batch }
    }

    fn submission(&self, number: usize) -> String {
        // Ids begin with random digits, so that they are spread over the index as those of real clients are.
        let id = format!("{:016x}-{}-{number}", fastrand::u64(..), self.run);
        let target = &self.targets[number % self.targets.len()];
        format!(
            r#"{{"intentId":"{id}","submissionTarget":"{target}","payload":{{"to":"+46700000001","message":"{}"}}}}"#,
            self.padding
        )
    }

    /// Submits these intents, together if there are several. Fails if any of them is refused.
    async fn submit(&self, numbers: &[usize]) -> BenchResult {
        let items: Vec<String> = numbers.iter().map(|number| self.submission(*number)).collect();
        let (url, kind) = match items.len() {
            1 => (self.url.clone(), "application/json"),
            _ => (format!("{}/batch", self.url), "application/x-ndjson"),
        };
        let mut response = self.http.post(url).content_type(kind).send_body(items.join("\n")).await?;
        let body = response.body().limit(MAX_RESPONSE_BYTES).await?;
        let refused = response.status() != 200 || body.windows(REFUSED.len()).any(|found| found == REFUSED);
        if refused {
            return Err(format!("{}: {}", response.status(), String::from_utf8_lossy(&body)).into());
        }
        Ok(())
    }
}
