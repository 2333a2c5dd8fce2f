//! Fills a database with intents before a run, so that it looks as if they had been submitted one by one.

use sha2::{Digest, Sha256};
use tiberius::ToSql;

use super::super::error::BenchResult;
use super::super::service::Fill;
use super::{BenchDatabase, number, run};
use crate::domain::contract::ContractSnapshot;
use crate::store::sqlserver::Tds;

/// Rows in one statement: as many numbers as five digits have, so that the log of a statement stays small.
const STEP: u64 = 100_000;
/// Payload bytes of each intent.
const PAYLOAD: usize = 200;

/// Inserts the contract of all intents. The service finds it by its hash.
const CONTRACT: &str = "
INSERT INTO submission_gateways (url_sha256, gateway_url) VALUES (@P1, @P2);
INSERT INTO submission_contracts (snapshot_sha256, gateway_id, submission_target, snapshot)
SELECT @P3, gateway_id, @P4, @P5 FROM submission_gateways;
SELECT contract_id, gateway_id FROM submission_contracts;";

/// All numbers of one step, starting at the first parameter.
const NUMBERS: &str = "
SELECT @P1 + a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS i
FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS a (d)
CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS b (d)
CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS c (d)
CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS d (d)
CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS e (d)";

const ATTEMPTS: &str = "
INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at, outcome_status,
    gateway_message_id)
SELECT intent_seq, 1, 1, created_at, completed_at, 'accepted', intent_id FROM submission_intents
WHERE intent_seq > @P1 AND intent_seq <= @P2 AND status = 'accepted';
INSERT INTO submission_gateway_messages (gateway_message_id, intent_seq)
SELECT intent_id, intent_seq FROM submission_intents
WHERE intent_seq > @P1 AND intent_seq <= @P2 AND status = 'accepted';";

const LAST: &str = "SELECT COALESCE(MAX(intent_seq), 0) AS last FROM submission_intents;";

/// Builds the statement that inserts intents. Their ids begin with eight hexadecimal digits that are spread evenly and
/// in no order, like the ids of clients.
fn intents() -> String {
    let digit = |place: u32| {
        format!("SUBSTRING('0123456789abcdef', CAST(n.spread / {} % 16 AS INT) + 1, 1)", 16_u32.pow(place))
    };
    let digits: Vec<_> = (0..8).rev().map(digit).collect();
    format!(
        "
INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload, payload_sha256, status, attempt_count,
    next_attempt_at, created_at, completed_at, last_modified_at)
SELECT {} + '-old-' + CAST(n.i AS VARCHAR(20)), @P4, @P5, @P6, @P7,
    CASE WHEN n.i < @P3 THEN 'accepted' ELSE 'pending' END, CASE WHEN n.i < @P3 THEN 1 ELSE 0 END,
    CASE WHEN n.i < @P3 THEN NULL ELSE DATEADD(DAY, 1, SYSUTCDATETIME()) END, DATEADD(DAY, -1, SYSUTCDATETIME()),
    CASE WHEN n.i < @P3 THEN DATEADD(DAY, -1, SYSUTCDATETIME()) ELSE NULL END, DATEADD(DAY, -1, SYSUTCDATETIME())
FROM (SELECT k.i, k.i * CAST(2654435761 AS BIGINT) % CAST(4294967296 AS BIGINT) AS spread
    FROM ({NUMBERS}) AS k WHERE k.i < @P2) AS n;",
        digits.join("\n    + ")
    )
}

pub(crate) async fn fill(database: &BenchDatabase, fill: &Fill, contract: &ContractSnapshot) -> BenchResult {
    let total = fill.total();
    if total == 0 {
        return Ok(());
    }
    let mut client = database.connect().await?;
    let (contract_id, gateway_id) = keep_contract(&mut client, contract).await?;
    let (finished, payload) = (signed(fill.finished), vec![b'x'; PAYLOAD]);
    let hash = Sha256::digest(&payload).to_vec();
    let intents = intents();
    let (mut from, mut last) = (0, 0);
    while from < total {
        let to = (from + STEP).min(total);
        eprint!("\r\x1b[K  filling the store: {from} of {total}");
        let (first, behind) = (signed(from), signed(to));
        let values: [&dyn ToSql; 7] = [&first, &behind, &finished, &contract_id, &gateway_id, &payload, &hash];
        run(&mut client, &intents, &values).await?;
        let before = last;
        last = run(&mut client, LAST, &[]).await?.first().and_then(|row| number(row, "last")).unwrap_or(before);
        run(&mut client, ATTEMPTS, &[&before, &last]).await?;
        from = to;
    }
    eprintln!("\r\x1b[K  the store holds {} finished and {} waiting intents", fill.finished, fill.waiting);
    Ok(())
}

#[cfg(test)]
pub(super) fn statements() -> [String; 4] {
    [CONTRACT.to_owned(), intents(), ATTEMPTS.to_owned(), LAST.to_owned()]
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Inserts a contract into an empty database. Returns its number and the number of its gateway.
pub(super) async fn keep_contract(client: &mut Tds, snapshot: &ContractSnapshot) -> BenchResult<(i64, i64)> {
    let contract = &snapshot.contract;
    let hash = |text: &str| Sha256::digest(text.as_bytes()).to_vec();
    let (url, target) = (contract.gateway_url.as_str(), contract.target.as_str());
    let json: &str = &snapshot.json;
    let values: [&dyn ToSql; 5] = [&hash(url), &url, &hash(json), &target, &json];
    let rows = run(client, CONTRACT, &values).await?;
    let row = rows.first().ok_or("the contract that was just inserted is missing")?;
    number(row, "contract_id").zip(number(row, "gateway_id")).ok_or_else(|| "the contract has no number".into())
}
