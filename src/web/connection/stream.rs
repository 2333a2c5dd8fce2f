//! The byte stream of a connection, plain or TLS, that actix's dispatcher reads from and writes to.
//!
//! It reports reads and writes to [`Connection`], stops reading while the client does not read its responses, and gives the
//! errors of actix's parser a JSON body.

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

/// How many bytes are read before the dispatcher handles the requests in them and writes the responses. Without this
/// limit, one read of 128 KiB can hold thousands of requests whose responses would all be in memory at the same time.
const READ_BUDGET: usize = 16 * 1024;

pub(in crate::web) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(in crate::web) struct ClientStream {
    transport: Transport,
    pub(in crate::web) connection: Rc<Connection>,
    /// The response that replaces an error of actix's parser, as far as the socket has not accepted it yet.
    replacement: Bytes,
    /// How many more bytes may be read before the task yields.
    read_budget: usize,
    /// Whether a read was postponed because a write was blocked.
    read_postponed: bool,
}

impl ClientStream {
    pub(in crate::web) fn new(transport: Transport, connection: Rc<Connection>) -> Self {
        connection.opened(monotonic());
        Self { transport, connection, replacement: Bytes::new(), read_budget: READ_BUDGET, read_postponed: false }
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
        // Otherwise responses to pipelined requests would accumulate in memory. The blocked write wakes the task.
        if self.connection.is_blocked() {
            self.read_postponed = true;
            return Poll::Pending;
        }
        if self.read_budget == 0 {
            self.read_budget = READ_BUDGET;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if read.is_pending() {
            self.read_budget = READ_BUDGET;
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
            Some((0, response)) => {
                self.replacement = response;
                match self.write_replacement(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    // The flush writes the rest.
                    _ => Poll::Ready(Ok(buf.len())),
                }
            }
            // Write what stands before the error; the caller calls again with the rest.
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

    /// Both ends of a connection: the client's and the server's.
    async fn pair() -> (TcpStream, ClientStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let server = listener.accept().await.unwrap().0;
        (client, ClientStream::new(Transport::Plain(server), Rc::new(Connection::new(monotonic()))))
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
}
