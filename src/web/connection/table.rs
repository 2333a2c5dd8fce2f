//! The open connections of one worker thread, and the number of connections that each address has over all workers.
//!
//! When a limit is reached, a new connection replaces one that never sent a request, or else the one that has been idle
//! longest. So idle connections cannot keep other clients out. When connections together
//! hold too many bytes of incomplete heads and unread answers, those that have done so for longest are closed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use super::Connection;
use crate::platform::clock::monotonic;
use crate::telemetry::metrics::Metrics;

/// The address that connections are counted by: an IPv4 address, or the /64 network of an IPv6 address, because one host
/// usually has a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientAddress(IpAddr);

impl ClientAddress {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))),
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

/// The number of open connections of each address, over all workers.
pub(in crate::web) struct AddressCounts {
    open: Mutex<HashMap<ClientAddress, usize>>,
    limit: usize,
}

impl AddressCounts {
    pub(in crate::web) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), limit })
    }

    /// Counts one more connection. Returns whether the address is still within its limit.
    fn add(&self, address: ClientAddress) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        *count += 1;
        *count <= self.limit
    }

    fn remove(&self, address: ClientAddress) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// The open connections of one worker.
pub(in crate::web) struct ConnectionTable {
    /// By number, in the order in which they were accepted.
    open: RefCell<BTreeMap<u64, Entry>>,
    next_number: Cell<u64>,
    capacity: usize,
    /// How many bytes all connections together hold for slow clients.
    held: Cell<usize>,
    /// The limit of `held`.
    max_held: usize,
    addresses: Arc<AddressCounts>,
    metrics: Arc<Metrics>,
}

struct Entry {
    address: Option<ClientAddress>,
    connection: Rc<Connection>,
}

impl ConnectionTable {
    pub(in crate::web) fn new(
        capacity: usize,
        max_held: usize,
        addresses: Arc<AddressCounts>,
        metrics: Arc<Metrics>,
    ) -> Rc<Self> {
        let (open, next_number, held) = Default::default();
        Rc::new(Self { open, next_number, capacity, held, max_held, addresses, metrics })
    }

    /// Adds a connection and, if a limit is reached, closes another one in exchange. Returns `None` if the address is at
    /// its limit and all of its connections have requests in progress.
    pub(in crate::web) fn admit(self: &Rc<Self>, address: Option<IpAddr>) -> Option<Admitted> {
        let address = address.map(ClientAddress::of);
        if let Some(address) = address
            && !self.addresses.add(address)
            && !self.replace_one(|entry| entry.address == Some(address))
        {
            self.addresses.remove(address);
            return None;
        }
        if self.open.borrow().len() >= self.capacity {
            // If all connections have requests in progress, none is closed. The worker then reaches its own, slightly
            // higher limit and stops accepting.
            self.replace_one(|_| true);
        }
        let connection = Rc::new(Connection::new(monotonic(), Rc::downgrade(self)));
        let number = self.next_number.replace(self.next_number.get() + 1);
        self.open.borrow_mut().insert(number, Entry { address, connection: Rc::clone(&connection) });
        self.metrics.http_connections.inc();
        Some(Admitted { table: Rc::clone(self), number, connection })
    }

    /// Call when the held bytes of a connection changed. If all connections together hold more than the limit, this evicts
    /// the ones that have made no progress for longest, until a quarter of the limit is free. Clients that send and read at
    /// a normal pace hold nothing for long.
    pub(super) fn held_changed(&self, before: usize, after: usize) {
        self.held.set(self.held.get().saturating_sub(before).saturating_add(after));
        if self.held.get() <= self.max_held {
            return;
        }
        let open = self.open.borrow();
        let holding = open.values().filter_map(|entry| Some((entry.connection.eviction_rank()?, &entry.connection)));
        let mut holding: Vec<_> = holding.collect();
        holding.sort_by_key(|(rank, _)| *rank);
        for (_, connection) in holding {
            if self.held.get() <= self.max_held / 4 * 3 {
                break;
            }
            self.held.set(self.held.get().saturating_sub(connection.evict()));
        }
    }

