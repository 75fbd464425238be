//! The messages of the NBD protocol, newstyle (doc/proto.md of the nbd project). All numbers are big-endian.
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Data that one request may move, bytes. A client that has not asked for limits may count on as much.
pub(super) const MAX_PAYLOAD: u32 = 32 << 20;

const NBDMAGIC: u64 = 0x4E42_444D_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668E_33EF;

/// Handshake and client flags: fixed newstyle.
pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake and client flags: no 124 zeroes behind the reply to NBD_OPT_EXPORT_NAME.
pub(super) const NO_ZEROES: u16 = 1 << 1;

/// Transmission flags.
pub(super) mod transmission {
    pub(in super::super) const HAS_FLAGS: u16 = 1 << 0;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in super::super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options (NBD_OPT_*).
pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const STARTTLS: u32 = 5;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const LIST_META_CONTEXT: u32 = 9;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options (NBD_REP_*).
pub(super) mod rep {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const ERR_UNSUP: u32 = 0x8000_0001;
    pub(in super::super) const ERR_INVALID: u32 = 0x8000_0003;
    pub(in super::super) const ERR_UNKNOWN: u32 = 0x8000_0006;
}

/// Kinds of information about an export (NBD_INFO_*).
pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const DESCRIPTION: u16 = 2;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// Flags of a request (NBD_CMD_FLAG_*).
pub(super) mod command_flag {
    pub(in super::super) const FUA: u16 = 1 << 0;
    pub(in super::super) const NO_HOLE: u16 = 1 << 1;
    pub(in super::super) const DF: u16 = 1 << 2;
    pub(in super::super) const FAST_ZERO: u16 = 1 << 4;
}

/// The commands that there are here (NBD_CMD_*).
pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISC: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
}

/// Error values of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Errno {
    Perm = 1,
    Io = 5,
    Inval = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
    Shutdown = 108,
}

/// What the client sent is not NBD: nothing that follows can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client sent a wrong magic number")]
pub(super) struct WrongMagic;

/// What a server says first.
pub(super) fn greeting() -> [u8; 18] {
    #[derive(IntoBytes, Immutable, Unaligned)]
    #[repr(C)]
    struct Greeting {
        nbdmagic: U64,
        ihaveopt: U64,
        flags: U16,
    }
    let greeting = Greeting {
        nbdmagic: NBDMAGIC.into(),
        ihaveopt: IHAVEOPT.into(),
        flags: (FIXED_NEWSTYLE | NO_ZEROES).into(),
    };
    zerocopy::transmute!(greeting)
}

/// What comes before the data of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHeader {
    pub(super) option: u32,
    /// Bytes of data that follow.
    pub(super) length: u32,
}

impl OptionHeader {
    pub(super) const LEN: usize = 16;

    pub(super) fn decode(bytes: [u8; Self::LEN]) -> Result<Self, WrongMagic> {
        #[derive(FromBytes, Unaligned)]
        #[repr(C)]
        struct Wire {
            magic: U64,
            option: U32,
            length: U32,
        }
        let wire: Wire = zerocopy::transmute!(bytes);
        if wire.magic != IHAVEOPT {
            return Err(WrongMagic);
        }
        Ok(Self {
            option: wire.option.get(),
            length: wire.length.get(),
        })
    }
}

