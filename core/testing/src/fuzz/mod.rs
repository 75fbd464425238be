//! What must hold for any input. Each function takes a fuzzer's bytes and
//! panics when something does not.

pub mod codecs;
pub mod host_operations;
mod host_scenario;
pub mod operations;
pub mod pdu_rx;
pub mod rdma_operations;
mod scenario;

pub use codecs::codecs;
pub use host_operations::host_operations;
pub use operations::operations;
pub use pdu_rx::pdu_rx;
pub use rdma_operations::rdma_operations;
