//! `nvmf export` as a process, against `nvmf target`, with a client of raw bytes.

#[allow(dead_code, reason = "other tests need the rest")]
#[path = "../common/mod.rs"]
mod common;

mod client;
mod hostile;
mod lifetime;
mod negotiation;
mod recovery;
mod requests;
mod server;
