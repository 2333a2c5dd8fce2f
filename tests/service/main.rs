//! Tests of the whole service: real processes, real HTTP, real databases, and a stand-in gateway that records the requests
//! that reach it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod access;
mod api;
mod attack;
mod audit;
mod backup;
mod batch;
mod browser;
mod cancel;
mod cli;
mod clients;
mod connections;
mod console;
mod contract;
mod copy;
mod crash;
mod dashboard;
mod deployment;
mod documents;
mod events;
mod fleet;
mod gateway;
mod hostile;
mod http_answers;
mod inbox;
mod init;
mod jobs;
mod json_logs;
mod lease;
mod memory;
mod oidc;
mod overload;
mod packaging;
mod permissions;
mod raw_server;
mod redrives;
mod secrets;
mod slow;
mod sqlserver;
mod sqlserver_token;
mod support;
mod targets;
mod tracing;
mod version;
mod webhooks;
