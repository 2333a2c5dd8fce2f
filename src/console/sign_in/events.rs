//! The log lines and metrics of sign-in. Every sign-in, successful or refused, is recorded here once.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::refusal::Refusal;
use crate::console::login_limits::{Limit, Used};
use crate::console::passwords::Admission;
use crate::platform::clock::monotonic;
use crate::web::WebDeps;
use crate::web::operator::{KnownBy, Operator};

/// Records that somebody signed in from this address.
pub(in crate::console) fn signed_in(deps: &WebDeps, operator: &Operator, address: IpAddr) {
    deps.metrics.console_login("right");
    let name = operator.name.as_deref().unwrap_or_default();
    let role = operator.role.as_str();
    match &operator.known_by {
        KnownBy::Provider { subject } => {
            log::info!("console_signed_in name={name:?} role={role} subject={subject:?} address={address}");
        }
        KnownBy::Loopback | KnownBy::Password | KnownBy::Session => {
            log::info!("console_signed_in name={name:?} role={role} address={address}");
        }
    }
}

/// Records that a password was not accepted.
pub(in crate::console) fn password_refused(deps: &WebDeps, admission: &Admission, address: IpAddr) {
    match admission {
        Admission::Wrong => {
            deps.metrics.console_login("wrong");
            log::warn!("console_sign_in_refused reason=wrong_password address={address}");
        }
        // Not logged, because anyone could fill the log with such lines.
        Admission::Limited(_) => deps.metrics.console_login("limited"),
        Admission::Known(_) | Admission::Right(_) | Admission::Missing => {}
    }
}

/// The limit of log lines about refused sign-ins, which is the same as that of wrong passwords. Anyone can cause such a
/// line, so without a limit anyone could fill the log. The metric counts all refused sign-ins.
const LOGGED: Limit = Limit { burst: 60, every: Duration::from_secs(1) };

/// Records sign-ins with the provider that were refused.
#[derive(Default)]
pub(super) struct Refusals {
    /// How much of [`LOGGED`] is used; `None` before the first refusal.
    logged: Mutex<Option<Used>>,
}

impl Refusals {
    /// Records one refused sign-in from this address.
    pub(super) fn record(&self, deps: &WebDeps, refusal: &Refusal, address: IpAddr) {
        deps.metrics.console_login("refused");
        if !self.may_log() {
            return;
        }
        let (reason, detail) = (refusal.reason(), refusal.detail());
        match detail.as_str() {
            "" => log::warn!("console_sign_in_refused reason={reason} address={address}"),
            detail => log::warn!("console_sign_in_refused reason={reason} detail={detail:?} address={address}"),
        }
    }

    fn may_log(&self) -> bool {
        let now = monotonic();
        let mut used = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        match used.unwrap_or(Used::nothing(now)).plus_one(&LOGGED, now) {
            Ok(more) => {
                *used = Some(more);
                true
            }
            Err(_) => false,
        }
    }
}

/// Records that somebody ended a session.
pub(super) fn signed_out(operator: &Operator, address: IpAddr) {
    let name = operator.name.as_deref().unwrap_or_default();
    log::info!("console_signed_out name={name:?} address={address}");
}
