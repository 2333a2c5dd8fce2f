//! Lets libFuzzer choose registries of API clients.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::registry_api_clients(data));
