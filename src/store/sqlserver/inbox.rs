//! The inbox: submissions kept as they came, contacts and messages made of them.
//!
//! Intake goes with the batch of writes; processing is a transaction a row.

use std::collections::{HashMap, HashSet};

use bytes::{Bytes, BytesMut};
use serde_json::{Value as Json, json};
use tiberius::Row;

use super::database::{Batch, Database, ResultSets, Value};
use super::rows;
use super::statements::{FENCE, TERM_VALUES, TICK, json_text, text};
use super::write::term_values;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, Draft, PayloadFormat};
use crate::domain::lease::Term;
use crate::store::sqlserver::rows::json_moment;
use crate::store::{
    Contact, DueInbox, DueInboxSubmission, FailedInboxTry, InboxBacklog, InboxMessage, InboxPage, InboxQuery,
    InboxSubmission, InboxSubmissionSeq, InboxSubmissionState, NewInboxSubmission, ProcessedInboxSubmission, Received,
    Reprocess, StoreError, Text,
};

/// Values: the submissions as JSON, all payloads one after the other, all hashes likewise.
pub const RECEIVE: &str = concat!(
    "
INSERT INTO inbox_submissions (id, client_slug, channel, payload, source_url, key_sha256, content_sha256, created_at,
    tries, next_try_at)
SELECT j.id, ",
    text!("j.slug"),
    ", j.channel, SUBSTRING(@value1, j.payload_from, j.payload_length), ",
    text!("j.source"),
    ", SUBSTRING(@value2, j.key_from, 32), SUBSTRING(@value2, j.content_from, 32), @now, 0, @now
FROM OPENJSON(@value0) WITH (id VARCHAR(36), slug NVARCHAR(200), channel VARCHAR(10), source NVARCHAR(4000),
    payload_from BIGINT, payload_length BIGINT, key_from BIGINT, content_from BIGINT) AS j
WHERE j.key_from IS NULL OR NOT EXISTS (
    SELECT 1 FROM inbox_submissions AS s WHERE s.key_sha256 IS NOT NULL AND s.key_sha256 = SUBSTRING(@value2, j.key_from, 32))
ORDER BY j.content_from;
INSERT INTO inbox_forms (submission_seq)
SELECT s.submission_seq FROM OPENJSON(@value0) WITH (id VARCHAR(36), is_form BIGINT) AS j
JOIN inbox_submissions AS s ON s.id = j.id COLLATE Latin1_General_100_BIN2
WHERE j.is_form = 1 AND NOT EXISTS (SELECT 1 FROM inbox_forms AS f WHERE f.submission_seq = s.submission_seq);"
);

/// What stands under the keys that came.
pub const RECEIVED: &str = "
SELECT s.id, s.key_sha256, s.content_sha256 FROM OPENJSON(@value0) WITH (key_from BIGINT) AS j
JOIN inbox_submissions AS s ON s.key_sha256 IS NOT NULL AND s.key_sha256 = SUBSTRING(@value2, j.key_from, 32);";

/// Of several with one key only the first is written; the others are compared with it afterwards.
pub fn receive_values(received: &[NewInboxSubmission]) -> Vec<Value> {
    let mut items = Vec::with_capacity(received.len());
    let (mut payloads, mut hashes) = (BytesMut::new(), BytesMut::new());
    let mut keys = HashSet::new();
    for new in received.iter().filter(|new| new.key_sha256.is_none_or(|key| keys.insert(key))) {
        let content_from = hashes.len() + 1;
        hashes.extend_from_slice(&new.content_sha256());
        let key_from = new.key_sha256.map(|key| {
            let from = hashes.len() + 1;
            hashes.extend_from_slice(&key);
            from
        });
        items.push(json!({
            "id": new.id.to_string(), "slug": json_text(&new.client_slug), "channel": new.channel.as_str(),
            "source": new.source_url.as_deref().map(json_text), "payload_from": payloads.len() + 1,
            "payload_length": new.payload.len(), "key_from": key_from, "content_from": content_from,
            "is_form": u8::from(new.format == PayloadFormat::Form),
        }));
        payloads.extend_from_slice(&new.payload);
    }
    let json = Value::Text(Json::Array(items).to_string());
    vec![json, Value::Bytes(payloads.freeze()), Value::Bytes(hashes.freeze())]
}

