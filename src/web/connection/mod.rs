//! One client connection: which phase its current request is in, and when that phase has lasted too long.
//!
//! actix's dispatcher limits the head of the first request on a connection and the time between requests, and nothing
//! else. [`Connection`] records the phases as they happen: [`stream`] reports bytes, [`track`] reports requests and
//! answers, and [`bounded`] closes the connection at [`Connection::deadline`]. All of that runs in the task of the
//! connection, on one worker thread.

pub(super) mod bounded;
mod parser_error;
pub(super) mod stream;
pub(super) mod table;
pub(super) mod track;

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Weak;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use self::table::Table;

/// How long the head of a request may take from its first byte on, and the first byte of a new connection. TLS handshakes
/// have the same limit.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// How long a request may take from its head to its answer: reading its body (10 s), waiting for the store (5 s) and for
/// an outcome (`waitSeconds` ends at 30 s) all have limits of their own. This one ends what slips through them.
const HANDLING_LIMIT: Duration = Duration::from_secs(120);
/// How long bytes of a body are read and dropped after an early answer, so that the client gets to read that answer.
pub(super) const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);
/// How many of them: twice the largest payload that can be allowed with `SM_MAX_PAYLOAD_BYTES`.
const LEFTOVER_BYTES: usize = 32 * 1024 * 1024;
/// How long a connection stays open between two requests. Longer than the idle time of common proxies, so that they close
/// first.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// How long a client may take none of the bytes that are ready for it.
const STALLED_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take for all of them: a mebibyte at 18 kB a second.
const WRITING_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of an answer that are given to actix at once, and that it collects before it writes.
pub(super) const PIECE: usize = 8 * 1024;
/// How much longer a phase may last for which actix has a timer too: actix answers or says goodbye before it closes.
const GRACE: Duration = Duration::from_secs(1);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The head of a request is awaited or arriving.
    Head,
    /// A request is being handled; its body may be arriving.
    Handling,
    /// A request was answered before its body was read.
    Leftover,
    /// A request was answered, and nothing has arrived since.
    Idle,
}

/// What the next bytes of a client belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The head of a request.
    Head,
    /// A body, of which so many bytes are left.
    Body(usize),
    /// A body whose end only the parser knows.
    BodyOfAnyLength,
    /// A later request: the present one has arrived and is not answered yet.
    Nothing,
}

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    SlowHead,
    SlowAnswer,
    Leftover,
    Idle,
    SlowReader,
    /// To make room for a new connection.
    Replaced,
    /// There was no room for it.
    Refused,
}

impl Closed {
    /// As the metric labels it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::SlowHead => "slow_head",
            Self::SlowAnswer => "slow_answer",
            Self::Leftover => "unread_body",
            Self::Idle => "idle",
            Self::SlowReader => "slow_reader",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
        }
    }
}

/// Since when the socket has not taken all that was written, and when it last took some of it.
#[derive(Clone, Copy)]
struct Blocked {
    since: Instant,
    progress: Instant,
}

/// The state of one connection. Shared by its stream, its requests and the table of its worker.
pub(super) struct Connection {
    phase: Cell<Phase>,
    since: Cell<Instant>,
    /// Whether the request under way has a body that was not read to its end.
    body_unread: Cell<bool>,
    /// Bytes of that body that did not arrive yet, if its length is known.
    body_left: Cell<Option<usize>>,
    /// Bytes that arrived and belong to later requests.
    ahead: Cell<usize>,
    /// Bytes of an incomplete head that the parser has.
    head_bytes: Cell<usize>,
    leftover_bytes: Cell<usize>,
    blocked: Cell<Option<Blocked>>,
    /// Whether any request was handled on it.
    served: Cell<bool>,
    replaced: Cell<bool>,
    /// Bytes of the answer that actix has not been given yet.
    unsent: Cell<usize>,
    /// Bytes in memory that wait for this client: an incomplete head, requests after the present one, or an answer that
    /// it does not read. Bodies are counted where they are read.
    held: Cell<usize>,
    /// Why it was closed because all clients together held too much, if it was.
    evicted: Cell<Option<Closed>>,
    /// Where what it holds is added up.
    table: Weak<Table>,
    /// What serves it.
    serving: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    waker: RefCell<Option<Waker>>,
}

impl Connection {
    fn new(now: Instant, table: Weak<Table>) -> Self {
        Self {
            phase: Cell::new(Phase::Head),
            since: Cell::new(now),
            body_unread: Cell::new(false),
            body_left: Cell::new(None),
            ahead: Cell::new(0),
            head_bytes: Cell::new(0),
            leftover_bytes: Cell::new(0),
            blocked: Cell::new(None),
            served: Cell::new(false),
            replaced: Cell::new(false),
            unsent: Cell::new(0),
            held: Cell::new(0),
            evicted: Cell::new(None),
            table,
            serving: RefCell::new(None),
            waker: RefCell::new(None),
        }
    }

