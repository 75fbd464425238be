//! What client and server agree on before the first request: the options of fixed newstyle.
use super::protocol::{FIXED_NEWSTYLE, MAX_PAYLOAD, NO_ZEROES};
use super::protocol::{info, option, option_reply, rep, transmission};

/// Data of an option that is looked at, bytes: a name of the greatest length, and some.
pub(super) const MAX_OPTION: u32 = 16 << 10;

/// What is exported.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) name: String,
    /// For people.
    pub(super) description: String,
    /// Bytes.
    pub(super) size: u64,
    /// Bytes of a logical block: no request has to do with a part of one.
    pub(super) block_size: u32,
    /// Bytes: multiples of it are fast. A power of two.
    pub(super) preferred: u32,
    pub(super) read_only: bool,
    pub(super) trim: bool,
    pub(super) write_zeroes: bool,
    /// Write Zeroes may deallocate, and what is deallocated reads as zeroes.
    pub(super) deallocated_is_zero: bool,
}

impl Export {
    /// Transmission flags.
    fn flags(&self, structured: bool) -> u16 {
        use transmission as flag;
        // One namespace behind all connections: a flush of one is a flush of all.
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        for (has, bits) in [
            (self.read_only, flag::READ_ONLY),
            (self.trim, flag::SEND_TRIM),
            (
                self.write_zeroes,
                flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
            ),
            (structured, flag::SEND_DF),
        ] {
            if has {
                flags |= bits;
            }
        }
        flags
    }

    /// By its name, or as the default export.
    fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// The server's side of the option haggling.
#[derive(Debug)]
pub(super) struct Negotiation<'a> {
    export: &'a Export,
    no_zeroes: bool,
    structured: bool,
}

/// What follows an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another option.
    Option,
    /// Requests.
    Transmission,
    /// Nothing: close, once the replies are sent.
    Close,
}

/// The data of an option contradict themselves.
struct Malformed;

