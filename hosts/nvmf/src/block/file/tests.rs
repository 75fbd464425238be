//! Against real files, tmpfs and loop devices. What needs root says so and passes without.
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread;

use nvmf_core::wire::ids::Nsid;
use rustix::fs::OFlags;
use tempfile::TempDir;

use super::super::open::{OpenError, Opening};
use super::super::spec::{Choice, Io, Spec};
use super::super::testing::{Worker, assert_same, buffer, extent, pattern};
use super::super::{identity, open, uring};
use super::*;

use self::mounts::{Loop, Mounted};

mod mounts;
mod opening;

const MIB: usize = 1 << 20;
const SIZE: usize = 8 * MIB;

fn opening(path: &Path) -> Opening<'_> {
    Opening {
        path,
        size: None,
        block_shift: None,
        read_only: false,
        direct: Choice::Auto,
    }
}

fn serve(opening: Opening<'_>, io: Io) -> FileNamespace {
    try_serve(opening, io).unwrap()
}

fn try_serve(opening: Opening<'_>, io: Io) -> Result<FileNamespace, OpenError> {
    let identity = identity::of_path("nqn", opening.path);
    let engines = Engines::start(4).unwrap();
    let uring = io == Io::Uring;
    Ok(FileNamespace::new(
        opening.open()?,
        identity,
        &engines,
        uring,
        true,
    ))
}

/// The same tests for whoever makes the system calls.
macro_rules! by_both {
    ($($test:ident,)*) => {
        mod by_threads {
            use super::Io;
            $(#[test]
            fn $test() {
                super::$test(Io::Threads);
            })*
        }

        mod by_io_uring {
            use super::{Io, uring};
            $(#[test]
            fn $test() {
                match uring::probe() {
                    Ok(()) => super::$test(Io::Uring),
                    Err(why) => eprintln!("skipped: {why}"),
                }
            })*
        }
    };
}

by_both! {
    data_comes_back_through_every_path,
    a_cached_read_ends_at_once,
    read_only_changes_nothing,
    a_file_has_one_writer_or_any_number_of_readers,
    deallocated_space_is_given_back,
    nothing_beyond_the_end_is_read_or_written,
    a_write_is_taken_at_once_or_not_at_all,
    a_dropped_handle_finishes_what_it_took,
    nothing_on_nothing_is_no_error,
    many_operations_of_many_handles_end_once_each_with_the_right_data,
    a_full_file_system_is_reported_as_such_and_deallocation_helps,
    forced_and_flushed_writes_reach_the_device,
    a_block_device_has_its_own_size_and_blocks_and_unmaps,
    a_device_that_runs_full_loses_no_more_than_that,
}

/// A file of [`SIZE`] bytes in a directory of its own.
fn sparse() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    fs::File::create(&path)
        .unwrap()
        .set_len(SIZE as u64)
        .unwrap();
    (directory, path)
}

fn data_comes_back_through_every_path(io: Io) {
    for (shift, direct) in [
        (9, Choice::Auto),
        (9, Choice::Off),
        (12, Choice::Auto),
        (12, Choice::Off),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let namespace = serve(
            Opening {
                size: Some(SIZE as u64),
                block_shift: Some(shift),
                direct,
                ..opening(&path)
            },
            io,
        );
        let geometry = namespace.geometry();
        assert_eq!(geometry.bytes(), SIZE as u64);
        assert_eq!(geometry.block_size(), 1 << shift);
        let (one, two) = (Worker::new(), Worker::new());
        let mut left = Namespace::open(&namespace, &one.waker);
        let mut right = Namespace::open(&namespace, &two.waker);

        let data = pattern(1, 300 * 4096);
        one.write(&mut *left, 4096, &data, false).unwrap();
        let forced = pattern(2, 4096);
        let last = SIZE as u64 - 4096;
        one.write(&mut *left, last, &forced, true).unwrap();
        one.plain(&mut *left, Op::Flush).unwrap();
        assert_same(&two.read(&mut *right, 4096, data.len()).unwrap(), &data);
        assert_same(&two.read(&mut *right, last, 4096).unwrap(), &forced);
        assert_eq!(two.compare(&mut *right, 4096, &data), Ok(()));
        let mut other = data.clone();
        other[299 * 4096] ^= 1;
        assert_eq!(
            two.compare(&mut *right, 4096, &other),
            Err(MediaError::Miscompare)
        );
        let all = Op::Verify(extent(0, SIZE));
        assert_eq!(two.plain(&mut *right, all), Ok(()));

        let stored = fs::read(&path).unwrap();
        assert_eq!(stored.len(), SIZE);
        assert_same(&stored[4096..][..data.len()], &data);
        assert_same(&stored[SIZE - 4096..], &forced);
    }
}

