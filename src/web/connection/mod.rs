//! One client connection: the phase of its current request, and the time limit of that phase.
//!
//! actix's own dispatcher limits only the head of the first request on a connection and the time between requests.
//! [`Connection`] records all phases: [`stream`] reports bytes, [`track`] reports requests and responses, and [`bounded`]
//! closes the connection at [`Connection::deadline`]. It also counts the memory that is used because a client is slow, so
//! that [`table`] can close the slowest clients when memory is short. All connections of a worker run on its one thread.

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

use self::table::ConnectionTable;

/// How long the head of a request may take, counted from its first byte. The first byte on a new connection and a TLS
/// handshake have the same limit.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// How long a request may take from its head to its response. Reading the body (10 s), waiting for the store (5 s) and
/// waiting for an outcome (`waitSeconds`, at most 30 s) have limits of their own; this one is the last resort.
const HANDLING_LIMIT: Duration = Duration::from_secs(120);
/// How long a response may be a stream. Streams end earlier by themselves; this one is the last resort.
const STREAMING_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// How long the rest of a body is read and discarded if the response was sent before the body was complete. Without that,
/// the client might see a connection reset instead of the response.
pub(super) const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);
/// How many bytes of such a body are discarded: twice the largest value of `SM_MAX_PAYLOAD_BYTES`.
const LEFTOVER_BYTES: usize = 32 * 1024 * 1024;
/// How long a connection stays open between two requests. Longer than the idle timeout of common proxies, so that the
/// proxy closes first and never sends a request into a closing connection.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// How long a client may go without reading any byte of a response.
const STALLED_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to read a whole response: enough for a mebibyte at 18 kB a second.
const WRITING_LIMIT: Duration = Duration::from_secs(60);
/// The size of the chunks in which actix gets a response body, and of the buffer in which it collects them before a write.
pub(super) const CHUNK_BYTES: usize = 8 * 1024;
/// Added to the phases for which actix also has a timer. actix fires first, and so can send a response or close TLS
/// properly.
const GRACE: Duration = Duration::from_secs(1);

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The connection waits for the head of a request, or is receiving it.
    Head,
    /// A request is being handled. Its body may still be arriving.
    Handling,
    /// The response is a stream that goes on until its handler or the client ends it.
    Streaming,
    /// The response was sent before the whole body was read. The rest of the body is being discarded.
    Leftover,
    /// The response was sent, and no byte of a further request has arrived.
    Idle,
}

/// What the next bytes from a client belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The head of a request.
    Head,
    /// A body with this many bytes left.
    Body(usize),
    /// A body whose end only the parser can find.
    BodyOfUnknownLength,
    /// A later request. The current one has arrived completely, and its response is not ready yet.
    LaterRequest,
}

/// Why the server closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The head of a request took longer than [`HEAD_LIMIT`].
    SlowHead,
    /// The response took longer than [`HANDLING_LIMIT`].
    SlowAnswer,
    /// The client kept sending a body after the response to it.
    Leftover,
    /// No request arrived for [`IDLE_LIMIT`].
    Idle,
    /// The client did not read its response in time.
    SlowReader,
    /// The limit was reached, and the connection was closed to make room for a new one.
    Replaced,
    /// The limit was reached and no other connection could be closed.
    Refused,
}

