//! Manual pages and shell completions, made from the same text as `--help`.
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit;
use crate::host::print;

/// Print a manual page (roff)
#[derive(Args)]
#[command(after_help = "\
Examples:
  nvmf man | man -l -
  nvmf man target > /usr/local/share/man/man1/nvmf-target.1
  nvmf man --all /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The command whose page to print; without it, that of nvmf itself
    command: Option<String>,

    /// Write all pages into a directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    all: Option<PathBuf>,
}

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = "\
Example:
  nvmf completions bash > /usr/local/share/bash-completion/completions/nvmf")]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

/// Prints or writes pages.
pub(crate) fn man(args: &ManArgs, mut nvmf: Command) -> anyhow::Result<()> {
    nvmf.build();
    if let Some(directory) = &args.all {
        for command in nvmf.get_subcommands() {
            write_page(directory, command)?;
        }
        return write_page(directory, &nvmf);
    }
    let command = match &args.command {
        None => &nvmf,
        Some(name) => nvmf
            .find_subcommand(name)
            .ok_or_else(|| exit::usage(format!("there is no command `{name}`")))?,
    };
    let mut bytes = Vec::new();
    page(command, &mut bytes)?;
    print(&bytes)
}

fn write_page(directory: &Path, command: &Command) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    page(command, &mut bytes)?;
    let path = directory.join(Man::new(command.clone()).get_filename());
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// The sections that a manual page has, in their order.
fn page(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone()).source(concat!("nvmf ", env!("CARGO_PKG_VERSION")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    let help = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let help = Help::parse(&help);
    let mut roff = Roff::default();
    if !help.notes.is_empty() {
        roff.control("SH", ["NOTES"]);
        lines(&mut roff, &help.notes);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in exit::STATUS {
        roff.control("TP", ["4"]);
        roff.text([bold(status)]);
        roff.text([roman(meaning)]);
    }
    if !help.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        lines(&mut roff, &help.examples);
    }
    roff.to_writer(out)?;
    man.render_version_section(out)
}

/// Lines as they are.
fn lines(roff: &mut Roff, lines: &[&str]) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(*line)]);
    }
    roff.control("fi", []);
}

/// What stands below the options in `--help`: examples, which are indented, and the rest.
struct Help<'a> {
    examples: Vec<&'a str>,
    notes: Vec<&'a str>,
}

impl<'a> Help<'a> {
    fn parse(text: &'a str) -> Self {
        let (mut examples, mut notes) = (Vec::new(), Vec::new());
        let mut in_examples = false;
        // The table is in each page, in a form of its own.
        let text = text.split(exit::HEADING).next().unwrap_or_default();
        for line in text.lines() {
            match line {
                "Examples:" | "Example:" => in_examples = true,
                line if in_examples && (line.is_empty() || line.starts_with(' ')) => {
                    examples.push(line);
                }
                line => {
                    in_examples = false;
                    notes.push(line);
                }
            }
        }
        for part in [&mut examples, &mut notes] {
            while part.last().is_some_and(|line| line.is_empty()) {
                part.pop();
            }
        }
        Self { examples, notes }
    }
}

/// Prints the completions for `args.shell`.
pub(crate) fn completions(args: &CompletionsArgs, mut nvmf: Command) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    clap_complete::generate(args.shell, &mut nvmf, "nvmf", &mut bytes);
    print(&bytes)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_has_its_sections() {
        let mut nvmf = Cli::command();
        nvmf.build();
        for command in nvmf.get_subcommands() {
            let mut bytes = Vec::new();
            page(command, &mut bytes).unwrap();
            let text = String::from_utf8(bytes).unwrap();
            let name = command.get_name();
            let sections = [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "\"EXIT STATUS\"",
                "EXAMPLES",
            ];
            let mut rest = text.as_str();
            for section in sections {
                let heading = format!("\n.SH {section}\n");
                let at = rest.find(&heading);
                let at = at.unwrap_or_else(|| panic!("{name} has no {section}:\n{text}"));
                rest = &rest[at + 1..];
            }
            assert!(!text.contains("EXTRA"), "{name}");
            assert!(text.contains("The command line makes no sense."), "{name}");
        }
    }

    #[test]
    fn examples_end_where_the_indentation_does() {
        let help = Help::parse("Note.\n\nExamples:\n  one:\n      nvmf\n\nAnd so on.\n");
        assert_eq!(help.examples, ["  one:", "      nvmf"]);
        assert_eq!(help.notes, ["Note.", "", "And so on."]);
    }
}
