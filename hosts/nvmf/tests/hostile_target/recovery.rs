//! Controllers that are lost, and what a host makes of it that connects again.
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nvmf_core::host::command;
use nvmf_core::wire::identify::Cns;
use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Association, Host, Options, Payload, Policy};

use crate::fake::{BLOCK, Command, Conn, Did, Fake, PATIENCE, Setup};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const KEEP_ALIVE: u8 = 0x18;

fn options() -> Options {
    Options {
        io_queues: 1,
        keep_alive: Duration::from_secs(1),
        command_timeout: Duration::from_secs(20),
        recovery: Policy {
            reconnect_delay: Duration::from_millis(20),
            ctrl_loss_tmo: None,
            fast_io_fail_tmo: None,
        },
        ..Options::default()
    }
}

fn attach(host: &Host, fake: &Fake, options: &Options) -> Association {
    let url = fake.url().parse().expect("a URL");
    host.attach(&url, options).wait().expect("connects")
}

fn is_admin_connect(command: &Command) -> bool {
    command.is_fabrics(1) && command.dword(10) >> 16 == 0
}

/// Which association a connection belongs to, counted from 1 by their admin queues.
fn numbered(
    script: impl Fn(&mut Conn, &Command, usize) -> Did + Send + Sync + 'static,
) -> impl Fn(&mut Conn, &Command) -> Did + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |conn, command| {
        if command.is_fabrics(1) {
            let admin = usize::from(is_admin_connect(command));
            conn.association = count.fetch_add(admin, Ordering::Relaxed) + admin;
        }
        let association = conn.association;
        script(conn, command, association)
    }
}

/// Two controllers in turn fall silent while all the room for a caller's admin commands
/// is taken: Keep Alive is sent all the same, its loss is noticed, and the third answers.
#[test]
fn entry_40_keep_alive_has_room_while_the_queue_is_full() {
    let silent = Arc::new(AtomicUsize::new(0));
    let kept_alive = Arc::new(AtomicUsize::new(0));
    let (falls, counted) = (Arc::clone(&silent), Arc::clone(&kept_alive));
    let fake = Fake::start(
        Setup::default(),
        numbered(move |_, command, association| {
            let silent = falls.load(Ordering::Relaxed) >= association;
            if silent && command.opcode() == KEEP_ALIVE {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            let bring_up = command.opcode() == 0x7F;
            if silent && !bring_up {
                return Did::Something;
            }
            Did::Nothing
        }),
    );
    let host = Host::new(None).expect("threads");
    let association = attach(&host, &fake, &options());
    for lost in 1..=2 {
        silent.store(lost, Ordering::Relaxed);
        let identify = command::identify(Cns::Controller, Nsid(0));
        // More than the queue holds.
        let all: Vec<_> = (0..40)
            .map(|_| association.admin(&identify, Payload::Read(Buffer::zeroed(4096))))
            .collect();
        for request in all {
            let done = request.wait().expect("is sent again");
            assert!(done.cqe.status().is_success());
        }
        assert_eq!(kept_alive.load(Ordering::Relaxed), lost, "Keep Alive came");
    }
    drop((association, host));
    assert_eq!(fake.term_reqs(), []);
}

/// Internal Path Error, without and with DNR.
const UNREACHED: u16 = 0x300;
const DNR: u16 = 1 << 14;

/// A namespace that the controller does not reach for a while is asked again, one call not
/// holding up another; and not if the controller says that it is no use.
#[test]
fn namespaces_that_are_not_reached_are_asked_again() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let script = move |conn: &mut Conn, command: &Command| {
        if !conn.is_io() || command.opcode() != READ {
            return Did::Nothing;
        }
        let status = match command.dword(10) {
            0 if counted.fetch_add(1, Ordering::Relaxed) < 3 => UNREACHED,
            0 => return Did::Nothing,
            _ => UNREACHED | DNR,
        };
        conn.fail(command, status);
        Did::Something
    };
    let fake = Fake::start(Setup::default(), script);
    fake.store(&[7; BLOCK]);
    let host = Host::new(None).expect("threads");
    let association = attach(&host, &fake, &options());
    let namespace = association.namespace(Nsid(1)).wait().expect("is there");
    let read = namespace.read(0, vec![0; BLOCK]);
    let error = namespace.read(1, vec![0; BLOCK]).wait().expect_err("DNR");
    assert!(error.to_string().contains("Internal Path Error"), "{error}");
    let data = read.wait().expect("in the end");
    assert_eq!(data.as_ref(), [7; BLOCK]);
    assert_eq!(reads.load(Ordering::Relaxed), 4);
}

