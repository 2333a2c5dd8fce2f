//! Console sessions. A session is kept in a cookie, so every instance of a fleet knows it without asking the store.
//!
//! A session says who signed in and when, not what the person may do: the role is looked up for each request, so that a
//! user who was removed or got another role loses the old one with the next reload of the registry files.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::registry::{ConsoleUser, OidcConfig};
use crate::console::passwords::Users;
use crate::domain::time::Timestamp;
use crate::web::operator::{KnownBy, Operator};

/// How far the clocks of two instances may differ. A session that seems to begin later than this in the future is refused.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// The idle time is divided into this many parts. A request renews the cookie only if the cookie is older than one
/// part.
const RENEWALS: u32 = 10;

/// How long sessions last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetimes {
    /// The longest time without a request of the user.
    pub idle: Duration,
    /// The longest time in all.
    pub most: Duration,
}

/// What the cookie of a session contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Session {
    who: Who,
    /// When the person signed in, in microseconds since 1970.
    began: i64,
    /// When the person was last active, within the tenth of the idle time after which the cookie is renewed.
    active: i64,
}

/// Who signed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Who {
    /// A person whom the provider knows.
    Person {
        issuer: String,
        client_id: String,
        subject: String,
        name: String,
        /// The value of the claim that gave the role.
        claim_value: String,
    },
    /// A user with a password.
    User {
        name: String,
        /// A hash of the password's hash: a new password ends the sessions of the old one.
        password: String,
    },
}

impl Who {
    pub(super) fn of_user(user: &ConsoleUser) -> Self {
        Self::User { name: user.name.to_string(), password: hash_of(user) }
    }

    /// This person with today's role; `None` for somebody who may not use the console any more.
    fn operator(&self, users: &Users, oidc: Option<&OidcConfig>) -> Option<Operator> {
        match self {
            Self::Person { issuer, client_id, subject, name, claim_value } => {
                let oidc = oidc.filter(|oidc| oidc.issuer == *issuer && oidc.client_id == *client_id)?;
                let known_by = KnownBy::Provider { subject: subject.as_str().into() };
                Some(Operator { name: Some(name.as_str().into()), role: oidc.role_of(claim_value)?, known_by })
            }
            Self::User { name, password } => {
                let user = users.find(name).filter(|user| hash_of(user) == *password)?;
                Some(Operator { name: Some(Arc::clone(&user.name)), role: user.role, known_by: KnownBy::Session })
            }
        }
    }
}

fn hash_of(user: &ConsoleUser) -> String {
    let hash = Sha256::digest(user.password_hash.as_bytes());
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl Session {
    /// The session of somebody who has just signed in.
    pub(super) fn new(who: Who, now: Timestamp) -> Self {
        Self { who, began: now.micros(), active: now.micros() }
    }

    /// Whom the session belongs to; `None` if it has expired or the person may not use the console any more.
    pub(super) fn operator(
        &self,
        now: Timestamp,
        lifetimes: Lifetimes,
        users: &Users,
        oidc: Option<&OidcConfig>,
    ) -> Option<Operator> {
        let (began, active) = (Timestamp::from_micros(self.began), Timestamp::from_micros(self.active));
        let in_future = began.since(now).max(active.since(now)) > CLOCK_SKEW;
        let expired = now.since(began) >= lifetimes.most || now.since(active) >= lifetimes.idle;
        if in_future || expired { None } else { self.who.operator(users, oidc) }
    }

    /// The session after a request of its user; `None` while the cookie is recent enough.
    pub(super) fn renewed(&self, now: Timestamp, lifetimes: Lifetimes) -> Option<Self> {
        let unused = now.since(Timestamp::from_micros(self.active));
        (unused >= lifetimes.idle / RENEWALS).then(|| Self { active: now.micros(), ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::registry::Registry;
    use crate::config::variables::Variables;
    use crate::domain::role::Role;

    const HOURS: Lifetimes = Lifetimes { idle: Duration::from_secs(3600), most: Duration::from_secs(4 * 3600) };
    const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn after(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    /// The provider as the file configures it, with this role for `ops`.
    fn oidc(role: &str, client_id: &str) -> Arc<OidcConfig> {
        let text = format!(
            r#"{{"oidc": {{"issuer": "https://idp.test", "clientId": "{client_id}", "clientSecretEnv": "S",
                "roleClaim": "roles", "roles": {{"ops": "{role}"}}}}}}"#
        );
        let variables = Variables::from_fn(|_| Some("secret".to_owned()));
        Registry::of_console_users(&text, &variables).unwrap().oidc.unwrap()
    }

    fn person() -> Who {
        Who::Person {
            issuer: "https://idp.test".to_owned(),
            client_id: "console".to_owned(),
            subject: "1".to_owned(),
            name: "ada".to_owned(),
            claim_value: "ops".to_owned(),
        }
    }

    fn role(session: &Session, now: Timestamp, oidc: Option<&OidcConfig>) -> Option<Role> {
        session.operator(now, HOURS, &Users::default(), oidc).map(|operator| operator.role)
    }

    #[test]
    fn a_session_ends_when_it_is_idle_and_in_any_case_after_its_lifetime() {
        let oidc = oidc("operator", "console");
        let role = |session: &Session, seconds| role(session, after(seconds), Some(&oidc));
        let mut session = Session::new(person(), START);
        assert_eq!(role(&session, 0), Some(Role::Operator));
        assert_eq!((role(&session, 3599), role(&session, 3600)), (Some(Role::Operator), None));
        assert_eq!(session.renewed(after(359), HOURS), None, "the cookie is recent");
        for seconds in (1800..4 * 3600).step_by(1800) {
            assert_eq!(role(&session, seconds), Some(Role::Operator), "{seconds}");
            session = session.renewed(after(seconds), HOURS).unwrap();
        }
        assert_eq!((role(&session, 4 * 3600 - 1), role(&session, 4 * 3600)), (Some(Role::Operator), None));
    }

    #[test]
    fn a_session_of_another_instance_may_begin_a_little_later() {
        let oidc = oidc("viewer", "console");
        let session = Session::new(person(), after(60));
        assert_eq!(role(&session, START, Some(&oidc)), Some(Role::Viewer));
        assert_eq!(role(&Session::new(person(), after(61)), START, Some(&oidc)), None);
    }

    #[test]
    fn a_changed_configuration_counts_for_sessions_that_exist() {
        let session = Session::new(person(), START);
        assert_eq!(role(&session, START, Some(&oidc("viewer", "console"))), Some(Role::Viewer));
        assert_eq!(role(&session, START, Some(&oidc("admin", "console"))), Some(Role::Admin));
        assert_eq!(role(&session, START, Some(&oidc("admin", "another"))), None);
        assert_eq!(role(&session, START, None), None);
        let user = |password: &str, role| ConsoleUser { name: "vera".into(), password_hash: password.into(), role };
        let users = |user: ConsoleUser| Users { administrator: None, listed: Some([user].into()) };
        let session = Session::new(Who::of_user(&user("a", Role::Viewer)), START);
        let role = |users: Users| session.operator(START, HOURS, &users, None).map(|operator| operator.role);
        assert_eq!(role(users(user("a", Role::Admin))), Some(Role::Admin));
        assert_eq!(role(users(user("b", Role::Viewer))), None, "another password");
        assert_eq!(role(Users::default()), None, "the user was removed");
    }
}
