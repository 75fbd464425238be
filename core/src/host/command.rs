//! Commands, composed: the counterpart of [`crate::command`]. The transport sets
//! CID and data pointer.
use crate::wire::feature::FeatureId;
use crate::wire::identify::Cns;
use crate::wire::ids::{Cid, Nsid, Qid};
use crate::wire::property::{Property, PropertySize};
use crate::wire::sqe::{AdminOpcode, FabricsPropertyGetSqe, FabricsPropertySetSqe, IoOpcode, Sqe};

/// CDW10 of Get Log Page: Retain Asynchronous Event.
const RAE: u32 = 1 << 15;

/// Property Get (section 6.5).
#[must_use]
pub fn property_get(property: Property) -> Sqe {
    let mut sqe = FabricsPropertyGetSqe::new(Cid(0));
    sqe.attrib = size(property);
    sqe.ofst = property.code().into();
    *sqe.as_sqe()
}

/// Property Set (section 6.6).
#[must_use]
pub fn property_set(property: Property, value: u64) -> Sqe {
    let mut sqe = FabricsPropertySetSqe::new(Cid(0));
    sqe.attrib = size(property);
    sqe.ofst = property.code().into();
    sqe.value = value.into();
    *sqe.as_sqe()
}

/// ATTRIB of a property.
fn size(property: Property) -> u8 {
    property.size().unwrap_or(PropertySize::Four).code()
}

/// Identify (section 5.17). It returns 4096 bytes.
#[must_use]
pub fn identify(cns: Cns, nsid: Nsid) -> Sqe {
    let mut sqe = admin(AdminOpcode::Identify).with_nsid(nsid);
    sqe.cdw10 = u32::from(cns.code()).into();
    sqe
}

/// `len` bytes of a log from its byte `offset` on (section 5.16). `len` is a
/// multiple of 4 and not 0. Retains asynchronous events: see [`releasing_events`].
#[must_use]
pub fn get_log_page(lid: u8, nsid: Nsid, offset: u64, len: u32) -> Sqe {
    let numd = len.wrapping_shr(2).saturating_sub(1);
    let [d0, d1, d2, d3] = numd.to_le_bytes();
    let [o0, o1, o2, o3, o4, o5, o6, o7] = offset.to_le_bytes();
    let mut sqe = admin(AdminOpcode::GetLogPage).with_nsid(nsid);
    sqe.cdw10 = (u32::from_le_bytes([lid, 0, d0, d1]) | RAE).into();
    sqe.cdw11 = u32::from_le_bytes([d2, d3, 0, 0]).into();
    sqe.cdw12 = u32::from_le_bytes([o0, o1, o2, o3]).into();
    sqe.cdw13 = u32::from_le_bytes([o4, o5, o6, o7]).into();
    sqe
}

/// Set Features of a dword, not saved (section 5.27).
#[must_use]
pub fn set_feature(fid: FeatureId, value: u32) -> Sqe {
    let mut sqe = admin(AdminOpcode::SetFeatures);
    sqe.cdw10 = u32::from(fid.code()).into();
    sqe.cdw11 = value.into();
    sqe
}

/// The same Get Log Page, which lets asynchronous events go that this log explains: the
/// controller may report the next of their kind. For the last read of a log; one before it
/// would let go what is not wholly read.
#[must_use]
pub fn releasing_events(mut get_log_page: Sqe) -> Sqe {
    get_log_page.cdw10 = (get_log_page.cdw10.get() & !RAE).into();
    get_log_page
}

/// Asynchronous Event Request (section 5.2).
#[must_use]
pub fn async_event_request() -> Sqe {
    admin(AdminOpcode::AsyncEventRequest)
}

/// Abort of a command (section 5.1).
#[must_use]
pub fn abort(qid: Qid, cid: Cid) -> Sqe {
    let [q0, q1] = qid.0.to_le_bytes();
    let [c0, c1] = cid.0.to_le_bytes();
    let mut sqe = admin(AdminOpcode::Abort);
    sqe.cdw10 = u32::from_le_bytes([q0, q1, c0, c1]).into();
    sqe
}

/// Keep Alive (section 5.18).
#[must_use]
pub fn keep_alive() -> Sqe {
    admin(AdminOpcode::KeepAlive)
}

/// FUA, of CDW12: Force Unit Access.
pub const FUA: u32 = 1 << 30;

/// DEAC of Write Zeroes, in CDW12: the controller may deallocate the blocks.
pub const DEAC: u32 = 1 << 25;

/// Flush.
#[must_use]
pub fn flush(nsid: Nsid) -> Sqe {
    io(IoOpcode::Flush, nsid)
}

/// A command on `nlb` (1..=65536) logical blocks from `slba` on: Read, Write,
/// Compare, Verify, Write Zeroes or Write Uncorrectable.
#[must_use]
pub fn blocks(opcode: IoOpcode, nsid: Nsid, slba: u64, nlb: u32) -> Sqe {
    let [s0, s1, s2, s3, s4, s5, s6, s7] = slba.to_le_bytes();
    let mut sqe = io(opcode, nsid);
    sqe.cdw10 = u32::from_le_bytes([s0, s1, s2, s3]).into();
    sqe.cdw11 = u32::from_le_bytes([s4, s5, s6, s7]).into();
    sqe.cdw12 = nlb.clamp(1, 0x1_0000).saturating_sub(1).into();
    sqe
}

