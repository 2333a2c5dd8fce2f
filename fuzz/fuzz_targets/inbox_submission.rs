//! Lets libFuzzer choose bodies of `POST /v1/inbox/submissions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::inbox_submission(data));
