//! Restarts an actor when it stops, whether by a panic or otherwise.
//!
//! The supervisor of actix does not restart an actor that panicked. Here, each actor owns an [`Alive`] token, which is
//! dropped together with the actor; that is how its [`Death`] is noticed.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use actix::{Actor, Addr};
use tokio::sync::oneshot;

/// A token that an actor owns. Dropping it, which happens when the actor stops, completes the [`Death`] that belongs to it.
pub struct Alive {
    _sender: oneshot::Sender<()>,
}

/// Waits for the end of the actor that owns the [`Alive`] token.
pub struct Death(oneshot::Receiver<()>);

/// Creates a token and the [`Death`] that belongs to it.
pub fn alive() -> (Alive, Death) {
    let (sender, receiver) = oneshot::channel();
    (Alive { _sender: sender }, Death(receiver))
}

impl Death {
    /// Completes when the actor has stopped.
    pub async fn comes(self) {
        // Nothing is ever sent. The receiver completes with an error when the sender is dropped.
        let _ignored = self.0.await;
    }
}

/// The address of a supervised actor. After a restart it is the address of the new actor.
pub struct Supervised<A: Actor>(Arc<RwLock<Addr<A>>>);

impl<A: Actor> Clone for Supervised<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Actor> Supervised<A> {
    /// Starts an actor with `start`, and starts it again whenever it stops. Call this on an arbiter; supervision ends when
    /// that arbiter stops.
    pub fn start(name: &'static str, start: impl Fn(Alive) -> Addr<A> + 'static) -> Self {
        let (token, mut death) = alive();
        let address = Arc::new(RwLock::new(start(token)));
        let supervised = Self(Arc::clone(&address));
        actix::spawn(async move {
            loop {
                death.comes().await;
                log::error!("actor_died actor={name} next=restart");
                tokio::time::sleep(RESTART_DELAY).await;
                let (token, next_death) = alive();
                *address.write().unwrap_or_else(PoisonError::into_inner) = start(token);
                death = next_death;
            }
        });
        supervised
    }

    /// The address of the actor that runs now.
    pub fn address(&self) -> Addr<A> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Limits the load if an actor fails again right after each start.
const RESTART_DELAY: Duration = Duration::from_millis(100);

/// Makes an actor panic, so that tests can show that the service survives it.
#[cfg(test)]
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Crash;

#[cfg(test)]
macro_rules! crash_on_request {
    ($actor:ty) => {
        impl actix::Handler<$crate::platform::supervision::Crash> for $actor {
            type Result = ();

            fn handle(&mut self, _: $crate::platform::supervision::Crash, _: &mut Self::Context) {
                panic!("crash on request");
            }
        }
    };
}
#[cfg(test)]
pub(crate) use crash_on_request;
