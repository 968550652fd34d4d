#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| meshport_fuzz::vip(data));
