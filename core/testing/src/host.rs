//! A host that keeps the rules, and checks that the controller does.
use std::collections::BTreeMap;

use crate::bytes::{Command, Data, Dressing};
use crate::reader::{Completion, Pdu, R2t, Reader};
use crate::target::POISON;

/// Which way a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It has none.
    None,
    /// To the controller.
    FromHost,
    /// From the controller.
    ToHost,
}

/// A command that was submitted.
#[derive(Clone, Debug)]
pub struct Outstanding {
    /// It.
    pub command: Command,
    /// Which way its data goes.
    pub direction: Direction,
    /// Bytes of data that its descriptor offers to move outside of the capsule.
    pub transfer: u32,
    /// Bytes that R2Ts asked for.
    asked: u32,
    /// Data that arrived.
    received: Vec<u8>,
    /// All of it arrived.
    whole: bool,
}

/// A command that completed.
#[derive(Clone, Debug)]
pub struct Finished {
    /// It.
    pub command: Command,
    /// Its completion; `None` if C2HData implied success.
    pub completion: Option<Completion>,
    /// Its data.
    pub data: Vec<u8>,
}

impl Finished {
    /// Type and code of its status: SCT << 8 | SC.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.completion.map_or(0, |it| it.status >> 1 & 0x7FF)
    }

    /// Dwords 0 and 1 of its completion.
    #[must_use]
    pub fn result(&self) -> u64 {
        self.completion.map_or(0, |it| it.result)
    }
}

/// The queue that a Connect made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// 0 is the admin queue.
    pub qid: u16,
    /// Entries of the submission queue.
    pub entries: u32,
    /// Its controller.
    pub cntlid: u16,
    flow_control: bool,
    /// SQHD of the latest completion.
    sqhd: u32,
}

/// The host's end of a connection.
#[derive(Debug)]
pub struct Host {
    /// How its PDUs are dressed.
    pub dressing: Dressing,
    /// Bytes of data a PDU of its may carry; 0 before ICResp.
    pub maxh2cdata: u32,
    /// R2Ts that are not answered in full: what is left of them.
    pub requests: Vec<R2t>,
    /// The controller sent a C2HTermReq: FES, FEI.
    pub terminated: Option<(u16, u32)>,
    /// The queue, once connected.
    pub queue: Option<Queue>,
    /// Commands that completed and that nobody looked at.
    pub finished: Vec<Finished>,
    outstanding: BTreeMap<u16, Outstanding>,
    reader: Reader,
    next_cid: u16,
}

impl Host {
    /// That will send an ICReq with this HPDA.
    #[must_use]
    pub fn new(hpda: u8) -> Self {
        Self {
            dressing: Dressing::default(),
            maxh2cdata: 0,
            requests: Vec::new(),
            terminated: None,
            queue: None,
            finished: Vec::new(),
            outstanding: BTreeMap::new(),
            reader: Reader::new(hpda),
            next_cid: 0,
        }
    }

    /// Commands that did not complete.
    pub fn outstanding(&self) -> impl Iterator<Item = &Outstanding> {
        self.outstanding.values()
    }

    /// How many more commands the queue has room for: one entry stays empty.
    #[must_use]
    pub fn room(&self) -> usize {
        let most = self.queue.map_or(1, |queue| queue.entries as usize - 1);
        most.saturating_sub(self.outstanding.len())
    }

    /// A CID that no outstanding command has.
    pub fn free_cid(&mut self) -> u16 {
        loop {
            self.next_cid = self.next_cid.wrapping_add(1);
            if !self.outstanding.contains_key(&self.next_cid) {
                return self.next_cid;
            }
        }
    }

    /// Submits a command; returns its capsule. `data` is in-capsule data.
    pub fn submit(&mut self, command: Command, direction: Direction, data: &[u8]) -> Vec<u8> {
        let transfer = match command.0[39] {
            0x5A => u32::from_le_bytes(command.0[32..36].try_into().expect("4 bytes")),
            0x01 if direction == Direction::ToHost => crate::bytes_len(data),
            _ => 0,
        };
        let before = self.outstanding.insert(
            command.cid(),
            Outstanding {
                command,
                direction,
                transfer,
                asked: 0,
                received: Vec::new(),
                whole: false,
            },
        );
        assert!(before.is_none(), "CID {} is outstanding", command.cid());
        self.dressing.capsule(&command, data)
    }

    /// Submits a command whose data, if it has any, the transport moves.
    pub fn submit_transfer(&mut self, command: Command, direction: Direction, len: u32) -> Vec<u8> {
        self.submit(command.data(Data::Transport(len)), direction, &[])
    }

    /// Up to `most` bytes in answer to the `index`th R2T, taken from `data`,
    /// which is all that the command has to send.
    pub fn answer(&mut self, index: usize, most: u32, data: &[u8]) -> Vec<u8> {
        let request = &mut self.requests[index];
        let len = request.len.min(most.max(1)).min(self.maxh2cdata);
        let (from, last) = (request.offset as usize, len == request.len);
        let pdu = self.dressing.h2c_data(
            request.cid,
            request.ttag,
            request.offset,
            &data[from..][..len as usize],
            last,
        );
        request.offset += len;
        request.len -= len;
        if last {
            self.requests.remove(index);
        }
        pdu
    }

