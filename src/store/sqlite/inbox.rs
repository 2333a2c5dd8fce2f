//! The inbox: raw submissions, and the contacts and messages made of them.

use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params, params_from_iter};

use super::connection::{begin_transaction, read_now};
use super::read::parsed;
use super::schedule::as_limit;
use super::write::Items;
use super::{audit, leases};
use crate::domain::actor::Actor;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, Draft, PayloadFormat};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::platform::mutated;
use crate::store::{
    Contact, DueInbox, DueInboxSubmission, InboxBacklog, InboxMessage, InboxPage, InboxQuery, InboxSubmission,
    InboxSubmissionSeq, InboxSubmissionState, NewInboxSubmission, ProcessedInboxSubmission, Received, Reprocess,
    StoreError, Text,
};

/// Stores a submission, which is then due for processing.
pub(super) fn receive(
    transaction: &Transaction<'_>,
    new: &NewInboxSubmission,
    now: Timestamp,
) -> Result<Received, rusqlite::Error> {
    let content = new.content_sha256();
    let key_sha256 = new.key_sha256.filter(|_| !mutated!(InboxKeyIgnored));
    let inserted = transaction
        .prepare_cached(
            "INSERT INTO inbox_submissions (id, client_slug, channel, payload, source_url, key_sha256, content_sha256,
                 created_at, next_try_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
             ON CONFLICT (key_sha256) WHERE key_sha256 IS NOT NULL DO NOTHING",
        )?
        .execute(params![
            new.id.to_string(),
            new.client_slug,
            new.channel.as_str(),
            new.payload.as_ref(),
            new.source_url,
            key_sha256,
            content,
            now.micros()
        ])?;
    if inserted == 1 {
        if new.format == PayloadFormat::Form {
            let seq = transaction.last_insert_rowid();
            transaction.prepare_cached("INSERT INTO inbox_forms (submission_seq) VALUES (?1)")?.execute([seq])?;
        }
        return Ok(Received::Created(new.id));
    }
    let (id, before): (_, [u8; 32]) = transaction
        .prepare_cached("SELECT id, content_sha256 FROM inbox_submissions WHERE key_sha256 = ?1")?
        .query_row([new.key_sha256], |row| Ok((parsed(row, 0, InboxSubmissionId::parse)?, row.get(1)?)))?;
    Ok(if before == content { Received::Existing(id) } else { Received::Conflict(id) })
}

/// Reads the submissions that are due, and the backlog.
pub(super) fn due(connection: &mut Connection, clock: &WallClock, limit: usize) -> Result<DueInbox, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let due: Vec<DueInboxSubmission> = snapshot
        .prepare_cached(
            "SELECT submission_seq, id, client_slug, channel, payload, tries,
                 EXISTS (SELECT 1 FROM inbox_forms f WHERE f.submission_seq = inbox_submissions.submission_seq)
             FROM inbox_submissions WHERE next_try_at <= ?1 ORDER BY next_try_at, submission_seq LIMIT ?2",
        )?
        .query_map(params![now.micros(), as_limit(limit)], |row| {
            Ok(DueInboxSubmission {
                seq: InboxSubmissionSeq(row.get(0)?),
                id: parsed(row, 1, InboxSubmissionId::parse)?,
                client_slug: row.get(2)?,
                channel: parsed(row, 3, Channel::parse)?,
                payload: Bytes::from(row.get::<_, Vec<u8>>(4)?),
                tries: row.get(5)?,
                format: if row.get(6)? { PayloadFormat::Form } else { PayloadFormat::Json },
            })
        })?
        .collect::<Result<_, _>>()?;
    let (next, oldest, parked): (Option<i64>, Option<i64>, i64) = snapshot
        .prepare_cached(
            "SELECT (SELECT min(next_try_at) FROM inbox_submissions WHERE next_try_at IS NOT NULL),
                 (SELECT created_at FROM inbox_submissions INDEXED BY inbox_submissions_waiting
                  WHERE next_try_at IS NOT NULL ORDER BY submission_seq LIMIT 1),
                 (SELECT count(*) FROM inbox_submissions INDEXED BY inbox_submissions_parked
                  WHERE next_try_at IS NULL AND processed_at IS NULL)",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let next = next.map(Timestamp::from_micros);
    let oldest = oldest.map(|created_at| now.since(Timestamp::from_micros(created_at)));
    let backlog = InboxBacklog { oldest, parked: parked.unsigned_abs() };
    Ok(DueInbox { now, due, next: next.filter(|due| *due > now), backlog })
}

