//! The inbox in virtual time: a submission that fails for hours takes milliseconds.

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, MAX_TRIES, PayloadFormat};
use crate::store::faulty::Fault;
use crate::store::{
    InboxMessage, InboxQuery, InboxSubmission, InboxSubmissionState, NewInboxSubmission, Received, Reprocess,
};

/// Makes an id of a number.
fn id(number: u32) -> InboxSubmissionId {
    let mut bytes = [7; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    InboxSubmissionId::from_random(bytes)
}

fn new(number: u32, payload: &str) -> NewInboxSubmission {
    NewInboxSubmission {
        id: id(number),
        client_slug: "acme".to_owned(),
        channel: Channel::Form,
        payload: payload.to_owned().into(),
        format: PayloadFormat::Json,
        source_url: None,
        key_sha256: None,
    }
}

fn mail(number: u32) -> String {
    format!(r#"{{"email":"u{}@x","message":"{number}"}}"#, number % 10)
}

impl Instance {
    async fn receive(&self, number: u32, payload: &str) {
        let received = self.engine.store.receive(new(number, payload)).await.unwrap();
        assert_eq!(received, Received::Created(id(number)));
    }

    async fn row(&self, number: u32) -> InboxSubmission {
        self.engine.store.find_submission(id(number)).await.unwrap().unwrap().0
    }

    async fn until_row(&self, number: u32, state: InboxSubmissionState) -> InboxSubmission {
        for _ in 0..100_000 {
            let row = self.row(number).await;
            if row.state() == state {
                return row;
            }
            pass(Duration::from_millis(500)).await;
        }
        panic!("it did not get to the expected state: {:?}", self.row(number).await)
    }

    /// Returns all messages, oldest first.
    async fn messages(&self) -> Vec<InboxMessage> {
        let (mut messages, mut after) = (Vec::new(), None);
        loop {
            let query = InboxQuery { limit: 1000, after, ..InboxQuery::default() };
            let page = self.engine.store.list_messages(query).await.unwrap();
            messages.extend(page.rows);
            after = page.next;
            if after.is_none() {
                messages.reverse();
                return messages;
            }
        }
    }
}

#[actix::test]
async fn a_submission_that_cannot_be_parsed_delays_no_other_and_succeeds_after_a_fix() {
    const ROWS: u32 = 2_000;
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    // Submissions are stored before any instance leads.
    let poison = r#"{"email":"u1@x","message":{"not":"text"}}"#;
    for number in 0..ROWS {
        instance.receive(number, &if number == 700 { poison.to_owned() } else { mail(number) }).await;
    }
    instance.lease_after(0).await;
    instance.until_row(ROWS - 1, InboxSubmissionState::Processed).await;
    let bodies: Vec<u32> = instance.messages().await.iter().map(|message| message.body.text.parse().unwrap()).collect();
    let expected: Vec<u32> = (0..ROWS).filter(|number| *number != 700).collect();
    assert_eq!(bodies, expected, "in the order of arrival");
    let failed = instance.row(700).await;
    assert_eq!((failed.state(), failed.tries), (InboxSubmissionState::Failed, 1));
    let start = monotonic();
    let parked = instance.until_row(700, InboxSubmissionState::Parked).await;
    assert_eq!(parked.tries, MAX_TRIES);
    assert_eq!(parked.error.as_deref(), Some("\"message\" must be text, not an object"));
    let took = monotonic().duration_since(start);
    assert!(took > 2 * Duration::from_secs(3600) && took < 4 * Duration::from_secs(3600), "{took:?}");
    let (_, raw) = instance.engine.store.find_submission(id(700)).await.unwrap().unwrap();
    assert_eq!(raw, poison);
    // The new registry names the field that holds the text.
    let registry = inbox_registry_with(
        r#"{"clients": [{"clientSlug": "acme", "channels": ["form"],
        "fields": {"message": "message.not"}}]}"#,
    );
    let engine = &instance.engine;
    engine.stop_leading().await;
    let fixed = lab.start_with_registry(settings(), always(accepted()), registry);
    fixed.lease_after(1).await;
    assert_eq!(fixed.engine.store.reprocess(Reprocess::One(id(700)), somebody()).await, Ok(1));
    fixed.until_row(700, InboxSubmissionState::Processed).await;
    assert_eq!(fixed.messages().await.last().unwrap().body.text, "text");
    assert_eq!(
        fixed.engine.store.list_contacts(InboxQuery { limit: 100, ..InboxQuery::default() }).await.unwrap().rows.len(),
        10
    );
}

#[actix::test]
async fn submissions_that_other_instances_store_are_processed_too() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    pass(SECOND).await;
    let batch = WriteBatch { received: vec![new(1, &mail(1))], ..WriteBatch::default() };
    lab.store().commit(batch).await.unwrap();
    instance.until_row(1, InboxSubmissionState::Processed).await;
}

#[actix::test]
async fn a_store_call_that_fails_or_answers_late_makes_no_second_message() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    instance.faults.add("process_inbox", 2, Fault::Fail);
    instance.faults.add("process_inbox", 2, Fault::FailAfter);
    for number in 0..50 {
        instance.receive(number, &mail(number)).await;
    }
    instance.until_row(49, InboxSubmissionState::Processed).await;
    let messages = instance.messages().await;
    assert_eq!(messages.len(), 50);
    assert_eq!(instance.faults.left("process_inbox"), 0);
}

#[actix::test]
async fn a_dead_inbox_actor_is_replaced_within_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let lease = instance.lease_after(0).await;
    instance.engine.leader().do_send(CrashChild(Child::Inbox));
    pass(SECOND).await;
    instance.receive(1, &mail(1)).await;
    instance.until_row(1, InboxSubmissionState::Processed).await;
    assert_eq!(instance.engine.board.lease().unwrap().term, lease.term, "the term continued");
}

#[actix::test]
async fn a_submission_of_a_client_that_is_not_in_the_registry_fails_and_waits() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let unknown = NewInboxSubmission { client_slug: "gone".to_owned(), ..new(1, &mail(1)) };
    instance.engine.store.receive(unknown).await.unwrap();
    let row = instance.until_row(1, InboxSubmissionState::Failed).await;
    assert_eq!(row.error.as_deref(), Some("client \"gone\" has no channel form in the registry"));
}
