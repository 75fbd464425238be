//! How a command ends: its exit status, and what it says of a failure.
use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::io::{self, Write};

use clap::ValueEnum;
use nvmf_core::host::Error as HostError;
use nvmf_core::wire::status::Status;
use nvmf_tcp::std::host::Error;
use serde_json::{Value, json};

/// The exit status, for `nvmf --help` and the manual pages.
pub(crate) const STATUS: [(&str, &str); 6] = [
    ("0", "All went well."),
    (
        "1",
        "Something failed here: a file, a full disk, a short source.",
    ),
    ("2", "The command line makes no sense."),
    (
        "3",
        "No connection: a wrong address, or a target that is gone or breaks the protocol.",
    ),
    (
        "4",
        "The target refused, or a command ended with an error status.",
    ),
    ("5", "The data differ (compare, copy --verify)."),
];

/// What [`help`] begins with.
pub(crate) const HEADING: &str = "Exit status:\n";

/// [`STATUS`] as `nvmf --help` has it.
pub(crate) fn help() -> String {
    let lines: Vec<String> = STATUS
        .iter()
        .map(|(status, meaning)| format!("  {status}  {meaning}"))
        .collect();
    HEADING.to_owned() + &lines.join("\n")
}

/// What the output is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[value(alias = "normal")]
    Text,
    /// For programs: a JSON document a line, errors too
    Json,
}

/// How a command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    Connection = 3,
    Refused = 4,
    Differs = 5,
}

/// A failure that decides its exit status, unlike most.
#[derive(Debug)]
struct Failure {
    exit: Exit,
    message: String,
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Failure {}

/// What the library says, and what to do about it.
#[derive(Debug)]
struct Hinted {
    error: Error,
    hint: String,
}

impl Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.error, self.hint)
    }
}

impl StdError for Hinted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// The command line makes no sense, which only now shows.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure {
        exit: Exit::Usage,
        message: message.into(),
    }
    .into()
}

/// What clap says of the command line, as one line: the message without what it adds.
pub(crate) fn misuse(text: &str) -> anyhow::Error {
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let words: Vec<&str> = message.split_whitespace().collect();
    usage(words.join(" "))
}

/// Whether arguments ask for JSON, though they make no sense.
pub(crate) fn asks_for_json(args: &[String]) -> bool {
    let joined = ["-ojson", "--output=json", "--output-format=json"];
    let apart = ["-o", "--output", "--output-format"];
    let mut before = "";
    args.iter().any(|arg| {
        let name = std::mem::replace(&mut before, arg);
        joined.contains(&arg.as_str()) || arg == "json" && apart.contains(&name)
    })
}

/// Data are not what they should be.
pub(crate) fn differs(message: impl Into<String>) -> anyhow::Error {
    Failure {
        exit: Exit::Differs,
        message: message.into(),
    }
    .into()
}

/// There was a connection, and will be none any more.
pub(crate) fn gone(message: impl Into<String>) -> anyhow::Error {
    Failure {
        exit: Exit::Connection,
        message: message.into(),
    }
    .into()
}

/// The context of an error: standard output takes no more.
#[derive(Debug)]
pub(crate) struct Unprinted;

impl Display for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write standard output")
    }
}

