//! Tools for development and evaluation: the benchmark, and the stand-in gateways and webhook sink that the demo and the
//! tests use.
//!
//! `submission-manager serve` uses nothing from this folder.

pub mod bench;
pub mod stand_in_gateway;
pub mod webhook_sink;
