//! Exhausted connections: every Redis allows fewer than are in use and disconnects all clients again and again, and
//! clients cancel their calls meanwhile.

use std::time::Duration;

use deadpool_redis::redis;
use deadpool_redis::redis::aio::MultiplexedConnection;
use futures::future::join_all;
use ringq::pb::GetRequest;
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::harness::{Client, Redis, eventually, millis};
use crate::load::Habits;
use crate::trial::{Outcome, Trial, harm_time};

/// Number of connections by which a Redis allows too few.
const SHORT: usize = 3;
/// Pause between two blows.
const EVERY: Duration = millis(50);
/// Number of calls that are cancelled together, and the time of it.
const LET_GO: usize = 50;
const LET_GO_AFTER: Duration = millis(3);
/// Allowed growth of open sockets, of a replica or on a Redis: the rig has connections, too.
const MORE: usize = 8;
const NO_LIMIT: &str = "10000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn run_out() {
    let habits = Habits { cancelled: 0.1, ..Habits::default() };
    let Some(trial) = Trial::start("connections_run_out", Shape::default(), habits).await else {
        return;
    };
    let mut clients = Vec::new();
    for replica in &trial.cluster.replica {
        clients.push(Client::connect(replica.grpc).await);
    }
    trial.run(harm_time() / 4).await;
    let before = Open::count(&trial).await;
    println!("connections_run_out: before {before:?}");
    let mut operators = Vec::new();
    for redis in &trial.cluster.redis {
        operators.push(Operator::connect(redis).await);
    }
    // A call is repeated once nothing can execute it late any more, and may lose its connection again.
    trial.may_wait();
    trial.note("connections are limited");
    for (operator, used) in operators.iter_mut().zip(&before.connections) {
        operator.limit(&(used - SHORT).to_string()).await;
    }
    let (end, mut blows) = (Instant::now() + harm_time(), 0);
    while Instant::now() < end {
        tokio::join!(let_go(&clients), join_all(operators.iter_mut().map(Operator::throw_out)));
        blows += 1;
        tokio::time::sleep(EVERY).await;
    }
    for operator in &mut operators {
        operator.limit(NO_LIMIT).await;
    }
    trial.note("no limit");
    let mut rejected = 0;
    for redis in &trial.cluster.redis {
        rejected += redis.info("stats", "rejected_connections").await;
    }
    println!("connections_run_out: {blows} blows, {rejected} connections were too many");
    assert!(rejected > 0);
    eventually("no process has more open than before", async || {
        let now = Open::count(&trial).await;
        now.is_within(&before).then_some(())
    })
    .await;
    let outcome = trial.finish().await;
    outcome.has_cause();
}

/// Number of open files and connections.
#[derive(Debug)]
struct Open {
    /// Files and sockets, by replica.
    files: Vec<usize>,
    /// Connections, by Redis.
    connections: Vec<usize>,
}

impl Open {
    async fn count(trial: &Trial) -> Open {
        let files = trial.cluster.replica.iter().map(|replica| replica.fds()).collect();
        let mut connections = Vec::new();
        for redis in &trial.cluster.redis {
            let count = redis.info("clients", "connected_clients").await;
            connections.push(usize::try_from(count).unwrap());
        }
        Open { files, connections }
    }

    fn is_within(&self, before: &Open) -> bool {
        let now = self.files.iter().chain(&self.connections);
        let before = before.files.iter().chain(&before.connections);
        now.zip(before).all(|(now, before)| *now <= before + MORE)
    }
}

/// The one connection that is not closed.
struct Operator(MultiplexedConnection);

impl Operator {
    async fn connect(redis: &Redis) -> Operator {
        let client = redis::Client::open(redis.url()).unwrap();
        Operator(client.get_multiplexed_async_connection().await.unwrap())
    }

    async fn limit(&mut self, connections: &str) {
        let words = ["SET", "maxclients", connections];
        redis::cmd("CONFIG").arg(&words).exec_async(&mut self.0).await.unwrap();
    }

    async fn throw_out(&mut self) {
        let words = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
        redis::cmd("CLIENT").arg(&words).exec_async(&mut self.0).await.unwrap();
    }
}

/// Sends many calls through all replicas and cancels them together.
async fn let_go(clients: &[Client]) {
    let calls = (0..LET_GO).map(|number| {
        let mut queue = clients[number % clients.len()].queue.clone();
        let (topic, id) = ("mail".to_owned(), format!("none-{number}"));
        let request = GetRequest { topic, id, ..GetRequest::default() };
        tokio::time::timeout(LET_GO_AFTER, async move { queue.get(request).await })
    });
    join_all(calls).await;
}

impl Outcome {
    /// Checks that every failure that a client received has a stable reason.
    fn has_cause(&self) {
        for trouble in self.all_troubles() {
            let (_, why) = trouble.rsplit_once(": ").expect("what was asked, and why not");
            let stable = why.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            let known = stable || why.starts_with("no answer within");
            assert!(known, "{trouble:?}");
        }
    }
}
