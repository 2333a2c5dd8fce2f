//! What every page shows at its top: which section it belongs to, and who is signed in. It also tells templates which
//! buttons to show.

use crate::domain::role::Role;
use crate::web::operator::Operator;

/// The top of a page.
pub(super) struct Nav {
    /// The section that is marked as the current one; empty for none.
    pub section: &'static str,
    operator: Option<Operator>,
}

impl Nav {
    pub(super) fn new(section: &'static str, operator: Operator) -> Self {
        Self { section, operator: Some(operator) }
    }

    /// The top of a page for which it does not matter who sees it.
    pub(super) const fn of_nobody() -> Self {
        Self { section: "", operator: None }
    }

    /// The name and the role of the person, if somebody is signed in.
    pub(super) fn signed_in(&self) -> Option<(&str, &'static str)> {
        let operator = self.operator.as_ref()?;
        Some((operator.name.as_deref()?, operator.role.as_str()))
    }

    /// Whether to show buttons that change something, and payloads. The server refuses both anyway.
    pub(super) fn may_act(&self) -> bool {
        self.operator.as_ref().is_some_and(|operator| operator.role.includes(Role::Operator))
    }
}