impl CloseReason {
    /// The value of the metric's `reason` label.
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

/// A write that waits because the send buffer of the socket is full.
#[derive(Clone, Copy)]
struct BlockedWrite {
    since: Instant,
    /// When the socket last accepted some bytes.
    progress: Instant,
}

/// The state of one connection. Its stream, its requests and the [`ConnectionTable`] of its worker share it.
pub(super) struct Connection {
    phase: Cell<Phase>,
    /// When the phase started.
    since: Cell<Instant>,
    /// Whether the current request has a body that was not read to its end.
    body_unread: Cell<bool>,
    /// How many bytes of that body have not arrived yet, if its length is known.
    body_left: Cell<Option<usize>>,
    /// How many bytes of that body arrived together with the head.
    body_with_head: Cell<usize>,
    /// How many bytes have arrived that belong to later requests.
    read_ahead: Cell<usize>,
    /// How many bytes of an incomplete head the parser holds.
    head_bytes: Cell<usize>,
    leftover_bytes: Cell<usize>,
    blocked: Cell<Option<BlockedWrite>>,
    /// Whether the connection has served a request.
    served: Cell<bool>,
    /// Whether the connection is to be closed to make room for a new one.
    replaced: Cell<bool>,
    /// The memory of the response body, until actix has got all of it.
    unsent: Cell<usize>,
    /// How many bytes are in memory because the client is slow: an incomplete head, requests after the current one, or a
    /// response that the client does not read. Request bodies are counted in [`crate::web::body`].
    held: Cell<usize>,
    /// Set if the connection is closed because all connections together held too much memory.
    evicted: Cell<Option<CloseReason>>,
    /// The table that adds up the held bytes of all connections.
    table: Weak<ConnectionTable>,
    /// The future that serves the connection.
    serving: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    /// Wakes the task of the connection.
    waker: RefCell<Option<Waker>>,
}

impl Connection {
    fn new(now: Instant, table: Weak<ConnectionTable>) -> Self {
        Self {
            phase: Cell::new(Phase::Head),
            since: Cell::new(now),
            body_unread: Cell::new(false),
            body_left: Cell::new(None),
            body_with_head: Cell::new(0),
            read_ahead: Cell::new(0),
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

    /// Call when the connection is ready for its first request; with TLS, that is after the handshake.
    fn opened(&self, now: Instant) {
        self.enter(Phase::Head, now);
    }

    /// Call when bytes arrived. `now` is called only if they start a new phase.
    fn received(&self, bytes: usize, now: impl FnOnce() -> Instant) {
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Head, now()),
            Phase::Leftover => self.leftover_bytes.set(self.leftover_bytes.get().saturating_add(bytes)),
            Phase::Head | Phase::Handling | Phase::Streaming => {}
        }
    }

    /// What the next bytes from the client belong to.
    fn expected(&self) -> Expected {
        match (self.phase.get(), self.body_unread.get(), self.body_left.get()) {
            (Phase::Head | Phase::Idle, ..) | (Phase::Leftover, _, Some(0)) => Expected::Head,
            (Phase::Handling | Phase::Streaming, false, _) | (Phase::Handling | Phase::Streaming, true, Some(0)) => {
                Expected::LaterRequest
            }
            (Phase::Handling | Phase::Streaming | Phase::Leftover, _, Some(left)) => Expected::Body(left),
            (Phase::Handling | Phase::Streaming | Phase::Leftover, _, None) => Expected::BodyOfUnknownLength,
        }
    }

    /// Call when `passed` of the bytes that arrived were passed to the parser and `ahead` belong to later requests. `now` is
    /// called only if they start a new phase.
    fn passed_to_parser(&self, passed: usize, ahead: usize, now: impl FnOnce() -> Instant) {
        if passed > 0 && self.phase.get() == Phase::Idle {
            self.enter(Phase::Head, now());
        }
        let in_head = matches!(self.phase.get(), Phase::Head);
        self.body_left.set(self.body_left.get().map(|left| if in_head { left } else { left.saturating_sub(passed) }));
        self.read_ahead.set(ahead);
        let head = if in_head { self.head_bytes.get().saturating_add(passed) } else { 0 };
        self.head_bytes.set(head);
        // The parser's buffer doubles as it grows.
        self.set_held(head.saturating_mul(2).saturating_add(ahead));
    }

    /// Call when the parser gets this many bytes of a body together with the head.
    fn passed_with_head(&self, bytes: usize) {
        self.body_with_head.set(bytes);
    }

    /// Call when a request starts. `body` is `None` if it has no body, and `Some(None)` if the length of its body is unknown.
    fn request_started(&self, body: Option<Option<usize>>, now: Instant) {
        let passed = self.body_with_head.take();
        self.body_unread.set(body.is_some());
        self.body_left.set(body.flatten().map(|length| length.saturating_sub(passed)));
        self.served.set(true);
        self.head_bytes.set(0);
        self.set_held(self.read_ahead.get());
        self.enter(Phase::Handling, now);
    }

    /// Sets how many bytes are in memory because this client is slow, and reports the change to the table.
    fn set_held(&self, bytes: usize) {
        let before = self.held.replace(bytes);
        if before != bytes
            && self.evicted.get().is_none()
            && let Some(table) = self.table.upgrade()
        {
            table.held_changed(before, bytes);
        }
    }

