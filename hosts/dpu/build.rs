//! Links the programs for the board's memory.
use std::env;

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rustc-link-arg-bins=-T{here}/memory.x");
    println!("cargo:rerun-if-changed=memory.x");
}