    fn enter(&self, phase: Phase, now: Instant) {
        self.phase.set(phase);
        self.since.set(now);
    }

    /// The connection is ready for its first request; with TLS, after the handshake.
    fn opened(&self, now: Instant) {
        self.enter(Phase::Head, now);
    }

    /// Bytes arrived. `now` is asked for only when a phase begins.
    fn received(&self, bytes: usize, now: impl FnOnce() -> Instant) {
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Head, now()),
            Phase::Leftover => self.leftover_bytes.set(self.leftover_bytes.get().saturating_add(bytes)),
            Phase::Head | Phase::Handling => {}
        }
    }

    /// What the next bytes belong to.
    fn expected(&self) -> Expected {
        match (self.phase.get(), self.body_unread.get(), self.body_left.get()) {
            (Phase::Head | Phase::Idle, ..) | (Phase::Leftover, _, Some(0)) => Expected::Head,
            (Phase::Handling, false, _) | (Phase::Handling, true, Some(0)) => Expected::Nothing,
            (Phase::Handling | Phase::Leftover, _, Some(left)) => Expected::Body(left),
            (Phase::Handling | Phase::Leftover, _, None) => Expected::BodyOfAnyLength,
        }
    }

    /// Of what arrived, the parser was given so many bytes; so many belong to later requests. `now` is asked for only
    /// when a phase begins.
    fn given(&self, given: usize, ahead: usize, now: impl FnOnce() -> Instant) {
        if given > 0 && self.phase.get() == Phase::Idle {
            self.enter(Phase::Head, now());
        }
        let in_head = matches!(self.phase.get(), Phase::Head);
        self.body_left.set(self.body_left.get().map(|left| if in_head { left } else { left.saturating_sub(given) }));
        self.ahead.set(ahead);
        let head = if in_head { self.head_bytes.get().saturating_add(given) } else { 0 };
        self.head_bytes.set(head);
        // The parser's buffer doubles as it grows.
        self.holds(head.saturating_mul(2).saturating_add(ahead));
    }

    /// A request has a body of so many bytes, of any length, or none.
    fn request_started(&self, body: Option<Option<usize>>, now: Instant) {
        self.body_unread.set(body.is_some());
        self.body_left.set(body.flatten());
        self.served.set(true);
        self.head_bytes.set(0);
        self.holds(self.ahead.get());
        self.enter(Phase::Handling, now);
    }

    /// So many bytes wait for this client.
    fn holds(&self, bytes: usize) {
        let before = self.held.replace(bytes);
        if before != bytes
            && self.evicted.get().is_none()
            && let Some(table) = self.table.upgrade()
        {
            table.held_changed(before, bytes);
        }
    }

    /// Closes it, whatever it is doing: memory is short. Returns how many bytes that frees. They are free at once, not
    /// when its task runs: until then thousands of other tasks may take as much again. Only the connection that is
    /// being served at this moment has to wait for the end of that.
    fn evict(&self) -> usize {
        let why = self.deadline().1;
        self.evicted.set(Some(if self.is_blocked() { Closed::SlowReader } else { why }));
        if let Ok(mut serving) = self.serving.try_borrow_mut() {
            serving.take();
        }
        self.wake();
        self.held.take()
    }

    /// Since when it has held what it holds, requests under way last; `None` if it holds nothing.
    fn held_since(&self) -> Option<(bool, Instant)> {
        let since = self.blocked.get().map_or(self.since.get(), |blocked| blocked.progress);
        (self.held.get() > 0).then(|| (self.is_handling() && !self.is_blocked(), since))
    }

    fn body_read(&self) {
        self.body_unread.set(false);
    }

    fn answered(&self, now: Instant) {
        self.leftover_bytes.set(0);
        self.enter(if self.body_unread.get() { Phase::Leftover } else { Phase::Idle }, now);
    }

    /// The socket's buffer is full, and so many bytes of answers wait.
    fn write_blocked(&self, waiting: usize, now: impl FnOnce() -> Instant) {
        if self.blocked.get().is_none() {
            let now = now();
            self.blocked.set(Some(Blocked { since: now, progress: now }));
        }
        self.holds(waiting.saturating_add(self.unsent.get()));
    }

    /// The socket took some bytes.
    fn write_progressed(&self, now: impl FnOnce() -> Instant) {
        if let Some(blocked) = self.blocked.get() {
            self.blocked.set(Some(Blocked { progress: now(), ..blocked }));
        }
    }

    /// The socket took everything. Returns whether it was blocked before.
    fn write_completed(&self, now: impl FnOnce() -> Instant) -> bool {
        let was_blocked = self.blocked.take().is_some();
        if was_blocked {
            self.holds(0);
        }
        // The client has only now seen the answer, so the time until its next request begins now.
        if was_blocked && self.phase.get() == Phase::Idle {
            self.since.set(now());
        }
        was_blocked
    }

    fn is_handling(&self) -> bool {
        self.phase.get() == Phase::Handling
    }

    fn is_blocked(&self) -> bool {
        self.blocked.get().is_some()
    }

    /// When the connection is closed if nothing happens before, and why.
    fn deadline(&self) -> (Instant, Closed) {
        let since = self.since.get();
        if let Some(why) = self.evicted.get() {
            return (since, why);
        }
        let by_phase = match self.phase.get() {
            Phase::Head => (since + HEAD_LIMIT + GRACE, Closed::SlowHead),
            Phase::Handling => (since + HANDLING_LIMIT, Closed::SlowAnswer),
            Phase::Leftover if self.leftover_bytes.get() > LEFTOVER_BYTES => (since, Closed::Leftover),
            Phase::Leftover => (since + LEFTOVER_LIMIT + GRACE, Closed::Leftover),
            Phase::Idle => (since + IDLE_LIMIT + GRACE, Closed::Idle),
        };
        let by_write = self.blocked.get().map(|Blocked { since, progress }| {
            ((progress + STALLED_LIMIT).min(since + WRITING_LIMIT), Closed::SlowReader)
        });
        by_write.map_or(by_phase, |by_write| if by_write.0 < by_phase.0 { by_write } else { by_phase })
    }

    /// Whether it may be closed to make room: never while a request is handled. The least goes first: those that never
    /// sent a request, then the ones that have been quiet for longest, and last those that are still reading an answer.
    fn replaceable(&self) -> Option<(bool, bool, Instant)> {
        let may = !self.is_handling() && !self.replaced.get();
        may.then(|| (self.is_blocked(), self.served.get(), self.since.get()))
    }

    /// Asks its task to close it.
    fn replace(&self) {
        self.replaced.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock::monotonic;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(start: Instant, seconds: u64) -> impl Fn() -> Instant {
        move || start + SECOND * u32::try_from(seconds).unwrap()
    }

    /// Seconds after `start` at which it is closed, and why.
    fn closes(connection: &Connection, start: Instant) -> (u64, Closed) {
        let (deadline, why) = connection.deadline();
        (deadline.duration_since(start).as_secs(), why)
    }

    #[test]
    fn every_phase_of_every_request_has_a_limit() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        assert_eq!(closes(&connection, start), (6, Closed::SlowHead), "a silent connection");
        connection.received(10, at(start, 3));
        assert_eq!(closes(&connection, start), (6, Closed::SlowHead), "bytes of a head do not prolong it");
        connection.request_started(Some(None), start + 4 * SECOND);
        assert_eq!(closes(&connection, start), (124, Closed::SlowAnswer));
        connection.body_read();
        connection.answered(start + 5 * SECOND);
        assert_eq!(closes(&connection, start), (81, Closed::Idle));
        connection.received(1, at(start, 60));
        assert_eq!(closes(&connection, start), (66, Closed::SlowHead), "the head of a later request");
        connection.request_started(Some(None), start + 61 * SECOND);
        connection.answered(start + 62 * SECOND);
        connection.received(100, at(start, 63));
        assert_eq!(closes(&connection, start), (68, Closed::Leftover), "a body that nobody read");
        connection.received(LEFTOVER_BYTES, at(start, 63));
        assert_eq!(closes(&connection, start), (62, Closed::Leftover), "too much of it");
    }

    #[test]
    fn a_client_that_does_not_read_has_a_limit_and_progress_prolongs_it_up_to_another() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        connection.request_started(None, start);
        connection.answered(start);
        assert!(!connection.write_completed(at(start, 0)));
        connection.write_blocked(1, at(start, 1));
        assert_eq!(closes(&connection, start), (11, Closed::SlowReader));
        connection.write_blocked(1, at(start, 5));
        assert_eq!(closes(&connection, start), (11, Closed::SlowReader), "being asked again is no progress");
        connection.write_progressed(at(start, 8));
        assert_eq!(closes(&connection, start), (18, Closed::SlowReader));
        connection.write_progressed(at(start, 55));
        assert_eq!(closes(&connection, start), (61, Closed::SlowReader));
        assert!(connection.write_completed(at(start, 57)));
        assert_eq!(closes(&connection, start), (133, Closed::Idle), "idle from when the answer was read");
    }

    #[test]
    fn a_request_under_way_is_never_closed_to_make_room() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        assert_eq!(connection.replaceable(), Some((false, false, start)));
        connection.request_started(None, start);
        assert_eq!(connection.replaceable(), None);
        connection.answered(start + SECOND);
        assert_eq!(connection.replaceable(), Some((false, true, start + SECOND)));
        connection.write_blocked(1, at(start, 1));
        assert_eq!(connection.replaceable(), Some((true, true, start + SECOND)), "its answer is being read");
        connection.replace();
        assert_eq!(connection.replaceable(), None, "not twice");
    }
}
