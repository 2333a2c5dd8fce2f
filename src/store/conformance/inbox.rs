//! The inbox: submissions are stored first and processed later. Each becomes one message of one contact.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Fixture;
use crate::domain::actor::fixtures::somebody;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, Draft, PayloadFormat};
use crate::domain::lease::Term;
use crate::store::{
    Contact, DueInboxSubmission, FailedInboxTry, FencedError, InboxQuery, InboxSubmission, InboxSubmissionState,
    NewInboxSubmission, ProcessedInboxSubmission, Received, Reprocess, SHOWN_CHARS, Store, WriteBatch,
};

pub(super) fn new(number: u8, client_slug: &str, payload: &[u8]) -> NewInboxSubmission {
    NewInboxSubmission {
        id: submission_id(number),
        client_slug: client_slug.to_owned(),
        channel: Channel::Form,
        payload: Bytes::copy_from_slice(payload),
        format: PayloadFormat::Json,
        source_url: None,
        key_sha256: None,
    }
}

fn submission_id(number: u8) -> InboxSubmissionId {
    InboxSubmissionId::from_random([number; 16])
}

fn keyed(number: u8, key: &str, payload: &[u8]) -> NewInboxSubmission {
    NewInboxSubmission { key_sha256: Some(Sha256::digest(key).into()), ..new(number, "acme", payload) }
}

pub(super) async fn receive(store: &dyn Store, new: Vec<NewInboxSubmission>) -> Vec<Received> {
    let results = store.commit(WriteBatch { received: new, ..WriteBatch::default() }).await.unwrap();
    results.received.into_iter().map(Result::unwrap).collect()
}

async fn due(fixture: &Fixture) -> Vec<DueInboxSubmission> {
    fixture.store.due_inbox(100).await.unwrap().due
}

/// The result of parsing a submission.
pub(super) fn drafted(
    due: &DueInboxSubmission,
    email: Option<&str>,
    phone: Option<&str>,
    body: &str,
) -> ProcessedInboxSubmission {
    let own = |text: Option<&str>| text.map(str::to_owned);
    let draft = Draft { email: own(email), phone: own(phone), name: None, body: body.to_owned() };
    ProcessedInboxSubmission { seq: due.seq, tries: due.tries, result: Ok(draft) }
}

pub(super) async fn process(fixture: &Fixture, term: &Term, processed: Vec<ProcessedInboxSubmission>) {
    let results = fixture.store.process_inbox(term.clone(), processed).await.expect("the term lasts");
    results.into_iter().for_each(|result| result.unwrap());
}

async fn find(fixture: &Fixture, id: InboxSubmissionId) -> (InboxSubmission, Bytes) {
    fixture.other.find_submission(id).await.unwrap().unwrap()
}

pub(super) fn of(slug: &str) -> InboxQuery {
    InboxQuery { client_slug: Some(slug.to_owned()), limit: 100, ..InboxQuery::default() }
}

pub async fn submissions_are_stored_unchanged(fixture: Fixture) {
    let payload = "{ \"a\" : \"\\u0000 ~ \\\" é 😀\" }".as_bytes();
    let raw = [0, 255, b'{', 10];
    let mut full = new(1, "ac~me \"x\"", payload);
    full.source_url = Some("https://x/?a=~1&b=\"é\"".to_owned());
    full.channel = Channel::Voice;
    let results = receive(&*fixture.store, vec![full.clone(), new(2, "acme", &raw), new(3, "acme", b"")]).await;
    assert_eq!(results, [1, 2, 3].map(|number| Received::Created(submission_id(number))));
    let (row, kept) = find(&fixture, submission_id(1)).await;
    assert_eq!((kept.as_ref(), row.state(), row.tries), (payload, InboxSubmissionState::Received, 0));
    assert_eq!((row.client_slug, row.channel, row.source_url), (full.client_slug, Channel::Voice, full.source_url));
    assert_eq!(find(&fixture, submission_id(2)).await.1.as_ref(), raw);
    assert_eq!(find(&fixture, submission_id(3)).await.1.as_ref(), b"");
    assert_eq!(fixture.store.find_submission(submission_id(9)).await.unwrap(), None);
    assert_eq!(due(&fixture).await.len(), 3, "no instance has to lead for this");
}

