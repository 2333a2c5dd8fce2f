//! The thread on which an actor runs.

use actix::{Actor, Addr, Arbiter, ArbiterHandle, Context};

/// A thread that runs actors and tasks. Clones name the same thread.
#[derive(Clone)]
pub struct ActorThread(Kind);

#[derive(Clone)]
enum Kind {
    Arbiter(ArbiterHandle),
    /// The thread of the caller, and the set of local tasks that the caller belongs to.
    #[cfg(test)]
    Caller,
}

impl ActorThread {
    /// Starts a thread.
    pub fn start_own() -> Self {
        Self(Kind::Arbiter(Arbiter::new().handle()))
    }

    /// The thread that starts an actor. A test can pause the clock there, and can run several instances side by side,
    /// each in a set of local tasks of its own.
    #[cfg(test)]
    pub fn caller() -> Self {
        Self(Kind::Caller)
    }

    /// Makes an actor on this thread and starts it.
    pub fn start<A: Actor<Context = Context<A>>>(
        &self,
        make: impl FnOnce(&mut Context<A>) -> A + Send + 'static,
    ) -> Addr<A> {
        match &self.0 {
            Kind::Arbiter(arbiter) => A::start_in_arbiter(arbiter, make),
            #[cfg(test)]
            Kind::Caller => A::create(make),
        }
    }

    /// Runs a task on this thread. Returns false if the thread has ended.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        match &self.0 {
            Kind::Arbiter(arbiter) => arbiter.spawn(task),
            #[cfg(test)]
            Kind::Caller => {
                actix::spawn(task);
                true
            }
        }
    }
}
