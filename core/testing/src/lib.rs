//! What the tests and fuzz targets of `nvmf-core` share.
//!
//! | module | what it is |
//! |---|---|
//! | [`bytes`] | a host's PDUs and commands, by hand |
//! | [`reader`] | a strict reader of what a controller sends |
//! | [`host`] | a host that keeps the rules, and checks that the controller does |
//! | [`target`] | catalog, devices and buffers in memory |
//! | [`rig`] | connections of that target, in virtual time |
//! | [`ends`] | hosts' queues against a target, over whatever transport: what scenarios are written against |
//! | [`mod@scenarios`] | scenarios of both ends, whatever the transport |
//! | [`pair`] | that over TCP: pieces, delays, cuts, a tap |
//! | [`over_rdma`] | that over RDMA: a fabric in memory |
//! | [`association`] | a controller's machine at the host's end of an admin queue |
//! | [`disk`] | what a namespace may hold, whatever order its commands were done in |
//! | [`sequence`] | random operations of a host, checked against that |
//! | [`random`] | numbers that a seed chooses |
//! | [`fuzz`] | what must hold for any input: the bodies of the fuzz targets |

pub mod association;
pub mod bytes;
pub mod crc;
pub mod disk;
pub mod ends;
pub mod fuzz;
pub mod host;
pub mod over_rdma;
mod over_tcp;
pub mod pair;
pub mod random;
pub mod reader;
pub mod rig;
pub mod scenarios;
pub mod sequence;
pub mod target;

/// A length as PDUs have it.
fn bytes_len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("tests are not that large")
}
