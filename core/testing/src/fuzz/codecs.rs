//! Any bytes as any structure.
//!
//! Nothing that a peer sends makes a codec panic, what is printed of it stays
//! on its line and has no control characters, and what is read and written
//! again is the same.
use std::fmt::{Debug, Display};

use nvmf_core::command::{AdminCommand, Command, FabricsCommand, IoCommand};
use nvmf_core::wire::ids::{HostId, Nqn, Qid};
use nvmf_core::wire::log::LogWindow;
use nvmf_core::wire::sgl::Sgl;
use nvmf_core::wire::status::Status;
use nvmf_core::wire::tree::Tree;
use nvmf_core::wire::{
    auth, cm, connect, cqe, discovery, feature, identify, log, pdu, property, range, reservation,
    sqe,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Reads the input as a structure: the first byte says which.
///
/// # Panics
/// When an invariant does not hold.
pub fn codecs(input: &[u8]) {
    let [which, bytes @ ..] = input else { return };
    let codec = CODECS[usize::from(*which) % CODECS.len()];
    codec(bytes);
}

const CODECS: &[fn(&[u8])] = &[
    structure::<pdu::CommonHeader>,
    structure::<pdu::IcReq>,
    structure::<pdu::IcResp>,
    structure::<pdu::TermReq>,
    structure::<pdu::CapsuleCmd>,
    structure::<pdu::CapsuleResp>,
    structure::<pdu::DataPdu>,
    structure::<pdu::R2t>,
    structure::<sqe::Sqe>,
    structure::<cqe::Cqe>,
    structure::<connect::ConnectData>,
    structure::<cm::CmReq>,
    structure::<cm::CmRep>,
    structure::<cm::CmRej>,
    structure::<discovery::DiscoveryHeader>,
    structure::<discovery::DiscoveryEntry>,
    structure::<range::DsmRange>,
    structure::<range::CopyRange>,
    structure::<reservation::RegisterKeys>,
    structure::<reservation::AcquireKeys>,
    structure::<reservation::ReleaseKey>,
    structure::<reservation::ReservationStatus>,
    structure::<reservation::Registrant>,
    structure::<reservation::ExtendedReservationStatus>,
    structure::<reservation::ExtendedRegistrant>,
    structure::<feature::Timestamp>,
    structure::<feature::HostBehavior>,
    structure::<feature::LbaRangeType>,
    structure::<identify::IdentifyController>,
    structure::<identify::IdentifyNamespace>,
    structure::<identify::NvmNamespace>,
    structure::<identify::NvmController>,
    structure::<identify::IndependentNamespace>,
    structure::<identify::NamespaceList>,
    structure::<identify::ControllerList>,
    structure::<identify::CommandSetCombinations>,
    structure::<identify::PowerState>,
    structure::<log::SmartHealth>,
    structure::<log::ChangedNamespaces>,
    structure::<log::PersistentEventHeader>,
    structure::<log::AnaLogHeader>,
    structure::<log::AnaGroupDescriptor>,
    structure::<log::ReservationNotification>,
    structure::<log::SupportedLogPages>,
    structure::<log::CommandEffects>,
    structure::<log::FeatureEffects>,
    structure::<log::EnduranceGroup>,
    structure::<log::ErrorInformation>,
    structure::<log::FirmwareSlots>,
    structure::<auth::ProtocolDescriptor>,
    commands,
    descriptors,
    ana_log,
    extended_entries,
    reservation_reports,
    auth_message,
    log_window,
    words,
    names,
];

/// A structure of a fixed size: what it prints, and that its bytes are its bytes.
fn structure<T>(bytes: &[u8])
where
    T: FromBytes + IntoBytes + Immutable + KnownLayout + Debug + Display + Tree,
{
    let mut whole = vec![0; size_of::<T>()];
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    let value = T::read_from_bytes(&whole).expect("is as long");
    assert_eq!(value.as_bytes(), whole);
    printed(&value);
    tree(&value);
}

/// One line, that leaves a terminal as it is.
fn printed(value: &impl Display) {
    let line = value.to_string();
    assert!(!line.contains(char::is_control), "prints {line:?}");
}

/// Many lines, that leave a terminal as it is.
fn tree(value: &impl Tree) {
    for line in value.tree().to_string().lines() {
        assert!(!line.contains(char::is_control), "prints {line:?}");
    }
}

fn commands(bytes: &[u8]) {
    let Some((qid, bytes)) = bytes.split_first() else {
        return;
    };
    let Ok((sqe, _)) = sqe::Sqe::read_from_prefix(bytes) else {
        return;
    };
    printed(&Command::decode(Qid(u16::from(*qid)), &sqe));
    printed(&AdminCommand::decode(&sqe));
    printed(&IoCommand::decode(&sqe));
    printed(&FabricsCommand::decode(&sqe));
    let sgl = sqe.sgl();
    printed(&sgl);
    assert_eq!(Sgl::from_dptr(&sgl.to_dptr()), sgl);
}

fn descriptors(bytes: &[u8]) {
    let list = identify::descriptors(bytes);
    printed(&list);
    tree(&list);
    let read: Vec<_> = list.map_while(Result::ok).collect();
    let mut written = vec![0; bytes.len()];
    let mut writer = identify::DescriptorWriter::new(&mut written);
    for descriptor in &read {
        printed(descriptor);
        // Reserved identifiers may be of lengths that are not written.
        if !writer.push(descriptor) {
            return;
        }
    }
    let again = identify::descriptors(&written).map_while(Result::ok);
    assert!(again.eq(read));
}

fn ana_log(bytes: &[u8]) {
    let Ok(log) = log::AnaLog::parse(bytes) else {
        return;
    };
    printed(&log);
    tree(&log);
    for group in log.groups() {
        match group {
            Ok(group) => {
                printed(&group);
                assert!(group.nsids().count() <= bytes.len() / 4);
            }
            Err(error) => printed(&error),
        }
    }
}

fn extended_entries(mut bytes: &[u8]) {
    while let Some((entry, rest)) = discovery::ExtendedEntry::parse(bytes) {
        assert!(rest.len() < bytes.len(), "does not move on");
        tree(&entry);
        for attribute in entry.attributes() {
            printed(&attribute);
        }
        bytes = rest;
    }
}

fn reservation_reports(bytes: &[u8]) {
    if let Some(report) = reservation::ReservationReport::parse(bytes) {
        printed(&report);
    }
    if let Some(report) = reservation::ReservationReport::parse_extended(bytes) {
        printed(&report);
    }
}

fn auth_message(bytes: &[u8]) {
    let message = match auth::AuthMessage::parse(bytes) {
        Ok(message) => message,
        Err(error) => return printed(&error),
    };
    printed(&message);
    tree(&message);
    let mut written = vec![0; bytes.len()];
    let len = message
        .write(&mut written)
        .expect("fits where it came from");
    let again = auth::AuthMessage::parse(&written[..len]).expect("was read before");
    assert_eq!(again, message);
}

/// Whatever part of a log is asked for, it is that part of the whole.
fn log_window(bytes: &[u8]) {
    let [offset, len, pieces @ ..] = bytes else {
        return;
    };
    let (offset, len) = (usize::from(*offset), usize::from(*len));
    let mut whole = Vec::new();
    let mut part = vec![0xEE; len];
    let mut window = LogWindow::new(&mut part, offset as u64);
    for piece in pieces.chunk_by(|a, b| a <= b) {
        if piece.len() == 3 {
            window.skip(3);
            whole.extend([0; 3]);
        } else {
            window.put(piece);
            whole.extend(piece);
        }
        assert_eq!(window.position(), whole.len() as u64);
        assert!(!window.is_full() || whole.len() >= offset + len);
    }
    whole.resize(whole.len().max(offset + len), 0);
    assert_eq!(part, whole[offset..][..len]);
}

/// Fields of a few bytes.
fn words(bytes: &[u8]) {
    let Ok((word, _)) = <[u8; 8]>::read_from_prefix(bytes) else {
        return;
    };
    let [a, b, c, d, ..] = word;
    let (half, dword) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([a, b, c, d]));
    let status = Status::from_word(half);
    printed(&status);
    assert_eq!(status.to_word(), half & !1);
    let event = log::AsyncEvent::from_dw0(dword);
    printed(&event);
    tree(&event);
    assert_eq!(log::AsyncEvent::from_dw0(event.to_dw0()), event);
    let location = log::ParameterLocation::from_word(half);
    printed(&location);
    let again = log::ParameterLocation::from_word(location.to_word());
    assert_eq!(again, location);
    let parameter = connect::InvalidParameter::from_result(word_of(word));
    printed(&parameter);
    printed(&property::Cap(word_of(word)));
    printed(&property::Cc(dword));
    printed(&property::Csts(dword));
    printed(&property::Crto(dword));
    printed(&property::Vs(dword));
}

fn word_of(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

fn names(bytes: &[u8]) {
    match Nqn::parse(bytes) {
        Ok(name) => {
            printed(&name);
            assert_eq!(name.as_str().parse(), Ok(name.clone()));
            assert_eq!(Nqn::parse(&name.to_field()), Ok(name));
        }
        Err(error) => printed(&error),
    }
    if let Ok((id, _)) = <[u8; 16]>::read_from_prefix(bytes) {
        assert_eq!(HostId(id).to_string().parse(), Ok(HostId(id)));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<HostId>();
    }
}
