//! Groups over gRPC: turns of a stream, the group of a delivery and of a job, ListGroups.

use ringq::pb::{GetServerInfoRequest, JobSpec, ListGroupsRequest};

use crate::harness::{Server, job, millis};

fn of(group: &str) -> JobSpec {
    job("mail").with_group(group)
}

#[tokio::test]
async fn groups_are_listed_page_by_page() {
    let server = Server::start().await;
    let client = server.connect().await;
    let info = client.admin.clone().get_server_info(GetServerInfoRequest::default()).await;
    let features = info.unwrap().into_inner().features;
    assert!(features.contains(&"groups".to_owned()), "{features:?}");
    client.enqueue_all(vec![of("b"), of("a"), of("a"), job("mail")]).await;
    client.enqueue(JobSpec { group: "c".into(), ..job("mail").with_delay(millis(60_000)) }).await;
    client.pull_one("mail").await;
    let request = ListGroupsRequest { topic: "mail".into(), page_size: 3, ..Default::default() };
    let mut topics = client.topics.clone();
    let first = topics.list_groups(request.clone()).await.unwrap().into_inner();
    let names: Vec<&str> = first.groups.iter().map(|row| &*row.group).collect();
    assert_eq!(names, ["", "a", "b"]);
    let sum = |of: fn(&ringq::pb::GroupSummary) -> i64| first.groups.iter().map(of).sum::<i64>();
    assert_eq!((sum(|row| row.ready), sum(|row| row.running)), (3, 1));
    assert!(first.groups.iter().all(|row| row.weight == 1 && !row.paused));
    assert!(first.unreachable_shards.is_empty());
    let page_token = first.next_page_token;
    let request = ListGroupsRequest { page_token, ..request };
    let last = topics.list_groups(request).await.unwrap().into_inner();
    assert_eq!((last.groups.len(), &*last.next_page_token), (1, ""));
    assert_eq!((&*last.groups[0].group, last.groups[0].scheduled), ("c", 1));
}