/// Records the results of submissions in one transaction, each in a savepoint of its own. `None` if the term is over.
pub(super) fn process(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    processed: &[ProcessedInboxSubmission],
) -> Result<Option<Vec<Result<(), StoreError>>>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let mut results = Vec::with_capacity(processed.len());
    for item in processed {
        results.push(Items::InSavepoints.run(&transaction, |tx| process_one(tx, item, now))?);
    }
    transaction.commit()?;
    Ok(Some(results))
}

fn process_one(
    transaction: &Transaction<'_>,
    item: &ProcessedInboxSubmission,
    now: Timestamp,
) -> Result<(), rusqlite::Error> {
    let row = transaction
        .prepare_cached(
            "SELECT client_slug, channel, source_url FROM inbox_submissions
             WHERE submission_seq = ?1 AND tries = ?2 AND next_try_at IS NOT NULL",
        )?
        .query_row(params![item.seq.0, item.tries], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<String>>(2)?))
        })
        .optional()?;
    let Some((client_slug, channel, source_url)) = row else { return Ok(()) };
    let draft = match &item.result {
        Ok(draft) => draft,
        Err(failed) => {
            return transaction
                .prepare_cached(
                    "UPDATE inbox_submissions SET tries = tries + 1, error = ?2, next_try_at = ?3
                     WHERE submission_seq = ?1",
                )?
                .execute(params![item.seq.0, failed.error, failed.next_try_at.map(Timestamp::micros)])
                .map(drop);
        }
    };
    let contact_id = contact(transaction, &client_slug, draft, now)?;
    transaction
        .prepare_cached(
            "INSERT INTO inbox_messages (submission_seq, client_slug, contact_id, channel, body, source_url, processed_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![item.seq.0, client_slug, contact_id, channel, draft.body, source_url, now.micros()])?;
    transaction
        .prepare_cached(
            "UPDATE inbox_submissions SET processed_at = ?2, message_id = ?3, error = NULL, next_try_at = NULL
             WHERE submission_seq = ?1",
        )?
        .execute(params![item.seq.0, now.micros(), transaction.last_insert_rowid()])
        .map(drop)
}

