//! The shared association, where our own target does not do what is asked of it.
use std::num::NonZero;
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::host::{Association, Error, Host, Options};

use crate::bytes::put;
use crate::fake::{Did, Fake, PATIENCE, Setup};

fn attach(fake: &Fake, options: &Options) -> Association {
    let host = Host::new(NonZero::new(1)).expect("a thread");
    let url = fake.url().parse().expect("a URL");
    host.attach(&url, options).wait().expect("connects")
}

#[test]
fn a_late_command_is_aborted_and_the_association_stays() {
    let (tell, told) = channel();
    let told = Mutex::new(told);
    // Reads of block 7 end when they are aborted, and not before.
    let fake = Fake::start(Setup::default(), move |conn, command| {
        match (conn.is_io(), command.opcode()) {
            (true, 0x02) if command.dword(10) == 7 => {
                let abort: u32 = told
                    .lock()
                    .expect("no panic")
                    .recv_timeout(PATIENCE)
                    .expect("an Abort");
                let qid = conn.qid.expect("an I/O queue");
                assert_eq!(abort, u32::from(command.cid()) << 16 | u32::from(qid));
                conn.fail(command, 0x0007);
            }
            (false, 0x08) => {
                tell.send(command.dword(10)).expect("somebody waits");
                conn.complete(command, 0);
            }
            _ => return Did::Nothing,
        }
        Did::Something
    });
    let options = Options {
        command_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let association = attach(&fake, &options);
    let events = association.events();
    let namespace = association.namespace(Nsid(1)).wait().expect("is there");
    let error = namespace.read(7, vec![0; 512]).wait().expect_err("is late");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    namespace.read(8, vec![0; 512]).wait().expect("works on");
    assert!(matches!(events.try_recv(), Err(TryRecvError::Empty)));
}

#[test]
fn copies_keep_to_what_the_namespace_allows() {
    let copied = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&copied);
    // MSSRL, MCL and MSRC are 0: a block at a time.
    let fake = Fake::start(Setup::default(), move |conn, command| {
        if command.is_identify(1) {
            let mut data = conn.identify_controller();
            put(&mut data, 520, 0x0100u16.to_le_bytes());
            conn.give(command, &data);
        } else if conn.is_io() && command.opcode() == 0x19 {
            let data = conn.fetch(command).expect("ranges");
            assert_eq!((data.len(), command.dword(12)), (32, 0));
            assert_eq!(data[16..18], [0, 0], "NLB");
            let mut list = list.lock().expect("no panic");
            list.push((u32::from(data[8]), command.dword(10)));
            conn.complete(command, 0);
        } else {
            return Did::Nothing;
        }
        Did::Something
    });
    let association = attach(&fake, &Options::default());
    let namespace = association.namespace(Nsid(1)).wait().expect("is there");
    namespace
        .copy(&[(100, 2), (7, 1)], 40)
        .wait()
        .expect("is copied");
    let mut copied = copied.lock().expect("no panic").clone();
    copied.sort_unstable();
    assert_eq!(copied, [(7, 42), (100, 40), (101, 41)]);
}