pub async fn the_format_of_a_payload_is_stored(fixture: Fixture) {
    let form = |number| NewInboxSubmission { format: PayloadFormat::Form, ..new(number, "acme", b"From=1") };
    let keyed_form = |number, key| NewInboxSubmission { format: PayloadFormat::Form, ..keyed(number, key, b"From=1") };
    let submissions =
        vec![new(1, "acme", b"{}"), form(2), keyed_form(3, "k"), keyed_form(4, "k"), keyed(5, "l", b"{}")];
    receive(&*fixture.store, submissions).await;
    receive(&*fixture.other, vec![keyed_form(6, "k"), form(7)]).await;
    let formats: Vec<_> = due(&fixture).await.iter().map(|row| (row.id, row.format)).collect();
    let (json, form) = (PayloadFormat::Json, PayloadFormat::Form);
    let expected = [(1, json), (2, form), (3, form), (5, json), (7, form)];
    assert_eq!(formats, expected.map(|(number, format)| (submission_id(number), format)));
}

pub async fn one_key_is_one_submission(fixture: Fixture) {
    let same = keyed(1, "k", b"{}");
    let results =
        receive(&*fixture.store, vec![same, keyed(2, "k", b"{}"), keyed(3, "k", b"1"), keyed(4, "l", b"{}")]).await;
    let first = submission_id(1);
    assert_eq!(
        results,
        [
            Received::Created(first),
            Received::Existing(first),
            Received::Conflict(first),
            Received::Created(submission_id(4))
        ]
    );
    let mut elsewhere = keyed(6, "k", b"{}");
    elsewhere.source_url = Some("https://x".to_owned());
    let again = receive(&*fixture.other, vec![keyed(5, "k", b"{}"), elsewhere]).await;
    assert_eq!(again, [Received::Existing(first), Received::Conflict(first)]);
    let races = (0..10_u8).map(|number| {
        let store = Arc::clone(if number % 2 == 0 { &fixture.store } else { &fixture.other });
        tokio::spawn(async move { receive(&*store, vec![keyed(20 + number, "race", b"{}")]).await[0] })
    });
    let mut created = 0;
    for race in races.collect::<Vec<_>>() {
        created += usize::from(matches!(race.await.unwrap(), Received::Created(_)));
    }
    assert_eq!(created, 1);
}

pub async fn a_submission_becomes_one_message_of_one_contact(fixture: Fixture) {
    let submissions = (1..=6).map(|number| new(number, if number == 6 { "globex" } else { "acme" }, b"{}")).collect();
    receive(&*fixture.store, submissions).await;
    let rows = due(&fixture).await;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), (1..=6).map(submission_id).collect::<Vec<_>>());
    let term = fixture.lead("a").await;
    let ann = Some("ann@x");
    let drafts = vec![
        drafted(&rows[0], ann, None, "one\ntwo \u{202e} 😀 '"),
        drafted(&rows[1], ann, Some("+461"), "again"),
        drafted(&rows[2], None, Some("+461"), "by phone"),
        drafted(&rows[3], None, Some("+462"), "somebody else"),
        drafted(&rows[4], Some("bob@x"), Some("+461"), "shares a phone"),
        drafted(&rows[5], ann, None, "of another client"),
    ];
    process(&fixture, &term, drafts.clone()).await;
    assert!(due(&fixture).await.is_empty());
    process(&fixture, &term, drafts).await;
    let messages = fixture.other.list_messages(of("acme")).await.unwrap().rows;
    assert_eq!(messages.len(), 5, "processing twice makes no second message");
    let bodies: Vec<_> = messages.iter().rev().map(|message| message.body.text.as_str()).collect();
    assert_eq!(bodies, ["one\ntwo \u{202e} 😀 '", "again", "by phone", "somebody else", "shares a phone"]);
    let contacts = fixture.other.list_contacts(of("acme")).await.unwrap().rows;
    let shown: Vec<_> =
        contacts.iter().rev().map(|contact: &Contact| (contact.email.as_deref(), contact.phone.as_deref())).collect();
    assert_eq!(shown, [(ann, Some("+461")), (None, Some("+462")), (Some("bob@x"), Some("+461"))]);
    let of_ann = InboxQuery { contact_id: Some(contacts[2].id), ..of("acme") };
    let ids: Vec<_> =
        fixture.other.list_messages(of_ann.clone()).await.unwrap().rows.iter().map(|m| m.submission_id).collect();
    assert_eq!(ids, [3, 2, 1].map(submission_id));
    assert_eq!(fixture.other.list_contacts(of_ann).await.unwrap().rows, contacts[2..]);
    receive(&*fixture.store, vec![new(7, "acme", b"{}")]).await;
    let long = "é".repeat(5000);
    let row = due(&fixture).await.remove(0);
    process(&fixture, &term, vec![drafted(&row, ann, None, &long)]).await;
    let newest = fixture.other.list_messages(of("acme")).await.unwrap().rows.remove(0);
    assert_eq!((newest.body.text.chars().count(), newest.body.cut), (4000, true), "lists show the first characters");
    let (row, _) = find(&fixture, submission_id(1)).await;
    assert_eq!((row.state(), row.message_id), (InboxSubmissionState::Processed, Some(messages[4].id)));
    assert_eq!(row.processed_at, Some(messages[4].processed_at));
    assert_eq!(fixture.other.list_contacts(of("globex")).await.unwrap().rows.len(), 1);
}

