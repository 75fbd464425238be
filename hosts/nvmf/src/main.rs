//! The `nvmf` command.
fn main() {}
