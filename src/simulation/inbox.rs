//! Senders of inbox submissions, and what becomes of the submissions.

use std::rc::Rc;

use bytes::Bytes;
use fastrand::Rng;
use rusqlite::Connection;

use super::checks::Promise;
use super::end::query;
use super::fleet::{Fleet, PATIENCE};
use super::store::pass;
use super::world::World;
use crate::domain::inbox::{Channel, InboxSubmissionId, PayloadFormat};
use crate::store::{NewInboxSubmission, Received};
use crate::web;

/// The clients of the inbox.
pub(super) const CLIENTS: [&str; 2] = ["acme", "globex"];

/// A submission that somebody sends to the inbox.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The submissions of one number have the same idempotency key.
    number: usize,
    has_key: bool,
    client: usize,
    payload: String,
    tries: usize,
}

impl Sent {
    /// Draws a submission. Some are of the same person, and some cannot be processed.
    pub(super) fn draw(random: &mut Rng, number: usize) -> Self {
        let (person, other) = (random.usize(0..3), random.usize(0..3));
        let payload = match random.usize(0..8) {
            0 => "7".to_owned(),
            1 | 2 => format!(r#"{{"phone":"+4670000000{person}","message":"{number}"}}"#),
            3 => format!(r#"{{"email":"p{person}@a.test","phone":"+4670000000{other}","message":"{number}"}}"#),
            _ => format!(r#"{{"email":"p{person}@a.test","message":"{number}"}}"#),
        };
        let (has_key, client) = (random.f64() < 0.8, random.usize(0..CLIENTS.len()));
        Self { number, has_key, client, payload, tries: random.usize(1..=5) }
    }

    fn new_submission(&self) -> NewInboxSubmission {
        let mut key = [0; 32];
        key[0] = u8::try_from(self.number).unwrap();
        NewInboxSubmission {
            id: InboxSubmissionId::from_random(web::id_bytes().unwrap()),
            client_slug: CLIENTS[self.client].to_owned(),
            channel: Channel::Form,
            payload: Bytes::from(self.payload.clone().into_bytes()),
            format: PayloadFormat::Json,
            source_url: None,
            key_sha256: self.has_key.then_some(key),
        }
    }
}

/// Sends a submission to the inbox. Without an answer it is sent again if it has a key.
pub(super) async fn send(fleet: &Rc<Fleet>, sent: Sent) {
    let world = &fleet.world;
    for _ in 0..if sent.has_key { sent.tries } else { 1 } {
        let new = sent.new_submission();
        let answer =
            fleet.request(PATIENCE, move |running| Box::pin(async move { running.web.store.receive(new).await }));
        match answer.await {
            Some(Ok(Received::Created(id) | Received::Existing(id))) => return world.told_received(&sent, id),
            Some(Ok(Received::Conflict(id))) => {
                return world.check(Promise::OneKeyOneMessage, false, || format!("{sent:?} conflicts with {id}"));
            }
            Some(Err(error)) => world.log(format_args!("inbox {}: {}", sent.number, error.kind())),
            None => world.log(format_args!("inbox {}: no answer", sent.number)),
        }
        let pause = world.draw_millis(50, 1_500);
        pass(pause).await;
    }
}

/// A stored submission: its number, id, client, message and how often it failed.
type Stored = (i64, String, String, Option<i64>, u32);

impl World {
    /// Records that a submission was confirmed.
    fn told_received(&self, sent: &Sent, id: InboxSubmissionId) {
        self.log(format_args!("inbox {}: {id}", sent.number));
        let same = {
            let mut state = self.state();
            state.ledgers.inbox.received.insert(id.to_string());
            !sent.has_key || *state.ledgers.inbox.by_key.entry(sent.number).or_insert(id) == id
        };
        self.check(Promise::OneKeyOneMessage, same, || {
            format!("{sent:?} was stored as {id}, and before under another id")
        });
    }

    /// Returns the submissions that wait to be processed, but not those that cannot be.
    pub(super) fn unprocessed(connection: &Connection) -> Vec<String> {
        let sql = "SELECT 'inbox submission ' || id FROM inbox_submissions
            WHERE processed_at IS NULL AND (tries = 0 OR payload <> CAST('7' AS BLOB)) ORDER BY submission_seq";
        query(connection, sql, [], |row| row.get(0))
    }

    /// Checks the submissions, messages and contacts at the end of a run.
    pub(super) fn check_inbox(&self) {
        let submissions: Vec<Stored> = self.store.inspect(|connection| {
            let sql = "SELECT submission_seq, id, client_slug, message_id, tries FROM inbox_submissions";
            query(connection, sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        });
        for (seq, id, client, message, tries) in &submissions {
            // The clients of the messages of this submission, and of their contacts.
            let messages: Vec<(i64, String, String)> = self.store.inspect(|connection| {
                let sql = "SELECT m.message_id, m.client_slug, c.client_slug FROM inbox_messages m
                    JOIN inbox_contacts c USING (contact_id) WHERE m.submission_seq = ?1";
                query(connection, sql, [seq], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            });
            let kept = match (message, messages.as_slice()) {
                (Some(message), [(own, of, contact)]) => own == message && of == client && contact == client,
                (None, []) => *tries > 0,
                _ => false,
            };
            self.check(Promise::OneKeyOneMessage, kept, || {
                format!("submission {id} of {client} with message {message:?} has {messages:?}")
            });
        }
        let received = std::mem::take(&mut self.state().ledgers.inbox.received);
        for told in received {
            let exists = submissions.iter().any(|(_, id, ..)| *id == told);
            self.check(Promise::OneKeyOneMessage, exists, || format!("submission {told} was confirmed and is gone"));
        }
        let twins: Vec<String> = self.store.inspect(|connection| {
            let sql = "SELECT client_slug || ' ' || coalesce(email, phone) FROM inbox_contacts
                GROUP BY client_slug, email, iif(email IS NULL, phone, '') HAVING count(*) > 1";
            query(connection, sql, [], |row| row.get(0))
        });
        self.check(Promise::OneContact, twins.is_empty(), || format!("there are two contacts of {twins:?}"));
    }
}