/// Finds the contact of a draft, or creates it. Missing fields of an existing contact are filled in. A phone number is
/// filled in only if no other contact of the client has it, because messages from that number would then go to this
/// contact.
fn contact(
    transaction: &Transaction<'_>,
    client_slug: &str,
    draft: &Draft,
    now: Timestamp,
) -> Result<i64, rusqlite::Error> {
    if let Some(contact_id) = find_contact(transaction, client_slug, draft)? {
        transaction
            .prepare_cached(
                "UPDATE inbox_contacts SET name = coalesce(name, ?2), email = coalesce(email, ?3), phone = CASE
                     WHEN phone IS NULL AND NOT EXISTS (SELECT 1 FROM inbox_contacts o
                         WHERE o.client_slug = ?5 AND o.phone = ?4) THEN ?4 ELSE phone END
                 WHERE contact_id = ?1 AND (name IS NULL AND ?2 IS NOT NULL OR email IS NULL AND ?3 IS NOT NULL
                     OR phone IS NULL AND ?4 IS NOT NULL)",
            )?
            .execute(params![contact_id, draft.name, draft.email, draft.phone, client_slug])?;
        return Ok(contact_id);
    }
    transaction
        .prepare_cached(
            "INSERT INTO inbox_contacts (client_slug, email, phone, name, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![client_slug, draft.email, draft.phone, draft.name, now.micros()])?;
    Ok(transaction.last_insert_rowid())
}

/// Finds the contact of a draft: the one with its email; otherwise the one with its phone and no email; otherwise, if the
/// draft has no email, the oldest one with its phone.
fn find_contact(
    transaction: &Transaction<'_>,
    client_slug: &str,
    draft: &Draft,
) -> Result<Option<i64>, rusqlite::Error> {
    const BY_EMAIL: &str = "SELECT contact_id FROM inbox_contacts WHERE client_slug = ?1 AND email = ?2";
    const WITHOUT_EMAIL: &str =
        "SELECT contact_id FROM inbox_contacts WHERE client_slug = ?1 AND phone = ?2 AND email IS NULL";
    const BY_PHONE: &str =
        "SELECT contact_id FROM inbox_contacts WHERE client_slug = ?1 AND phone = ?2 ORDER BY contact_id LIMIT 1";
    let find = |sql, key: Option<&String>| match key {
        Some(key) => transaction.prepare_cached(sql)?.query_row(params![client_slug, key], |row| row.get(0)).optional(),
        None => Ok(None),
    };
    let (email, phone) = (draft.email.as_ref(), draft.phone.as_ref());
    let by_email = if mutated!(ContactOfAnotherClient) {
        "SELECT contact_id FROM inbox_contacts WHERE ?1 <> '' AND email = ?2"
    } else {
        BY_EMAIL
    };
    if let Some(found) = find(by_email, email)? {
        return Ok(Some(found));
    }
    match find(WITHOUT_EMAIL, phone)? {
        None if email.is_none() => find(BY_PHONE, phone),
        found => Ok(found),
    }
}

/// Makes submissions that are not processed due now, as if they had never failed. Returns their number.
pub(super) fn reprocess(
    connection: &mut Connection,
    clock: &WallClock,
    which: &Reprocess,
    by: &Actor,
) -> Result<usize, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let changed = match which {
        Reprocess::One(id) => transaction
            .prepare_cached(
                "UPDATE inbox_submissions SET tries = 0, next_try_at = ?2 WHERE id = ?1 AND processed_at IS NULL",
            )?
            .execute(params![id.to_string(), now.micros()])?,
        Reprocess::ParkedOf { client_slug, limit } => transaction
            .prepare_cached(
                "UPDATE inbox_submissions SET tries = 0, next_try_at = ?2 WHERE submission_seq IN (
                     SELECT submission_seq FROM inbox_submissions INDEXED BY inbox_submissions_parked
                     WHERE client_slug = ?1 AND next_try_at IS NULL AND processed_at IS NULL
                     ORDER BY submission_seq LIMIT ?3)",
            )?
            .execute(params![client_slug, now.micros(), as_limit(*limit)])?,
    };
    if changed > 0 {
        audit::append(&transaction, &which.audit_entry(by), now)?;
    }
    transaction.commit()?;
    Ok(changed)
}

const SUBMISSION_COLUMNS: &str = "submission_seq, id, client_slug, channel, source_url, created_at, processed_at, tries, \
     error, next_try_at, message_id";

fn submission_of(row: &Row<'_>) -> Result<InboxSubmission, rusqlite::Error> {
    let moment = |column| row.get::<_, Option<i64>>(column).map(|at| at.map(Timestamp::from_micros));
    Ok(InboxSubmission {
        seq: InboxSubmissionSeq(row.get(0)?),
        id: parsed(row, 1, InboxSubmissionId::parse)?,
        client_slug: row.get(2)?,
        channel: parsed(row, 3, Channel::parse)?,
        source_url: row.get(4)?,
        created_at: Timestamp::from_micros(row.get(5)?),
        processed_at: moment(6)?,
        tries: row.get(7)?,
        error: row.get(8)?,
        next_try_at: moment(9)?,
        message_id: row.get(10)?,
    })
}

/// Reads a submission with its payload.
pub(super) fn find(
    connection: &Connection,
    id: InboxSubmissionId,
) -> Result<Option<(InboxSubmission, Bytes)>, rusqlite::Error> {
    let sql = format!("SELECT {SUBMISSION_COLUMNS}, payload FROM inbox_submissions WHERE id = ?1");
    connection
        .prepare_cached(&sql)?
        .query_row([id.to_string()], |row| Ok((submission_of(row)?, Bytes::from(row.get::<_, Vec<u8>>(11)?))))
        .optional()
}

/// Submissions that are not processed are rare and have indexes of their own.
const WAITING: &str = "inbox_submissions INDEXED BY inbox_submissions_waiting";
const PARKED: &str = "inbox_submissions INDEXED BY inbox_submissions_parked";

