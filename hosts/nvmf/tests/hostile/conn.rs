//! One connection to the target: raw bytes out, PDUs in, every PDU that comes in checked for form.
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use rustix::net::{AddressFamily, SocketType};

use crate::bytes::{crc32c, u16_at, u32_at};
use crate::pdu::{
    C2H_DATA, C2H_TERM_REQ, CAPSULE_RESP, Cqe, DATAL, DATAO, DDGSTF, FLAGS, Framing, HDGSTF, HLEN,
    ICRESP, IcReq, LAST_PDU, PDO, PLEN, R2T, SUCCESS, Sqe, TTAG,
    status::{CONNECT_INVALID_HOST, CONNECT_INVALID_PARAMETERS},
};

/// No answer is waited for longer than this: a machine that builds and runs guests may stall for seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Why no PDU came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The target closed the connection, or reset it.
    Closed,
    /// Nothing came in time.
    Silent,
}

/// A PDU from the target, found to be well formed.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    /// The header, common header included, digest excluded.
    pub(crate) head: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn kind(&self) -> u8 {
        self.head[0]
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.head[FLAGS] & flag != 0
    }

    /// The command a C2HData or R2T belongs to, or the one a CapsuleResp completes.
    pub(crate) fn cid(&self) -> u16 {
        match self.kind() {
            CAPSULE_RESP => Cqe::parse(&self.head[8..]).cid,
            _ => u16_at(&self.head, 8),
        }
    }

    pub(crate) fn ttag(&self) -> u16 {
        u16_at(&self.head, TTAG)
    }

    /// Offset and length of an R2T or C2HData.
    pub(crate) fn range(&self) -> (u32, u32) {
        (u32_at(&self.head, DATAO), u32_at(&self.head, DATAL))
    }

    pub(crate) fn cqe(&self) -> Cqe {
        assert_eq!(
            self.kind(),
            CAPSULE_RESP,
            "expected a CapsuleResp, got {self:02x?}"
        );
        Cqe::parse(&self.head[8..])
    }
}

/// How a command ended, and what it read.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) cqe: Cqe,
    pub(crate) data: Vec<u8>,
    /// There was no CapsuleResp: the last C2HData had the SUCCESS flag.
    pub(crate) by_flag: bool,
}

impl Reply {
    /// The command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.cqe.succeeds();
        self
    }

    /// The command failed with one of `codes`, without data, and its result is zero (CVE-2024-41079).
    #[track_caller]
    pub(crate) fn fails(self, codes: &[(u8, u8)]) -> Self {
        self.cqe.fails(codes);
        assert!(self.data.is_empty(), "a failed command sent data");
        self
    }
}

impl Cqe {
    #[track_caller]
    pub(crate) fn succeeds(&self) {
        assert_eq!(self.code(), (0, 0), "the command failed: {self:x?}");
    }

    /// One of `codes`, and a zero result.
    #[track_caller]
    pub(crate) fn fails(&self, codes: &[(u8, u8)]) {
        let code = self.code();
        assert!(codes.contains(&code), "{code:x?} is not among {codes:x?}");
        // A refused Connect says in the result which parameter is to blame.
        if ![CONNECT_INVALID_PARAMETERS, CONNECT_INVALID_HOST].contains(&code) {
            assert_eq!((self.dw0, self.dw1), (0, 0), "stale result in {self:x?}");
        }
    }
}

/// One connection.
pub(crate) struct Conn {
    stream: TcpStream,
    pub(crate) framing: Framing,
    /// Data in C2HData PDUs starts at a multiple of this, bytes (HPDA).
    pub(crate) align: usize,
    pub(crate) maxh2cdata: u32,
    /// H2CData PDUs carry at most this, bytes.
    pub(crate) h2c_limit: usize,
    /// Bytes are sent in pieces of so many, with so long a pause between them.
    pub(crate) pace: Option<(usize, Duration)>,
    last_sent: Vec<u8>,
    next_cid: u16,
}

