//! Lets libFuzzer choose registries of clients of the inbox.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::registry_inbox_clients(data));
