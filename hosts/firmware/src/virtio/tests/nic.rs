use smoltcp::phy::{Device, RxToken, TxToken};
use smoltcp::time::Instant;

use super::super::nic::{Frame, Nic};
use super::{Fake, Identity, leak};

const MAC: u64 = 1 << 5;
const VERSION_1: u64 = 1 << 32;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

fn start(features: u64) -> (Fake, Nic<Identity, Fake, 4>) {
    let fake = Fake::new(features, &[2, 3, 4, 5, 6, 7]);
    let frames = || leak([Frame::EMPTY; 4]);
    let nic = Nic::start(fake.clone(), frames(), frames()).unwrap();
    (fake, nic)
}

#[test]
fn receives_into_the_same_frames_again() {
    let (fake, mut nic) = start(MAC | VERSION_1);
    assert_eq!(nic.mac(), Some([2, 3, 4, 5, 6, 7]));
    for round in 0..20u8 {
        assert!(nic.receive(Instant::ZERO).is_none());
        let chain = fake.next(RECEIVE).expect("room for a frame");
        assert!(chain.room() >= 1526);
        let mut bytes = [round; 12 + 60];
        bytes[..12].fill(0);
        chain.fill(&bytes);
        fake.end(RECEIVE, chain.head, bytes.len());
        let (received, _) = nic.receive(Instant::ZERO).unwrap();
        received.consume(|frame| assert_eq!(frame, [round; 60]));
        nic.kick();
    }
}

#[test]
fn sends_and_tells_once() {
    let (fake, mut nic) = start(VERSION_1);
    assert_eq!(nic.mac(), None);
    for round in 0..10u8 {
        for _ in 0..4 {
            let to_send = nic.transmit(Instant::ZERO).expect("room for a frame");
            to_send.consume(100, |frame| frame.fill(round));
        }
        assert!(nic.transmit(Instant::ZERO).is_none());
        nic.kick();
        nic.kick();
        assert_eq!(fake.0.borrow().notified[TRANSMIT], usize::from(round) + 1);
        for _ in 0..4 {
            let chain = fake.next(TRANSMIT).unwrap();
            let (header, frame) = chain.read.split_at(12);
            assert_eq!((header, frame), (&[0; 12][..], &[round; 100][..]));
            fake.end(TRANSMIT, chain.head, 0);
        }
    }
}

#[test]
fn what_arrived_is_looked_at_once_there_is_room_to_answer() {
    let (fake, mut nic) = start(VERSION_1);
    assert!(fake.interrupts(RECEIVE) && !fake.interrupts(TRANSMIT));
    for _ in 0..4 {
        let to_send = nic.transmit(Instant::ZERO).expect("room for a frame");
        to_send.consume(60, |_| {});
    }
    let chain = fake.next(RECEIVE).unwrap();
    fake.end(RECEIVE, chain.head, 72);
    // The board sleeps now: whoever makes room wakes it.
    assert!(nic.receive(Instant::ZERO).is_none());
    assert!(fake.interrupts(TRANSMIT));
    let chain = fake.next(TRANSMIT).unwrap();
    fake.end(TRANSMIT, chain.head, 0);
    assert!(nic.receive(Instant::ZERO).is_some());
    assert!(!fake.interrupts(TRANSMIT));
}

#[test]
fn headers_were_shorter_once() {
    let (fake, mut nic) = start(0);
    nic.transmit(Instant::ZERO).unwrap().consume(5, |_| {});
    assert_eq!(fake.next(TRANSMIT).unwrap().read.len(), 15);
    let chain = fake.next(RECEIVE).unwrap();
    fake.end(RECEIVE, chain.head, 3);
    let (received, _) = nic.receive(Instant::ZERO).unwrap();
    received.consume(|frame| assert!(frame.is_empty(), "less than a header"));
}

#[test]
fn what_comes_back_twice_is_not_looked_at() {
    let (fake, mut nic) = start(VERSION_1);
    let chain = fake.next(RECEIVE).unwrap();
    fake.end(RECEIVE, chain.head, 72);
    assert!(nic.receive(Instant::ZERO).is_some());
    let chain = fake.next(RECEIVE).unwrap();
    for head in [chain.head, chain.head, 4] {
        fake.end(RECEIVE, head, 72);
    }
    let (received, _) = nic.receive(Instant::ZERO).unwrap();
    core::mem::forget(received);
    assert!(nic.receive(Instant::ZERO).is_none());

    nic.transmit(Instant::ZERO).unwrap().consume(60, |_| {});
    let chain = fake.next(TRANSMIT).unwrap();
    for head in [chain.head, 4] {
        fake.end(TRANSMIT, head, 0);
    }
    for _ in 0..4 {
        nic.transmit(Instant::ZERO).unwrap().consume(60, |_| {});
    }
    assert!(nic.transmit(Instant::ZERO).is_none());
}
