//! The byte stream of a connection, plain or TLS, that actix's dispatcher reads from and writes to.
//!
//! It reports reads and writes to [`Connection`], stops reading while the client does not read its responses, passes one
//! request at a time to actix, and gives the errors of actix's parser a JSON body.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::{Connection, Expected, parser_error};
use crate::platform::clock::monotonic;

/// How many bytes are read before the task yields to other connections.
const READ_BUDGET: usize = 16 * 1024;

/// How many bytes actix gets in one read while the length of a body is unknown. actix parses everything after the body as
/// further requests, and each of those needs up to a hundred times its size in memory.
const UNBOUNDED_READ: usize = 1024;

/// How many bytes of a response rustls buffers at most while the socket is blocked.
const TLS_BUFFER: usize = 64 * 1024;

pub(in crate::web) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(in crate::web) struct ClientStream {
    transport: Transport,
    pub(in crate::web) connection: Rc<Connection>,
    /// The response that replaces an error of actix's parser, as far as the socket has not accepted it yet.
    replacement: Bytes,
    /// Bytes of requests after the current one. They are kept back, because actix would parse all of them immediately.
    ahead: BytesMut,
    /// Finds where the head of a request ends.
    head: HeadEnd,
    /// Whether actix must parse what it has before it reads more.
    decode_first: bool,
    /// How many more bytes may be read before the task yields.
    read_budget: usize,
    /// Whether a read was postponed because a write was blocked or the current request has no response yet.
    read_postponed: bool,
}

impl ClientStream {
    pub(in crate::web) fn new(transport: Transport, connection: Rc<Connection>) -> Self {
        connection.opened(monotonic());
        Self {
            transport,
            connection,
            replacement: Bytes::new(),
            ahead: BytesMut::new(),
            head: HeadEnd::default(),
            decode_first: false,
            read_budget: READ_BUDGET,
            read_postponed: false,
        }
    }

