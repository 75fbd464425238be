//! Arbitrary bytes from a host, in arbitrary pieces.
//!
//! However a stream is cut, the controller's output and its reason to close
//! are those of the stream in one piece; what it sends is well-formed; and it
//! keeps nothing once the connection is gone.
use std::time::Duration;

use nvmf_core::target::queue_pair::Notice;
use nvmf_core::tcp::connection::CloseReason;
use nvmf_core::tcp::target::Config;

use crate::bytes::{self, CC_ENABLE, Dressing, SUBNQN};
use crate::crc::crc32c;
use crate::host::{Direction, Host};
use crate::rig::{Delivery, Rig};
use crate::target::Heap;

/// The first byte of the input, a bit each.
mod setup {
    /// The host's ICReq was answered before the stream begins.
    pub(super) const INITIALIZED: u8 = 0x01;
    /// And an admin queue was connected and enabled.
    pub(super) const ADMIN: u8 = 0x02;
    /// And this is an I/O queue of it.
    pub(super) const IO: u8 = 0x04;
    /// With header digests.
    pub(super) const HEADER_DIGEST: u8 = 0x08;
    /// With data digests.
    pub(super) const DATA_DIGEST: u8 = 0x10;
    /// The stream's header digests are put right.
    pub(super) const REPAIR: u8 = 0x20;
    /// Data of the host is aligned to 8 bytes, of the controller to 16.
    pub(super) const ALIGNED: u8 = 0x40;
    /// What the controller has to say is read after each PDU, not at the end.
    pub(super) const INTERLEAVED: u8 = 0x80;
}

/// The largest input worth running.
const MAX_INPUT: usize = 1 << 16;

