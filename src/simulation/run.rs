//! Runs one seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use tokio::task::LocalSet;

use super::checks::Promise;
use super::faults::Fault;
use super::fleet::Fleet;
use super::plan::{Plan, Scope};
use super::world::World;
use crate::platform::{mutation, random};

/// What happened in one run.
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) scope: Scope,
    pub(super) hash: String,
    pub(super) log: String,
    pub(super) events: usize,
    /// How much virtual time passed.
    pub(super) simulated: Duration,
    pub(super) injected: BTreeMap<Fault, u64>,
    pub(super) checked: BTreeMap<Promise, u64>,
    pub(super) violation: Option<(Promise, String)>,
}

/// Runs a seed, or a part of it.
pub(super) fn run(seed: u64, scope: &Scope) -> Report {
    observe_panics();
    PANICS.with_borrow_mut(|panics| *panics = Some(Vec::new()));
    fastrand::seed(seed);
    random::use_seeded_ids(true);
    mutation::activate(scope.bug);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    if scope.on_server {
        runtime.enable_io();
    }
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let plan = Plan::draw(seed, scope);
    let local = LocalSet::new();
    let (world, _no_more_calls) = local.block_on(&runtime, async {
        let (world, server) = World::new(plan, scope.on_server).await;
        Fleet::run(&world).await;
        let stopped = match &server {
            Some(server) => Some(server.stop().await),
            None => None,
        };
        (world, stopped)
    });
    let simulated = runtime.block_on(async { world.elapsed() });
    runtime.block_on(async {
        let panics = PANICS.with_borrow_mut(Option::take).unwrap_or_default();
        world.check(Promise::NoPanic, panics.is_empty(), || format!("a task panicked: {panics:?}"));
    });
    drop(local);
    drop(runtime);
    mutation::activate(None);
    random::use_seeded_ids(false);
    let mut state = world.state();
    Report {
        seed,
        scope: scope.clone(),
        hash: state.log.hash(),
        log: state.log.text().to_owned(),
        events: state.log.events(),
        simulated,
        injected: std::mem::take(&mut state.injected),
        checked: std::mem::take(&mut state.checked),
        violation: state.violation.take(),
    }
}

thread_local! {
    /// The unexpected panics of the run of this thread, if it runs one.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Panics of a run are not printed. Those that are not part of the plan are remembered.
fn observe_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let planned = info.payload_as_str().is_some_and(|text| PLANNED.contains(&text));
            let remembered = PANICS.with_borrow_mut(|panics| {
                let Some(panics) = panics else { return false };
                if !planned {
                    panics.push(info.to_string());
                }
                true
            });
            if !remembered {
                print(info);
            }
        }));
    });
}

/// The texts of the panics that a run causes.
const PLANNED: [&str; 2] = ["crash on request", "told to panic"];
