//! The login of the console: one user with a bcrypt password.
//!
//! Passwords are checked one at a time, outside the request threads, and within [`LoginLimits`]. Credentials that were
//! right before are remembered as a hash and need no further check, so guessing never delays an operator who is logged in.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use actix_web::http::header::HeaderValue;
use actix_web::web;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::login_limits::{LoginLimits, PasswordCheck, TooManyChecks};
use crate::config::settings::{ConfigError, ConsoleConfig};
use crate::platform::clock::monotonic;

/// The maximum length of a password. bcrypt ignores further bytes, so a longer password would be equal to its first part.
const MAX_PASSWORD_BYTES: usize = 72;

/// The user of the console and the hash of the password, as `htpasswd -B` prints them.
pub struct Login {
    user: String,
    hash: String,
    /// The SHA-256 of the last credentials that were right. Comparing it avoids the slow bcrypt check.
    known: RwLock<Option<[u8; 32]>>,
    limits: LoginLimits,
    /// Allows one check at a time, so that guessing uses little CPU time.
    checking: Arc<Semaphore>,
}

/// The result of checking the credentials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The same credentials were right before.
    Known,
    Right,
    /// The request has no credentials.
    Missing,
    Wrong,
    /// The credentials were not checked because of [`LoginLimits`]; the client may try again after this time.
    Limited(Duration),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

impl Login {
    /// The login of `SM_CONSOLE_AUTH`, if it is set.
    pub fn new(config: &ConsoleConfig) -> Result<Option<Self>, ConfigError> {
        config.console_auth.as_deref().map(Self::parse).transpose().map_err(ConfigError::ConsoleAuth)
    }

