//! Streams and pulls of this replica: what each may hold, what it holds, and what waits for it.
//!
//! - `stream`, `ledger`: credit, leases and outgoing jobs of one stream
//! - `registry`: all streams of this replica, the successors of ended ones, and the routing of lease events
//! - `mailbox`, `awake_feeds`: streams that a feed has to update; feeds that may have jobs
//! - `adoption_queue`, `return_queue`: leases that wait for their next stream, and those that were not sent
//! - `weighted_turns`: turns of the topics of a stream with weights
//! - `topic_streams`: streams that could take a job of a topic, for operators
//! - `check_timer`: the next check of deadlines

pub(super) mod adoption_queue;
pub(super) mod awake_feeds;
pub(super) mod check_timer;
pub(super) mod ledger;
pub(super) mod mailbox;
pub(super) mod registry;
pub(super) mod return_queue;
pub(super) mod stream;
pub(super) mod topic_streams;
pub(super) mod weighted_turns;
