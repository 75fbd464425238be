//! Connects, reads a block and disconnects, many times over; prints, as JSON, what that
//! took and what this process holds before and after. It should hold no more.
//!
//! ```text
//! cargo run --release --example connects -- nvme+tcp://127.0.0.1:4420/NQN?nsid=1 1000
//! ```
use std::error::Error;
use std::fs;
use std::time::Instant;

use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::host::{Controller, Options, Url};

/// Rounds before memory is looked at: allocators and caches fill at first.
const WARM_UP: u32 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(rounds)) = (args.next(), args.next()) else {
        return Err("usage: connects URL ROUNDS".into());
    };
    let (url, rounds) = (url.parse::<Url>()?, rounds.parse::<u32>()?);
    let options = Options::default();
    for _ in 0..WARM_UP {
        round(&url, &options)?;
    }
    let before = held()?;
    let begin = Instant::now();
    for _ in 0..rounds {
        round(&url, &options)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{{\"rounds\":{rounds},\"seconds\":{seconds:.3},\"before\":{before},\"after\":{}}}",
        held()?
    );
    Ok(())
}

fn round(url: &Url, options: &Options) -> Result<(), Box<dyn Error>> {
    let controller = Controller::connect(url, options)?;
    let mut namespace = controller.namespace(url.nsid.unwrap_or(Nsid(1)))?;
    let mut block = vec![0; namespace.block_size() as usize];
    Ok(namespace.read(0, &mut block)?)
}

/// Resident memory in KiB, open files and threads of this process.
fn held() -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name| -> Result<u64, Box<dyn Error>> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        Ok(word.ok_or("no such field")?.parse()?)
    };
    Ok(format!(
        "{{\"resident_kib\":{},\"files\":{},\"threads\":{}}}",
        field("VmRSS:")?,
        fs::read_dir("/proc/self/fd")?.count(),
        field("Threads:")?
    ))
}
