//! Which worker a connection goes to.
//!
//! Nobody knows what a connection will be before its Connect command: it goes
//! to the worker with the fewest connections. Once it is an I/O queue it goes
//! to the worker with the fewest I/O queues of all controllers. Both counts
//! are kept apart because the loads are: an admin queue is all but idle, and a
//! rule such as "queue id modulo workers" puts every admin queue on one worker
//! and, with one I/O queue per controller, every I/O queue on another.
use std::collections::HashMap;

use nvmf_core::wire::ids::Cntlid;

/// A controller: the index of its subsystem, and its id there.
pub(super) type ControllerKey = (usize, Cntlid);

/// What each worker carries.
#[derive(Debug)]
pub(super) struct Placement {
    workers: Vec<Load>,
    /// I/O queues move; else they stay where they were admitted.
    moves: bool,
}

#[derive(Debug, Default)]
struct Load {
    connections: usize,
    io_queues: usize,
    io_queues_of: HashMap<ControllerKey, usize>,
}

impl Placement {
    /// `workers` idle workers; at least one.
    pub(super) fn new(workers: usize, moves: bool) -> Self {
        let mut loads = Vec::new();
        loads.resize_with(workers.max(1), Load::default);
        Self {
            workers: loads,
            moves,
        }
    }

    /// The worker for a new connection, which is counted there.
    pub(super) fn admit(&mut self) -> usize {
        let worker = self.least(|_, load| (load.connections, load.io_queues));
        self.workers[worker].connections += 1;
        worker
    }

    /// The worker for a connection of worker `from` that became an I/O queue
    /// of `controller`; it is counted there from now on.
    pub(super) fn place_io_queue(&mut self, from: usize, controller: ControllerKey) -> usize {
        let worker = self.least(|index, load| {
            (
                !self.moves && index != from,
                load.io_queues,
                load.io_queues_of.get(&controller).copied().unwrap_or(0),
                index != from,
                load.connections,
            )
        });
        self.workers[from].connections -= 1;
        let load = &mut self.workers[worker];
        load.connections += 1;
        load.io_queues += 1;
        *load.io_queues_of.entry(controller).or_default() += 1;
        worker
    }

    /// A connection is gone. `io_queue_of` is what it was placed for.
    pub(super) fn remove(&mut self, worker: usize, io_queue_of: Option<ControllerKey>) {
        let load = &mut self.workers[worker];
        load.connections -= 1;
        let Some(controller) = io_queue_of else {
            return;
        };
        load.io_queues -= 1;
        if let Some(count) = load.io_queues_of.get_mut(&controller) {
            *count -= 1;
            if *count == 0 {
                load.io_queues_of.remove(&controller);
            }
        }
    }

    fn least<K: Ord>(&self, rank: impl Fn(usize, &Load) -> K) -> usize {
        (0..self.workers.len())
            .min_by_key(|&index| rank(index, &self.workers[index]))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io_queues(placement: &Placement) -> Vec<usize> {
        placement
            .workers
            .iter()
            .map(|load| load.io_queues)
            .collect()
    }

    /// A host connects: an admin queue, then `queues` I/O queues.
    fn connect(placement: &mut Placement, controller: u16, queues: usize) -> Vec<usize> {
        placement.admit();
        (0..queues)
            .map(|_| {
                let from = placement.admit();
                placement.place_io_queue(from, (0, Cntlid(controller)))
            })
            .collect()
    }

    #[test]
    fn one_io_queue_each_of_many_controllers_spreads() {
        let mut placement = Placement::new(2, true);
        for controller in 0..10 {
            connect(&mut placement, controller, 1);
        }
        assert_eq!(io_queues(&placement), [5, 5]);
    }

    #[test]
    fn without_moving_one_worker_has_them_all() {
        let mut placement = Placement::new(2, false);
        for controller in 0..10 {
            connect(&mut placement, controller, 1);
        }
        assert_eq!(io_queues(&placement), [0, 10]);
    }

    #[test]
    fn every_controller_gets_every_worker() {
        for workers in 1..=5 {
            let mut placement = Placement::new(workers, true);
            for controller in 0..7 {
                let mut placed = connect(&mut placement, controller, workers);
                placed.sort_unstable();
                assert_eq!(placed, (0..workers).collect::<Vec<_>>(), "{controller}");
            }
        }
    }

    #[test]
    fn a_tie_leaves_a_connection_where_it_is() {
        let mut placement = Placement::new(4, true);
        for _ in 0..3 {
            placement.admit();
        }
        assert_eq!(placement.place_io_queue(2, (0, Cntlid(1))), 2);
    }

    #[test]
    fn what_leaves_is_no_longer_counted() {
        let mut placement = Placement::new(2, true);
        let one = connect(&mut placement, 1, 1)[0];
        let two = connect(&mut placement, 2, 1)[0];
        assert_ne!(one, two);
        placement.remove(one, Some((0, Cntlid(1))));
        assert!(placement.workers[one].io_queues_of.is_empty());
        assert_eq!(connect(&mut placement, 3, 1), [one]);
    }
}
