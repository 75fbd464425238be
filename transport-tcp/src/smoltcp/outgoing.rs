//! What a connection has to say, written into its socket's ring.
use nvmf_core::digest::Crc32c;
use nvmf_core::tcp::target::Transmit;
use nvmf_core::tcp::tx::MAX_HEAD;
use nvmf_core::{Place, SlotId, Source};
use smoltcp::socket::tcp::Socket;

/// A machine, as far as its words are concerned.
pub(super) trait Speaker {
    /// Whether there is a PDU to send.
    fn wants_transmit(&self) -> bool;

    /// Writes the head of the next PDU and tells what follows it.
    fn poll_transmit(&mut self, head: &mut [u8; MAX_HEAD]) -> Option<Transmit>;

    /// The bytes of a command's buffer.
    fn payload(&self, place: &Place) -> &[u8];

    /// A command's last byte is in the ring.
    fn sent(&mut self, slot: SlotId);
}

/// What is left of the PDU that is being written. There is none while the ring
/// has no room for the longest head, so heads are written whole.
#[derive(Debug, Default)]
pub(super) struct Outgoing(Option<Rest>);

#[derive(Clone, Copy, Debug)]
struct Rest {
    payload: Place,
    /// Digest of the payload written, if one follows it.
    digest: Option<u32>,
    finishes: Option<SlotId>,
}

impl Outgoing {
    /// Whether every PDU that was begun is written.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Writes as much as there is, or as there is room for. True if anything was.
    pub(super) fn write(
        &mut self,
        socket: &mut Socket,
        speaker: &mut impl Speaker,
        crc32c: Crc32c,
    ) -> bool {
        let mut any = false;
        while socket.may_send() {
            let moved = match &mut self.0 {
                None => self.head(socket, speaker),
                Some(rest) if rest.payload.len > 0 => rest.data(socket, speaker, crc32c),
                Some(rest) => {
                    let moved = rest.end(socket);
                    if moved {
                        let finishes = rest.finishes;
                        self.0 = None;
                        finish(speaker, finishes);
                    }
                    moved
                }
            };
            if !moved {
                break;
            }
            any = true;
        }
        any
    }

    fn head(&mut self, socket: &mut Socket, speaker: &mut impl Speaker) -> bool {
        if room(socket) < MAX_HEAD || !speaker.wants_transmit() {
            return false;
        }
        let in_place = socket.send(|ring| match ring.first_chunk_mut() {
            Some(head) => {
                let transmit = speaker.poll_transmit(head);
                (transmit.map_or(0, |it| it.head_len), Some(transmit))
            }
            None => (0, None),
        });
        let transmit = match in_place {
            Ok(Some(transmit)) => transmit,
            // The ring has room, but not in one piece: it ends here.
            _ => {
                let mut head = [0; MAX_HEAD];
                let transmit = speaker.poll_transmit(&mut head);
                let len = transmit.map_or(0, |it| it.head_len);
                let _ = socket.send_slice(head.get(..len).unwrap_or_default());
                transmit
            }
        };
        let Some(transmit) = transmit else {
            return false;
        };
        match transmit.payload {
            Some(Source::Slot(payload)) => {
                self.0 = Some(Rest {
                    payload,
                    digest: transmit.data_digest.then_some(0),
                    finishes: transmit.finishes,
                });
            }
            // Nothing here lends its memory.
            Some(Source::Media { .. }) | None => finish(speaker, transmit.finishes),
        }
        true
    }
}

impl Rest {
    fn data(&mut self, socket: &mut Socket, speaker: &impl Speaker, crc32c: Crc32c) -> bool {
        let data = speaker.payload(&self.payload);
        let written = socket.send(|ring| {
            let len = ring.len().min(data.len());
            if let (Some(to), Some(from)) = (ring.get_mut(..len), data.get(..len)) {
                to.copy_from_slice(from);
                self.digest = self.digest.map(|digest| crc32c(digest, from));
            }
            (len, len)
        });
        let written = written.unwrap_or(0) as u32;
        self.payload.offset += written;
        self.payload.len -= written;
        written > 0
    }

    /// Writes what follows the payload; false if there is no room for it.
    fn end(&self, socket: &mut Socket) -> bool {
        let Some(digest) = self.digest else {
            return true;
        };
        room(socket) >= 4 && socket.send_slice(&digest.to_le_bytes()).is_ok()
    }
}

fn finish(speaker: &mut impl Speaker, finishes: Option<SlotId>) {
    if let Some(slot) = finishes {
        speaker.sent(slot);
    }
}

fn room(socket: &Socket) -> usize {
    socket.send_capacity() - socket.send_queue()
}
