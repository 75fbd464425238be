//! Connections that are cut, at every byte.
use nvmf_testing::ends::Way;
use nvmf_testing::pair::{How, Pair};
use nvmf_testing::rig::Delivery;

use crate::session::{ADMIN, IO, is_true, session};

/// A cut of one connection, one way, at each byte of a session: what the host was told
/// is true, and both ends are clean.
#[test]
fn at_every_byte() {
    for digests in [false, true] {
        for link in [ADMIN, IO] {
            for way in [Way::ToTarget, Way::ToHost] {
                let (written, read) = cuts(digests, link, way);
                if link == IO {
                    let told = way == Way::ToTarget;
                    assert!(read > 0 && (told || written > 0), "{written}, {read}");
                }
            }
        }
    }
}

/// How many of the cuts left a write done that the host was not told of, and how many
/// came between the write and the end of the read.
fn cuts(digests: bool, link: usize, way: Way) -> (usize, usize) {
    let mut whole = Pair::new();
    let truth = session(&mut whole, digests, How::PLAIN);
    assert!(truth.is_whole() && truth.ended.is_empty(), "{truth:?}");
    let length = whole.arrived(link, way);
    assert!(length > 128);
    let how = How {
        to_target: Delivery::InPlace(50),
        to_host: Delivery::InPlace(50),
        ..How::PLAIN
    };
    let (mut unheard, mut between) = (0, 0);
    for at in 0..length {
        let mut pair = Pair::new();
        pair.cut_next_at(link, way, at);
        let outcome = session(&mut pair, digests, how);
        let what = format!("digests {digests}, {way:?} of {link}, byte {at}");
        assert!(!outcome.is_whole() || link == ADMIN, "{what}");
        assert!(!outcome.ended.is_empty(), "{what}: nobody knows");
        assert_eq!(outcome.failed, [""; 0], "{what}");
        let stored = pair.rig.target.memory(1)[3 * 512] != 0;
        unheard += usize::from(stored && !outcome.written);
        between += usize::from(outcome.written && outcome.read.is_none());
        is_true(&mut pair, &outcome, &what);
    }
    (unheard, between)
}
