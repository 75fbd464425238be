//! Hostile hosts against the real `nvmf target`.
//!
//! Each test replays, over a socket and with bytes made by hand, something that broke an NVMe/TCP
//! implementation before (its CVE, commit or issue is cited), states what the right answer is (FES
//! and FEI of the C2HTermReq, the status of the completion, or a closed connection), and then proves
//! that the target still serves: a fresh host reads back what it wrote.
//!
//! The host here shares no code with the product: its CRC32C, PDU builders and checks are its own.
//! Where a report says "repeat 100,000 times", the test runs what fits in a second or two and says so.

#[path = "../common/mod.rs"]
mod common;

mod bytes;
mod conn;
mod host;
mod pdu;

mod alarms;
mod churn;
mod commands;
mod connect;
mod data;
mod digest;
mod discovery;
mod flow;
mod garbage;
mod header;
mod icreq;
mod pieces;
mod pressure;
mod property;
mod sgl;
mod term_req;

/// Block size of the namespace, bytes.
pub(crate) const BLOCK: u32 = 512;
