//! What happens to connections, as text or by defmt.
#[cfg(feature = "defmt")]
mod frames;

use nvmf_tcp::smoltcp::target::Event;

use crate::board::{Stack, Uart};

/// As text.
#[cfg(not(feature = "defmt"))]
pub(crate) fn say(uart: &mut Uart, event: &Event) {
    use core::fmt::Write;

    let _ = match event {
        Event::Connected(at, identity) => writeln!(
            uart,
            "{at}: queue {} of controller {}",
            identity.qid.0, identity.cntlid.0
        ),
        Event::Refused(at, reason) => writeln!(uart, "{at}: refused: {reason}"),
        Event::Closed(at, reason) => {
            let Stack { peak, size } = Stack::measure();
            writeln!(uart, "{at}: closed: {reason:?}; stack {peak} of {size}")
        }
    };
}

/// By defmt.
#[cfg(feature = "defmt")]
pub(crate) fn say(_: &mut Uart, event: &Event) {
    match *event {
        Event::Connected(at, identity) => defmt::info!(
            "{=usize}: queue {=u16} of controller {=u16}",
            at,
            identity.qid.0,
            identity.cntlid.0
        ),
        Event::Refused(at, reason) => defmt::warn!("{=usize}: refused: {}", at, reason),
        Event::Closed(at, reason) => {
            let Stack { peak, size } = Stack::measure();
            defmt::info!(
                "{=usize}: closed: {}; stack {=usize} of {=usize}",
                at,
                reason,
                peak,
                size
            );
        }
    }
}
