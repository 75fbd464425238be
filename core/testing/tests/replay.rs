//! Runs the fuzz targets' bodies without a fuzzer: over the corpora that the
//! fuzzer found, and over inputs from a seeded generator.
use std::fs;
use std::path::{Path, PathBuf};

use nvmf_testing::fuzz;
use nvmf_testing::random::Random;

type Body = fn(&[u8]);

#[test]
fn pdu_rx() {
    replay("pdu_rx", fuzz::pdu_rx);
    mutate("pdu_rx", fuzz::pdu_rx, 2000);
}

#[test]
fn target_operations() {
    replay("target_operations", fuzz::operations);
    mutate("target_operations", fuzz::operations, 2000);
    generate(fuzz::operations, 2000);
}

#[test]
fn host_operations() {
    replay("host_operations", fuzz::host_operations);
    mutate("host_operations", fuzz::host_operations, 2000);
    generate(fuzz::host_operations, 2000);
}

#[test]
fn rdma_operations() {
    replay("rdma_operations", fuzz::rdma_operations);
    mutate("rdma_operations", fuzz::rdma_operations, 500);
    generate(fuzz::rdma_operations, 500);
}

#[test]
fn codecs() {
    replay("codecs", fuzz::codecs);
    generate(fuzz::codecs, 20_000);
}

/// Every file of the target's corpus.
fn corpus(target: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries =
        fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} is gone");
    files
}

fn replay(target: &str, body: Body) {
    for file in corpus(target) {
        let input = fs::read(&file).unwrap();
        let _named = OnPanic(|| format!("in {}", file.display()));
        body(&input);
    }
}

/// Inputs of the corpus with a few bytes changed, or cut and joined.
fn mutate(target: &str, body: Body, runs: u32) {
    let inputs: Vec<_> = corpus(target)
        .iter()
        .map(|file| fs::read(file).unwrap())
        .collect();
    let mut random = Random(0x5EED);
    for _ in 0..runs {
        let mut input = inputs[random.below(inputs.len())].clone();
        if random.below(4) == 0 {
            let other = &inputs[random.below(inputs.len())];
            input.truncate(random.below(input.len() + 1));
            input.extend(&other[random.below(other.len() + 1)..]);
        }
        for _ in 0..random.below(5) {
            let len = input.len();
            if let Some(byte) = input.get_mut(random.below(len.max(1))) {
                *byte = random.byte();
            }
        }
        run(body, &input);
    }
}

/// Inputs without a model.
fn generate(body: Body, runs: u32) {
    let mut random = Random(0xF00D);
    for _ in 0..runs {
        let len = random.below(2048);
        let input: Vec<u8> = (0..len).map(|_| random.byte()).collect();
        run(body, &input);
    }
}

fn run(body: Body, input: &[u8]) {
    let _named = OnPanic(|| format!("input: {input:02x?}"));
    body(input);
}

/// Says which input it was.
struct OnPanic<F: Fn() -> String>(F);

impl<F: Fn() -> String> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0());
        }
    }
}
