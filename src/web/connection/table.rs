//! The connections of one worker thread, and how many each address has over all of them.
//!
//! When there is no room left, a new connection replaces the one that matters least: one that never sent a request, or
//! else the one that has been quiet for longest. So silent connections cannot lock anybody out. When connections together
//! hold too many bytes of incomplete heads and unread answers, those that have done so for longest are closed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use super::Connection;
use crate::platform::clock::monotonic;
use crate::telemetry::metrics::Metrics;

/// Who connects: an IPv4 address, or the network of an IPv6 address, since one host commonly has a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin(IpAddr);

impl Origin {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))),
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

/// Open connections by origin, over all workers.
pub(in crate::web) struct Origins {
    open: Mutex<HashMap<Origin, usize>>,
    limit: usize,
}

impl Origins {
    pub(in crate::web) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), limit })
    }

    /// Counts one more; whether that is still within the limit.
    fn enter(&self, origin: Origin) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(origin).or_default();
        *count += 1;
        *count <= self.limit
    }

    fn leave(&self, origin: Origin) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                open.remove(&origin);
            }
        }
    }
}

/// The open connections of one worker.
pub(in crate::web) struct Table {
    open: RefCell<BTreeMap<u64, Entry>>,
    next: Cell<u64>,
    room: usize,
    /// Bytes that all of them hold, and how many that may be.
    held: Cell<usize>,
    memory: usize,
    origins: Arc<Origins>,
    metrics: Arc<Metrics>,
}

struct Entry {
    origin: Option<Origin>,
    connection: Rc<Connection>,
}

impl Table {
    pub(in crate::web) fn new(room: usize, memory: usize, origins: Arc<Origins>, metrics: Arc<Metrics>) -> Rc<Self> {
        let (open, next, held) = Default::default();
        Rc::new(Self { open, next, room, held, memory, origins, metrics })
    }

    /// Takes a connection in, if need be in place of another one. `None` if its address has as many as it may, and all
    /// of those have requests under way.
    pub(in crate::web) fn admit(self: &Rc<Self>, address: Option<IpAddr>) -> Option<Admitted> {
        let origin = address.map(Origin::of);
        if let Some(origin) = origin
            && !self.origins.enter(origin)
            && !self.replace_one(|entry| entry.origin == Some(origin))
        {
            self.origins.leave(origin);
            return None;
        }
        if self.open.borrow().len() >= self.room {
            // If all have requests under way, the worker's own limit, a little higher, stops accepting.
            self.replace_one(|_| true);
        }
        let connection = Rc::new(Connection::new(monotonic(), Rc::downgrade(self)));
        let number = self.next.replace(self.next.get() + 1);
        self.open.borrow_mut().insert(number, Entry { origin, connection: Rc::clone(&connection) });
        self.metrics.http_connections.inc();
        Some(Admitted { table: Rc::clone(self), number, connection })
    }

    /// A connection holds more or less than before. If all together hold too much, those that have held something for
    /// longest are closed, until a quarter is free: clients that send and read at a usual pace hold nothing for long.
    pub(super) fn held_changed(&self, before: usize, after: usize) {
        self.held.set(self.held.get().saturating_sub(before).saturating_add(after));
        if self.held.get() <= self.memory {
            return;
        }
        let open = self.open.borrow();
        let holding = open.values().filter_map(|entry| Some((entry.connection.held_since()?, &entry.connection)));
        let mut holding: Vec<_> = holding.collect();
        holding.sort_by_key(|(rank, _)| *rank);
        for (_, connection) in holding {
            if self.held.get() <= self.memory / 4 * 3 {
                break;
            }
            self.held.set(self.held.get().saturating_sub(connection.evict()));
        }
    }

    fn replace_one(&self, eligible: impl Fn(&Entry) -> bool) -> bool {
        let open = self.open.borrow();
        let candidates = open.values().filter(|entry| eligible(entry));
        let quietest = candidates.filter_map(|entry| Some((entry.connection.replaceable()?, entry)));
        quietest.min_by_key(|(rank, _)| *rank).inspect(|(_, entry)| entry.connection.replace()).is_some()
    }
}

