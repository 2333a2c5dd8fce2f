//! The log lines, metrics and audit entries of sign-in. Every sign-in, successful or refused, is recorded here once.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::refusal::Refusal;
use crate::console::login_limits::{Limit, Used};
use crate::console::passwords::{Admission, Passwords};
use crate::domain::audit::{NewAuditEntry, SignInWith};
use crate::platform::clock::monotonic;
use crate::platform::errors::full_text;
use crate::store::StoreError;
use crate::web::WebDeps;
use crate::web::actor::{person, refused_person};
use crate::web::operator::{KnownBy, Operator};

/// Records that somebody signed in from this address. If it fails, the person must not be let in, and has to sign in again.
pub(in crate::console) async fn signed_in(
    deps: &WebDeps,
    passwords: &Passwords,
    operator: &Operator,
    address: IpAddr,
) -> Result<(), StoreError> {
    let with = match &operator.known_by {
        KnownBy::Provider { subject } => SignInWith::Provider { subject },
        KnownBy::Loopback | KnownBy::Password | KnownBy::Session => SignInWith::Password,
    };
    let entry = NewAuditEntry::sign_in(&person(operator, Some(address)), operator.role, with);
    let name = operator.name.as_deref().unwrap_or_default();
    if let Err(error) = deps.store.append_audit(entry).await {
        passwords.forget(name);
        return Err(error);
    }
    deps.metrics.console_login("right");
    let role = operator.role.as_str();
    match with {
        SignInWith::Provider { subject } => {
            log::info!("console_signed_in name={name:?} role={role} subject={subject:?} address={address}");
        }
        SignInWith::Password => log::info!("console_signed_in name={name:?} role={role} address={address}"),
    }
    Ok(())
}

/// The limit of log lines, and of audit entries, about refused sign-ins. It is the same as that of wrong passwords. Anyone can
/// cause such a line or entry, so without a limit anyone could fill the log or the store. The metric counts all refused
/// sign-ins.
const RECORDED: Limit = Limit { burst: 60, every: Duration::from_secs(1) };

/// Records sign-ins that were refused.
#[derive(Default)]
pub(in crate::console) struct Refusals {
    /// Log lines about the provider. Lines about passwords are limited with the passwords.
    logged: Allowance,
    audited: Allowance,
}

impl Refusals {
    /// Records a sign-in with the provider that was refused.
    pub(super) async fn provider(&self, deps: &WebDeps, refusal: &Refusal, address: IpAddr) {
        deps.metrics.console_login("refused");
        let (reason, detail) = (refusal.reason(), refusal.detail());
        if self.logged.take().is_some() {
            match detail.as_str() {
                "" => log::warn!("console_sign_in_refused reason={reason} address={address}"),
                detail => log::warn!("console_sign_in_refused reason={reason} detail={detail:?} address={address}"),
            }
        }
        let user = match refusal {
            Refusal::NoRole { name, .. } => Some(name.as_str()),
            _ => None,
        };
        self.audit(deps, user, reason, &detail, address).await;
    }

    /// Records that a password was not accepted. `user` is the user whose name was given, if there is such a user: a name
    /// that no user has may be a password that was typed into the wrong field.
    pub(in crate::console) async fn password(
        &self,
        deps: &WebDeps,
        admission: &Admission,
        user: Option<&str>,
        address: IpAddr,
    ) {
        match admission {
            Admission::Wrong => {
                deps.metrics.console_login("wrong");
                log::warn!("console_sign_in_refused reason=wrong_password address={address}");
                self.audit(deps, user, "wrong_password", "", address).await;
            }
            // Only counted, because anyone could fill the logs with these.
            Admission::Limited(_) => {
                deps.metrics.console_login("limited");
                self.audited.miss(1);
            }
            Admission::Known(_) | Admission::Right(_) | Admission::Missing => {}
        }
    }

    /// Appends an entry to the audit log. If there are too many, or the store fails, the next entry counts the missing ones.
    async fn audit(&self, deps: &WebDeps, user: Option<&str>, reason: &str, detail: &str, address: IpAddr) {
        let Some(missed) = self.audited.take() else { return };
        let actor = refused_person(user, Some(address));
        let entry = NewAuditEntry::sign_in_refused(&actor, reason, detail, missed);
        if let Err(error) = deps.store.append_audit(entry).await {
            log::warn!("audit_entry_lost action=sign_in_refused store_error={:?}", full_text(&error));
            self.audited.miss(missed + 1);
        }
    }
}

/// How much of [`RECORDED`] is used, and how many refused sign-ins were not recorded.
#[derive(Default)]
struct Allowance(Mutex<(Option<Used>, u64)>);

impl Allowance {
    /// Takes room for one record, and returns how many are missing before it; `None` if there is no room.
    fn take(&self) -> Option<u64> {
        let now = monotonic();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (used, missed) = &mut *state;
        match used.unwrap_or(Used::nothing(now)).plus_one(&RECORDED, now) {
            Ok(more) => {
                *used = Some(more);
                Some(std::mem::take(missed))
            }
            Err(_) => {
                *missed += 1;
                None
            }
        }
    }

    /// Counts records that are missing.
    fn miss(&self, count: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 += count;
    }
}

/// Records that somebody ended a session. The session ends even if that cannot be recorded.
pub(super) async fn signed_out(deps: &WebDeps, operator: &Operator, address: IpAddr) {
    let name = operator.name.as_deref().unwrap_or_default();
    log::info!("console_signed_out name={name:?} address={address}");
    let entry = NewAuditEntry::sign_out(&person(operator, Some(address)));
    if let Err(error) = deps.store.append_audit(entry).await {
        log::warn!("audit_entry_lost action=sign_out store_error={:?}", full_text(&error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn records_are_limited_and_the_missing_ones_are_counted() {
        let allowance = Allowance::default();
        for _ in 0..RECORDED.burst {
            assert_eq!(allowance.take(), Some(0));
        }
        assert_eq!((allowance.take(), allowance.take()), (None, None));
        allowance.miss(3);
        tokio::time::advance(RECORDED.every).await;
        assert_eq!((allowance.take(), allowance.take()), (Some(5), None));
    }
}