    /// Bytes of the controller's.
    ///
    /// # Errors
    /// It broke a rule.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.reader.received(bytes);
        while let Some(pdu) = self.reader.next_pdu().map_err(|e| e.to_string())? {
            self.pdu(pdu)?;
        }
        Ok(())
    }

    /// Like [`Host::receive`], when nothing is known of what was submitted.
    ///
    /// # Errors
    /// A PDU is malformed.
    pub fn receive_blindly(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.reader.received(bytes);
        while let Some(pdu) = self.reader.next_pdu().map_err(|e| e.to_string())? {
            if let Pdu::IcResp { .. } | Pdu::TermReq { .. } = pdu {
                self.pdu(pdu)?;
            }
        }
        Ok(())
    }

    /// Whether a PDU of the controller's is incomplete.
    #[must_use]
    pub fn mid_pdu(&self) -> bool {
        self.reader.mid_pdu()
    }

    fn pdu(&mut self, pdu: Pdu) -> Result<(), String> {
        match pdu {
            Pdu::IcResp {
                cpda,
                digests,
                maxh2cdata,
            } => {
                self.maxh2cdata = maxh2cdata;
                self.dressing = Dressing {
                    header_digest: digests & 1 != 0,
                    data_digest: digests & 2 != 0,
                    cpda,
                };
                Ok(())
            }
            Pdu::TermReq { fes, fei, .. } => {
                self.terminated = Some((fes, fei));
                Ok(())
            }
            Pdu::R2t(request) => self.r2t(request),
            Pdu::Data {
                cid,
                offset,
                data,
                last,
                success,
            } => self.data(cid, offset, &data, last, success),
            Pdu::Response(completion) => self.completion(completion),
        }
    }

    fn command(&mut self, cid: u16) -> Result<&mut Outstanding, String> {
        self.outstanding
            .get_mut(&cid)
            .ok_or_else(|| format!("CID {cid} is not outstanding"))
    }

    fn r2t(&mut self, request: R2t) -> Result<(), String> {
        let waits = self.requests.iter().any(|other| other.cid == request.cid);
        let command = self.command(request.cid)?;
        let end = request.offset.checked_add(request.len);
        let right = command.direction == Direction::FromHost
            && command.command.0[39] == 0x5A
            && request.len > 0
            && request.offset == command.asked
            && end.is_some_and(|end| end <= command.transfer)
            && !waits;
        if !right {
            return Err(format!("{request:?} of {command:?}"));
        }
        command.asked += request.len;
        self.requests.push(request);
        Ok(())
    }

    fn data(
        &mut self,
        cid: u16,
        offset: u32,
        data: &[u8],
        last: bool,
        success: bool,
    ) -> Result<(), String> {
        let command = self.command(cid)?;
        let received = command.received.len() + data.len();
        let right = command.direction == Direction::ToHost
            && offset as usize == command.received.len()
            && received <= command.transfer as usize
            && !command.whole;
        if !right {
            let len = data.len();
            return Err(format!("{len} bytes of data at {offset} of {command:?}"));
        }
        command.received.extend(data);
        command.whole = last;
        if success {
            if self.queue.is_none_or(|queue| queue.flow_control) {
                return Err("SUCCESS, and SQ flow control is on".into());
            }
            self.finish(cid, None);
        }
        Ok(())
    }

    fn completion(&mut self, completion: Completion) -> Result<(), String> {
        let command = self.command(completion.cid)?.clone();
        let status = completion.status >> 1 & 0x7FF;
        if !command.received.is_empty() && (status != 0 || !command.whole) {
            return Err(format!("{completion:x?} amid the data of {command:?}"));
        }
        if command.command.0[0] == 0x7F && command.command.0[4] == 0x01 && status == 0 {
            if self.queue.is_some() {
                return Err("connected twice".into());
            }
            let sqe = &command.command.0;
            let field = |at: usize| u16::from_le_bytes([sqe[at], sqe[at + 1]]);
            let [low, high, ..] = completion.result.to_le_bytes();
            self.queue = Some(Queue {
                qid: field(42),
                entries: u32::from(field(44)) + 1,
                cntlid: u16::from_le_bytes([low, high]),
                flow_control: sqe[46] & 4 == 0,
                sqhd: 0,
            });
        }
        if let Some(queue) = &mut self.queue {
            queue.sqhd = (queue.sqhd + 1) % queue.entries;
            let expected = if queue.flow_control {
                queue.sqhd
            } else {
                0xFFFF
            };
            if u32::from(completion.sqhd) != expected {
                return Err(format!("SQHD of {completion:x?} is not {expected:#x}"));
            }
        }
        self.finish(completion.cid, Some(completion));
        Ok(())
    }

    fn finish(&mut self, cid: u16, completion: Option<Completion>) {
        if let Some(command) = self.outstanding.remove(&cid) {
            self.requests.retain(|request| request.cid != cid);
            self.finished.push(Finished {
                command: command.command,
                completion,
                data: command.received,
            });
        }
    }
}

/// Whether bytes of a controller show memory that nobody wrote.
#[must_use]
pub fn shows_poison(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|window| window == [POISON; 8])
}

/// What the host stores at `byte` of a namespace, `len` bytes: each 8 say
/// where they belong, and in which write they came.
#[must_use]
pub fn pattern(nsid: u32, byte: u64, len: usize, write: u8) -> Vec<u8> {
    let words = (byte / 8..).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flat_map(|at| word(nsid, at, write)).collect();
    bytes.truncate(len);
    bytes
}

/// Whether data read from `byte` of a namespace on is what [`pattern`] stored there, or zeroes.
#[must_use]
pub fn is_pattern(nsid: u32, byte: u64, bytes: &[u8]) -> bool {
    (byte / 8..)
        .zip(bytes.chunks(8))
        .all(|(at, chunk)| chunk == [0; 8] || chunk == word(nsid, at, chunk[1]))
}

fn word(nsid: u32, at: u64, write: u8) -> [u8; 8] {
    let [nsid, ..] = nsid.to_le_bytes();
    let [a, b, c, d, ..] = at.to_le_bytes();
    [nsid, write, a, b, c, d, !nsid, write ^ 0x5A]
}
