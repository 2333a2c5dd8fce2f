//! Limits on password checks of the console: for each address, for each user name, for all together, and for checks at the
//! same time.
//!
//! The only state is behind a lock; the time is passed in.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Wrong passwords of one address: a burst of ten, then one every six seconds. A person who has forgotten a password needs
/// fewer; a program that guesses gets 14,400 a day.
const PER_ADDRESS: Limit = Limit { burst: 10, every: Duration::from_secs(6) };
/// Wrong passwords for one user name, from all addresses: a burst of thirty, then one every twenty seconds. A program that
/// guesses from many addresses gets 4,320 a day. Names that do not exist count in the same way.
const PER_USER: Limit = Limit { burst: 30, every: Duration::from_secs(20) };
/// Wrong passwords of all addresses together: a burst of sixty, then one a second. A check takes up to a quarter of a second
/// of CPU time, so guessing never uses more than a quarter of one core.
const TOTAL: Limit = Limit { burst: 60, every: Duration::from_secs(1) };
/// Checks of one address that wait or run. A browser that was just given a password sends a few requests at the same time.
const MAX_PENDING_PER_ADDRESS: usize = 4;
/// Checks of all addresses that wait or run. With this limit, none waits longer than four seconds.
const MAX_PENDING: usize = 16;

pub(super) struct Limit {
    pub burst: u32,
    pub every: Duration,
}

/// A limit was reached; another check is allowed after this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyChecks(pub Duration);

/// How much of a limit is used, as the time at which the limit will be fully available again (a leaky bucket).
#[derive(Clone, Copy)]
pub(super) struct Used(Instant);

impl Used {
    /// Nothing of the limit is used.
    pub(super) const fn nothing(now: Instant) -> Self {
        Self(now)
    }

    /// Counts one more check, or returns how long to wait for it.
    pub(super) fn plus_one(self, limit: &Limit, now: Instant) -> Result<Self, TooManyChecks> {
        let used = self.0.max(now) + limit.every;
        let over = used.duration_since(now).saturating_sub(limit.every * limit.burst);
        if over.is_zero() { Ok(Self(used)) } else { Err(TooManyChecks(over)) }
    }

    fn minus_one(self, limit: &Limit) -> Self {
        Self(self.0.checked_sub(limit.every).unwrap_or(self.0))
    }
}

struct Address {
    used: Used,
    pending: usize,
}

/// The hash of a user name, which takes the same memory for every name.
type NameHash = [u8; 32];

#[derive(Default)]
struct State {
    /// `None` until the first check.
    total: Option<Used>,
    /// The addresses that have used a part of their limit. The total limit bounds their number.
    addresses: HashMap<IpAddr, Address>,
    /// The user names, as hashes, that have used a part of their limit. The total limit bounds their number, too.
    users: HashMap<NameHash, Used>,
    pending: usize,
}

/// Counts password checks against the limits. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct LoginLimits(Arc<Mutex<State>>);

impl LoginLimits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a password check of this address and user name, if the limits allow it. The check counts as wrong until
    /// [`PasswordCheck::succeeded`] is called.
    pub(super) fn start(&self, address: IpAddr, user: NameHash, now: Instant) -> Result<PasswordCheck, TooManyChecks> {
        let address = network(address);
        let mut state = self.state();
        let state = &mut *state;
        state.addresses.retain(|_, address| address.pending > 0 || address.used.0 > now);
        state.users.retain(|_, used| used.0 > now);
        let entry = state.addresses.get(&address);
        let pending = entry.map_or(0, |entry| entry.pending);
        if state.pending >= MAX_PENDING || pending >= MAX_PENDING_PER_ADDRESS {
            return Err(TooManyChecks(Duration::from_secs(1)));
        }
        let used = entry.map_or(Used(now), |entry| entry.used).plus_one(&PER_ADDRESS, now)?;
        let used_by_user = state.users.get(&user).copied().unwrap_or(Used(now)).plus_one(&PER_USER, now)?;
        state.total = Some(state.total.unwrap_or(Used(now)).plus_one(&TOTAL, now)?);
        state.users.insert(user, used_by_user);
        state.pending += 1;
        state.addresses.insert(address, Address { used, pending: pending + 1 });
        Ok(PasswordCheck { limits: self.clone(), address, user })
    }
}

/// One password check that waits or runs. Dropping it ends the check.
pub(super) struct PasswordCheck {
    limits: LoginLimits,
    address: IpAddr,
    user: NameHash,
}

