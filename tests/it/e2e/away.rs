use ringq::domain::limit;
use ringq::pb::{AttemptOutcome, JobState, StreamRequest};
use tokio::time::Instant;

use crate::harness::{JobExt as _, Setup, job, millis, proto, take};

/// A way in which the only server is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    Killed,
    /// The process stands still, sockets open.
    Stopped,
}

/// Leaves three jobs at their last attempt without a server for longer than their leases last.
async fn away_for_longer_than_a_lease(absence: Absence) {
    const HELD: usize = 3;
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    let ids: Vec<_> = (0..HELD).map(|n| n.to_string()).collect();
    for id in &ids {
        let spec = job("mail").with_id(id).with_max_attempts(1).with_lease(millis(1_000));
        client.enqueue(spec.with_retention(millis(60_000))).await;
    }
    let request = StreamRequest { orphan_grace: Some(proto(millis(2_500))), ..take("mail") };
    let jobs = match absence {
        Absence::Killed => client.stream(request).await.next_many(HELD).await,
        // A stream that continues would get the returned jobs again.
        Absence::Stopped => client.pull_now("mail", 10).await,
    };
    assert_eq!(jobs.len(), HELD);
    match absence {
        Absence::Killed => {
            server.kill().await;
            tokio::time::sleep(millis(1_200)).await;
        }
        Absence::Stopped => {
            server.pause();
            tokio::time::sleep(limit::OUTAGE_MIN + millis(300)).await;
        }
    }
    let began = Instant::now();
    match absence {
        Absence::Killed => server.restart().await,
        Absence::Stopped => server.resume(),
    }
    // One job is left alone, one acked, one extended.
    let client = server.connect().await;
    for (n, job) in jobs.iter().enumerate() {
        match n {
            1 => client.ack(&job.receipt).await,
            2 => client.extend(&job.receipt, millis(30_000)).await,
            _ => {}
        }
    }
    for (n, held) in jobs.iter().enumerate() {
        let wanted = [JobState::Ready, JobState::Succeeded, JobState::Running][n];
        let job = client.until("mail", &held.id, wanted).await;
        assert_eq!((job.failures, job.deliveries), (0, 1), "{held:?}");
        if n == 0 {
            assert!(began.elapsed() >= millis(2_400), "back after {:?}", began.elapsed());
            assert_eq!(job.attempts[0].outcome(), AttemptOutcome::Released);
        }
    }
    assert!(server.log().contains("leases ran out while no server served the shard"));
    client.ack(&jobs[2].receipt).await;
    assert_eq!(client.list("mail", JobState::Dead).await, []);
}

#[tokio::test]
async fn what_ran_out_while_the_only_server_was_away_waits_for_its_workers_and_is_no_failure() {
    let both = [Absence::Killed, Absence::Stopped];
    futures::future::join_all(both.map(away_for_longer_than_a_lease)).await;
}
