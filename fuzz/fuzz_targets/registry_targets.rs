//! Lets libFuzzer choose registries of targets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::registry_targets(data));