pub fn received(new: &[NewInboxSubmission], rows: &[Row]) -> Result<Vec<Result<Received, StoreError>>, StoreError> {
    let mut by_key: HashMap<Vec<u8>, (InboxSubmissionId, Vec<u8>)> = HashMap::new();
    for row in rows {
        let bytes = |column| rows::need::<&[u8]>(row, column).map(<[u8]>::to_vec);
        let id = rows::parsed(row, "id", InboxSubmissionId::parse)?;
        by_key.insert(bytes("key_sha256")?, (id, bytes("content_sha256")?));
    }
    let answer = |new: &NewInboxSubmission| {
        let Some(key) = new.key_sha256 else { return Ok(Received::Created(new.id)) };
        let lost = || StoreError::Unavailable("the server did not say what stands under a key".to_owned());
        let (id, content) = by_key.get(key.as_slice()).ok_or_else(lost)?;
        Ok(if *id == new.id {
            Received::Created(*id)
        } else if content.as_slice() == new.content_sha256() {
            Received::Existing(*id)
        } else {
            Received::Conflict(*id)
        })
    };
    Ok(new.iter().map(answer).collect())
}

pub const LOOK: &str = "
SELECT SYSUTCDATETIME() AS now_at, (SELECT MIN(next_try_at) FROM inbox_submissions WHERE next_try_at IS NOT NULL) AS next_at,
    (SELECT TOP (1) created_at FROM inbox_submissions WHERE next_try_at IS NOT NULL ORDER BY submission_seq) AS oldest_at,
    (SELECT COUNT_BIG(*) FROM inbox_submissions WHERE next_try_at IS NULL AND processed_at IS NULL) AS parked;
SELECT TOP (@P1) submission_seq, id, client_slug, channel, payload, tries, CASE WHEN EXISTS (SELECT 1 FROM inbox_forms AS f
    WHERE f.submission_seq = inbox_submissions.submission_seq) THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS is_form
FROM inbox_submissions WHERE next_try_at <= SYSUTCDATETIME() ORDER BY next_try_at, submission_seq;";

pub async fn look(database: &Database, limit: usize) -> Result<DueInbox, StoreError> {
    let values = vec![Value::Number(i64::try_from(limit).unwrap_or(i64::MAX))];
    let results = run(database, LOOK, values).await?;
    let head = results.first().and_then(|rows| rows.first()).ok_or_else(|| no_answer("a look"))?;
    let (now, next) = (rows::need_moment(head, "now_at")?, rows::moment(head, "next_at")?);
    let due = |row: &Row| {
        Ok(DueInboxSubmission {
            seq: InboxSubmissionSeq(rows::need(row, "submission_seq")?),
            id: rows::parsed(row, "id", InboxSubmissionId::parse)?,
            client_slug: rows::need::<&str>(row, "client_slug")?.to_owned(),
            channel: rows::parsed(row, "channel", Channel::parse)?,
            payload: rows::bytes(row, "payload")?.unwrap_or_default(),
            tries: rows::attempts(row, "tries")?,
            format: if rows::need::<i64>(row, "is_form")? == 1 { PayloadFormat::Form } else { PayloadFormat::Json },
        })
    };
    Ok(DueInbox {
        now,
        due: results.get(1).into_iter().flatten().map(due).collect::<Result<_, StoreError>>()?,
        next: next.filter(|at| *at > now),
        backlog: InboxBacklog {
            oldest: rows::moment(head, "oldest_at")?.map(|created_at| now.since(created_at)),
            parked: rows::need::<i64>(head, "parked")?.unsigned_abs(),
        },
    })
}

