//! Look-ups, lists and what the leader reads; each one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tiberius::Row;

use super::database::{Batch, Database, Value};
use super::rows::{self, json_moment};
use super::statements::{self, IdParts, ListParts};
use super::write::term_values;
use super::{targets, webhooks};
use crate::domain::intent::{Intent, IntentId};
use crate::domain::lease::{Lease, Term};
use crate::domain::schedule::{LaneId, LanePage, LoadedPage, Place, Waiting};
use crate::domain::time::Timestamp;
use crate::store::{
    Attempt, Backlog, ChangeCursor, History, IdRange, IntentPage, LeaseRow, LeaseState, ListQuery, OpenAttempt,
    PageCursor, Refresh, RefreshRequest, ScheduleSnapshot, StoreError, StoredIntent,
};

pub async fn run(
    database: &Database,
    sql: impl Into<std::borrow::Cow<'static, str>>,
    values: Vec<Value>,
) -> Result<Vec<Vec<Row>>, StoreError> {
    database.run(Batch { sql: sql.into(), values }).await
}

pub fn first(results: &[Vec<Row>]) -> Option<&Row> {
    results.iter().flatten().next()
}

pub fn need_first(results: &[Vec<Row>]) -> Result<&Row, StoreError> {
    first(results).ok_or_else(|| StoreError::Unavailable("the server did not answer a question".to_owned()))
}

pub fn all<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T, StoreError>) -> Result<Vec<T>, StoreError> {
    rows.iter().map(read).collect()
}

pub fn set(results: &[Vec<Row>], number: usize) -> &[Row] {
    results.get(number).map(Vec::as_slice).unwrap_or_default()
}

