//! Work whose instructions `.ci/instructions` counts: a host and a target over a socket, and
//! each codec of PDUs.
//!
//! ```text
//! cargo run --release --example instructions -- NAME COUNT
//! ```
//! does COUNT times what NAME says, for callgrind to count. Without arguments it lists the names.
use std::error::Error;
use std::hint::black_box;
use std::time::Duration;

use nvmf::block::spec::Spec;
use nvmf::block::{self, Engines};
use nvmf_core::host::command;
use nvmf_core::tcp::rx::{Digests, End, Framer, Progress};
use nvmf_core::tcp::tx::{Dress, MAX_HEAD};
use nvmf_core::wire::cqe::Cqe;
use nvmf_core::wire::ids::{Cid, Nqn, Nsid};
use nvmf_core::wire::pdu::{CapsuleCmd, CapsuleResp, DataPdu, IcReq, PduType, R2t};
use nvmf_core::wire::sqe::IoOpcode;
use nvmf_core::wire::status::Status;
use nvmf_core::{DataBuffers, Place, SlotId};
use nvmf_tcp::digest::crc32c;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::host::{Controller, Options, Payload};
use nvmf_tcp::std::target::{Config, Target};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6e766d66-6465-4d6f-8000-000000000003";

/// Bytes of a command.
const LEN: usize = 4096;

/// Commands that are sent at once, and answered before the next are sent: so both ends see
/// the same batches in every run.
const BATCH: u64 = 32;

type Work = fn(u64) -> Result<(), Box<dyn Error>>;

const WORK: [(&str, Work); 18] = [
    ("nothing", |_| Ok(())),
    ("capsule-cmd-decode", |n| decode(n, &capsule_cmd())),
    ("capsule-cmd-encode", |n| encode(n, capsule_cmd, 0)),
    ("capsule-resp-decode", |n| decode(n, &capsule_resp())),
    ("capsule-resp-encode", |n| encode(n, capsule_resp, 0)),
    ("c2h-data-decode", |n| decode(n, &data(PduType::C2hData))),
    ("c2h-data-encode", |n| {
        encode(n, || data(PduType::C2hData), 16)
    }),
    ("h2c-data-decode", |n| decode(n, &data(PduType::H2cData))),
    ("h2c-data-encode", |n| {
        encode(n, || data(PduType::H2cData), 16)
    }),
    ("ic-req-decode", |n| decode(n, &IcReq::new())),
    ("ic-req-encode", |n| encode(n, IcReq::new, 0)),
    ("r2t-decode", |n| decode(n, &r2t())),
    ("r2t-encode", |n| encode(n, r2t, 0)),
    ("read", |n| transfer(n, IoOpcode::Read, LEN, false)),
    ("read-digests", |n| transfer(n, IoOpcode::Read, LEN, true)),
    ("write-digests", |n| transfer(n, IoOpcode::Write, LEN, true)),
    ("write-in-capsule", |n| {
        transfer(n, IoOpcode::Write, LEN, false)
    }),
    ("write-r2t", |n| transfer(n, IoOpcode::Write, 0, false)),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(count)) = (args.next(), args.next()) else {
        WORK.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let work = WORK
        .iter()
        .find(|work| work.0 == name)
        .ok_or("no such name")?;
    work.1(count.parse()?)
}

