//! defmt's frames, by the second UART.
use core::cell::RefCell;

use cortex_m::interrupt::Mutex;

use crate::board::{Uart, millis};

defmt::timestamp!("{=u32:ms}", millis());

/// The encoder, and the UART once there was something to say.
struct State {
    encoder: defmt::Encoder,
    uart: Option<Uart>,
}

static STATE: Mutex<RefCell<State>> = Mutex::new(RefCell::new(State {
    encoder: defmt::Encoder::new(),
    uart: None,
}));

#[defmt::global_logger]
struct Logger;

/// Interrupts do not log, and there is one thread: a frame is ended before the next
/// begins.
fn with(act: impl FnOnce(&mut defmt::Encoder, &Uart)) {
    cortex_m::interrupt::free(|key| {
        let State { encoder, uart } = &mut *STATE.borrow(key).borrow_mut();
        act(encoder, uart.get_or_insert_with(Uart::second));
    });
}

// SAFETY: as only the main program logs, there is one frame at a time, and nothing
// comes between its parts.
unsafe impl defmt::Logger for Logger {
    fn acquire() {
        with(|encoder, uart| encoder.start_frame(|bytes| uart.send(bytes)));
    }

    unsafe fn flush() {}

    unsafe fn release() {
        with(|encoder, uart| encoder.end_frame(|bytes| uart.send(bytes)));
    }

    unsafe fn write(bytes: &[u8]) {
        with(|encoder, uart| encoder.write(bytes, |bytes| uart.send(bytes)));
    }
}
