//! Requests and their replies.
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use crate::client::{
    Client, FAST_ZERO, FLUSH, FUA, NO_HOLE, READ, Reply, TRIM, WRITE, WRITE_ZEROES,
};
use crate::common::Target;
use crate::common::data::noise;
use crate::server::Export;

const MIB: u32 = 1 << 20;
const SIZE: u64 = 64 << 20;

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start_with_file(dir.path(), &[]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut client = Client::ready(&export.path);
    // From a block to all that a request may have, which is many commands.
    let mut written = vec![0; SIZE as usize];
    for (seed, (offset, len)) in [
        (0, 512),
        (512, 4096),
        (5120, 131_072),
        (1_000_448, 3 * MIB + 512),
        (30 << 20, 32 * MIB),
        (SIZE - 512, 512),
    ]
    .into_iter()
    .enumerate()
    {
        let data = noise(seed as u64, len as usize);
        let flags = if seed % 2 == 0 { FUA } else { 0 };
        assert_eq!(client.write(flags, offset, &data), Reply::Done);
        assert!(client.read(offset, len) == data, "{offset} {len}");
        written[offset as usize..][..len as usize].copy_from_slice(&data);
    }
    assert_eq!(client.call(FLUSH, 0, (0, 0)), Reply::Done);
    for (command, flags, offset, len) in [
        (WRITE_ZEROES, 0, 1024, 2048),
        (WRITE_ZEROES, FUA | NO_HOLE, 8192, 65_536),
        (WRITE_ZEROES, FAST_ZERO, 2 << 20, MIB),
        (WRITE_ZEROES, 0, 31 << 20, 33 * MIB),
        (TRIM, FUA, 20_480, 4096),
    ] {
        assert_eq!(client.call(command, flags, (offset, len)), Reply::Done);
        // What was trimmed may read as anything, but as zeroes from this target.
        written[offset as usize..][..len as usize].fill(0);
    }
    assert_eq!(client.call(FLUSH, FUA, (0, 0)), Reply::Done);
    for offset in (0..SIZE).step_by(16 << 20) {
        let expected = &written[offset as usize..][..16 << 20];
        assert!(
            client.read(offset, 16 * MIB) == expected,
            "from {offset} on"
        );
    }
    // And so it is in the file.
    let file = std::fs::read(dir.path().join("namespace")).expect("the target's file");
    assert!(file == written);
    export.stop();
}

#[test]
fn holes_are_made_where_they_may() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start_with_file(dir.path(), &[]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut client = Client::ready(&export.path);
    let allocated = || {
        let metadata = dir.path().join("namespace").metadata();
        metadata.expect("the target's file").blocks() * 512
    };
    for (command, flags, hole) in [
        (WRITE_ZEROES, NO_HOLE, false),
        (WRITE_ZEROES, 0, true),
        (WRITE_ZEROES, FAST_ZERO, true),
        (TRIM, 0, true),
    ] {
        let data = noise(1, 8 << 20);
        assert_eq!(client.write(FUA, 0, &data), Reply::Done);
        let before = allocated();
        assert!(before >= 8 << 20);
        assert_eq!(client.call(command, flags, (0, 8 * MIB)), Reply::Done);
        assert_eq!(client.call(FLUSH, 0, (0, 0)), Reply::Done);
        assert_eq!(allocated() < before, hole, "{command}, flags {flags}");
        assert!(client.read(0, 8 * MIB) == vec![0; 8 << 20]);
    }
    export.stop();
}

