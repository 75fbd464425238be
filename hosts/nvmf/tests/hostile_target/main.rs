//! Hostile targets against the real host: the `nvmf` binary, or its library where a test needs what
//! no option says.
//!
//! The target here is a script that speaks raw bytes and shares no code with the product: its CRC32C,
//! PDU builders and checks are its own. It also checks every PDU that the host sends. Each test replays
//! something that broke an NVMe/TCP host before, by its number in the catalogue of such faults:
//!
//! | entry | what the target does | test |
//! |---|---|---|
//! | 30, 49 | MAXH2CDATA 4096, R2Ts of 8192: it is in bytes, and kept to | `data::entries_30_and_49_maxh2cdata_is_bytes` |
//! | 35 | R2Ts: one H2CData for each, if it fits | `data::entry_35_one_h2c_data_for_an_r2t` |
//! | 38 | hangs up, or resets, before ICResp | `icresp::entry_38_hangs_up_before_icresp` |
//! | 39 | wrong HLEN | `header::entry_39_hlen_is_that_of_the_type` |
//! | 40 | falls silent while the caller's room in the admin queue is taken | `recovery::entry_40_keep_alive_has_room_while_the_queue_is_full` |
//! | 41 | wrong header digest, then more PDUs | `header::entry_41_nothing_is_read_behind_a_wrong_header_digest` |
//! | 42 | a second R2T before the first is answered | `data::entry_42_two_r2ts_at_a_time` |
//! | 43 | R2T of nothing | `data::entry_43_an_r2t_of_nothing` |
//! | 45 | resets while an I/O queue is set up | `controller::entry_45_reset_while_an_io_queue_is_made` |
//! | 46 | Identify fails after Connect; Dataset Management fails, DNR 0 | `controller::entry_46_what_fails_halfway` |
//! | 47 | R2T for Write Zeroes | `data::entry_47_write_zeroes_has_no_data` |
//! | 48 | a window of 4 KiB, and R2Ts for many large writes | `flow::entry_48_a_small_window` |
//! | 50, 56 | C2HTermReq with FES of all kinds | `term_req::entries_50_and_56_what_a_term_req_says` |
//! | 51 | is lost with a write under way, and does it late | `recovery::entry_51_no_write_overtakes_one_that_may_still_be_done` |
//! | 52 | says nothing, from each command on; when it is connected again, too | `controller::entry_52_stalls_at_each_command`, `recovery::entry_52_stalls_while_it_connects_again` |
//! | 54, 70 | no ICResp, or half of it; SIGINT meanwhile | `icresp::entries_54_and_70_no_icresp`, `icresp::entry_54_interrupted` |
//! | 55 | R2TO and DATAO out of order | `data::entry_55_offsets_are_in_order` |
//! | 57 | C2HTermReq, and does not close; nor after H2CTermReq | `term_req::entry_57_somebody_closes` |
//! | 58 | CPDA 0 to 31, with and without header digests | `icresp::entry_58_every_cpda` |
//! | 64 | C2HTermReq in pieces, and amid data | `term_req::entry_64_a_term_req_in_pieces` |
//! | 65 | SUCCESS, though it has SQ flow control | `data::entry_65_success_with_flow_control` |
//! | 69 | a read in few or many C2HData, with data digests | `data::entry_69_a_read_in_pieces` |
//! | 85 | sends a byte at a time | `flow::entry_85_a_byte_at_a_time` |
//! | 93, 100 | discovery records full of spaces, or without NUL | `discovery::entries_93_and_100_fields_of_discovery_records` |
//!
//! Beside them: referrals of discovery controllers in circles and to nowhere; a Keep Alive that is lost;
//! asynchronous events; an Abort that helps; Copy.
//!
//! Not here: 44 needs a secure channel, which there is not yet. 101 is why this file exists.

#[path = "../hostile/bytes.rs"]
#[allow(dead_code, reason = "the hostile hosts need the rest")]
mod bytes;
mod fake;
mod pdu;
mod run;

mod controller;
mod data;
mod discovery;
mod events;
mod flow;
mod header;
mod icresp;
mod keep_alive;
mod recovery;
mod shared;
mod term_req;
