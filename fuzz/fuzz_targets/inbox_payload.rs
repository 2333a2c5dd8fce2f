//! Lets libFuzzer choose payloads that the inbox makes contacts and messages of.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::inbox_payload(data));