impl Conn {
    /// A TCP connection, nothing sent yet.
    pub(crate) fn tcp(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect_timeout(&addr, PATIENCE).expect("connecting"))
    }

    /// The same with a receive buffer that a large read fills. Not a tiny one: the kernel then sends by its
    /// persist timer, with seconds between two segments.
    pub(crate) fn tcp_with_small_window(addr: SocketAddr) -> Self {
        let socket =
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        set_socket_recv_buffer_size(&socket, 64 << 10).expect("SO_RCVBUF");
        rustix::net::connect(&socket, &addr).expect("connecting");
        Self::over(TcpStream::from(socket))
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self {
            stream,
            framing: Framing::PLAIN,
            align: 4,
            maxh2cdata: 4096,
            h2c_limit: usize::MAX,
            pace: None,
            last_sent: Vec::new(),
            next_cid: 0,
        }
    }

    /// A connection that is past ICReq and ICResp.
    pub(crate) fn open(addr: SocketAddr, ic: IcReq) -> Self {
        let mut conn = Self::tcp(addr);
        conn.initialize(ic);
        conn
    }

    /// Sends the ICReq and checks the ICResp.
    pub(crate) fn initialize(&mut self, ic: IcReq) {
        self.send(&ic.bytes());
        self.take_icresp(ic);
    }

    /// Checks the ICResp that answers `ic`.
    pub(crate) fn take_icresp(&mut self, ic: IcReq) {
        let resp = self.read_pdu();
        assert_eq!(resp.kind(), ICRESP, "expected an ICResp, got {resp:02x?}");
        assert_eq!(u16_at(&resp.head, 8), 0, "PFV");
        let cpda = resp.head[10];
        assert!(cpda <= 31, "CPDA {cpda}");
        assert_eq!(
            resp.head[11],
            u8::from(ic.hdgst) | u8::from(ic.ddgst) << 1,
            "digests were asked for and not granted, or the reverse"
        );
        self.maxh2cdata = u32_at(&resp.head, 12);
        assert!(
            self.maxh2cdata >= 4096 && self.maxh2cdata.is_multiple_of(4),
            "MAXH2CDATA {}",
            self.maxh2cdata
        );
        assert!(
            resp.head[16..].iter().all(|byte| *byte == 0),
            "reserved bytes are zero"
        );
        self.framing = Framing {
            hdgst: ic.hdgst,
            ddgst: ic.ddgst,
            align: (usize::from(cpda) + 1) * 4,
        };
        self.align = (usize::from(ic.hpda) + 1) * 4;
    }

    /// Sends `bytes`; the target must still take them.
    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("sending");
    }

    /// Sends `bytes`, of which the target may refuse to take all.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.clone_into(&mut self.last_sent);
        let Some((piece, pause)) = self.pace else {
            return self.stream.write_all(bytes);
        };
        for piece in bytes.chunks(piece) {
            self.stream.write_all(piece)?;
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
        Ok(())
    }

    /// The next PDU, which must come.
    #[track_caller]
    pub(crate) fn read_pdu(&mut self) -> Pdu {
        match self.try_read_pdu() {
            Ok(pdu) => pdu,
            Err(end) => panic!("expected a PDU, but the connection is {end:?}"),
        }
    }

    /// The next PDU, if it begins in time.
    #[track_caller]
    pub(crate) fn read_pdu_within(&mut self, time: Duration) -> Option<Pdu> {
        let set = |timeout| self.stream.set_read_timeout(Some(timeout));
        set(time).expect("a timeout");
        let peeked = self.stream.peek(&mut [0]);
        set(PATIENCE).expect("a timeout");
        peeked.is_ok().then(|| self.read_pdu())
    }

    /// The next PDU, or why there is none. A malformed one panics.
    pub(crate) fn try_read_pdu(&mut self) -> Result<Pdu, End> {
        let mut head = vec![0; 8];
        self.fill(&mut head)?;
        let (kind, flags, hlen) = (head[0], head[FLAGS], usize::from(head[HLEN]));
        let expected_hlen = match kind {
            ICRESP => 128,
            C2H_TERM_REQ | CAPSULE_RESP | C2H_DATA | R2T => 24,
            _ => panic!("PDU type {kind:#x} from a controller: {head:02x?}"),
        };
        assert_eq!(hlen, expected_hlen, "HLEN of {head:02x?}");
        let plen = usize::try_from(u32_at(&head, PLEN)).expect("32 bits");
        assert!((hlen..=0x0100_0000).contains(&plen), "PLEN of {head:02x?}");
        let mut all = head;
        all.resize(plen, 0);
        self.fill(&mut all[8..])?;
        let pdo = usize::from(all[PDO]);
        let digests = matches!(kind, CAPSULE_RESP | C2H_DATA | R2T);
        let mut end_of_head = hlen;
        let valid_flags = match kind {
            C2H_DATA => HDGSTF | DDGSTF | LAST_PDU | SUCCESS,
            CAPSULE_RESP | R2T => HDGSTF,
            _ => 0,
        };
        assert_eq!(flags & !valid_flags, 0, "flags of {:02x?}", &all[..hlen]);
        if digests {
            assert_eq!(flags & HDGSTF != 0, self.framing.hdgst, "HDGSTF");
            if self.framing.hdgst {
                assert_eq!(u32_at(&all, hlen), crc32c(&all[..hlen]), "header digest");
                end_of_head += 4;
            }
        }
        let data = if kind == C2H_DATA {
            assert_eq!(flags & DDGSTF != 0, self.framing.ddgst, "DDGSTF");
            assert!(
                flags & SUCCESS == 0 || flags & LAST_PDU != 0,
                "SUCCESS without LAST_PDU"
            );
            assert!(
                pdo >= end_of_head && pdo.is_multiple_of(self.align),
                "PDO {pdo}"
            );
            let end = plen - if self.framing.ddgst { 4 } else { 0 };
            assert!(pdo < end, "C2HData without data");
            let data = all[pdo..end].to_vec();
            assert_eq!(
                usize::try_from(u32_at(&all, DATAL)).expect("32 bits"),
                data.len(),
                "DATAL against PLEN"
            );
            if self.framing.ddgst {
                assert_eq!(u32_at(&all, end), crc32c(&data), "data digest");
            }
            data
        } else if kind == C2H_TERM_REQ {
            assert!((24..=152).contains(&plen), "PLEN {plen} of a C2HTermReq");
            assert_eq!(pdo, 0, "PDO");
            all[24..].to_vec()
        } else {
            assert_eq!(plen, end_of_head, "PLEN of {:02x?}", &all[..hlen]);
            assert_eq!(pdo, 0, "PDO");
            Vec::new()
        };
        all.truncate(hlen);
        Ok(Pdu { head: all, data })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), End> {
        let deadline = Instant::now() + PATIENCE;
        let mut got = 0;
        while got < bytes.len() {
            match self.stream.read(&mut bytes[got..]) {
                Ok(0) => return Err(End::Closed),
                Ok(n) => got += n,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(End::Silent),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Err(End::Closed),
                    _ => panic!("reading: {error}"),
                },
            }
            if Instant::now() > deadline {
                return Err(End::Silent);
            }
        }
        Ok(())
    }

    /// At most `most` raw bytes that are there; 0 at the end.
    pub(crate) fn read_some(&mut self, most: usize) -> io::Result<usize> {
        let mut bytes = vec![0; most];
        self.stream.read(&mut bytes)
    }

    /// The target refuses with a C2HTermReq of this FES and FEI, and closes once we do.
    #[track_caller]
    pub(crate) fn expect_term(&mut self, fes: u16, fei: u32) {
        self.expect_term_among(&[(fes, fei)]);
    }

    /// The same where implementations differ in what they report first. Answers to what was sent
    /// earlier may come before it.
    #[track_caller]
    pub(crate) fn expect_term_among(&mut self, expected: &[(u16, u32)]) {
        let term = loop {
            match self.try_read_pdu() {
                Ok(pdu) if pdu.kind() == C2H_TERM_REQ => break pdu,
                Ok(pdu) if matches!(pdu.kind(), ICRESP | C2H_DATA | CAPSULE_RESP | R2T) => {}
                Ok(pdu) => panic!("expected a C2HTermReq, got {pdu:02x?}"),
                Err(end) => panic!("expected a C2HTermReq, but the connection is {end:?}"),
            }
        };
        let got = (u16_at(&term.head, 8), u32_at(&term.head, 10));
        assert!(
            expected.contains(&got),
            "FES {:#x} FEI {:#x} is not among {expected:x?}",
            got.0,
            got.1
        );
        assert!(
            term.data.len() >= 8,
            "the offending header is not in the C2HTermReq"
        );
        let copied = self
            .last_sent
            .windows(term.data.len())
            .any(|window| window == term.data);
        assert!(copied, "what the C2HTermReq quotes was never sent");
        let _ = self.stream.shutdown(Shutdown::Write);
        self.expect_closed(Duration::from_secs(2));
    }

    /// The target closes the connection in time, without a C2HTermReq.
    #[track_caller]
    pub(crate) fn expect_closed(&mut self, within: Duration) {
        let start = Instant::now();
        self.stream
            .set_read_timeout(Some(within.max(Duration::from_millis(1))))
            .expect("a timeout");
        let end = loop {
            match self.try_read_pdu() {
                Ok(pdu) => assert_ne!(pdu.kind(), C2H_TERM_REQ, "unexpected {pdu:02x?}"),
                Err(end) => break end,
            }
            assert!(start.elapsed() < within, "not closed after {within:?}");
        };
        assert_eq!(end, End::Closed, "not closed after {within:?}");
        self.stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
    }

    /// The connection ends in time: closed by the target, with or without a C2HTermReq before.
    #[track_caller]
    pub(crate) fn expect_over(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            match self.try_read_pdu() {
                Ok(pdu) if pdu.kind() == C2H_TERM_REQ => self.finish_sending(),
                Ok(_) => {}
                Err(End::Closed) => return,
                Err(End::Silent) => panic!("the connection stays open"),
            }
            assert!(Instant::now() < deadline, "not closed after {within:?}");
        }
    }

    /// Nothing comes and the connection stays open for so long.
    #[track_caller]
    pub(crate) fn expect_silence(&mut self, for_long: Duration) {
        self.stream
            .set_read_timeout(Some(for_long))
            .expect("a timeout");
        let mut byte = [0];
        match self.stream.peek(&mut byte) {
            Ok(0) => panic!("the connection was closed"),
            Ok(_) => panic!("unexpected {:02x?}", self.read_pdu()),
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                "{error}"
            ),
        }
        self.stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
    }

    /// Closes with a reset instead of a FIN.
    pub(crate) fn reset(self) {
        set_socket_linger(&self.stream, Some(Duration::ZERO)).expect("SO_LINGER");
    }

    /// Sends no more; still receives.
    pub(crate) fn finish_sending(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next command identifier; they repeat after 65535 commands.
    pub(crate) fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1) & 0x7FFF;
        self.next_cid
    }

    /// Sends a command; `data` goes into the capsule when the SGL says so.
    #[track_caller]
    pub(crate) fn start(&mut self, sqe: &Sqe, data: &[u8]) {
        let in_capsule: &[u8] = if sqe.has_data_in_capsule() { data } else { &[] };
        let capsule = self.framing.capsule(sqe, in_capsule);
        self.send(&capsule);
    }

    /// Runs a command on an otherwise idle connection; gives it a CID of its own.
    #[track_caller]
    pub(crate) fn run(&mut self, sqe: Sqe, data: &[u8]) -> Reply {
        let mut sqe = sqe;
        sqe.set_cid(self.cid());
        self.start(&sqe, data);
        self.finish(sqe.cid(), data)
    }

    /// Serves R2Ts of the only outstanding command from `data` and gathers what it reads.
    #[track_caller]
    pub(crate) fn finish(&mut self, cid: u16, data: &[u8]) -> Reply {
        let mut read = Vec::new();
        let mut last_seen = false;
        loop {
            let pdu = self.read_pdu();
            assert_eq!(pdu.cid(), cid, "a PDU for another command: {pdu:02x?}");
            match pdu.kind() {
                R2T => self.serve(&pdu, data),
                C2H_DATA => {
                    assert!(!last_seen, "data after LAST_PDU");
                    assert_eq!(pdu.range().0 as usize, read.len(), "DATAO");
                    read.extend_from_slice(&pdu.data);
                    last_seen = pdu.has(LAST_PDU);
                    if pdu.has(SUCCESS) {
                        let cqe = Cqe {
                            dw0: 0,
                            dw1: 0,
                            sqhd: 0,
                            cid,
                            status: 0,
                        };
                        return Reply {
                            cqe,
                            data: read,
                            by_flag: true,
                        };
                    }
                }
                CAPSULE_RESP => {
                    let cqe = pdu.cqe();
                    assert!(
                        read.is_empty() || last_seen || cqe.code() != (0, 0),
                        "data ended without LAST_PDU"
                    );
                    return Reply {
                        cqe,
                        data: read,
                        by_flag: false,
                    };
                }
                _ => panic!("unexpected {pdu:02x?}"),
            }
        }
    }

    /// Sends what an R2T asks for.
    #[track_caller]
    pub(crate) fn serve(&mut self, r2t: &Pdu, data: &[u8]) {
        for pdu in self.h2c_data_for(r2t, data) {
            self.send(&pdu);
        }
    }

    /// The H2CData PDUs that answer an R2T.
    #[track_caller]
    pub(crate) fn h2c_data_for(&self, r2t: &Pdu, data: &[u8]) -> Vec<Vec<u8>> {
        let (offset, len) = r2t.range();
        assert!(len > 0, "an R2T for nothing");
        let (start, len) = (offset as usize, len as usize);
        assert!(start + len <= data.len(), "an R2T beyond the command");
        let limit = self.h2c_limit.min(self.maxh2cdata as usize);
        let pieces: VecDeque<&[u8]> = data[start..start + len].chunks(limit).collect();
        let count = pieces.len();
        let mut at = offset;
        let mut pdus = Vec::with_capacity(count);
        for (index, piece) in pieces.into_iter().enumerate() {
            let last = index + 1 == count;
            pdus.push(
                self.framing
                    .h2c_data(r2t.cid(), r2t.ttag(), at, piece, last),
            );
            at += u32::try_from(piece.len()).expect("32 bits");
        }
        pdus
    }

    /// Writes blocks by R2T.
    #[track_caller]
    pub(crate) fn write(&mut self, slba: u64, data: &[u8]) {
        self.run(Sqe::write(0, slba, blocks(data.len())), data).ok();
    }

    /// Writes blocks with the data in the capsule.
    #[track_caller]
    pub(crate) fn write_in_capsule(&mut self, slba: u64, data: &[u8]) {
        let len = u32::try_from(data.len()).expect("32 bits");
        let sqe = Sqe::write(0, slba, blocks(data.len())).in_capsule(len);
        self.run(sqe, data).ok();
    }

    /// Reads `len` bytes of blocks.
    #[track_caller]
    pub(crate) fn read(&mut self, slba: u64, len: usize) -> Vec<u8> {
        let data = self.run(Sqe::read(0, slba, blocks(len)), &[]).ok().data;
        assert_eq!(data.len(), len, "a read of another length");
        data
    }
}

/// How many blocks `len` bytes are.
pub(crate) fn blocks(len: usize) -> u16 {
    u16::try_from(len / crate::BLOCK as usize).expect("few blocks")
}
