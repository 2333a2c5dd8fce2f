//! Measures what a server can do without the service: one connection writes the rows of intents that are accepted on
//! their first attempt, as fast as possible.
//!
//! Each batch needs two transactions, as the service needs at least: one inserts the intents with their attempts
//! started, the other ends them. Both lock the clock's row first, as the service does.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::error::BenchResult;
use super::{Server, number, run};
use crate::platform::clock::monotonic;

/// Inserts intents. Its values are the ids as JSON, the payload, and the hash of the payload, which all intents share.
const TAKE_IN: &str = "
BEGIN TRANSACTION;
UPDATE submission_clock SET last_at = SYSUTCDATETIME();
INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload, payload_sha256, status, attempt_count,
    open_lease_epoch, open_started_at, created_at, last_modified_at)
OUTPUT inserted.intent_seq
SELECT j.id, 1, 1, @P2, @P3, 'pending', 1, 1, SYSUTCDATETIME(), SYSUTCDATETIME(), SYSUTCDATETIME()
FROM OPENJSON(@P1) WITH (id NVARCHAR(400)) AS j;
COMMIT TRANSACTION;";

/// Ends intents. Its value is JSON with the numbers of the intents and their gateway message ids.
const END: &str = "
BEGIN TRANSACTION;
UPDATE submission_clock SET last_at = SYSUTCDATETIME();
INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at, outcome_status,
    gateway_message_id)
SELECT j.seq, 1, 1, SYSUTCDATETIME(), SYSUTCDATETIME(), 'accepted', j.message
FROM OPENJSON(@P1) WITH (seq BIGINT, message NVARCHAR(400)) AS j;
INSERT INTO submission_gateway_messages (gateway_message_id, intent_seq)
SELECT j.message, j.seq FROM OPENJSON(@P1) WITH (seq BIGINT, message NVARCHAR(400)) AS j;
UPDATE submission_intents SET status = 'accepted', completed_at = SYSUTCDATETIME(), open_lease_epoch = NULL,
    open_started_at = NULL, last_modified_at = SYSUTCDATETIME()
WHERE intent_seq IN (SELECT seq FROM OPENJSON(@P1) WITH (seq BIGINT));
COMMIT TRANSACTION;";

/// Returns intents per second with `rows` intents in each batch.
pub(crate) async fn measure(server: &Server, payload: usize, rows: usize, span: Duration) -> BenchResult<f64> {
    let database = server.create().await?;
    let mut client = database.connect().await?;
    let payload = vec![b'x'; payload];
    let hash = Sha256::digest(&payload).to_vec();
    let random = || format!("{:016x}", fastrand::u64(..));
    let (began, mut ended) = (monotonic(), 0);
    while monotonic().duration_since(began) < span {
        let ids = Value::Array((0..rows).map(|_| json!({ "id": random() })).collect());
        let taken_in = run(&mut client, TAKE_IN, &[&ids.to_string(), &payload, &hash]).await?;
        let seqs = taken_in.iter().filter_map(|row| number(row, "intent_seq"));
        let ends = Value::Array(seqs.map(|seq| json!({ "seq": seq, "message": random() })).collect());
        run(&mut client, END, &[&ends.to_string()]).await?;
        ended += taken_in.len();
    }
    Ok(ended as f64 / monotonic().duration_since(began).as_secs_f64())
}

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 2] = [TAKE_IN, END];
