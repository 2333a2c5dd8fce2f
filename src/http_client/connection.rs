//! One HTTP/1.1 connection and one exchange at a time on it.
//!
//! hyper parses and writes: it skips interim responses (1xx) and reports bytes that belong to no response.
//! The connection is driven by the call that uses it and by nobody while it is idle, so nothing is ever
//! read for a request that was not sent yet.

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

use super::connect::shortage;
use super::wire::{RequestBody, Stream, Wire};
use super::{Answer, Budget, CallError, MAX_ANSWER_BYTES, NoBody, shown};
use crate::platform::clock::monotonic;

/// Longest head of a response, and with it the largest read.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header lines of a response: what most servers and proxies allow.
const MAX_HEADERS: usize = 100;

pub struct Connection {
    sender: http1::SendRequest<RequestBody>,
    /// What moves bytes; gone once the connection has ended.
    driver: Option<http1::Connection<TokioIo<Wire>, RequestBody>>,
    wire: Wire,
    opened: Instant,
    /// Whether it has carried a request before the present one.
    used: bool,
}

/// Why an exchange gave no answer, and whether another connection may be tried.
pub enum Broken {
    /// No byte of the request was written.
    Unsent(String),
    Failed(CallError),
}

impl Connection {
    pub async fn open(stream: Stream) -> Result<Self, hyper::Error> {
        let wire = Wire::new(stream);
        let handshake = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(wire.clone()));
        let (sender, driver) = handshake.await?;
        Ok(Self { sender, driver: Some(driver), wire, opened: monotonic(), used: false })
    }

    pub fn opened(&self) -> Instant {
        self.opened
    }

    /// Whether an idle connection may carry a request: nothing has come over it since it was last used.
    pub fn is_usable(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready() && self.wire.is_quiet()
    }

    /// Sends one request and reads its answer. Afterwards [`Self::is_clean_after`] tells whether the
    /// connection may be used again.
    pub async fn exchange(&mut self, peer: &str, request: Request<Bytes>, budget: Budget) -> Result<Answer, Broken> {
        let request = request.map(|body| self.wire.begin(body));
        let reused = std::mem::replace(&mut self.used, true);
        let mut response = pin!(self.sender.try_send_request(request));
        let response = match timeout_at(budget.deadline, self.drive(|cx| response.as_mut().poll(cx))).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.broken(peer, error.error())),
            Err(_) => return Err(Broken::Failed(self.timed_out(peer, budget))),
        };
        let (status, version) = (response.status(), response.version());
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Broken::Failed(CallError::Unknown(format!(
                "{peer} answered HTTP 101, which nobody asked for"
            ))));
        }
        // On a connection that was used before it may belong to something else.
        if reused && self.wire.was_answered_early() {
            let text = format!("{peer} answered HTTP {} before it had the whole request", status.as_u16());
            return Err(Broken::Failed(CallError::Unknown(text)));
        }
        let (head, body) = response.into_parts();
        let body = self.read(body, budget).await;
        Ok(Answer { status: status.as_u16(), version, headers: head.headers, body })
    }

    /// Whether the exchange that ended with this answer left nothing behind: the answer is complete, the peer
    /// keeps the connection, the whole request was written before it, and nothing came after it.
    pub async fn is_clean_after(&mut self, answer: &Answer) -> bool {
        let keeps = answer.body.is_ok()
            && answer.version == Version::HTTP_11
            && !wants_close(&answer.headers)
            && !(answer.headers.contains_key(TRANSFER_ENCODING) && answer.headers.contains_key(CONTENT_LENGTH))
            && !self.wire.was_answered_early();
        if keeps {
            // Lets hyper look for bytes after the end.
            self.drive(|_| Poll::Ready(())).await;
        }
        keeps && self.is_usable()
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
                Ok(Some(Err(error))) => {
                    return Err(NoBody::BrokeOff(format!(" after {} bytes: {}", read.len(), reason(&error))));
                }
                Err(_) => return Err(NoBody::TooSlow(budget.whole)),
            }
        }
    }

    /// Moves bytes until `wanted` is there.
    async fn drive<T>(&mut self, mut wanted: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        poll_fn(|cx| {
            if let Some(driver) = &mut self.driver
                && Pin::new(driver).poll(cx).is_ready()
            {
                // Whoever still waits for something of it is told so by its end.
                self.driver = None;
            }
            wanted(cx)
        })
        .await
    }

    fn timed_out(&self, peer: &str, budget: Budget) -> CallError {
        match self.wire.has_written() {
            true => CallError::Unknown(format!("timed out: no complete answer within {:?}", budget.whole)),
            false => CallError::NotSent(format!("timed out while sending to the {peer}")),
        }
    }

    fn broken(&self, peer: &str, error: &hyper::Error) -> Broken {
        let what = reason(error);
        if !self.wire.has_written() {
            let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            return match io.and_then(shortage) {
                Some(what) => Broken::Failed(CallError::LocalResource(format!("cannot write to the {peer}: {what}"))),
                None => Broken::Unsent(what),
            };
        }
        Broken::Failed(CallError::Unknown(match error.is_parse() {
            true => format!("{peer}'s answer is not HTTP: {what}"),
            false => format!("connection lost after sending: {what}"),
        }))
    }
}

/// Whether any header `Connection` says that this was the last answer.
fn wants_close(headers: &HeaderMap) -> bool {
    let options = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

/// What a connection ended with, on one line: the error and what caused it.
fn reason(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    shown(&text)
}
