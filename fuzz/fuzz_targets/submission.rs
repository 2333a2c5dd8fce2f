//! Lets libFuzzer choose bodies of `POST /v1/intents`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::submission(data));
