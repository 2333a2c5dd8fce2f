//! Middleware that reports to the [`Connection`] when a request starts, when its body was read to the end, and when the
//! response is ready. It also passes the response body to actix in small chunks.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use actix_web::{Error, HttpMessage};
use futures_util::Stream;

use super::{CHUNK_BYTES, Connection};
use crate::platform::clock::monotonic;

/// Reports the phases of each request to its connection. It must be the outermost middleware, so that it covers the whole
/// time that a request takes.
pub(in crate::web) async fn track_requests(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let Some(connection) = request.conn_data::<Rc<Connection>>().cloned() else {
        return Ok(next.call(request).await?.map_into_boxed_body());
    };
    let body = match request.take_payload() {
        Payload::None => None,
        inner => Some(inner),
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    connection.request_started(body.is_some().then_some(length), monotonic());
    if let Some(inner) = body {
        let payload = Box::pin(TrackedBody { inner, connection: Rc::clone(&connection) });
        request.set_payload(Payload::Stream { payload });
    }
    let response = next.call(request).await;
    connection.responded(monotonic());
    let chunked = |body: BoxBody| {
        match body.size() {
            BodySize::Sized(length) => connection.unsent.set(memory_of(length)),
            BodySize::Stream => connection.streaming(monotonic()),
            BodySize::None => {}
        }
        ChunkedBody { inner: body, rest: Bytes::new(), connection }
    };
    Ok(response?.map_into_boxed_body().map_body(|_, body| chunked(body).boxed()))
}

/// A response body in chunks of [`CHUNK_BYTES`]. actix copies each chunk into a buffer that it keeps. With whole bodies,
/// every response would be in memory twice, and every idle connection would keep up to 128 KiB.
struct ChunkedBody {
    inner: BoxBody,
    rest: Bytes,
    connection: Rc<Connection>,
}

impl MessageBody for ChunkedBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.inner.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_next(cx)) {
                Some(Ok(bytes)) => {
                    self.connection.unsent.set(memory_of(bytes.len() as u64));
                    self.rest = bytes;
                }
                end => {
                    self.connection.unsent.set(0);
                    return Poll::Ready(end);
                }
            }
        }
        let length = self.rest.len().min(CHUNK_BYTES);
        let chunk = self.rest.split_to(length);
        if self.rest.is_empty() {
            self.connection.unsent.set(0);
        }
        Poll::Ready(Some(Ok(chunk)))
    }
}

/// The most memory that a body of this length takes: a buffer that grows while JSON is written doubles its size each time.
/// All of it is in memory until the last byte is sent.
fn memory_of(length: u64) -> usize {
    usize::try_from(length).ok().and_then(usize::checked_next_power_of_two).unwrap_or(usize::MAX)
}

/// A stream has ended, or is not sent at all because the request was a HEAD.
impl Drop for ChunkedBody {
    fn drop(&mut self) {
        if matches!(self.inner.size(), BodySize::Stream) {
            self.connection.responded(monotonic());
        }
    }
}

/// A request body that reports to its connection when it was read to the end.
struct TrackedBody {
    inner: Payload,
    connection: Rc<Connection>,
}

impl Stream for TrackedBody {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = ready!(Pin::new(&mut self.inner).poll_next(cx));
        if chunk.is_none() {
            self.connection.body_read();
        }
        Poll::Ready(chunk)
    }
}