pub async fn a_failed_submission_is_tried_again_parked_and_reprocessed(fixture: Fixture) {
    receive(&*fixture.store, vec![new(1, "acme", b"x"), new(2, "acme", b"y")]).await;
    let term = fixture.lead("a").await;
    let rows = due(&fixture).await;
    let failed = |row: &DueInboxSubmission, next_try_at| ProcessedInboxSubmission {
        seq: row.seq,
        tries: row.tries,
        result: Err(FailedInboxTry { error: "not \"JSON\" \\ ~ é".to_owned(), next_try_at }),
    };
    let later = fixture.now().await + fixture.short;
    process(&fixture, &term, vec![failed(&rows[0], Some(later)), drafted(&rows[1], Some("a@b"), None, "")]).await;
    let (row, payload) = find(&fixture, submission_id(1)).await;
    assert_eq!((row.state(), row.tries, row.next_try_at), (InboxSubmissionState::Failed, 1, Some(later)));
    assert_eq!((row.error.as_deref(), payload.as_ref()), (Some("not \"JSON\" \\ ~ é"), b"x".as_slice()));
    let inbox = fixture.store.due_inbox(10).await.unwrap();
    assert!(inbox.due.is_empty() && inbox.next == Some(later) && inbox.backlog.oldest.is_some(), "it still waits");
    fixture.pass(fixture.short).await;
    let again = due(&fixture).await;
    assert_eq!((again.len(), again[0].tries), (1, 1));
    process(&fixture, &term, vec![failed(&rows[0], None)]).await;
    assert_eq!(due(&fixture).await.len(), 1, "a result of an earlier try is ignored");
    process(&fixture, &term, vec![failed(&again[0], None)]).await;
    let inbox = fixture.store.due_inbox(10).await.unwrap();
    assert!(inbox.due.is_empty() && inbox.next.is_none() && inbox.backlog.parked == 1);
    let parked = InboxQuery { state: Some(InboxSubmissionState::Parked), ..of("acme") };
    assert_eq!(fixture.other.list_submissions(parked.clone()).await.unwrap().rows.len(), 1);

    assert_eq!(
        fixture.other.reprocess(Reprocess::One(submission_id(2)), somebody()).await,
        Ok(0),
        "it is processed already"
    );
    assert_eq!(fixture.other.reprocess(Reprocess::One(submission_id(9)), somebody()).await, Ok(0));
    assert_eq!(fixture.other.reprocess(Reprocess::One(submission_id(1)), somebody()).await, Ok(1));
    let again = due(&fixture).await;
    assert_eq!((again.len(), again[0].tries), (1, 0));
    process(&fixture, &term, vec![failed(&again[0], None)]).await;
    let all = |slug: &str| Reprocess::ParkedOf { client_slug: slug.to_owned(), limit: 10 };
    assert_eq!(fixture.other.reprocess(all("globex"), somebody()).await, Ok(0));
    assert_eq!(fixture.other.reprocess(all("acme"), somebody()).await, Ok(1));
    let again = due(&fixture).await;
    process(&fixture, &term, vec![drafted(&again[0], Some("c@d"), None, "at last")]).await;
    let (row, _) = find(&fixture, submission_id(1)).await;
    assert_eq!((row.state(), row.error), (InboxSubmissionState::Processed, None));
    assert!(fixture.other.list_submissions(parked).await.unwrap().rows.is_empty());
}