#[test]
fn direct_io_is_on_where_it_can_be_and_only_when_wanted() {
    let (_directory, path) = sparse();
    for direct in [Choice::Auto, Choice::Off] {
        let opened = Opening {
            direct,
            ..opening(&path)
        }
        .open()
        .unwrap();
        let flags = rustix::fs::fcntl_getfl(&opened.file).unwrap();
        assert_eq!(flags.contains(OFlags::DIRECT), opened.direct);
        assert!(direct == Choice::Auto || !opened.direct);
        if direct == Choice::Auto && !opened.direct {
            eprintln!("skipped: the file system of {path:?} has no direct I/O");
        }
    }
}

fn a_cached_read_ends_at_once(io: Io) {
    let (_directory, path) = sparse();
    let namespace = serve(
        Opening {
            direct: Choice::Off,
            ..opening(&path)
        },
        io,
    );
    let worker = Worker::new();
    let mut device = Namespace::open(&namespace, &worker.waker);
    let data = pattern(5, 64 * 1024);
    worker.write(&mut *device, 0, &data, false).unwrap();
    let request = Request {
        tag: 1,
        op: Op::Read(extent(0, data.len())),
        buffer: Some(Buffer::zeroed(data.len())),
    };
    match device.submit(request) {
        Submit::Done(done) => assert_same(done.buffer.unwrap().as_ref(), &data),
        Submit::Pending if !namespace.store.reads_cached.load(Ordering::Relaxed) => {
            eprintln!("skipped: no RWF_NOWAIT there");
        }
        other => panic!("{other:?}"),
    }
}

fn read_only_changes_nothing(io: Io) {
    let (_directory, path) = sparse();
    fs::write(&path, pattern(9, SIZE)).unwrap();
    let namespace = serve(
        Opening {
            read_only: true,
            ..opening(&path)
        },
        io,
    );
    assert!(namespace.geometry().read_only);
    let worker = Worker::new();
    let mut device = Namespace::open(&namespace, &worker.waker);
    let refused = Err(MediaError::ReadOnly);
    assert_eq!(worker.write(&mut *device, 0, &[0; 512], false), refused);
    assert_eq!(
        worker.plain(&mut *device, Op::Deallocate(extent(0, 512))),
        refused
    );
    let zeroes = Op::WriteZeroes {
        extent: extent(0, 512),
        deallocate: true,
        fua: false,
    };
    assert_eq!(worker.plain(&mut *device, zeroes), refused);
    assert_eq!(worker.plain(&mut *device, Op::Flush), Ok(()));
    assert_same(
        &worker.read(&mut *device, 0, SIZE).unwrap(),
        &pattern(9, SIZE),
    );
    assert_same(&fs::read(&path).unwrap(), &pattern(9, SIZE));
}

fn a_file_has_one_writer_or_any_number_of_readers(io: Io) {
    let (_directory, path) = sparse();
    let reading = Opening {
        read_only: true,
        ..opening(&path)
    };
    let is_served =
        |opening| matches!(try_serve(opening, io), Err(OpenError::Served(at)) if at == path);

    let writer = serve(opening(&path), io);
    assert!(is_served(opening(&path)));
    assert!(is_served(reading));
    let message = try_serve(reading, io).err().unwrap().to_string();
    assert!(
        message.contains("already served by another process"),
        "{message}"
    );

    // A handle keeps the lock even when the namespace is gone.
    let device = Namespace::open(&writer, &Worker::new().waker);
    drop(writer);
    assert!(is_served(opening(&path)));
    drop(device);

    let readers = [serve(reading, io), serve(reading, io)];
    assert!(is_served(opening(&path)));
    drop(readers);
    drop(serve(opening(&path), io));
}

