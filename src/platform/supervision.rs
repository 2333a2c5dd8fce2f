//! Keeps an actor alive: when it dies, by a panic or otherwise, a new one is made.
//!
//! actix's own supervisor does not restart an actor that panicked, so death is noticed by a token
//! that the actor owns: it is dropped with the actor, however that ends.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use actix::{Actor, Addr};
use tokio::sync::oneshot;

/// Owned by an actor; its end tells whoever holds the [`Death`] that the actor is gone.
pub struct Alive {
    _told_when_dropped: oneshot::Sender<()>,
}

/// Resolves when the actor that owns the other half is gone.
pub struct Death(oneshot::Receiver<()>);

pub fn alive() -> (Alive, Death) {
    let (sender, receiver) = oneshot::channel();
    (Alive { _told_when_dropped: sender }, Death(receiver))
}

impl Death {
    pub async fn comes(self) {
        let _always_an_error_when_it_resolves = self.0.await;
    }
}

/// The address of a supervised actor, which may be another one each time.
pub struct Supervised<A: Actor>(Arc<RwLock<Addr<A>>>);

impl<A: Actor> Clone for Supervised<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Actor> Supervised<A> {
    /// Starts an actor with `start` and starts another whenever it dies. Must be called on an
    /// arbiter; supervision ends with that arbiter.
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

    pub fn address(&self) -> Addr<A> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Long enough not to spin when an actor dies at once each time, short enough not to be missed.
const RESTART_DELAY: Duration = Duration::from_millis(100);

/// Makes an actor panic, to show that the service survives it.
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
