//! Lets libFuzzer choose registries of management nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::registry_nodes(data));