fn deallocated_space_is_given_back(io: Io) {
    for direct in [Choice::Auto, Choice::Off] {
        let (_directory, path) = sparse();
        let namespace = serve(
            Opening {
                direct,
                ..opening(&path)
            },
            io,
        );
        assert!(namespace.geometry().deallocate_zeroes);
        let worker = Worker::new();
        let mut device = Namespace::open(&namespace, &worker.waker);
        let data = pattern(4, SIZE);
        let (start, len) = (512, SIZE - 4096);
        let zeroes = |deallocate| Op::WriteZeroes {
            extent: extent(start, len),
            deallocate,
            fua: true,
        };
        for (op, frees) in [
            (Op::Deallocate(extent(start, len)), true),
            (zeroes(true), true),
            (zeroes(false), false),
        ] {
            worker.write(&mut *device, 0, &data, true).unwrap();
            let full = fs::metadata(&path).unwrap().blocks();
            assert!(full * 512 >= SIZE as u64, "{full}");
            worker.plain(&mut *device, op).unwrap();
            let mut expected = data.clone();
            let start = usize::try_from(start).unwrap();
            expected[start..start + len].fill(0);
            assert_same(&worker.read(&mut *device, 0, SIZE).unwrap(), &expected);
            worker.plain(&mut *device, Op::Flush).unwrap();
            let left = fs::metadata(&path).unwrap().blocks();
            if frees {
                assert!(
                    left * 512 < 64 * 1024,
                    "{op:?}: {left} of {full} sectors left"
                );
            }
            assert_eq!(fs::metadata(&path).unwrap().len(), SIZE as u64);
        }
    }
}

fn nothing_beyond_the_end_is_read_or_written(io: Io) {
    let (_directory, path) = sparse();
    let namespace = serve(opening(&path), io);
    let worker = Worker::new();
    let mut device = Namespace::open(&namespace, &worker.waker);
    let end = SIZE as u64;
    for (byte, len) in [
        (end, 512),
        (end - 512, 1024),
        (256, 512),
        (u64::MAX - 511, 512),
    ] {
        assert_eq!(worker.read(&mut *device, byte, len), Err(MediaError::Read));
        let written = worker.write(&mut *device, byte, &vec![1; len], true);
        assert_eq!(written, Err(MediaError::Write));
        let gone = Op::Deallocate(extent(byte, len));
        assert_eq!(worker.plain(&mut *device, gone), Err(MediaError::Write));
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), end);

    // Someone cuts the file behind our back: an error, not old buffer contents.
    namespace.store.file.set_len(end / 2).unwrap();
    let lost = worker.read(&mut *device, end / 2 - 512, 1024);
    assert_eq!(lost, Err(MediaError::Read));
    let verify = Op::Verify(extent(0, SIZE));
    assert_eq!(worker.plain(&mut *device, verify), Err(MediaError::Read));
}

#[test]
fn identifiers_last_as_long_as_the_path() {
    const NQN: &str = "nqn.2014-08.org.example:test";
    let (directory, path) = sparse();
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let engines = Engines::start(1).unwrap();
    let id = |text: &str, nqn: &str, nsid| {
        let spec = Spec::parse_file(text).unwrap();
        open(&spec, nqn, Nsid(nsid), &engines).unwrap().identity()
    };
    let text = path.to_str().unwrap();
    let first = id(text, NQN, 1);
    assert_eq!(id(text, NQN, 7), first, "whatever its number");
    assert_eq!(id(link.to_str().unwrap(), NQN, 1), first, "by any name");
    assert_ne!(
        id(text, "nqn.2014-08.org.example:other", 1).uuid,
        first.uuid
    );
    let uuid = "123e4567-e89b-42d3-a456-426614174000";
    let given = id(&format!("{text},uuid={uuid}"), NQN, 1);
    assert_eq!(uuid::Uuid::from_bytes(given.uuid).to_string(), uuid);
    let ram = |nsid| {
        let spec = Spec::parse_ram("1M").unwrap();
        open(&spec, NQN, Nsid(nsid), &engines).unwrap().identity()
    };
    assert_eq!(ram(1), ram(1));
    assert_ne!(ram(1).uuid, ram(2).uuid);
}

