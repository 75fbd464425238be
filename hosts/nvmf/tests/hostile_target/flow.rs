//! Bytes that come slowly, and that are taken slowly.
use std::time::Duration;

use crate::bytes::pattern;
use crate::fake::{Fake, Setup};
use crate::run::{read, success, writes};

#[test]
fn entry_48_a_small_window() {
    // 64 writes of 1 MiB; the window is as small as the kernel makes it.
    let fake = Fake::right(Setup {
        receive_buffer: Some(4096),
        ..Setup::default()
    });
    let data = pattern(48, 64 << 20);
    writes(&fake, &data, &[]);
    assert!(fake.stored(data.len()) == data);
}

#[test]
fn entry_85_a_byte_at_a_time() {
    let data = pattern(85, 4096);
    for (pause, more) in [
        (Duration::ZERO, &[][..]),
        (Duration::ZERO, &["--hdgst", "--ddgst"]),
        (Duration::from_micros(50), &["--ddgst"]),
    ] {
        let fake = Fake::right(Setup {
            digests: true,
            dribble: Some(pause),
            ..Setup::default()
        });
        writes(&fake, &data, more);
        assert!(fake.stored(data.len()) == data);
        assert!(success(&read(&fake.url(), "4096", more)) == data);
    }
}
