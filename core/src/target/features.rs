//! Get and Set Features (NVMe Base 2.1, sections 5.1.11 and 5.1.25).
use super::SubsystemKind;
use crate::time::Instant;

/// Feature values of one controller.
#[derive(Debug)]
pub(super) struct Features {}

impl Features {
    pub(super) fn new(_now: Instant) -> Self {
        Self {}
    }

    pub(super) fn wants_notice(&self, _kind: SubsystemKind) -> bool {
        false
    }
}