/// What the fake of entry 51 knows.
#[derive(Default)]
struct Paths {
    admin: Option<TcpStream>,
    /// The first path is about to end, and what was on it is done.
    released: bool,
    /// Writes on the second path, and whether the first was over then.
    later: Vec<(u8, bool)>,
}

/// A write is on its way when the controller is lost, and it is done late. Neither it
/// nor a newer one is sent by the second path before the first is known to be dead.
#[test]
fn entry_51_no_write_overtakes_one_that_may_still_be_done() {
    let paths = Arc::new(Mutex::new(Paths::default()));
    let disk = Arc::new(Mutex::new(vec![0; BLOCK]));
    let (seen, stored) = (Arc::clone(&paths), Arc::clone(&disk));
    let (lose, lost) = mpsc::channel();
    let fake = Fake::start(
        Setup {
            inline_data: 8192,
            ..Setup::default()
        },
        numbered(move |conn, command, association| {
            if association == 1 && is_admin_connect(command) {
                let socket = conn.socket.try_clone().expect("a descriptor");
                seen.lock().expect("paths").admin = Some(socket);
            }
            if !conn.is_io() || command.opcode() != WRITE {
                return Did::Nothing;
            }
            let data = command.data.clone();
            if association > 1 {
                let mut paths = seen.lock().expect("paths");
                let released = paths.released;
                paths.later.push((data[0], released));
                *stored.lock().expect("disk") = data;
                conn.complete(command, 0);
                return Did::Something;
            }
            // The controller is lost, and yet the write is done, in the end.
            let admin = seen.lock().expect("paths").admin.take();
            let _ = admin.expect("an admin queue").shutdown(Shutdown::Both);
            lose.send(()).expect("somebody waits");
            conn.wait_for_end();
            thread::sleep(Duration::from_millis(300));
            *stored.lock().expect("disk") = data;
            seen.lock().expect("paths").released = true;
            Did::End
        }),
    );
    let host = Host::new(None).expect("threads");
    let association = attach(&host, &fake, &options());
    let namespace = association.namespace(Nsid(1)).wait().expect("is there");
    let first = namespace.write(0, vec![0xAA; BLOCK]);
    lost.recv_timeout(PATIENCE).expect("the first write comes");
    // A read changes nothing, and need not wait.
    let read = namespace.read(8, vec![0; BLOCK]);
    read.wait().expect("by the second path");
    let second = namespace.write(0, vec![0xBB; BLOCK]);
    first.wait().expect("is done");
    second.wait().expect("is done");
    let third = namespace.write(0, vec![0xCC; BLOCK]);
    third.wait().expect("is done");
    let later = paths.lock().expect("paths").later.clone();
    assert!(later.len() >= 2, "{later:?}");
    assert!(later.iter().all(|(_, released)| *released), "{later:?}");
    assert_eq!(later.last(), Some(&(0xCC, true)));
    assert_eq!(disk.lock().expect("disk")[..], [0xCC; BLOCK]);
}

/// The second controller says nothing, from each command of the bring-up on: the third
/// is asked, and what was under way is done.
#[test]
fn entry_52_stalls_while_it_connects_again() {
    let host = Host::new(None).expect("threads");
    let options = Options {
        command_timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_millis(200),
        ..options()
    };
    // Connect, CAP, VS, CC, CSTS, Identify, Set Features, Connect of the I/O queue; and
    // what comes then, before the read or after it.
    for nth in 0..12 {
        let sockets: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let kept = Arc::clone(&sockets);
        let (count, hit) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let hits = Arc::clone(&hit);
        let fake = Fake::start(
            Setup::default(),
            numbered(move |conn, command, association| {
                if association == 1 && command.is_fabrics(1) {
                    let socket = conn.socket.try_clone().expect("a descriptor");
                    kept.lock().expect("sockets").push(socket);
                }
                let read = conn.is_io() && command.opcode() == READ;
                if association < 2 || read || count.fetch_add(1, Ordering::Relaxed) != nth {
                    return Did::Nothing;
                }
                hits.fetch_add(1, Ordering::Relaxed);
                conn.wait_for_end();
                Did::End
            }),
        );
        let association = attach(&host, &fake, &options);
        let namespace = association.namespace(Nsid(1)).wait().expect("is there");
        for socket in &*sockets.lock().expect("sockets") {
            socket.shutdown(Shutdown::Both).expect("is open");
        }
        let read = namespace.read(0, vec![0; BLOCK]).wait();
        read.unwrap_or_else(|error| panic!("command {nth}: {error}"));
        assert!(
            nth >= 8 || hit.load(Ordering::Relaxed) == 1,
            "command {nth}"
        );
    }
}
