//! The `nvmf` command.
//!
//! How it ends: see [`exit`].
#![forbid(unsafe_code)]

mod exit;
mod export;
mod host;
mod manual;
mod target;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use exit::{Exit, Output};

/// NVMe over Fabrics in user space.
#[derive(Parser)]
#[command(
    name = "nvmf",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = format!(
        "`nvmf COMMAND --help` explains a command, with examples; so does its manual page.\n\n{}",
        exit::help()
    )
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
    Connect(Box<host::watch::Args>),
    List(host::list::Args),
    IdCtrl(host::identify::ControllerArgs),
    IdNs(host::identify::NamespaceIdArgs),
    SmartLog(host::log::SmartArgs),
    GetLog(host::log::GetArgs),
    GetFeature(host::feature::GetArgs),
    SetFeature(host::feature::SetArgs),
    Read(host::transfer::ReadArgs),
    Write(host::transfer::WriteArgs),
    Compare(host::transfer::CompareArgs),
    Flush(host::blocks::FlushArgs),
    Discard(host::blocks::DiscardArgs),
    WriteZeroes(host::blocks::ZeroArgs),
    Verify(host::blocks::VerifyArgs),
    Copy(Box<host::copy::Args>),
    AdminPassthru(host::passthru::AdminArgs),
    IoPassthru(host::passthru::IoArgs),
    Bench(host::bench::Args),
    Ping(host::ping::Args),
    Export(export::Args),
    Man(manual::ManArgs),
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    let matches = Cli::command()
        .try_get_matches()
        .unwrap_or_else(|error| misused(error));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    start_log(&cli);
    let outcome = match cli.command {
        Command::Demo(args) => host::demo::run(&args),
        Command::Target(args) => target::run(*args),
        Command::Discover(args) => host::discover::run(&args),
        Command::Connect(args) => host::watch::run(&args),
        Command::List(args) => host::list::run(&args),
        Command::IdCtrl(args) => host::identify::controller(&args),
        Command::IdNs(args) => host::identify::namespace(&args),
        Command::SmartLog(args) => host::log::smart(&args),
        Command::GetLog(args) => host::log::get(&args),
        Command::GetFeature(args) => host::feature::get(&args),
        Command::SetFeature(args) => host::feature::set(&args),
        Command::Read(args) => host::transfer::read(&args),
        Command::Write(args) => host::transfer::write(&args),
        Command::Compare(args) => host::transfer::compare(&args),
        Command::Flush(args) => host::blocks::flush(&args),
        Command::Discard(args) => host::blocks::discard(&args),
        Command::WriteZeroes(args) => host::blocks::write_zeroes(&args),
        Command::Verify(args) => host::blocks::verify(&args),
        Command::Copy(args) => host::copy::run(&args),
        Command::AdminPassthru(args) => host::passthru::admin(&args),
        Command::IoPassthru(args) => host::passthru::io(&args),
        Command::Bench(args) => host::bench::run(&args),
        Command::Ping(args) => host::ping::run(&args),
        Command::Export(args) => export::run(args),
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if exit::is_unheard(&error) => ExitCode::FAILURE,
        Err(error) => {
            // Not by way of the log, which may be filtered. That nobody reads it is
            // no reason to fail in another way.
            let line = exit::describe(&error, output(&matches));
            let _ = writeln!(std::io::stderr(), "{line}");
            ExitCode::from(Exit::of(&error) as u8)
        }
    }
}

/// The command line makes no sense, or asks for help.
fn misused(error: clap::Error) -> ! {
    let args: Vec<String> = std::env::args().collect();
    if !error.use_stderr() || !exit::asks_for_json(&args) {
        error.exit()
    }
    let line = exit::describe(&exit::misuse(&error.to_string()), Output::Json);
    let _ = writeln!(std::io::stderr(), "{line}");
    std::process::exit(Exit::Usage as i32)
}

/// What the command's output is for, if it lets one choose.
fn output(matches: &ArgMatches) -> Output {
    let command = matches.subcommand();
    let chosen =
        command.and_then(|(_, matches)| matches.try_get_one::<Output>("output").ok().flatten());
    chosen.copied().unwrap_or(Output::Text)
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
