//! Serves one connection until it ends, its deadline passes or it has to make room for another.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until};

use super::{Closed, Connection};
use crate::platform::clock::monotonic;

/// A future that serves a connection, with the deadlines of that connection. Dropping it closes the socket.
pub(in crate::web) struct Bounded<F> {
    serving: Pin<Box<F>>,
    connection: Rc<Connection>,
    timer: Pin<Box<Sleep>>,
}

impl<F> Bounded<F> {
    pub(in crate::web) fn new(serving: F, connection: Rc<Connection>) -> Self {
        let timer = Box::pin(sleep_until(connection.deadline().0));
        Self { serving: Box::pin(serving), connection, timer }
    }

    fn keep_waker(&self, cx: &Context<'_>) {
        let mut kept = self.connection.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *kept = Some(cx.waker().clone());
        }
    }
}

impl<F: Future> Future for Bounded<F> {
    /// Why the server closed it, unless it ended by itself.
    type Output = Option<Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.serving.as_mut().poll(cx).is_ready() {
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