/// Appends a reply to an option; its data are the parts in their order.
pub(super) fn option_reply(out: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    #[derive(IntoBytes, Immutable, Unaligned)]
    #[repr(C)]
    struct Wire {
        magic: U64,
        option: U32,
        reply: U32,
        length: U32,
    }
    let length: usize = data.iter().map(|part| part.len()).sum();
    let wire = Wire {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        reply: reply.into(),
        // Names and messages, which are short.
        length: u32::try_from(length).unwrap_or(u32::MAX).into(),
    };
    out.extend_from_slice(wire.as_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

/// A request of the transmission phase, without the data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: u16,
    /// Comes back with the reply.
    pub(super) cookie: u64,
    /// Bytes.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) length: u32,
}

impl Request {
    pub(super) const LEN: usize = 28;

    pub(super) fn decode(bytes: [u8; Self::LEN]) -> Result<Self, WrongMagic> {
        #[derive(FromBytes, KnownLayout, Unaligned)]
        #[repr(C)]
        struct Wire {
            magic: U32,
            flags: U16,
            command: U16,
            cookie: U64,
            offset: U64,
            length: U32,
        }
        let wire: Wire = zerocopy::transmute!(bytes);
        if wire.magic != REQUEST_MAGIC {
            return Err(WrongMagic);
        }
        Ok(Self {
            flags: wire.flags.get(),
            command: wire.command.get(),
            cookie: wire.cookie.get(),
            offset: wire.offset.get(),
            length: wire.length.get(),
        })
    }
}

/// What goes in front of the data of a reply, or is all of it.
pub(super) enum Reply<'a> {
    /// Success. Data of a read follow: `length` bytes of them, from `offset` on.
    Done { offset: u64, length: u32 },
    /// An error, with a text for people.
    Failed { errno: Errno, message: &'a str },
}

/// Appends a reply, but for the data of a read.
pub(super) fn reply(out: &mut Vec<u8>, structured: bool, cookie: u64, reply: &Reply<'_>) {
    #[derive(IntoBytes, Immutable, Unaligned)]
    #[repr(C)]
    struct Simple {
        magic: U32,
        errno: U32,
        cookie: U64,
    }
    #[derive(IntoBytes, Immutable, Unaligned)]
    #[repr(C)]
    struct Chunk {
        magic: U32,
        flags: U16,
        kind: U16,
        cookie: U64,
        length: U32,
    }
    const DONE: u16 = 1 << 0;
    const NONE: u16 = 0;
    const OFFSET_DATA: u16 = 1;
    const ERROR: u16 = 0x8001;
    let mut chunk = |kind: u16, length: u32, rest: &[&[u8]]| {
        let chunk = Chunk {
            magic: STRUCTURED_REPLY_MAGIC.into(),
            flags: DONE.into(),
            kind: kind.into(),
            cookie: cookie.into(),
            length: length.into(),
        };
        out.extend_from_slice(chunk.as_bytes());
        for part in rest {
            out.extend_from_slice(part);
        }
    };
    match reply {
        Reply::Done { length: 0, .. } if structured => chunk(NONE, 0, &[]),
        // All of the data are there already, so no error can come after it.
        Reply::Done { offset, length } if structured => {
            chunk(OFFSET_DATA, length + 8, &[&offset.to_be_bytes()]);
        }
        Reply::Failed { errno, message } if structured => {
            let message = message.as_bytes();
            let message = &message[..message.len().min(4096)];
            let length = message.len() as u16;
            chunk(
                ERROR,
                6 + u32::from(length),
                &[
                    &(*errno as u32).to_be_bytes(),
                    &length.to_be_bytes(),
                    message,
                ],
            );
        }
        Reply::Done { .. } | Reply::Failed { .. } => {
            let errno = match reply {
                Reply::Done { .. } => 0,
                Reply::Failed { errno, .. } => *errno as u32,
            };
            let simple = Simple {
                magic: SIMPLE_REPLY_MAGIC.into(),
                errno: errno.into(),
                cookie: cookie.into(),
            };
            out.extend_from_slice(simple.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting() {
        assert_eq!(&greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
    }

    #[test]
    fn options() {
        let header = OptionHeader::decode(*b"IHAVEOPT\x00\x00\x00\x07\x00\x00\x01\x02");
        assert_eq!(
            header,
            Ok(OptionHeader {
                option: option::GO,
                length: 0x102
            })
        );
        let wrong = OptionHeader::decode(*b"IHAVEOPS\x00\x00\x00\x07\x00\x00\x00\x00");
        assert_eq!(wrong, Err(WrongMagic));

        let mut out = vec![9];
        option_reply(&mut out, option::LIST, rep::SERVER, &[b"\0\0\0\x01", b"n"]);
        let mut expected = vec![9, 0, 0x03, 0xE8, 0x89, 0x04, 0x55, 0x65, 0xA9];
        expected.extend([0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 1, b'n']);
        assert_eq!(out, expected);
    }

    #[test]
    fn requests() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0x00, 0x12, 0x00, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0,
            0, 0, 2, 0x80, 0, 0, 3,
        ];
        let request = Request {
            flags: command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command: command::WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1_0000_0002,
            length: 0x8000_0003,
        };
        assert_eq!(Request::decode(bytes), Ok(request));
        for byte in 0..4 {
            let mut wrong = bytes;
            wrong[byte] ^= 1;
            assert_eq!(Request::decode(wrong), Err(WrongMagic));
        }
    }

    fn encoded(structured: bool, of: Reply<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        reply(&mut out, structured, 0x0102_0304_0506_0708, &of);
        out
    }

    #[test]
    fn simple_replies() {
        let mut expected = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        for length in [0, 512] {
            let done = Reply::Done { offset: 5, length };
            assert_eq!(encoded(false, done), expected);
        }
        for (errno, code) in [
            (Errno::Perm, 1),
            (Errno::Io, 5),
            (Errno::Inval, 22),
            (Errno::NoSpace, 28),
            (Errno::Overflow, 75),
            (Errno::NotSupported, 95),
            (Errno::Shutdown, 108),
        ] {
            let message = "no place for it";
            expected[7] = code;
            assert_eq!(encoded(false, Reply::Failed { errno, message }), expected);
        }
    }

    #[test]
    fn structured_replies() {
        let chunk = |kind: [u8; 2], length: [u8; 4], rest: &[u8]| {
            let mut bytes = vec![0x66, 0x8E, 0x33, 0xEF, 0, 1, kind[0], kind[1]];
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
            bytes.extend(length);
            bytes.extend(rest);
            bytes
        };
        let done = |offset, length| Reply::Done { offset, length };
        assert_eq!(encoded(true, done(7, 0)), chunk([0, 0], [0; 4], &[]));
        assert_eq!(
            encoded(true, done(0x100, MAX_PAYLOAD)),
            chunk([0, 1], [2, 0, 0, 8], &[0, 0, 0, 0, 0, 0, 1, 0])
        );
        let failed = |message| {
            let errno = Errno::NoSpace;
            encoded(true, Reply::Failed { errno, message })
        };
        assert_eq!(
            failed("full"),
            chunk([0x80, 1], [0, 0, 0, 10], b"\0\0\0\x1c\0\x04full")
        );
        // A string of the protocol has 4096 bytes at most.
        assert_eq!(failed(&"x".repeat(5000)).len(), 20 + 6 + 4096);
    }
}