/// Whoever read standard output has gone, as after `| head`: no news to anybody.
pub(crate) fn is_unheard(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    error.is::<Unprinted>() && cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// The error, and what to do about it.
pub(crate) fn hinted(error: Error, hint: String) -> anyhow::Error {
    Hinted { error, hint }.into()
}

impl Exit {
    /// The exit status that the error's type asks for.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let chosen = error.chain().find_map(|cause| {
            let failure = cause.downcast_ref::<Failure>();
            failure.map(|failure| failure.exit)
        });
        chosen
            .or_else(|| library(error).map(Self::of_library))
            .unwrap_or(Self::Failed)
    }

    fn of_library(error: &Error) -> Self {
        match error {
            Error::Resolve { .. }
            | Error::NothingListens { .. }
            | Error::Connect { .. }
            | Error::From { .. }
            | Error::NoRdmaDevice { .. }
            | Error::Rejected { status: None, .. }
            | Error::ConnectionManager { .. }
            | Error::RdmaFault(_)
            | Error::NoIcResp { .. }
            | Error::Closed
            | Error::Lost(_)
            | Error::Timeout { .. }
            | Error::GivenUp
            | Error::FailFast
            | Error::FateUnknown => Self::Connection,
            Error::Controller(
                HostError::Transport(_)
                | HostError::Terminated(_)
                | HostError::Timeout(_)
                | HostError::Unanswered { .. }
                | HostError::ControllerFailed,
            ) => Self::Connection,
            Error::Failed { status, .. } if status.is(Status::COMPARE_FAILURE) => Self::Differs,
            Error::Controller(_)
            | Error::Rejected { .. }
            | Error::Failed { .. }
            | Error::NoSuchNamespace { .. }
            | Error::NamespaceReplaced { .. }
            | Error::NotOffered { .. }
            | Error::NoQueueLeft { .. }
            | Error::Log(_)
            | Error::Nonsense { .. } => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// What the library says, if it is the cause.
fn library(error: &anyhow::Error) -> Option<&Error> {
    error.chain().find_map(|cause| {
        let hinted = cause.downcast_ref::<Hinted>();
        cause
            .downcast_ref::<Error>()
            .or(hinted.map(|hinted| &hinted.error))
    })
}

/// The failure in one line.
pub(crate) fn describe(error: &anyhow::Error, output: Output) -> String {
    match output {
        Output::Text => format!("nvmf: {error:#}"),
        Output::Json => {
            let mut object = json!({
                "error": format!("{error:#}"),
                "exit": Exit::of(error) as u8,
            });
            if let Some(status) = library(error).and_then(status) {
                object["status"] = status;
            }
            object.to_string()
        }
    }
}

/// The failures of a command that goes on: each is told, the last as the command's own.
pub(crate) struct Failures {
    output: Output,
    last: Option<anyhow::Error>,
}

impl Failures {
    pub(crate) fn new(output: Output) -> Self {
        Self { output, last: None }
    }

    pub(crate) fn add(&mut self, error: anyhow::Error) {
        if let Some(earlier) = self.last.replace(error) {
            let line = describe(&earlier, self.output);
            // That nobody reads it is no reason to stop.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    pub(crate) fn finish(self) -> anyhow::Result<()> {
        self.last.map_or(Ok(()), Err)
    }
}

/// What the controller answered, if it did.
fn status(error: &Error) -> Option<Value> {
    let (status, name) = match error {
        Error::Failed { status, opcode, .. } => (status, status.name_for(*opcode)),
        Error::Controller(HostError::Refused { status, .. }) => (status, status.name()),
        _ => return None,
    };
    let mut object = json!({
        "name": name,
        "sct": status.sct,
        "sc": status.sc,
        "crd": status.crd,
        "more": status.more,
        "dnr": status.dnr,
    });
    if let Error::Controller(HostError::Refused {
        parameter: Some(parameter),
        ..
    }) = error
    {
        object["parameter"] = parameter.to_string().into();
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use nvmf_core::host::Step;

    use super::*;

    fn failed(status: Status) -> Error {
        Error::Failed {
            command: "Read",
            opcode: 2,
            status,
        }
    }

    #[test]
    fn the_type_of_an_error_decides_wherever_it_is_in_the_chain() {
        let refused = HostError::Refused {
            step: Step::Connect,
            status: Status::CONNECT_INVALID_HOST,
            parameter: None,
        };
        for (error, exit) in [
            (anyhow::anyhow!("disk full"), Exit::Failed),
            (usage("which?"), Exit::Usage),
            (Error::Closed.into(), Exit::Connection),
            (
                Error::Controller(HostError::Timeout(Step::Connect)).into(),
                Exit::Connection,
            ),
            (Error::Controller(refused).into(), Exit::Refused),
            (failed(Status::LBA_OUT_OF_RANGE).into(), Exit::Refused),
            (failed(Status::COMPARE_FAILURE).into(), Exit::Differs),
            (hinted(Error::GivenUp, "why?".to_owned()), Exit::Connection),
            (gone("given up"), Exit::Connection),
            (Error::FailFast.into(), Exit::Connection),
            (differs("at byte 7"), Exit::Differs),
        ] {
            assert_eq!(Exit::of(&error), exit, "{error}");
            let wrapped = Err::<(), _>(error).context("while reading").unwrap_err();
            assert_eq!(Exit::of(&wrapped), exit, "{wrapped:#}");
        }
        let library = Err::<(), _>(Error::Closed).context("while reading");
        assert_eq!(Exit::of(&library.unwrap_err()), Exit::Connection);
    }

    #[test]
    fn programs_get_the_status() {
        let error = failed(Status::LBA_OUT_OF_RANGE.with_dnr()).into();
        let line = describe(&error, Output::Json);
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["exit"], 4);
        assert_eq!(object["status"]["name"], "LBA Out of Range");
        assert_eq!(
            (&object["status"]["sct"], &object["status"]["sc"]),
            (&0.into(), &0x80.into())
        );
        assert_eq!(object["status"]["dnr"], true);
        assert!(describe(&error, Output::Text).starts_with("nvmf: Read failed: LBA Out of Range"));
    }
}