#[test]
fn what_is_refused_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "64M,bs=4096"]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut client = Client::ready(&export.path);
    let data = noise(1, 4096);
    assert_eq!(client.write(0, 0, &data), Reply::Done);
    for (command, flags, range, errno, why) in [
        (READ, 0, (512, 4096), 22, "multiples of 4096 bytes"),
        (READ, 0, (0, 512), 22, "multiples of 4096 bytes"),
        (READ, 0, (0, 0), 22, "length not 0"),
        (READ, 0, (SIZE, 4096), 22, "beyond the end"),
        (READ, 0, (0, 33 * MIB), 75, "33554432 bytes at most"),
        (READ, NO_HOLE, (0, 4096), 22, "flag"),
        (TRIM, 0, (SIZE - 4096, 8192), 22, "beyond the end"),
        (WRITE_ZEROES, 0, (SIZE - 4096, 8192), 28, "beyond the end"),
        (WRITE_ZEROES, FAST_ZERO | NO_HOLE, (0, 4096), 95, "faster"),
        (FLUSH, 0, (0, 4096), 22, "no length"),
        (5, 0, (0, 4096), 22, "unknown"),
        (7, 0, (0, 4096), 22, "unknown"),
        (0xFFFF, 0, (0, 4096), 22, "unknown"),
    ] {
        match client.call(command, flags, range) {
            Reply::Error(found, message) => {
                assert_eq!(found, errno, "{command} {range:?}: {message}");
                assert!(message.contains(why), "{command} {range:?}: {message}");
            }
            other => panic!("{command} {range:?}: {other:?}"),
        }
    }
    // The data of a write that is refused are no requests.
    for (flags, offset, len, errno) in [
        (0, SIZE, 4096, 28),
        (0, 512, 4096, 22),
        (NO_HOLE, 0, 4096, 22),
        (0, SIZE - 4096, 8192, 28),
        (0, 0, 513, 22),
    ] {
        match client.write(flags, offset, &vec![0x25; len]) {
            Reply::Error(found, _) => assert_eq!(found, errno),
            other => panic!("{offset} {len}: {other:?}"),
        }
    }
    assert_eq!(client.read(0, 4096), data);
    export.stop();

    let export = Export::start(&target, dir.path(), &["--read-only"]);
    let mut client = Client::ready(&export.path);
    for command in [WRITE_ZEROES, TRIM] {
        let reply = client.call(command, 0, (0, 4096));
        assert!(matches!(reply, Reply::Error(1, _)), "{reply:?}");
    }
    let reply = client.write(0, 0, &[0; 4096]);
    assert!(matches!(reply, Reply::Error(1, _)), "{reply:?}");
    assert_eq!(client.call(FLUSH, 0, (0, 0)), Reply::Done);
    assert_eq!(client.read(0, 4096), data);
    export.stop();
}

#[test]
fn many_at_a_time_on_two_connections() {
    // Not so many that a client has to read replies before it can ask on.
    const EACH: u64 = 100;
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start_with_file(dir.path(), &[]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut clients = [Client::ready(&export.path), Client::ready(&export.path)];
    let place = |client: usize, number: u64| (client as u64 * EACH + number) * 8192;
    let content = |client: usize, number: u64| noise(client as u64 * EACH + number, 8192);
    for (client, connection) in clients.iter_mut().enumerate() {
        for number in 0..EACH {
            let range = (place(client, number), 8192);
            connection.request(WRITE, 0, number, range);
            connection.send(&content(client, number));
        }
    }
    for connection in &mut clients {
        let mut replies: Vec<(u64, Reply)> = (0..EACH).map(|_| connection.reply()).collect();
        replies.sort_by_key(|(cookie, _)| *cookie);
        assert!(
            replies
                .into_iter()
                .eq((0..EACH).map(|number| (number, Reply::Done)))
        );
    }
    // A flush of one is a flush of the other, and each sees what the other wrote.
    assert_eq!(clients[0].call(FLUSH, 0, (0, 0)), Reply::Done);
    for (client, connection) in clients.iter_mut().enumerate() {
        for number in 0..EACH {
            let range = (place(1 - client, number), 8192);
            connection.request(READ, 0, number, range);
        }
        let mut replies: HashMap<u64, Reply> = (0..EACH).map(|_| connection.reply()).collect();
        for number in 0..EACH {
            let expected = Reply::Data(content(1 - client, number));
            assert!(replies.remove(&number) == Some(expected), "{number}");
        }
    }
    export.stop();
}