/// A connection that is in the table until this is dropped.
pub(in crate::web) struct Admitted {
    table: Rc<Table>,
    number: u64,
    pub(in crate::web) connection: Rc<Connection>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let entry = self.table.open.borrow_mut().remove(&self.number);
        self.connection.holds(0);
        if let Some(origin) = entry.and_then(|entry| entry.origin) {
            self.table.origins.leave(origin);
        }
        self.table.metrics.http_connections.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::connection::Closed;

    fn table(room: usize, per_origin: usize) -> Rc<Table> {
        Table::new(room, 1000, Origins::new(per_origin), Arc::new(Metrics::new().unwrap()))
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn replaced(admitted: &Admitted) -> bool {
        admitted.connection.replaced.get()
    }

    #[test]
    fn a_full_table_replaces_those_that_never_asked_for_anything_first() {
        let table = table(3, 100);
        let [served, silent, busy] = [1, 2, 3].map(|last| table.admit(address(last)).unwrap());
        served.connection.request_started(None, monotonic());
        served.connection.answered(monotonic());
        busy.connection.request_started(None, monotonic());
        let _new = table.admit(address(4)).unwrap();
        assert_eq!([&served, &silent, &busy].map(replaced), [false, true, false]);
        drop(silent);
        let _newer = table.admit(address(5)).unwrap();
        assert!(!replaced(&busy), "a request is under way");
    }

    #[test]
    fn an_address_has_its_share_and_replaces_its_own() {
        let table = table(100, 2);
        let other = table.admit(address(9)).unwrap();
        let first = table.admit(address(1)).unwrap();
        let second = table.admit(address(1)).unwrap();
        let third = table.admit(address(1)).unwrap();
        assert_eq!([&other, &first, &second, &third].map(replaced), [false, true, false, false]);
        drop(first);
        second.connection.request_started(None, monotonic());
        third.connection.request_started(None, monotonic());
        assert!(table.admit(address(1)).is_none(), "all of its requests are under way");
        assert!(table.admit(address(2)).is_some());
        drop((second, third, other));
        assert!(table.origins.open.lock().unwrap().is_empty(), "nothing is counted that is gone");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_and_a_mapped_address_as_what_it_is() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn clients_that_hold_memory_for_longest_are_closed_when_it_is_short() {
        let table = table(100, 100);
        let connections: Vec<_> = (0..10).map(|last| table.admit(address(last)).unwrap()).collect();
        let evicted =
            || connections.iter().map(|admitted| admitted.connection.evicted.get().is_some()).collect::<Vec<_>>();
        // 100 bytes each: a request after one that is under way, and heads that take twice their length.
        connections[0].connection.request_started(None, monotonic());
        connections[0].connection.given(0, 100, monotonic);
        for admitted in &connections[1..] {
            admitted.connection.given(30, 0, monotonic);
            admitted.connection.given(20, 0, monotonic);
        }
        assert_eq!((table.held.get(), evicted()), (1000, vec![false; 10]), "as much as there may be");
        // One that reads its answer slowly, and one that has just gone on.
        connections[1].connection.write_blocked(100, monotonic);
        connections[2].connection.write_blocked(150, monotonic);
        assert_eq!(table.held.get(), 750, "a quarter is free again");
        assert_eq!(evicted(), [false, false, false, true, true, true, false, false, false, false]);
        assert_eq!(connections[3].connection.deadline().1, Closed::SlowHead);
        connections[3].connection.holds(500);
        assert_eq!(table.held.get(), 750, "it is being closed and does not count");
        connections[1].connection.write_completed(monotonic);
        assert_eq!(table.held.get(), 650);
        drop(connections);
        assert_eq!(table.held.get(), 0, "nothing is counted that is gone");
    }
}
