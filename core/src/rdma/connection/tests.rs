use std::vec::Vec;

use super::*;
use crate::rdma::Remote;
use crate::storage::Fixed;
use crate::target::test_env::{
    CC_ENABLE, Handle, SUBNQN, TestEnv, connect_data, connect_sqe, property_set, sqe,
};
use crate::wire::cqe::Cqe;
use crate::wire::sqe::Sqe;
use crate::wire::status::Status;

type Machine = TargetConnection<Fixed<8>, Vec<u8>, Handle>;

const REMOTE: Remote = Remote {
    address: 0x2000,
    key: 0x0055_AA77,
};
const READ: u8 = 0x02;
const WRITE: u8 = 0x01;

struct Host {
    machine: Machine,
    /// Receives that came back, or were not needed.
    receives: usize,
}

impl Host {
    fn connect(qid: u8, cntlid: u16, env: &mut TestEnv) -> Self {
        let config = Config {
            commands: 8,
            reads: 2,
            requests: 16,
        };
        let machine = Machine::new(&config, Duration::from_secs(10), env.now);
        let mut host = Self {
            machine,
            receives: 0,
        };
        let data = connect_data(SUBNQN, cntlid).to_vec();
        host.send(connect_sqe(qid, 7), 1024, data, env);
        assert_eq!(host.respond(env).status(), Status::SUCCESS);
        host
    }

    /// An I/O queue of a controller that is enabled.
    fn io(env: &mut TestEnv) -> Self {
        let mut admin = Self::connect(0, 0xFFFF, env);
        let enable = property_set(0x14, 0, CC_ENABLE);
        admin.send(enable, 0, Vec::new(), env);
        assert_eq!(admin.respond(env).status(), Status::SUCCESS);
        Self::connect(1, 1, env)
    }

    fn send(&mut self, sqe: Sqe, data_len: u32, buffer: Vec<u8>, env: &mut TestEnv) {
        // What is given back to the environment was taken from it.
        env.buffers += 1;
        let command = Command { sqe, data_len };
        let back = self.machine.received(&command, Some(buffer), env);
        if back.is_some() {
            env.buffers -= 1;
            self.receives += 1;
        }
    }

    /// The next chain is a response without data; it succeeds.
    fn respond(&mut self, env: &mut TestEnv) -> Cqe {
        let post = self.machine.poll_post().expect("a response");
        let Work::Respond {
            data: None,
            response,
            ..
        } = post.work
        else {
            panic!("{post:?}");
        };
        self.machine.completed(post.id, post.buffer, env);
        response
    }
}

/// A command on one block of namespace 1, with a keyed descriptor that is to be invalidated.
fn block_command(opcode: u8) -> Sqe {
    sqe(&[
        (0, &[opcode, 0x40, 5]),
        (4, &[1]),
        (24, &[0, 0x20]),
        (32, &[0, 0x10, 0, 0x77, 0xAA, 0x55, 0, 0x4F]),
    ])
}

/// The same with its data in the capsule.
fn inline(offset: u8) -> Sqe {
    sqe(&[
        (0, &[WRITE, 0x40, 5]),
        (4, &[1]),
        (24, &[offset]),
        (32, &[0, 0x10]),
        (39, &[0x01]),
    ])
}

#[test]
fn an_inline_write_is_one_receive_and_one_send() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    env.outcome = None;
    host.send(inline(0), 4096, std::vec![0x5A; 8192], &mut env);
    assert!(!host.machine.wants_post());
    // The buffer that it was received in is the one that the device writes.
    let request = env.under_way.remove(0);
    assert_eq!(request.buffer.as_ref().unwrap().len(), 8192);
    host.machine
        .block_completed(request.complete(Ok(())), &mut env);
    let response = host.respond(&mut env);
    assert_eq!((response.cid().0, response.status()), (5, Status::SUCCESS));
    assert!(host.machine.poll_post().is_none());
    assert_eq!(env.buffers, 0);
}

#[test]
fn a_write_is_fetched_into_a_buffer_that_nobody_else_has() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    host.send(block_command(WRITE), 0, std::vec![0; 8192], &mut env);
    assert_eq!(host.receives, 1, "the one that it came in is free");
    let Post { id, work, buffer } = host.machine.poll_post().unwrap();
    assert!(matches!(work, Work::Fetch { remote: REMOTE, place } if place.len == 4096));
    let buffer = buffer.expect("to read into");
    host.machine.completed(id, Some(buffer), &mut env);
    let post = host.machine.poll_post().unwrap();
    let Work::Respond {
        data: None,
        response,
        invalidate,
        ..
    } = post.work
    else {
        panic!("{post:?}");
    };
    assert_eq!(response.status(), Status::SUCCESS);
    assert_eq!(invalidate, Some(REMOTE.key));
    host.machine.completed(post.id, None, &mut env);
    assert_eq!(env.buffers, 0);
}

#[test]
fn a_read_is_written_and_answered_in_one_chain() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    host.send(block_command(READ), 0, std::vec![0; 8192], &mut env);
    let Post { id, work, buffer } = host.machine.poll_post().unwrap();
    let Work::Respond {
        data: Some((source, REMOTE)),
        invalidate: Some(_),
        ..
    } = work
    else {
        panic!("{work:?}");
    };
    assert_eq!(source.len(), 4096);
    assert!(host.machine.poll_post().is_none());
    assert!(!host.machine.may_close());
    host.machine.completed(id, buffer, &mut env);
    assert_eq!(env.buffers, 0);
}

