//! What there is to reach, and what SPDK did. Figures of this page's own kind, from the
//! project's issue on speed: one core each side, loopback interface, polled, medians.

/// Where they come from, for the page.
pub(crate) const SOURCE: &str = "SPDK's figures were not measured here: they are those of the project's issue on speed, taken\n\
at another time on a machine of this kind, one core each side, loopback interface, polled. The ratio behind them is to the bare socket there.\n";

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Null,
    Ram,
    File,
}

/// Of commands of one kind, in thousands a second.
#[derive(Clone, Copy)]
pub(crate) struct Published {
    pub(crate) bare: f64,
    pub(crate) null: f64,
    pub(crate) malloc: Option<f64>,
}

/// The share of the bare socket's IOPS that is to be reached, if there is such a goal.
pub(crate) fn share(backend: Backend, write: bool, bs: u64, iodepth: u16) -> Option<f64> {
    match (backend, bs, iodepth) {
        (Backend::File, ..) | (_, 512, _) => None,
        (_, 16_384 | 131_072, _) => Some(0.85),
        (Backend::Null, _, 1) => Some(0.95),
        (Backend::Null, _, 32) => Some(0.85),
        (Backend::Null, ..) => Some(0.80),
        (Backend::Ram, _, 1) => Some(0.93),
        (Backend::Ram, _, 32) => Some(if write { 0.70 } else { 0.75 }),
        (Backend::Ram, ..) => Some(0.65),
    }
}

/// What SPDK did.
pub(crate) fn spdk(write: bool, bs: u64, iodepth: u16) -> Option<Published> {
    let (bare, null, malloc) = match (write, bs, iodepth) {
        (false, 512, 1) => (139.0, 113.0, None),
        (false, 512, 32) => (1900.0, 930.0, None),
        (false, 512, 128) => (4250.0, 1560.0, None),
        (true, 512, 128) => (4250.0, 1850.0, None),
        (false, 4096, 1) => (118.0, 99.0, Some(93.0)),
        (false, 4096, 32) => (1240.0, 745.0, Some(590.0)),
        (false, 4096, 128) => (1725.0, 790.0, Some(590.0)),
        (true, 4096, 1) => (119.0, 99.0, Some(93.0)),
        (true, 4096, 32) => (1230.0, 740.0, Some(430.0)),
        (true, 4096, 128) => (1685.0, 950.0, Some(550.0)),
        (false, 16_384, 1) => (91.0, 78.0, None),
        (false, 16_384, 32) => (521.0, 288.0, None),
        (false, 16_384, 128) => (440.0, 262.0, None),
        (true, 16_384, 1) => (57.0, 47.0, None),
        (true, 16_384, 32) => (426.0, 255.0, None),
        (false, 131_072, 1) => (33.0, 33.0, None),
        (false, 131_072, 32) => (69.5, 42.0, None),
        (true, 131_072, 1) => (27.0, 24.0, None),
        (true, 131_072, 32) => (57.0, 38.0, None),
        _ => return None,
    };
    Some(Published { bare, null, malloc })
}
