//! What is compared, in turns: the machine is not as fast at one time as at another.
use std::thread;

use nvmf_core::tcp::rx::Digests;

use super::SPIN;
use super::fleet;
use super::lane::Lane;
use super::live::Live;
use super::reference::Bare;
use super::report::{Comparison, Report};
use super::tally::Tally;
use super::threads::{Cores, together};
use super::workload::{Job, Limit};

/// A namespace under load.
pub(crate) struct Served<'a> {
    name: String,
    digests: (bool, bool),
    /// By job.
    lanes: Vec<Vec<Lane<'a>>>,
    /// All rounds together.
    limit: Limit<'a>,
    tally: Tally,
    /// IOPS, round by round.
    rounds: Vec<f64>,
    read_back: Option<u64>,
}

/// Everything that runs.
pub(crate) struct Turns<'a> {
    pub(crate) job: Job,
    pub(crate) served: Vec<Served<'a>>,
    pub(crate) bare: Vec<Bare>,
    pub(crate) cores: Cores,
    pub(crate) rounds: u32,
    pub(crate) live: Live,
}

impl<'a> Served<'a> {
    /// Deals `lanes` to `jobs` jobs, of which they are a multiple.
    pub(crate) fn new(
        name: &str,
        digests: Digests,
        lanes: Vec<Lane<'a>>,
        jobs: u16,
        limit: Limit<'a>,
    ) -> Self {
        let mut by_job: Vec<Vec<Lane<'a>>> = (0..jobs).map(|_| Vec::new()).collect();
        for (index, lane) in lanes.into_iter().enumerate() {
            by_job[index % usize::from(jobs)].push(lane);
        }
        Self {
            name: name.to_owned(),
            digests: (digests.header, digests.data),
            lanes: by_job,
            limit,
            tally: Tally::new(),
            rounds: Vec::new(),
            read_back: None,
        }
    }
}

impl Turns<'_> {
    /// Runs all rounds, and with `verify` reads back what was written.
    ///
    /// # Errors
    /// Those of [`Lane::run`] and [`Bare::run`].
    pub(crate) fn run(&mut self, verify: bool) -> anyhow::Result<Vec<Report>> {
        let alone = self.served.len() + self.bare.len() == 1;
        let rounds = if alone { 1 } else { self.rounds };
        let mut comparisons: Vec<(Tally, Vec<f64>)> = self
            .bare
            .iter()
            .map(|_| (Tally::new(), Vec::new()))
            .collect();
        let (ours, count) = (self.served.len(), self.served.len() + self.bare.len());
        for round in 0..rounds {
            for turn in 0..count {
                // Whoever was first is last in the next round.
                let index = if round % 2 == 0 {
                    turn
                } else {
                    count - 1 - turn
                };
                let all = self.served[index.min(ours - 1)].limit;
                let limit = Limit {
                    runtime: all.runtime.map(|runtime| runtime / rounds),
                    ..all
                };
                if index < ours {
                    let tally = self.ours(index, limit)?;
                    let served = &mut self.served[index];
                    served.tally.later(&tally);
                    if !limit.interrupted() {
                        served.rounds.push(tally.iops());
                    }
                } else {
                    let bare = &mut self.bare[index - ours];
                    let tally = bare.run(limit, &self.cores, &self.live)?;
                    if !limit.interrupted() {
                        let (all, rounds) = &mut comparisons[index - ours];
                        all.later(&tally);
                        rounds.push(tally.iops());
                    }
                }
                if limit.interrupted() {
                    return Ok(self.reports(&comparisons));
                }
            }
        }
        if verify {
            self.read_back()?;
        }
        Ok(self.reports(&comparisons))
    }

    fn ours(&mut self, index: usize, limit: Limit<'_>) -> anyhow::Result<Tally> {
        let name = self.job.rw.to_string();
        let tallies = together(
            &mut self.served[index].lanes,
            &self.cores.host,
            &self.live,
            &name,
            |lanes, counter| match lanes.as_mut_slice() {
                [lane] => lane.run(limit, counter),
                lanes => fleet::run(lanes, limit, counter),
            },
        )?;
        // The target's workers go to sleep: what is next has their cores for itself.
        thread::sleep(2 * SPIN);
        Ok(Tally::of_all(&tallies))
    }

    /// If that is interrupted, it shows nothing.
    fn read_back(&mut self) -> anyhow::Result<()> {
        for served in &mut self.served {
            let limit = Limit {
                interrupt: served.limit.interrupt,
                ..Limit::default()
            };
            if limit.interrupted() {
                break;
            }
            let counts = together(
                &mut served.lanes,
                &self.cores.host,
                &self.live,
                "verify",
                |lanes, counter| {
                    let mut count = 0;
                    for lane in lanes {
                        count += lane.read_back(limit, counter)?;
                    }
                    Ok(count)
                },
            )?;
            served.read_back = Some(counts.into_iter().sum()).filter(|_| !limit.interrupted());
        }
        Ok(())
    }

    /// A round that was interrupted compares nothing.
    fn reports(&self, comparisons: &[(Tally, Vec<f64>)]) -> Vec<Report> {
        let several = self.served.len() > 1;
        let report = |served: &Served<'_>| Report {
            name: several.then(|| served.name.clone()),
            job: self.job,
            numjobs: u16::try_from(served.lanes.len()).unwrap_or(u16::MAX),
            digests: served.digests,
            tally: served.tally.clone(),
            references: self
                .bare
                .iter()
                .zip(comparisons)
                .map(|(bare, (tally, rounds))| Comparison {
                    name: bare.memory.name(),
                    tally: tally.clone(),
                    rounds: served
                        .rounds
                        .iter()
                        .copied()
                        .zip(rounds.iter().copied())
                        .collect(),
                })
                .filter(|comparison| !comparison.rounds.is_empty())
                .collect(),
            read_back: served.read_back,
        };
        self.served.iter().map(report).collect()
    }
}
