//! A controller that answers no Keep Alive, or whose Admin Queue ends.
use std::time::Duration;

use nvmf_core::host::{Error as Lost, Step};
use nvmf_core::wire::ids::Nsid;
use nvmf_tcp::std::host::{Controller, Error, Options};

use crate::fake::{Did, Fake, Setup};

/// A read that is never answered, while Keep Alive meets this: what the read ends with.
fn read(at_keep_alive: fn() -> Did) -> Error {
    let fake = Fake::start(Setup::default(), move |conn, command| {
        match (conn.is_io(), command.opcode()) {
            (false, 0x18) => at_keep_alive(),
            (true, 0x02) => Did::Something,
            _ => Did::Nothing,
        }
    });
    let options = Options {
        keep_alive: Duration::from_millis(400),
        // It is not this that ends the read.
        command_timeout: Duration::from_secs(30),
        ..Options::default()
    };
    let url = fake.url().parse().expect("a URL");
    let controller = Controller::connect(&url, &options).expect("connects");
    let mut namespace = controller.namespace(Nsid(1)).expect("is there");
    let error = namespace.read(0, &mut [0; 4096]).expect_err("fails");
    // Another queue is of no use either, though the target would take it.
    let other = controller.namespace(Nsid(1));
    assert!(other.is_err());
    error
}

#[test]
fn a_lost_keep_alive_ends_the_io_queues() {
    let error = read(|| Did::Something);
    let expected = Lost::Timeout(Step::KeepAlive);
    assert!(
        matches!(&error, Error::Controller(lost) if *lost == expected),
        "{error}"
    );
}

#[test]
fn a_closed_admin_queue_ends_the_io_queues() {
    let error = read(|| Did::End);
    assert!(matches!(error, Error::Closed), "{error}");
}
