//! A client of the API: its scopes, and the tenants and workspaces that it acts for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A permission of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    JobsSubmit,
    JobsRead,
    IntentsWrite,
    IntentsRead,
    InboxWrite,
    InboxRead,
    Admin,
}

impl Scope {
    pub const ALL: [Self; 7] = [
        Self::JobsSubmit,
        Self::JobsRead,
        Self::IntentsWrite,
        Self::IntentsRead,
        Self::InboxWrite,
        Self::InboxRead,
        Self::Admin,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JobsSubmit => "jobs:submit",
            Self::JobsRead => "jobs:read",
            Self::IntentsWrite => "intents:write",
            Self::IntentsRead => "intents:read",
            Self::InboxWrite => "inbox:write",
            Self::InboxRead => "inbox:read",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }

    /// Whether a client with this scope must have tenants.
    pub const fn needs_tenants(self) -> bool {
        matches!(self, Self::JobsSubmit | Self::JobsRead)
    }
}

/// The workspaces of a tenant that a client acts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workspaces {
    All,
    Only(BTreeSet<String>),
}

impl Workspaces {
    /// The name that means all workspaces.
    pub const ALL: &str = "*";

    /// `None` if `names` is empty, or contains `*` and other names.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let names: BTreeSet<_> = names.into_iter().map(str::to_owned).collect();
        match (names.contains(Self::ALL), names.len()) {
            (true, 1) => Some(Self::All),
            (true, _) | (false, 0) => None,
            (false, _) => Some(Self::Only(names)),
        }
    }

    /// Whether the workspace is among these.
    pub fn include(&self, workspace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(workspace),
        }
    }
}

/// An authenticated caller.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiClient {
    pub id: String,
    pub scopes: BTreeSet<Scope>,
    pub tenants: BTreeMap<String, Workspaces>,
}

impl ApiClient {
    /// Whether the client has the scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Whether the client acts for this workspace of this tenant.
    pub fn acts_for(&self, tenant: &str, workspace: &str) -> bool {
        self.tenants.get(tenant).is_some_and(|workspaces| workspaces.include(workspace))
    }
}

impl fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiClient({:?})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_acts_only_for_its_tenants_and_their_workspaces() {
        let client = ApiClient {
            id: "bff".to_owned(),
            scopes: [Scope::JobsRead].into(),
            tenants: [
                ("acme".to_owned(), Workspaces::of(["w1", "w2"]).unwrap()),
                ("globex".to_owned(), Workspaces::of(["*"]).unwrap()),
            ]
            .into(),
        };
        assert!(client.may(Scope::JobsRead) && !client.may(Scope::JobsSubmit));
        for (tenant, workspace, allowed) in [
            ("acme", "w1", true),
            ("acme", "w3", false),
            ("acme", "*", false),
            ("Acme", "w1", false),
            ("globex", "anything", true),
            ("initech", "w1", false),
        ] {
            assert_eq!(client.acts_for(tenant, workspace), allowed, "{tenant}/{workspace}");
        }
        assert_eq!(Workspaces::of([]), None);
        assert_eq!(Workspaces::of(["*", "w1"]), None);
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
        }
    }
}
