//! The inbox in virtual time: hours of a row that cannot be read in milliseconds.

use super::*;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, MAX_TRIES, PayloadFormat};
use crate::store::faulty::Fault;
use crate::store::{
    InboxMessage, InboxQuery, InboxSubmission, InboxSubmissionState, NewInboxSubmission, Received, Reprocess,
};

/// The number as an id.
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
        panic!("never got there: {:?}", self.row(number).await)
    }

    /// What was said, in order.
    async fn messages(&self) -> Vec<InboxMessage> {
        let (mut messages, mut behind) = (Vec::new(), None);
        loop {
            let query = InboxQuery { limit: 1000, behind, ..InboxQuery::default() };
            let page = self.engine.store.list_messages(query).await.unwrap();
            messages.extend(page.rows);
            behind = page.next;
            if behind.is_none() {
                messages.reverse();
                return messages;
            }
        }
    }
}

#[actix::test]
async fn a_poison_row_holds_up_nobody_and_succeeds_after_a_fix() {
    const ROWS: u32 = 2_000;
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    // Nobody has to lead for that.
    let poison = r#"{"email":"u1@x","message":{"not":"text"}}"#;
    for number in 0..ROWS {
        instance.receive(number, &if number == 700 { poison.to_owned() } else { mail(number) }).await;
    }
    instance.lease_after(0).await;
    instance.until_row(ROWS - 1, InboxSubmissionState::Processed).await;
    let bodies: Vec<u32> = instance.messages().await.iter().map(|message| message.body.text.parse().unwrap()).collect();
    let expected: Vec<u32> = (0..ROWS).filter(|number| *number != 700).collect();
    assert_eq!(bodies, expected, "in the order in which they came");
    let failed = instance.row(700).await;
    assert_eq!((failed.state(), failed.tries), (InboxSubmissionState::Failed, 1));
    let began = monotonic();
    let parked = instance.until_row(700, InboxSubmissionState::Parked).await;
    assert_eq!(parked.tries, MAX_TRIES);
    assert_eq!(parked.error.as_deref(), Some("\"message\" must be text, this is an object"));
    let took = monotonic().duration_since(began);
    assert!(took > 2 * Duration::from_secs(3600) && took < 4 * Duration::from_secs(3600), "{took:?}");
    let (_, raw) = instance.engine.store.find_submission(id(700)).await.unwrap().unwrap();
    assert_eq!(raw, poison);
    // The registry says now where the text stands.
    let registry = inbox_registry_with(
        r#"{"clients": [{"clientSlug": "acme", "channels": ["form"],
        "fields": {"message": "message.not"}}]}"#,
    );
    let engine = &instance.engine;
    engine.stop_leading().await;
    let fixed = lab.start_with_registry(settings(), always(accepted()), registry);
    fixed.lease_after(1).await;
    assert_eq!(fixed.engine.store.reprocess(Reprocess::One(id(700))).await, Ok(1));
    fixed.until_row(700, InboxSubmissionState::Processed).await;
    assert_eq!(fixed.messages().await.last().unwrap().body.text, "text");
    assert_eq!(
        fixed.engine.store.list_contacts(InboxQuery { limit: 100, ..InboxQuery::default() }).await.unwrap().rows.len(),
        10
    );
}

#[actix::test]
async fn what_other_instances_take_in_is_processed_too() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    pass(SECOND).await;
    let batch = WriteBatch { received: vec![new(1, &mail(1))], ..WriteBatch::default() };
    lab.store().commit(batch).await.unwrap();
    instance.until_row(1, InboxSubmissionState::Processed).await;
}

#[actix::test]
async fn a_store_that_fails_or_answers_late_makes_no_second_message() {
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
async fn a_dead_processor_is_replaced_within_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let lease = instance.lease_after(0).await;
    instance.engine.leader().do_send(CrashChild(Child::Inbox));
    pass(SECOND).await;
    instance.receive(1, &mail(1)).await;
    instance.until_row(1, InboxSubmissionState::Processed).await;
    assert_eq!(instance.engine.board.lease().unwrap().term, lease.term, "attempts were not concerned");
}

#[actix::test]
async fn a_client_that_left_the_registry_waits_for_it_to_come_back() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let stranger = NewInboxSubmission { client_slug: "gone".to_owned(), ..new(1, &mail(1)) };
    instance.engine.store.receive(stranger).await.unwrap();
    let row = instance.until_row(1, InboxSubmissionState::Failed).await;
    assert_eq!(row.error.as_deref(), Some("client \"gone\" has no channel form in the registry"));
}