/// One row in a transaction of its own. Its values: the row, how often it had failed, email, phone, name (each may
/// be blank) and body.
///
/// Its contact: by email; else the one with this phone and no email, which then gets the email; else, without an email,
/// the oldest with this phone; else a new one. A phone is filled in only if no other contact of the client has it: it
/// would take that one's messages.
fn process_row() -> String {
    format!(
        "
SELECT @held = 0, @waits = 0, @contact = NULL, @phone = NULLIF(@value3, N'');
BEGIN TRANSACTION;{FENCE}{TICK}
SELECT @slug = client_slug, @waits = 1 FROM inbox_submissions
WHERE submission_seq = @value0 AND tries = @value1 AND next_try_at IS NOT NULL AND @held = 1;
IF @waits = 1
BEGIN
    IF @value2 <> N''
        SET @contact = (SELECT MIN(contact_id) FROM inbox_contacts WHERE client_slug = @slug AND email = @value2);
    IF @contact IS NULL
        SET @contact = (SELECT MIN(contact_id) FROM inbox_contacts
            WHERE client_slug = @slug AND phone = @phone AND email IS NULL);
    IF @contact IS NULL AND @value2 = N''
        SET @contact = (SELECT MIN(contact_id) FROM inbox_contacts WHERE client_slug = @slug AND phone = @phone);
    IF @contact IS NULL
    BEGIN
        INSERT INTO inbox_contacts (client_slug, email, phone, name, created_at)
        VALUES (@slug, NULLIF(@value2, N''), @phone, NULLIF(@value4, N''), @now);
        SET @contact = (SELECT MAX(contact_id) FROM inbox_contacts WHERE client_slug = @slug);
    END
    ELSE
    BEGIN
        IF EXISTS (SELECT 1 FROM inbox_contacts WHERE client_slug = @slug AND phone = @phone AND contact_id <> @contact)
            SET @phone = NULL;
        UPDATE inbox_contacts SET name = COALESCE(name, NULLIF(@value4, N'')),
            email = COALESCE(email, NULLIF(@value2, N'')), phone = COALESCE(phone, @phone)
        WHERE contact_id = @contact AND (name IS NULL OR email IS NULL OR phone IS NULL);
    END;
    INSERT INTO inbox_messages (submission_seq, client_slug, contact_id, channel, body, source_url, processed_at)
    SELECT submission_seq, client_slug, @contact, channel, @value5, source_url, @now FROM inbox_submissions
    WHERE submission_seq = @value0;
    UPDATE inbox_submissions SET processed_at = @now, error = NULL, next_try_at = NULL,
        message_id = (SELECT m.message_id FROM inbox_messages AS m WHERE m.submission_seq = @value0)
    WHERE submission_seq = @value0;
END;
COMMIT TRANSACTION;"
    )
}

/// One row in a transaction of its own. Its values: the row, how often it had failed, the error, and when to try
/// again (blank if never).
fn fail_row() -> String {
    format!(
        "
SET @held = 0;
BEGIN TRANSACTION;{FENCE}{TICK}
UPDATE inbox_submissions SET tries = tries + 1, error = @value2,
    next_try_at = CAST(NULLIF(@value3, N'') AS DATETIME2(6))
WHERE submission_seq = @value0 AND tries = @value1 AND next_try_at IS NOT NULL AND @held = 1;
COMMIT TRANSACTION;"
    )
}

/// Several rows in one round trip, each as it turned out; then whether the term held for the last of them.
pub fn process_statement(rows: &[bool]) -> String {
    let mut sql = String::from(
        "DECLARE @now DATETIME2(6), @held BIGINT, @waits BIGINT, @contact BIGINT, @slug NVARCHAR(200), @phone NVARCHAR(80);",
    );
    let mut number = TERM_VALUES;
    for well in rows {
        let (text, values) = if *well { (process_row(), 6) } else { (fail_row(), 4) };
        sql += &(0..values)
            .fold(text, |text, value| text.replace(&format!("@value{value}"), &format!("@P{}", number + value + 1)));
        number += values;
    }
    sql + "\nSELECT @held AS held;"
}

/// Rows in one round trip: at most 120 parameters, and texts of as many payloads.
const ROWS: usize = 20;

