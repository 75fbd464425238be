//! The `nvmf` command.
//!
//! Exit status: 0 when all went well, 1 when something failed, 2 when the
//! command line made no sense.
#![forbid(unsafe_code)]

mod manual;
mod target;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// NVMe over Fabrics in user space.
#[derive(Parser)]
#[command(
    name = "nvmf",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "`nvmf COMMAND --help` explains a command, with examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log more: -v what the target decides, -vv all there is.
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Log")]
    verbose: u8,

    /// Log warnings and errors only.
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Log"
    )]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    Target(Box<target::Args>),
    Man(manual::ManArgs),
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log(&cli);
    let outcome = match cli.command {
        Command::Target(args) => target::run(*args),
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Completions(args) => {
            manual::completions(&args, Cli::command());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not by way of the log, which may be filtered. That nobody reads it is
            // no reason to fail in another way.
            let _ = writeln!(std::io::stderr(), "nvmf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line per event on stderr. RUST_LOG overrides the options.
fn start_log(cli: &Cli) {
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => "warn",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // Told by a panic if stderr is closed, and a target outlives who reads its log.
        .log_internal_errors(false)
        // It would complain on stderr, and panic when nobody reads that any more.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
