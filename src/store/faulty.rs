//! A store for tests that fails, delays or refuses calls on request.
//!
//! Faults are injected by the name of a call. Calls have their names in the contract. A commit is named `finish`, `start` or
//! `submit` by the first of these kinds of writes that it contains.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{BatchResults, Store, StoreError, StoreFailure, StoreFuture, WriteBatch, WriteStore};

/// What to inject into a call.
#[derive(Clone, Copy)]
pub enum Fault {
    /// The call fails and has no effect.
    Fail,
    /// The call takes effect, and its caller gets an error.
    FailAfter,
    /// The call takes effect, and its answer takes this long.
    SlowAnswer(Duration),
}

/// A store of the tests that makes every call at another store, in its own way. The calls of the contract are generated from
/// the table of all calls.
pub trait Intercept: Send + Sync + 'static {
    /// Makes a call, or does something else.
    fn intercept<T: Send + 'static, E: StoreFailure>(
        &self,
        call: &'static str,
        run: impl FnOnce(&dyn Store) -> Call<T, E> + Send + 'static,
    ) -> Call<T, E>;
}

/// A call of a store that is under way.
pub type Call<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The faults to inject, for each call in the order of its next uses.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<HashMap<&'static str, Vec<Fault>>>>);

impl Faults {
    /// Injects a fault into the next `times` uses of a call.
    pub fn add(&self, call: &'static str, times: usize, fault: Fault) {
        self.0.lock().unwrap().entry(call).or_default().extend(std::iter::repeat_n(fault, times));
    }

    /// Returns how many faults of a call have not been injected yet.
    pub fn left(&self, call: &'static str) -> usize {
        self.0.lock().unwrap().get(call).map_or(0, Vec::len)
    }

    /// Removes all faults of a call that have not been injected yet.
    pub fn clear(&self, call: &'static str) {
        self.0.lock().unwrap().remove(call);
    }

    fn take(&self, call: &'static str) -> Option<Fault> {
        self.0.lock().unwrap().get_mut(call)?.pop()
    }
}

/// A store that injects faults into the calls of another store.
pub struct FaultyStore {
    pub inner: Arc<dyn Store>,
    pub faults: Faults,
}

impl Intercept for FaultyStore {
    /// Makes the call, with the next fault that was added for it.
    fn intercept<T: Send + 'static, E: StoreFailure>(
        &self,
        call: &'static str,
        run: impl FnOnce(&dyn Store) -> Call<T, E> + Send + 'static,
    ) -> Call<T, E> {
        let unavailable = |why: &str| Err(StoreError::unavailable(why).into());
        match self.faults.take(call) {
            None => run(&*self.inner),
            Some(Fault::Fail) => Box::pin(async move { unavailable("told to fail") }),
            Some(Fault::FailAfter) => {
                let running = run(&*self.inner);
                Box::pin(async move {
                    running.await?;
                    unavailable("told to fail afterwards")
                })
            }
            Some(Fault::SlowAnswer(duration)) => {
                let running = run(&*self.inner);
                Box::pin(async move {
                    let answer = running.await;
                    tokio::time::timeout(duration, std::future::pending::<()>()).await.unwrap_err();
                    answer
                })
            }
        }
    }
}

impl WriteStore for FaultyStore {
    fn commit(&self, mut batch: WriteBatch) -> StoreFuture<BatchResults> {
        let starts = batch.fenced.as_mut().map(|writes| &mut writes.starts).filter(|starts| !starts.is_empty());
        if let Some(starts) = starts
            && self.faults.take("start alone").is_some()
        {
            let refused = std::mem::take(starts).len();
            let rest = self.inner.commit(batch);
            return Box::pin(async move {
                let mut results = rest.await?;
                if let Ok(fenced) = &mut results.fenced {
                    let refusal = || Err(StoreError::unexpected("told to refuse"));
                    fenced.starts = (0..refused).map(|_| refusal()).collect();
                }
                Ok(results)
            });
        }
        let finishes = batch.fenced.as_mut().map(|writes| &mut writes.finishes).filter(|finishes| !finishes.is_empty());
        if let Some(finishes) = finishes
            && self.faults.take("finish alone").is_some()
        {
            let refused = std::mem::take(finishes).len();
            let rest = self.inner.commit(batch);
            return Box::pin(async move {
                let mut results = rest.await?;
                if let Ok(fenced) = &mut results.fenced {
                    let refusal = || Err(StoreError::unexpected("told to refuse"));
                    fenced.finishes = (0..refused).map(|_| refusal()).collect();
                }
                Ok(results)
            });
        }
        let call = match &batch.fenced {
            Some(writes) if !writes.finishes.is_empty() => "finish",
            Some(writes) if !writes.starts.is_empty() => "start",
            _ => "submit",
        };
        self.intercept(call, |store| store.commit(batch))
    }

    fn budget(&self) -> Duration {
        self.inner.budget()
    }

    fn max_submits(&self) -> usize {
        self.inner.max_submits()
    }
}
