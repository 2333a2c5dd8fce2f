//! How many passwords may be tried: by each address, by all together, and at once. Pure but for its lock.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Wrong passwords of one address: ten at first, then one every six seconds. A person who has forgotten a password
/// needs fewer, and a program that guesses gets 14,400 a day.
const BY_ADDRESS: Limit = Limit { at_first: 10, every: Duration::from_secs(6) };
/// Wrong passwords of all addresses together, for the one user that there is: sixty at first, then one a second. A check
/// takes up to a quarter of a second of a processor, so that guessing never costs more than a quarter of one.
const OF_ALL: Limit = Limit { at_first: 60, every: Duration::from_secs(1) };
/// Checks of one address that wait or run: a browser that has just been given a password asks for a few things at once.
const WAITING_BY_ADDRESS: usize = 4;
/// Checks of all addresses that wait or run: one that is let in waits for four seconds at most.
const WAITING: usize = 16;

struct Limit {
    at_first: u32,
    every: Duration,
}

/// When a password may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany(pub Duration);

/// What has been used of a limit, as the moment at which nothing of it would be in use.
#[derive(Clone, Copy)]
struct Used(Instant);

impl Used {
    /// The use of one more, or how long to wait for it.
    fn one_more(self, limit: &Limit, now: Instant) -> Result<Self, TooMany> {
        let used = self.0.max(now) + limit.every;
        let over = used.duration_since(now).saturating_sub(limit.every * limit.at_first);
        if over.is_zero() { Ok(Self(used)) } else { Err(TooMany(over)) }
    }

    fn one_less(self, limit: &Limit) -> Self {
        Self(self.0.checked_sub(limit.every).unwrap_or(self.0))
    }
}

struct Address {
    used: Used,
    waiting: usize,
}

#[derive(Default)]
struct State {
    /// None until the first guess.
    of_all: Option<Used>,
    /// Those that have used something of their limit, which `OF_ALL` bounds.
    addresses: HashMap<IpAddr, Address>,
    waiting: usize,
}

#[derive(Clone, Default)]
pub struct Guesses(Arc<Mutex<State>>);

impl Guesses {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a guess of this address as wrong until it turns out to be right, if it may be made.
    pub fn begin(&self, address: IpAddr, now: Instant) -> Result<Guess, TooMany> {
        let address = network(address);
        let mut state = self.state();
        let state = &mut *state;
        state.addresses.retain(|_, address| address.waiting > 0 || address.used.0 > now);
        let entry = state.addresses.get(&address);
        let waiting = entry.map_or(0, |entry| entry.waiting);
        if state.waiting >= WAITING || waiting >= WAITING_BY_ADDRESS {
            return Err(TooMany(Duration::from_secs(1)));
        }
        let used = entry.map_or(Used(now), |entry| entry.used).one_more(&BY_ADDRESS, now)?;
        state.of_all = Some(state.of_all.unwrap_or(Used(now)).one_more(&OF_ALL, now)?);
        state.waiting += 1;
        state.addresses.insert(address, Address { used, waiting: waiting + 1 });
        Ok(Guess { guesses: self.clone(), address })
    }
}

/// One guess that waits or is being checked, until it is dropped.
pub struct Guess {
    guesses: Guesses,
    address: IpAddr,
}

impl Guess {
    /// It was right, and counts no more.
    pub fn right(self) {
        let mut state = self.guesses.state();
        state.of_all = state.of_all.map(|used| used.one_less(&OF_ALL));
        if let Some(entry) = state.addresses.get_mut(&self.address) {
            entry.used = entry.used.one_less(&BY_ADDRESS);
        }
    }
}

impl Drop for Guess {
    fn drop(&mut self) {
        let mut state = self.guesses.state();
        state.waiting = state.waiting.saturating_sub(1);
        if let Some(entry) = state.addresses.get_mut(&self.address) {
            entry.waiting = entry.waiting.saturating_sub(1);
        }
    }
}

/// Who has one IPv6 address has the other 2⁶⁴ of its network, too.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (!0 << 64))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock::monotonic;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn an_address_has_ten_guesses_and_then_one_every_six_seconds() {
        let (guesses, now) = (Guesses::default(), monotonic());
        let guess = |after: u64| guesses.begin(address(1), now + Duration::from_secs(after)).map(drop);
        for _ in 0..10 {
            assert_eq!(guess(0), Ok(()));
        }
        assert_eq!(guess(0), Err(TooMany(Duration::from_secs(6))));
        assert_eq!(guess(4), Err(TooMany(Duration::from_secs(2))));
        assert_eq!((guess(6), guess(6)), (Ok(()), Err(TooMany(Duration::from_secs(6)))));
        assert_eq!(guesses.begin(address(2), now).map(drop), Ok(()), "another address");
        let same_network: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap()];
        assert_eq!(network(same_network[0]), network(same_network[1]));
        assert_ne!(network(same_network[0]), network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }

    #[test]
    fn a_right_guess_is_not_counted() {
        let (guesses, now) = (Guesses::default(), monotonic());
        for _ in 0..1000 {
            guesses.begin(address(1), now).unwrap_or_else(|_| panic!("right ones are not limited")).right();
        }
    }

    #[test]
    fn all_addresses_together_have_sixty_and_then_one_a_second() {
        let (guesses, now) = (Guesses::default(), monotonic());
        let tried = (0..=255).filter(|number| guesses.begin(address(*number), now).is_ok()).count();
        assert_eq!(tried, 60);
        assert!(guesses.state().addresses.len() <= 60, "those who were refused take no memory");
        assert!(guesses.begin(address(1), now + Duration::from_secs(1)).is_ok());
        let later = now + Duration::from_secs(3600);
        drop(guesses.begin(address(1), later));
        assert_eq!(guesses.state().addresses.len(), 1, "and those who stopped do not for long");
    }

    #[test]
    fn few_wait_at_once() {
        let (guesses, now) = (Guesses::default(), monotonic());
        let mut waiting: Vec<_> = (0..4).map(|_| guesses.begin(address(1), now).ok().unwrap()).collect();
        assert_eq!(guesses.begin(address(1), now).err(), Some(TooMany(Duration::from_secs(1))));
        waiting.extend((2..14).map(|number| guesses.begin(address(number), now).ok().unwrap()));
        assert_eq!(guesses.begin(address(14), now).err(), Some(TooMany(Duration::from_secs(1))));
        waiting.truncate(15);
        assert!(guesses.begin(address(14), now).is_ok());
    }
}
