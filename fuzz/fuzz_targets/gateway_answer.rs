//! Lets libFuzzer choose what gateways answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::gateway_answer(data));
