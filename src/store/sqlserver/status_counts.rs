//! Counts of a list by status on SQL Server. For each status it examines a bounded number of intents in the order of one
//! index, and counts those that meet the other conditions.

use super::database::{Batch, Database};
use super::read::set;
use super::rows;
use super::script::Values;
use super::statements::of_redrive;
use crate::domain::intent::Status;
use crate::store::{BoundedCount, ListQuery, StatusCounts, StoreError};

/// The condition on an intent `i` that it is not one of a job. It needs only the number, which every index has.
const NOT_OF_JOB: &str = "NOT EXISTS (SELECT 1 FROM submission_jobs AS b WHERE b.intent_seq = i.intent_seq)";

/// Builds the query: a result set with one row for each status, in the order of [`Status::ALL`].
pub(super) fn batch(query: &ListQuery) -> Batch {
    let mut values = Values::default();
    // Numbers are in the order of creation, so a range of times is a range of numbers.
    let first = |moment: &str, compared: &str| {
        format!(
            "COALESCE((SELECT TOP (1) n.intent_seq FROM submission_intents AS n WHERE n.created_at {compared} {moment}
    ORDER BY n.created_at, n.intent_seq), CAST(9223372036854775807 AS BIGINT))"
        )
    };
    let created_before = [query.created_before, query.examined.ended_before].into_iter().flatten().min();
    let from = query.created_after.map(|after| first(&values.moment(after), ">"));
    let end = created_before.map(|before| first(&values.moment(before), ">="));
    let range = match (&from, &end) {
        (None, None) => "",
        (Some(_), None) => " AND i.intent_seq >= @from",
        (None, Some(_)) => " AND i.intent_seq < @end",
        (Some(_), Some(_)) => " AND i.intent_seq >= @from AND i.intent_seq < @end",
    };
    let target = query.target.as_ref().map(|target| {
        format!(
            "i.contract_id IN (SELECT c.contract_id FROM submission_contracts AS c WHERE c.submission_target = {})",
            values.text(target.as_str())
        )
    });
    let redrive = query.redrive.map(|redrive| of_redrive(&mut values, redrive));
    let mut checked = vec![NOT_OF_JOB.to_owned()];
    if let Some(min) = query.examined.min_attempts {
        checked.push(format!("i.attempt_count >= {}", values.number(i64::from(min))));
    }
    if let Some(since) = query.examined.ended_since {
        checked.push(format!("i.completed_at >= {}", values.moment(since)));
    }
    if let Some(before) = query.examined.ended_before {
        checked.push(format!("i.completed_at < {}", values.moment(before)));
    }
    let counts = Status::ALL.map(|status| {
        let has_status = format!("i.status = '{}'", status.as_str());
        // What one index supports selects the intents to examine; the rest is checked.
        let (examined, others, order) = match (&redrive, &target, status) {
            (Some(redrive), target, _) => (redrive, [&has_status].into_iter().chain(target).collect::<Vec<_>>(), ""),
            // Without an order, each contract is read in its index. With one, the server may read all intents in that order.
            (None, Some(target), Status::Accepted) => (target, vec![&has_status], ""),
            (None, target, _) => (&has_status, target.iter().collect(), " ORDER BY i.intent_seq DESC"),
        };
        let limit = i64::try_from(BoundedCount::limit(query, status)).unwrap_or(i64::MAX).saturating_add(1);
        let limit = values.number(limit);
        let matches = checked.iter().chain(others).map(String::as_str).collect::<Vec<_>>().join(" AND ");
        format!(
            "
SELECT COUNT_BIG(*) AS examined, CAST(COALESCE(SUM(e.matches), 0) AS BIGINT) AS matched
FROM (SELECT TOP ({limit}) CASE WHEN {matches} THEN 1 ELSE 0 END AS matches
    FROM submission_intents AS i WHERE {examined}{range}{order}) AS e;"
        )
    });
    let declare = |name: &str, value: Option<String>| {
        value.map(|value| format!("\nDECLARE @{name} BIGINT = {value};")).unwrap_or_default()
    };
    let sql = format!("{}{}{}", declare("from", from), declare("end", end), counts.concat());
    values.batch(sql)
}

/// Counts the intents of a list by status.
pub(super) async fn count(database: &Database, query: &ListQuery) -> Result<StatusCounts, StoreError> {
    let results = database.run(batch(query)).await?;
    let mut sets = 0..;
    StatusCounts::count(|status| {
        let row = sets.next().and_then(|number| set(&results, number).first());
        let row = row.ok_or_else(|| StoreError::unavailable("the server returned no counts"))?;
        let number = |column| rows::need::<i64>(row, column).map(i64::unsigned_abs);
        Ok(BoundedCount::of(BoundedCount::limit(query, status), number("examined")?, number("matched")?))
    })
}