pub async fn only_the_leader_processes_submissions(fixture: Fixture) {
    receive(&*fixture.store, vec![new(1, "acme", b"x")]).await;
    let rows = due(&fixture).await;
    let old = fixture.lead("a").await;
    fixture.store.release_lease(old.clone()).await.unwrap();
    let draft = drafted(&rows[0], Some("a@b"), None, "");
    assert_eq!(fixture.store.process_inbox(old, vec![draft.clone()]).await, Err(FencedError::TermOver));
    assert_eq!(find(&fixture, submission_id(1)).await.0.state(), InboxSubmissionState::Received);
    assert!(fixture.store.list_contacts(of("acme")).await.unwrap().rows.is_empty(), "nothing was changed");
    let term = fixture.lead("b").await;
    process(&fixture, &term, vec![draft]).await;
    assert_eq!(find(&fixture, submission_id(1)).await.0.state(), InboxSubmissionState::Processed);
}

pub async fn lists_of_the_inbox_are_paged(fixture: Fixture) {
    receive(&*fixture.store, (1..=5).map(|number| new(number, "acme", b"x")).collect()).await;
    receive(&*fixture.store, vec![new(6, "globex", b"x")]).await;
    let mut ids = Vec::new();
    let mut after = None;
    loop {
        let page = fixture.store.list_submissions(InboxQuery { limit: 2, after, ..of("acme") }).await.unwrap();
        ids.extend(page.rows.iter().map(|row| row.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(ids, [5, 4, 3, 2, 1].map(submission_id));
    let received = InboxQuery { state: Some(InboxSubmissionState::Received), client_slug: None, ..of("") };
    assert_eq!(fixture.store.list_submissions(received).await.unwrap().rows.len(), 6);
    fixture.pass(Duration::from_secs(1)).await;
    let inbox = fixture.store.due_inbox(1).await.unwrap();
    assert_eq!(inbox.due.len(), 1);
    assert!(inbox.backlog.oldest.is_some_and(|age| age >= Duration::from_secs(1)));
}

/// By characters and not by halves of them.
pub async fn a_long_message_is_shown_up_to_a_whole_character(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let bodies = [
        "a".repeat(SHOWN_CHARS),
        format!("{}😀", "a".repeat(SHOWN_CHARS)),
        format!("a{}", "😀".repeat(SHOWN_CHARS)),
        // More than any cut of UTF-16 units leaves whole.
        format!("a{}", "😀".repeat(2 * SHOWN_CHARS)),
        format!("{}é", "😀".repeat(SHOWN_CHARS - 1)),
    ];
    for (number, body) in (1_u8..).zip(&bodies) {
        receive(&*fixture.store, vec![new(number, "acme", b"{}")]).await;
        let due = due(&fixture).await;
        process(&fixture, &term, vec![drafted(&due[0], Some("a@b.test"), None, body)]).await;
    }
    let messages = fixture.store.list_messages(of("acme")).await.unwrap().rows;
    assert_eq!(messages.len(), bodies.len());
    for (message, body) in messages.iter().rev().zip(&bodies) {
        let shown: String = body.chars().take(SHOWN_CHARS).collect();
        assert!(message.body.text == shown, "{} characters", message.body.text.chars().count());
        assert_eq!(message.body.cut, *body != shown);
    }
}
