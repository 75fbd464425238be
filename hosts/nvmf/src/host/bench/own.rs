//! A target of the bench's own, so that nothing has to be set up.
use std::time::Duration;

use anyhow::Context;
use nvmf::block::spec::Spec;
use nvmf::block::{self, pool::Pool};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::host::Url;
use nvmf_tcp::std::target::{Config, Running, Target};

use super::threads::Cores;

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6e766d66-6465-4d6f-8000-000000000002";

/// RAM that is served, in bytes: more than the caches of most processors hold.
const RAM: u64 = 64 << 20;

/// Nothing that is served, in bytes.
const NOTHING: u64 = 1 << 40;

/// A target in threads of its own, stopped when dropped.
pub(crate) struct Own {
    running: Option<Running>,
    pub(crate) url: Url,
}

impl Own {
    /// Serves `size` bytes of memory, or of nothing if `null`, on the loopback interface.
    /// Its workers stay on `cores.target`, and poll for `spin` before they sleep.
    ///
    /// # Errors
    /// There is no such target to be had.
    pub(crate) fn start(
        null: bool,
        size: Option<u64>,
        cores: &Cores,
        spin: Duration,
    ) -> anyhow::Result<Self> {
        let nqn: Nqn = NQN.parse().context("the bench's NQN")?;
        let size = size.unwrap_or(if null { NOTHING } else { RAM }).to_string();
        let spec = match null {
            true => Spec::parse_null(&size),
            false => Spec::parse_ram(&size),
        };
        let spec = spec.context("--size")?;
        let pool = Pool::new(1).context("cannot start a thread")?;
        let mut subsystem = Subsystem::new(nqn.clone());
        subsystem
            .namespaces
            .push(block::open(&spec, NQN, Nsid(1), &pool)?);
        let mut config = Config {
            listen: vec![([127, 0, 0, 1], 0).into()],
            subsystems: vec![subsystem],
            workers: Some(cores.target.len().max(1)),
            // Worker by worker on the first cores: those of `Cores::halves`.
            pin: !cores.target.is_empty(),
            spin,
            ..Config::default()
        };
        config.limits.io_queue_entries = 4096;
        let target = Target::bind(config)?;
        let address = target.local_addrs()[0];
        Ok(Self {
            url: format!("nvme+tcp://{address}/{nqn}?nsid=1").parse()?,
            running: Some(target.spawn()?),
        })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stopper().stop();
            if let Err(error) = running.join() {
                tracing::warn!(%error, "the bench's target did not stop well");
            }
        }
    }
}
