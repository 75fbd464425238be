//! Asks a controller for a connection, with whatever private data, and prints its answer: one line.
//!
//! `cargo run -p nvmf-rdma --features ibv --example request -- ADDRESS:PORT READS [NUMBER...]`: how many
//! READs of the controller's this side answers at a time, then the fields of the private data,
//! RECFMT, QID, HRQSIZE, HSQSIZE and CNTLID. Five make a record of 32 bytes; fewer are all there is.
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use nvmf_core::time::Instant;
use nvmf_core::wire::cm::{CmRej, CmRep};
use nvmf_rdma::cm::{Cm, Event, PrivateData, Setup, Terms};
use nvmf_rdma::ibv::{self, Device, IbvCm, OpenError};
use nvmf_rdma::verbs::Verbs;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The fields of a record, and its bytes.
const FIELDS: usize = 5;
const RECORD: usize = 32;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((address, reads, private_data)) = parse(&arguments) else {
        eprintln!("usage: request ADDRESS:PORT READS [RECFMT [QID [HRQSIZE [HSQSIZE [CNTLID]]]]]");
        return ExitCode::FAILURE;
    };
    match ask(address, reads, &private_data) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("request: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<(SocketAddr, u8, Vec<u8>)> {
    let [address, reads, fields @ ..] = arguments else {
        return None;
    };
    let mut private_data = Vec::new();
    for field in fields {
        private_data.extend(field.parse::<u16>().ok()?.to_le_bytes());
    }
    if fields.len() == FIELDS {
        private_data.resize(RECORD, 0);
    }
    let address = address.parse().ok()?;
    (fields.len() <= FIELDS).then_some((address, reads.parse().ok()?, private_data))
}

fn ask(address: SocketAddr, reads: u8, private_data: &[u8]) -> Result<String, OpenError> {
    let config = ibv::Config {
        shared_receives: 0,
        completions: 64,
        completion_vector: 0,
    };
    let (mut verbs, mut cm) = ibv::open(Device::towards(address, None)?, &config)?;
    let setup = Setup {
        tag: 0,
        sends: 16,
        receives: 4,
    };
    let terms = Terms {
        initiator_depth: 0,
        responder_resources: reads,
        private_data: PrivateData::new(private_data),
    };
    let qp = match cm.connect(&mut verbs, address, setup, terms) {
        Ok(qp) => qp,
        Err(error) => return Ok(format!("no attempt: {error}")),
    };
    let answer = match event(&mut cm) {
        Some(Event::Established { terms, .. }) => {
            let rep = CmRep::parse(terms.private_data.bytes());
            let answer =
                rep.map_or_else(|| "accepted, without a word".into(), |rep| rep.to_string());
            cm.disconnect(&mut verbs, qp);
            while event(&mut cm).is_some_and(|event| !matches!(event, Event::Disconnected { .. })) {
            }
            answer
        }
        Some(Event::Rejected { private_data, .. }) => {
            let rej = CmRej::parse(private_data.bytes());
            rej.map_or_else(|| "rejected, without a word".into(), |rej| rej.to_string())
        }
        Some(event) => format!("{event:?}"),
        None => "no answer".into(),
    };
    while verbs.poll(Instant::ZERO).is_some() {}
    cm.destroy(&mut verbs, qp);
    Ok(answer)
}

fn event(cm: &mut IbvCm) -> Option<Event<ibv::Request, ibv::Qp>> {
    let begun = Clock::now();
    while begun.elapsed() < TIMEOUT {
        if let Some(event) = cm.poll(Instant::ZERO) {
            return Some(event);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}
