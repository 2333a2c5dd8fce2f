//! Middleware that reports to the [`Connection`] when a request starts, when its body was read to the end, and when the
//! response is ready.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::MessageBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use actix_web::{Error, HttpMessage};
use futures_util::Stream;

use super::Connection;
use crate::platform::clock::monotonic;

/// Reports the phases of each request to its connection. It must be the outermost middleware, so that it covers the whole
/// time that a request takes.
pub(in crate::web) async fn track_requests(
    mut request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let Some(connection) = request.conn_data::<Rc<Connection>>().cloned() else {
        return next.call(request).await;
    };
    let body = match request.take_payload() {
        Payload::None => None,
        inner => Some(inner),
    };
    connection.request_started(body.is_some(), monotonic());
    if let Some(inner) = body {
        let payload = Box::pin(TrackedBody { inner, connection: Rc::clone(&connection) });
        request.set_payload(Payload::Stream { payload });
    }
    let response = next.call(request).await;
    connection.responded(monotonic());
    response
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
