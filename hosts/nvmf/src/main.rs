//! The `nvmf` command.
//!
//! Exit status: 0 when all went well, 1 when something failed, 2 when the
//! command line made no sense.
#![forbid(unsafe_code)]

mod export;
mod host;
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
    Demo(host::demo::Args),
    Target(Box<target::Args>),
    Discover(host::discover::Args),
    IdCtrl(host::identify::ControllerArgs),
    IdNs(host::identify::NamespaceArgs),
    Read(host::transfer::ReadArgs),
    Write(host::transfer::WriteArgs),
    Compare(host::transfer::CompareArgs),
    Bench(host::bench::Args),
    Ping(host::ping::Args),
    Export(export::Args),
    Man(manual::ManArgs),
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log(&cli);
    let outcome = match cli.command {
        Command::Demo(args) => host::demo::run(&args),
        Command::Target(args) => target::run(*args),
        Command::Discover(args) => host::discover::run(&args),
        Command::IdCtrl(args) => host::identify::controller(&args),
        Command::IdNs(args) => host::identify::namespace(&args),
        Command::Read(args) => host::transfer::read(&args),
        Command::Write(args) => host::transfer::write(&args),
        Command::Compare(args) => host::transfer::compare(&args),
        Command::Bench(args) => host::bench::run(&args),
        Command::Ping(args) => host::ping::run(&args),
        Command::Export(args) => export::run(args),
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

/// One line per event on stderr. RUST_LOG overrides the options. What happens is
/// news of those that serve only; the others tell by their output.
fn start_log(cli: &Cli) {
    let serves = matches!(cli.command, Command::Target(_) | Command::Export(_));
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => "warn",
        (false, 0) if !serves => "warn",
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
