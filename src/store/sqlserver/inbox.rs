//! The inbox on SQL Server: stored submissions, and the contacts and messages made of them.
//!
//! New submissions are inserted with the batch of writes. Each submission is processed in a transaction of its own.

use std::collections::{HashMap, HashSet};

use bytes::{Bytes, BytesMut};
use serde_json::json;
use tiberius::Row;

use super::audit::{VARIABLES, append};
use super::database::{Batch, Database, Repeat};
use super::rows;
use super::script::{Column, Fence, Script, Values, json_text};
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, Draft, PayloadFormat};
use crate::domain::lease::Term;
use crate::store::sqlserver::rows::json_moment;
use crate::store::{
    Contact, DueInbox, DueInboxSubmission, FailedInboxTry, InboxBacklog, InboxMessage, InboxPage, InboxQuery,
    InboxSubmission, InboxSubmissionSeq, InboxSubmissionState, NewInboxSubmission, ProcessedInboxSubmission, Received,
    Reprocess, StoreError, Text,
};

/// Adds new submissions to a batch of writes. If several have the same key, only the first is inserted; the others are
/// compared with it afterwards.
pub(super) fn write_received(script: &mut Script, received: &[NewInboxSubmission]) {
    let mut items = Vec::with_capacity(received.len());
    let (mut payloads, mut hashes) = (BytesMut::new(), BytesMut::new());
    let mut keys = HashSet::new();
    let first = received.iter().filter(|new| new.key_sha256.is_none_or(|key| keys.insert(key)));
    for (place, new) in first.enumerate() {
        let mut hash = |bytes: &[u8; 32]| {
            hashes.extend_from_slice(bytes);
            hashes.len() - 31
        };
        items.push(json!({
            "place": place, "id": new.id.to_string(), "client_slug": json_text(&new.client_slug),
            "channel": new.channel.as_str(), "source_url": new.source_url.as_deref().map(json_text),
            "payload_from": payloads.len() + 1, "payload_length": new.payload.len(),
            "key_sha256": new.key_sha256.as_ref().map(&mut hash), "content_sha256": hash(&new.content_sha256()),
            "is_form": u8::from(new.format == PayloadFormat::Form),
        }));
        payloads.extend_from_slice(&new.payload);
    }
    let (payloads, hashes) = (script.values.bytes(payloads.freeze()), script.values.bytes(hashes.freeze()));
    let columns = [
        Column::key("place"),
        Column::code("id", 36),
        Column::text("client_slug", 200),
        Column::code("channel", 10),
        Column::text("source_url", 4000),
        Column::of("payload_from", "BIGINT"),
        Column::of("payload_length", "BIGINT"),
        Column::hash("key_sha256", &hashes),
        Column::hash("content_sha256", &hashes),
        Column::of("is_form", "BIGINT"),
    ];
    script.input("received", items, columns);
    script.change(&format!(
        "
INSERT INTO inbox_submissions (id, client_slug, channel, payload, source_url, key_sha256, content_sha256, created_at,
    tries, next_try_at)
SELECT r.id, r.client_slug, r.channel, SUBSTRING({payloads}, r.payload_from, r.payload_length), r.source_url,
    r.key_sha256, r.content_sha256, @now, 0, @now
FROM @received AS r
WHERE NOT EXISTS (
    SELECT 1 FROM inbox_submissions AS s WHERE s.key_sha256 IS NOT NULL AND s.key_sha256 = r.key_sha256)
ORDER BY r.place;
INSERT INTO inbox_forms (submission_seq)
SELECT s.submission_seq FROM @received AS r JOIN inbox_submissions AS s ON s.id = r.id
WHERE r.is_form = 1 AND NOT EXISTS (SELECT 1 FROM inbox_forms AS f WHERE f.submission_seq = s.submission_seq);"
    ));
    // Returns what is stored under the keys of the batch.
    script.answer(
        "
SELECT s.id, s.key_sha256, s.content_sha256 FROM @received AS r
JOIN inbox_submissions AS s ON s.key_sha256 IS NOT NULL AND s.key_sha256 = r.key_sha256;",
    );
}

