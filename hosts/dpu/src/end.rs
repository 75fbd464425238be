//! How a program ends: QEMU with it, with a status.
use core::arch::asm;
use core::panic::PanicInfo;

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
    // SAFETY: it reads the block that x1 points to, and does not come back; where
    // nobody listens, it is a fault, and that ends in `wait`.
    unsafe {
        asm!("hlt #0xf000", in("x0") SYS_EXIT_EXTENDED, in("x1") reason.as_ptr());
    }
    wait()
}

fn wait() -> ! {
    loop {
        // SAFETY: it waits, no more.
        unsafe { asm!("wfi", options(nomem, nostack)) }
    }
}

#[panic_handler]
fn panicked(info: &PanicInfo) -> ! {
    say!("{info}");
    exit(PANICKED)
}

/// Where the vectors lead to.
#[unsafe(no_mangle)]
extern "C" fn fault(syndrome: u64, at: u64, address: u64) -> ! {
    const CLASS: u64 = 26;
    const UNKNOWN_REASON: u64 = 0;
    let class = syndrome >> CLASS;
    say!("fault {syndrome:#x} at {at:#x}, address {address:#x}");
    // Also what `exit` is where nobody listens.
    if class == UNKNOWN_REASON {
        wait();
    }
    exit(FAULTED)
}
