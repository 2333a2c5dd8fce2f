//! Index of gateway message ids: which intent a gateway's message id belongs to.
//!
//! Message ids come in no order, so an ordinary index would touch another page for each of them. The entries are therefore
//! grouped into buckets of intents that were submitted together, and a search looks into every bucket. At ten million
//! intents those are about ten thousand fast look-ups.

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, params, params_from_iter};
use sha2::{Digest, Sha256};

use super::filters::Filters;
use super::read;
use crate::domain::intent::{Intent, IntentSeq};

/// Intents of one bucket, as a power of two.
const BUCKET_BITS: u32 = 10;

fn hash(message_id: &str) -> i64 {
    let digest = Sha256::digest(message_id.as_bytes());
    digest.iter().take(4).fold(0, |hash, byte| hash << 8 | i64::from(*byte))
}

/// Adds the message id of an intent.
pub(super) fn insert(transaction: &Transaction<'_>, message_id: &str, seq: IntentSeq) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("INSERT OR IGNORE INTO submission_gateway_messages VALUES (?1, ?2, ?3)")?
        .execute(params![seq.0 >> BUCKET_BITS, hash(message_id), seq.0])?;
    Ok(())
}

/// Deletes the entries of intents of one bucket. The bucket is read once for all of them; their numbers are a JSON array.
pub(super) const DELETE: &str = "DELETE FROM submission_gateway_messages
    WHERE bucket = ?1 AND intent_seq IN (SELECT value FROM json_each(?2))";

/// Deletes the message ids of intents. The intents must be in the order of their numbers.
pub(super) fn delete(transaction: &Transaction<'_>, intents: &[i64]) -> Result<(), rusqlite::Error> {
    let bucket_of = |seq: &i64| seq >> BUCKET_BITS;
    for bucket in intents.chunk_by(|one, next| bucket_of(one) == bucket_of(next)) {
        let Some(number) = bucket.first().map(bucket_of) else { continue };
        transaction.prepare_cached(DELETE)?.execute(params![number, format!("{bucket:?}")])?;
    }
    Ok(())
}

/// An SQL condition on an intent `i`: a gateway gave it this message id, so [`find`] finds it. The second part is needed
/// because other message ids may have the same hash.
pub(super) const HAS_MESSAGE: &str = "(EXISTS (SELECT 1 FROM submission_gateway_messages m
        WHERE m.bucket = i.intent_seq >> ? AND m.hash = ? AND m.intent_seq = i.intent_seq)
    AND EXISTS (SELECT 1 FROM submission_attempts a
        WHERE a.intent_seq = i.intent_seq AND a.gateway_message_id = ?))";

/// Returns the parameters of [`HAS_MESSAGE`].
pub(super) fn has_message(message_id: &str) -> [Value; 3] {
    [Value::Integer(BUCKET_BITS.into()), Value::Integer(hash(message_id)), Value::Text(message_id.to_owned())]
}

/// The first and the last bucket, in two subqueries: SQLite finds one end in the index, but scans the table if one query asks
/// for both.
pub(super) const BUCKETS: &str = "SELECT (SELECT min(bucket) FROM submission_gateway_messages),
    (SELECT max(bucket) FROM submission_gateway_messages)";

/// Returns up to `wanted` intents with numbers below `before` to which a gateway gave this message id and that pass the
/// filters, newest first. Also returns the last intent that was examined, if the search did not come to the end.
pub(super) fn find(
    snapshot: &Connection,
    message_id: &str,
    before: i64,
    filters: &Filters,
    wanted: usize,
) -> Result<(Vec<Intent>, Option<Intent>), rusqlite::Error> {
    let ends = snapshot.prepare_cached(BUCKETS)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(oldest), Some(newest)): (Option<i64>, Option<i64>) = ends else { return Ok((Vec::new(), None)) };
    let newest = newest.min(before.saturating_sub(1) >> BUCKET_BITS);
    let mut candidates = snapshot.prepare_cached(
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
        let seqs = candidates.query_map([bucket, hash(message_id), before], |row| row.get(0))?;
        for seq in seqs.collect::<Result<Vec<i64>, _>>()? {
            let mut values = has_message(message_id).to_vec();
            values.extend(filters.values());
            values.push(Value::Integer(seq));
            let (intent, passes) = verify.query_row(params_from_iter(values), |row| {
                Ok((read::intent_of(row)?, row.get::<_, bool>(read::INTENT_WIDTH)?))
            })?;
            examined += 1;
            if passes {
                found.push(intent.clone());
            }
            if found.len() >= wanted {
                return Ok((found, None));
            }
            if examined >= read::MAX_EXAMINED {
                return Ok((found, Some(intent)));
            }
        }
    }
    Ok((found, None))
}
