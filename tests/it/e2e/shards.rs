use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringq::pb::{GetServerInfoRequest, ListShardsRequest, SetShardStateRequest, Shard, ShardState};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{Client, Setup, assert_refused, refusal};

async fn set(client: &Client, name: &str, state: i32) -> Result<Shard, Status> {
    let request = SetShardStateRequest { name: name.to_owned(), state };
    let answer = client.admin.clone().set_shard_state(request).await?;
    Ok(answer.into_inner().shard.expect("the shard"))
}

async fn shard(client: &Client, name: &str) -> Shard {
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
    answer.into_inner().shards.into_iter().find(|shard| shard.name == name).unwrap()
}

#[tokio::test]
async fn a_shard_is_drained_and_taken_back_and_keeps_its_state_over_a_restart() {
    let mut server = Setup::new().shards(2).restartable().start().await;
    let client = server.connect().await;
    let begin = shard(&client, "s1").await;
    assert_eq!((begin.state(), begin.role()), (ShardState::Active, ShardState::Active));
    for _ in 0..2 {
        let drained = set(&client, "s1", ShardState::Draining.into()).await.unwrap();
        assert_eq!((drained.name.as_str(), drained.weight), ("s1", 1));
        assert_eq!((drained.state(), drained.role), (ShardState::Draining, drained.state));
        assert!(drained.address.contains("s1.db"), "{}", drained.address);
        assert_eq!(shard(&client, "s1").await.state(), ShardState::Draining);
    }
    assert_eq!(shard(&client, "s0").await.state(), ShardState::Active);
    server.kill().await;
    server.restart().await;
    let client = server.connect().await;
    assert_eq!(shard(&client, "s1").await.state(), ShardState::Draining);
    let active = set(&client, "s1", ShardState::Active.into()).await.unwrap();
    assert_eq!((active.state(), active.role), (ShardState::Active, active.state));
    assert_eq!(shard(&client, "s1").await.state(), ShardState::Active);
    let info = client.admin.clone().get_server_info(GetServerInfoRequest {}).await.unwrap();
    assert!(info.into_inner().features.contains(&"shard_state".to_owned()));
}

#[tokio::test]
async fn a_state_that_cannot_be_set_is_refused() {
    let server = Setup::new().shards(1).start().await;
    let client = server.connect().await;
    let refused = async |name: &str, state: i32| set(&client, name, state).await.unwrap_err();
    for state in [ShardState::Unspecified.into(), ShardState::Unreachable.into(), 77] {
        let status = refused("s0", state).await;
        assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "state");
    }
    for name in ["", "S0", "s 0", "toolongname"] {
        let status = refused(name, ShardState::Draining.into()).await;
        assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "name");
    }
    assert_eq!(refusal(&refused("", 0).await), "InvalidArgument INVALID_FIELD name,state");
    let status = refused("s9", ShardState::Draining.into()).await;
    assert_refused(&status, Code::NotFound, "SHARD_NOT_FOUND", "");
    assert_eq!(status.get_details_resource_info().unwrap().resource_name, "shards/s9");
    let status = refused("s0", ShardState::Draining.into()).await;
    assert_refused(&status, Code::FailedPrecondition, "LAST_ACTIVE_SHARD", "");
    let violations = status.get_details_precondition_failure().unwrap().violations;
    assert_eq!(violations[0].subject, "shards/s0");
    assert_eq!(shard(&client, "s0").await.state(), ShardState::Active);
}

#[tokio::test]
async fn a_shard_that_does_not_answer_is_not_drained() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    // Another process holds the write lock of its file.
    let holder = rusqlite::Connection::open(server.shard_file("s1")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    // On a busy machine the answer may come after the deadline. Calls with an unknown outcome may be executed once
    // the lock is gone.
    let unknown = AtomicBool::new(false);
    let refused = crate::harness::eventually("it is refused for certain", async || {
        let status = set(&client, "s1", ShardState::Draining.into()).await.unwrap_err();
        let is_unknown = refusal(&status) == "Unavailable OUTCOME_UNKNOWN";
        unknown.fetch_or(is_unknown, Relaxed);
        Some(status).filter(|_| !is_unknown)
    });
    let status = refused.await;
    assert_refused(&status, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    assert!(status.get_details_retry_info().is_some(), "the error has a retry delay");
    holder.execute_batch("ROLLBACK").unwrap();
    let listed = crate::harness::eventually("it answers again", async || {
        Some(shard(&client, "s1").await).filter(|s| s.state() != ShardState::Unreachable)
    });
    let role = listed.await.role();
    assert!(role == ShardState::Active || unknown.into_inner(), "nothing has changed");
}
