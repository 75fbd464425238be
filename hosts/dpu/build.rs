//! Links the programs for the board's memory.
use std::env;

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let processor = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let memory = format!("{here}/src/{processor}/memory.x");
    println!("cargo:rustc-link-arg-bins=-T{memory}");
    println!("cargo:rerun-if-changed={memory}");
}
