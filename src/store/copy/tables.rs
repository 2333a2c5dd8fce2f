//! The tables that a copy transfers, with their columns. Both stores read and write them through this list, so a table or a
//! column that is missing here is not copied: tests compare the list with the schemas.
//!
//! A row is the same in both stores. Where a store keeps it in another form, the store converts it: SQLite keeps payloads
//! and the reasons of pauses in tables of their own, and SQL Server keeps hashes of long texts.

use bytes::Bytes;

use crate::domain::time::Timestamp;

/// A table of both stores.
#[derive(Debug)]
pub(in crate::store) struct Table {
    pub name: &'static str,
    pub columns: &'static [Column],
    /// How many of the columns, from the first, identify a row. Rows are copied in their order. A table without a key has
    /// exactly one row, which migrations insert.
    pub key: usize,
    /// Whether SQL Server assigns the first column.
    pub numbered: bool,
    /// The column that can be so large that it limits how many rows are read at a time.
    pub large: Option<&'static str>,
}

impl Table {
    pub(in crate::store) fn key_columns(&self) -> &'static [Column] {
        self.columns.get(..self.key).unwrap_or_default()
    }

    /// Whether the table has exactly one row, in an empty store too.
    pub(in crate::store) fn has_one_row(&self) -> bool {
        self.key == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Column {
    pub name: &'static str,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Kind {
    Number,
    Text,
    /// A point in time: SQLite stores microseconds, SQL Server a DATETIME2(6).
    Moment,
    /// Bytes of any length.
    Bytes,
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Cell {
    Null,
    Number(i64),
    Text(String),
    Moment(Timestamp),
    Bytes(Bytes),
}

impl Cell {
    /// How many bytes the value takes in memory, roughly.
    pub(in crate::store) fn size(&self) -> usize {
        match self {
            Self::Null | Self::Number(_) | Self::Moment(_) => 8,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// The values of a row, in the order of the columns.
pub(in crate::store) type Row = Vec<Cell>;

const fn number(name: &'static str) -> Column {
    Column { name, kind: Kind::Number }
}

const fn text(name: &'static str) -> Column {
    Column { name, kind: Kind::Text }
}

const fn moment(name: &'static str) -> Column {
    Column { name, kind: Kind::Moment }
}

const fn bytes(name: &'static str) -> Column {
    Column { name, kind: Kind::Bytes }
}

const fn table(name: &'static str, key: usize, columns: &'static [Column]) -> Table {
    Table { name, columns, key, numbered: false, large: None }
}

const fn numbered(name: &'static str, columns: &'static [Column]) -> Table {
    Table { numbered: true, ..table(name, 1, columns) }
}

/// All tables, in the order in which they are copied: a table comes after those that its rows refer to.
pub(in crate::store) static TABLES: [Table; 26] = [
    numbered("submission_gateways", &[number("gateway_id"), text("gateway_url")]),
    numbered(
        "submission_contracts",
        &[number("contract_id"), number("gateway_id"), text("submission_target"), text("snapshot")],
    ),
    numbered("submission_webhook_receivers", &[number("receiver_id"), text("origin")]),
    table("submission_contract_uses", 1, &[number("contract_id"), moment("first_used_at")]),
    table("submission_contract_receivers", 1, &[number("contract_id"), number("receiver_id")]),
    table("submission_gateway_reach", 1, &[number("gateway_id"), number("unreachable"), moment("tried_at")]),
    table(
        "submission_target_pauses",
        1,
        &[text("submission_target"), moment("paused_at"), text("paused_by"), text("reason")],
    ),
    table(
        "submission_minutes",
        5,
        &[
            number("minute"),
            number("contract_id"),
            text("outcome"),
            text("cause"),
            text("status"),
            number("attempts"),
            number("micros"),
        ],
    ),
    Table {
        large: Some("payload"),
        ..numbered(
            "submission_intents",
            &[
                number("intent_seq"),
                text("intent_id"),
                number("contract_id"),
                number("gateway_id"),
                bytes("payload"),
                bytes("payload_sha256"),
                text("status"),
                number("attempt_count"),
                moment("next_attempt_at"),
                moment("deadline_at"),
                number("open_lease_epoch"),
                moment("open_started_at"),
                moment("created_at"),
                moment("completed_at"),
                text("rejected_reason"),
                text("exhausted_reason"),
                moment("last_modified_at"),
            ],
        )
    },
    table(
        "submission_intent_options",
        1,
        &[
            number("intent_seq"),
            moment("not_before"),
            moment("cancel_requested_at"),
            text("redrive_of"),
            text("redrive_id"),
            text("gateway_key"),
        ],
    ),
    table(
        "submission_jobs",
        1,
        &[
            number("intent_seq"),
            bytes("key_sha256"),
            text("submission_id"),
            text("tenant_id"),
            text("workspace_id"),
            text("job_id"),
            text("idempotency_key"),
            text("management_node_id"),
            moment("accepted_at"),
        ],
    ),
    table("submission_traces", 1, &[number("intent_seq"), text("traceparent")]),
    ATTEMPTS,
    table("submission_terms", 1, &[number("lease_epoch"), text("holder_id"), moment("acquired_at")]),
    table(
        "submission_webhook_events",
        1,
        &[
            number("intent_seq"),
            number("receiver_id"),
            text("status"),
            moment("owed_since"),
            number("tries_before"),
            number("tries"),
            moment("next_try_at"),
            number("open_lease_epoch"),
            moment("open_started_at"),
        ],
    ),
    table(
        "submission_webhook_tries",
        2,
        &[
            number("intent_seq"),
            number("try_number"),
            number("lease_epoch"),
            moment("started_at"),
            moment("finished_at"),
            number("http_status"),
            text("error"),
        ],
    ),
    numbered(
        "submission_redrives",
        &[
            number("redrive_seq"),
            text("redrive_id"),
            text("state"),
            moment("planned_at"),
            moment("started_at"),
            moment("ended_at"),
            text("filter"),
            number("include_unknown"),
            text("note"),
            number("rate_per_second"),
            number("intent_count"),
            number("created_count"),
            number("skipped_count"),
            text("plan_summary"),
            text("outcomes"),
        ],
    ),
    table(
        "submission_redrive_items",
        3,
        &[number("redrive_seq"), number("target_number"), number("position"), number("intent_seq")],
    ),
    numbered(
        "inbox_contacts",
        &[number("contact_id"), text("client_slug"), text("email"), text("phone"), text("name"), moment("created_at")],
    ),
    Table {
        large: Some("payload"),
        ..numbered(
            "inbox_submissions",
            &[
                number("submission_seq"),
                text("id"),
                text("client_slug"),
                text("channel"),
                bytes("payload"),
                text("source_url"),
                bytes("key_sha256"),
                bytes("content_sha256"),
                moment("created_at"),
                moment("processed_at"),
                number("tries"),
                text("error"),
                moment("next_try_at"),
                number("message_id"),
            ],
        )
    },
    table("inbox_forms", 1, &[number("submission_seq")]),
    Table {
        large: Some("body"),
        ..numbered(
            "inbox_messages",
            &[
                number("message_id"),
                number("submission_seq"),
                text("client_slug"),
                number("contact_id"),
                text("channel"),
                text("body"),
                text("source_url"),
                moment("processed_at"),
            ],
        )
    },
    table("submission_feed_start", 0, &[moment("ended_at"), number("intent_seq")]),
    table("submission_fleet_minutes", 1, &[number("minute"), number("submitted"), number("waiting")]),
    table(
        "submission_audit_log",
        1,
        &[
            number("entry_id"),
            moment("recorded_at"),
            text("actor_kind"),
            text("actor_name"),
            text("address"),
            text("action"),
            text("subject"),
            text("details"),
            bytes("previous_hash"),
            bytes("hash"),
        ],
    ),
    table("submission_audit_head", 0, &[number("last_id"), bytes("last_hash")]),
];

/// The attempts. Their message ids are also in the index of message ids, which each store keeps in its own form.
const ATTEMPTS: Table = table(
    "submission_attempts",
    2,
    &[
        number("intent_seq"),
        number("attempt_number"),
        number("lease_epoch"),
        moment("started_at"),
        moment("finished_at"),
        text("outcome_status"),
        text("outcome_reason"),
        text("error"),
        text("gateway_message_id"),
    ],
);