    /// Closes the connection, even while a request is handled, because memory is short. Returns how many bytes that frees.
    /// The memory is freed immediately and not when the task of the connection runs next, because thousands of other tasks
    /// may allocate as much before that. The exception is the connection that is being polled right now: its memory is
    /// freed when that poll ends.
    fn evict(&self) -> usize {
        let reason = self.deadline().1;
        self.evicted.set(Some(if self.is_blocked() { CloseReason::SlowReader } else { reason }));
        if let Ok(mut serving) = self.serving.try_borrow_mut() {
            serving.take();
        }
        self.wake();
        self.held.take()
    }

    /// The rank of the connection among those that may be evicted; the smallest is evicted first. Connections that have
    /// made no progress for longest come first, and ones that are handling a request come last. `None` if the connection
    /// holds no memory.
    fn eviction_rank(&self) -> Option<(bool, Instant)> {
        let since = self.blocked.get().map_or(self.since.get(), |blocked| blocked.progress);
        (self.held.get() > 0).then(|| (self.is_handling() && !self.is_blocked(), since))
    }

    fn body_read(&self) {
        self.body_unread.set(false);
    }

    /// Call when the response has started and goes on as a stream.
    fn streaming(&self, now: Instant) {
        self.enter(Phase::Streaming, now);
    }

    /// Call when a response has ended.
    fn responded(&self, now: Instant) {
        self.leftover_bytes.set(0);
        self.enter(if self.body_unread.get() { Phase::Leftover } else { Phase::Idle }, now);
    }

    /// Call when the send buffer of the socket is full and `waiting` bytes of responses wait to be written.
    fn write_blocked(&self, waiting: usize, now: impl FnOnce() -> Instant) {
        if self.blocked.get().is_none() {
            let now = now();
            self.blocked.set(Some(BlockedWrite { since: now, progress: now }));
        }
        self.set_held(waiting.saturating_add(self.unsent.get()));
    }

    /// Call when the socket accepted some bytes.
    fn write_progressed(&self, now: impl FnOnce() -> Instant) {
        if let Some(blocked) = self.blocked.get() {
            self.blocked.set(Some(BlockedWrite { progress: now(), ..blocked }));
        }
    }

    /// Call when the socket accepted everything. Returns whether a write was blocked before.
    fn write_completed(&self, now: impl FnOnce() -> Instant) -> bool {
        let was_blocked = self.blocked.take().is_some();
        if was_blocked {
            self.set_held(0);
        }
        // The client has received the whole response only now, so its idle time starts now.
        if was_blocked && self.phase.get() == Phase::Idle {
            self.since.set(now());
        }
        was_blocked
    }

    /// Whether a request is in progress. Such a connection is not closed to make room for others.
    fn is_handling(&self) -> bool {
        matches!(self.phase.get(), Phase::Handling | Phase::Streaming)
    }

    fn is_streaming(&self) -> bool {
        self.phase.get() == Phase::Streaming
    }

    fn is_blocked(&self) -> bool {
        self.blocked.get().is_some()
    }

    /// When the connection will be closed if its state does not change, and with which reason.
    fn deadline(&self) -> (Instant, CloseReason) {
        let since = self.since.get();
        if let Some(reason) = self.evicted.get() {
            return (since, reason);
        }
        let by_phase = match self.phase.get() {
            Phase::Head => (since + HEAD_LIMIT + GRACE, CloseReason::SlowHead),
            Phase::Handling => (since + HANDLING_LIMIT, CloseReason::SlowAnswer),
            Phase::Streaming => (since + STREAMING_LIMIT, CloseReason::SlowAnswer),
            Phase::Leftover if self.leftover_bytes.get() > LEFTOVER_BYTES => (since, CloseReason::Leftover),
            Phase::Leftover => (since + LEFTOVER_LIMIT + GRACE, CloseReason::Leftover),
            Phase::Idle => (since + IDLE_LIMIT + GRACE, CloseReason::Idle),
        };
        let by_write = self.blocked.get().map(|BlockedWrite { since, progress }| {
            ((progress + STALLED_LIMIT).min(since + WRITING_LIMIT), CloseReason::SlowReader)
        });
        by_write.map_or(by_phase, |by_write| if by_write.0 < by_phase.0 { by_write } else { by_phase })
    }

