//! A future that serves one connection until it ends, its deadline passes, or a new connection replaces it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until};

use super::{CloseReason, Connection};
use crate::platform::clock::monotonic;

/// Serves a connection within its deadlines. The future that serves it is stored in the [`Connection`], so that it can be
/// dropped, with all its buffers, from outside its task. Dropping that future closes the socket.
pub(in crate::web) struct Bounded {
    connection: Rc<Connection>,
    timer: Pin<Box<Sleep>>,
}

impl Bounded {
    pub(in crate::web) fn new(serving: impl Future<Output = ()> + 'static, connection: Rc<Connection>) -> Self {
        *connection.serving.borrow_mut() = Some(Box::pin(serving));
        let timer = Box::pin(sleep_until(connection.deadline().0));
        Self { connection, timer }
    }

    /// Stores the waker, so that [`Connection::replace`] can wake this future.
    fn keep_waker(&self, cx: &Context<'_>) {
        let mut kept = self.connection.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *kept = Some(cx.waker().clone());
        }
    }
}

/// The connection and the future that serves it refer to each other. Dropping the future breaks this cycle, so that both
/// are freed.
impl Drop for Bounded {
    fn drop(&mut self) {
        self.connection.serving.take();
    }
}

impl Future for Bounded {
    /// Why the server closed the connection, or `None` if the connection ended normally.
    type Output = Option<CloseReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = match &mut *self.connection.serving.borrow_mut() {
            Some(serving) => serving.as_mut().poll(cx).is_ready(),
            None => false,
        };
        if ended {
            return Poll::Ready(None);
        }
        self.keep_waker(cx);
        loop {
            // A request may have started after the connection was chosen to be replaced; that request is served first.
            if self.connection.replaced.get() && !self.connection.is_handling() {
                return Poll::Ready(Some(CloseReason::Replaced));
            }
            let (deadline, reason) = self.connection.deadline();
            // Most requests move the deadline to a later time. Instead of resetting the timer at each request, let it fire
            // early and reset it here.
            if deadline < self.timer.deadline() {
                self.timer.as_mut().reset(deadline);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if monotonic() >= deadline {
                return Poll::Ready(Some(reason));
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}
