//! What a connection has to say, gathered from heads of ours, buffers of
//! commands and memory of devices, and said with few system calls.
//!
//! An outbox is filled from the machine once, then written until it is empty.
//! While it is not, the machine is not asked for more: a peer that does not
//! read makes nothing grow. Payload stays where it is, so its command's slot
//! is kept until the command's last byte is written. Only what a device lends and a
//! digest covers is copied, for it could change after the digest was made: here, just
//! before it is sent, so that the kernel finds it in the cache.
use std::os::fd::AsFd;

use nvmf_core::digest::Crc32c;
use nvmf_core::target::NamespaceRef;
use nvmf_core::tcp::target::Transmit;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::{Place, SlotId, Source};
use rustix::net::SendFlags;

use super::buffer::Buffer;
use super::connection::Machine;
use super::devices::Devices;
use super::gather::Gather;

/// Parts that one system call takes.
const PARTS: usize = 512;
/// Parts that a PDU may add: head, payload, data digest.
const PARTS_OF_A_PDU: usize = 3;
/// When there is this much to write, in bytes, nothing is added.
const ENOUGH: usize = 768 * 1024;
/// The same for data with digests, which was just read, so that it is still in the core's cache
/// when it is sent.
const ENOUGH_DIGESTED: usize = 512 * 1024;
/// Bytes that are copied before their digest is made, of both in turn: little enough for both
/// to be in the first level of the cache.
const COPIED_AT_ONCE: usize = 8 * 1024;

/// A machine, as far as an outbox is concerned.
pub(super) trait Speaker {
    /// Writes the head of the next PDU and tells what follows it.
    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit>;

    /// The bytes of a command's buffer; the first of them, where they are in several pieces.
    fn payload(&self, place: &Place) -> &[u8];

    /// Whether more may be copied of what devices lend, beside `copied` bytes.
    fn may_copy(&self, _copied: usize) -> bool {
        true
    }

    /// Memory for copies of what devices lend, `least` bytes of it or more; none if none do.
    fn room_for_copies(&mut self, _least: usize) -> Option<Buffer> {
        None
    }

    /// Copies out the memory of a device; false when it does not lend it.
    fn copy(&self, _: NamespaceRef, _byte: u64, _into: &mut [u8]) -> bool {
        false
    }
}

impl Speaker for Machine {
    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
        Self::poll_transmit(self, head)
    }

    fn payload(&self, place: &Place) -> &[u8] {
        Self::payload(self, place)
    }
}

/// PDUs on their way to a socket.
#[derive(Default)]
pub(super) struct Outbox {
    /// Heads and data digests.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// Where in the whole each command's last byte is, and whose it is.
    ends: Vec<(usize, SlotId)>,
    /// How many of `parts` and of `ends` are done with.
    parts_done: usize,
    ends_done: usize,
    /// Bytes in all, and bytes written.
    len: usize,
    written: usize,
    /// Bytes that digests cover.
    digested: usize,
    /// Copies of devices' memory, how much of the last buffer they fill, and of all.
    copies: Vec<Buffer>,
    last_copy: usize,
    copied: usize,
    /// There was nothing to copy.
    not_lent: bool,
}

struct Part {
    place: PartPlace,
    /// Where in the whole it ends.
    end: usize,
}

enum PartPlace {
    /// From here on in `bytes`.
    Own(usize),
    /// In a command's buffer.
    Slot(Place),
    /// In a device's memory.
    Media(NamespaceRef, u64),
    /// In this one of `copies`, from here on.
    Copy(usize, usize),
}

/// A device no longer lends what it said it would: there is nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotLent;

impl Outbox {
    /// Takes what the machine has to say, up to a bound. Only when empty.
    pub(super) fn fill(&mut self, speaker: &mut impl Speaker, crc32c: Crc32c) {
        let mut head = [0; MAX_HEAD];
        while self.parts.len() + PARTS_OF_A_PDU <= PARTS
            && self.len < ENOUGH
            && self.digested < ENOUGH_DIGESTED
            && speaker.may_copy(self.copied)
        {
            let Some(transmit) = speaker.poll_transmit(&mut head) else {
                return;
            };
            self.own(&head[..transmit.head_len]);
            match transmit.payload {
                None => {}
                Some(Source::Slot(place)) => {
                    let digest = self.pieces(place, speaker, |digest, piece| {
                        if transmit.data_digest {
                            crc32c(digest, piece)
                        } else {
                            digest
                        }
                    });
                    if transmit.data_digest {
                        self.digest(digest, place.len as usize);
                    }
                }
                Some(Source::Media {
                    namespace,
                    byte,
                    len,
                }) if transmit.data_digest => {
                    let digest = self.copy(namespace, byte, len as usize, speaker, crc32c);
                    self.not_lent |= digest.is_none();
                    self.digest(digest.unwrap_or_default(), len as usize);
                }
                Some(Source::Media {
                    namespace,
                    byte,
                    len,
                }) => self.part(PartPlace::Media(namespace, byte), len as usize),
            }
            if let Some(slot) = transmit.finishes {
                self.ends.push((self.len, slot));
            }
        }
    }

