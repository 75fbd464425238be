//! Messages made by hand, cut at every byte, and with lengths that lie.
use std::format;
use std::vec;
use std::vec::Vec;

use super::*;

fn negotiate() -> Vec<u8> {
    let mut bytes = vec![0, 0x00, 0, 0, 0x02, 0x01, 0, 1];
    let mut protocol = [0; 64];
    protocol[..4].copy_from_slice(&[1, 0, 2, 2]);
    protocol[4..6].copy_from_slice(&[1, 3]);
    protocol[34..36].copy_from_slice(&[0, 5]);
    bytes.extend(protocol);
    bytes
}

/// SHA-256, ffdhe2048 (of which the value has 4 bytes here).
fn challenge() -> Vec<u8> {
    let mut bytes = vec![1, 0x01, 0, 0, 2, 1, 32, 0, 1, 1, 4, 0, 7, 0, 0, 0];
    bytes.extend([0xc1; 32]);
    bytes.extend([0xd1; 4]);
    bytes
}

fn reply(cvalid: u8) -> Vec<u8> {
    let mut bytes = vec![1, 0x02, 0, 0, 2, 1, 32, 0, cvalid, 0, 4, 0, 8, 0, 0, 0];
    bytes.extend([0xa1; 32]);
    bytes.extend([cvalid * 0xc2; 32]);
    bytes.extend([0xd2; 4]);
    bytes
}

fn success1(rvalid: u8) -> Vec<u8> {
    let mut bytes = vec![1, 0x03, 0, 0, 2, 1, 32, 0, rvalid, 0, 0, 0, 0, 0, 0, 0];
    bytes.resize(bytes.len() + 32 * usize::from(rvalid), 0xa2);
    bytes
}