    /// Closes the eligible connection with the smallest rank. Returns whether there was one.
    fn replace_one(&self, eligible: impl Fn(&Entry) -> bool) -> bool {
        let open = self.open.borrow();
        let candidates = open.values().filter(|entry| eligible(entry));
        let ranked = candidates.filter_map(|entry| Some((entry.connection.replacement_rank()?, entry)));
        ranked.min_by_key(|(rank, _)| *rank).inspect(|(_, entry)| entry.connection.replace()).is_some()
    }
}

/// A connection in the table. Dropping it removes the connection from the table.
pub(in crate::web) struct Admitted {
    table: Rc<ConnectionTable>,
    number: u64,
    pub(in crate::web) connection: Rc<Connection>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let entry = self.table.open.borrow_mut().remove(&self.number);
        self.connection.set_held(0);
        if let Some(address) = entry.and_then(|entry| entry.address) {
            self.table.addresses.remove(address);
        }
        self.table.metrics.http_connections.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::connection::CloseReason;

    fn table(capacity: usize, per_address: usize) -> Rc<ConnectionTable> {
        ConnectionTable::new(capacity, 1000, AddressCounts::new(per_address), Arc::new(Metrics::new().unwrap()))
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn replaced(admitted: &Admitted) -> bool {
        admitted.connection.replaced.get()
    }

    #[test]
    fn a_full_table_first_replaces_connections_that_never_sent_a_request() {
        let table = table(3, 100);
        let [served, silent, busy] = [1, 2, 3].map(|last| table.admit(address(last)).unwrap());
        served.connection.request_started(None, monotonic());
        served.connection.responded(monotonic());
        busy.connection.request_started(None, monotonic());
        let _new = table.admit(address(4)).unwrap();
        assert_eq!([&served, &silent, &busy].map(replaced), [false, true, false]);
        drop(silent);
        let _newer = table.admit(address(5)).unwrap();
        assert!(!replaced(&busy), "a request is in progress");
    }

    #[test]
    fn an_address_at_its_limit_replaces_one_of_its_own_connections() {
        let table = table(100, 2);
        let other = table.admit(address(9)).unwrap();
        let first = table.admit(address(1)).unwrap();
        let second = table.admit(address(1)).unwrap();
        let third = table.admit(address(1)).unwrap();
        assert_eq!([&other, &first, &second, &third].map(replaced), [false, true, false, false]);
        drop(first);
        second.connection.request_started(None, monotonic());
        third.connection.request_started(None, monotonic());
        assert!(table.admit(address(1)).is_none(), "all of its connections have requests in progress");
        assert!(table.admit(address(2)).is_some());
        drop((second, third, other));
        assert!(table.addresses.open.lock().unwrap().is_empty(), "closed connections are not counted");
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_a_mapped_ipv4_address_as_ipv4() {
        let of = |text: &str| ClientAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn when_memory_is_short_the_clients_that_hold_it_longest_are_evicted() {
        let table = table(100, 100);
        let connections: Vec<_> = (0..10).map(|last| table.admit(address(last)).unwrap()).collect();
        let evicted =
            || connections.iter().map(|admitted| admitted.connection.evicted.get().is_some()).collect::<Vec<_>>();
        // 100 bytes each: a request after one that is in progress, and heads that count twice their length.
        connections[0].connection.request_started(None, monotonic());
        connections[0].connection.passed_to_parser(0, 100, monotonic);
        for admitted in &connections[1..] {
            admitted.connection.passed_to_parser(30, 0, monotonic);
            admitted.connection.passed_to_parser(20, 0, monotonic);
        }
        assert_eq!((table.held.get(), evicted()), (1000, vec![false; 10]), "exactly the limit");
        // One client reads its response slowly, and one has just made progress.
        connections[1].connection.write_blocked(100, monotonic);
        connections[2].connection.write_blocked(150, monotonic);
        assert_eq!(table.held.get(), 750, "a quarter is free again");
        assert_eq!(evicted(), [false, false, false, true, true, true, false, false, false, false]);
        assert_eq!(connections[3].connection.deadline().1, CloseReason::SlowHead);
        connections[3].connection.set_held(500);
        assert_eq!(table.held.get(), 750, "an evicted connection does not count");
        connections[1].connection.write_completed(monotonic);
        assert_eq!(table.held.get(), 650);
        drop(connections);
        assert_eq!(table.held.get(), 0, "closed connections hold nothing");
    }
}
