//! Ids that the service makes itself: random UUIDs, with a type of their own for each thing they name.

/// Defines an id type: a UUID of version 4 that is parsed only in the spelling in which it is shown.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(uuid::Uuid);

        impl $name {
            /// Makes an id of 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
            }

            /// Accepts only the canonical spelling: lower case, with hyphens, version 4.
            pub fn parse(text: &str) -> Option<Self> {
                let id = uuid::Uuid::try_parse(text).ok().filter(|id| id.get_version_num() == 4).map(Self)?;
                (id.to_string() == text).then_some(id)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self.0.as_hyphenated(), f)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(super) use uuid_id;