    /// Parses a line of `htpasswd -B`: `user:$2y$…`. The error repeats nothing of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || "must be a line as 'htpasswd -nB user' prints it: user:$2y$…".to_owned();
        let (user, hash) = text.trim().split_once(':').ok_or_else(invalid)?;
        if user.is_empty() || hash.parse::<bcrypt::HashParts>().is_err() {
            return Err(invalid());
        }
        Ok(Self {
            user: user.to_owned(),
            hash: hash.to_owned(),
            known: RwLock::default(),
            limits: LoginLimits::default(),
            checking: Arc::new(Semaphore::new(1)),
        })
    }

    /// Checks the `Authorization` header of a request that comes from this address.
    pub async fn admit(self: &Arc<Self>, authorization: Option<&HeaderValue>, address: IpAddr) -> Admission {
        let Some(given) = credentials(authorization) else { return Admission::Missing };
        let fingerprint = Sha256::digest(given.as_bytes()).into();
        if self.knows(&fingerprint) {
            return Admission::Known;
        }
        let password = given.split_once(':').map_or("", |(_, password)| password);
        if password.len() > MAX_PASSWORD_BYTES {
            return Admission::Wrong;
        }
        let check = match self.limits.start(address, monotonic()) {
            Ok(check) => check,
            Err(TooManyChecks(retry_after)) => return Admission::Limited(retry_after),
        };
        let Ok(permit) = Arc::clone(&self.checking).acquire_owned().await else { return Admission::Wrong };
        let login = Arc::clone(self);
        // The closure owns the permit and the check, so they are held until it is done, even if the client disconnects.
        let checked = web::block(move || {
            let admission = login.verify(&given, fingerprint, check);
            drop(permit);
            admission
        });
        checked.await.unwrap_or(Admission::Wrong)
    }

    fn knows(&self, fingerprint: &[u8; 32]) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(fingerprint)
    }

    fn verify(&self, given: &str, fingerprint: [u8; 32], check: PasswordCheck) -> Admission {
        // A request with the same credentials may have been checked while this one waited.
        if !self.knows(&fingerprint) {
            let (user, password) = given.split_once(':').unwrap_or_default();
            // The password is also checked for a wrong user, so that the time does not tell whether the user exists.
            let matches = bcrypt::verify(password, &self.hash).unwrap_or(false);
            if !matches || user != self.user {
                return Admission::Wrong;
            }
            *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(fingerprint);
        }
        check.succeeded();
        Admission::Right
    }
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

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn basic(given: &str) -> HeaderValue {
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(given))).unwrap()
    }

    fn login(password: &str) -> Arc<Login> {
        Arc::new(Login::parse(&format!("ops:{}", bcrypt::hash(password, 4).unwrap())).unwrap())
    }

    #[test]
    fn invalid_logins_are_refused_without_repeating_them() {
        let hash = bcrypt::hash("secret", 4).unwrap();
        assert!(Login::parse(&format!("ops:{hash}")).is_ok());
        for text in ["", "ops", "ops:secret", &format!(":{hash}"), "ops:$apr1$x$y"] {
            let error = Login::parse(text).unwrap_err();
            assert!(error.contains("htpasswd -nB") && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[actix_web::test]
    async fn a_login_admits_its_user_and_nobody_else() {
        let login = login("se:cret é");
        assert_eq!(login.admit(Some(&basic("ops:se:cret é")), HERE).await, Admission::Right);
        for wrong in ["ops:se:cret", "root:se:cret é", "ops:", "ops", ""] {
            assert_eq!(login.admit(Some(&basic(wrong)), HERE).await, Admission::Wrong, "{wrong}");
        }
        for missing in [None, Some(HeaderValue::from_static("Bearer x")), Some(HeaderValue::from_static("Basic !"))] {
            assert_eq!(login.admit(missing.as_ref(), HERE).await, Admission::Missing, "{missing:?}");
        }
        assert_eq!(login.admit(Some(&basic("ops:se:cret é")), HERE).await, Admission::Known);
    }

    #[actix_web::test]
    async fn a_password_is_never_truncated() {
        let longest = "é".repeat(36);
        let login = login(&longest);
        let admitted = async |password: &str| login.admit(Some(&basic(&format!("ops:{password}"))), HERE).await;
        assert_eq!(admitted(&format!("{longest}x")).await, Admission::Wrong);
        assert_eq!(admitted(&longest).await, Admission::Right);
        assert_eq!(admitted(&format!("{longest}x")).await, Admission::Wrong);
    }

    #[actix_web::test]
    async fn guessing_does_not_delay_a_known_login() {
        let login = login("secret");
        assert_eq!(login.admit(Some(&basic("ops:secret")), HERE).await, Admission::Right);
        // Blocks all checks: every result from here on came without one.
        let held = Arc::clone(&login.checking).acquire_owned().await.unwrap();
        let guess = async |number: usize| login.admit(Some(&basic(&format!("ops:{number}"))), HERE).await;
        let mut guesses = Box::pin(join_all((0..200).map(guess)));
        assert!(futures_util::poll!(&mut guesses).is_pending());
        assert_eq!(login.admit(Some(&basic("ops:secret")), HERE).await, Admission::Known);
        drop(held);
        let answers = guesses.await;
        let wrong = answers.iter().filter(|answer| **answer == Admission::Wrong).count();
        assert_eq!(wrong, 4, "no more than may wait: {answers:?}");
        assert!(answers.iter().all(|answer| matches!(answer, Admission::Wrong | Admission::Limited(_))), "{answers:?}");
    }

    #[actix_web::test]
    async fn requests_with_the_same_new_password_need_one_check() {
        let login = login("secret");
        let given = basic("ops:secret");
        let answers = join_all((0..4).map(|_| login.admit(Some(&given), HERE))).await;
        assert_eq!(answers, [Admission::Right; 4]);
        for number in 0..10 {
            assert_eq!(login.admit(Some(&basic(&format!("ops:{number}"))), HERE).await, Admission::Wrong);
        }
        let limited = login.admit(Some(&basic("ops:x")), HERE).await;
        assert!(matches!(limited, Admission::Limited(after) if after <= Duration::from_secs(6)), "{limited:?}");
        assert_eq!(login.admit(Some(&basic("ops:x")), IpAddr::from([10, 0, 0, 1])).await, Admission::Wrong);
    }
}
