//! Random sequences of operations, by their seeds. `NVMF_SEED` says which one is
//! to be run alone, and to say what it does.
use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nvmf_testing::ends::Ends;
use nvmf_testing::over_rdma::RdmaEnds;
use nvmf_testing::pair::Pair;
use nvmf_testing::sequence::{Tally, sequence};

const SEEDS: u64 = 10_000;

/// Any sequence does to the namespace what it says.
fn all_seeds<E: Ends>() -> Option<Tally> {
    if let Ok(seed) = env::var("NVMF_SEED") {
        let seed = seed.parse().expect("NVMF_SEED is a number");
        let tally = sequence::<E>(seed, true);
        eprintln!("{tally:?}");
        return None;
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
                    let tally = sequence::<E>(seed, false);
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
    assert!(all.deepest > 10, "{all:?}");
    Some(all)
}

#[test]
fn over_tcp() {
    if let Some(all) = all_seeds::<Pair>() {
        assert!(all.corrupt > 100, "{all:?}");
    }
}

#[test]
fn over_rdma() {
    if let Some(all) = all_seeds::<RdmaEnds>() {
        assert_eq!(all.corrupt, 0, "RDMA has no digests: {all:?}");
    }
}

/// Says how to see it again.
struct OnPanic(u64);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            let seed = self.0;
            eprintln!(
                "again: NVMF_SEED={seed} cargo test -p nvmf-testing --test sequences TRANSPORT"
            );
        }
    }
}
