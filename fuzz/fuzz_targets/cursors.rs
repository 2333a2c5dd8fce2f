//! Lets libFuzzer choose cursors, and what cursors are made from.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::cursors(data));
