//! What the two ends agree on when they connect: the private data of the
//! connection manager's messages (section 3.5), judged.
use super::Fault;
use crate::wire::cm::{CmRep, CmReq, CmStatus};
use crate::wire::ids::{Cntlid, Qid};

/// The least entries of a queue: with one it holds no command, and Connect refuses it (SQSIZE 0).
const LEAST_ENTRIES: u16 = 2;

/// What a target has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Entries of an Admin Queue.
    pub admin_entries: u16,
    /// Entries of an I/O queue.
    pub io_entries: u16,
}

/// The queue that a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which queue.
    pub qid: Qid,
    /// The controller of an I/O queue, if the host says.
    pub cntlid: Option<Cntlid>,
    /// Commands that the host may have under way (HSQSIZE, 1's based): receives
    /// that the controller is to have for it.
    pub commands: u16,
    /// Responses that the host has receives for (HRQSIZE).
    pub responses: u16,
}

impl Asked {
    /// Judges the private data of a request. `reads` is how many READs the
    /// host's device answers at a time: without one no data can be fetched.
    ///
    /// Whether the queue is in use, and the controller exists, is for the caller
    /// to say ([`CmStatus::InvalidQid`], [`CmStatus::InvalidCntlid`]): Connect
    /// is judged all the same, so that this only spares a connection.
    ///
    /// # Errors
    /// The status to reject the connection with.
    pub fn judge(private_data: &[u8], reads: u8, room: &Room) -> Result<Self, CmStatus> {
        let req = CmReq::parse(private_data)?;
        let qid = req.qid();
        if qid.0 > room.io_queues {
            return Err(CmStatus::InvalidQid);
        }
        let entries = if qid.is_admin() {
            room.admin_entries
        } else {
            room.io_entries
        };
        let commands = u16::try_from(req.host_sends())
            .ok()
            .filter(|commands| (LEAST_ENTRIES..=entries).contains(commands))
            .ok_or(CmStatus::InvalidHsqsize)?;
        if req.host_receives() == 0 {
            return Err(CmStatus::InvalidHrqsize);
        }
        if reads == 0 {
            return Err(CmStatus::InvalidIrd);
        }
        // Hosts that do not say which controller leave the field zero.
        let said = !qid.is_admin() && !matches!(req.cntlid.get(), 0 | 0xFFFF);
        Ok(Self {
            qid,
            cntlid: said.then_some(Cntlid(req.cntlid.get())),
            commands,
            responses: req.host_receives(),
        })
    }

    /// The private data to accept it with: as many receives as it asked for.
    #[must_use]
    pub fn rep(&self) -> CmRep {
        CmRep::new(self.commands)
    }
}

/// The private data of a host's request for a queue of `entries` (2..=65535)
/// entries: as many commands may be under way, and each has a receive for its response.
#[must_use]
pub fn ask(qid: Qid, entries: u16, cntlid: Cntlid) -> CmReq {
    CmReq::new(qid, entries, entries.into(), cntlid)
}

/// Reads the private data of the answer; returns how many commands the
/// controller has receives for.
///
/// # Errors
/// [`Fault::PrivateData`]: there is none, or it leaves no room for a command.
pub fn accepted(private_data: &[u8]) -> Result<u16, Fault> {
    match CmRep::parse(private_data) {
        Some(rep) if rep.crqsize.get() > 0 => Ok(rep.crqsize.get()),
        _ => Err(Fault::PrivateData),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const ROOM: Room = Room {
        io_queues: 4,
        admin_entries: 32,
        io_entries: 128,
    };

    /// RECFMT, QID, HRQSIZE, HSQSIZE, CNTLID, as they come from the fabric.
    fn req(fields: [u16; 5]) -> [u8; 56] {
        let mut bytes = [0; 56];
        for (at, field) in fields.into_iter().enumerate() {
            bytes[at * 2..][..2].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    fn judge(fields: [u16; 5]) -> Result<Asked, CmStatus> {
        Asked::judge(&req(fields), 16, &ROOM)
    }

    #[test]
    fn a_linux_host_is_let_in() {
        let admin = judge([0, 0, 32, 31, 0]).unwrap();
        let expected = Asked {
            qid: Qid::ADMIN,
            cntlid: None,
            commands: 32,
            responses: 32,
        };
        assert_eq!(admin, expected);
        assert_eq!(admin.rep().as_bytes()[..4], [0, 0, 32, 0]);
        let io = judge([0, 4, 128, 127, 9]).unwrap();
        assert_eq!((io.cntlid, io.commands), (Some(Cntlid(9)), 128));
        // What names no controller.
        for cntlid in [0, 0xFFFF] {
            assert_eq!(judge([0, 1, 128, 127, cntlid]).unwrap().cntlid, None);
        }
        assert_eq!(judge([0, 0, 1, 1, 5]).unwrap().cntlid, None);
    }

    #[test]
    fn each_fault_has_its_status() {
        use CmStatus as S;
        let cases = [
            ([1, 0, 32, 31, 0], S::InvalidRecfmt),
            ([0, 5, 128, 127, 0], S::InvalidQid),
            ([0, 0xFFFF, 128, 127, 0], S::InvalidQid),
            ([0, 0, 32, 32, 0], S::InvalidHsqsize),
            ([0, 0, 32, 0, 0], S::InvalidHsqsize),
            ([0, 1, 128, 0, 0], S::InvalidHsqsize),
            ([0, 1, 128, 128, 0], S::InvalidHsqsize),
            ([0, 1, 128, 0xFFFF, 0], S::InvalidHsqsize),
            ([0, 0, 0, 31, 0], S::InvalidHrqsize),
        ];
        for (fields, status) in cases {
            assert_eq!(judge(fields), Err(status), "{fields:?}");
        }
        let good = req([0, 0, 32, 31, 0]);
        for len in 0..32 {
            let short = Asked::judge(&good[..len], 16, &ROOM);
            assert_eq!(short, Err(S::InvalidLength));
        }
        assert_eq!(Asked::judge(&good, 0, &ROOM), Err(S::InvalidIrd));
        assert!(Asked::judge(&good[..32], 1, &ROOM).is_ok());
    }

    #[test]
    fn what_a_host_asks_for_and_gets() {
        let asked = ask(Qid(3), 128, Cntlid(7));
        let mut expected = [0; 32];
        expected[..10].copy_from_slice(&[0, 0, 3, 0, 128, 0, 127, 0, 7, 0]);
        assert_eq!(asked.as_bytes(), expected);
        let mut rep = [0; 196];
        rep[2] = 128;
        assert_eq!(accepted(&rep), Ok(128));
        assert_eq!(accepted(&rep[..31]), Err(Fault::PrivateData));
        assert_eq!(accepted(&[]), Err(Fault::PrivateData));
        assert_eq!(accepted(&[0; 196]), Err(Fault::PrivateData));
        rep[0] = 1;
        assert_eq!(accepted(&rep), Err(Fault::PrivateData));
    }
}