fn many_operations_of_many_handles_end_once_each_with_the_right_data(io: Io) {
    const HANDLES: u64 = 4;
    const OPERATIONS: u64 = 600;
    const DEPTH: usize = 32;
    const SLOT: usize = 16 * 1024;
    for direct in [Choice::Auto, Choice::Off] {
        let (_directory, path) = sparse();
        let namespace = serve(
            Opening {
                direct,
                ..opening(&path)
            },
            io,
        );
        thread::scope(|scope| {
            for handle in 0..HANDLES {
                let namespace = &namespace;
                scope.spawn(move || {
                    // Each handle writes its own slots, so what they hold is known.
                    let slots = SIZE / SLOT / HANDLES as usize;
                    let base = handle * (slots * SLOT) as u64;
                    let worker = Worker::new();
                    let mut device = Namespace::open(namespace, &worker.waker);
                    let mut contents = vec![vec![0; SLOT]; slots];
                    let mut under_way: HashMap<u64, (usize, bool)> = HashMap::new();
                    let mut ended = 0;
                    let mut next = 0;
                    while ended < OPERATIONS {
                        while next < OPERATIONS && under_way.len() < DEPTH {
                            let slot = (next as usize * 7) % slots;
                            if under_way.values().any(|&(busy, _)| busy == slot) {
                                break;
                            }
                            let place = extent(base + (slot * SLOT) as u64, SLOT);
                            let (op, data) = match next % 4 {
                                0 | 1 => {
                                    contents[slot] = pattern(handle << 32 | next, SLOT);
                                    let fua = next % 64 == 0;
                                    (Op::Write { extent: place, fua }, contents[slot].clone())
                                }
                                2 => (Op::Read(place), vec![0xee; SLOT]),
                                _ => (Op::Compare(place), contents[slot].clone()),
                            };
                            let request = Request {
                                tag: next,
                                op,
                                buffer: Some(buffer(&data)),
                            };
                            under_way.insert(next, (slot, next % 4 == 2));
                            next += 1;
                            match device.submit(request) {
                                Submit::Pending => {}
                                Submit::Done(done) => {
                                    end(done, &mut under_way, &contents);
                                    ended += 1;
                                }
                                Submit::Busy(_) => panic!("below the limit"),
                            }
                        }
                        if !under_way.is_empty() {
                            let done = worker.wait(|| device.poll());
                            end(done, &mut under_way, &contents);
                            ended += 1;
                        }
                    }
                    assert!(under_way.is_empty());
                    assert!(device.poll().is_none());
                });
            }
        });
    }

    fn end(
        done: Completion<Buffer>,
        under_way: &mut HashMap<u64, (usize, bool)>,
        contents: &[Vec<u8>],
    ) {
        let (slot, read) = under_way.remove(&done.tag).expect("under way, and once");
        assert_eq!(done.result, Ok(()), "{}", done.tag);
        let data = done.buffer.expect("it comes back");
        if read {
            assert_same(data.as_ref(), &contents[slot]);
        }
    }
}

fn a_write_is_taken_at_once_or_not_at_all(io: Io) {
    let (_directory, path) = sparse();
    let mounted = Mounted::tmpfs("16m");
    let in_memory = mounted.as_ref().map(|mounted| mounted.path().join("disk"));
    let cases = [
        (Some(path.clone()), Choice::Off),
        (Some(path), Choice::Auto),
        (in_memory, Choice::Off),
    ];
    for (path, direct) in cases {
        let Some(path) = path else { continue };
        let opening = Opening {
            size: Some(SIZE as u64),
            direct,
            ..opening(&path)
        };
        let namespace = serve(opening, io);
        let worker = Worker::new();
        let mut device = Namespace::open(&namespace, &worker.waker);
        let (old, new) = (pattern(60, 4096), pattern(61, 4096));
        worker.write(&mut *device, 8192, &old, false).unwrap();
        let stored = device.store(extent(8192, 4096), &new, false);
        let expected = if stored == Some(Ok(())) { &new } else { &old };
        assert_same(&worker.read(&mut *device, 8192, 4096).unwrap(), expected);
        assert!(!namespace.store.direct || stored.is_none());
        for (at, len) in [(SIZE as u64 - 2048, 4096), (u64::MAX, 4096), (0, 512)] {
            assert_eq!(device.store(extent(at, len), &new, false), None);
        }
        assert_eq!(device.store(extent(8192, 4096), &new, true), None);
        assert_eq!(fs::metadata(&path).unwrap().len(), SIZE as u64);
    }
}

