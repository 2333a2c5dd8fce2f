//! The byte stream of a connection, plain or TLS, as actix's dispatcher sees it.
//!
//! Reports to [`Connection`] what is read and written, stops reading while the client does not read, and gives the errors
//! of actix's parser the JSON form of all other errors.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::{Connection, parser_error};
use crate::platform::clock::monotonic;

/// Bytes that are read before the requests in them are answered and the answers written. Without it, one read of 128 KiB can
/// hold thousands of requests whose answers would all be in memory at once.
const READ_AT_ONCE: usize = 16 * 1024;

pub(in crate::web) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(in crate::web) struct ClientStream {
    transport: Transport,
    pub(in crate::web) connection: Rc<Connection>,
    /// What is written in place of a parser error of actix and was not taken by the socket yet.
    replacement: Bytes,
    /// What may still be read before it is the turn of others.
    read_budget: usize,
    /// Whether a read was put off because the client did not read.
    read_put_off: bool,
}

impl ClientStream {
    pub(in crate::web) fn new(transport: Transport, connection: Rc<Connection>) -> Self {
        connection.opened(monotonic());
        Self { transport, connection, replacement: Bytes::new(), read_budget: READ_AT_ONCE, read_put_off: false }
    }

    fn write_transport(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        match &written {
            Poll::Ready(_) => self.connection.write_progressed(monotonic),
            Poll::Pending => self.connection.write_blocked(monotonic),
        }
        written
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

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Otherwise answers to pipelined requests would pile up in memory. The blocked write wakes the task.
        if self.connection.is_blocked() {
            self.read_put_off = true;
            return Poll::Pending;
        }
        if self.read_budget == 0 {
            self.read_budget = READ_AT_ONCE;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if read.is_pending() {
            self.read_budget = READ_AT_ONCE;
        }
        let received = buf.filled().len() - before;
        if received > 0 {
            self.read_budget = self.read_budget.saturating_sub(received);
            self.connection.received(received, monotonic);
        }
        read
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
            self.connection.write_blocked(monotonic);
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
            self.connection.write_blocked(monotonic);
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
        (client, ClientStream::new(Transport::Plain(ours), Rc::new(Connection::new(monotonic()))))
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
}
