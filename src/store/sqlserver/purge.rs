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
    let after = request.after.unwrap_or(PurgeCursor { completed_at: Timestamp::from_micros(0), seq: IntentSeq(0) });
    let mut values = Values::default();
    let Fence { sql: fence, .. } = values.fence(term);
    // DATEADD takes an INT.
    let age = values.number(-i64::from(i32::try_from(request.older_than.as_secs()).unwrap_or(i32::MAX)));
    let limit = values.count(request.limit);
    let (at, seq) = (values.moment(after.completed_at), values.number(after.seq.0));
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @held BIGINT = 0, @deleted BIGINT = 0;
DECLARE @old TABLE (intent_seq BIGINT NOT NULL PRIMARY KEY, completed_at DATETIME2(6) NOT NULL, owed BIGINT NOT NULL);
BEGIN TRANSACTION;{fence}{TICK}
IF @held = 1
BEGIN
    INSERT INTO @old (intent_seq, completed_at, owed)
    SELECT TOP ({limit}) i.intent_seq, i.completed_at, CASE WHEN EXISTS (SELECT 1 FROM submission_webhook_events AS w
        WHERE w.intent_seq = i.intent_seq AND w.status = 'pending') THEN 1 ELSE 0 END
    FROM submission_intents AS i
    WHERE i.completed_at < DATEADD(SECOND, {age}, @now) AND i.completed_at >= {at}
        AND (i.completed_at > {at} OR i.intent_seq > {seq})
    ORDER BY i.completed_at, i.intent_seq;
    DELETE FROM submission_jobs WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_traces WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_intent_options WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_gateway_messages WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_webhook_tries WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_webhook_events WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_attempts WHERE intent_seq IN ({DOOMED});
    DELETE FROM submission_intents WHERE intent_seq IN ({DOOMED});
    SET @deleted = @@ROWCOUNT;
END;
COMMIT TRANSACTION;
SELECT @held AS held, @deleted AS deleted, (SELECT COUNT_BIG(*) FROM @old) AS examined;
SELECT TOP (1) o.intent_seq, o.completed_at FROM @old AS o ORDER BY o.completed_at DESC, o.intent_seq DESC;"
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
        let (completed_at, seq) = (rows::need_moment(row, "completed_at")?, rows::need(row, "intent_seq")?);
        Ok::<_, StoreError>(PurgeCursor { completed_at, seq: IntentSeq(seq) })
    });
    Ok(Some(Purged { intents, next: next.transpose()?, took }))
}