fn a_dropped_handle_finishes_what_it_took(io: Io) {
    let (_directory, path) = sparse();
    let namespace = serve(opening(&path), io);
    let worker = Worker::new();
    let mut device = Namespace::open(&namespace, &worker.waker);
    let data = pattern(40, SIZE);
    for (tag, (at, block)) in (0u64..).zip((0u64..).step_by(64 * 1024).zip(data.chunks(64 * 1024)))
    {
        let op = Op::Write {
            extent: extent(at, block.len()),
            fua: false,
        };
        let buffer = Some(buffer(block));
        let outcome = device.submit(Request { tag, op, buffer });
        assert!(matches!(outcome, Submit::Pending));
    }
    drop((device, namespace));
    assert_same(&fs::read(&path).unwrap(), &data);
    drop(serve(opening(&path), io));
}

fn nothing_on_nothing_is_no_error(io: Io) {
    let (_directory, path) = sparse();
    let namespace = serve(opening(&path), io);
    let worker = Worker::new();
    let mut device = Namespace::open(&namespace, &worker.waker);
    let extent = extent(4096, 0);
    for op in [
        Op::Deallocate(extent),
        Op::Verify(extent),
        Op::WriteZeroes {
            extent,
            deallocate: true,
            fua: true,
        },
    ] {
        assert_eq!(worker.plain(&mut *device, op), Ok(()), "{op:?}");
    }
}

/// More than what a ring submits at once, and more than one file.
#[test]
fn a_full_handle_on_a_ring_is_busy_until_a_completion_and_others_are_not() {
    if let Err(why) = uring::probe() {
        eprintln!("skipped: {why}");
        return;
    }
    let (_one, path) = sparse();
    let (_two, other) = sparse();
    let engines = Engines::start(1).unwrap();
    let worker = Worker::new();
    let open = |path| {
        let identity = identity::of_path("nqn", path);
        let opened = opening(path).open().unwrap();
        let namespace = FileNamespace::new(opened, identity, &engines, true, true);
        Namespace::open(&namespace, &worker.waker)
    };
    let (mut device, mut other) = (open(&path), open(&other));
    assert_eq!(format!("{:?}", engines.rings), "1 rings");
    let request = |tag| Request {
        tag,
        op: Op::Read(extent(tag * 4096, 4096)),
        buffer: Some(Buffer::zeroed(4096)),
    };
    for tag in 0..uring::UNDER_WAY as u64 {
        assert!(matches!(device.submit(request(tag)), Submit::Pending));
    }
    let Submit::Busy(refused) = device.submit(request(2000)) else {
        panic!("a full handle accepted more");
    };
    assert!(refused.buffer.is_some(), "it comes back whole");
    assert!(matches!(other.submit(request(7)), Submit::Pending));
    assert_eq!(worker.wait(|| other.poll()).tag, 7);
    let mut seen = vec![false; uring::UNDER_WAY];
    for _ in 0..uring::UNDER_WAY {
        let done = worker.wait(|| device.poll());
        assert_eq!(done.result, Ok(()));
        assert!(!std::mem::replace(&mut seen[done.tag as usize], true));
    }
    assert!(device.poll().is_none());
    assert!(matches!(device.submit(request(0)), Submit::Pending));
}

fn a_full_file_system_is_reported_as_such_and_deallocation_helps(io: Io) {
    let Some(mounted) = Mounted::tmpfs("1m") else {
        return;
    };
    let path = mounted.path().join("disk");
    let namespace = serve(
        Opening {
            size: Some(SIZE as u64),
            ..opening(&path)
        },
        io,
    );
    let worker = Worker::new();
    let mut device = Namespace::open(&namespace, &worker.waker);
    let data = pattern(6, MIB / 2);
    let half = data.len() as u64;
    worker.write(&mut *device, 0, &data, false).unwrap();
    let full = worker.write(
        &mut *device,
        half,
        &[data.clone(), data.clone()].concat(),
        true,
    );
    assert_eq!(full, Err(MediaError::Full));
    assert_same(&worker.read(&mut *device, 0, data.len()).unwrap(), &data);
    // tmpfs has no FALLOC_FL_ZERO_RANGE: a hole does.
    let zeroes = Op::WriteZeroes {
        extent: extent(0, 4 * data.len()),
        deallocate: false,
        fua: false,
    };
    worker.plain(&mut *device, zeroes).unwrap();
    worker.write(&mut *device, 4 * half, &data, false).unwrap();
    assert_same(
        &worker.read(&mut *device, 4 * half, data.len()).unwrap(),
        &data,
    );
    assert_same(
        &worker.read(&mut *device, 0, data.len()).unwrap(),
        &vec![0; data.len()],
    );
}

