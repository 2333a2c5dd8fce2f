//! Fills a SQLite store with finished and waiting intents before a run, so that it looks as if they had been submitted one by
//! one.

use std::path::Path;

use rusqlite::{Connection, params};

use super::error::BenchResult;
use super::service::Fill;
use crate::domain::contract::ContractSnapshot;
use crate::domain::outcome::cause_of_error;
use crate::platform::clock::WallClock;
use crate::store::sqlite::SqliteStore;

/// Intents in one statement, so that its journal stays small.
const STEP: u64 = 100_000;
const DAY_MICROS: i64 = 24 * 3600 * 1_000_000;

/// Creates the store and fills it.
pub(super) fn fill(path: &Path, fill: &Fill, contract: &ContractSnapshot) -> BenchResult {
    SqliteStore::migrate(path)?;
    if fill.total() == 0 {
        return Ok(());
    }
    let connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; PRAGMA foreign_keys = OFF;")?;
    insert_contract(&connection, contract)?;
    let now = WallClock::system().now().micros();
    let total = fill.total();
    let mut from = 0;
    while from < total {
        let to = (from + STEP).min(total);
        eprint!("\r\x1b[K  filling the store: {from} of {total}");
        // Ids are spread evenly over the range of all ids. The first three quarters are inserted in order, which is fast. The
        // others are inserted between them, so that the pages of the index are about two thirds full, as they are after
        // insertions in random order. Full pages would have to be split by the next insertion.
        let spread = i64::MAX / i64::try_from(total + 16).unwrap_or(i64::MAX);
        let first_come = i64::try_from(total / 4 * 3).unwrap_or(i64::MAX);
        let intents = "
            WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
            INSERT INTO submission_intents (intent_seq, intent_id, contract_id, gateway_id, payload_sha256, status,
                exhausted_reason, attempt_count, next_attempt_at, created_at, completed_at, last_modified_at)
            SELECT i + 1, printf('%016x-old-%d', iif(i < ?7, i + i / 3, (i - ?7) * 4 + 3) * ?3, i), 1, 1, zeroblob(32),
                CASE WHEN i < ?8 THEN 'exhausted' WHEN i < ?4 THEN 'accepted' ELSE 'pending' END,
                iif(i < ?8, 'max_attempts', NULL), i < ?4, iif(i < ?4, NULL, ?5 + ?6 + i), ?5 - ?6,
                iif(i < ?4, ?5 - ?6, NULL), ?5 - ?6 FROM n";
        let failed = i64::try_from(fill.failed).unwrap_or(i64::MAX);
        let ended = i64::try_from(fill.failed + fill.finished).unwrap_or(i64::MAX);
        let (first, behind) = (i64::try_from(from).unwrap_or(0), i64::try_from(to).unwrap_or(0));
        connection.execute(intents, params![first, behind, spread, ended, now, DAY_MICROS, first_come, failed])?;
        connection.execute(
            "INSERT INTO submission_payloads SELECT intent_seq, zeroblob(200) FROM submission_intents
                 WHERE intent_seq > ?1 AND intent_seq <= ?2",
            params![first, behind],
        )?;
        connection.execute(
            "INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at,
                    outcome_status, error, gateway_message_id)
                 SELECT intent_seq, 1, 1, created_at, completed_at, iif(status = 'accepted', 'accepted', NULL),
                    iif(status = 'accepted', NULL, 'gateway answered HTTP 500'), iif(status = 'accepted', 'bench', NULL)
                 FROM submission_intents WHERE intent_seq > ?1 AND intent_seq <= ?2 AND status <> 'pending'",
            params![first, behind],
        )?;
        // The hashes are random, because only their number matters.
        connection.execute(
            "INSERT INTO submission_gateway_messages
                 SELECT intent_seq >> 10, random() & 4294967295, intent_seq FROM submission_intents
                 WHERE intent_seq > ?1 AND intent_seq <= ?2 AND status = 'accepted'",
            params![first, behind],
        )?;
        from = to;
    }
    if fill.failed > 0 {
        count_failures(&connection, fill.failed, now)?;
    }
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE);")?;
    // Everything is on disk before anything is measured.
    std::fs::File::open(path).and_then(|file| file.sync_all())?;
    let Fill { finished, failed, waiting, .. } = fill;
    eprintln!("\r\x1b[K  the store has {finished} finished, {failed} failed and {waiting} waiting intents");
    Ok(())
}

/// Causes of the failed intents, as errors of their attempts. The gateway is known not to have accepted any of them, so that
/// redrives leave none out.
const FAILED: [&str; 5] = [
    "gateway answered HTTP 503: try later",
    "gateway answered HTTP 500: <html>",
    "not sent: cannot connect to the gateway: Connection refused",
    "gateway answered HTTP 429",
    "gateway answered with unknown status \"queued\"",
];

/// Gives the failed intents several causes, and counts them in the minutes of the last day.
fn count_failures(connection: &Connection, failed: u64, now: i64) -> Result<(), rusqlite::Error> {
    let failed = i64::try_from(failed).unwrap_or(i64::MAX);
    for (number, error) in FAILED.iter().enumerate() {
        let number = i64::try_from(number).unwrap_or(0);
        let kinds = i64::try_from(FAILED.len()).unwrap_or(1);
        // The failed intents have the first numbers.
        connection.execute(
            "UPDATE submission_attempts SET error = ?1 WHERE intent_seq <= ?2 AND intent_seq % ?3 = ?4",
            params![error, failed, kinds, number],
        )?;
        connection.execute(
            "WITH RECURSIVE m (back) AS (SELECT 0 UNION ALL SELECT back + 1 FROM m WHERE back < 1439)
             INSERT INTO submission_minutes (minute, contract_id, outcome, cause, status, attempts, micros)
             SELECT ?1 - back, 1, 'error', ?2, 'exhausted', max(?3 / 1440 / ?4, 1), 1000 FROM m",
            params![now / 60_000_000, cause_of_error(error), failed, kinds],
        )?;
    }
    Ok(())
}

/// Inserts the contract that all these intents have.
fn insert_contract(connection: &Connection, snapshot: &ContractSnapshot) -> Result<(), rusqlite::Error> {
    let (url, target) = (snapshot.contract.gateway_url.as_str(), snapshot.contract.target.as_str());
    connection.execute("INSERT INTO submission_gateways (gateway_id, gateway_url) VALUES (1, ?1)", [url])?;
    let contract = "INSERT INTO submission_contracts (contract_id, gateway_id, submission_target, snapshot)
        VALUES (1, 1, ?1, ?2)";
    connection.execute(contract, params![target, &*snapshot.json]).map(drop)
}
