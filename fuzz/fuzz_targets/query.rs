//! Lets libFuzzer choose query strings.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::query(data));
