//! Asynchronous events.
use std::sync::Mutex;

use crate::bytes::put;
use crate::fake::{Command, Did, Fake, Setup};
use crate::run::nvmf;

/// A controller that has namespace attribute notices (OAES), and sends one as soon as it is
/// asked which namespaces there are. When the log page is read that tells more, it is gone.
fn noticing() -> Fake {
    let request = Mutex::new(None::<Command>);
    Fake::start(Setup::default(), move |conn, command| {
        let mut request = request.lock().expect("no panic");
        match command.opcode() {
            _ if command.is_identify(1) => {
                let mut data = conn.identify_controller();
                put(&mut data, 92, 0x100u32.to_le_bytes());
                conn.give(command, &data);
            }
            0x0C if !conn.is_io() => *request = Some(command.clone()),
            _ if command.is_identify(2) => {
                let mut list = vec![0; 4096];
                list[0] = 1;
                conn.give(command, &list);
                if let Some(request) = request.take() {
                    // Notice 00h; log page 04h.
                    conn.complete(&request, 0x0004_0002);
                }
            }
            0x02 if command.dword(10) & 0xFF == 4 => return Did::End,
            _ => return Did::Nothing,
        }
        Did::Something
    })
}

#[test]
fn events_are_shown_as_they_occur() {
    let fake = noticing();
    let whole = fake.url();
    let (base, _) = whole.split_once('?').expect("an NSID");
    let output = nvmf(&["connect", base, "--watch", "--ctrl-loss-tmo", "0"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    let event = "asynchronous event: notice: Attached Namespace Attribute Changed, log page 04h";
    assert!(shown.contains(event), "{shown}");
    assert_eq!(output.status.code(), Some(3), "{shown}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with("nvmf: the target is given up: "), "{told}");
}

#[test]
fn a_target_that_is_gone_at_once_is_noticed() {
    // All is well until the last queue is connected.
    let fake = Fake::start(Setup::default(), |conn, command| {
        match command.is_fabrics(1) && command.dword(10) >> 16 == 4 {
            true => {
                conn.complete(command, 1);
                Did::End
            }
            false => Did::Nothing,
        }
    });
    let whole = fake.url();
    let (base, _) = whole.split_once('?').expect("an NSID");
    let output = nvmf(&["connect", base, "--watch", "--ctrl-loss-tmo", "0"]);
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.lines().count(), 1, "{told}");
}