/// Dataset Management that deallocates `ranges` (1..=256) ranges, which are its
/// data, 16 bytes each.
#[must_use]
pub fn deallocate(nsid: Nsid, ranges: u16) -> Sqe {
    const AD: u32 = 1 << 2;
    let mut sqe = io(IoOpcode::DatasetManagement, nsid);
    sqe.cdw10 = u32::from(ranges.clamp(1, 256).saturating_sub(1)).into();
    sqe.cdw11 = AD.into();
    sqe
}

/// Copy of `ranges` (1..=256) source ranges of format 0, which are its data, 32 bytes each,
/// to the blocks from `sdlba` on.
#[must_use]
pub fn copy(nsid: Nsid, sdlba: u64, ranges: u16) -> Sqe {
    let mut sqe = blocks(IoOpcode::Copy, nsid, sdlba, 1);
    sqe.cdw12 = u32::from(ranges.clamp(1, 256).saturating_sub(1)).into();
    sqe
}

fn admin(opcode: AdminOpcode) -> Sqe {
    Sqe::new(opcode.code(), Cid(0))
}

fn io(opcode: IoOpcode, nsid: Nsid) -> Sqe {
    Sqe::new(opcode.code(), Cid(0)).with_nsid(nsid)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn expect(sqe: Sqe, fields: &[(usize, &[u8])]) {
        let mut bytes = [0; 64];
        for (offset, field) in fields {
            bytes[*offset..][..field.len()].copy_from_slice(field);
        }
        assert_eq!(sqe.as_bytes(), bytes, "{sqe}");
    }

    #[test]
    fn properties() {
        expect(
            property_get(Property::Cap),
            &[(0, &[0x7F, 0x40, 0, 0, 0x04]), (40, &[1])],
        );
        expect(
            property_get(Property::Csts),
            &[(0, &[0x7F, 0x40, 0, 0, 0x04]), (44, &[0x1C])],
        );
        expect(
            property_set(Property::Cc, 0x0046_0001),
            &[
                (0, &[0x7F, 0x40]),
                (44, &[0x14]),
                (48, &[0x01, 0x00, 0x46, 0x00]),
            ],
        );
    }

    #[test]
    fn logs_have_their_length_in_dwords_and_one_less() {
        for (len, low, high) in [
            (4, [0, 0], [0, 0]),
            (1024, [0xFF, 0], [0, 0]),
            (0x0004_0004, [0, 0], [1, 0]),
        ] {
            expect(
                get_log_page(0x70, Nsid(0), 0x0102_0304_0506_0708, len),
                &[
                    (0, &[0x02, 0x40]),
                    (40, &[0x70, 0x80, low[0], low[1], high[0], high[1]]),
                    (48, &[8, 7, 6, 5, 4, 3, 2, 1]),
                ],
            );
        }
    }

    #[test]
    fn the_last_read_of_a_log_releases_events() {
        let read = get_log_page(0x70, Nsid(0), 0, 1024);
        expect(
            releasing_events(read),
            &[(0, &[0x02, 0x40]), (40, &[0x70, 0, 0xFF, 0])],
        );
    }

    #[test]
    fn admin_commands() {
        expect(
            identify(Cns::Controller, Nsid(0)),
            &[(0, &[0x06, 0x40]), (40, &[1])],
        );
        expect(
            set_feature(FeatureId::NumberOfQueues, 0x0003_0003),
            &[(0, &[0x09, 0x40]), (40, &[7, 0, 0, 0, 3, 0, 3, 0])],
        );
        expect(keep_alive(), &[(0, &[0x18, 0x40])]);
        expect(async_event_request(), &[(0, &[0x0C, 0x40])]);
        expect(
            abort(Qid(0x0102), Cid(0x0304)),
            &[(0, &[0x08, 0x40]), (40, &[2, 1, 4, 3])],
        );
    }

    #[test]
    fn blocks_are_counted_one_less() {
        for (nlb, wire) in [(1, [0, 0]), (8, [7, 0]), (0x1_0000, [0xFF, 0xFF])] {
            expect(
                blocks(IoOpcode::Read, Nsid(5), 0x0102_0304_0506_0708, nlb),
                &[
                    (0, &[0x02, 0x40, 0, 0, 5]),
                    (40, &[8, 7, 6, 5, 4, 3, 2, 1]),
                    (48, &wire),
                ],
            );
        }
        for (ranges, wire) in [(1, 0), (256, 255)] {
            expect(
                deallocate(Nsid(1), ranges),
                &[(0, &[0x09, 0x40, 0, 0, 1]), (40, &[wire, 0, 0, 0, 4])],
            );
        }
        for (ranges, wire) in [(1, 0), (256, 255)] {
            expect(
                copy(Nsid(2), 0x0102_0304_0506_0708, ranges),
                &[
                    (0, &[0x19, 0x40, 0, 0, 2]),
                    (40, &[8, 7, 6, 5, 4, 3, 2, 1]),
                    (48, &[wire]),
                ],
            );
        }
        expect(flush(Nsid(1)), &[(0, &[0x00, 0x40, 0, 0, 1])]);
    }
}
