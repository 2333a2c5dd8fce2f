//! Whose message a row of the inbox becomes: contacts by email and by phone, and against a model.

use std::sync::Arc;

use super::Fixture;
use super::inbox::{new, of, process, receive, said};
use crate::domain::inbox::Draft;
use crate::domain::lease::Term;
use crate::store::{Contact, InboxQuery, ProcessedInboxSubmission};

/// An email and a phone, of which one may be missing.
type Who<'a> = (Option<&'a str>, Option<&'a str>);

const ANN: Option<&str> = Some("ann@x");
const BOB: Option<&str> = Some("bob@x");
const P1: Option<&str> = Some("+461");
const P2: Option<&str> = Some("+462");

/// Rows to be processed, in the order of `who`.
async fn rows_of(fixture: &Fixture, client: &str, who: &[Who<'_>]) -> Vec<ProcessedInboxSubmission> {
    let first = fixture.store.list_submissions(InboxQuery { limit: 200, ..InboxQuery::default() }).await.unwrap();
    let first = u8::try_from(first.rows.len()).unwrap();
    let numbers = (first..).take(who.len());
    receive(&*fixture.store, numbers.map(|number| new(number, client, b"{}")).collect()).await;
    let due = fixture.store.due_inbox(who.len()).await.unwrap().due;
    assert_eq!(due.len(), who.len());
    due.iter().zip(who).map(|(row, (email, phone))| said(row, *email, *phone, "")).collect()
}

/// Processes rows one after the other; the contacts afterwards, oldest first, and whose message each row became.
async fn contacts_after(fixture: &Fixture, term: &Term, who: &[Who<'_>]) -> (Vec<Contact>, Vec<i64>) {
    let rows = rows_of(fixture, "acme", who).await;
    for row in rows {
        process(fixture, term, vec![row]).await;
    }
    let mut contacts = fixture.other.list_contacts(of("acme")).await.unwrap().rows;
    contacts.reverse();
    let query = InboxQuery { limit: who.len(), ..of("acme") };
    let mut messages = fixture.other.list_messages(query).await.unwrap().rows;
    messages.reverse();
    (contacts, messages.iter().map(|message| message.contact_id).collect())
}

fn shown(contacts: &[Contact]) -> Vec<Who<'_>> {
    contacts.iter().map(|contact| (contact.email.as_deref(), contact.phone.as_deref())).collect()
}

/// Asserts the contacts after some rows, and by their places which of them each row went to.
async fn assert_contacts(fixture: &Fixture, rows: &[Who<'_>], expected: &[Who<'_>], places: &[usize]) {
    let term = fixture.lead("a").await;
    let (contacts, whose) = contacts_after(fixture, &term, rows).await;
    assert_eq!(shown(&contacts), expected);
    let places: Vec<_> = places.iter().map(|place| contacts[*place].id).collect();
    assert_eq!(whose, places);
}

pub async fn a_contact_is_found_by_email_first(fixture: Fixture) {
    let rows = [(ANN, P1), (None, P2), (ANN, P2), (ANN, None), (BOB, None), (BOB, P1)];
    let contacts = [(ANN, P1), (None, P2), (BOB, None)];
    assert_contacts(&fixture, &rows, &contacts, &[0, 1, 0, 0, 2, 2]).await;
}

pub async fn a_contact_without_an_email_is_adopted(fixture: Fixture) {
    // The first email that comes with a phone is that of the contact that has no other; a second one is somebody else.
    let rows = [(None, P1), (ANN, P1), (None, P1), (BOB, P1), (ANN, None)];
    assert_contacts(&fixture, &rows, &[(ANN, P1), (BOB, P1)], &[0, 0, 0, 1, 0]).await;
}

pub async fn a_phone_is_never_taken_from_another_contact(fixture: Fixture) {
    // Ann is the older contact; with Bob's phone she would get what he sends from it.
    let rows = [(ANN, None), (BOB, P1), (ANN, P1), (None, P1), (ANN, P2), (None, P2), (None, P1)];
    assert_contacts(&fixture, &rows, &[(ANN, P2), (BOB, P1)], &[0, 1, 0, 1, 0, 0, 1]).await;
}

pub async fn a_phone_alone_goes_to_the_contact_without_an_email_else_to_the_oldest(fixture: Fixture) {
    let rows = [(ANN, None), (None, P1), (ANN, P1), (None, P1), (None, P2), (BOB, P2), (Some("eve@x"), P2), (None, P2)];
    let contacts = [(ANN, None), (None, P1), (BOB, P2), (Some("eve@x"), P2)];
    assert_contacts(&fixture, &rows, &contacts, &[0, 1, 0, 1, 2, 2, 3, 2]).await;
}

pub async fn contacts_are_of_their_client(fixture: Fixture) {
    let term = fixture.lead("a").await;
    let others = rows_of(&fixture, "globex", &[(None, P1), (BOB, P2)]).await;
    process(&fixture, &term, others).await;
    let (contacts, _) = contacts_after(&fixture, &term, &[(ANN, None), (ANN, P1), (BOB, None), (BOB, P2)]).await;
    assert_eq!(shown(&contacts), [(ANN, P1), (BOB, P2)], "another client's phones do not matter");
    let others = fixture.other.list_contacts(of("globex")).await.unwrap().rows;
    assert_eq!(shown(&others), [(BOB, P2), (None, P1)], "and nobody of theirs is adopted");
}

/// The rule in a few lines of Rust.
#[derive(Default)]
struct Model(Vec<Draft>);

impl Model {
    /// The place of the contact that a row goes to.
    fn take(&mut self, row: &Draft) -> usize {
        let find = |rule: &dyn Fn(&Draft) -> bool| self.0.iter().position(rule);
        let same_phone = |contact: &Draft| row.phone.is_some() && contact.phone == row.phone;
        let found = find(&|contact| row.email.is_some() && contact.email == row.email)
            .or_else(|| find(&|contact| same_phone(contact) && contact.email.is_none()))
            .or_else(|| find(&|contact| same_phone(contact) && row.email.is_none()));
        let Some(place) = found else {
            self.0.push(row.clone());
            return self.0.len() - 1;
        };
        let phone_is_free = !self.0.iter().any(same_phone);
        let contact = &mut self.0[place];
        contact.email = contact.email.take().or_else(|| row.email.clone());
        contact.name = contact.name.take().or_else(|| row.name.clone());
        if contact.phone.is_none() && phone_is_free {
            contact.phone.clone_from(&row.phone);
        }
        place
    }
}

pub async fn any_rows_make_the_contacts_of_the_model(fixture: Fixture) {
    const CLIENTS: usize = 20;
    const ROWS: usize = 8;
    let term = fixture.lead("a").await;
    // The same rows in every run: what fails once fails again.
    let mut random = fastrand::Rng::with_seed(18);
    for client in 0..CLIENTS {
        let client = format!("client {client}");
        let mut pick = |texts: [&'static str; 4]| Some(texts[random.usize(..4)]).filter(|text| !text.is_empty());
        let any = std::iter::from_fn(|| Some((pick(["", "", "a@x", "b@x"]), pick(["", "+461", "+461", "+462"]))));
        let who: Vec<Who<'_>> = any.filter(|row| *row != (None, None)).take(ROWS).collect();
        let mut rows = rows_of(&fixture, &client, &who).await;
        let mut model = Model::default();
        let mut places = Vec::new();
        for (number, row) in rows.iter_mut().enumerate() {
            let draft = row.result.as_mut().unwrap();
            draft.name = (number % 3 == 0).then(|| format!("n{number}"));
            places.push(model.take(draft));
        }
        process(&fixture, &term, rows).await;
        let mut contacts = fixture.other.list_contacts(of(&client)).await.unwrap().rows;
        contacts.reverse();
        let stored: Vec<_> = contacts.iter().map(|contact| (&contact.email, &contact.phone, &contact.name)).collect();
        let expected: Vec<_> = model.0.iter().map(|contact| (&contact.email, &contact.phone, &contact.name)).collect();
        assert_eq!(stored, expected, "{who:?}");
        let mut messages = fixture.other.list_messages(of(&client)).await.unwrap().rows;
        messages.reverse();
        let whose: Vec<_> = messages.iter().map(|message| message.contact_id).collect();
        assert_eq!(whose, places.iter().map(|place| contacts[*place].id).collect::<Vec<_>>(), "{who:?}");
    }
}

pub async fn racing_rows_make_one_contact(fixture: Fixture) {
    let term = fixture.lead("a").await;
    let who: Vec<Who<'_>> = [(None, P1), (ANN, P1), (ANN, None)].into_iter().cycle().take(12).collect();
    // Of a phone alone first, so that it does not matter in which order the others come.
    let mut rows = rows_of(&fixture, "acme", &who).await.into_iter();
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
    let expected: &[&[Who<'_>]] = &[&[(ANN, P1)], &[(ANN, None), (None, P1)]];
    assert!(expected.contains(&shown(&contacts).as_slice()), "{contacts:?}");
    assert_eq!(fixture.other.list_messages(of("acme")).await.unwrap().rows.len(), who.len());
}
