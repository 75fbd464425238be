//! Both ends in one thread, the host's machines against the target's, in virtual time.
mod cuts;
mod faults;
mod session;
mod time;
mod transfer;

use nvmf_core::tcp::{host, target};
use nvmf_testing::crc::continue_crc32c;

/// The host's and the target's transport, with both digests or without.
fn configs(digests: bool) -> (host::Config, target::Config) {
    let host = host::Config {
        header_digest: digests,
        data_digest: digests,
        crc32c: continue_crc32c,
        ..host::Config::default()
    };
    let target = target::Config {
        crc32c: continue_crc32c,
        ..target::Config::default()
    };
    (host, target)
}
