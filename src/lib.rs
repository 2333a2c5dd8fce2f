//! Submission Manager: durable submission of messages to HTTP gateways.
//!
//! A client submits an intent. The service stores it, calls the gateway of its target, retries as the target's contract
//! allows, and keeps every attempt. Any number of instances serve HTTP; one of them holds a lease in the store and executes.
//!
//! The folders, from the top layer to the bottom. A folder imports only folders below it; `tests/layers.rs` checks that.
//!
//! - [`cli`]: the commands of the binary.
//! - [`devtools`]: benchmark, stand-in gateways and webhook sink; never part of a production service.
//! - `simulation`: a fleet in one thread and in virtual time, with faults that a seed draws; only in tests.
//! - [`service`]: starts one instance out of everything below, and stops it gracefully.
//! - [`console`]: the operator's HTML pages under `/ui`.
//! - [`api`]: the REST API under `/v1`, one file or folder a resource.
//! - [`web`]: the HTTP server that API and console share: connections, limits, authentication, errors.
//! - [`engine`]: the actors that execute: leader, scheduler, executor, webhooks, inbox, retention.
//! - [`config`]: settings, registry files and the callers they name.
//! - [`gateway`]: one call of a gateway, and how its answer is read.
//! - [`store`]: the contract of a store, the store actor, and the SQLite and SQL Server stores.
//! - [`telemetry`]: metrics, logging and trace spans.
//! - [`http_client`]: the HTTP/1.1 client for gateways, webhooks, the trace collector and the provider of sign-ins.
//! - [`platform`]: clocks, file descriptors, supervision of actors, errors with their causes.
//! - [`domain`]: what an intent is and what becomes of it; pure functions and types.
//!
//! `ARCHITECTURE.md` explains how these work together.

pub mod api;
pub mod cli;
pub mod config;
pub mod console;
pub mod devtools;
pub mod domain;
pub mod engine;
pub mod gateway;
pub mod http_client;
pub mod platform;
pub mod service;
#[cfg(test)]
mod simulation;
pub mod store;
pub mod telemetry;
pub mod web;
