//! The byte stream of one connection, plain or TLS, which records what passes over it.
//!
//! The record answers two questions that hyper cannot: whether any byte of a request may have left this process, and whether
//! the peer sent something before it had the whole request.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A TCP connection, with or without TLS.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// A handle to the stream. hyper reads and writes through one handle; a clone of it answers questions about the record.
#[derive(Clone)]
pub(super) struct Wire(Rc<Shared>);

struct Shared {
    stream: RefCell<Stream>,
    /// What has passed since the current request started.
    passed: Cell<Passed>,
}

#[derive(Clone, Copy, Default)]
struct Passed {
    /// At least one byte was written to the socket.
    written: bool,
    /// hyper has taken the whole body.
    body_taken: bool,
    /// The last write did not accept all bytes that it was offered.
    blocked: bool,
    /// Whether the whole request was written when the first byte of the response arrived; `None` before that.
    whole_at_answer: Option<bool>,
}

impl Passed {
    fn is_whole(self) -> bool {
        self.written && self.body_taken && !self.blocked
    }
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self(Rc::new(Shared { stream: RefCell::new(stream), passed: Cell::default() }))
    }

    /// Resets the record for a new request with this body.
    pub(super) fn start_request(&self, body: Bytes) -> RequestBody {
        self.0.passed.set(Passed { body_taken: body.is_empty(), ..Passed::default() });
        RequestBody { rest: Some(body).filter(|body| !body.is_empty()), wire: self.clone() }
    }

    /// Whether any byte of the current request may have left this process.
    pub(super) fn has_written(&self) -> bool {
        self.0.passed.get().written
    }

    /// Whether the peer sent something before the whole request had been written.
    pub(super) fn was_answered_early(&self) -> bool {
        self.0.passed.get().whole_at_answer == Some(false)
    }

    /// Whether there are no unread bytes from the peer and the connection is not closed. This asks the operating system,
    /// because the runtime may not have noticed yet.
    pub(super) fn is_quiet(&self) -> bool {
        let stream = self.0.stream.borrow();
        let peeked = SockRef::from(stream.tcp()).peek(&mut [MaybeUninit::uninit()]);
        matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Records the result of a write of `offered` bytes.
    fn wrote(&self, offered: usize, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let mut passed = self.0.passed.get();
        let taken = if let Poll::Ready(Ok(taken)) = &result { *taken } else { 0 };
        passed.written |= taken > 0;
        passed.blocked = taken < offered;
        self.0.passed.set(passed);
        result
    }
}

/// The body of a request, which records when hyper has taken it.
pub(super) struct RequestBody {
    rest: Option<Bytes>,
    wire: Wire,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let passed = &self.wire.0.passed;
        passed.set(Passed { body_taken: true, ..passed.get() });
        Poll::Ready(self.rest.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.as_ref().map_or(0, |rest| u64::try_from(rest.len()).unwrap_or(u64::MAX)))
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = match &mut *self.0.stream.borrow_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        };
        let mut passed = self.0.passed.get();
        if buffer.filled().len() > before && passed.whole_at_answer.is_none() {
            passed.whole_at_answer = Some(passed.is_whole());
            self.0.passed.set(passed);
        }
        result
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = match &mut *self.0.stream.borrow_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        };
        self.wrote(bytes.len(), result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = match &mut *self.0.stream.borrow_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, slices),
        };
        self.wrote(slices.iter().map(|slice| slice.len()).sum(), result)
    }

    fn is_write_vectored(&self) -> bool {
        match &*self.0.stream.borrow() {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.stream.borrow_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.stream.borrow_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