/// Lists submissions.
pub(super) fn submissions(
    connection: &Connection,
    query: &InboxQuery,
) -> Result<InboxPage<InboxSubmission>, rusqlite::Error> {
    let (state, table) = match query.state {
        Some(InboxSubmissionState::Received) => (Some("next_try_at IS NOT NULL AND tries = 0"), WAITING),
        Some(InboxSubmissionState::Failed) => (Some("next_try_at IS NOT NULL AND tries > 0"), WAITING),
        Some(InboxSubmissionState::Parked) => (Some("next_try_at IS NULL AND processed_at IS NULL"), PARKED),
        Some(InboxSubmissionState::Processed) => (Some("processed_at IS NOT NULL"), "inbox_submissions"),
        None => (None, "inbox_submissions"),
    };
    let listing = Listing { columns: SUBMISSION_COLUMNS, table, number: "submission_seq", state };
    listing.page(connection, query, submission_of, |row| row.seq.0)
}

/// Lists contacts.
pub(super) fn contacts(connection: &Connection, query: &InboxQuery) -> Result<InboxPage<Contact>, rusqlite::Error> {
    let columns = "contact_id, client_slug, email, phone, name, created_at";
    let listing = Listing { columns, table: "inbox_contacts", number: "contact_id", state: None };
    let contact_of = |row: &Row<'_>| {
        Ok(Contact {
            id: row.get(0)?,
            client_slug: row.get(1)?,
            email: row.get(2)?,
            phone: row.get(3)?,
            name: row.get(4)?,
            created_at: Timestamp::from_micros(row.get(5)?),
        })
    };
    listing.page(connection, query, contact_of, |contact| contact.id)
}

/// Lists messages.
pub(super) fn messages(
    connection: &Connection,
    query: &InboxQuery,
) -> Result<InboxPage<InboxMessage>, rusqlite::Error> {
    let columns = "message_id, client_slug, contact_id,
        (SELECT s.id FROM inbox_submissions s WHERE s.submission_seq = inbox_messages.submission_seq), channel,
        substr(body, 1, 4001), source_url, processed_at";
    let listing = Listing { columns, table: "inbox_messages", number: "message_id", state: None };
    let message_of = |row: &Row<'_>| {
        Ok(InboxMessage {
            id: row.get(0)?,
            client_slug: row.get(1)?,
            contact_id: row.get(2)?,
            submission_id: parsed(row, 3, InboxSubmissionId::parse)?,
            channel: parsed(row, 4, Channel::parse)?,
            body: Text::cut(row.get(5)?),
            source_url: row.get(6)?,
            processed_at: Timestamp::from_micros(row.get(7)?),
        })
    };
    listing.page(connection, query, message_of, |message| message.id)
}

/// A list of rows, newest first.
struct Listing {
    columns: &'static str,
    table: &'static str,
    number: &'static str,
    state: Option<&'static str>,
}

impl Listing {
    fn page<T>(
        &self,
        connection: &Connection,
        query: &InboxQuery,
        of: impl Fn(&Row<'_>) -> Result<T, rusqlite::Error>,
        number_of: impl Fn(&T) -> i64,
    ) -> Result<InboxPage<T>, rusqlite::Error> {
        let Self { columns, table, number, state } = self;
        let mut conditions: Vec<String> = state.iter().map(|state| (*state).to_owned()).collect();
        let mut values = Vec::new();
        let wanted = [
            ("client_slug = ?".to_owned(), query.client_slug.clone().map(Value::Text)),
            ("contact_id = ?".to_owned(), query.contact_id.map(Value::Integer)),
            (format!("{number} < ?"), query.after.map(Value::Integer)),
        ];
        for (condition, value) in wanted.into_iter().filter_map(|(sql, value)| Some((sql, value?))) {
            conditions.push(condition);
            values.push(value);
        }
        let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        values.push(Value::Integer(as_limit(query.limit.max(1).saturating_add(1))));
        let sql = format!("SELECT {columns} FROM {table} {filter} ORDER BY {number} DESC LIMIT ?");
        let rows = connection
            .prepare_cached(&sql)?
            .query_map(params_from_iter(values), |row| of(row))?
            .collect::<Result<_, _>>()?;
        Ok(InboxPage::of(query, rows, number_of))
    }
}
