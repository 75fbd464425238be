//! A session whose data comes in several PDUs.
use nvmf_testing::pair::{How, Pair};

use crate::configs;

/// Ends whose transport has both digests or none, and moves data in pieces.
pub(crate) fn ends(digests: bool, how: How) -> Pair {
    let (host, mut target) = configs(digests);
    target.max_r2t = 600;
    target.max_c2hdata = 700;
    Pair::with(host, target, how)
}