/// Runs the input: bits of `setup`, the length of pieces (0's based), the stream.
///
/// # Panics
/// When an invariant does not hold.
pub fn pdu_rx(input: &[u8]) {
    let [setup, pieces, stream @ ..] = input else {
        return;
    };
    if stream.len() > MAX_INPUT {
        return;
    }
    let mut stream = stream.to_vec();
    if setup & setup::REPAIR != 0 && setup & setup::HEADER_DIGEST != 0 {
        repair(&mut stream);
    }
    let size = usize::from(*pieces) + 1;
    let whole = run(*setup, &stream, Delivery::Whole);
    for delivery in [
        Delivery::Pieces(size),
        Delivery::InPlace(size),
        Delivery::Pieces(1),
    ] {
        let other = run(*setup, &stream, delivery);
        assert_eq!(whole, other, "{delivery:?}");
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    output: Vec<u8>,
    closing: Option<CloseReason>,
    must_close: bool,
    notices: Vec<Notice>,
    memory: Vec<u8>,
}

fn run(setup: u8, stream: &[u8], delivery: Delivery) -> Outcome {
    let mut rig = Rig::<Heap>::new();
    let config = Config {
        cpda: if setup & setup::ALIGNED != 0 { 1 } else { 0 },
        maxh2cdata: 4096,
        max_c2hdata: 3000,
        max_r2t: 5000,
        ..Config::default()
    };
    let (at, mut host) = prepare(&mut rig, &config, setup, stream);
    let mut output = Vec::new();
    if setup & setup::INTERLEAVED != 0 {
        for pdu in pdus(stream) {
            rig.input(at, pdu, delivery);
            output.extend(rig.output(at));
        }
    } else {
        rig.input(at, stream, delivery);
        output.extend(rig.output(at));
    }
    if let Err(fault) = host.receive_blindly(&output) {
        panic!("{fault}");
    }
    assert!(!host.mid_pdu(), "an incomplete PDU was sent");
    let outcome = Outcome {
        output,
        closing: rig.closing(at),
        must_close: rig.must_close(at),
        notices: rig.notices(at).to_vec(),
        memory: rig.target.memory(1).to_vec(),
    };
    assert_eq!(
        host.terminated.is_some(),
        matches!(outcome.closing, Some(CloseReason::Fatal(_))),
        "a fault is told, and nothing else is: {:?}",
        outcome.closing
    );
    finish(rig, at);
    outcome
}

/// The connection whose bytes the stream is, and its host.
fn prepare(rig: &mut Rig<Heap>, config: &Config, setup: u8, stream: &[u8]) -> (usize, Host) {
    let hpda = if setup & setup::ALIGNED != 0 { 3 } else { 0 };
    let digests = (setup & (setup::HEADER_DIGEST | setup::DATA_DIGEST)) >> 3;
    let mut at = rig.accept(config);
    if setup & (setup::INITIALIZED | setup::ADMIN | setup::IO) == 0 {
        // The stream's own ICReq, if that is what it begins with.
        let hpda = stream.get(10).copied().unwrap_or(0).min(31);
        return (at, Host::new(hpda));
    }
    let mut host = Host::new(hpda);
    initialize(rig, at, &mut host, hpda, digests);
    if setup & (setup::ADMIN | setup::IO) != 0 {
        connect(rig, at, &mut host, 0, 0xFFFF);
        let cid = host.free_cid();
        let enable = host.submit(
            bytes::property_set(cid, 0x14, CC_ENABLE),
            Direction::None,
            &[],
        );
        exchange(rig, at, &mut host, &enable);
    }
    if setup & setup::IO != 0 {
        let cntlid = host.queue.map_or(0, |queue| queue.cntlid);
        at = rig.accept(config);
        host = Host::new(hpda);
        initialize(rig, at, &mut host, hpda, digests);
        connect(rig, at, &mut host, 1, cntlid);
    }
    (at, host)
}

fn initialize(rig: &mut Rig<Heap>, at: usize, host: &mut Host, hpda: u8, digests: u8) {
    exchange(rig, at, host, &bytes::ic_req(hpda, digests));
    let dressing = Dressing {
        header_digest: digests & 1 != 0,
        data_digest: digests & 2 != 0,
        ..host.dressing
    };
    assert_eq!(host.dressing, dressing);
}

fn connect(rig: &mut Rig<Heap>, at: usize, host: &mut Host, qid: u16, cntlid: u16) {
    let cid = host.free_cid();
    let connect = host.submit(
        bytes::connect(cid, qid, 15, 0),
        Direction::FromHost,
        &bytes::connect_data(cntlid, SUBNQN),
    );
    exchange(rig, at, host, &connect);
    assert!(host.queue.is_some(), "not connected");
}

fn exchange(rig: &mut Rig<Heap>, at: usize, host: &mut Host, bytes: &[u8]) {
    rig.input(at, bytes, Delivery::Whole);
    let output = rig.output(at);
    if let Err(fault) = host.receive(&output) {
        panic!("{fault}");
    }
}

/// Whatever happened, the connection ends, and leaves nothing.
fn finish(mut rig: Rig<Heap>, at: usize) {
    let terminated = matches!(rig.closing(at), Some(CloseReason::Fatal(_)));
    rig.advance(Duration::from_secs(31));
    assert!(
        !terminated || !rig.is_open(at),
        "30 s after a TermReq the connection is closed"
    );
    for at in 0..=at {
        rig.close(at);
        assert!(rig.is_drained(at));
    }
    assert_eq!(rig.target.buffers_taken(), 0, "buffers are kept");
    assert_eq!(rig.target.controllers(), 0, "controllers are kept");
}

/// The stream cut at the ends of its PDUs, as far as PLEN can be believed.
fn pdus(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut pdus = Vec::new();
    while !stream.is_empty() {
        let (pdu, rest) = stream.split_at(plen(stream).min(stream.len()));
        pdus.push(pdu);
        stream = rest;
    }
    pdus
}

fn plen(pdu: &[u8]) -> usize {
    let plen = pdu.get(4..8).map_or(u32::MAX, |plen| {
        u32::from_le_bytes([plen[0], plen[1], plen[2], plen[3]])
    });
    usize::try_from(plen.max(8)).unwrap_or(usize::MAX)
}

/// Puts right each header digest that a mutation broke.
fn repair(stream: &mut [u8]) {
    let mut from = 0;
    while from + 8 <= stream.len() {
        let pdu = &mut stream[from..];
        let header_len = usize::from(pdu[2]);
        if pdu[1] & bytes::flags::HDGST != 0 && pdu.len() >= header_len + 4 {
            let digest = crc32c(&pdu[..header_len]).to_le_bytes();
            pdu[header_len..][..4].copy_from_slice(&digest);
        }
        from = from.saturating_add(plen(pdu));
    }
}
