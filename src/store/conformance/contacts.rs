//! Which contact a message belongs to: contacts are found by email and by phone, and compared with a model.

use std::sync::Arc;

use super::Fixture;
use super::inbox::{drafted, new, of, process, receive};
use crate::domain::inbox::Draft;
use crate::domain::lease::Term;
use crate::store::{Contact, InboxQuery, ProcessedInboxSubmission};

/// The email and the phone of a sender, of which one may be missing.
type Sender<'a> = (Option<&'a str>, Option<&'a str>);

const ANN: Option<&str> = Some("ann@x");
const BOB: Option<&str> = Some("bob@x");
const P1: Option<&str> = Some("+461");
const P2: Option<&str> = Some("+462");

/// Stores submissions of these senders, and returns the results of parsing them in the same order.
async fn rows_of(fixture: &Fixture, client: &str, senders: &[Sender<'_>]) -> Vec<ProcessedInboxSubmission> {
    let first = fixture.store.list_submissions(InboxQuery { limit: 200, ..InboxQuery::default() }).await.unwrap();
    let first = u8::try_from(first.rows.len()).unwrap();
    let numbers = (first..).take(senders.len());
    receive(&*fixture.store, numbers.map(|number| new(number, client, b"{}")).collect()).await;
    let due = fixture.store.due_inbox(senders.len()).await.unwrap().due;
    assert_eq!(due.len(), senders.len());
    due.iter().zip(senders).map(|(row, (email, phone))| drafted(row, *email, *phone, "")).collect()
}

/// Processes submissions one after the other. Returns the contacts, oldest first, and the contact of each message.
async fn contacts_after(fixture: &Fixture, term: &Term, senders: &[Sender<'_>]) -> (Vec<Contact>, Vec<i64>) {
    let rows = rows_of(fixture, "acme", senders).await;
    for row in rows {
        process(fixture, term, vec![row]).await;
    }
    let mut contacts = fixture.other.list_contacts(of("acme")).await.unwrap().rows;
    contacts.reverse();
    let query = InboxQuery { limit: senders.len(), ..of("acme") };
    let mut messages = fixture.other.list_messages(query).await.unwrap().rows;
    messages.reverse();
    (contacts, messages.iter().map(|message| message.contact_id).collect())
}

fn shown(contacts: &[Contact]) -> Vec<Sender<'_>> {
    contacts.iter().map(|contact| (contact.email.as_deref(), contact.phone.as_deref())).collect()
}

/// Asserts the contacts after submissions of these senders, and to which of them, by index, each message belongs.
async fn assert_contacts(fixture: &Fixture, rows: &[Sender<'_>], expected: &[Sender<'_>], indexes: &[usize]) {
    let term = fixture.lead("a").await;
    let (contacts, contact_ids) = contacts_after(fixture, &term, rows).await;
    assert_eq!(shown(&contacts), expected);
    let expected_ids: Vec<_> = indexes.iter().map(|index| contacts[*index].id).collect();
    assert_eq!(contact_ids, expected_ids);
}

pub async fn a_contact_is_found_by_email_first(fixture: Fixture) {
    let rows = [(ANN, P1), (None, P2), (ANN, P2), (ANN, None), (BOB, None), (BOB, P1)];
    let contacts = [(ANN, P1), (None, P2), (BOB, None)];
    assert_contacts(&fixture, &rows, &contacts, &[0, 1, 0, 0, 2, 2]).await;
}

pub async fn a_contact_without_an_email_gets_the_email_of_the_next_message(fixture: Fixture) {
    // The first email with this phone goes to the contact that has no email. A second email makes another contact.
    let rows = [(None, P1), (ANN, P1), (None, P1), (BOB, P1), (ANN, None)];
    assert_contacts(&fixture, &rows, &[(ANN, P1), (BOB, P1)], &[0, 0, 0, 1, 0]).await;
}

pub async fn a_phone_is_never_taken_from_another_contact(fixture: Fixture) {
    // Ann is the older contact. If she got Bob's phone, his messages without an email would go to her.
    let rows = [(ANN, None), (BOB, P1), (ANN, P1), (None, P1), (ANN, P2), (None, P2), (None, P1)];
    assert_contacts(&fixture, &rows, &[(ANN, P2), (BOB, P1)], &[0, 1, 0, 1, 0, 0, 1]).await;
}

pub async fn a_phone_alone_goes_to_the_contact_without_an_email_else_to_the_oldest(fixture: Fixture) {
    let rows = [(ANN, None), (None, P1), (ANN, P1), (None, P1), (None, P2), (BOB, P2), (Some("eve@x"), P2), (None, P2)];
    let contacts = [(ANN, None), (None, P1), (BOB, P2), (Some("eve@x"), P2)];
    assert_contacts(&fixture, &rows, &contacts, &[0, 1, 0, 1, 2, 2, 3, 2]).await;
}

pub async fn contacts_of_clients_are_separate(fixture: Fixture) {
    let term = fixture.lead("a").await;
    let others = rows_of(&fixture, "globex", &[(None, P1), (BOB, P2)]).await;
    process(&fixture, &term, others).await;
    let (contacts, _) = contacts_after(&fixture, &term, &[(ANN, None), (ANN, P1), (BOB, None), (BOB, P2)]).await;
    assert_eq!(shown(&contacts), [(ANN, P1), (BOB, P2)], "phones of other clients do not count");
    let others = fixture.other.list_contacts(of("globex")).await.unwrap().rows;
    assert_eq!(shown(&others), [(BOB, P2), (None, P1)], "contacts of other clients do not change");
}

/// The rule for contacts in a few lines of Rust.
#[derive(Default)]
struct Model(Vec<Draft>);

impl Model {
    /// Adds a message, and returns the index of its contact.
    fn add(&mut self, row: &Draft) -> usize {
        let find = |rule: &dyn Fn(&Draft) -> bool| self.0.iter().position(rule);
        let same_phone = |contact: &Draft| row.phone.is_some() && contact.phone == row.phone;
        let found = find(&|contact| row.email.is_some() && contact.email == row.email)
            .or_else(|| find(&|contact| same_phone(contact) && contact.email.is_none()))
            .or_else(|| find(&|contact| same_phone(contact) && row.email.is_none()));
        let Some(index) = found else {
            self.0.push(row.clone());
            return self.0.len() - 1;
        };
        let phone_is_free = !self.0.iter().any(same_phone);
        let contact = &mut self.0[index];
        contact.email = contact.email.take().or_else(|| row.email.clone());
        contact.name = contact.name.take().or_else(|| row.name.clone());
        if contact.phone.is_none() && phone_is_free {
            contact.phone.clone_from(&row.phone);
        }
        index
    }
}

pub async fn random_submissions_make_the_same_contacts_as_a_model(fixture: Fixture) {
    const CLIENTS: usize = 20;
    const ROWS: usize = 8;
    let term = fixture.lead("a").await;
    // The seed is fixed, so that a failure can be repeated.
    let mut random = fastrand::Rng::with_seed(18);
    for client in 0..CLIENTS {
        let client = format!("client {client}");
        let mut pick = |texts: [&'static str; 4]| Some(texts[random.usize(..4)]).filter(|text| !text.is_empty());
        let any = std::iter::from_fn(|| Some((pick(["", "", "a@x", "b@x"]), pick(["", "+461", "+461", "+462"]))));
        let senders: Vec<Sender<'_>> = any.filter(|row| *row != (None, None)).take(ROWS).collect();
        let mut rows = rows_of(&fixture, &client, &senders).await;
        let mut model = Model::default();
        let mut indexes = Vec::new();
        for (number, row) in rows.iter_mut().enumerate() {
            let draft = row.result.as_mut().unwrap();
            draft.name = (number % 3 == 0).then(|| format!("n{number}"));
            indexes.push(model.add(draft));
        }
        process(&fixture, &term, rows).await;
        let mut contacts = fixture.other.list_contacts(of(&client)).await.unwrap().rows;
        contacts.reverse();
        let stored: Vec<_> = contacts.iter().map(|contact| (&contact.email, &contact.phone, &contact.name)).collect();
        let expected: Vec<_> = model.0.iter().map(|contact| (&contact.email, &contact.phone, &contact.name)).collect();
        assert_eq!(stored, expected, "{senders:?}");
        let mut messages = fixture.other.list_messages(of(&client)).await.unwrap().rows;
        messages.reverse();
        let contact_ids: Vec<_> = messages.iter().map(|message| message.contact_id).collect();
        assert_eq!(contact_ids, indexes.iter().map(|index| contacts[*index].id).collect::<Vec<_>>(), "{senders:?}");
    }
}

pub async fn racing_submissions_make_one_contact(fixture: Fixture) {
    let term = fixture.lead("a").await;
    let senders: Vec<Sender<'_>> = [(None, P1), (ANN, P1), (ANN, None)].into_iter().cycle().take(12).collect();
    // The first one has a phone alone, so that the order of the others does not matter.
    let mut rows = rows_of(&fixture, "acme", &senders).await.into_iter();
    process(&fixture, &term, rows.by_ref().take(1).collect()).await;
    let races: Vec<_> = rows
        .enumerate()
        .map(|(number, row)| {
            let store = Arc::clone(if number % 2 == 0 { &fixture.store } else { &fixture.other });
            let term = term.clone();
            tokio::spawn(async move { store.process_inbox(term, vec![row]).await.unwrap() })
        })
        .collect();
    for race in races {
        race.await.unwrap().into_iter().for_each(|result| result.unwrap());
    }
    let contacts = fixture.other.list_contacts(of("acme")).await.unwrap().rows;
    let expected: &[&[Sender<'_>]] = &[&[(ANN, P1)], &[(ANN, None), (None, P1)]];
    assert!(expected.contains(&shown(&contacts).as_slice()), "{contacts:?}");
    assert_eq!(fixture.other.list_messages(of("acme")).await.unwrap().rows.len(), senders.len());
}
