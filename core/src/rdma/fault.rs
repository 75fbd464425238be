use core::fmt;

/// What a peer did that ends the connection: RDMA has no message to say so with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Fault {
    /// A capsule of this many bytes, fewer than it has to have.
    ShortCapsule(u32),
    /// A response capsule of this many bytes, more than it can have.
    LongResponse(u32),
    /// More commands at a time than the connection was made for (HSQSIZE).
    TooManyCommands,
    /// A response to no command that is under way: its CID.
    UnknownCid(u16),
    /// A response invalidated a key that is not its command's.
    ForeignKey(u32),
    /// An accepted connection without the private data that it has to have.
    PrivateData,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShortCapsule(len) => write!(f, "a capsule of {len} bytes is too short"),
            Self::LongResponse(len) => write!(f, "a response capsule of {len} bytes is too long"),
            Self::TooManyCommands => {
                f.write_str("more commands at a time than the connection has room for")
            }
            Self::UnknownCid(cid) => {
                write!(f, "a response to command {cid}, which is not under way")
            }
            Self::ForeignKey(key) => {
                write!(
                    f,
                    "a response invalidates key {key:#x}, which is not its command's"
                )
            }
            Self::PrivateData => f.write_str("the connection was accepted without private data"),
        }
    }
}

impl core::error::Error for Fault {}
