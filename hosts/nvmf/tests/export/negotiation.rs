//! What comes before the first request.
use crate::client::{Client, DISC, GO, READ, STRUCTURED_REPLY, WRITE};
use crate::common::Target;
use crate::common::data::noise;
use crate::server::Export;

const ABORT: u32 = 2;
const LIST: u32 = 3;
const INFO: u32 = 6;

const ACK: (u32, Vec<u8>) = (1, Vec::new());
const SIZE: [u8; 8] = [0, 0, 0, 0, 0, 0x80, 0, 0];

fn info(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((kinds.len() as u16).to_be_bytes());
    data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

#[test]
fn every_way_to_the_first_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &[]);
    let uri = format!("ready nbd+unix:///?socket={}", export.path.display());
    assert_eq!(export.ready, uri);
    let written = noise(1, 4096);

    // Old: by name, simple replies, and zeroes for those who do not ask to be spared them.
    for (flags, zeroes, name) in [(1, 124, ""), (3, 0, &*target.nqn)] {
        let mut client = Client::greeted(&export.path);
        client.send(&[0, 0, 0, flags]);
        client.send(b"IHAVEOPT\0\0\0\x01\0\0\0");
        client.send(&[name.len() as u8]);
        client.send(name.as_bytes());
        assert_eq!(client.take(8), SIZE);
        assert_eq!(client.take(2), [0x09, 0x6D]);
        assert_eq!(client.take(zeroes), vec![0; zeroes]);
        client.request(WRITE, 0, 0x1122_3344_5566_7788, (8192, 4096));
        client.send(&written);
        client.request(READ, 0, 0xFFEE_DDCC_BBAA_9988, (1, 4096));
        client.request(READ, 0, 0, (8192, 4096));
        let mut replies: Vec<Vec<u8>> = Vec::new();
        for _ in 0..3 {
            let mut reply = client.take(16);
            if reply[8..] == [0; 8] {
                reply.extend(client.take(4096));
            }
            replies.push(reply);
        }
        replies.sort();
        let mut read = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        read.extend(&written);
        let wrote = b"\x67\x44\x66\x98\0\0\0\0\x11\x22\x33\x44\x55\x66\x77\x88".to_vec();
        let invalid = b"\x67\x44\x66\x98\0\0\0\x16\xFF\xEE\xDD\xCC\xBB\xAA\x99\x88".to_vec();
        // The read may have been faster than the write, once.
        assert_eq!(replies[1..], [wrote, invalid]);
        assert_eq!(replies[0][..16], read[..16]);
        client.request(READ, 0, 0, (8192, 4096));
        assert_eq!(client.take(16 + 4096), read);
        client.request(DISC, 0, 0, (0, 0));
        client.closed();
    }

    // New: with a look around first.
    let mut client = Client::connect(&export.path);
    let listed = client.option(LIST, b"");
    assert_eq!(listed.len(), 2);
    let mut name = (target.nqn.len() as u32).to_be_bytes().to_vec();
    name.extend(target.nqn.as_bytes());
    assert!(listed[0].0 == 2 && listed[0].1.starts_with(&name));
    assert_eq!(listed[1], ACK);
    for (option, error) in [
        (5, "TLS"),
        (9, "metadata"),
        (10, "metadata"),
        (11, "unknown"),
    ] {
        let replies = client.option(option, b"");
        assert_eq!(replies.len(), 1);
        let why = String::from_utf8_lossy(&replies[0].1);
        assert!(replies[0].0 == 0x8000_0001 && why.contains(error), "{why}");
    }
    let unknown = client.option(GO, &info("other", &[]));
    let why = format!("there is no export `other`; there is `{}`", target.nqn);
    assert_eq!(unknown, [(0x8000_0006, why.into_bytes())]);
    assert_eq!(client.option(STRUCTURED_REPLY, b""), [ACK]);
    let sizes = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0".to_vec();
    let mut about = vec![0, 0];
    about.extend(SIZE);
    about.extend([0x09, 0xED]);
    for option in [INFO, GO] {
        let replies = client.option(option, &info(&target.nqn, &[3]));
        let expected = [(3, about.clone()), (3, sizes.clone()), ACK];
        assert_eq!(replies, expected);
    }
    assert_eq!(client.read(8192, 4096), written);

    let mut client = Client::connect(&export.path);
    assert_eq!(client.option(ABORT, b""), [ACK]);
    client.closed();
    export.stop();
}

#[test]
fn a_name_and_no_writing() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M,bs=4096"]);
    let export = Export::start(&target, dir.path(), &["--name", "disk", "--read-only"]);
    let mut client = Client::connect(&export.path);
    let replies = client.option(GO, &info(&target.nqn, &[]));
    assert_eq!(replies[0].0, 0x8000_0006);
    let replies = client.option(GO, &info("disk", &[3]));
    assert_eq!(replies[0].1[10..], [0x09, 0x6F]);
    assert_eq!(replies[1].1[2..6], [0, 0, 0x10, 0]);
    export.stop();
    // What the controller does not let anybody write.
    let image = dir.path().join("image");
    std::fs::write(&image, [0; 8192]).expect("a file");
    let target = Target::start(&["--file", &format!("{},ro", image.display())]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut client = Client::connect(&export.path);
    let replies = client.option(GO, &info("", &[]));
    assert_eq!(replies[0].1[10..], [0x09, 0x6F]);
    export.stop();
}

#[test]
fn nonsense_ends_the_connection_and_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = Target::start(&["--ram", "8M"]);
    let export = Export::start(&target, dir.path(), &[]);
    let mut witness = Client::ready(&export.path);
    let nonsense: [&[u8]; 7] = [
        // Client flags that there are not.
        &[0, 0, 0, 4],
        &[0x80, 0, 0, 3],
        // An option of another protocol.
        b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n",
        // Data that do not end.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\x12\x34\x00\x00\x40\x01",
        // An export that there is not, asked for in the old way.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01x",
        b"\0\0\0\x03IHAVEOPU\0\0\0\x02\0\0\0\0",
    ];
    for bytes in nonsense {
        let mut client = Client::greeted(&export.path);
        client.send(bytes);
        client.closed();
        assert_eq!(witness.read(0, 512), [0; 512]);
    }
    // Gone at each point of the way.
    let whole = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    for len in 0..whole.len() {
        Client::greeted(&export.path).send(&whole[..len]);
    }
    assert_eq!(witness.read(0, 512), [0; 512]);
    export.stop();
}
