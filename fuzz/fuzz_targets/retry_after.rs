//! Lets libFuzzer choose values of `Retry-After` and `Date`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::retry_after(data));
