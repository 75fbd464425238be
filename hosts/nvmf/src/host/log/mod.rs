//! `nvmf get-log` and `nvmf smart-log`.
mod pages;

use nvmf_core::host::command;
use nvmf_core::wire::ids::Nsid;
use nvmf_core::wire::log::LogId;
use nvmf_core::wire::sqe::AdminOpcode;
use nvmf_tcp::std::buffer::Buffer;
use nvmf_tcp::std::host::{Controller, Error, Payload};
use serde_json::json;

use super::identify::RawArgs;
use super::{OutputArgs, ScopeArgs, hex_dump, json, number, print, succeeded};
use crate::exit;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// Show a log page
#[derive(clap::Args)]
#[command(after_help = "\
The pages that are decoded: 00h supported log pages, 01h error information, 02h health,
03h firmware slots, 04h changed namespaces, 05h commands supported and effects, 09h endurance
group, 0Ch asymmetric namespace access, 12h features supported and effects, 70h discovery,
80h reservation notification. Others, and parts of a page, are shown in hexadecimal.

Examples:
  nvmf get-log nvme+tcp://192.0.2.7/NQN --log-id 1
  nvmf get-log nvme+tcp://192.0.2.7/NQN --log-id 0xc0 --log-len 512 --raw-binary > page
  nvmf get-log nvme+tcp://192.0.2.7 --log-id 0x70 --output json")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    scope: ScopeArgs,

    /// The page
    #[arg(short = 'i', long, visible_alias = "lid", value_name = "LID", value_parser = number::<u8>)]
    log_id: u8,

    /// Bytes to read [default: all of a page that is decoded]
    #[arg(short, long, value_name = "BYTES", value_parser = number::<u32>)]
    log_len: Option<u32>,

    /// The byte to begin at, a multiple of 4
    #[arg(long, value_name = "OFFSET", value_parser = number::<u64>, default_value = "0")]
    lpo: u64,

    /// Log specific field
    #[arg(short = 's', long, value_name = "LSP", value_parser = number::<u8>, default_value = "0")]
    lsp: u8,

    /// Log specific identifier, such as an endurance group
    #[arg(short = 'S', long, value_name = "LSI", value_parser = number::<u16>, default_value = "0")]
    lsi: u16,

    /// Retain the asynchronous event that the page belongs to
    #[arg(short, long)]
    rae: bool,

    /// UUID index
    #[arg(short = 'U', long, value_name = "INDEX", value_parser = number::<u8>, default_value = "0")]
    uuid_index: u8,

    /// Command set identifier
    #[arg(short = 'y', long, value_name = "CSI", value_parser = number::<u8>, default_value = "0")]
    csi: u8,

    /// Show the bytes in hexadecimal, decoded or not
    #[arg(short = 'x', long, conflicts_with_all = ["raw_binary", "output"], help_heading = "Output")]
    hex: bool,

    #[command(flatten)]
    raw: RawArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Show the health of a controller (log page 02h)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nvmf smart-log nvme+tcp://192.0.2.7/NQN
  nvmf smart-log nvme+tcp://192.0.2.7/NQN --output json")]
pub(crate) struct SmartArgs {
    #[command(flatten)]
    scope: ScopeArgs,

