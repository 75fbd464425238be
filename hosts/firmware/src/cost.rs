//! What one more of each takes of a board's memory, on the processor that this runs on.
use core::fmt;

use nvmf_tcp::smoltcp::target::{Device, Seat};

use crate::server::{Server, Tables};

/// In bytes. Rings, and what buffers hold, are not counted: they take what their const
/// generics say.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// A connection, without its commands.
    pub connection: usize,
    /// A command of a connection's depth.
    pub command: usize,
    /// A buffer.
    pub buffer: usize,
    /// A namespace, without its device.
    pub namespace: usize,
}

/// What they take here.
pub const COST: Cost = {
    let command = size_of::<Seat<9>>() - size_of::<Seat<8>>();
    let seat = size_of::<Seat<8>>() - 8 * command;
    let server = size_of::<Server<2, 8>>() - size_of::<Server<1, 8>>();
    let tables = size_of::<Tables<1, 1, 1, 1>>();
    Cost {
        connection: seat + server + size_of::<Tables<2, 1, 1, 2>>() - tables,
        command,
        buffer: size_of::<Tables<1, 2, 1, 1>>() - tables,
        namespace: size_of::<Device>() + size_of::<Tables<1, 1, 2, 1>>() - tables,
    }
};

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            connection,
            command,
            buffer,
            namespace,
        } = self;
        write!(
            f,
            "{connection} bytes a connection, {command} each of its commands, \
             {buffer} a buffer, {namespace} a namespace"
        )
    }
}
