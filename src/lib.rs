//! Submission Manager: durable submissions to HTTP gateways.
//!
//! The map, along the way of a submission:
//!
//! - it comes in by [`http`] (jobs of tenants: [`jobs`], inbound submissions: [`inbox`], operators' pages:
//!   [`console`]), under a contract of the
//!   [`registry`], from whom [`identity`] knows;
//! - it is kept by [`store`], and waiting requests hear of changes through [`notices`];
//! - what becomes of it is decided by [`core`], which is pure;
//! - it is driven by the actors [`leader`], [`scheduler`], [`executor`] and [`retention`], wired
//!   together in [`engine`], kept alive by [`supervise`], allowed to act by [`trust`];
//! - it leaves by [`gateway`], and its outcome is told by [`webhooks`], both over [`outgoing`].
//!
//! Around that: [`app`] is the service as a whole, [`cli`] the command line, [`config`] its
//! settings ([`variables`] those that registry files name, [`fields`] how JSON is read with all its faults), [`clock`] the only place that reads a clock, [`descriptors`] the limit of open files, [`metrics`], [`logging`] and [`spans`] what is
//! seen from outside, [`bench`] what it is driven and measured by. `ARCHITECTURE.md` tells the same as a story.

pub mod app;
pub mod bench;
pub mod cli;
pub mod clock;
pub mod config;
pub mod console;
pub mod core;
pub mod descriptors;
pub mod engine;
pub mod executor;
pub mod fields;
pub mod gateway;
pub mod http;
pub mod identity;
pub mod inbox;
pub mod jobs;
pub mod leader;
pub mod logging;
pub mod metrics;
pub mod notices;
pub mod outgoing;
pub mod registry;
pub mod retention;
pub mod scheduler;
pub mod spans;
pub mod store;
pub mod supervise;
pub mod trust;
pub mod variables;
pub mod webhooks;
