//! Measures what this machine can do with the same libraries but without the service: each part of a submission on its own,
//! as fast as possible.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use futures_util::future::join_all;
use rusqlite::{Connection, params};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::clients::{self, Load, Pace};
use super::error::{BenchResult, Step};
use super::gateway::BenchGateway;
use super::sqlserver::{self, Server};
use crate::platform::clock::monotonic;
use crate::store::sqlite::{OpenError, SqliteStore};

/// How long each part is measured.
const DURATION: Duration = Duration::from_secs(4);
/// Intents in one commit: the default number of clients, who all wait for the commit.
const ROWS: usize = 64;

/// The results, in intents per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceilings {
    /// actix-web receives JSON and responds with JSON.
    pub http_in: f64,
    /// awc sends the payload to a gateway and reads the response.
    pub http_out: f64,
    /// SQLite commits the rows of accepted intents in groups, and syncs each commit; or one connection does so on a SQL
    /// Server.
    pub store: f64,
}

impl Ceilings {
    /// Measures all three parts, with the kind of store that the service is measured with: a file below `parent`, or a server.
    pub(super) async fn measure(
        payload: usize,
        clients: usize,
        parent: Option<&Path>,
        server: Option<&Server>,
    ) -> BenchResult<Self> {
        eprintln!("measuring ceilings: what this machine can do without the service");
        let http_in = http_in(payload, clients).await?;
        let http_out = http_out(payload, clients).await?;
        if let Some(server) = server {
            let store = sqlserver::measure_ceiling(server, payload, ROWS, DURATION).await;
            let store = store.step(|| "cannot measure the server")?;
            return Ok(Self { http_in, http_out, store });
        }
        let directory = match parent {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }?;
        let path = directory.path().join("ceiling.db");
        let store = tokio::task::spawn_blocking(move || store(&path, payload)).await??;
        Ok(Self { http_in, http_out, store })
    }

    /// The rate if the machine does all three parts for every intent, one after the other.
    pub(super) fn composed(&self) -> f64 {
        1.0 / (1.0 / self.http_in + 1.0 / self.http_out + 1.0 / self.store)
    }

    /// The ratio of an achieved rate to the composed rate.
    pub(super) fn ratio(&self, achieved: f64) -> f64 {
        achieved / self.composed()
    }
}

impl fmt::Display for Ceilings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { http_in, http_out, store } = self;
        let composed = self.composed();
        writeln!(
            f,
            "ceilings, per second: in {http_in:.0}, out {http_out:.0}, store {store:.0}; composed {composed:.0}"
        )
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Submission<'a> {
    #[serde(borrow)]
    intent_id: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    submission_target: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

async fn http_in(payload: usize, clients: usize) -> BenchResult<f64> {
    let answer = |body: web::Bytes| async move {
        match serde_json::from_slice::<Submission<'_>>(&body) {
            Ok(submission) => HttpResponse::Ok().json(serde_json::json!({
                "intentId": submission.intent_id, "submissionTarget": submission.submission_target,
                "createdAt": "2026-11-16T09:00:00.000000Z", "status": "pending",
                "bytes": submission.payload.map(|raw| raw.get().len()),
            })),
            Err(_) => HttpResponse::BadRequest().finish(),
        }
    };
    let server = HttpServer::new(move || App::new().route("/v1/intents", web::post().to(answer)))
        .workers(crate::web::workers())
        .disable_signals()
        .shutdown_timeout(0)
        .bind("127.0.0.1:0")?;
    let url = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let handle = server.handle();
    actix::spawn(server);
    let targets = vec!["ceiling".to_owned()];
    let load = Load { url, targets, pace: Pace::Closed { clients }, payload, batch: 1, duration: DURATION };
    let submitted = clients::drive(load, |_| ()).await?;
    handle.stop(false).await;
    Ok(submitted.rate())
}

async fn http_out(payload: usize, clients: usize) -> BenchResult<f64> {
    let gateway = BenchGateway::start(Duration::ZERO, 0)?;
    let client = awc::Client::builder().connector(awc::Connector::new().limit(0)).finish();
    let (body, url) = (web::Bytes::from("x".repeat(payload)), format!("{}/sms/send", gateway.url));
    let began = monotonic();
    let calls = join_all((0..clients).map(|_| {
        let (client, body, url) = (client.clone(), body.clone(), url.clone());
        async move {
            let mut calls = 0_usize;
            while monotonic().duration_since(began) < DURATION {
                let request = client.post(&url).content_type("application/json").send_body(body.clone());
                let mut response = request.await?;
                response.body().await?;
                calls += 1;
            }
            Ok::<_, Box<dyn Error>>(calls)
        }
    }))
    .await;
    let calls: usize = calls.into_iter().sum::<Result<_, _>>()?;
    let rate = calls as f64 / monotonic().duration_since(began).as_secs_f64();
    gateway.stop().await;
    Ok(rate)
}

/// SQLite could not be measured.
#[derive(Debug, thiserror::Error)]
enum NotMeasured {
    #[error("cannot create the store")]
    Open(#[from] OpenError),
    #[error("cannot write to SQLite")]
    Write(#[from] rusqlite::Error),
}

/// Inserts the rows that intents have after they were accepted on their first attempt.
fn store(path: &Path, payload: usize) -> Result<f64, NotMeasured> {
    SqliteStore::migrate(path)?;
    let mut connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;
         INSERT INTO submission_gateways (gateway_id, gateway_url) VALUES (1, 'http://gateway');
         INSERT INTO submission_contracts (contract_id, gateway_id, submission_target, snapshot) VALUES (1, 1, 'a', '{}');",
    )?;
    let payload = vec![b'x'; payload];
    let (began, mut rows) = (monotonic(), 0_usize);
    while monotonic().duration_since(began) < DURATION {
        let transaction = connection.transaction()?;
        for _ in 0..ROWS {
            rows += 1;
            let id = format!("{:016x}-{rows}", fastrand::u64(..));
            let at = i64::try_from(rows).unwrap_or(i64::MAX);
            transaction
                .prepare_cached(
                    "INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload_sha256, status,
                         attempt_count, created_at, completed_at, last_modified_at)
                     VALUES (?1, 1, 1, zeroblob(32), 'accepted', 1, ?2, ?2, ?2)",
                )?
                .execute(params![id, at])?;
            transaction
                .prepare_cached("INSERT INTO submission_payloads (intent_seq, payload) VALUES (?1, ?2)")?
                .execute(params![at, payload])?;
            transaction
                .prepare_cached(
                    "INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at,
                         finished_at, outcome_status, gateway_message_id) VALUES (?1, 1, 1, ?1, ?1, 'accepted', 'bench')",
                )?
                .execute(params![at])?;
        }
        transaction.commit()?;
    }
    Ok(rows as f64 / monotonic().duration_since(began).as_secs_f64())
}
