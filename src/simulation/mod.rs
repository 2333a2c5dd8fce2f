//! Deterministic simulation of a fleet: several instances of the real engine over the real SQLite store, in virtual time, on
//! one thread, with faults that a seed draws.
//!
//! The same seed gives the same run, event by event. Clients, gateways, webhook receivers and operators are simulated; the
//! promises are checked from outside, at every call and every commit and at the end. `docs/reliability.md` says what the
//! simulation shows and what it does not.
//!
//! - [`plan`] draws what happens; [`fleet`] lets it happen; [`instance`] is one instance that can freeze and die.
//! - [`store`], [`gateway`] and [`receiver`] are the outside of an instance, where most faults strike.
//! - [`clients`] submit intents; [`activities`] has everything else that clients and operators do, each kind in a file of its
//!   own with its promises: [`cancels`], [`redrives`], [`jobs`], [`inbox`] and [`readers`].
//! - [`checks`], [`rows`] and [`end`] check the promises about intents.

mod activities;
mod campaign;
mod cancels;
mod checks;
mod clients;
mod end;
mod faults;
mod fleet;
mod gateway;
mod inbox;
mod instance;
mod jobs;
mod log;
mod mutated_store;
mod plan;
mod readers;
mod receiver;
mod redrives;
mod rows;
mod run;
mod shrink;
mod store;
mod targets;
mod tests;
mod world;