/// Commands of 4 KiB between a host and a target of RAM, `inline` bytes of data at most in a
/// capsule. The host is the first thread of the process, the target the busiest of the others.
fn transfer(
    count: u64,
    opcode: IoOpcode,
    inline: usize,
    digests: bool,
) -> Result<(), Box<dyn Error>> {
    let nqn: Nqn = NQN.parse()?;
    let mut subsystem = Subsystem::new(nqn.clone());
    let disk = Spec::parse_ram("1M")?;
    let engines = Engines::start(1)?;
    subsystem
        .namespaces
        .push(block::open(&disk, NQN, Nsid(1), &engines)?);
    let mut config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        subsystems: vec![subsystem],
        workers: Some(1),
        pin: false,
        // How often it polls in vain is up to the time that the host takes.
        spin: Duration::ZERO,
        ..Config::default()
    };
    config.limits.inline_data = u32::try_from(inline)?;
    let target = Target::bind(config)?;
    let url = format!("nvme+tcp://{}/{nqn}", target.local_addrs()[0]);
    let running = target.spawn()?;
    // What time brings is no part of a command.
    let options = Options {
        keep_alive: Duration::ZERO,
        header_digest: digests,
        data_digest: digests,
        ..Options::default()
    };
    let controller = Controller::connect(&url.parse()?, &options)?;
    let mut queue = controller.queue()?;
    let mut buffers: Vec<Buffer> = (0..BATCH).map(|_| Buffer::zeroed(LEN)).collect();
    let mut completions = Vec::new();
    for batch in 0..count.div_ceil(BATCH) {
        for (index, buffer) in (0..BATCH).zip(buffers.drain(..)) {
            let place = (batch * BATCH + index) % (1 << 8);
            let sqe = command::blocks(opcode, Nsid(1), place * 8, 8);
            let payload = match opcode {
                IoOpcode::Read => Payload::Read(buffer),
                _ => Payload::Write(buffer),
            };
            queue.enqueue(&sqe, payload, index)?;
        }
        queue.flush();
        while queue.outstanding() > 0 {
            queue.wait(Duration::from_secs(30))?;
            queue.poll(&mut completions)?;
        }
        for completion in completions.drain(..) {
            if completion.cqe.status() != Status::SUCCESS {
                return Err(completion.cqe.to_string().into());
            }
            buffers.extend(completion.buffer);
        }
    }
    drop(queue);
    drop(controller);
    running.stopper().stop();
    Ok(running.join()?)
}

/// From a header's fields to the bytes of its PDU's head.
fn encode<T: IntoBytes + Immutable>(
    count: u64,
    header: impl Fn() -> T,
    data_len: u32,
) -> Result<(), Box<dyn Error>> {
    let dress = Dress {
        digests: Digests::default(),
        pda: 0,
        crc32c,
    };
    let mut head = [0; MAX_HEAD];
    for _ in 0..count {
        black_box(dress.head(&mut head, &header(), black_box(data_len)));
        black_box(&head);
    }
    Ok(())
}

/// From a PDU's bytes to the fields of its header, and its data in its place.
fn decode<T: IntoBytes + FromBytes + KnownLayout + Immutable>(
    count: u64,
    header: &T,
) -> Result<(), Box<dyn Error>> {
    let mut pdu = header.as_bytes().to_vec();
    let mut framer = Framer::new(
        if pdu[0] & 1 == 0 {
            End::Controller
        } else {
            End::Host
        },
        crc32c,
    );
    // PDO says where data is, if there is any.
    if matches!(PduType::from(pdu[0]), PduType::C2hData | PduType::H2cData) {
        pdu[3] = 24;
        pdu[4] = 40;
        pdu.resize(40, 0);
    }
    let mut memory = Memory([0; 16]);
    for _ in 0..count {
        let mut rest = &black_box(&pdu)[..];
        while !rest.is_empty() {
            let (used, progress) = framer.push(rest, &mut memory).map_err(|f| f.to_string())?;
            rest = &rest[used..];
            if let Progress::Header(framed) = progress {
                black_box(framer.header_as::<T>());
                framer.data_to((framed.data_len > 0).then_some(Place {
                    slot: SlotId(0),
                    offset: 0,
                    len: framed.data_len,
                }));
            }
        }
    }
    black_box(&memory.0);
    Ok(())
}

fn capsule_cmd() -> CapsuleCmd {
    CapsuleCmd::new(command::blocks(
        IoOpcode::Read,
        Nsid(1),
        black_box(0x1234),
        8,
    ))
}

fn capsule_resp() -> CapsuleResp {
    CapsuleResp::new(Cqe::new(black_box(Cid(5)), Status::SUCCESS))
}

fn data(pdu_type: PduType) -> DataPdu {
    DataPdu::new(pdu_type, black_box(5), 7, 0, 16)
}

fn r2t() -> R2t {
    R2t::new(black_box(5), 7, 0, 4096)
}

/// What the data of a PDU goes to.
struct Memory([u8; 16]);

impl DataBuffers for Memory {
    fn reserve(&mut self, _: SlotId, _: u32) -> bool {
        true
    }

    fn place(&mut self, place: Place) -> &mut [u8] {
        let start = place.offset as usize;
        self.0
            .get_mut(start..start + place.len as usize)
            .unwrap_or_default()
    }
}