pub(super) fn received(
    new: &[NewInboxSubmission],
    rows: &[Row],
) -> Result<Vec<Result<Received, StoreError>>, StoreError> {
    let mut by_key: HashMap<Vec<u8>, (InboxSubmissionId, Vec<u8>)> = HashMap::new();
    for row in rows {
        let bytes = |column| rows::need::<&[u8]>(row, column).map(<[u8]>::to_vec);
        let id = rows::parsed(row, "id", InboxSubmissionId::parse)?;
        by_key.insert(bytes("key_sha256")?, (id, bytes("content_sha256")?));
    }
    let answer = |new: &NewInboxSubmission| {
        let Some(key) = new.key_sha256 else { return Ok(Received::Created(new.id)) };
        let lost = || StoreError::unavailable("the server did not return what is stored under a key");
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

pub(super) fn look_batch(limit: usize) -> Batch {
    let mut values = Values::default();
    let limit = values.count(limit);
    values.batch(format!(
        "
SELECT SYSUTCDATETIME() AS now_at, (SELECT MIN(next_try_at) FROM inbox_submissions WHERE next_try_at IS NOT NULL) AS next_at,
    (SELECT TOP (1) created_at FROM inbox_submissions WHERE next_try_at IS NOT NULL ORDER BY submission_seq) AS oldest_at,
    (SELECT COUNT_BIG(*) FROM inbox_submissions WHERE next_try_at IS NULL AND processed_at IS NULL) AS parked;
SELECT TOP ({limit}) submission_seq, id, client_slug, channel, payload, tries, CASE WHEN EXISTS (SELECT 1 FROM inbox_forms AS f
    WHERE f.submission_seq = inbox_submissions.submission_seq) THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS is_form
FROM inbox_submissions WHERE next_try_at <= SYSUTCDATETIME() ORDER BY next_try_at, submission_seq;"
    ))
}

pub(super) async fn look(database: &Database, limit: usize) -> Result<DueInbox, StoreError> {
    let results = database.run(look_batch(limit)).await?;
    let head = results.first().and_then(|rows| rows.first()).ok_or_else(|| no_answer("a query for due submissions"))?;
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

/// Statements that make a message of a submission, in a transaction of its own.
///
/// They find the contact by its email; else the one with this phone and no email, which then gets the email; else, if
/// there is no email, the oldest one with this phone; else they create one. A phone is filled in only if no other
/// contact of the client has it, because messages from that number would then go to this contact.
fn process_row(values: &mut Values, fence: &str, item: &ProcessedInboxSubmission, draft: &Draft) -> String {
    let Draft { email, phone, name, body } = draft;
    let (seq, tries) = (values.number(item.seq.0), values.number(i64::from(item.tries)));
    let mut optional = |text: &Option<String>| values.text(text.clone().unwrap_or_default());
    let (email, phone, name) = (optional(email), optional(phone), optional(name));
    let body = values.text(body);
    format!(
        "
SELECT @held = 0, @waits = 0, @contact = NULL, @phone = NULLIF({phone}, N'');
BEGIN TRANSACTION;{fence}{TICK}
SELECT @slug = client_slug, @waits = 1 FROM inbox_submissions
WHERE submission_seq = {seq} AND tries = {tries} AND next_try_at IS NOT NULL AND @held = 1;
IF @waits = 1
BEGIN
    IF {email} <> N''
        SET @contact = (SELECT MIN(contact_id) FROM inbox_contacts WHERE client_slug = @slug AND email = {email});
    IF @contact IS NULL
        SET @contact = (SELECT MIN(contact_id) FROM inbox_contacts
            WHERE client_slug = @slug AND phone = @phone AND email IS NULL);
    IF @contact IS NULL AND {email} = N''
        SET @contact = (SELECT MIN(contact_id) FROM inbox_contacts WHERE client_slug = @slug AND phone = @phone);
    IF @contact IS NULL
    BEGIN
        INSERT INTO inbox_contacts (client_slug, email, phone, name, created_at)
        VALUES (@slug, NULLIF({email}, N''), @phone, NULLIF({name}, N''), @now);
        SET @contact = (SELECT MAX(contact_id) FROM inbox_contacts WHERE client_slug = @slug);
    END
    ELSE
    BEGIN
        UPDATE inbox_contacts SET name = COALESCE(name, NULLIF({name}, N'')),
            email = COALESCE(email, NULLIF({email}, N'')),
            phone = COALESCE(phone, CASE WHEN NOT EXISTS (SELECT 1 FROM inbox_contacts AS o
                WHERE o.client_slug = @slug AND o.phone = @phone AND o.contact_id <> @contact) THEN @phone END)
        WHERE contact_id = @contact AND (name IS NULL OR email IS NULL OR phone IS NULL);
    END;
    INSERT INTO inbox_messages (submission_seq, client_slug, contact_id, channel, body, source_url, processed_at)
    SELECT submission_seq, client_slug, @contact, channel, {body}, source_url, @now FROM inbox_submissions
    WHERE submission_seq = {seq};
    UPDATE inbox_submissions SET processed_at = @now, error = NULL, next_try_at = NULL,
        message_id = (SELECT m.message_id FROM inbox_messages AS m WHERE m.submission_seq = {seq})
    WHERE submission_seq = {seq};
END;
COMMIT TRANSACTION;"
    )
}

/// Statements that record the error of a submission, in a transaction of their own.
fn fail_row(values: &mut Values, fence: &str, item: &ProcessedInboxSubmission, failed: &FailedInboxTry) -> String {
    let (seq, tries) = (values.number(item.seq.0), values.number(i64::from(item.tries)));
    let error = values.text(&failed.error);
    // Empty if it is not tried again, because typed parameters cannot be NULL on every server.
    let next = values.text(failed.next_try_at.map(json_moment).unwrap_or_default());
    format!(
        "
SET @held = 0;
BEGIN TRANSACTION;{fence}{TICK}
UPDATE inbox_submissions SET tries = tries + 1, error = {error},
    next_try_at = CAST(NULLIF({next}, N'') AS DATETIME2(6))
WHERE submission_seq = {seq} AND tries = {tries} AND next_try_at IS NOT NULL AND @held = 1;
COMMIT TRANSACTION;"
    )
}

/// Builds the batch that records the results of several submissions in one round trip, and then returns whether the
/// term held the lease in the last transaction.
pub(super) fn process_batch(term: &Term, rows: &[ProcessedInboxSubmission]) -> Batch {
    let mut values = Values::default();
    let Fence { sql: fence, .. } = values.fence(term);
    let mut sql = String::from(
        "DECLARE @now DATETIME2(6), @held BIGINT, @waits BIGINT, @contact BIGINT, @slug NVARCHAR(200), @phone NVARCHAR(80);",
    );
    for item in rows {
        sql += &match &item.result {
            Ok(draft) => process_row(&mut values, &fence, item, draft),
            Err(failed) => fail_row(&mut values, &fence, item, failed),
        };
    }
    values.batch(sql + "\nSELECT @held AS held;")
}

/// Submissions in one round trip. They have up to 120 parameters, and as many texts as payloads.
const ROWS: usize = 20;

pub(super) async fn process(
    database: &Database,
    term: &Term,
    processed: &[ProcessedInboxSubmission],
) -> Result<Option<Vec<Result<(), StoreError>>>, StoreError> {
    let mut results = Vec::with_capacity(processed.len());
    for rows in processed.chunks(ROWS) {
        match process_together(database, term, rows).await {
            Ok(true) => results.extend(rows.iter().map(|_| Ok(()))),
            Ok(false) => return Ok(None),
            // The server refused one of them. They are repeated one by one; those that were recorded already do not
            // change again.
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

/// Records the results of several submissions. Returns whether the term held the lease.
async fn process_together(
    database: &Database,
    term: &Term,
    rows: &[ProcessedInboxSubmission],
) -> Result<bool, StoreError> {
    let answer = database.run(process_batch(term, rows)).await?;
    let row = answer.iter().flatten().next().ok_or_else(|| no_answer("a batch of inbox results"))?;
    Ok(rows::need::<i64>(row, "held")? == 1)
}

pub(super) fn reprocess_batch(which: &Reprocess, by: &Actor) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, &which.audit_entry(by));
    let condition = match which {
        Reprocess::One(id) => format!("id = {} AND processed_at IS NULL", values.code(id.to_string(), 36)),
        Reprocess::ParkedOf { client_slug, limit } => format!(
            "submission_seq IN (
    SELECT TOP ({}) submission_seq FROM inbox_submissions
    WHERE client_slug = {} AND next_try_at IS NULL AND processed_at IS NULL ORDER BY submission_seq)",
            values.count(*limit),
            values.text(client_slug)
        ),
    };
    let batch = values.batch(format!(
        "DECLARE @now DATETIME2(6), @changed BIGINT, {VARIABLES};
BEGIN TRANSACTION;{TICK}
UPDATE inbox_submissions SET tries = 0, next_try_at = SYSUTCDATETIME() WHERE {condition};
SET @changed = @@ROWCOUNT;
IF @changed > 0
BEGIN{entry}
END;
COMMIT TRANSACTION;
SELECT @changed AS changed;"
    ));
    Batch { repeat: Repeat::IfRolledBack, ..batch }
}

pub(super) async fn reprocess(database: &Database, which: &Reprocess, by: &Actor) -> Result<usize, StoreError> {
    let results = database.run(reprocess_batch(which, by)).await?;
    let row = results.iter().flatten().next().ok_or_else(|| no_answer("a request to reprocess"))?;
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

pub(super) fn find_batch(id: InboxSubmissionId) -> Batch {
    let mut values = Values::default();
    let id = values.code(id.to_string(), 36);
    values.batch(format!("SELECT {SUBMISSION_COLUMNS}, payload FROM inbox_submissions WHERE id = {id};"))
}

pub(super) async fn find(
    database: &Database,
    id: InboxSubmissionId,
) -> Result<Option<(InboxSubmission, Bytes)>, StoreError> {
    let results = database.run(find_batch(id)).await?;
    let Some(row) = results.iter().flatten().next() else { return Ok(None) };
    Ok(Some((submission(row)?, rows::bytes(row, "payload")?.unwrap_or_default())))
}

/// A list of rows, newest first.
#[derive(Clone, Copy)]
pub(super) struct Listing {
    columns: &'static str,
    table: &'static str,
    number: &'static str,
}

pub(super) const SUBMISSIONS: Listing =
    Listing { columns: SUBMISSION_COLUMNS, table: "inbox_submissions", number: "submission_seq" };
pub(super) const CONTACTS: Listing = Listing {
    columns: "contact_id, client_slug, email, phone, name, created_at",
    table: "inbox_contacts",
    number: "contact_id",
};
/// The query cuts each body after so many UTF-16 code units that one character more than lists show is included,
/// whatever the characters are. If the cut divides a surrogate pair, it is beyond the characters that are shown.
pub(super) const MESSAGES: Listing = Listing {
    columns: "message_id, client_slug, contact_id, (SELECT s.id FROM inbox_submissions AS s
    WHERE s.submission_seq = inbox_messages.submission_seq) AS submission_id, channel,
    SUBSTRING(body, 1, 8002) AS body, source_url, processed_at",
    table: "inbox_messages",
    number: "message_id",
};

impl Listing {
    pub(super) fn batch(self, query: &InboxQuery) -> Batch {
        let Self { columns, table, number } = self;
        let mut values = Values::default();
        let limit = values.count(query.limit.max(1).saturating_add(1));
        let state = query.state.map(|state| match state {
            InboxSubmissionState::Received => "next_try_at IS NOT NULL AND tries = 0",
            InboxSubmissionState::Failed => "next_try_at IS NOT NULL AND tries > 0",
            InboxSubmissionState::Parked => "next_try_at IS NULL AND processed_at IS NULL",
            InboxSubmissionState::Processed => "processed_at IS NOT NULL",
        });
        let mut conditions: Vec<String> = state.map(str::to_owned).into_iter().collect();
        if let Some(slug) = &query.client_slug {
            conditions.push(format!("client_slug = {}", values.text(slug)));
        }
        if let Some(contact) = query.contact_id {
            conditions.push(format!("contact_id = {}", values.number(contact)));
        }
        if let Some(after) = query.after {
            conditions.push(format!("{number} < {}", values.number(after)));
        }
        let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        values.batch(format!("SELECT TOP ({limit}) {columns} FROM {table} {filter} ORDER BY {number} DESC;"))
    }
}

pub(super) async fn submissions(
    database: &Database,
    query: &InboxQuery,
) -> Result<InboxPage<InboxSubmission>, StoreError> {
    let results = database.run(SUBMISSIONS.batch(query)).await?;
    let rows = results.iter().flatten().map(submission).collect::<Result<_, _>>()?;
    Ok(InboxPage::of(query, rows, |row: &InboxSubmission| row.seq.0))
}

pub(super) async fn contacts(database: &Database, query: &InboxQuery) -> Result<InboxPage<Contact>, StoreError> {
    let results = database.run(CONTACTS.batch(query)).await?;
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

pub(super) async fn messages(database: &Database, query: &InboxQuery) -> Result<InboxPage<InboxMessage>, StoreError> {
    let results = database.run(MESSAGES.batch(query)).await?;
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

fn no_answer(what: &str) -> StoreError {
    StoreError::unavailable(format!("the server did not answer {what}"))
}