const SUCCESS2: [u8; 16] = [1, 0x04, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const FAILURE1: [u8; 8] = [0, 0xf1, 0, 0, 2, 1, 1, 6];
const FAILURE2: [u8; 8] = [0, 0xf0, 0, 0, 2, 1, 1, 1];

const T_ID: u16 = 0x0102;
const TRUNCATED: AuthError = AuthError::Truncated { t_id: T_ID };
const INVALID: AuthError = AuthError::Invalid { t_id: T_ID };

fn with(mut bytes: Vec<u8>, offset: usize, new: &[u8]) -> Vec<u8> {
    bytes[offset..offset + new.len()].copy_from_slice(new);
    bytes
}

#[test]
fn messages_are_read() {
    let protocol = ProtocolDescriptor::dh_hmac_chap(
        &[HashId::Sha256, HashId::Sha512],
        &[DhGroup::Null, DhGroup::Ffdhe8192],
    );
    let cases: [(Vec<u8>, AuthMessage<'_>, &str); 7] = [
        (
            negotiate(),
            AuthMessage::Negotiate(Negotiate {
                t_id: T_ID,
                sc_c: SecureChannel::None,
                protocols: &[protocol],
            }),
            "Negotiate t_id 258, No Secure Channel, DH-HMAC-CHAP SHA-256 SHA-512 null ffdhe8192",
        ),
        (
            challenge(),
            AuthMessage::Challenge(Challenge {
                t_id: T_ID,
                hash: HashId::Sha256,
                dh_group: DhGroup::Ffdhe2048,
                seqnum: 7,
                cval: &[0xc1; 32],
                dhv: &[0xd1; 4],
            }),
            "Challenge t_id 258, SHA-256, ffdhe2048",
        ),
        (
            reply(1),
            AuthMessage::Reply(Reply {
                t_id: T_ID,
                seqnum: 8,
                rval: &[0xa1; 32],
                cval: Some(&[0xc2; 32]),
                dhv: &[0xd2; 4],
            }),
            "Reply t_id 258, mutual",
        ),
        (
            success1(1),
            AuthMessage::Success1(Success1 {
                t_id: T_ID,
                hl: 32,
                rval: Some(&[0xa2; 32]),
            }),
            "Success1 t_id 258, mutual",
        ),
        (
            SUCCESS2.to_vec(),
            AuthMessage::Success2(Success2 { t_id: T_ID }),
            "Success2 t_id 258",
        ),
        (
            FAILURE1.to_vec(),
            AuthMessage::Failure1(Failure::new(T_ID, FailureExplanation::IncorrectPayload)),
            "Failure1 t_id 258, Incorrect Payload",
        ),
        (
            FAILURE2.to_vec(),
            AuthMessage::Failure2(Failure::new(T_ID, FailureExplanation::Failed)),
            "Failure2 t_id 258, Authentication Failed",
        ),
    ];
    for (bytes, message, text) in cases {
        assert_eq!(AuthMessage::parse(&bytes), Ok(message));
        assert_eq!(message.t_id(), T_ID);
        assert_eq!(format!("{message}"), text);
        let mut out = vec![0xff; bytes.len() + 1];
        assert_eq!(message.write(&mut out), Some(bytes.len()));
        assert_eq!(out[..bytes.len()], bytes);
        assert_eq!(AuthMessage::parse(&out), Ok(message));
        // CVE-2026-64319 and 72130: no byte is read or written beyond TL or AL.
        for length in 0..bytes.len() {
            let expected = match length {
                0 | 1 => AuthError::UnknownMessage,
                2..6 => AuthError::Truncated { t_id: 0 },
                _ => TRUNCATED,
            };
            assert_eq!(
                AuthMessage::parse(&bytes[..length]),
                Err(expected),
                "{length}"
            );
            assert_eq!(message.write(&mut out[..length]), None);
        }
    }
}

#[test]
fn values_that_are_not_valid_are_absent() {
    let bytes = reply(0);
    let Ok(AuthMessage::Reply(message)) = AuthMessage::parse(&bytes) else {
        panic!("a reply");
    };
    assert_eq!((message.rval, message.cval), (&[0xa1; 32][..], None));
    assert_eq!(message.dhv, [0xd2; 4]);
    let mut out = [0xff; 84];
    assert_eq!(AuthMessage::Reply(message).write(&mut out), Some(84));
    assert_eq!(out[..], bytes);

    let bytes = success1(0);
    let Ok(AuthMessage::Success1(message)) = AuthMessage::parse(&bytes) else {
        panic!("a success1");
    };
    assert_eq!((message.hl, message.rval), (32, None));
    assert_eq!(AuthMessage::Success1(message).write(&mut out), Some(16));
    assert_eq!(out[..16], bytes);
    // Without a response, its length means nothing.
    let without = with(success1(0), 6, &[0]);
    assert!(AuthMessage::parse(&without).is_ok());
}

#[test]
fn lengths_that_lie_are_an_incorrect_payload() {
    // CVE-2026-64319: HL 255, DHVLEN 65535, TL 16.
    let cve = [1, 0x02, 0, 0, 2, 1, 255, 0, 1, 0, 0xff, 0xff, 0, 0, 0, 0];
    let cases = [
        (cve.to_vec(), INVALID),
        (with(reply(1), 6, &[64]), TRUNCATED),
        (with(reply(1), 6, &[0]), INVALID),
        (with(reply(1), 8, &[2]), INVALID),
        (with(reply(1), 10, &[0xff, 0xff]), TRUNCATED),
        (with(challenge(), 6, &[64]), TRUNCATED),
        (with(challenge(), 6, &[1]), INVALID),
        (with(challenge(), 10, &[5, 0]), TRUNCATED),
        (with(success1(1), 6, &[48]), TRUNCATED),
        (with(success1(1), 6, &[33]), INVALID),
        (with(success1(1), 8, &[255]), INVALID),
        (with(negotiate(), 7, &[2]), TRUNCATED),
        (with(negotiate(), 7, &[255]), TRUNCATED),
        (with(negotiate(), 10, &[31]), INVALID),
        (with(negotiate(), 11, &[255]), INVALID),
    ];
    for (bytes, error) in cases {
        assert_eq!(AuthMessage::parse(&bytes), Err(error), "{bytes:x?}");
        let failure = Failure::new(T_ID, FailureExplanation::IncorrectPayload);
        assert_eq!(error.failure(), failure);
    }
}

#[test]
fn type_and_identifier_belong_together() {
    let known = [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 0xf0), (0, 0xf1)];
    for auth_type in 0..=3u8 {
        for auth_id in 0..=u8::MAX {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&[auth_type, auth_id]);
            let unknown = AuthMessage::parse(&bytes) == Err(AuthError::UnknownMessage);
            assert_eq!(unknown, !known.contains(&(auth_type, auth_id)));
        }
    }
    assert_eq!(
        AuthError::UnknownMessage.failure().rce,
        FailureExplanation::IncorrectMessage
    );
}

