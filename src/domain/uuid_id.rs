//! Ids that the service creates: random UUIDs, with a separate type for each kind of thing.

/// Defines an id type: a UUID of version 4 that is parsed only in its canonical spelling.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(uuid::Uuid);

        impl $name {
            /// Creates an id from 16 random bytes.
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
