//! A target of the bench's own, so that nothing has to be set up.
use std::time::Duration;

use anyhow::Context;
use nvmf::block::spec::Spec;
use nvmf::block::{self, Engines, pool::Pool};
use nvmf_core::wire::ids::{Nqn, Nsid};
use nvmf_tcp::std::catalog::Subsystem;
use nvmf_tcp::std::host::Url;
use nvmf_tcp::std::target::{Config, Running, Target};

use super::threads::Cores;

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6e766d66-6465-4d6f-8000-000000000002";

/// A target in threads of its own, stopped when dropped.
pub(crate) struct Own {
    running: Option<Running>,
    /// Of the subsystem.
    pub(crate) url: Url,
}

impl Own {
    /// Serves `specs`, from NSID 1 on, on the loopback interface. Its workers stay on
    /// `cores.target`, and poll for `spin` before they sleep.
    ///
    /// # Errors
    /// There is no such target to be had.
    pub(crate) fn start(specs: &[Spec], cores: &Cores, spin: Duration) -> anyhow::Result<Self> {
        let nqn: Nqn = NQN.parse().context("the bench's NQN")?;
        let engines =
            Engines::start(Pool::default_size()).context("cannot start threads for files")?;
        let mut subsystem = Subsystem::new(nqn.clone());
        for (nsid, spec) in (1..).map(Nsid).zip(specs) {
            let namespace = block::open(spec, NQN, nsid, &engines)?;
            subsystem.namespaces.push(namespace);
        }
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
            url: format!("nvme+tcp://{address}/{nqn}").parse()?,
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