#[test]
fn data_that_is_not_in_the_capsule_fails_the_command() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    for (offset, there) in [(1, 8192), (0, 4095), (0, 0)] {
        host.send(inline(offset), there, std::vec![0; 8192], &mut env);
        let status = host.respond(&mut env).status();
        assert_eq!(status, Status::SGL_OFFSET_INVALID.with_dnr());
        assert_eq!(host.machine.closing(), None);
    }
    // A descriptor of TCP's.
    let foreign = block_command(READ).with_sgl(crate::wire::sgl::Sgl::Transport { length: 4096 });
    host.send(foreign, 0, std::vec![0; 8192], &mut env);
    let status = host.respond(&mut env).status();
    assert_eq!(status, Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
    assert_eq!(env.buffers, 0);
}

#[test]
fn a_failed_chain_ends_the_connection_and_keeps_nothing() {
    for opcode in [READ, WRITE] {
        let mut env = TestEnv::new();
        let mut host = Host::io(&mut env);
        host.send(block_command(opcode), 0, Vec::new(), &mut env);
        let Post { id, buffer, .. } = host.machine.poll_post().unwrap();
        host.machine.failed(id, buffer, &mut env);
        assert_eq!(host.machine.closing(), Some(CloseReason::Failed));
        assert!(host.machine.may_close());
        // What comes afterwards is not begun.
        host.send(inline(0), 4096, std::vec![0; 8192], &mut env);
        assert!(!host.machine.wants_post());
        host.machine.connection_closed(&mut env);
        assert!(host.machine.is_drained());
        assert_eq!(env.buffers, 0);
    }
}

#[test]
fn it_is_not_drained_before_chains_and_devices_are_done() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    host.send(block_command(READ), 0, Vec::new(), &mut env);
    let Post { id, buffer, .. } = host.machine.poll_post().unwrap();
    env.outcome = None;
    host.send(inline(0), 4096, std::vec![0; 4096], &mut env);
    host.machine.connection_closed(&mut env);
    assert!(!host.machine.is_drained());
    host.machine.failed(id, buffer, &mut env);
    assert!(!host.machine.is_drained());
    let request = env.under_way.remove(0);
    host.machine
        .block_completed(request.complete(Ok(())), &mut env);
    assert!(host.machine.is_drained());
    assert_eq!(env.buffers, 0);
}

#[test]
fn commands_beyond_the_credit_end_the_connection() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    env.outcome = None;
    for _ in 0..8 {
        host.send(inline(0), 4096, std::vec![0; 4096], &mut env);
        assert_eq!(host.machine.closing(), None);
    }
    host.send(inline(0), 4096, std::vec![0; 4096], &mut env);
    let fault = CloseReason::Fault(Fault::TooManyCommands);
    assert_eq!(host.machine.closing(), Some(fault));
}

#[test]
fn the_next_command_may_be_here_before_a_response_is_known_to_be_sent() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    let mut posts = Vec::new();
    for _ in 0..8 {
        host.send(block_command(READ), 0, Vec::new(), &mut env);
        posts.push(host.machine.poll_post().unwrap());
    }
    // The host has its answers; we have not heard of it.
    let receives = host.receives;
    for _ in 0..3 {
        host.send(inline(0), 4096, std::vec![0; 4096], &mut env);
        assert!(host.machine.poll_post().is_none());
    }
    assert_eq!(host.receives, receives, "their data waits there");
    host.send(block_command(WRITE), 0, std::vec![0; 4096], &mut env);
    assert_eq!(host.receives, receives + 1, "there is no data");
    assert_eq!(host.machine.closing(), None);
    for post in posts {
        host.machine.completed(post.id, post.buffer, &mut env);
    }
    for _ in 0..3 {
        assert_eq!(host.respond(&mut env).status(), Status::SUCCESS);
    }
    let Post { id, work, buffer } = host.machine.poll_post().unwrap();
    assert!(matches!(work, Work::Fetch { .. }));
    host.machine.completed(id, buffer, &mut env);
    let post = host.machine.poll_post().unwrap();
    host.machine.completed(post.id, post.buffer, &mut env);
    assert!(host.machine.poll_post().is_none());
    assert_eq!(env.buffers, 0);
}

#[test]
fn data_for_which_there_is_no_buffer_fails_the_command_for_now() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    let command = Command {
        sqe: inline(0),
        data_len: 4096,
    };
    assert_eq!(host.machine.received(&command, None, &mut env), None);
    let status = host.respond(&mut env).status();
    assert_eq!(status, Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(env.under_way.is_empty());
}

#[test]
fn commands_that_wait_give_their_buffers_back() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    let mut posts = Vec::new();
    for _ in 0..8 {
        host.send(block_command(READ), 0, Vec::new(), &mut env);
        posts.push(host.machine.poll_post().unwrap());
    }
    host.send(inline(0), 4096, std::vec![0; 4096], &mut env);
    host.machine.connection_closed(&mut env);
    for post in posts {
        host.machine.failed(post.id, post.buffer, &mut env);
    }
    assert!(host.machine.is_drained());
    assert_eq!(env.buffers, 0);
}

#[test]
fn data_that_was_fetched_for_a_connection_that_is_gone_goes_nowhere() {
    let mut env = TestEnv::new();
    let mut host = Host::io(&mut env);
    env.outcome = None;
    host.send(block_command(WRITE), 0, Vec::new(), &mut env);
    let Post { id, buffer, .. } = host.machine.poll_post().unwrap();
    host.machine.connection_closed(&mut env);
    host.machine.completed(id, buffer, &mut env);
    assert!(env.under_way.is_empty(), "nothing is begun");
    assert!(host.machine.is_drained());
    assert_eq!(env.buffers, 0);
}
