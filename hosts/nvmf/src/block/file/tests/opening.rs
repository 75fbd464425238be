//! What is opened or created, and what is refused.
use super::*;

#[test]
fn a_file_is_created_as_asked_and_then_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let sized = |size| Opening {
        size: Some(size),
        ..opening(&path)
    };
    drop(serve(sized(1 << 40), Io::Threads));
    let found = fs::metadata(&path).unwrap();
    assert_eq!(found.len(), 1 << 40);
    assert!(found.blocks() * 512 <= MIB as u64, "it is sparse");
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    drop(serve(sized(1 << 40), Io::Threads));
    drop(serve(opening(&path), Io::Threads));
    fs::write(&path, "").unwrap();
    assert_eq!(
        serve(sized(1 << 20), Io::Threads).geometry().bytes(),
        1 << 20
    );
}

#[test]
fn what_cannot_be_served_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let plain = opening(&path);
    let sized = Opening {
        size: Some(1 << 20),
        ..plain
    };
    let reading = Opening {
        read_only: true,
        ..plain
    };
    let large_blocks = Opening {
        block_shift: Some(12),
        ..plain
    };
    let refuse = |opening: Opening<'_>, hint: &str| {
        let error = opening.open().expect_err(hint).to_string();
        assert!(error.contains(hint), "{error}");
        assert!(
            error.starts_with(&opening.path.display().to_string()),
            "{error}"
        );
    };
    refuse(plain, "no such file; say size= to create it");
    refuse(
        Opening {
            size: Some(1 << 20),
            ..reading
        },
        "ro does not create",
    );
    assert!(!path.exists());
    fs::write(&path, "").unwrap();
    refuse(plain, "empty; say size=");
    refuse(reading, "empty; say size=");
    fs::write(&path, vec![0; 4096 + 512]).unwrap();
    refuse(sized, "has 4608 B, not 1 MiB; leave size= out");
    refuse(
        large_blocks,
        "4608 bytes are not a multiple of the block size 4096; bs=512 would do",
    );
    fs::write(&path, vec![0; 1000]).unwrap();
    refuse(plain, "1000 bytes are not a multiple of the block size 512");
    refuse(
        opening(directory.path()),
        "neither a regular file nor a block device",
    );
    refuse(opening(Path::new("/dev/null")), "neither");
    let nowhere = directory.path().join("no/disk");
    refuse(
        Opening {
            path: &nowhere,
            ..sized
        },
        "creating it",
    );
    // More than most file systems can address.
    let huge = directory.path().join("huge");
    let created = Opening {
        size: Some(i64::MAX as u64 & !511),
        ..opening(&huge)
    }
    .open();
    assert_eq!(created.is_ok(), huge.exists(), "a failure leaves nothing");
}
