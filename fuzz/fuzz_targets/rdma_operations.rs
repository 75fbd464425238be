//! The body, and what must hold, is in nvmf-testing.
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| nvmf_testing::fuzz::rdma_operations(input));