    #[command(flatten)]
    raw: RawArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Which log, and how it is to be read.
struct Log {
    lid: u8,
    nsid: Nsid,
    lsp: u8,
    lsi: u16,
    uuid_index: u8,
    csi: u8,
    rae: bool,
}

/// Prints a log page.
pub(crate) fn get(args: &GetArgs) -> anyhow::Result<()> {
    let (lid, lpo) = (args.log_id, args.lpo);
    let page = pages::find(lid);
    if page.is_none() && args.log_len.is_none() {
        return Err(exit::usage(format!(
            "how long is log page {lid:02X}h? Say so with --log-len"
        )));
    }
    if !lpo.is_multiple_of(4) {
        return Err(exit::usage("--lpo must be a multiple of 4"));
    }
    let (controller, nsid) = args.scope.connect()?;
    let log = Log {
        nsid: nsid.unwrap_or(pages::default_nsid(lid)),
        lid,
        lsp: args.lsp,
        lsi: args.lsi,
        uuid_index: args.uuid_index,
        csi: args.csi,
        rae: args.rae,
    };
    let whole = match page {
        Some(page) => Some(page.len(&controller, &log)?),
        None => None,
    };
    let rest = whole.map(|len| len.saturating_sub(usize::try_from(lpo).unwrap_or(usize::MAX)));
    let len = match args.log_len {
        Some(len) => len as usize,
        None => rest.unwrap_or_default(),
    };
    let bytes = log.read(&controller, lpo, len)?;
    if args.raw.raw_binary {
        return print(&bytes);
    }
    let page = page.filter(|_| !args.hex && lpo == 0 && whole == Some(len));
    if let Some(page) = page {
        let decoded = page
            .decode(&bytes)
            .ok_or(Error::Nonsense { command: COMMAND })?;
        return args.output.print(|| decoded.text, || decoded.json);
    }
    let json = || json!({"lid": lid, "lpo": lpo, "data": json::hex(&bytes)});
    args.output.print(|| hex_dump(&bytes, lpo), json)
}

/// Prints the health log.
pub(crate) fn smart(args: &SmartArgs) -> anyhow::Result<()> {
    let (controller, nsid) = args.scope.connect()?;
    let log = Log::plain(LogId::SmartHealth, nsid);
    let bytes = log.read(&controller, 0, pages::SMART_LEN)?;
    if args.raw.raw_binary {
        return print(&bytes);
    }
    let decoded = pages::find(log.lid)
        .and_then(|page| page.decode(&bytes))
        .ok_or(Error::Nonsense { command: COMMAND })?;
    args.output.print(|| decoded.text, || decoded.json)
}

const COMMAND: &str = "Get Log Page";

impl Log {
    fn plain(lid: LogId, nsid: Option<Nsid>) -> Self {
        let lid = lid.code();
        Self {
            nsid: nsid.unwrap_or(pages::default_nsid(lid)),
            lid,
            lsp: 0,
            lsi: 0,
            uuid_index: 0,
            csi: 0,
            rae: false,
        }
    }

    /// `len` bytes from byte `lpo` on, by as many commands as it takes. Only the last
    /// of them lets go of the event.
    fn read(&self, controller: &Controller, lpo: u64, len: usize) -> Result<Vec<u8>, Error> {
        let most = PIECE.min(controller.capabilities().transfer as usize);
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let some = most.min(len - bytes.len());
            let last = bytes.len() + some == len;
            let piece = self.piece(controller, lpo + bytes.len() as u64, some, last)?;
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    fn piece(
        &self,
        controller: &Controller,
        offset: u64,
        len: usize,
        last: bool,
    ) -> Result<Vec<u8>, Error> {
        const RAE: u32 = 1 << 15;
        // The controller returns whole dwords.
        let asked = len.next_multiple_of(4);
        let bytes = u32::try_from(asked).unwrap_or(u32::MAX);
        let mut sqe = command::get_log_page(self.lid, self.nsid, offset, bytes);
        let mut cdw10 = sqe.cdw10.get() | u32::from(self.lsp & 0x7F) << 8;
        if last && !self.rae {
            cdw10 &= !RAE;
        }
        sqe.cdw10.set(cdw10);
        sqe.cdw11 |= u32::from(self.lsi) << 16;
        sqe.cdw14
            .set(u32::from(self.csi) << 24 | u32::from(self.uuid_index & 0x7F));
        let done = controller.admin(&sqe, Payload::Read(Buffer::zeroed(asked)))?;
        let done = succeeded(done, COMMAND, AdminOpcode::GetLogPage.code())?;
        let bytes = done.data().get(..len);
        Ok(bytes.ok_or(Error::Nonsense { command: COMMAND })?.to_vec())
    }
}
