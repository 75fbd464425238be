//! Connections that are cut, at every byte.
use nvmf_testing::ends::Way;
use nvmf_testing::pair::How;
use nvmf_testing::rig::Delivery;
use nvmf_testing::scenarios::{ADMIN, IO, cuts};

use crate::session::ends;

#[test]
fn at_every_byte() {
    let how = How {
        to_target: Delivery::InPlace(50),
        to_host: Delivery::InPlace(50),
        ..How::PLAIN
    };
    for digests in [false, true] {
        for link in [ADMIN, IO] {
            for way in [Way::ToTarget, Way::ToHost] {
                let (written, read) = cuts(|| ends(digests, how), link, way);
                if link == IO {
                    let told = way == Way::ToTarget;
                    assert!(read > 0 && (told || written > 0), "{written}, {read}");
                }
            }
        }
    }
}
