//! Connect: how a connection becomes a queue of a controller (section 6.3).
use super::{Data, Error, Identity, Request, Step};
use crate::wire::connect::{Cattr, ConnectData, ConnectResult};
use crate::wire::cqe::Cqe;
use crate::wire::ids::{Cid, Cntlid, Nqn, Qid};
use crate::wire::sqe::FabricsConnectSqe;

/// The queue that a connection is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Which.
    pub qid: Qid,
    /// Entries of the submission queue, 2..=65536: commands under way at a time, and one.
    pub entries: u32,
    /// Keep alive timeout in milliseconds, 0 for none; of the Admin Queue.
    pub kato_ms: u32,
    /// Do with SQ flow control. Without it, controllers may leave out completions
    /// that the end of the data implies.
    pub sq_flow_control: bool,
}

/// What a Connect achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Whose queue it is.
    pub cntlid: Cntlid,
    /// Whether there is SQ flow control.
    pub sq_flow_control: bool,
}

impl Connect {
    /// The command; its data is [`Connect::data`].
    #[must_use]
    pub fn request(&self) -> Request {
        let mut sqe = FabricsConnectSqe::new(Cid(0));
        sqe.qid = self.qid.0.into();
        let sqsize = self.entries.clamp(2, 0x1_0000).saturating_sub(1);
        sqe.sqsize = u16::try_from(sqsize).unwrap_or(u16::MAX).into();
        sqe.kato = self.kato_ms.into();
        sqe.cattr = Cattr::default()
            .with_disable_sq_flow_control(!self.sq_flow_control)
            .0;
        Request {
            sqe: *sqe.as_sqe(),
            data: Data::FromHost(1024),
        }
    }

    /// The command's data. `cntlid` is [`Cntlid::DYNAMIC`] for an Admin Queue,
    /// if the subsystem is to choose the controller.
    #[must_use]
    pub fn data(host: &Identity, subnqn: &Nqn, cntlid: Cntlid) -> ConnectData {
        ConnectData::new(host.hostid, &host.hostnqn, subnqn, cntlid)
    }

    /// Reads the command's completion.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::AuthenticationRequired`]
    pub fn completed(&self, cqe: &Cqe) -> Result<Connected, Error> {
        let (status, result) = (cqe.status(), cqe.result.get());
        if !status.is_success() {
            return Err(Error::refused(Step::Connect, status, result));
        }
        let result = ConnectResult::from_result(result);
        if result.atr || result.ascr {
            return Err(Error::AuthenticationRequired);
        }
        let disabled = cqe.sqhd.get() == Cqe::SQHD_FLOW_CONTROL_DISABLED;
        Ok(Connected {
            cntlid: result.cntlid,
            sq_flow_control: self.sq_flow_control || !disabled,
        })
    }
}
