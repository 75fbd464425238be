//! `nvmf connect`.
use std::num::NonZero;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nvmf_core::host::command::{get_log_page, releasing_events};
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::log::{AnaGroupDescriptor, AnaLog, AnaLogHeader, LogId};
use nvmf_core::wire::sqe::AdminOpcode;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Association, Error, Event, Host, Payload, Url};
use serde_json::{Value, json};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::connection::explain;
use super::interrupt::Interrupt;
use super::{ConnectArgs, OutputArgs, RecoveryArgs, given_up, succeeded};

/// How long an event and Ctrl-C may wait for each other.
const LOOK: Duration = Duration::from_millis(100);

/// Connect to a subsystem, and show what happens
#[derive(clap::Args)]
#[command(after_help = "\
Without --watch it connects, shows to what, and disconnects: does it work? With --watch it stays
connected, and connects again when the connection is lost; each event is a line. Ctrl-C ends it.
When the target is given up, the exit status is 3.

Examples:
  nvmf connect nvme+tcp://192.0.2.7/NQN
  nvmf connect nvme+tcp://192.0.2.7/NQN --watch --output json
  nvmf connect nvme+tcp://192.0.2.7/NQN --watch --reconnect-delay 1 --ctrl-loss-tmo -1")]
pub(crate) struct Args {
    /// The subsystem: nvme+tcp://HOST[:PORT]/NQN, or nvme+rdma://, or without an NQN the discovery subsystem
    url: Url,

    /// Stay connected, and show what happens
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    recovery: RecoveryArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Tells what happens, until that is over.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::new()?;
    let mut options = args.connect.options(&args.url)?;
    options.recovery = args.recovery.policy();
    let host = Host::new(NonZero::new(1))?;
    let association = host
        .attach(&args.url, &options)
        .wait()
        .map_err(|error| explain(error, &args.url, &options))?;
    let events = association.events();
    // It may be gone already, which would be no event any more.
    association.identify().wait()?;
    let mut watch = Watch {
        association,
        output: &args.output,
        namespaces: None,
    };
    watch.ready("connected")?;
    if !args.watch {
        return Ok(());
    }
    while !interrupt.came_before(Instant::now()) {
        match events.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Gone) => return Err(given_up(&watch.association)),
            Ok(event) => watch.tell(&event)?,
        }
    }
    Ok(())
}

struct Watch<'a> {
    association: Association,
    output: &'a OutputArgs,
    /// Those that were told, with their numbers of blocks.
    namespaces: Option<Vec<(u32, u64)>>,
}

