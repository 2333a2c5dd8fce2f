//! Deletes old terminal intents on SQL Server, a few in each transaction.

use super::database::{Batch, Database};
use super::read::{need_first, set};
use super::rows;
use super::script::{Fence, Values};
use super::statements::TICK;
use crate::domain::intent::IntentSeq;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::platform::clock::monotonic;
use crate::store::{PurgeCursor, PurgeRequest, Purged, StoreError};

/// Builds the batch of one transaction of a purge. It examines the oldest terminal intents after the cursor, keeps
/// those with a pending webhook event, and deletes the others. Every deletion uses the first column of a primary key.
pub(super) fn batch(term: &Term, request: &PurgeRequest) -> Batch {
    const DOOMED: &str = "SELECT o.intent_seq FROM @old AS o WHERE o.owed = 0";
    let after = request.after.unwrap_or(PurgeCursor { ended_at: Timestamp::from_micros(0), seq: IntentSeq(0) });
    let mut values = Values::default();
    let Fence { sql: fence, .. } = values.fence(term);
    // DATEADD takes an INT.
    let age = values.number(-i64::from(i32::try_from(request.older_than.as_secs()).unwrap_or(i32::MAX)));
    let limit = values.count(request.limit);
    let (at, seq) = (values.moment(after.ended_at), values.number(after.seq.0));
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @held BIGINT = 0, @deleted BIGINT = 0, @last_at DATETIME2(6), @last_seq BIGINT;
DECLARE @old TABLE (intent_seq BIGINT NOT NULL PRIMARY KEY, ended_at DATETIME2(6) NOT NULL, owed BIGINT NOT NULL);
BEGIN TRANSACTION;{fence}{TICK}
IF @held = 1
BEGIN
    INSERT INTO @old (intent_seq, ended_at, owed)
    SELECT TOP ({limit}) i.intent_seq, i.last_modified_at, CASE WHEN EXISTS (SELECT 1 FROM submission_webhook_events AS w
        WHERE w.intent_seq = i.intent_seq AND w.status = 'pending') THEN 1 ELSE 0 END
    FROM submission_intents AS i
    WHERE i.completed_at < DATEADD(SECOND, {age}, @now) AND i.last_modified_at < DATEADD(SECOND, {age}, @now)
        AND i.last_modified_at >= {at} AND (i.last_modified_at > {at} OR i.intent_seq > {seq})
    ORDER BY i.last_modified_at, i.intent_seq;
    DELETE FROM submission_jobs WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_traces WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_intent_options WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_gateway_messages WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_webhook_tries WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_webhook_events WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_attempts WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_intents WHERE intent_seq IN ({DOOMED});
    SET @deleted = @@ROWCOUNT;
    SELECT TOP (1) @last_at = o.ended_at, @last_seq = o.intent_seq FROM @old AS o WHERE o.owed = 0
    ORDER BY o.ended_at DESC, o.intent_seq DESC;
    UPDATE submission_feed_start SET ended_at = @last_at, intent_seq = @last_seq
    WHERE ended_at < @last_at OR (ended_at = @last_at AND intent_seq < @last_seq);
END;
COMMIT TRANSACTION;
SELECT @held AS held, @deleted AS deleted, (SELECT COUNT_BIG(*) FROM @old) AS examined;
SELECT TOP (1) o.intent_seq, o.ended_at FROM @old AS o ORDER BY o.ended_at DESC, o.intent_seq DESC;"
    ))
}

pub(super) async fn purge(
    database: &Database,
    term: Term,
    request: PurgeRequest,
) -> Result<Option<Purged>, StoreError> {
    let started = monotonic();
    let results = database.run(batch(&term, &request)).await?;
    let took = monotonic().duration_since(started);
    let row = need_first(&results)?;
    if rows::need::<i64>(row, "held")? != 1 {
        return Ok(None);
    }
    let count = |name| rows::need::<i64>(row, name).map(|count| usize::try_from(count).unwrap_or(0));
    let (intents, examined) = (count("deleted")?, count("examined")?);
    let last = set(&results, 1).first().filter(|_| examined >= request.limit);
    let next = last.map(|row| {
        let (ended_at, seq) = (rows::need_moment(row, "ended_at")?, rows::need(row, "intent_seq")?);
        Ok::<_, StoreError>(PurgeCursor { ended_at, seq: IntentSeq(seq) })
    });
    Ok(Some(Purged { intents, next: next.transpose()?, took }))
}