pub async fn process(
    database: &Database,
    term: &Term,
    processed: &[ProcessedInboxSubmission],
) -> Result<Option<Vec<Result<(), StoreError>>>, StoreError> {
    let mut results = Vec::with_capacity(processed.len());
    for rows in processed.chunks(ROWS) {
        match process_together(database, term, rows).await {
            Ok(true) => results.extend(rows.iter().map(|_| Ok(()))),
            Ok(false) => return Ok(None),
            // One of them is not taken; which ones were is known to each.
            Err(StoreError::Unexpected(_)) => {
                for row in rows {
                    match process_together(database, term, std::slice::from_ref(row)).await {
                        Ok(true) => results.push(Ok(())),
                        Ok(false) => return Ok(None),
                        Err(StoreError::Unexpected(what)) => results.push(Err(StoreError::Unexpected(what))),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(results))
}

/// Whether the term held.
async fn process_together(
    database: &Database,
    term: &Term,
    rows: &[ProcessedInboxSubmission],
) -> Result<bool, StoreError> {
    let mut values = term_values(Some(term));
    for item in rows {
        values.extend([Value::Number(item.seq.0), Value::Number(i64::from(item.tries))]);
        match &item.result {
            Ok(Draft { email, phone, name, body }) => {
                let optional = |text: &Option<String>| Value::Text(text.clone().unwrap_or_default());
                values.extend([optional(email), optional(phone), optional(name), Value::Text(body.clone())]);
            }
            Err(FailedInboxTry { error, next_try_at }) => {
                let next = next_try_at.map(json_moment).unwrap_or_default();
                values.extend([Value::Text(error.clone()), Value::Text(next)]);
            }
        }
    }
    let kinds: Vec<_> = rows.iter().map(|item| item.result.is_ok()).collect();
    let answer = run(database, process_statement(&kinds), values).await?;
    let row = answer.iter().flatten().next().ok_or_else(|| no_answer("submissions"))?;
    Ok(rows::need::<i64>(row, "held")? == 1)
}

pub const REPROCESS_ONE: &str = "
UPDATE inbox_submissions SET tries = 0, next_try_at = SYSUTCDATETIME() WHERE id = @P1 AND processed_at IS NULL;
SELECT CAST(@@ROWCOUNT AS BIGINT) AS changed;";

pub const REPROCESS_PARKED: &str = "
UPDATE inbox_submissions SET tries = 0, next_try_at = SYSUTCDATETIME() WHERE submission_seq IN (
    SELECT TOP (@P2) submission_seq FROM inbox_submissions
    WHERE client_slug = @P1 AND next_try_at IS NULL AND processed_at IS NULL ORDER BY submission_seq);
SELECT CAST(@@ROWCOUNT AS BIGINT) AS changed;";

pub async fn reprocess(database: &Database, which: &Reprocess) -> Result<usize, StoreError> {
    let (sql, values) = match which {
        Reprocess::One(id) => (REPROCESS_ONE, vec![Value::Text(id.to_string())]),
        Reprocess::ParkedOf { client_slug, limit } => {
            let limit = Value::Number(i64::try_from(*limit).unwrap_or(i64::MAX));
            (REPROCESS_PARKED, vec![Value::Text(client_slug.clone()), limit])
        }
    };
    let results = run(database, sql, values).await?;
    let row = results.iter().flatten().next().ok_or_else(|| no_answer("a wish"))?;
    Ok(usize::try_from(rows::need::<i64>(row, "changed")?).unwrap_or(0))
}

const SUBMISSION_COLUMNS: &str = "submission_seq, id, client_slug, channel, source_url, created_at, processed_at, tries, \
     error, next_try_at, message_id";

fn submission(row: &Row) -> Result<InboxSubmission, StoreError> {
    Ok(InboxSubmission {
        seq: InboxSubmissionSeq(rows::need(row, "submission_seq")?),
        id: rows::parsed(row, "id", InboxSubmissionId::parse)?,
        client_slug: rows::need::<&str>(row, "client_slug")?.to_owned(),
        channel: rows::parsed(row, "channel", Channel::parse)?,
        source_url: rows::text(row, "source_url")?,
        created_at: rows::need_moment(row, "created_at")?,
        processed_at: rows::moment(row, "processed_at")?,
        tries: rows::attempts(row, "tries")?,
        error: rows::text(row, "error")?,
        next_try_at: rows::moment(row, "next_try_at")?,
        message_id: rows::get(row, "message_id")?,
    })
}

pub fn find_statement() -> String {
    format!("SELECT {SUBMISSION_COLUMNS}, payload FROM inbox_submissions WHERE id = @P1;")
}

pub async fn find(database: &Database, id: InboxSubmissionId) -> Result<Option<(InboxSubmission, Bytes)>, StoreError> {
    let results = run(database, find_statement(), vec![Value::Text(id.to_string())]).await?;
    let Some(row) = results.iter().flatten().next() else { return Ok(None) };
    Ok(Some((submission(row)?, rows::bytes(row, "payload")?.unwrap_or_default())))
}

/// A list, newest first.
#[derive(Clone, Copy)]
pub struct Listing {
    columns: &'static str,
    table: &'static str,
    number: &'static str,
}

pub const SUBMISSIONS: Listing =
    Listing { columns: SUBMISSION_COLUMNS, table: "inbox_submissions", number: "submission_seq" };
pub const CONTACTS: Listing = Listing {
    columns: "contact_id, client_slug, email, phone, name, created_at",
    table: "inbox_contacts",
    number: "contact_id",
};
pub const MESSAGES: Listing = Listing {
    columns: "message_id, client_slug, contact_id, (SELECT s.id FROM inbox_submissions AS s
    WHERE s.submission_seq = inbox_messages.submission_seq) AS submission_id, channel,
    SUBSTRING(body, 1, 4001) AS body, source_url, processed_at",
    table: "inbox_messages",
    number: "message_id",
};

impl Listing {
    /// The first value is the limit, then those of the filters.
    pub fn statement(self, state: Option<InboxSubmissionState>, client: bool, contact: bool, behind: bool) -> String {
        let Self { columns, table, number } = self;
        let state = state.map(|state| match state {
            InboxSubmissionState::Received => "next_try_at IS NOT NULL AND tries = 0",
            InboxSubmissionState::Failed => "next_try_at IS NOT NULL AND tries > 0",
            InboxSubmissionState::Parked => "next_try_at IS NULL AND processed_at IS NULL",
            InboxSubmissionState::Processed => "processed_at IS NOT NULL",
        });
        let mut conditions: Vec<String> = state.map(str::to_owned).into_iter().collect();
        let wanted = [(client, "client_slug ="), (contact, "contact_id ="), (behind, &*format!("{number} <"))];
        for (place, (_, condition)) in wanted.iter().filter(|(wanted, _)| *wanted).enumerate() {
            conditions.push(format!("{condition} @P{}", place + 2));
        }
        let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        format!("SELECT TOP (@P1) {columns} FROM {table} {filter} ORDER BY {number} DESC;")
    }

    async fn rows(self, database: &Database, query: &InboxQuery) -> Result<ResultSets, StoreError> {
        let limit = query.limit.max(1).saturating_add(1);
        let mut values = vec![Value::Number(i64::try_from(limit).unwrap_or(i64::MAX))];
        values.extend(query.client_slug.clone().map(Value::Text));
        values.extend(query.contact_id.map(Value::Number));
        values.extend(query.after.map(Value::Number));
        let (client, contact) = (query.client_slug.is_some(), query.contact_id.is_some());
        run(database, self.statement(query.state, client, contact, query.after.is_some()), values).await
    }
}

pub async fn submissions(database: &Database, query: &InboxQuery) -> Result<InboxPage<InboxSubmission>, StoreError> {
    let results = SUBMISSIONS.rows(database, query).await?;
    let rows = results.iter().flatten().map(submission).collect::<Result<_, _>>()?;
    Ok(InboxPage::of(query, rows, |row: &InboxSubmission| row.seq.0))
}

pub async fn contacts(database: &Database, query: &InboxQuery) -> Result<InboxPage<Contact>, StoreError> {
    let results = CONTACTS.rows(database, query).await?;
    let contact = |row: &Row| {
        Ok(Contact {
            id: rows::need(row, "contact_id")?,
            client_slug: rows::need::<&str>(row, "client_slug")?.to_owned(),
            email: rows::text(row, "email")?,
            phone: rows::text(row, "phone")?,
            name: rows::text(row, "name")?,
            created_at: rows::need_moment(row, "created_at")?,
        })
    };
    let rows = results.iter().flatten().map(contact).collect::<Result<_, StoreError>>()?;
    Ok(InboxPage::of(query, rows, |contact: &Contact| contact.id))
}

pub async fn messages(database: &Database, query: &InboxQuery) -> Result<InboxPage<InboxMessage>, StoreError> {
    let results = MESSAGES.rows(database, query).await?;
    let message = |row: &Row| {
        Ok(InboxMessage {
            id: rows::need(row, "message_id")?,
            client_slug: rows::need::<&str>(row, "client_slug")?.to_owned(),
            contact_id: rows::need(row, "contact_id")?,
            submission_id: rows::parsed(row, "submission_id", InboxSubmissionId::parse)?,
            channel: rows::parsed(row, "channel", Channel::parse)?,
            body: Text::cut(rows::need::<&str>(row, "body")?.to_owned()),
            source_url: rows::text(row, "source_url")?,
            processed_at: rows::need_moment(row, "processed_at")?,
        })
    };
    let rows = results.iter().flatten().map(message).collect::<Result<_, StoreError>>()?;
    Ok(InboxPage::of(query, rows, |message: &InboxMessage| message.id))
}

async fn run(
    database: &Database,
    sql: impl Into<std::borrow::Cow<'static, str>>,
    values: Vec<Value>,
) -> Result<ResultSets, StoreError> {
    database.run(Batch { sql: sql.into(), values }).await
}

fn no_answer(what: &str) -> StoreError {
    StoreError::Unavailable(format!("the server did not answer {what}"))
}
