//! One HTTP/1.1 connection, which runs one exchange (a request and its response) at a time.
//!
//! hyper writes requests and parses responses: it skips interim responses (1xx) and reports bytes that belong to no
//! response. Only the call that uses a connection moves bytes over it. Nothing is read while the connection is idle, so
//! bytes can never be taken for the response to a request that was not sent yet.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use hyper::{Request, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout_at};

use super::connect::{lacks, shortage};
use super::wire::{RequestBody, Stream, Wire};
use super::{Answer, Budget, CallError, MAX_ANSWER_BYTES, NoBody};
use crate::platform::clock::monotonic;
use crate::platform::errors::Described;

/// The maximum size of a response head, and so of one read.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The maximum number of headers in a response, which is what most servers and proxies allow.
const MAX_HEADERS: usize = 100;

/// An open connection to an origin.
pub(super) struct Connection {
    sender: http1::SendRequest<RequestBody>,
    /// Moves bytes between hyper and the wire; `None` once the connection has ended.
    driver: Option<http1::Connection<TokioIo<Wire>, RequestBody>>,
    wire: Wire,
    opened: Instant,
    /// Whether a request was sent on it before the current one.
    used: bool,
}

/// Why an exchange got no response.
pub(super) enum Broken {
    /// No byte of the request was written, so it can be sent on another connection.
    Unsent(hyper::Error),
    /// The call has failed.
    Failed(CallError),
}

impl Connection {
    /// Starts HTTP/1.1 on a stream.
    pub(super) async fn open(stream: Stream) -> Result<Self, hyper::Error> {
        let wire = Wire::new(stream);
        let handshake = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(wire.clone()));
        let (sender, driver) = handshake.await?;
        Ok(Self { sender, driver: Some(driver), wire, opened: monotonic(), used: false })
    }

    /// When the connection was opened.
    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Whether a request can be sent on this idle connection: it is open, and the peer sent nothing since it was last used.
    pub(super) fn is_usable(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready() && self.wire.is_quiet()
    }

    /// Sends one request and reads its response. Afterwards [`Self::is_clean_after`] says whether the connection can be
    /// used again.
    pub(super) async fn exchange(
        &mut self,
        peer: &str,
        request: Request<Bytes>,
        budget: Budget,
    ) -> Result<Answer, Broken> {
        let request = request.map(|body| self.wire.start_request(body));
        let reused = std::mem::replace(&mut self.used, true);
        let mut response = pin!(self.sender.try_send_request(request));
        let response = match timeout_at(budget.deadline, self.drive(|cx| response.as_mut().poll(cx))).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.broken(peer, error.into_error())),
            Err(_) => return Err(Broken::Failed(self.timed_out(peer, budget))),
        };
        let (status, version) = (response.status(), response.version());
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Broken::Failed(CallError::unknown(format!(
                "{peer} answered HTTP 101, which was not requested"
            ))));
        }
        // On a connection that was used before, an early response may belong to an earlier request.
        if reused && self.wire.was_answered_early() {
            let text = format!("{peer} answered HTTP {} before it had the whole request", status.as_u16());
            return Err(Broken::Failed(CallError::unknown(text)));
        }
        let (head, body) = response.into_parts();
        let body = self.read(body, budget).await;
        Ok(Answer { status: status.as_u16(), version, headers: head.headers, body })
    }

    /// Whether the connection can be used again after the exchange that got this response. That is so if the response is
    /// complete, the peer keeps the connection open, the whole request was written before the response began, and nothing
    /// arrived after it.
    pub(super) async fn is_clean_after(&mut self, answer: &Answer) -> bool {
        let reusable = answer.body.is_ok()
            && answer.version == Version::HTTP_11
            && !wants_close(&answer.headers)
            && !(answer.headers.contains_key(TRANSFER_ENCODING) && answer.headers.contains_key(CONTENT_LENGTH))
            && !self.wire.was_answered_early();
        if reusable {
            // hyper checks for bytes after the end of the response.
            self.drive(|_| Poll::Ready(())).await;
        }
        reusable && self.is_usable()
    }

    async fn read(&mut self, mut body: Incoming, budget: Budget) -> Result<Bytes, NoBody> {
        let mut read = BytesMut::new();
        loop {
            match timeout_at(budget.deadline, self.drive(|cx| Pin::new(&mut body).poll_frame(cx))).await {
                Ok(None) => return Ok(read.freeze()),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        if read.len() + data.len() > MAX_ANSWER_BYTES {
                            return Err(NoBody::TooLong);
                        }
                        read.extend_from_slice(data);
                    }
                }
                Ok(Some(Err(source))) => return Err(NoBody::BrokeOff { read: read.len(), source }),
                Err(_) => return Err(NoBody::TooSlow(budget.timeout)),
            }
        }
    }

    /// Moves bytes until `poll` is ready.
    async fn drive<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        poll_fn(|cx| {
            if let Some(driver) = &mut self.driver
                && Pin::new(driver).poll(cx).is_ready()
            {
                // The connection has ended, and hyper reports that to `poll`.
                self.driver = None;
            }
            poll(cx)
        })
        .await
    }

    fn timed_out(&self, peer: &str, budget: Budget) -> CallError {
        match self.wire.has_written() {
            true => CallError::unknown(format!("timed out: no complete answer within {:?}", budget.timeout)),
            false => CallError::not_sent(format!("timed out while sending to the {peer}")),
        }
    }

    fn broken(&self, peer: &str, error: hyper::Error) -> Broken {
        if !self.wire.has_written() {
            let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            return match io.and_then(shortage) {
                Some(what) => Broken::Failed(lacks(format!("cannot write to the {peer}: {what}"), error)),
                None => Broken::Unsent(error),
            };
        }
        let what = match error.is_parse() {
            true => format!("{peer}'s answer is not HTTP"),
            false => "connection lost after sending".to_owned(),
        };
        Broken::Failed(CallError::unknown(Described::new(what, error)))
    }
}

/// Whether a `Connection` header says that the peer closes the connection.
fn wants_close(headers: &HeaderMap) -> bool {
    let options = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}