#[test]
fn negotiate_without_protocols_or_with_others() {
    let none = [0, 0, 0, 0, 2, 1, 3, 0];
    let Ok(AuthMessage::Negotiate(message)) = AuthMessage::parse(&none) else {
        panic!("a negotiate");
    };
    assert!(message.protocols.is_empty());
    assert_eq!(message.sc_c, SecureChannel::ReplaceTlsPsk);
    // The counts of another protocol are not ours to judge.
    let other = with(with(negotiate(), 8, &[2]), 10, &[255, 255]);
    let Ok(AuthMessage::Negotiate(message)) = AuthMessage::parse(&other) else {
        panic!("a negotiate");
    };
    assert!(!message.protocols[0].is_dh_hmac_chap());
    assert_eq!(message.protocols[0].hashes().count(), 30);
}

#[test]
fn descriptor_counts_at_0_1_and_30() {
    for count in [0, 1, 30] {
        let hashes = vec![HashId::Sha384; count];
        let groups = vec![DhGroup::Ffdhe3072; count];
        let protocol = ProtocolDescriptor::dh_hmac_chap(&hashes, &groups);
        assert_eq!(usize::from(protocol.halen), count);
        assert!(protocol.hashes().eq(hashes));
        assert!(protocol.dh_groups().eq(groups));
    }
    let protocol = ProtocolDescriptor::dh_hmac_chap(&[HashId::Sha256; 31], &[]);
    assert_eq!((protocol.halen, protocol.dhlen), (30, 0));
}

#[test]
fn parts_that_contradict_are_not_written() {
    let reply = Reply {
        t_id: 1,
        seqnum: 1,
        rval: &[1; 32],
        cval: Some(&[2; 48]),
        dhv: &[],
    };
    let success1 = Success1 {
        t_id: 1,
        hl: 48,
        rval: Some(&[1; 32]),
    };
    let challenge = Challenge {
        t_id: 1,
        hash: HashId::Sha256,
        dh_group: DhGroup::Null,
        seqnum: 1,
        cval: &[1; 31],
        dhv: &[],
    };
    let long = Challenge {
        cval: &[1; 32],
        dhv: &[0; 65536],
        ..challenge
    };
    let protocols = [ProtocolDescriptor::dh_hmac_chap(&[], &[]); 256];
    let negotiate = Negotiate {
        t_id: 1,
        sc_c: SecureChannel::None,
        protocols: &protocols,
    };
    let mut out = vec![0; 70_000];
    for message in [
        AuthMessage::Reply(reply),
        AuthMessage::Success1(success1),
        AuthMessage::Challenge(challenge),
        AuthMessage::Challenge(long),
        AuthMessage::Negotiate(negotiate),
    ] {
        assert_eq!(message.write(&mut out), None);
    }
}

#[test]
fn identifiers_are_total() {
    for raw in 0..=u8::MAX {
        assert_eq!(HashId::from(raw).code(), raw);
        assert_eq!(DhGroup::from(raw).code(), raw);
        assert_eq!(FailureExplanation::from(raw).code(), raw);
    }
    let hashes: Vec<_> = (0..5).map(|raw| HashId::from(raw).hash_len()).collect();
    assert_eq!(hashes, [None, Some(32), Some(48), Some(64), None]);
    let groups: Vec<_> = (0..7).map(|raw| DhGroup::from(raw).value_len()).collect();
    let sizes = [
        Some(0),
        Some(256),
        Some(384),
        Some(512),
        Some(768),
        Some(1024),
    ];
    assert_eq!(groups[..6], sizes);
    assert_eq!(groups[6], None);
}

#[test]
fn tree_shows_the_values() {
    let bytes = challenge();
    let tree = format!("{}", AuthMessage::parse(&bytes).unwrap().tree());
    assert!(
        tree.starts_with("t_id: 258\nhashid: SHA-256\ndhgid: ffdhe2048\nseqnum: 7\ncval: c1c1")
    );
    assert!(tree.ends_with("\ndhv: d1d1d1d1\n"));
}