pub fn number(value: usize) -> Value {
    Value::Number(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Spans go to DATEADD, which takes an INT.
pub fn clamped(value: u128) -> i64 {
    i64::from(i32::try_from(value).unwrap_or(i32::MAX))
}

pub async fn acquire_lease(
    database: &Database,
    name: Arc<str>,
    holder: Arc<str>,
    duration: Duration,
) -> Result<Option<Lease>, StoreError> {
    let values = vec![
        Value::Text(name.to_string()),
        Value::Text(holder.to_string()),
        Value::Number(clamped(duration.as_millis())),
    ];
    let results = run(database, statements::ACQUIRE_LEASE, values).await?;
    let Some(row) = first(&results) else { return Ok(None) };
    let term = Term { lease_name: name, holder_id: holder, epoch: rows::need(row, "lease_epoch")? };
    let (expires_at, now) = (rows::need_moment(row, "expires_at")?, rows::need_moment(row, "now_at")?);
    Ok(Some(Lease { term, expires_at, now }))
}

pub async fn renew_lease(database: &Database, term: Term, duration: Duration) -> Result<Option<Lease>, StoreError> {
    let mut values = term_values(Some(&term));
    values.push(Value::Number(clamped(duration.as_millis())));
    let results = run(database, statements::RENEW_LEASE, values).await?;
    let row = need_first(&results)?;
    let held = rows::need::<i64>(row, "held")? == 1;
    let (expires_at, now) = (rows::need_moment(row, "expires_at")?, rows::need_moment(row, "now_at")?);
    Ok(held.then_some(Lease { term, expires_at, now }))
}

pub async fn release_lease(database: &Database, term: Term) -> Result<(), StoreError> {
    run(database, statements::RELEASE_LEASE, term_values(Some(&term))).await.map(drop)
}

pub async fn lease_state(database: &Database) -> Result<LeaseState, StoreError> {
    let results = run(database, statements::LEASE_STATE, Vec::new()).await?;
    let clock = need_first(&results)?;
    let (now, last_at) = (rows::need_moment(clock, "now_at")?, rows::need_moment(clock, "last_at")?);
    let lease = set(&results, 1).first().map(|row| {
        Ok::<_, StoreError>(LeaseRow {
            holder_id: rows::need::<&str>(row, "holder_id")?.to_owned(),
            epoch: rows::need(row, "lease_epoch")?,
            renewed_at: rows::need_moment(row, "renewed_at")?,
            expires_at: rows::need_moment(row, "expires_at")?,
        })
    });
    let lease = lease.transpose()?;
    let latest = lease.as_ref().map_or(last_at, |lease| last_at.max(lease.renewed_at));
    Ok(LeaseState { lease, now, clock_ahead: latest.since(now) })
}

pub async fn reset_lease(database: &Database, epoch: i64, renewed_at: Timestamp) -> Result<bool, StoreError> {
    let values = vec![Value::Number(epoch), Value::Text(json_moment(renewed_at))];
    let results = run(database, statements::RESET_LEASE, values).await?;
    Ok(rows::need::<i64>(need_first(&results)?, "reset")? == 1)
}

pub async fn open_attempts_before(
    database: &Database,
    epoch: i64,
    limit: usize,
) -> Result<Vec<OpenAttempt>, StoreError> {
    let results = run(database, statements::OPEN_ATTEMPTS, vec![Value::Number(epoch), number(limit)]).await?;
    let read = |row: &Row| rows::open_attempt(row, Arc::new(rows::contract(row)?), None);
    let readable = set(&results, 0).iter().filter_map(|row| {
        read(row).inspect_err(|error| log::error!("open_attempt_unreadable store_error={error:?}")).ok()
    });
    Ok(readable.collect())
}

pub async fn schedule_snapshot(database: &Database, page_limit: usize) -> Result<ScheduleSnapshot, StoreError> {
    let results = run(database, statements::schedule_snapshot(), vec![number(page_limit)]).await?;
    let clock = need_first(&results)?;
    // Changes at that very timestamp may be reported once more, which does no harm.
    let cursor = ChangeCursor { last_modified_at: rows::need_moment(clock, "last_at")?, intent_id: String::new() };
    let page = |first: &Waiting| LanePage { lane: Arc::clone(&first.lane), from: Place::START, limit: page_limit };
    let lanes = by_lane(set(&results, 2))?.into_values();
    let lanes = lanes.filter_map(|waiting| Some(LoadedPage { page: page(waiting.first()?), waiting })).collect();
    let paused = targets::paused(set(&results, 1))?;
    Ok(ScheduleSnapshot { now: rows::need_moment(clock, "now_at")?, cursor, lanes, paused })
}

/// Waiting intents of each lane, in order of place.
fn by_lane(rows: &[Row]) -> Result<BTreeMap<LaneId, Vec<Waiting>>, StoreError> {
    let mut lanes: BTreeMap<LaneId, Vec<Waiting>> = BTreeMap::new();
    for waiting in all_waiting(rows)? {
        lanes.entry(waiting.lane.id).or_default().push(waiting);
    }
    for lane in lanes.values_mut() {
        lane.sort_by_key(|waiting| (waiting.due, waiting.seq));
    }
    Ok(lanes)
}

fn all_waiting(rows: &[Row]) -> Result<Vec<Waiting>, StoreError> {
    let mut lanes = rows::Lanes::new();
    rows.iter().map(|row| rows::waiting(row, &mut lanes)).collect()
}

pub async fn refresh_schedule(database: &Database, request: RefreshRequest) -> Result<Refresh, StoreError> {
    let RefreshRequest { mut cursor, limit, pages } = request;
    let mut values =
        vec![Value::Text(json_moment(cursor.last_modified_at)), Value::Text(cursor.intent_id.clone()), number(limit)];
    if !pages.is_empty() {
        let items: Vec<_> = pages
            .iter()
            .map(|page| json!({ "lane": page.lane.id.0, "due": json_moment(page.from.due), "seq": page.from.seq.0 }))
            .collect();
        values.push(Value::Text(Json::Array(items).to_string()));
        values.push(number(pages.iter().map(|page| page.limit).max().unwrap_or(0)));
    }
    let results = run(database, statements::refresh_schedule(!pages.is_empty()), values).await?;
    let changes = set(&results, 2);
    let changed = all_waiting(changes)?;
    if let Some(last) = changes.last() {
        cursor.last_modified_at = rows::need_moment(last, "last_modified_at")?;
        cursor.intent_id = rows::need::<&str>(last, "intent_id")?.to_owned();
    }
    let mut lanes = by_lane(set(&results, 4))?;
    let loaded = pages.into_iter().map(|page| {
        let mut waiting = lanes.remove(&page.lane.id).unwrap_or_default();
        waiting.truncate(page.limit);
        LoadedPage { page, waiting }
    });
    Ok(Refresh {
        now: rows::need_moment(need_first(&results)?, "now_at")?,
        cursor,
        more: changed.len() >= limit,
        changed,
        pages: loaded.collect(),
        overdue: !set(&results, 3).is_empty(),
        paused: targets::paused(set(&results, 1))?,
    })
}

pub async fn backlog(database: &Database) -> Result<Backlog, StoreError> {
    let results = run(database, statements::BACKLOG, Vec::new()).await?;
    let owed = need_first(results.get(1..).unwrap_or_default())?;
    let (now, oldest) = (rows::need_moment(owed, "now_at")?, rows::moment(owed, "oldest")?);
    Ok(Backlog {
        waiting: rows::need::<i64>(need_first(&results)?, "waiting")?.unsigned_abs(),
        webhooks: rows::need::<i64>(owed, "webhooks")?.unsigned_abs(),
        oldest_webhook: oldest.map(|since| now.since(since)),
    })
}

pub async fn find(database: &Database, id: IntentId) -> Result<Option<StoredIntent>, StoreError> {
    let results = run(database, statements::find(), vec![Value::Text(id.to_string())]).await?;
    first(&results).map(rows::found).transpose()
}

pub async fn history(database: &Database, id: IntentId) -> Result<Option<History>, StoreError> {
    let results = run(database, statements::history(), vec![Value::Text(id.to_string())]).await?;
    history_of(&results)
}

/// What the first result sets of a history say.
pub fn history_of(results: &[Vec<Row>]) -> Result<Option<History>, StoreError> {
    let Some(row) = set(results, 0).first() else { return Ok(None) };
    let intent: Intent = rows::intent(row)?;
    let attempts: Vec<Attempt> = all(set(results, 1), rows::attempt)?;
    let webhook = webhooks::history(set(results, 2), set(results, 3))?;
    Ok(Some(History { intent, attempts, webhook }))
}

pub async fn list(database: &Database, query: ListQuery) -> Result<IntentPage, StoreError> {
    let wanted = query.page_size().saturating_add(1);
    let Some(text) = &query.prefix else {
        let intents = list_part(database, &query, Part::All, wanted).await?;
        return Ok(IntentPage::of_newest(&query, intents));
    };
    let by_message = match &query.after {
        Some(PageCursor::Id(_)) => Vec::new(),
        _ => list_part(database, &query, Part::ByMessage(text), wanted).await?,
    };
    let mut by_id = Vec::new();
    for range in IdRange::of(text, query.after.as_ref()) {
        let left = wanted - by_message.len() - by_id.len();
        if left == 0 {
            break;
        }
        by_id.extend(list_part(database, &query, Part::ById(text, range), left).await?);
    }
    Ok(IntentPage::of_search(&query, by_message, by_id, None))
}

/// Which intents are looked at.
enum Part<'a> {
    /// All, in the order of arrival.
    All,
    /// Those that a gateway gave this id, in the order of arrival.
    ByMessage(&'a str),
    /// Those in a range of ids that no gateway gave this id, in the order of ids.
    ById(&'a str, IdRange),
}

/// Intents of a part that pass the filters.
async fn list_part(
    database: &Database,
    query: &ListQuery,
    part: Part<'_>,
    limit: usize,
) -> Result<Vec<Intent>, StoreError> {
    let moment = |moment: Timestamp| Value::Text(json_moment(moment));
    let newer = match (&query.after, &part) {
        (Some(PageCursor::Newer { created_at, id }), Part::All)
        | (Some(PageCursor::Message { created_at, id }), Part::ByMessage(_)) => {
            Some([moment(*created_at), Value::Text(id.to_string())])
        }
        _ => None,
    };
    let parts = ListParts {
        status: query.status.is_some(),
        target: query.target.is_some(),
        created_after: query.created_after.is_some(),
        created_before: query.created_before.is_some(),
        newer: newer.is_some(),
        message: matches!(part, Part::ByMessage(_)),
        ids: match &part {
            Part::ById(_, ids) => Some(IdParts { behind: ids.excludes_from, before: ids.before.is_some() }),
            Part::All | Part::ByMessage(_) => None,
        },
    };
    let mut values = vec![number(limit)];
    values.extend(query.status.map(|status| Value::Text(status.as_str().to_owned())));
    values.extend(query.target.as_ref().map(|target| Value::Text(target.to_string())));
    values.extend([query.created_after, query.created_before].into_iter().flatten().map(moment));
    values.extend(newer.into_iter().flatten());
    let texts = match part {
        Part::All => [None, None, None],
        Part::ByMessage(text) => [Some(text.to_owned()), None, None],
        Part::ById(text, ids) => [Some(text.to_owned()), Some(ids.from), ids.before],
    };
    values.extend(texts.into_iter().flatten().map(Value::Text));
    let results = run(database, statements::list(parts), values).await?;
    all(set(&results, 0), rows::intent)
}

/// Moves the clock on, which every transaction that writes has to do. How much it writes makes no difference: a server
/// whose log or disk is full refuses any write.
pub async fn probe(database: &Database) -> Result<(), StoreError> {
    run(database, statements::probe(), Vec::new()).await.map(drop)
}
