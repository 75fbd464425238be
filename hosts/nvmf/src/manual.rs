//! Manual pages and shell completions, made from the same text as `--help`.
use std::io;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

/// Print a manual page (roff)
#[derive(Args)]
#[command(after_help = "\
Examples:
  nvmf man | man -l -
  nvmf man target > /usr/local/share/man/man1/nvmf-target.1")]
pub(crate) struct ManArgs {
    /// The command whose page to print; without it, that of nvmf itself.
    command: Option<String>,
}

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = "\
Example:
  nvmf completions bash > /usr/local/share/bash-completion/completions/nvmf")]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

/// Prints the page of `args.command`.
pub(crate) fn man(args: &ManArgs, mut nvmf: Command) -> anyhow::Result<()> {
    nvmf.build();
    let command = match &args.command {
        None => nvmf,
        Some(name) => {
            let found = nvmf.find_subcommand(name);
            let command = found.with_context(|| format!("there is no command `{name}`"))?;
            command.clone()
        }
    };
    clap_mangen::Man::new(command)
        .render(&mut io::stdout().lock())
        .context("cannot print the page")
}

/// Prints the completions for `args.shell`.
pub(crate) fn completions(args: &CompletionsArgs, mut nvmf: Command) {
    clap_complete::generate(args.shell, &mut nvmf, "nvmf", &mut io::stdout().lock());
}
