//! Which intent a gateway's message id belongs to.
//!
//! An index of ids that come in no order would touch a page of its own for each; so entries stand in
//! buckets of intents that came together, and a search looks into all of them: at ten million intents
//! some ten thousand quick looks.

use rusqlite::{Connection, Transaction, params};
use sha2::{Digest, Sha256};

use super::read;
use crate::core::intent::{Intent, IntentSeq};
use crate::store::MOST_SHARING;

/// Intents of one bucket, as a power of two.
const BUCKET_BITS: u32 = 10;

fn hash(message_id: &str) -> i64 {
    let digest = Sha256::digest(message_id.as_bytes());
    digest.iter().take(4).fold(0, |hash, byte| hash << 8 | i64::from(*byte))
}

pub fn keep(transaction: &Transaction<'_>, message_id: &str, seq: IntentSeq) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("INSERT OR IGNORE INTO submission_gateway_messages VALUES (?1, ?2, ?3)")?
        .execute(params![seq.0 >> BUCKET_BITS, hash(message_id), seq.0])?;
    Ok(())
}

/// Of one bucket, which is read as a whole: once for all of its intents, whose numbers are given as a JSON array.
pub const FORGET: &str = "DELETE FROM submission_gateway_messages
    WHERE bucket = ?1 AND intent_seq IN (SELECT value FROM json_each(?2))";

/// Forgets the message ids of intents, given in the order of their numbers.
pub fn forget(transaction: &Transaction<'_>, intents: &[i64]) -> Result<(), rusqlite::Error> {
    let bucket_of = |seq: &i64| seq >> BUCKET_BITS;
    for bucket in intents.chunk_by(|one, next| bucket_of(one) == bucket_of(next)) {
        let Some(number) = bucket.first().map(bucket_of) else { continue };
        transaction.prepare_cached(FORGET)?.execute(params![number, format!("{bucket:?}")])?;
    }
    Ok(())
}

/// The latest intents to which a gateway gave this id.
pub fn find(snapshot: &Connection, message_id: &str) -> Result<Vec<Intent>, rusqlite::Error> {
    let newest: Option<i64> =
        snapshot.query_row("SELECT max(bucket) FROM submission_gateway_messages", [], |row| row.get(0))?;
    let oldest: Option<i64> =
        snapshot.query_row("SELECT min(bucket) FROM submission_gateway_messages", [], |row| row.get(0))?;
    let (Some(newest), Some(oldest)) = (newest, oldest) else { return Ok(Vec::new()) };
    let hash = hash(message_id);
    let mut look = snapshot.prepare_cached(
        "SELECT intent_seq FROM submission_gateway_messages WHERE bucket = ?1 AND hash = ?2 ORDER BY intent_seq DESC",
    )?;
    // Others may share the hash.
    let sql = format!(
        "SELECT {} FROM {} WHERE i.intent_seq = ?1 AND EXISTS (SELECT 1 FROM submission_attempts a
             WHERE a.intent_seq = i.intent_seq AND a.gateway_message_id = ?2)",
        read::INTENT_COLUMNS,
        read::INTENT_TABLES
    );
    let mut verify = snapshot.prepare_cached(&sql)?;
    let mut found = Vec::new();
    for bucket in (oldest..=newest).rev() {
        let candidates: Vec<i64> = look.query_map([bucket, hash], |row| row.get(0))?.collect::<Result<_, _>>()?;
        for seq in candidates {
            let intents = verify.query_map(params![seq, message_id], read::intent_of)?;
            found.extend(intents.collect::<Result<Vec<_>, _>>()?);
        }
        if found.len() >= MOST_SHARING {
            found.truncate(MOST_SHARING);
            break;
        }
    }
    Ok(found)
}