    /// The rank of the connection among those that may be closed to make room; the smallest is closed first.
    /// Connections that never sent a request come first, then the ones that have been idle longest, and last the ones that
    /// are still receiving a response. `None` while a request is being handled: such a connection is never closed.
    fn replacement_rank(&self) -> Option<(bool, bool, Instant)> {
        let may = !self.is_handling() && !self.replaced.get();
        may.then(|| (self.is_blocked(), self.served.get(), self.since.get()))
    }

    /// Tells the task of the connection to close it.
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

    /// How many seconds after `start` the connection is closed, and why.
    fn closes(connection: &Connection, start: Instant) -> (u64, CloseReason) {
        let (deadline, reason) = connection.deadline();
        (deadline.duration_since(start).as_secs(), reason)
    }

    #[test]
    fn every_phase_of_every_request_has_a_limit() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        assert_eq!(closes(&connection, start), (6, CloseReason::SlowHead), "a silent connection");
        connection.received(10, at(start, 3));
        assert_eq!(closes(&connection, start), (6, CloseReason::SlowHead), "bytes of a head do not extend its limit");
        connection.request_started(Some(None), start + 4 * SECOND);
        assert_eq!(closes(&connection, start), (124, CloseReason::SlowAnswer));
        connection.body_read();
        connection.responded(start + 5 * SECOND);
        assert_eq!(closes(&connection, start), (81, CloseReason::Idle));
        connection.received(1, at(start, 60));
        assert_eq!(closes(&connection, start), (66, CloseReason::SlowHead), "the head of a later request");
        connection.request_started(Some(None), start + 61 * SECOND);
        connection.responded(start + 62 * SECOND);
        connection.received(100, at(start, 63));
        assert_eq!(closes(&connection, start), (68, CloseReason::Leftover), "a body that was not read");
        connection.received(LEFTOVER_BYTES, at(start, 63));
        assert_eq!(closes(&connection, start), (62, CloseReason::Leftover), "too much of it");
    }

    #[test]
    fn a_stream_may_be_silent_for_long_and_is_never_replaced_but_its_client_must_read() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        connection.request_started(None, start);
        connection.streaming(start + SECOND);
        assert_eq!(closes(&connection, start), (7201, CloseReason::SlowAnswer));
        assert_eq!((connection.replacement_rank(), connection.expected()), (None, Expected::LaterRequest));
        connection.write_blocked(1, at(start, 100));
        assert_eq!(closes(&connection, start), (110, CloseReason::SlowReader));
        connection.write_completed(at(start, 105));
        connection.responded(start + 110 * SECOND);
        assert_eq!(closes(&connection, start), (186, CloseReason::Idle));
    }

    #[test]
    fn a_client_that_stops_reading_is_closed_and_a_slow_one_has_a_total_limit() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        connection.request_started(None, start);
        connection.responded(start);
        assert!(!connection.write_completed(at(start, 0)));
        connection.write_blocked(1, at(start, 1));
        assert_eq!(closes(&connection, start), (11, CloseReason::SlowReader));
        connection.write_blocked(1, at(start, 5));
        assert_eq!(closes(&connection, start), (11, CloseReason::SlowReader), "a second blocked write is no progress");
        connection.write_progressed(at(start, 8));
        assert_eq!(closes(&connection, start), (18, CloseReason::SlowReader));
        connection.write_progressed(at(start, 55));
        assert_eq!(closes(&connection, start), (61, CloseReason::SlowReader));
        assert!(connection.write_completed(at(start, 57)));
        assert_eq!(closes(&connection, start), (133, CloseReason::Idle), "idle since the response was read");
    }

    #[test]
    fn a_connection_with_a_request_in_progress_is_never_replaced() {
        let start = monotonic();
        let connection = Connection::new(start, Weak::new());
        assert_eq!(connection.replacement_rank(), Some((false, false, start)));
        connection.request_started(None, start);
        assert_eq!(connection.replacement_rank(), None);
        connection.responded(start + SECOND);
        assert_eq!(connection.replacement_rank(), Some((false, true, start + SECOND)));
        connection.write_blocked(1, at(start, 1));
        assert_eq!(connection.replacement_rank(), Some((true, true, start + SECOND)), "its response is being read");
        connection.replace();
        assert_eq!(connection.replacement_rank(), None, "not twice");
    }
}
