//! Sign-in to the console with a user name and a password, from basic auth or the form of the sign-in page.
//!
//! Passwords are checked one at a time, outside the request threads, and within [`LoginLimits`]. Credentials that were
//! right before are remembered as a hash and need no further check, so guessing never delays an operator who is signed in.
//! Nothing tells whether a user exists: a wrong name takes a check of the same kind and counts against the same limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use actix_web::http::header::HeaderValue;
use actix_web::web;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use super::login_limits::{LoginLimits, PasswordCheck, TooManyChecks};
use crate::config::registry::ConsoleUser;
use crate::platform::clock::monotonic;
use crate::web::operator::{KnownBy, Operator};

/// The maximum length of a password. bcrypt ignores further bytes, so a longer password would be equal to its first part.
const MAX_PASSWORD_BYTES: usize = 72;

/// The users of the console at the moment of a request.
#[derive(Clone, Default)]
pub(super) struct Users {
    /// The administrator of `SM_CONSOLE_AUTH`.
    pub administrator: Option<ConsoleUser>,
    /// The users of `SM_CONSOLE_USERS`. A user with the same name as the administrator cannot sign in.
    pub listed: Option<Arc<[ConsoleUser]>>,
}

impl Users {
    fn iter(&self) -> impl Iterator<Item = &ConsoleUser> {
        self.administrator.iter().chain(self.listed.iter().flat_map(|users| users.iter()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(super) fn find(&self, name: &str) -> Option<&ConsoleUser> {
        self.iter().find(|user| *user.name == *name)
    }

    /// A user whose hash is checked in place of a user who does not exist. It is always the same one for the same name, so
    /// that the costs of the checks do not tell which names exist.
    fn stand_in(&self, name_hash: &[u8; 32]) -> Option<&ConsoleUser> {
        let count = u64::try_from(self.iter().count()).ok().filter(|count| *count > 0)?;
        let [a, b, c, d, e, f, g, h, ..] = *name_hash;
        let index = u64::from_le_bytes([a, b, c, d, e, f, g, h]) % count;
        self.iter().nth(usize::try_from(index).ok()?)
    }
}

/// Checks passwords, and remembers the credentials that were right.
pub(super) struct Passwords {
    /// Random, so that remembered hashes say nothing about passwords outside this process.
    salt: [u8; 32],
    /// By user, the hash of the last credentials that were right together with the password hash that they matched. Comparing
    /// it avoids the slow bcrypt check. A user who was removed or got another password is not known any more.
    known: RwLock<HashMap<Arc<str>, [u8; 32]>>,
    limits: LoginLimits,
    /// Allows one check at a time, so that guessing uses little CPU time.
    checking: Arc<Semaphore>,
}

/// The result of checking the credentials of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The same credentials were right before.
    Known(Operator),
    Right(Operator),
    /// The request has no credentials.
    Missing,
    Wrong,
    /// The credentials were not checked because of [`LoginLimits`]; the client may try again after this time.
    Limited(Duration),
}

impl Passwords {
    /// Fails if the system has no random numbers.
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        let mut salt = [0; 32];
        getrandom::fill(&mut salt)?;
        Ok(Self {
            salt,
            known: RwLock::default(),
            limits: LoginLimits::default(),
            checking: Arc::new(Semaphore::new(1)),
        })
    }

    /// Checks the `Authorization` header of a request that comes from this address.
    pub(super) async fn admit(
        self: &Arc<Self>,
        users: &Users,
        authorization: Option<&HeaderValue>,
        address: IpAddr,
    ) -> Admission {
        let Some(given) = credentials(authorization) else { return Admission::Missing };
        let (name, password) = given.split_once(':').unwrap_or((&given, ""));
        self.check(users, name, password, address).await
    }

    /// Checks a user name and a password that come from this address. The result is never `Missing`.
    pub(super) async fn check(
        self: &Arc<Self>,
        users: &Users,
        name: &str,
        password: &str,
        address: IpAddr,
    ) -> Admission {
        let found = users.find(name);
        if let Some(user) = found.filter(|user| self.knows(user, password)) {
            return Admission::Known(operator(user));
        }
        if password.len() > MAX_PASSWORD_BYTES {
            return Admission::Wrong;
        }
        let name_hash = self.hash(&[name]);
        let Some(checked) = found.or_else(|| users.stand_in(&name_hash)).cloned() else { return Admission::Wrong };
        let check = match self.limits.start(address, name_hash, monotonic()) {
            Ok(check) => check,
            Err(TooManyChecks(retry_after)) => return Admission::Limited(retry_after),
        };
        let Ok(permit) = Arc::clone(&self.checking).acquire_owned().await else { return Admission::Wrong };
        let (passwords, exists, password) = (Arc::clone(self), found.is_some(), password.to_owned());
        // The closure owns the permit and the check, so they are held until it is done, even if the client disconnects.
        let checked = web::block(move || {
            let admission = passwords.verify(&checked, exists, &password, check);
            drop(permit);
            admission
        });
        checked.await.unwrap_or(Admission::Wrong)
    }

    fn verify(&self, user: &ConsoleUser, exists: bool, password: &str, check: PasswordCheck) -> Admission {
        // A request with the same credentials may have been checked while this one waited.
        if !(exists && self.knows(user, password)) {
            let matches = bcrypt::verify(password, &user.password_hash).unwrap_or(false);
            if !matches || !exists {
                return Admission::Wrong;
            }
            let hash = self.credentials_hash(user, password);
            self.known.write().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&user.name), hash);
        }
        check.succeeded();
        Admission::Right(operator(user))
    }

    /// Forgets the credentials of a user, whose next request is then checked again. For a sign-in that was not recorded.
    pub(super) fn forget(&self, name: &str) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn knows(&self, user: &ConsoleUser, password: &str) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&user.name).copied();
        known.is_some_and(|known| known.ct_eq(&self.credentials_hash(user, password)).into())
    }

    fn credentials_hash(&self, user: &ConsoleUser, password: &str) -> [u8; 32] {
        self.hash(&[&user.name, &user.password_hash, password])
    }

    fn hash(&self, parts: &[&str]) -> [u8; 32] {
        let mut hasher = Sha256::new_with_prefix(self.salt);
        for part in parts {
            hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

fn operator(user: &ConsoleUser) -> Operator {
    Operator { name: Some(Arc::clone(&user.name)), role: user.role, known_by: KnownBy::Password }
}

/// The user whose name the `Authorization` header has, if there is such a user.
pub(super) fn named_user<'a>(users: &'a Users, authorization: Option<&HeaderValue>) -> Option<&'a str> {
    let given = credentials(authorization)?;
    let name = given.split_once(':').map_or(given.as_str(), |(name, _)| name);
    users.find(name).map(|user| &*user.name)
}