impl PasswordCheck {
    /// The password was right, so the check does not count against the limits.
    pub(super) fn succeeded(self) {
        let mut state = self.limits.state();
        state.total = state.total.map(|used| used.minus_one(&TOTAL));
        if let Some(entry) = state.addresses.get_mut(&self.address) {
            entry.used = entry.used.minus_one(&PER_ADDRESS);
        }
        if let Some(used) = state.users.get_mut(&self.user) {
            *used = used.minus_one(&PER_USER);
        }
    }
}

impl Drop for PasswordCheck {
    fn drop(&mut self) {
        let mut state = self.limits.state();
        state.pending = state.pending.saturating_sub(1);
        if let Some(entry) = state.addresses.get_mut(&self.address) {
            entry.pending = entry.pending.saturating_sub(1);
        }
    }
}

/// The /64 network of an IPv6 address, because a host usually has the whole network. IPv4 addresses stay as they are.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (!0 << 64))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::platform::clock::monotonic;

    /// A user name of which nothing is used yet, for every call another one.
    fn somebody() -> NameHash {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        hash
    }

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn an_address_has_ten_checks_and_then_one_every_six_seconds() {
        let (limits, now) = (LoginLimits::default(), monotonic());
        let check = |after: u64| limits.start(address(1), somebody(), now + Duration::from_secs(after)).map(drop);
        for _ in 0..10 {
            assert_eq!(check(0), Ok(()));
        }
        assert_eq!(check(0), Err(TooManyChecks(Duration::from_secs(6))));
        assert_eq!(check(4), Err(TooManyChecks(Duration::from_secs(2))));
        assert_eq!((check(6), check(6)), (Ok(()), Err(TooManyChecks(Duration::from_secs(6)))));
        assert_eq!(limits.start(address(2), somebody(), now).map(drop), Ok(()), "another address");
        let same_network: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap()];
        assert_eq!(network(same_network[0]), network(same_network[1]));
        assert_ne!(network(same_network[0]), network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }

    #[test]
    fn a_user_has_thirty_checks_from_all_addresses_and_then_one_every_twenty_seconds() {
        let (limits, now) = (LoginLimits::default(), monotonic());
        let user = somebody();
        let check =
            |number: u8, after: u64| limits.start(address(number), user, now + Duration::from_secs(after)).map(drop);
        for number in 0..30 {
            assert_eq!(check(number, 0), Ok(()));
        }
        assert_eq!(check(30, 0), Err(TooManyChecks(Duration::from_secs(20))));
        assert_eq!(limits.start(address(30), somebody(), now).map(drop), Ok(()), "another user");
        assert_eq!((check(31, 20), check(32, 20)), (Ok(()), Err(TooManyChecks(Duration::from_secs(20)))));
    }

    #[test]
    fn a_right_password_does_not_count() {
        let (limits, now) = (LoginLimits::default(), monotonic());
        let user = somebody();
        for _ in 0..1000 {
            limits
                .start(address(1), user, now)
                .unwrap_or_else(|_| panic!("right passwords are not limited"))
                .succeeded();
        }
    }

    #[test]
    fn all_addresses_together_have_sixty_and_then_one_a_second() {
        let (limits, now) = (LoginLimits::default(), monotonic());
        let started = (0..=255).filter(|number| limits.start(address(*number), somebody(), now).is_ok()).count();
        assert_eq!(started, 60);
        assert!(limits.state().addresses.len() <= 60, "refused addresses take no memory");
        assert!(limits.start(address(1), somebody(), now + Duration::from_secs(1)).is_ok());
        let later = now + Duration::from_secs(3600);
        drop(limits.start(address(1), somebody(), later));
        assert_eq!(limits.state().addresses.len(), 1, "addresses that stopped are forgotten");
        assert_eq!(limits.state().users.len(), 1, "user names, too");
    }

    #[test]
    fn only_a_few_checks_may_be_pending() {
        let (limits, now) = (LoginLimits::default(), monotonic());
        let mut pending: Vec<_> = (0..4).map(|_| limits.start(address(1), somebody(), now).ok().unwrap()).collect();
        assert_eq!(limits.start(address(1), somebody(), now).err(), Some(TooManyChecks(Duration::from_secs(1))));
        pending.extend((2..14).map(|number| limits.start(address(number), somebody(), now).ok().unwrap()));
        assert_eq!(limits.start(address(14), somebody(), now).err(), Some(TooManyChecks(Duration::from_secs(1))));
        pending.truncate(15);
        assert!(limits.start(address(14), somebody(), now).is_ok());
    }
}
