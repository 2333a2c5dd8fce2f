//! Serves one connection until it ends, its deadline passes or it has to make room for another.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until};

use super::{Closed, Connection};
use crate::platform::clock::monotonic;

/// Serves a connection within its deadlines. The future that does so is in the [`Connection`], so that it can be dropped,
/// with all its buffers, from outside of its task. Dropping it closes the socket.
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

    fn keep_waker(&self, cx: &Context<'_>) {
        let mut kept = self.connection.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *kept = Some(cx.waker().clone());
        }
    }
}

/// The connection and the future that serves it refer to each other; this ends that.
impl Drop for Bounded {
    fn drop(&mut self) {
        self.connection.serving.take();
    }
}

impl Future for Bounded {
    /// Why the server closed it, unless it ended by itself.
    type Output = Option<Closed>;

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
            // A request may have begun since it was asked to make room; then it is served first.
            if self.connection.replaced.get() && !self.connection.is_handling() {
                return Poll::Ready(Some(Closed::Replaced));
            }
            let (deadline, why) = self.connection.deadline();
            // Deadlines mostly move away. Then the timer fires early and is set again here, instead of at each request.
            if deadline < self.timer.deadline() {
                self.timer.as_mut().reset(deadline);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if monotonic() >= deadline {
                return Poll::Ready(Some(why));
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}
