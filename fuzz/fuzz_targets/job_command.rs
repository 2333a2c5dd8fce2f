//! Lets libFuzzer choose bodies of `POST /v1/jobs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::job_command(data));