fn forced_and_flushed_writes_reach_the_device(io: Io) {
    let (_directory, backing) = sparse();
    let Some(device) = Loop::over(&backing, 512) else {
        return;
    };
    for direct in [Choice::Off, Choice::Auto] {
        let namespace = serve(
            Opening {
                direct,
                ..opening(device.path())
            },
            io,
        );
        let worker = Worker::new();
        let mut handle = Namespace::open(&namespace, &worker.waker);
        let forced = pattern(10 + u64::from(direct == Choice::Auto), 4096);
        worker.write(&mut *handle, 8192, &forced, true).unwrap();
        assert_same(&fs::read(&backing).unwrap()[8192..][..4096], &forced);
        let plain = pattern(20 + u64::from(direct == Choice::Auto), 4096);
        worker.write(&mut *handle, 65536, &plain, false).unwrap();
        worker.plain(&mut *handle, Op::Flush).unwrap();
        assert_same(&fs::read(&backing).unwrap()[65536..][..4096], &plain);
    }
}

fn a_block_device_has_its_own_size_and_blocks_and_unmaps(io: Io) {
    for block in [512, 4096] {
        let (_directory, backing) = sparse();
        let Some(device) = Loop::over(&backing, block) else {
            return;
        };
        let namespace = serve(opening(device.path()), io);
        let geometry = namespace.geometry();
        assert_eq!(
            (geometry.block_size(), geometry.bytes()),
            (block, SIZE as u64)
        );
        assert!(!geometry.deallocate_zeroes, "nobody promises that");
        let worker = Worker::new();
        let mut handle = Namespace::open(&namespace, &worker.waker);
        let data = pattern(30, SIZE);
        worker.write(&mut *handle, 0, &data, true).unwrap();
        let full = fs::metadata(&backing).unwrap().blocks();
        for op in [
            Op::Deallocate(extent(8192, SIZE - 8192)),
            Op::WriteZeroes {
                extent: extent(4096, 4096),
                deallocate: false,
                fua: false,
            },
        ] {
            worker.plain(&mut *handle, op).unwrap();
        }
        let mut expected = data[..4096].to_vec();
        expected.resize(SIZE, 0);
        assert_same(&worker.read(&mut *handle, 0, SIZE).unwrap(), &expected);
        let left = fs::metadata(&backing).unwrap().blocks();
        assert!(left * 512 < 64 * 1024, "{left} of {full} sectors left");

        let again = try_serve(opening(device.path()), io).err().unwrap();
        assert!(matches!(again, OpenError::InUse(_)), "{again}");
        drop((namespace, handle));
        // A thread of the pool may let go of it a little later.
        if block == 4096 {
            let small = Opening {
                block_shift: Some(9),
                ..opening(device.path())
            };
            let error = small.open_patiently().unwrap_err().to_string();
            assert!(
                error.contains("blocks of 4096 bytes, so bs=512 is too small"),
                "{error}"
            );
        }
        let sized = Opening {
            size: Some(512),
            ..opening(device.path())
        };
        let error = sized.open_patiently().unwrap_err().to_string();
        assert!(error.contains("has 8 MiB, not 512 B"), "{error}");
    }
}

fn a_device_that_runs_full_loses_no_more_than_that(io: Io) {
    let Some(mounted) = Mounted::tmpfs("1m") else {
        return;
    };
    let backing = mounted.path().join("backing");
    fs::File::create(&backing)
        .unwrap()
        .set_len(SIZE as u64)
        .unwrap();
    let Some(device) = Loop::over(&backing, 512) else {
        return;
    };
    let namespace = serve(opening(device.path()), io);
    let worker = Worker::new();
    let mut handle = Namespace::open(&namespace, &worker.waker);
    let data = pattern(50, MIB / 2);
    worker.write(&mut *handle, 0, &data, true).unwrap();
    // There is no memory for this. Loop devices of older kernels say that as EIO.
    let lost = worker.write(&mut *handle, MIB as u64, &vec![7; 2 * MIB], true);
    assert!(matches!(lost, Err(MediaError::Full | MediaError::Write)));
    assert_same(&worker.read(&mut *handle, 0, data.len()).unwrap(), &data);
}