/// The `user:password` of an `Authorization` header with basic auth.
fn credentials(authorization: Option<&HeaderValue>) -> Option<String> {
    let (scheme, encoded) = authorization?.to_str().ok()?.split_once(' ')?;
    let bytes = STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::domain::role::Role;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn basic(given: &str) -> HeaderValue {
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(given))).unwrap()
    }

    fn user(name: &str, password: &str, role: Role) -> ConsoleUser {
        ConsoleUser { name: name.into(), password_hash: bcrypt::hash(password, 4).unwrap().into(), role }
    }

    fn listed(users: &[ConsoleUser]) -> Users {
        Users { administrator: None, listed: Some(users.to_vec().into()) }
    }

    struct Fixture {
        passwords: Arc<Passwords>,
        users: Users,
    }

    impl Fixture {
        /// With a viewer `vera` and an administrator `ops` with this password.
        fn new(password: &str) -> Self {
            let users = listed(&[user("vera", "tulip", Role::Viewer), user("ops", password, Role::Admin)]);
            Self { passwords: Arc::new(Passwords::new().unwrap()), users }
        }

        async fn admit(&self, given: &str) -> Admission {
            self.passwords.admit(&self.users, Some(&basic(given)), HERE).await
        }
    }

    fn ops() -> Operator {
        Operator { name: Some("ops".into()), role: Role::Admin, known_by: KnownBy::Password }
    }

    #[actix_web::test]
    async fn each_user_is_admitted_in_their_own_role_and_nobody_else() {
        let fixture = Fixture::new("se:cret é");
        assert_eq!(fixture.admit("ops:se:cret é").await, Admission::Right(ops()));
        let vera = Operator { name: Some("vera".into()), role: Role::Viewer, known_by: KnownBy::Password };
        assert_eq!(fixture.admit("vera:tulip").await, Admission::Right(vera.clone()));
        for wrong in ["ops:se:cret", "root:se:cret é", "vera:se:cret é", "root:tulip", "ops:", "ops", ":tulip", ""] {
            assert_eq!(fixture.admit(wrong).await, Admission::Wrong, "{wrong}");
        }
        for missing in [None, Some(HeaderValue::from_static("Bearer x")), Some(HeaderValue::from_static("Basic !"))] {
            let admission = fixture.passwords.admit(&fixture.users, missing.as_ref(), HERE).await;
            assert_eq!(admission, Admission::Missing, "{missing:?}");
        }
        assert_eq!(fixture.admit("ops:se:cret é").await, Admission::Known(ops()));
        assert_eq!(fixture.admit("vera:tulip").await, Admission::Known(vera));
    }

    #[actix_web::test]
    async fn a_user_who_was_removed_or_got_another_password_is_not_known_any_more() {
        let mut fixture = Fixture::new("secret");
        assert_eq!(fixture.admit("ops:secret").await, Admission::Right(ops()));
        fixture.users = listed(&[user("ops", "other", Role::Admin), user("vera", "tulip", Role::Viewer)]);
        assert_eq!(fixture.admit("ops:secret").await, Admission::Wrong);
        fixture.users = listed(&[user("vera", "tulip", Role::Viewer)]);
        assert_eq!(fixture.admit("ops:secret").await, Admission::Wrong);
        fixture.users = Users::default();
        assert_eq!(fixture.admit("ops:secret").await, Admission::Wrong);
        // A changed role counts from the next request on.
        fixture.users = listed(&[user("vera", "tulip", Role::Viewer)]);
        assert!(matches!(fixture.admit("vera:tulip").await, Admission::Right(_)));
        let mut promoted = fixture.users.listed.clone().unwrap().to_vec();
        promoted[0].role = Role::Operator;
        fixture.users = listed(&promoted);
        assert!(matches!(fixture.admit("vera:tulip").await, Admission::Known(o) if o.role == Role::Operator));
    }

    #[actix_web::test]
    async fn the_administrator_of_the_settings_comes_before_a_listed_user_of_the_same_name() {
        let mut fixture = Fixture::new("listed");
        fixture.users.administrator = Some(user("ops", "setting", Role::Admin));
        assert_eq!(fixture.admit("ops:setting").await, Admission::Right(ops()));
        assert_eq!(fixture.admit("ops:listed").await, Admission::Wrong);
        assert!(matches!(fixture.admit("vera:tulip").await, Admission::Right(_)));
    }

    #[actix_web::test]
    async fn a_password_is_never_truncated() {
        let longest = "é".repeat(36);
        let fixture = Fixture::new(&longest);
        assert_eq!(fixture.admit(&format!("ops:{longest}x")).await, Admission::Wrong);
        assert_eq!(fixture.admit(&format!("ops:{longest}")).await, Admission::Right(ops()));
        assert_eq!(fixture.admit(&format!("ops:{longest}x")).await, Admission::Wrong);
    }

    #[actix_web::test]
    async fn guessing_does_not_delay_a_known_user() {
        let fixture = Fixture::new("secret");
        assert_eq!(fixture.admit("ops:secret").await, Admission::Right(ops()));
        // Blocks all checks: every result from here on came without one.
        let held = Arc::clone(&fixture.passwords.checking).acquire_owned().await.unwrap();
        let guess = async |number: usize| fixture.admit(&format!("ops:{number}")).await;
        let mut guesses = Box::pin(join_all((0..200).map(guess)));
        assert!(futures_util::poll!(&mut guesses).is_pending());
        assert_eq!(fixture.admit("ops:secret").await, Admission::Known(ops()));
        drop(held);
        let answers = guesses.await;
        let wrong = answers.iter().filter(|answer| **answer == Admission::Wrong).count();
        assert_eq!(wrong, 4, "no more than may wait: {answers:?}");
        assert!(answers.iter().all(|answer| matches!(answer, Admission::Wrong | Admission::Limited(_))), "{answers:?}");
    }

    #[actix_web::test]
    async fn requests_with_the_same_new_password_need_one_check() {
        let fixture = Fixture::new("secret");
        let answers = join_all((0..4).map(|_| fixture.admit("ops:secret"))).await;
        assert!(answers.iter().all(|answer| *answer == Admission::Right(ops())), "{answers:?}");
        for number in 0..10 {
            assert_eq!(fixture.admit(&format!("ops:{number}")).await, Admission::Wrong);
        }
        let limited = fixture.admit("ops:x").await;
        assert!(matches!(limited, Admission::Limited(after) if after <= Duration::from_secs(6)), "{limited:?}");
        let elsewhere = IpAddr::from([10, 0, 0, 1]);
        let admission = fixture.passwords.admit(&fixture.users, Some(&basic("ops:x")), elsewhere).await;
        assert_eq!(admission, Admission::Wrong);
    }

    /// Names that exist and names that do not get the same answers, at the same limits.
    #[actix_web::test]
    async fn wrong_passwords_do_not_tell_which_users_exist() {
        let answers = async |name: &str| {
            let fixture = Fixture::new("secret");
            let mut answers = Vec::new();
            for number in 0..40_u8 {
                let address = IpAddr::from([10, 0, 0, number]);
                let given = basic(&format!("{name}:{number}"));
                let admission = fixture.passwords.admit(&fixture.users, Some(&given), address).await;
                answers.push(matches!(admission, Admission::Limited(_)));
            }
            answers
        };
        let existing = answers("ops").await;
        assert_eq!(existing, answers("nobody").await);
        assert!(existing.contains(&true), "a user is limited over all addresses");
    }

    #[test]
    fn a_missing_user_is_stood_in_for_by_always_the_same_user() {
        let fixture = Fixture::new("secret");
        let stand_in = |name: &str| {
            let hash = fixture.passwords.hash(&[name]);
            fixture.users.stand_in(&hash).unwrap().name.to_string()
        };
        let names: Vec<_> = (0..64).map(|number| format!("nobody-{number}")).collect();
        let first: Vec<_> = names.iter().map(|name| stand_in(name)).collect();
        assert_eq!(first, names.iter().map(|name| stand_in(name)).collect::<Vec<_>>());
        assert!(first.contains(&"ops".to_owned()) && first.contains(&"vera".to_owned()), "{first:?}");
    }
}
