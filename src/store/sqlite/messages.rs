//! Which intent a gateway's message id belongs to.
//!
//! An index of ids that come in no order would touch a page of its own for each; so entries stand in
//! buckets of intents that came together, and a search looks into all of them: at ten million intents
//! some ten thousand quick looks.

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, params, params_from_iter};
use sha2::{Digest, Sha256};

use super::read::{self, Filters};
use crate::domain::intent::{Intent, IntentSeq};

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

/// A condition on an intent `i`: a gateway gave it this id, and [`find`] finds it by that. Others may share the hash.
pub const HAS_MESSAGE: &str = "(EXISTS (SELECT 1 FROM submission_gateway_messages m
        WHERE m.bucket = i.intent_seq >> ? AND m.hash = ? AND m.intent_seq = i.intent_seq)
    AND EXISTS (SELECT 1 FROM submission_attempts a
        WHERE a.intent_seq = i.intent_seq AND a.gateway_message_id = ?))";

/// The values of [`HAS_MESSAGE`].
pub fn has_message(message_id: &str) -> [Value; 3] {
    [Value::Integer(BUCKET_BITS.into()), Value::Integer(hash(message_id)), Value::Text(message_id.to_owned())]
}

/// Intents before this number to which a gateway gave this id and that pass the filters, newest first, at most so many;
/// and up to which was looked, if that is not all.
pub fn find(
    snapshot: &Connection,
    message_id: &str,
    before: i64,
    filters: &Filters,
    wanted: usize,
) -> Result<(Vec<Intent>, Option<Intent>), rusqlite::Error> {
    let ends = "SELECT min(bucket), max(bucket) FROM submission_gateway_messages";
    let ends = snapshot.prepare_cached(ends)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(oldest), Some(newest)): (Option<i64>, Option<i64>) = ends else { return Ok((Vec::new(), None)) };
    let newest = newest.min(before.saturating_sub(1) >> BUCKET_BITS);
    let mut look = snapshot.prepare_cached(
        "SELECT intent_seq FROM submission_gateway_messages WHERE bucket = ?1 AND hash = ?2 AND intent_seq < ?3
         ORDER BY intent_seq DESC",
    )?;
    let sql = format!(
        "SELECT {}, {HAS_MESSAGE} AND {} FROM {} WHERE i.intent_seq = ?",
        read::INTENT_COLUMNS,
        filters.sql(),
        read::INTENT_TABLES
    );
    let mut verify = snapshot.prepare_cached(&sql)?;
    let (mut found, mut examined) = (Vec::new(), 0);
    for bucket in (oldest..=newest).rev() {
        let candidates = look.query_map([bucket, hash(message_id), before], |row| row.get(0))?;
        for seq in candidates.collect::<Result<Vec<i64>, _>>()? {
            let mut values = has_message(message_id).to_vec();
            values.extend(filters.values.iter().cloned());
            values.push(Value::Integer(seq));
            let (intent, passes) = verify
                .query_row(params_from_iter(values), |row| Ok((read::intent_of(row)?, row.get::<_, bool>(10)?)))?;
            examined += 1;
            if passes {
                found.push(intent.clone());
            }
            if found.len() >= wanted {
                return Ok((found, None));
            }
            if examined >= read::EXAMINED {
                return Ok((found, Some(intent)));
            }
        }
    }
    Ok((found, None))
}
