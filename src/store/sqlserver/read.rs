//! Reads intents and lists for clients, and the schedule for the leader. Each call is one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;

use tiberius::Row;

use super::database::Database;
use super::rows;
use super::statements::{self, Part};
use super::{failures, targets, webhooks};
use crate::domain::intent::{Intent, IntentId, TargetName};
use crate::domain::schedule::{LaneId, LanePage, LanePosition, LoadedPage, Waiting};
use crate::store::{
    Attempt, Backlog, ChangeCursor, History, IdRange, IntentPage, ListQuery, OpenAttempt, PageCursor, Refresh,
    RefreshRequest, ScheduleSnapshot, StoreError, StoredIntent,
};

pub(super) fn first(results: &[Vec<Row>]) -> Option<&Row> {
    results.iter().flatten().next()
}

pub(super) fn need_first(results: &[Vec<Row>]) -> Result<&Row, StoreError> {
    first(results).ok_or_else(|| StoreError::unavailable("the server returned no rows"))
}

pub(super) fn all<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T, StoreError>) -> Result<Vec<T>, StoreError> {
    rows.iter().map(read).collect()
}

pub(super) fn set(results: &[Vec<Row>], number: usize) -> &[Row] {
    results.get(number).map(Vec::as_slice).unwrap_or_default()
}

pub(super) async fn open_attempts_before(
    database: &Database,
    epoch: i64,
    limit: usize,
) -> Result<Vec<OpenAttempt>, StoreError> {
    let results = database.run(statements::open_attempts(epoch, limit)).await?;
    let read = |row: &Row| rows::open_attempt(row, Arc::new(rows::contract(row)?), None);
    let readable = set(&results, 0).iter().filter_map(|row| {
        read(row).inspect_err(|error| log::error!("open_attempt_unreadable store_error={error:?}")).ok()
    });
    Ok(readable.collect())
}

pub(super) async fn schedule_snapshot(database: &Database, page_limit: usize) -> Result<ScheduleSnapshot, StoreError> {
    let results = database.run(statements::schedule_snapshot(page_limit)).await?;
    let clock = need_first(&results)?;
    // Changes at that timestamp may be reported again, which is harmless.
    let cursor = ChangeCursor { last_modified_at: rows::need_moment(clock, "last_at")?, intent_id: String::new() };
    let page =
        |first: &Waiting| LanePage { lane: Arc::clone(&first.lane), from: LanePosition::START, limit: page_limit };
    let lanes = by_lane(set(&results, 2))?.into_values();
    let lanes = lanes.filter_map(|waiting| Some(LoadedPage { page: page(waiting.first()?), waiting })).collect();
    let paused = targets::paused(set(&results, 1))?;
    Ok(ScheduleSnapshot { now: rows::need_moment(clock, "now_at")?, cursor, lanes, paused })
}

/// Groups waiting intents by lane, in the order in which they are due.
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

pub(super) async fn refresh_schedule(database: &Database, request: RefreshRequest) -> Result<Refresh, StoreError> {
    let results = database.run(statements::refresh_schedule(&request)).await?;
    let RefreshRequest { mut cursor, limit, pages } = request;
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

pub(super) async fn backlog(database: &Database) -> Result<Backlog, StoreError> {
    let results = database.run(statements::backlog()).await?;
    let owed = need_first(results.get(1..).unwrap_or_default())?;
    let (now, oldest) = (rows::need_moment(owed, "now_at")?, rows::moment(owed, "oldest")?);
    Ok(Backlog {
        waiting: all(set(&results, 0), |row| {
            let target = rows::parsed(row, "submission_target", |text| TargetName::parse(text).ok())?;
            Ok((target, rows::need::<i64>(row, "waiting")?.unsigned_abs()))
        })?,
        webhooks: rows::need::<i64>(owed, "webhooks")?.unsigned_abs(),
        oldest_webhook: oldest.map(|since| now.since(since)),
    })
}

pub(super) async fn find(database: &Database, id: IntentId) -> Result<Option<StoredIntent>, StoreError> {
    let results = database.run(statements::find(&id)).await?;
    first(&results).map(rows::found).transpose()
}

pub(super) async fn history(database: &Database, id: IntentId) -> Result<Option<History>, StoreError> {
    let results = database.run(statements::history(&id)).await?;
    history_of(&results)
}

/// Reads a history from its four result sets.
pub(super) fn history_of(results: &[Vec<Row>]) -> Result<Option<History>, StoreError> {
    let Some(row) = set(results, 0).first() else { return Ok(None) };
    let intent: Intent = rows::intent(row)?;
    let attempts: Vec<Attempt> = all(set(results, 1), rows::attempt)?;
    let webhook = webhooks::history(set(results, 2), set(results, 3))?;
    let redriven_as = set(results, 4).first();
    let redriven_as = redriven_as.map(|row| rows::parsed(row, "intent_id", |text| IntentId::parse(text).ok()));
    Ok(Some(History { intent, attempts, webhook, redriven_as: redriven_as.transpose()? }))
}

pub(super) async fn list(database: &Database, query: ListQuery) -> Result<IntentPage, StoreError> {
    let wanted = query.page_size().saturating_add(1);
    let Some(text) = &query.prefix else {
        if !query.examined.is_empty() {
            return failures::examine(database, &query).await;
        }
        let intents = list_part(database, &query, Part::All, wanted).await?;
        return Ok(IntentPage::of_list(&query, intents));
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

/// Reads the intents of one part that pass the filters of the query.
pub(super) async fn list_part(
    database: &Database,
    query: &ListQuery,
    part: Part<'_>,
    limit: usize,
) -> Result<Vec<Intent>, StoreError> {
    let results = database.run(statements::list(query, &part, limit)).await?;
    all(set(&results, 0), rows::intent)
}

/// Checks whether the database accepts writes: advances the clock's row, as every transaction that writes does. The
/// number of bytes makes no difference, because a server whose log or disk is full refuses every write.
pub(super) async fn probe(database: &Database) -> Result<(), StoreError> {
    database.run(statements::probe()).await.map(drop)
}
