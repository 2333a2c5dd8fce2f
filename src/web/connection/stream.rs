//! The byte stream of a connection, plain or TLS, as actix's dispatcher sees it.
//!
//! Reports to [`Connection`] what is read and written, stops reading while the client does not read, gives actix one request
//! at a time, and gives the errors of actix's parser the JSON form of all other errors.

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

/// Bytes that are read before it is the turn of other connections.
const READ_AT_ONCE: usize = 16 * 1024;

/// Bytes that actix gets at once where nobody knows where a body ends. What follows the body is taken for further
/// requests, and each of those takes up to a hundred times as much memory as it has bytes.
const UNBOUNDED_AT_ONCE: usize = 1024;

/// What rustls keeps at most of an answer that the socket does not take.
const TLS_BUFFER: usize = 64 * 1024;

pub(in crate::web) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(in crate::web) struct ClientStream {
    transport: Transport,
    pub(in crate::web) connection: Rc<Connection>,
    /// What is written in place of a parser error of actix and was not taken by the socket yet.
    replacement: Bytes,
    /// What was read and belongs to requests after the present one: actix would decode all of them at once.
    ahead: BytesMut,
    /// Finds where the head of a request ends.
    head: HeadEnd,
    /// Whether actix was given something to decode first.
    decode_first: bool,
    /// What may still be read before it is the turn of others.
    read_budget: usize,
    /// Whether a read was put off because the client did not read.
    read_put_off: bool,
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
            read_budget: READ_AT_ONCE,
            read_put_off: false,
        }
    }

    /// Reads from the transport; `None` at the end of what the client sends.
    fn read_transport(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<Option<usize>>> {
        let before = buf.filled().len();
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if read.is_pending() {
            self.read_budget = READ_AT_ONCE;
        }
        ready!(read)?;
        let received = buf.filled().len() - before;
        self.read_budget = self.read_budget.saturating_sub(received);
        Poll::Ready(Ok(Some(received).filter(|received| *received > 0)))
    }

    /// How many of these bytes actix may have now: those of one request. After them there are `more` that have arrived.
    fn share(&mut self, bytes: &[u8], more: usize) -> usize {
        let share = match self.connection.expected() {
            Expected::Nothing => 0,
            Expected::Head => {
                let end = self.head.find(bytes);
                self.decode_first = end.is_some();
                end.unwrap_or(bytes.len())
            }
            Expected::Body(left) => left.min(bytes.len()),
            Expected::BodyOfAnyLength => {
                self.decode_first = true;
                bytes.len().min(UNBOUNDED_AT_ONCE)
            }
        };
        self.connection.given(share, bytes.len() - share + more, monotonic);
        share
    }

    fn write_transport(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        match &written {
            Poll::Ready(_) => self.connection.write_progressed(monotonic),
            Poll::Pending => self.connection.write_blocked(bytes.len() + self.buffered(), monotonic),
        }
        written
    }

    /// Bytes that the transport itself may hold while it is blocked.
    fn buffered(&self) -> usize {
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

/// A connection that is closed while its client does not read is reset: otherwise the kernel would keep the answer for
/// minutes, waiting for that client.
impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.connection.is_blocked() {
            let _closed_all_the_same = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Otherwise answers to pipelined requests would pile up in memory. The blocked write wakes the task.
        if self.connection.is_blocked() {
            self.read_put_off = true;
            return Poll::Pending;
        }
        if self.read_budget == 0 || std::mem::take(&mut self.decode_first) {
            self.read_budget = READ_AT_ONCE;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.ahead.is_empty() {
            let before = buf.filled().len();
            let Some(received) = ready!(self.read_transport(cx, buf))? else { return Poll::Ready(Ok(())) };
            self.connection.received(received, monotonic);
            let share = self.share(&buf.filled()[before..], 0);
            self.ahead.extend_from_slice(&buf.filled()[before + share..]);
            buf.set_filled(before + share);
            if share > 0 {
                return Poll::Ready(Ok(()));
            }
        } else {
            let mut ahead = std::mem::take(&mut self.ahead);
            let fits = ahead.len().min(buf.remaining());
            let share = self.share(&ahead[..fits], ahead.len() - fits);
            buf.put_slice(&ahead.split_to(share));
            self.ahead = ahead;
            if share > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        // It is the turn of the next request when this one is answered, which ends with a flush.
        self.read_put_off = true;
        Poll::Pending
    }
}

/// Finds the end of a request's head: an empty line after one that is not.
#[derive(Default)]
struct HeadEnd {
    begun: bool,
    /// Whether the present line has anything in it.
    in_line: bool,
}

impl HeadEnd {
    /// How many bytes belong to the head, if it ends among these. What was seen before counts.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.begun && !self.in_line => {
                    *self = Self::default();
                    return Some(index + 1);
                }
                b'\n' => self.in_line = false,
                b'\r' => {}
                _ => (self.begun, self.in_line) = (true, true),
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
            Some((0, answer)) => {
                self.replacement = answer;
                match self.write_replacement(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    // What is left of it goes with the flush.
                    _ => Poll::Ready(Ok(buf.len())),
                }
            }
            // First what stands before it; the caller comes again with the rest.
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
            self.connection.write_blocked(self.buffered(), monotonic);
        } else {
            self.connection.write_completed(monotonic);
            if std::mem::take(&mut self.read_put_off) {
                // Nobody else wakes the task for what has arrived meanwhile.
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
            self.connection.write_blocked(self.buffered(), monotonic);
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

    /// Two ends of a connection: a client's and ours.
    async fn pair() -> (TcpStream, ClientStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let ours = listener.accept().await.unwrap().0;
        (client, ClientStream::new(Transport::Plain(ours), Rc::new(Connection::new(monotonic(), std::rc::Weak::new()))))
    }

    #[actix::test]
    async fn nothing_is_read_while_the_client_does_not_read_and_reading_goes_on_afterwards() {
        let (client, mut ours) = pair().await;
        client.writable().await.unwrap();
        assert_eq!(client.try_write(b"more").unwrap(), 4);
        let mut room = [0; 16];
        let filled = std::future::poll_fn(|cx| {
            while let Poll::Ready(written) = Pin::new(&mut ours).poll_write(cx, &[b'a'; 65536]) {
                written.unwrap();
            }
            Poll::Ready(Pin::new(&mut ours).poll_read(cx, &mut ReadBuf::new(&mut room)).is_pending())
        });
        assert!(filled.await, "there was something to read");
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        // A TCP stream has nothing to flush; the dispatcher comes here when all is written.
        assert!(Pin::new(&mut ours).poll_flush(&mut Context::from_waker(&waker)).is_ready());
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "the task is told to read again");
        let mut buffer = ReadBuf::new(&mut room);
        std::future::poll_fn(|cx| Pin::new(&mut ours).poll_read(cx, &mut buffer)).await.unwrap();
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
            // Byte by byte it is the same.
            let mut head = HeadEnd::default();
            let found = (0..text.len()).find(|index| head.find(&text.as_bytes()[*index..=*index]).is_some());
            assert_eq!(found.map(|index| index + 1), end, "{text:?} in pieces");
        }
    }

    /// What the parser gets until it has to wait. Twice, because it is told to decode first what it has.
    fn read_all(ours: &mut ClientStream) -> String {
        let (mut text, mut room) = (String::new(), [0; 256]);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let mut buffer = ReadBuf::new(&mut room);
            while let Poll::Ready(read) = Pin::new(&mut *ours).poll_read(&mut cx, &mut buffer) {
                read.unwrap();
            }
            text.push_str(std::str::from_utf8(buffer.filled()).unwrap());
            if ours.connection.phase.get() == Phase::Head {
                break;
            }
        }
        text
    }

    /// actix would decode all that it is given; requests that wait take far more memory than their bytes.
    #[actix::test]
    async fn the_parser_gets_one_request_at_a_time() {
        let (client, mut ours) = pair().await;
        let sent = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET /2 HTTP/1.1\r\n\r\nGET /3";
        client.writable().await.unwrap();
        assert_eq!(client.try_write(sent.as_bytes()).unwrap(), sent.len());
        ours.tcp().readable().await.unwrap();
        let connection = Rc::clone(&ours.connection);
        assert_eq!(read_all(&mut ours), "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n");
        connection.request_started(Some(Some(4)), monotonic());
        let mut read = || read_all(&mut ours);
        assert_eq!((read(), connection.held.get()), ("body".to_owned(), 25));
        connection.body_read();
        assert_eq!(read(), "", "the first request is not answered yet");
        connection.answered(monotonic());
        assert_eq!((read(), connection.phase.get()), ("GET /2 HTTP/1.1\r\n\r\n".to_owned(), Phase::Head));
        connection.request_started(None, monotonic());
        assert_eq!((read(), connection.held.get()), (String::new(), 6));
        connection.answered(monotonic());
        assert_eq!((read(), connection.phase.get()), ("GET /3".to_owned(), Phase::Head), "its time begins");
    }
}
