//! The top of every page, which shows the current section and who is signed in. Templates also ask it which buttons to
//! show and how long ago something happened.

use super::when::{Exactly, When};
use super::wording::{cause_words, utc};
use crate::domain::role::Role;
use crate::domain::time::Timestamp;
use crate::web::operator::Operator;

/// The top of a page.
pub(super) struct Nav {
    /// The section that is marked as the current one; empty for none.
    pub section: &'static str,
    /// The time of the page, which the page uses to say how long ago something happened.
    pub now: Option<Timestamp>,
    operator: Option<Operator>,
}

impl Nav {
    pub(super) fn new(section: &'static str, operator: Operator) -> Self {
        Self { section, now: None, operator: Some(operator) }
    }

    /// The top of a page that is the same for everybody.
    pub(super) const fn of_nobody() -> Self {
        Self { section: "", now: None, operator: None }
    }

    /// Sets the time of the page: that of the store if the page has read it, or that of the host.
    pub(super) fn at(self, now: Timestamp) -> Self {
        Self { now: Some(now), ..self }
    }

    /// A moment, shown as how long ago it was.
    pub(super) fn when(&self, at: &Timestamp) -> When {
        When { at: *at, now: self.now }
    }

    /// A moment, shown with date and time.
    pub(super) fn exactly(&self, at: &Timestamp) -> Exactly {
        Exactly(*at)
    }

    /// A moment in UTC.
    pub(super) fn utc(&self, at: &Timestamp) -> String {
        utc(*at)
    }

    /// The reason of a failure in words.
    pub(super) fn reason<'a>(&self, reason: &'a str) -> &'a str {
        cause_words(reason)
    }

    /// A part of the addresses of assets. It differs between versions, so that browsers do not use assets of an old
    /// version.
    pub(super) const fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The name and the role of the person, if somebody is signed in.
    pub(super) fn signed_in(&self) -> Option<(&str, &'static str)> {
        let operator = self.operator.as_ref()?;
        Some((operator.name.as_deref()?, operator.role.as_str()))
    }

    /// Whether to show the button that ends the session.
    pub(super) fn can_sign_out(&self) -> bool {
        self.operator.as_ref().is_some_and(|operator| operator.known_by.is_session())
    }

    /// Whether to show the link to the audit log. The server refuses the page to others anyway.
    pub(super) fn may_audit(&self) -> bool {
        self.operator.as_ref().is_some_and(|operator| operator.role.includes(Role::Admin))
    }

    /// Whether to show buttons that change something, and payloads. The server refuses both anyway.
    pub(super) fn may_act(&self) -> bool {
        self.operator.as_ref().is_some_and(|operator| operator.role.includes(Role::Operator))
    }
}
