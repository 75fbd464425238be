//! A client of NBD that knows its bytes by itself.
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const FAST_ZERO: u16 = 16;

pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

/// What came back to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Data(Vec<u8>),
    Done,
    Error(u32, String),
}

impl Client {
    /// Connects, and takes the greeting.
    pub(crate) fn greeted(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        let mut client = Self { stream };
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client
    }

    /// Connects, and is ready for options.
    pub(crate) fn connect(path: &Path) -> Self {
        let mut client = Self::greeted(path);
        client.send(&[0, 0, 0, 3]);
        client
    }

    /// Connects to the default export, with structured replies.
    pub(crate) fn ready(path: &Path) -> Self {
        let mut client = Self::connect(path);
        assert_eq!(client.option(STRUCTURED_REPLY, b""), [(1, Vec::new())]);
        let replies = client.option(GO, &[0; 6]);
        assert_eq!(replies.last().map(|(reply, _)| *reply), Some(1));
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream
            .read_exact(&mut bytes)
            .expect("the server writes");
        bytes
    }

    /// The server closes the connection, and says nothing more.
    pub(crate) fn closed(mut self) {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("not closed: {other:?}"),
        }
    }

    /// Sends an option. Its replies up to the last, each as its type and data.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(b"IHAVEOPT");
        self.send(&option.to_be_bytes());
        self.send(&(data.len() as u32).to_be_bytes());
        self.send(data);
        let mut replies = Vec::new();
        loop {
            let header = self.take(20);
            assert_eq!(header[..8], 0x0003_E889_0455_65A9_u64.to_be_bytes());
            assert_eq!(word(&header, 8), option);
            let data = self.take(word(&header, 16) as usize);
            let reply = word(&header, 12);
            replies.push((reply, data));
            if reply == 1 || reply >= 1 << 31 {
                return replies;
            }
        }
    }

    /// Sends a request and does not wait for its reply.
    pub(crate) fn request(&mut self, command: u16, flags: u16, cookie: u64, range: (u64, u32)) {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(range.0.to_be_bytes());
        bytes.extend(range.1.to_be_bytes());
        self.send(&bytes);
    }

    /// A structured reply of one chunk, with its cookie.
    pub(crate) fn reply(&mut self) -> (u64, Reply) {
        let header = self.take(20);
        assert_eq!(header[..6], [0x66, 0x8E, 0x33, 0xEF, 0, 1]);
        let cookie = u64::from_be_bytes(header[8..16].try_into().expect("8 bytes"));
        let payload = self.take(word(&header, 16) as usize);
        let reply = match (header[6], header[7]) {
            (0, 0) => {
                assert!(payload.is_empty());
                Reply::Done
            }
            (0, 1) => Reply::Data(payload[8..].to_vec()),
            (0x80, 1) => {
                let len = usize::from(u16::from_be_bytes([payload[4], payload[5]]));
                assert_eq!(payload.len(), 6 + len);
                let message = String::from_utf8_lossy(&payload[6..]).into_owned();
                Reply::Error(word(&payload, 0), message)
            }
            kind => panic!("a chunk of type {kind:x?}"),
        };
        (cookie, reply)
    }

    /// A request, and its reply.
    pub(crate) fn call(&mut self, command: u16, flags: u16, range: (u64, u32)) -> Reply {
        self.request(command, flags, 7, range);
        let (cookie, reply) = self.reply();
        assert_eq!(cookie, 7);
        reply
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        match self.call(READ, 0, (offset, len)) {
            Reply::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Reply {
        self.request(WRITE, flags, 8, (offset, data.len() as u32));
        self.send(data);
        let (cookie, reply) = self.reply();
        assert_eq!(cookie, 8);
        reply
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