impl Watch<'_> {
    fn tell(&mut self, event: &Event) -> anyhow::Result<()> {
        let name = match event {
            Event::Reconnected => return self.ready("reconnected"),
            Event::Lost(_) => "lost",
            Event::Reconnecting { .. } => "reconnecting",
            Event::NotReconnected(_) => "not-reconnected",
            Event::Async(_) => "async",
            Event::NamespaceChanged(_) => "namespace",
            Event::Gone => "gone",
            _ => "other",
        };
        let mut details = json!({"message": event.to_string()});
        match event {
            Event::Lost(error) | Event::NotReconnected(error) => {
                details["error"] = error.to_string().into();
            }
            Event::Reconnecting { attempt, delay } => {
                details["attempt"] = (*attempt).into();
                details["delay_s"] = delay.as_secs_f64().into();
            }
            Event::Async(event) => details["log_page"] = event.lid.code().into(),
            Event::NamespaceChanged(nsid) => details["nsid"] = nsid.0.into(),
            _ => {}
        }
        self.line(name, &event.to_string(), details)?;
        match event {
            Event::Async(event) => self.look(event.lid),
            _ => Ok(()),
        }
    }

    /// Reads the log page that an event points at. Before that the controller reports no
    /// other event of the kind.
    fn look(&mut self, lid: LogId) -> anyhow::Result<()> {
        let seen = match lid {
            LogId::SupportedLogPages => return Ok(()), // no page explains the event
            LogId::Ana => self.ana(),
            LogId::ChangedNamespaces => self.log(lid, 0, 4096).map(|_| Vec::new()),
            _ => self.log(lid, 0, 64).map(|_| Vec::new()),
        };
        match seen {
            // That it is lost is an event of its own.
            Err(error) => tracing::debug!("cannot read the log page: {error}"),
            Ok(_) if lid == LogId::ChangedNamespaces => self.list()?,
            Ok(groups) => {
                for (group, state) in groups {
                    let text = format!("namespaces of ANA group {group}: {state}");
                    self.line("ana", &text, json!({"group": group, "state": state}))?;
                }
            }
        }
        Ok(())
    }

    /// The ANA groups that have namespaces, and their states.
    fn ana(&self) -> Result<Vec<(u32, String)>, Error> {
        /// Return Groups Only, without their namespaces.
        const RGO: u8 = 1;
        let groups = self.association.identify().wait()?.nanagrpid.get();
        let len = groups as usize * size_of::<AnaGroupDescriptor>() + size_of::<AnaLogHeader>();
        let bytes = self.log(LogId::Ana, RGO, u32::try_from(len).unwrap_or(u32::MAX))?;
        let log = AnaLog::parse(&bytes);
        Ok(log
            .into_iter()
            .flat_map(|log| log.groups())
            .flatten()
            .map(|group| {
                let state = group.descriptor.state().to_string();
                (group.descriptor.grpid.get(), state)
            })
            .collect())
    }

    /// `len` bytes of a log page.
    fn log(&self, lid: LogId, lsp: u8, len: u32) -> Result<Vec<u8>, Error> {
        let mut sqe = releasing_events(get_log_page(lid.code(), Nsid(0), 0, len));
        sqe.cdw10.set(sqe.cdw10.get() | u32::from(lsp) << 8);
        let payload = Payload::Read(Buffer::zeroed(len as usize));
        let done = self.association.admin(&sqe, payload).wait()?;
        let done = succeeded(done, "Get Log Page", AdminOpcode::GetLogPage.code())?;
        Ok(done.data().to_vec())
    }

    /// There is a controller.
    fn ready(&mut self, name: &str) -> anyhow::Result<()> {
        let can = self.association.capabilities();
        let (address, subnqn) = (self.association.address(), self.association.subnqn());
        let text = format!(
            "{name}: controller {} of {subnqn} at {address}, NVMe {}, {} I/O queues",
            can.cntlid, can.vs, can.io_queues
        );
        let details = json!({
            "cntlid": can.cntlid.0,
            "subnqn": subnqn.to_string(),
            "address": address.to_string(),
            "version": can.vs.to_string(),
            "io_queues": can.io_queues,
        });
        self.line(name, &text, details)?;
        self.list()
    }

    /// The namespaces, if they are not as they were told.
    fn list(&mut self) -> anyhow::Result<()> {
        if self.association.subnqn().is_discovery() {
            return Ok(());
        }
        let list = || {
            let mut found = Vec::new();
            for nsid in self.association.active_namespaces().wait()? {
                let identify = self.association.identify_namespace(nsid).wait()?;
                found.push((nsid.0, identify.nsze.get()));
            }
            Ok::<_, nvmf_tcp::std::host::Error>(found)
        };
        let found = match list() {
            Ok(found) => found,
            // That it is lost again is an event of its own.
            Err(error) => {
                tracing::debug!("cannot list the namespaces: {error}");
                return Ok(());
            }
        };
        if self.namespaces.as_ref() == Some(&found) {
            return Ok(());
        }
        let shown: Vec<String> = found
            .iter()
            .map(|(nsid, blocks)| format!("{nsid} ({blocks} blocks)"))
            .collect();
        let objects: Value = found
            .iter()
            .map(|(nsid, blocks)| json!({"nsid": nsid, "blocks": blocks}))
            .collect();
        let text = match shown.as_slice() {
            [] => "namespaces: none".to_owned(),
            shown => format!("namespaces: {}", shown.join(", ")),
        };
        self.namespaces = Some(found);
        self.line("namespaces", &text, json!({"namespaces": objects}))
    }

    fn line(&self, event: &str, text: &str, details: Value) -> anyhow::Result<()> {
        let time = now();
        let json = || {
            let mut object = json!({"time": time, "event": event});
            if let (Some(object), Value::Object(details)) = (object.as_object_mut(), details) {
                object.extend(details);
            }
            object
        };
        self.output.print(|| format!("{time} {text}\n"), json)
    }
}

/// As the log has it.
fn now() -> String {
    let mut text = String::new();
    // A string takes all.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}
