//! What a person may do in the console.

/// The role of a console user. Each role may do everything that the roles before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Sees everything but payloads.
    Viewer,
    /// Also sees payloads and acts: pause, resume, cancel, redeliver, reprocess.
    Operator,
    /// Also sees the audit log.
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }

    /// Whether this role may do what needs the role `needed`.
    pub fn includes(self, needed: Self) -> bool {
        self >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_includes_the_roles_before_it() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(Role::parse(role.as_str()), Some(role));
            for (other, needed) in Role::ALL.into_iter().enumerate() {
                assert_eq!(role.includes(needed), other <= index, "{role:?} {needed:?}");
            }
        }
        assert_eq!(Role::parse("root"), None);
    }
}
