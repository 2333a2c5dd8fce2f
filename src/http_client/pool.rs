//! Keeps idle connections, so that a later call to the same origin can use them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::connect::Origin;
use super::connection::Connection;
use crate::platform::clock::monotonic;

/// Idle connections are closed before most servers would close them (the default of Node.js is 5 s), because a request on a
/// connection that the server is closing has an unknown outcome.
const IDLE_TIME: Duration = Duration::from_secs(4);
/// Connections are not used for longer than this, so that a changed DNS record takes effect.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum number of idle connections to one origin: the default number of calls in flight.
const IDLE_PER_ORIGIN: usize = 256;
/// Maximum number of connections of one client, idle ones and those in use, unless it says how many calls it makes at once.
const IN_ALL: usize = 512;
/// How often connections that were idle for too long are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The idle connections of one client.
pub(super) struct Pool {
    per_origin: usize,
    /// Maximum number of connections, idle ones and those in use together. As many file descriptors are reserved.
    in_all: usize,
    calls: Cell<usize>,
    /// The connections of each origin, the most recently used one last. No list is empty.
    idle: RefCell<HashMap<Origin, Vec<Idle>>>,
    count: Cell<usize>,
    sweeping: Cell<bool>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

impl Idle {
    fn is_fresh(&self, now: Instant) -> bool {
        now < self.since + IDLE_TIME && now < self.connection.opened() + LIFETIME
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::of(IN_ALL)
    }
}

impl Pool {
    /// Makes a pool that limits the connections, idle ones and those in use together.
    pub(super) fn of(in_all: usize) -> Self {
        Self::new(IDLE_PER_ORIGIN, in_all)
    }

    fn new(per_origin: usize, in_all: usize) -> Self {
        let (calls, idle, count, sweeping) = Default::default();
        Self { per_origin, in_all, calls, idle, count, sweeping }
    }

    /// Counts a call until the guard is dropped.
    pub(super) fn count_call(self: &Rc<Self>) -> CallUnderWay {
        self.calls.set(self.calls.get() + 1);
        CallUnderWay(Rc::clone(self))
    }

    /// Closes idle connections, the oldest first, until a call may open one.
    pub(super) fn make_room(&self) {
        let mut idle = self.idle.borrow_mut();
        while self.count.get() > 0 && self.count.get() + self.calls.get() > self.in_all {
            let oldest = idle.iter().min_by_key(|(_, list)| list.first().map(|idle| idle.since));
            let Some(origin) = oldest.map(|(origin, _)| origin.clone()) else { return };
            if let Some(list) = idle.get_mut(&origin) {
                list.remove(0);
                if list.is_empty() {
                    idle.remove(&origin);
                }
            }
            self.count.set(self.count.get() - 1);
        }
    }

    /// Takes the most recently used connection to the origin that is still usable, and closes those that are not.
    pub(super) fn take(&self, origin: &Origin) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(origin)?;
        let now = monotonic();
        let mut found = None;
        while let Some(candidate) = list.pop() {
            self.count.set(self.count.get().saturating_sub(1));
            if candidate.is_fresh(now) && candidate.connection.is_usable() {
                found = Some(candidate.connection);
                break;
            }
        }
        if list.is_empty() {
            idle.remove(origin);
        }
        found
    }

    /// Keeps a connection for later use, or closes it if the pool is full.
    pub(super) fn put(self: &Rc<Self>, origin: &Origin, connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.get(origin).map_or(0, Vec::len);
        // The call that used it still counts.
        if kept >= self.per_origin || self.count.get() + self.calls.get() > self.in_all {
            return;
        }
        let since = monotonic();
        idle.entry(origin.clone()).or_default().push(Idle { connection, since });
        self.count.set(self.count.get() + 1);
        if !self.sweeping.replace(true) {
            actix::spawn(sweep(Rc::downgrade(self)));
        }
    }

    /// Closes connections that were idle for too long, and returns how many are left.
    fn expire(&self) -> usize {
        let now = monotonic();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|_, list| {
            list.retain(|idle| idle.is_fresh(now));
            !list.is_empty()
        });
        self.count.set(idle.values().map(Vec::len).sum());
        self.count.get()
    }
}

/// Counts a call that uses a connection or is about to open one, until it is dropped.
pub(super) struct CallUnderWay(Rc<Pool>);

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get().saturating_sub(1));
    }
}

/// Closes expired connections at intervals. Ends when no idle connection is left.
async fn sweep(pool: std::rc::Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        if pool.expire() == 0 {
            pool.sweeping.set(false);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::http_client::wire::Stream;

    #[actix::test]
    async fn idle_connections_are_limited_per_origin_and_in_total() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pool = Rc::new(Pool::new(2, 3));
        let put = async |host: &str| {
            let _call = pool.count_call();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let origin = Origin { tls: false, host: host.to_owned(), port: 80 };
            pool.put(&origin, Connection::open(Stream::Plain(stream)).await.unwrap());
            pool.count.get()
        };
        assert_eq!((put("a").await, put("a").await, put("a").await), (1, 2, 2));
        assert_eq!((put("b").await, put("b").await, put("c").await), (3, 3, 3));
        tokio::time::pause();
        tokio::time::advance(IDLE_TIME + SWEEP_INTERVAL).await;
        tokio::task::yield_now().await;
        assert_eq!((pool.count.get(), pool.idle.borrow().len(), pool.sweeping.get()), (0, 0, false));
    }

    /// So many descriptors are reserved for calls: idle connections must not take them from calls in flight.
    #[actix::test]
    async fn idle_connections_make_room_for_calls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pool = Rc::new(Pool::new(10, 3));
        let origin = |host: &str| Origin { tls: false, host: host.to_owned(), port: 80 };
        let open = async || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            Connection::open(Stream::Plain(stream)).await.unwrap()
        };
        for host in ["a", "b", "c"] {
            let _call = pool.count_call();
            pool.put(&origin(host), open().await);
        }
        let first = pool.count_call();
        pool.make_room();
        assert_eq!((pool.count.get(), pool.calls.get()), (2, 1));
        let second = pool.count_call();
        pool.make_room();
        assert_eq!(pool.count.get(), 1);
        assert!(pool.idle.borrow().contains_key(&origin("c")), "the oldest were closed");
        pool.put(&origin("d"), open().await);
        assert_eq!(pool.count.get(), 2, "in place of the call that ends now");
        drop((first, second));
        assert_eq!(pool.calls.get(), 0);
    }
}
