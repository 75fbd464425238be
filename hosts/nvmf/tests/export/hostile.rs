//! Clients that mean no good, beside one that does.
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::client::{Client, PATIENCE, READ, Reply, WRITE};
use crate::common::Target;
use crate::common::data::noise;
use crate::server::Export;

const MIB: u32 = 1 << 20;

#[test]
fn what_is_no_request_ends_the_connection_and_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut witness = Client::ready(&export.path);
    let kept = noise(1, 8 << 20);
    assert_eq!(witness.write(0, 0, &kept), Reply::Done);

    let mut client = Client::ready(&export.path);
    client.send(&[0xFF; 28]);
    client.closed();
    let mut client = Client::ready(&export.path);
    client.send(b"IHAVEOPT\0\0\0\x02\0\0\0\0IHAVEOPT\0\0\0\0");
    client.closed();
    // More data than it was told.
    for len in [32 * MIB + 1, u32::MAX] {
        let mut client = Client::ready(&export.path);
        client.request(WRITE, 0, 0, (0, len));
        client.closed();
    }
    // Gone in the middle of a header, and of the data.
    let mut client = Client::ready(&export.path);
    client.send(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 0]);
    drop(client);
    for sent in [0, 1, 511, 512, MIB as usize - 1] {
        let mut client = Client::ready(&export.path);
        client.request(WRITE, 0, 0, (0, MIB));
        client.send(&vec![0; sent]);
    }
    // Gone with many replies on their way.
    let mut client = Client::ready(&export.path);
    for cookie in 0..200 {
        client.request(READ, 0, cookie, (0, MIB));
    }
    drop(client);
    // A write of which a part is missing has changed nothing.
    assert!(witness.read(0, 8 * MIB) == kept);
    let log = export.stop();
    for part in [
        "wrong magic number",
        "a write of 4294967295 bytes",
        "in the middle of a message",
    ] {
        assert!(log.contains(part), "{part} is missing in:\n{log}");
    }
}

#[test]
fn who_reads_no_replies_waits_alone() {
    const REQUESTS: u64 = 300;
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut witness = Client::ready(&export.path);
    let written = noise(1, MIB as usize);
    assert_eq!(witness.write(0, 0, &written), Reply::Done);
    let before = export.rss_kib();
    let mut lazy = Client::ready(&export.path);
    for cookie in 0..REQUESTS {
        lazy.request(READ, 0, cookie, (0, MIB));
    }
    for _ in 0..200 {
        assert!(witness.read(0, MIB) == written);
    }
    let grown = export.rss_kib().saturating_sub(before);
    assert!(
        grown < 100 << 10,
        "{grown} KiB for replies that nobody reads"
    );
    // It gets them all, once it reads.
    let mut cookies: Vec<u64> = Vec::new();
    for _ in 0..REQUESTS {
        let (cookie, reply) = lazy.reply();
        cookies.push(cookie);
        assert!(reply == Reply::Data(written.clone()));
    }
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..REQUESTS));
    export.stop();
}

#[test]
fn clients_have_a_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut clients: Vec<Client> = (0..64).map(|_| Client::ready(&export.path)).collect();
    let stream = UnixStream::connect(&export.path).expect("it listens");
    Client { stream }.closed();
    for client in &mut clients {
        assert_eq!(client.read(512, 512), [0; 512]);
    }
    // Somebody goes, somebody comes.
    clients.pop();
    let deadline = Instant::now() + PATIENCE;
    let stream = loop {
        let mut stream = UnixStream::connect(&export.path).expect("it listens");
        if stream.read(&mut [0]).is_ok_and(|read| read == 1) {
            break stream;
        }
        assert!(Instant::now() < deadline, "the place stays taken");
    };
    let mut client = Client { stream };
    assert_eq!(client.take(17), b"BDMAGICIHAVEOPT\0\x03");
    export.stop();
}
