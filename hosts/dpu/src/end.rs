//! How a program ends: QEMU with it, with a status.
use core::panic::PanicInfo;

use crate::arch::{is_unheard, semihosting, wait};
use crate::say;

/// Status after a panic, as Rust's programs have it.
const PANICKED: u64 = 101;
/// Status after a fault.
const FAULTED: u64 = 102;

/// Ends QEMU, if it was told to listen to its guest (`-semihosting`).
pub fn exit(status: u64) -> ! {
    const SYS_EXIT_EXTENDED: u64 = 0x20;
    const APPLICATION_EXIT: u64 = 0x20026;
    let reason = [APPLICATION_EXIT, status];
    // SAFETY: it reads the block, and does not come back; where nobody listens, it is a
    // fault, and that ends in a sleep.
    unsafe { semihosting(SYS_EXIT_EXTENDED, reason.as_ptr()) };
    sleep()
}

fn sleep() -> ! {
    loop {
        wait();
    }
}

#[panic_handler]
fn panicked(info: &PanicInfo) -> ! {
    say!("{info}");
    exit(PANICKED)
}

/// Where the vectors lead to.
#[unsafe(no_mangle)]
extern "C" fn fault(cause: u64, at: u64, address: u64) -> ! {
    say!("fault {cause:#x} at {at:#x}, address {address:#x}");
    // Also what `exit` is where nobody listens.
    if is_unheard(cause) {
        sleep();
    }
    exit(FAULTED)
}