impl<'a> Negotiation<'a> {
    /// The client answered the greeting with these flags. `None` if the connection
    /// has to be closed because of them.
    pub(super) fn new(export: &'a Export, client_flags: u32) -> Option<Self> {
        if client_flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return None;
        }
        Some(Self {
            export,
            no_zeroes: client_flags & u32::from(NO_ZEROES) != 0,
            structured: false,
        })
    }

    /// Structured replies were agreed on.
    pub(super) fn structured(&self) -> bool {
        self.structured
    }

    /// An option with its data; the replies are appended to `out`.
    pub(super) fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        match option {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                option_reply(out, option, rep::ACK, &[]);
                return Next::Close;
            }
            option::INFO | option::GO => return self.go(option, data, out),
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                refuse(out, option, rep::ERR_INVALID, "the option has no data");
            }
            option::LIST => {
                let Export {
                    name, description, ..
                } = self.export;
                let parts: [&[u8]; 3] = [&len(name), name.as_bytes(), description.as_bytes()];
                option_reply(out, option, rep::SERVER, &parts);
                option_reply(out, option, rep::ACK, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                option_reply(out, option, rep::ACK, &[]);
            }
            option::STARTTLS => refuse(out, option, rep::ERR_UNSUP, "there is no TLS here"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                // Which blocks are allocated is not to be learnt from the controller.
                refuse(
                    out,
                    option,
                    rep::ERR_UNSUP,
                    "there are no metadata contexts here",
                );
            }
            _ => refuse(out, option, rep::ERR_UNSUP, "the option is unknown here"),
        }
        Next::Option
    }

    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Next {
        let export = self.export;
        if !export.is_called(name) {
            // There is no way to say why.
            return Next::Close;
        }
        out.extend_from_slice(&export.size.to_be_bytes());
        out.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Next::Transmission
    }

    /// NBD_OPT_INFO and NBD_OPT_GO.
    fn go(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let export = self.export;
        let Ok((name, wanted)) = info_request(data) else {
            let why = "the lengths in the option contradict each other";
            refuse(out, option, rep::ERR_INVALID, why);
            return Next::Option;
        };
        if !export.is_called(name) {
            let name = String::from_utf8_lossy(&name[..name.len().min(256)]);
            let why = format!("there is no export `{name}`; there is `{}`", export.name);
            refuse(out, option, rep::ERR_UNKNOWN, &why);
            return Next::Option;
        }
        let mut tell = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let parts: Vec<&[u8]> = [&kind[..]]
                .into_iter()
                .chain(parts.iter().copied())
                .collect();
            option_reply(out, option, rep::INFO, &parts);
        };
        let flags = export.flags(self.structured).to_be_bytes();
        tell(info::EXPORT, &[&export.size.to_be_bytes(), &flags]);
        // Even if the client did not ask: it is told if it listens.
        let sizes = [export.block_size, export.preferred, MAX_PAYLOAD].map(u32::to_be_bytes);
        tell(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        if wanted.contains(&info::NAME) {
            tell(info::NAME, &[export.name.as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) {
            tell(info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        option_reply(out, option, rep::ACK, &[]);
        match option {
            option::GO => Next::Transmission,
            _ => Next::Option,
        }
    }
}

/// Name and information that is asked for.
fn info_request(data: &[u8]) -> Result<(&[u8], Vec<u16>), Malformed> {
    let (len, rest) = data.split_first_chunk().ok_or(Malformed)?;
    let (name, rest) = rest
        .split_at_checked(u32::from_be_bytes(*len) as usize)
        .ok_or(Malformed)?;
    let (count, rest) = rest.split_first_chunk().ok_or(Malformed)?;
    let (wanted, odd) = rest.as_chunks();
    if wanted.len() != usize::from(u16::from_be_bytes(*count)) || !odd.is_empty() {
        return Err(Malformed);
    }
    Ok((
        name,
        wanted
            .iter()
            .map(|kind| u16::from_be_bytes(*kind))
            .collect(),
    ))
}

fn refuse(out: &mut Vec<u8>, option: u32, reply: u32, why: &str) {
    option_reply(out, option, reply, &[why.as_bytes()]);
}

/// The length of a name, as it goes in front of it. Names are checked to be short.
fn len(name: &str) -> [u8; 4] {
    u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::testing::numbers;
    use super::*;

    const REPLY: [u8; 8] = [0x00, 0x03, 0xE8, 0x89, 0x04, 0x55, 0x65, 0xA9];

    fn export() -> Export {
        Export {
            name: "nqn.a:b".to_owned(),
            description: "disk".to_owned(),
            size: 0x0100_0000_0200,
            block_size: 512,
            preferred: 4096,
            read_only: false,
            trim: true,
            write_zeroes: true,
            deallocated_is_zero: true,
        }
    }

    /// Replies in hexadecimal, each as its option, its type and its data.
    fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(bytes[..8], REPLY);
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let len = word(16) as usize;
            found.push((word(8), word(12), bytes[20..20 + len].to_vec()));
            bytes = &bytes[20 + len..];
        }
        found
    }

    fn ask(negotiation: &mut Negotiation<'_>, code: u32, data: &[u8]) -> (Next, Vec<u8>) {
        let mut out = Vec::new();
        let next = negotiation.option(code, data, &mut out);
        (next, out)
    }

    /// The single reply to an option, which ends nothing.
    fn answer(negotiation: &mut Negotiation<'_>, code: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let (next, out) = ask(negotiation, code, data);
        assert_eq!(next, Next::Option);
        let mut replies = replies(&out);
        assert_eq!(replies.len(), 1, "{replies:?}");
        let (option, reply, data) = replies.remove(0);
        assert_eq!(option, code);
        (reply, data)
    }

    #[test]
    fn client_flags_that_are_unknown_end_it() {
        let export = export();
        for flags in 0..4 {
            assert!(Negotiation::new(&export, flags).is_some());
        }
        for bit in 2..32 {
            assert!(Negotiation::new(&export, 1 << bit).is_none());
        }
    }

    #[test]
    fn export_name() {
        let export = export();
        // Flags, flush, FUA, trim, write zeroes, multi-conn, fast zero.
        let expected = [0, 0, 1, 0, 0, 0, 2, 0, 0x09, 0x6D];
        for (flags, zeroes) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
            for name in ["", "nqn.a:b"] {
                let mut negotiation = Negotiation::new(&export, flags).unwrap();
                let (next, out) = ask(&mut negotiation, 1, name.as_bytes());
                assert_eq!(next, Next::Transmission);
                assert_eq!(out[..10], expected);
                assert_eq!(out[10..], vec![0; zeroes]);
            }
        }
        let mut negotiation = Negotiation::new(&export, 3).unwrap();
        for name in ["nqn.a:", "nqn.a:bb", "x"] {
            let closed = (Next::Close, Vec::new());
            assert_eq!(ask(&mut negotiation, 1, name.as_bytes()), closed);
        }
    }

    #[test]
    fn transmission_flags() {
        let mut export = export();
        assert_eq!(export.flags(true), 0x09ED);
        export.write_zeroes = false;
        assert_eq!(export.flags(false), 0x012D);
        export.trim = false;
        export.read_only = true;
        assert_eq!(export.flags(false), 0x010F);
    }

    #[test]
    fn go_and_info_tell_all_that_is_asked_for() {
        let export = export();
        for (code, next) in [(6, Next::Option), (7, Next::Transmission)] {
            let mut negotiation = Negotiation::new(&export, 3).unwrap();
            assert_eq!(answer(&mut negotiation, 8, b""), (1, Vec::new()));
            assert!(negotiation.structured());
            // Block sizes, the name, the description, and something of the future.
            let data = b"\0\0\0\x07nqn.a:b\0\x04\0\x03\0\x01\0\x02\x12\x34";
            let (followed, out) = ask(&mut negotiation, code, data);
            assert_eq!(followed, next);
            let exported = vec![0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0x09, 0xED];
            let sizes = vec![0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0];
            assert_eq!(
                replies(&out),
                [
                    (code, 3, exported),
                    (code, 3, sizes),
                    (code, 3, b"\0\x01nqn.a:b".to_vec()),
                    (code, 3, b"\0\x02disk".to_vec()),
                    (code, 1, Vec::new()),
                ]
            );
            let (followed, out) = ask(&mut negotiation, code, b"\0\0\0\0\0\0");
            assert_eq!((followed, replies(&out).len()), (next, 3));
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_one() {
        let export = export();
        let mut negotiation = Negotiation::new(&export, 1).unwrap();
        let (reply, why) = answer(&mut negotiation, 7, b"\0\0\0\x01c\0\0");
        let expected = "there is no export `c`; there is `nqn.a:b`";
        assert_eq!((reply, &*why), (0x8000_0006, expected.as_bytes()));
        // Not UTF-8, and long.
        let mut data = 4000_u32.to_be_bytes().to_vec();
        data.extend([0xFF; 4002]);
        data[4004..].fill(0);
        let (reply, why) = answer(&mut negotiation, 6, &data);
        assert!(reply == 0x8000_0006 && why.len() < 4096);
    }

    #[test]
    fn options_that_contradict_themselves_are_refused() {
        let export = export();
        let mut negotiation = Negotiation::new(&export, 1).unwrap();
        for data in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\0",
            b"\0\0\0\0\0",
            b"\0\0\0\x01\0\0",
            b"\xff\xff\xff\xff\0\0",
            b"\0\0\0\0\0\x01",
            b"\0\0\0\0\0\x01\0",
            b"\0\0\0\0\0\x01\0\x03\0",
            b"\0\0\0\0\0\0\0",
            b"\0\0\0\0\xff\xff\0\x03",
        ] {
            for code in [6, 7] {
                let (reply, _) = answer(&mut negotiation, code, data);
                assert_eq!(reply, 0x8000_0003, "{data:?}");
            }
        }
        for code in [3, 8] {
            assert_eq!(answer(&mut negotiation, code, b"x").0, 0x8000_0003);
        }
        assert!(!negotiation.structured());
    }

    #[test]
    fn any_bytes_have_a_bounded_answer() {
        let export = export();
        let mut next = numbers();
        for _ in 0..20_000 {
            let mut negotiation = Negotiation::new(&export, 3).unwrap();
            let data: Vec<u8> = (0..next() % 24).map(|_| (next() % 3) as u8).collect();
            let (_, out) = ask(&mut negotiation, (next() % 12) as u32, &data);
            assert!(out.len() < 512, "{data:?}");
        }
    }

    #[test]
    fn list_and_abort() {
        let export = export();
        let mut negotiation = Negotiation::new(&export, 1).unwrap();
        let (next, out) = ask(&mut negotiation, 3, b"");
        assert_eq!(next, Next::Option);
        let server = b"\0\0\0\x07nqn.a:bdisk".to_vec();
        assert_eq!(replies(&out), [(3, 2, server), (3, 1, Vec::new())]);
        let (next, out) = ask(&mut negotiation, 2, b"whatever");
        assert_eq!(next, Next::Close);
        assert_eq!(replies(&out), [(2, 1, Vec::new())]);
    }

    #[test]
    fn what_there_is_not_is_unsupported() {
        let export = export();
        let mut negotiation = Negotiation::new(&export, 1).unwrap();
        for code in [0, 4, 5, 9, 10, 11, 12, u32::MAX] {
            let (reply, why) = answer(&mut negotiation, code, b"data");
            assert_eq!(reply, 0x8000_0001);
            assert!(!why.is_empty());
        }
    }
}