    /// Offers what is still to be written to the kernel; how many bytes it took.
    pub(super) fn send(
        &self,
        speaker: &impl Speaker,
        devices: &Devices,
        socket: impl AsFd,
    ) -> Result<rustix::io::Result<usize>, NotLent> {
        // Room for many parts takes its time to make: heapless fills it.
        match self.parts.len() - self.parts_done {
            0..=16 => self.send_by::<16>(speaker, devices, socket),
            17..=128 => self.send_by::<128>(speaker, devices, socket),
            _ => self.send_by::<PARTS>(speaker, devices, socket),
        }
    }

    fn send_by<const N: usize>(
        &self,
        speaker: &impl Speaker,
        devices: &Devices,
        socket: impl AsFd,
    ) -> Result<rustix::io::Result<usize>, NotLent> {
        let mut gather = Gather::<N>::new();
        self.gather(speaker, devices, &mut gather)?;
        Ok(gather.send(socket, SendFlags::empty()))
    }

    /// Gathers what is still to be written, in place: it is large.
    fn gather<'a, const N: usize>(
        &'a self,
        speaker: &'a impl Speaker,
        devices: &'a Devices,
        gather: &mut Gather<'a, N>,
    ) -> Result<(), NotLent> {
        if self.not_lent {
            return Err(NotLent);
        }
        let mut start = self.written;
        let mut skip = self.written - self.start_of(self.parts_done);
        for part in &self.parts[self.parts_done..] {
            let len = part.end - start;
            let fits = match part.place {
                PartPlace::Own(at) => gather.push(&self.bytes[at + skip..][..len]),
                PartPlace::Slot(place) => {
                    gather.push(speaker.payload(&place).get(skip..).unwrap_or_default())
                }
                PartPlace::Media(namespace, byte) => {
                    let lent = devices.lend(namespace, byte + skip as u64, len);
                    gather.push_lent(lent.ok_or(NotLent)?)
                }
                PartPlace::Copy(index, at) => {
                    gather.push(&self.copies[index].as_ref()[at + skip..][..len])
                }
            };
            if !fits {
                break;
            }
            (start, skip) = (part.end, 0);
        }
        Ok(())
    }

    /// `len` more bytes were written.
    pub(super) fn wrote(&mut self, len: usize) {
        self.written += len;
        while let Some(part) = self.parts.get(self.parts_done)
            && part.end <= self.written
        {
            self.parts_done += 1;
        }
    }

    /// The next command of which every byte is written.
    pub(super) fn pop_sent(&mut self) -> Option<SlotId> {
        let (end, slot) = *self.ends.get(self.ends_done)?;
        if end > self.written {
            return None;
        }
        self.ends_done += 1;
        Some(slot)
    }

    /// Whether all is written.
    pub(super) fn is_empty(&self) -> bool {
        self.written == self.len
    }

    /// The buffers of copies, when all is written.
    pub(super) fn take_copies(&mut self) -> impl Iterator<Item = Buffer> {
        self.copies.drain(..)
    }

    /// Forgets everything but its memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.ends.clear();
        (self.parts_done, self.ends_done) = (0, 0);
        (self.len, self.written) = (0, 0);
        (self.digested, self.last_copy, self.copied) = (0, 0, 0);
        self.not_lent = false;
        self.copies.clear();
    }

    fn own(&mut self, bytes: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        // Neighbours in memory that are neighbours in the stream are one part.
        if let Some(last) = self.parts.last_mut()
            && matches!(last.place, PartPlace::Own(_))
        {
            last.end += bytes.len();
            self.len += bytes.len();
        } else {
            self.part(PartPlace::Own(at), bytes.len());
        }
    }

    /// A part for each piece of memory that the payload is in; what `fold` makes of them.
    fn pieces(
        &mut self,
        mut place: Place,
        speaker: &impl Speaker,
        fold: impl Fn(u32, &[u8]) -> u32,
    ) -> u32 {
        let mut folded = 0;
        while place.len > 0 {
            let piece = speaker.payload(&place);
            // A place that is nowhere is no piece: what is sent is too short, and the connection ends.
            let len = match u32::try_from(piece.len()) {
                Ok(len @ 1..) => len.min(place.len),
                _ => place.len,
            };
            folded = fold(folded, piece);
            self.part(PartPlace::Slot(Place { len, ..place }), len as usize);
            place.offset += len;
            place.len -= len;
        }
        folded
    }

    /// A digest, which covers `len` bytes.
    fn digest(&mut self, digest: u32, len: usize) {
        self.own(&digest.to_le_bytes());
        self.digested += len;
    }

    /// A part that is a copy of a device's memory; its digest.
    fn copy(
        &mut self,
        namespace: NamespaceRef,
        byte: u64,
        len: usize,
        speaker: &mut impl Speaker,
        crc32c: Crc32c,
    ) -> Option<u32> {
        let left = self
            .copies
            .last()
            .map_or(0, |last| last.as_ref().len() - self.last_copy);
        if left < len {
            self.copies.push(speaker.room_for_copies(len)?);
            self.last_copy = 0;
        }
        let at = self.last_copy;
        let index = self.copies.len() - 1;
        let copies = self.copies[index].as_mut();
        let (mut digest, mut from) = (0, byte);
        for piece in copies.get_mut(at..at + len)?.chunks_mut(COPIED_AT_ONCE) {
            if !speaker.copy(namespace, from, piece) {
                return None;
            }
            digest = crc32c(digest, piece);
            from += piece.len() as u64;
        }
        self.last_copy += len;
        self.copied += len;
        self.part(PartPlace::Copy(index, at), len);
        Some(digest)
    }

    fn part(&mut self, place: PartPlace, len: usize) {
        self.len += len;
        self.parts.push(Part {
            place,
            end: self.len,
        });
    }

    fn start_of(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            Some(before) => self.parts[before].end,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use nvmf_core::block::{BlockDevice, Completion, Geometry, Request, Submit};
    use nvmf_core::digest::portable;
    use nvmf_core::wire::ids::{Nqn, Nsid};

    use super::super::buffer::Buffer;
    use super::super::catalog::Subsystem;
    use super::super::device::{Device, Identity, Namespace};
    use super::super::mapping::{Lent, Mapping};
    use super::super::waker::Waker;
    use super::*;

    const MEDIA: NamespaceRef = NamespaceRef {
        subsystem: 0,
        nsid: Nsid(1),
    };

    /// A namespace that only lends.
    #[derive(Clone)]
    struct Lender(Arc<Mapping>);

    impl Namespace for Lender {
        fn geometry(&self) -> Geometry {
            Geometry {
                block_shift: 9,
                blocks: self.0.len() as u64 >> 9,
                read_only: true,
                volatile_cache: false,
                deallocate_zeroes: false,
                optimal_blocks: 0,
            }
        }

        fn identity(&self) -> Identity {
            Identity {
                uuid: [0; 16],
                nguid: [0; 16],
                eui64: [0; 8],
            }
        }

        fn open(&self, _: &Waker) -> Box<dyn Device> {
            Box::new(self.clone())
        }
    }

    impl BlockDevice for Lender {
        type Buffer = Buffer;

        fn geometry(&self) -> Geometry {
            Namespace::geometry(self)
        }

        fn submit(&mut self, request: Request<Buffer>) -> Submit<Buffer> {
            Submit::Busy(request)
        }

        fn poll(&mut self) -> Option<Completion<Buffer>> {
            None
        }
    }

    impl Device for Lender {
        fn lend(&self, byte: u64, len: usize) -> Option<Lent<'_>> {
            self.0.lend(usize::try_from(byte).ok()?, len)
        }

        fn copy(&self, byte: u64, into: &mut [u8]) -> bool {
            usize::try_from(byte).is_ok_and(|at| self.0.read(at, into).is_ok())
        }
    }

    /// Says what it was told to.
    struct Script {
        pdus: Vec<(Vec<u8>, Transmit)>,
        buffer: Vec<u8>,
        media: Arc<Mapping>,
        /// Bytes that may be copied at once, and of a buffer for them.
        copies: usize,
    }

    impl Speaker for Script {
        fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit> {
            if self.pdus.is_empty() {
                return None;
            }
            let (bytes, transmit) = self.pdus.remove(0);
            head[..bytes.len()].copy_from_slice(&bytes);
            Some(transmit)
        }

        fn payload(&self, place: &Place) -> &[u8] {
            &self.buffer[place.offset as usize..][..place.len as usize]
        }

        fn may_copy(&self, copied: usize) -> bool {
            copied < self.copies
        }

        fn room_for_copies(&mut self, least: usize) -> Option<Buffer> {
            Some(Buffer::zeroed(least.max(self.copies)))
        }

        fn copy(&self, namespace: NamespaceRef, byte: u64, into: &mut [u8]) -> bool {
            assert_eq!(namespace, MEDIA);
            self.media.read(byte as usize, into).is_ok()
        }
    }

    fn pdu(head: &[u8], payload: Option<Source>, finishes: Option<u16>) -> (Vec<u8>, Transmit) {
        let transmit = Transmit {
            head_len: head.len(),
            payload,
            data_digest: matches!(payload, Some(Source::Slot(_))),
            finishes: finishes.map(SlotId),
        };
        (head.to_vec(), transmit)
    }

    fn script() -> (Script, Devices, Vec<u8>) {
        let mapping = Arc::new(Mapping::new(64 * 1024).unwrap());
        mapping.write(512, &[0xEE; 100]).unwrap();
        let name: Nqn = "nqn.lender".parse().unwrap();
        let subsystem = Subsystem::new(name).with(Lender(Arc::clone(&mapping)));
        let devices = Devices::open(&[subsystem], &Waker::new().unwrap());
        let buffer: Vec<u8> = (0..90).collect();
        let in_slot = Source::Slot(Place {
            slot: SlotId(3),
            offset: 10,
            len: 70,
        });
        let in_media = Source::Media {
            namespace: MEDIA,
            byte: 512,
            len: 100,
        };
        let stream = [
            b"first.second." as &[u8],
            &buffer[10..80],
            &portable(0, &buffer[10..80]).to_le_bytes(),
            b"third.",
            &[0xEE; 100],
            b"fourth.head",
            &[0xEE; 100],
            &portable(0, &[0xEE; 100]).to_le_bytes(),
        ]
        .concat();
        let script = Script {
            pdus: vec![
                pdu(b"first.", None, Some(1)),
                pdu(b"second.", Some(in_slot), Some(3)),
                pdu(b"third.", Some(in_media), None),
                pdu(b"fourth.", None, Some(2)),
                copied(512, 100, 4),
            ],
            buffer,
            media: mapping,
            copies: 4096,
        };
        (script, devices, stream)
    }

    /// A PDU with a digest of what a device lends, whatever becomes of that later.
    fn copied(byte: u64, len: u32, slot: u16) -> (Vec<u8>, Transmit) {
        let source = Source::Media {
            namespace: MEDIA,
            byte,
            len,
        };
        let (head, transmit) = pdu(b"head", Some(source), Some(slot));
        let data_digest = true;
        (
            head,
            Transmit {
                data_digest,
                ..transmit
            },
        )
    }

    /// The same stream comes out, and commands finish at the same places of it, no
    /// matter how much the kernel takes at a time.
    #[test]
    fn partial_writes_change_nothing() {
        for chunk in 1..=309 {
            let (mut script, devices, stream) = script();
            let mut outbox = Outbox::default();
            outbox.fill(&mut script, portable);
            let (mut got, mut finished) = (Vec::new(), Vec::new());
            while !outbox.is_empty() {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let offered = outbox.send(&script, &devices, &ours).unwrap().unwrap();
                drop(ours);
                let mut rest = Vec::new();
                theirs.read_to_end(&mut rest).unwrap();
                assert_eq!(rest.len(), offered);
                assert_eq!(got.len() + rest.len(), stream.len());
                rest.truncate(chunk);
                got.extend_from_slice(&rest);
                outbox.wrote(rest.len());
                while let Some(SlotId(slot)) = outbox.pop_sent() {
                    finished.push((slot, got.len()));
                }
            }
            assert_eq!(got, stream, "{chunk} bytes at a time");
            let slots: Vec<u16> = finished.iter().map(|(slot, _)| *slot).collect();
            assert_eq!(slots, [1, 3, 2, 4]);
            for ((_, at), end) in finished.iter().zip([6, 87, 200, 308]) {
                assert!((end..end + chunk).contains(at), "{finished:?}");
            }
        }
    }

    /// All that an outbox has to say.
    fn said(outbox: &Outbox, script: &Script, devices: &Devices) -> Vec<u8> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sent = outbox.send(script, devices, &ours).unwrap().unwrap();
        drop(ours);
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), sent);
        bytes
    }

    /// Others write what is to be sent after its digest was made.
    #[test]
    fn a_digest_is_that_of_what_is_sent() {
        let (mut script, devices, _) = script();
        let data: Vec<u8> = (0..40_000u32).map(|i| (i % 253) as u8).collect();
        script.media.write(0, &data).unwrap();
        script.copies = 64 * 1024;
        let ranges = [(0, 20_000), (512, 512), (1000, 39_000), (4096, 8192)];
        script.pdus = ranges
            .iter()
            .zip(1..)
            .map(|(&(byte, len), slot)| copied(byte, len, slot))
            .collect();
        let mut outbox = Outbox::default();
        outbox.fill(&mut script, portable);
        assert!(script.pdus.is_empty());
        script.media.write(0, &[0x77; 40_000]).unwrap();
        let mut expected = Vec::new();
        for (byte, len) in ranges {
            let data = &data[byte as usize..][..len as usize];
            expected.extend_from_slice(b"head");
            expected.extend_from_slice(data);
            expected.extend_from_slice(&portable(0, data).to_le_bytes());
        }
        assert_eq!(said(&outbox, &script, &devices), expected);
        // The third and the fourth do not fit into what the first two have left.
        assert_eq!(outbox.take_copies().count(), 2);
    }

    /// A host that does not read holds on to one PDU's copy, if there is no memory for more.
    #[test]
    fn copies_are_bounded() {
        let (mut script, devices, _) = script();
        script.copies = 1;
        script.pdus = (0..3).map(|slot| copied(0, 8192, slot)).collect();
        let mut outbox = Outbox::default();
        for left in [2, 1, 0] {
            outbox.fill(&mut script, portable);
            assert_eq!(script.pdus.len(), left);
            outbox.wrote(said(&outbox, &script, &devices).len());
            assert!(outbox.is_empty());
            assert_eq!(outbox.take_copies().count(), 1);
            outbox.clear();
        }
        // And with memory, no more than the cache has room for.
        script.copies = ENOUGH;
        script.pdus = (0..100).map(|slot| copied(0, 8192, slot)).collect();
        outbox.fill(&mut script, portable);
        assert_eq!(100 - script.pdus.len(), ENOUGH_DIGESTED / 8192);
    }

    #[test]
    fn what_is_not_lent_is_not_sent() {
        let (mut script, devices, _) = script();
        script.pdus = vec![copied(64 * 1024, 512, 1)];
        let mut outbox = Outbox::default();
        outbox.fill(&mut script, portable);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(outbox.send(&script, &devices, &ours), Err(NotLent));
    }

    #[test]
    fn heads_share_a_part() {
        let (mut script, devices, _) = script();
        let mut outbox = Outbox::default();
        outbox.fill(&mut script, portable);
        // Two heads, data, digest and head, data, two heads, data, digest.
        let mut gather = Gather::<PARTS>::new();
        outbox.gather(&script, &devices, &mut gather).unwrap();
        assert_eq!(PARTS - gather.room(), 7);
    }

    #[test]
    fn no_more_is_taken_than_fits() {
        let (mut script, devices, _) = script();
        script.pdus = (0..400u16)
            .map(|slot| {
                let place = Place {
                    slot: SlotId(slot),
                    offset: 0,
                    len: 1,
                };
                pdu(b"head", Some(Source::Slot(place)), Some(slot))
            })
            .collect();
        let mut outbox = Outbox::default();
        outbox.fill(&mut script, portable);
        let left = script.pdus.len();
        assert!((140..150).contains(&left), "{left}");
        let mut gather = Gather::<PARTS>::new();
        outbox.gather(&script, &devices, &mut gather).unwrap();
        assert_eq!(gather.bytes(), (400 - left) * 9);
        drop(gather);
        outbox.wrote((400 - left) * 9);
        assert!(outbox.is_empty());
        outbox.clear();
        outbox.fill(&mut script, portable);
        assert_eq!(outbox.pop_sent(), None);
        assert!(!outbox.is_empty());
    }
}
