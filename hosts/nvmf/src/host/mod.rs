//! The commands of a host.
//!
//! | module | commands |
//! |---|---|
//! | [`discover`] | `nvmf discover` |
//! | [`watch`] | `nvmf connect` |
//! | [`list`] | `nvmf list` |
//! | [`identify`] | `nvmf id-ctrl`, `nvmf id-ns` |
//! | [`log`] | `nvmf get-log`, `nvmf smart-log` |
//! | [`feature`] | `nvmf get-feature`, `nvmf set-feature` |
//! | [`transfer`] | `nvmf read`, `nvmf write`, `nvmf compare` |
//! | [`blocks`] | `nvmf flush`, `nvmf discard`, `nvmf write-zeroes`, `nvmf verify` |
//! | [`copy`] | `nvmf copy` |
//! | [`passthru`] | `nvmf admin-passthru`, `nvmf io-passthru` |
//! | [`bench`] | `nvmf bench` |
//! | [`ping`] | `nvmf ping` |
//! | [`demo`] | `nvmf demo` |
//!
//! They share [`connection`]: which target, and how to connect to it.
pub(crate) mod bench;
pub(crate) mod blocks;
mod connection;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod discover;
pub(crate) mod feature;
pub(crate) mod identify;
mod interrupt;
mod json;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod passthru;
pub(crate) mod ping;
pub(crate) mod transfer;
pub(crate) mod watch;

use std::io::{self, Write};

use anyhow::Context;
use nvmf_tcp::std::host::{Completion, Error};
use serde_json::Value;

pub(crate) use self::connection::{ConnectArgs, NamespaceArgs, RecoveryArgs, connect, given_up};
use self::connection::{ScopeArgs, SubsystemArgs};
pub(crate) use crate::exit::Output;
use crate::exit::Unprinted;

/// What to print.
#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// What to print
    #[arg(
        short,
        long,
        visible_alias = "output-format",
        value_name = "FORMAT",
        value_enum,
        default_value_t = Output::Text,
        help_heading = "Output"
    )]
    output: Output,
}

impl OutputArgs {
    /// Prints lines for people, or a document for programs.
    pub(crate) fn print(
        &self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> anyhow::Result<()> {
        let text = match self.output {
            Output::Text => text(),
            Output::Json => format!("{}\n", json()),
        };
        print(text.as_bytes())
    }
}

/// To standard output, all of it.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(bytes).and_then(|()| out.flush());
    printed.context(Unprinted)
}

/// The completion of a command that succeeded.
fn succeeded(done: Completion, command: &'static str, opcode: u8) -> Result<Completion, Error> {
    match done.cqe.status() {
        status if status.is_success() => Ok(done),
        status => Err(Error::Failed {
            command,
            opcode,
            status,
        }),
    }
}

/// Bytes as people look at them: 16 a line, with what is printable beside them.
fn hex_dump(bytes: &[u8], offset: u64) -> String {
    let mut text = String::new();
    for (line, chunk) in (0u64..).zip(bytes.chunks(16)) {
        let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown: String = chunk
            .iter()
            .map(|byte| match byte {
                b' '..=b'~' => char::from(*byte),
                _ => '.',
            })
            .collect();
        let at = offset + line * 16;
        text += &format!("{at:04x}: {:<47} |{shown}|\n", digits.join(" "));
    }
    text
}

/// A number: decimal, or hexadecimal with 0x.
fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed
        .ok()
        .and_then(|wide| T::try_from(wide).ok())
        .ok_or_else(|| {
            let bits = size_of::<T>() * 8;
            format!("write a number of at most {bits} bits, such as 10 or 0xa")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number::<u8>("255"), Ok(255));
        assert_eq!(number::<u8>("0xff"), Ok(255));
        assert_eq!(number::<u64>("0xffffffffffffffff"), Ok(u64::MAX));
        for bad in ["256", "0x100", "", "0x", "-1", "ten"] {
            let error = number::<u8>(bad).unwrap_err();
            assert!(error.contains("at most 8 bits"), "{bad}: {error}");
        }
    }

    #[test]
    fn bytes_are_aligned() {
        assert_eq!(
            hex_dump(b"0123456789abcdefg\n", 0x100),
            "0100: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66 |0123456789abcdef|\n\
             0110: 67 0a                                           |g.|\n"
        );
    }
}
