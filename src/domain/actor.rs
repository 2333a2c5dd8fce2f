//! Who acts as an operator: pauses a target, cancels an intent, looks at a payload and so on.
//!
//! Every call of the store that does such a thing takes an [`Actor`], so no action is possible without saying who it is.

use std::net::IpAddr;
use std::sync::Arc;

/// How an actor is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActorKind {
    /// A client of the API, by its bearer token.
    Token,
    /// A person who signed in to the console.
    Console,
    /// Somebody on this machine who did not have to sign in.
    Loopback,
    /// Somebody on another machine who did not have to sign in, because `SM_AUTH` is off.
    Anonymous,
    /// The user who ran a command that works on the store itself, such as `lease reset`.
    CommandLine,
    /// The service itself, because it is configured to do something.
    Service,
}

impl ActorKind {
    pub const ALL: [Self; 6] =
        [Self::Token, Self::Console, Self::Loopback, Self::Anonymous, Self::CommandLine, Self::Service];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Console => "console",
            Self::Loopback => "loopback",
            Self::Anonymous => "anonymous",
            Self::CommandLine => "command_line",
            Self::Service => "service",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The longest name of an actor in characters, as the stores keep it. A longer one is cut off.
pub const MAX_ACTOR_CHARS: usize = 200;

/// Who does something, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    kind: ActorKind,
    name: Option<Arc<str>>,
    address: Option<IpAddr>,
}

impl Actor {
    /// The API client with this id.
    pub fn token(client: &str, address: Option<IpAddr>) -> Self {
        Self::new(ActorKind::Token, Some(client), address)
    }

    /// The person who signed in to the console with this name.
    pub fn console(user: &str, address: Option<IpAddr>) -> Self {
        Self::new(ActorKind::Console, Some(user), address)
    }

    /// Somebody who did not have to sign in.
    pub fn not_signed_in(address: Option<IpAddr>) -> Self {
        let on_this_machine = address.is_none_or(|address| address.to_canonical().is_loopback());
        Self::new(if on_this_machine { ActorKind::Loopback } else { ActorKind::Anonymous }, None, address)
    }

    /// Whoever runs a command on the store, by the name of the user account if it is known.
    pub fn command_line(user: Option<&str>) -> Self {
        Self::new(ActorKind::CommandLine, user, None)
    }

    /// The instance of the service with this holder id.
    pub fn service(holder: &str) -> Self {
        Self::new(ActorKind::Service, Some(holder), None)
    }

    /// Somebody who wanted to sign in to the console and was refused. `user` is set if it is known who it should have been.
    pub fn refused(user: Option<&str>, address: Option<IpAddr>) -> Self {
        Self::new(ActorKind::Console, user, address)
    }

    fn new(kind: ActorKind, name: Option<&str>, address: Option<IpAddr>) -> Self {
        let name = name.filter(|name| !name.trim().is_empty()).map(storable);
        Self { kind, name, address: address.map(|address| address.to_canonical()) }
    }

    pub fn kind(&self) -> ActorKind {
        self.kind
    }

    /// `None` if it is not known who it is.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The address of the connection; that of a proxy if there is one in between.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The name, or the kind of an actor without one: what people are shown.
    pub fn label(&self) -> &str {
        self.name().unwrap_or(self.kind.as_str())
    }
}

/// Cuts a name off after [`MAX_ACTOR_CHARS`], and replaces control characters: names of tokens come from other systems.
fn storable(name: &str) -> Arc<str> {
    let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    name.chars().take(MAX_ACTOR_CHARS).map(plain).collect::<String>().into()
}

#[cfg(test)]
pub mod fixtures {
    use super::*;

    /// An operator for tests in which it does not matter who it is.
    pub fn somebody() -> Actor {
        Actor::console("somebody", Some(IpAddr::from([10, 0, 0, 1])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_sign_in_is_known_by_the_machine() {
        let of = |address: Option<&str>| Actor::not_signed_in(address.map(|address| address.parse().unwrap()));
        for (address, kind) in [
            (Some("127.0.0.1"), ActorKind::Loopback),
            (Some("::1"), ActorKind::Loopback),
            (Some("::ffff:127.0.0.1"), ActorKind::Loopback),
            (None, ActorKind::Loopback),
            (Some("10.0.0.1"), ActorKind::Anonymous),
            (Some("2001:db8::1"), ActorKind::Anonymous),
        ] {
            assert_eq!((of(address).kind(), of(address).name()), (kind, None), "{address:?}");
        }
        assert_eq!(of(Some("::ffff:10.0.0.1")).address(), Some(IpAddr::from([10, 0, 0, 1])));
    }

    #[test]
    fn names_are_short_and_without_control_characters() {
        let long = "é".repeat(MAX_ACTOR_CHARS + 1);
        assert_eq!(Actor::token(&long, None).name().unwrap(), "é".repeat(MAX_ACTOR_CHARS));
        assert_eq!(Actor::token("a\0b\n", None).name(), Some("a\u{fffd}b\u{fffd}"));
        assert_eq!(Actor::console("ann", None).label(), "ann");
        assert_eq!(Actor::not_signed_in(None).label(), "loopback");
        assert_eq!(Actor::token(" ", None).name(), None, "a blank name is none");
        for kind in ActorKind::ALL {
            assert_eq!(ActorKind::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(ActorKind::parse("root"), None);
    }
}