    /// Reads from the transport. `None` if the client has closed its side.
    fn read_transport(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<Option<usize>>> {
        let before = buf.filled().len();
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if read.is_pending() {
            self.read_budget = READ_BUDGET;
        }
        ready!(read)?;
        let received = buf.filled().len() - before;
        self.read_budget = self.read_budget.saturating_sub(received);
        Poll::Ready(Ok(Some(received).filter(|received| *received > 0)))
    }

    /// How many of these bytes belong to the current request and may be passed to actix. `more` is the number of bytes that
    /// have arrived after them.
    fn part_for_parser(&mut self, bytes: &[u8], more: usize) -> usize {
        let part = match self.connection.expected() {
            Expected::LaterRequest => 0,
            Expected::Head => match self.head.find(bytes) {
                None => bytes.len(),
                Some(end) => {
                    // Most requests arrive in one piece, which need not be divided.
                    let body =
                        Some(bytes.len() - end).filter(|rest| *rest > 0 && body_length(&bytes[..end]) == Some(*rest));
                    self.connection.passed_with_head(body.unwrap_or(0));
                    let part = end + body.unwrap_or(0);
                    self.decode_first = part < bytes.len() + more;
                    part
                }
            },
            Expected::Body(left) => left.min(bytes.len()),
            Expected::BodyOfUnknownLength => {
                self.decode_first = true;
                bytes.len().min(UNBOUNDED_READ)
            }
        };
        self.connection.passed_to_parser(part, bytes.len() - part + more, monotonic);
        part
    }

    fn write_transport(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        match &written {
            Poll::Ready(_) => self.connection.write_progressed(monotonic),
            Poll::Pending => self.connection.write_blocked(bytes.len() + self.transport_buffer(), monotonic),
        }
        written
    }

    /// How many bytes the transport itself may buffer while it is blocked.
    fn transport_buffer(&self) -> usize {
        match self.transport {
            Transport::Plain(_) => 0,
            Transport::Tls(_) => TLS_BUFFER,
        }
    }

    fn tcp(&self) -> &TcpStream {
        match &self.transport {
            Transport::Plain(stream) => stream,
            Transport::Tls(stream) => stream.get_ref().0,
        }
    }

    fn write_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.replacement.is_empty() {
            let bytes = self.replacement.clone();
            let written = ready!(self.write_transport(cx, &bytes))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.replacement.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

/// Closing a connection whose client does not read resets it. Otherwise the kernel would keep the unread response for
/// minutes.
impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.connection.is_blocked() {
            // If this fails, the connection closes without a reset.
            let _ignored = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Otherwise responses to pipelined requests would accumulate in memory. The blocked write wakes the task.
        if self.connection.is_blocked() {
            self.read_postponed = true;
            return Poll::Pending;
        }
        if self.read_budget == 0 || std::mem::take(&mut self.decode_first) {
            self.read_budget = READ_BUDGET;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.ahead.is_empty() {
            let before = buf.filled().len();
            let Some(received) = ready!(self.read_transport(cx, buf))? else {
                // A client that closes its side may still read a response, but a client that follows a stream has gone.
                let gone = self.connection.is_streaming().then(|| io::ErrorKind::ConnectionAborted.into());
                return Poll::Ready(gone.map_or(Ok(()), Err));
            };
            self.connection.received(received, monotonic);
            let part = self.part_for_parser(&buf.filled()[before..], 0);
            self.ahead.extend_from_slice(&buf.filled()[before + part..]);
            buf.set_filled(before + part);
            if part > 0 {
                return Poll::Ready(Ok(()));
            }
        } else {
            let mut ahead = std::mem::take(&mut self.ahead);
            let fits = ahead.len().min(buf.remaining());
            let part = self.part_for_parser(&ahead[..fits], ahead.len() - fits);
            buf.put_slice(&ahead.split_to(part));
            self.ahead = ahead;
            if part > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        // The next request is read when the response to this one is written, and a flush ends that.
        self.read_postponed = true;
        Poll::Pending
    }
}

/// The value of `Content-Length`, if the head is complete. Only the parser decides what a request is: a client that sends a
/// wrong value here only gets its bytes to the parser a little sooner.
fn body_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let mut lines = head.split(|byte| *byte == b'\n');
    let value =
        lines.find_map(|line| line.get(..NAME.len())?.eq_ignore_ascii_case(NAME).then_some(&line[NAME.len()..]))?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Finds the end of the head of a request: the first empty line after a line that is not empty.
#[derive(Default)]
struct HeadEnd {
    /// Whether a line that is not empty has started.
    started: bool,
    /// Whether the current line has a character.
    in_line: bool,
}

impl HeadEnd {
    /// How many of these bytes belong to the head, or `None` if it does not end in them. Call it again with the bytes that
    /// follow.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.started && !self.in_line => {
                    *self = Self::default();
                    return Some(index + 1);
                }
                b'\n' => self.in_line = false,
                b'\r' => {}
                _ => (self.started, self.in_line) = (true, true),
            }
        }
        None
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.write_replacement(cx))?;
        match parser_error::find(buf) {
            None => self.write_transport(cx, buf),
            Some((0, response)) => {
                self.replacement = response;
                match self.write_replacement(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    // The flush writes the rest.
                    _ => Poll::Ready(Ok(buf.len())),
                }
            }
            // Write what precedes the error; the caller calls again with the rest.
            Some((start, _)) => self.write_transport(cx, &buf[..start]),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_replacement(cx))?;
        let flushed = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        if flushed.is_pending() {
            self.connection.write_blocked(self.transport_buffer(), monotonic);
        } else {
            self.connection.write_completed(monotonic);
            if std::mem::take(&mut self.read_postponed) {
                // Nothing else wakes the task for bytes that have arrived in the meantime.
                cx.waker().wake_by_ref();
            }
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_replacement(cx))?;
        let closed = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        };
        if closed.is_pending() {
            self.connection.write_blocked(self.transport_buffer(), monotonic);
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::net::TcpListener;

    use super::*;
    use crate::web::connection::Phase;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Both ends of a connection: the client's and the server's.
    async fn pair() -> (TcpStream, ClientStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let server = listener.accept().await.unwrap().0;
        (
            client,
            ClientStream::new(Transport::Plain(server), Rc::new(Connection::new(monotonic(), std::rc::Weak::new()))),
        )
    }

    #[actix::test]
    async fn nothing_is_read_while_the_client_does_not_read_and_reading_resumes_afterwards() {
        let (client, mut server) = pair().await;
        client.writable().await.unwrap();
        assert_eq!(client.try_write(b"more").unwrap(), 4);
        let mut received = [0; 16];
        let filled = std::future::poll_fn(|cx| {
            while let Poll::Ready(written) = Pin::new(&mut server).poll_write(cx, &[b'a'; 65536]) {
                written.unwrap();
            }
            Poll::Ready(Pin::new(&mut server).poll_read(cx, &mut ReadBuf::new(&mut received)).is_pending())
        });
        assert!(filled.await, "bytes have arrived, but they are not read yet");
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        // A TCP stream has nothing to flush; the dispatcher calls this when everything is written.
        assert!(Pin::new(&mut server).poll_flush(&mut Context::from_waker(&waker)).is_ready());
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "the task is woken to read again");
        let mut buffer = ReadBuf::new(&mut received);
        std::future::poll_fn(|cx| Pin::new(&mut server).poll_read(cx, &mut buffer)).await.unwrap();
        assert_eq!(buffer.filled(), b"more");
    }

    #[test]
    fn the_end_of_a_head_is_found_however_it_arrives() {
        for (text, end) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /", Some(27)),
            ("\r\n\r\nGET /\r\n\r\n", Some(13)),
            ("GET /\n\nmore", Some(7)),
            ("GET / HTTP/1.1\r\nHost: a\r\n", None),
            ("\r\n\r\n", None),
        ] {
            assert_eq!(HeadEnd::default().find(text.as_bytes()), end, "{text:?}");
            // The result is the same byte by byte.
            let mut head = HeadEnd::default();
            let found = (0..text.len()).find(|index| head.find(&text.as_bytes()[*index..=*index]).is_some());
            assert_eq!(found.map(|index| index + 1), end, "{text:?} byte by byte");
        }
    }

    /// Everything that the parser gets until it has to wait. Reads twice, because one wait only lets the parser decode what
    /// it already has.
    fn read_all(server: &mut ClientStream) -> String {
        let (mut text, mut bytes) = (String::new(), [0; 256]);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let mut buffer = ReadBuf::new(&mut bytes);
            while let Poll::Ready(read) = Pin::new(&mut *server).poll_read(&mut cx, &mut buffer) {
                read.unwrap();
            }
            text.push_str(std::str::from_utf8(buffer.filled()).unwrap());
            if server.connection.phase.get() == Phase::Head {
                break;
            }
        }
        text
    }

    /// actix would decode everything that it gets, and waiting requests need far more memory than their bytes.
    #[actix::test]
    async fn the_parser_gets_one_request_at_a_time() {
        let (client, mut server) = pair().await;
        let sent = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET /2 HTTP/1.1\r\n\r\nGET /3";
        client.writable().await.unwrap();
        assert_eq!(client.try_write(sent.as_bytes()).unwrap(), sent.len());
        server.tcp().readable().await.unwrap();
        let connection = Rc::clone(&server.connection);
        assert_eq!(read_all(&mut server), "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n");
        connection.request_started(Some(Some(4)), monotonic());
        let mut read = || read_all(&mut server);
        assert_eq!((read(), connection.held.get()), ("body".to_owned(), 25));
        connection.body_read();
        assert_eq!(read(), "", "the first request has no response yet");
        connection.responded(monotonic());
        assert_eq!((read(), connection.phase.get()), ("GET /2 HTTP/1.1\r\n\r\n".to_owned(), Phase::Head));
        connection.request_started(None, monotonic());
        assert_eq!((read(), connection.held.get()), (String::new(), 6));
        connection.responded(monotonic());
        assert_eq!((read(), connection.phase.get()), ("GET /3".to_owned(), Phase::Head), "its time limit starts");
    }

    #[actix::test]
    async fn a_request_in_one_piece_is_not_divided() {
        let (client, mut ours) = pair().await;
        let connection = Rc::clone(&ours.connection);
        let sent = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody";
        for _ in 0..2 {
            client.writable().await.unwrap();
            assert_eq!(client.try_write(sent.as_bytes()).unwrap(), sent.len());
            ours.tcp().readable().await.unwrap();
            assert_eq!(read_all(&mut ours), sent);
            connection.request_started(Some(Some(4)), monotonic());
            assert_eq!(connection.expected(), Expected::LaterRequest, "all of it has arrived");
            connection.body_read();
            connection.responded(monotonic());
        }
        assert_eq!(body_length(b"POST / HTTP/1.1\r\nX-Content-Length: 4\r\nContent-Length:  7 \r\n\r\n"), Some(7));
        assert_eq!(body_length(b"POST / HTTP/1.1\r\nContent-Length: 7,7\r\n\r\n"), None);
    }
}
