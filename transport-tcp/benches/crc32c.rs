//! Prints how fast the CRC32C engines are, at the sizes that digests cover.
use std::hint::black_box;
use std::time::{Duration, Instant};

use nvmf_core::digest::{Crc32c, portable};
use nvmf_tcp::digest::crc32c;

fn main() {
    let bytes = vec![0xA5; 1 << 20];
    println!("{:>10} {:>16} {:>16}", "bytes", "std", "portable");
    for len in [24, 72, 512, 4096, 131_072, 1 << 20] {
        let [std, portable] =
            [crc32c as Crc32c, portable].map(|engine| nanoseconds(engine, &bytes[..len]));
        println!("{len:>10} {} {}", Figure(len, std), Figure(len, portable));
    }
}

/// What one digest of `bytes` takes: the best of 20 runs, for others use the machine too.
fn nanoseconds(engine: Crc32c, bytes: &[u8]) -> f64 {
    let run = |_| {
        let start = Instant::now();
        let mut calls = 0u32;
        while start.elapsed() < Duration::from_millis(10) {
            for _ in 0..16 {
                black_box(engine(0, black_box(bytes)));
            }
            calls += 16;
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    (0..20).map(run).fold(f64::INFINITY, f64::min)
}

struct Figure(usize, f64);

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(len, nanoseconds) = *self;
        if len < 512 {
            write!(f, "{nanoseconds:>13.1} ns")
        } else {
            write!(f, "{:>11.2} GB/s", len as f64 / nanoseconds)
        }
    }
}
