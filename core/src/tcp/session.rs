//! What both ends of a connection have in common: a stream in frames, the dress
//! of PDUs, the exchange of IC PDUs before all else, and TermReq as the last word.
use core::time::Duration;

use super::fatal::Fatal;
use super::rx::{Digests, End, Framed, Framer, Need, Progress, is_term_req};
use super::tx::{Dress, MAX_HEAD};
use crate::DataBuffers;
use crate::digest::Crc32c;
use crate::time::Instant;
use crate::wire::pdu::{PduType, TermReq};

/// How long the peer has to close the connection after a TermReq (section 3.5).
const TERM_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) rx: Framer,
    pub(super) dress: Dress,
    pub(super) phase: Phase,
    pub(super) deadline: Option<Instant>,
    end: End,
    /// What a TermReq says, while the header that it quotes arrives.
    last_word: Option<Fatal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No ICReq yet.
    New,
    /// ICReq, but no ICResp.
    Initializing,
    /// Commands flow.
    Live,
    /// TermReq to be sent.
    Terminating(Fatal),
    /// Nothing more is sent, and what comes is not read.
    Ended,
}

/// What came with the bytes just taken, for the machine to act on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrived {
    /// Nothing that is complete.
    Nothing,
    /// A header, allowed in this phase.
    Header(Framed),
    /// The end of a PDU's data.
    Data { intact: bool },
    /// The peer's TermReq.
    Terminated(Fatal),
}

impl Session {
    /// `deadline` is for the peer's IC PDU.
    pub(super) fn new(end: End, crc32c: Crc32c, deadline: Instant) -> Self {
        Self {
            rx: Framer::new(end, crc32c),
            dress: Dress {
                digests: Digests::default(),
                pda: 0,
                crc32c,
            },
            phase: Phase::New,
            deadline: Some(deadline),
            end,
            last_word: None,
        }
    }

    /// Whether what comes is not read any more.
    const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Terminating(_) | Phase::Ended)
    }

    pub(super) fn need(&self) -> Need {
        if self.is_over() {
            return Need::Skip(u32::MAX);
        }
        self.rx.need()
    }

    /// Takes bytes up to the first thing that arrives with them; returns how many.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl DataBuffers,
        now: Instant,
    ) -> Result<(usize, Arrived), Fatal> {
        if self.is_over() {
            return Ok((bytes.len(), Arrived::Nothing));
        }
        match self.rx.push(bytes, buffers) {
            Ok((used, progress)) => Ok((used, self.arrived(progress, now)?)),
            // Section 3.5: a TermReq is never answered by another, be it malformed.
            Err(fatal) if self.rx.in_term_req() => Ok((bytes.len(), self.terminated(fatal))),
            Err(fatal) => Err(self.fail(fatal, now)),
        }
    }

    /// Data was placed without [`Session::take`]; what that completes.
    pub(super) fn placed(&mut self, bytes: &[u8]) -> Arrived {
        match self.rx.data(bytes) {
            Progress::Data { intact } => Arrived::Data { intact },
            Progress::More | Progress::Header(_) => Arrived::Nothing,
        }
    }

    fn arrived(&mut self, progress: Progress, now: Instant) -> Result<Arrived, Fatal> {
        match progress {
            Progress::More => Ok(Arrived::Nothing),
            Progress::Data { intact } => Ok(match self.last_word.take() {
                Some(fatal) => self.terminated(fatal),
                None => Arrived::Data { intact },
            }),
            Progress::Header(framed) if is_term_req(framed.pdu_type) => {
                let request: TermReq = self.rx.header_as().ok_or(Fatal::field(0))?;
                let fatal = Fatal {
                    fes: request.fes(),
                    fei: request.fei.get(),
                };
                if framed.data_len == 0 {
                    return Ok(self.terminated(fatal));
                }
                self.last_word = Some(fatal);
                Ok(Arrived::Nothing)
            }
            // Section 3.4.1: nothing but the IC PDUs until both were sent.
            Progress::Header(framed) => match framed.pdu_type {
                PduType::IcReq | PduType::IcResp => Ok(Arrived::Header(framed)),
                _ if self.phase == Phase::Live => Ok(Arrived::Header(framed)),
                _ => Err(self.fail(Fatal::SEQUENCE, now)),
            },
        }
    }

    /// The peer broke the rules: say so, and read no more.
    pub(super) fn fail(&mut self, fatal: Fatal, now: Instant) -> Fatal {
        if !self.is_over() {
            self.phase = Phase::Terminating(fatal);
            self.deadline = Some(now.after(TERM_TIMEOUT));
        }
        fatal
    }

    fn terminated(&mut self, fatal: Fatal) -> Arrived {
        self.close();
        Arrived::Terminated(fatal)
    }

    /// There is nothing more to send or to wait for.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Ended;
        self.deadline = None;
    }

    /// The head of the TermReq, if there is one to be sent.
    pub(super) fn last_word(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<usize> {
        let Phase::Terminating(fatal) = self.phase else {
            return None;
        };
        self.phase = Phase::Ended;
        let pdu_type = match self.end {
            End::Controller => PduType::C2hTermReq,
            End::Host => PduType::H2cTermReq,
        };
        Some(self.dress.term_req(head, pdu_type, fatal, self.rx.header()))
    }

    pub(super) fn timed_out(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}
