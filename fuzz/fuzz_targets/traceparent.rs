//! Lets libFuzzer choose values of `traceparent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::traceparent(data));
