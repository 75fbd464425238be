//! Random sequences of operations, by their seeds. `NVMF_SEED` says which one is
//! to be run alone, and to say what it does.
use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nvmf_testing::sequence::{Tally, sequence};

const SEEDS: u64 = 10_000;

#[test]
fn any_sequence_does_to_the_namespace_what_it_says() {
    if let Ok(seed) = env::var("NVMF_SEED") {
        let seed = seed.parse().expect("NVMF_SEED is a number");
        let tally = sequence(seed, true);
        eprintln!("{tally:?}");
        return;
    }
    let next = AtomicU64::new(0);
    let all = Mutex::new(Tally::default());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    let _named = OnPanic(seed);
                    let tally = sequence(seed, false);
                    let mut all = all.lock().expect("no other seed failed");
                    *all = all.and(tally);
                }
            });
        }
    });
    let all = all.into_inner().expect("no seed failed");
    println!("{SEEDS} seeds: {all:?}");
    // What seeds choose among is chosen.
    assert!(all.completed > 100_000 && all.in_doubt > 1000, "{all:?}");
    assert!(all.corrupt > 100 && all.deepest > 10, "{all:?}");
}

/// Says how to see it again.
struct OnPanic(u64);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            let seed = self.0;
            eprintln!("again: NVMF_SEED={seed} cargo test -p nvmf-testing --test sequences");
        }
    }
}
