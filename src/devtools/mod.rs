//! Tools for developers and evaluation: the benchmark, the stand-in gateways and the webhook sink of the demo.
//!
//! `submission-manager serve` uses nothing of this folder.

pub mod bench;
pub mod stand_in_gateway;
pub mod webhook_sink;
