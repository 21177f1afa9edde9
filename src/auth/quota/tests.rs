//! Tests of the figures in files, and of the meters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::NamespaceFigure::{StoredBytes, WaitingJobs};
use super::identity_meter::IdentityMeters;
use super::*;
use crate::domain::{TopicName, limit};
use crate::metrics::Metrics;

const SECOND: Duration = Duration::from_secs(1);

fn read(text: &str) -> Result<Quotas, Vec<String>> {
    quota_file::read(&toml::from_str(text).unwrap())
}

fn rate(number: f64) -> Option<Rate> {
    Some(Rate::per_second(number).unwrap())
}

fn topic(name: &str) -> TopicName {
    TopicName::try_new(name).unwrap()
}

// === Files ===

#[test]
fn figures_are_read_from_identities_and_namespaces() {
    let quotas = read(
        "[[identity]]\nname = 'a'\nquota = { calls_per_second = 0.5, jobs_per_second = 100, streams = 3 }\n\
         [[identity]]\nname = 'b'\n\
         [[namespace]]\nname = 'shop.'\nwaiting_jobs = 1000\nstored_bytes = 5_000_000\n\
         [[namespace]]\nname = 'x-'",
    );
    let a = IdentityQuota { calls: rate(0.5), jobs: rate(100.0), bytes: None, streams: Some(3) };
    let wanted = Quotas {
        identities: HashMap::from([("a".to_owned(), a)]),
        namespaces: [("shop.", (Some(1_000), Some(5_000_000))), ("x-", (None, None))]
            .map(|(name, (waiting_jobs, stored_bytes))| {
                (
                    name.to_owned(),
                    NamespaceQuota { waiting_jobs, stored_bytes, ..NamespaceQuota::default() },
                )
            })
            .into(),
    };
    assert_eq!(quotas, Ok(wanted));
}

#[test]
fn mistakes_in_figures_are_reported_with_their_place() {
    let identity = |line: &str| read(&format!("[[identity]]\nname = 'a'\nquota = {line}"));
    let namespace = |lines: &str| read(&format!("[[namespace]]\n{lines}"));
    for (found, wanted) in [
        (identity("5"), "identity[0] (a).quota: must be a table like"),
        (
            identity("{ calls_per_second = 0 }"),
            "identity[0] (a).quota.calls_per_second: must be a number from",
        ),
        (
            identity("{ jobs_per_second = -1 }"),
            "identity[0] (a).quota.jobs_per_second: must be a number from",
        ),
        (
            identity("{ bytes_per_second = nan }"),
            "identity[0] (a).quota.bytes_per_second: must be a number",
        ),
        (
            identity("{ bytes_per_second = '1' }"),
            "identity[0] (a).quota.bytes_per_second: must be a number",
        ),
        (
            identity("{ streams = 0 }"),
            "identity[0] (a).quota.streams: must be a whole number from 1 to",
        ),
        (identity("{ streams = 1.5 }"), "identity[0] (a).quota.streams: must be a whole number"),
        (identity("{ jobs = 1 }"), "identity[0] (a).quota.jobs: there is no such key"),
        (namespace("waiting_jobs = 1"), "namespace[0].name: must be the beginning"),
        (namespace("name = 'shop'"), "namespace[0].name: must be the beginning"),
        (
            namespace("name = 'shop.'\nwaiting_jobs = 0"),
            "namespace[0] (shop.).waiting_jobs: must be",
        ),
        (
            namespace("name = 'shop.'\nstored_bytes = '1 GB'"),
            "namespace[0] (shop.).stored_bytes: must be a whole number from 1 to",
        ),
        (namespace("name = 'shop.'\njobs = 1"), "namespace[0] (shop.).jobs: there is no such key"),
        (
            namespace("name = 'a.'\n[[namespace]]\nname = 'a.'"),
            "namespace[1] (a.): another table has",
        ),
        (read("namespace = 1"), "namespace: is not written as"),
    ] {
        let problems = found.unwrap_err();
        assert!(problems[0].starts_with(wanted), "{wanted}: {problems:?}");
    }
}

#[test]
fn two_files_do_not_share_a_namespace_and_together_have_a_limited_number() {
    let mut all = read("[[namespace]]\nname = 'a.'").unwrap();
    assert_eq!(all.extend("b.toml", read("[[namespace]]\nname = 'b.'").unwrap()), Ok(()));
    let twice = all.extend("c.toml", read("[[namespace]]\nname = 'a.'").unwrap()).unwrap_err();
    assert!(twice[0].starts_with("c.toml: namespace a.: another file has it"), "{twice:?}");
    let table = |n| format!("[[namespace]]\nname = 'n{n}.'\n");
    let many: String = (0..quota_file::NAMESPACES_MAX).map(table).collect();
    assert!(all.extend("d.toml", read(&many).unwrap()).unwrap_err()[0].contains("more than 1000"));
}

// === Identities ===

struct Driven {
    meters: IdentityMeters,
    now: Instant,
}

impl Driven {
    fn new(quota: IdentityQuota) -> Driven {
        let driven = Driven { meters: IdentityMeters::new(&Metrics::new()), now: Instant::now() };
        driven.replace(quota);
        driven
    }

    fn replace(&self, quota: IdentityQuota) {
        let quotas = HashMap::from([("a".to_owned(), quota)]);
        self.meters.replace(["a", "b"], &quotas, self.now);
    }

    fn a(&self) -> Arc<IdentityMeter> {
        self.meters.of("a")
    }
}

fn delay(refused: Result<(), QuotaExceeded>) -> (QuotaKind, Duration) {
    match refused.unwrap_err() {
        QuotaExceeded { kind, retry: QuotaRetry::After(delay), subject } => {
            assert_eq!(subject, "identities/a");
            (kind, delay)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn settles_count_as_calls_and_are_never_refused() {
    let quota = IdentityQuota { calls: rate(10.0), ..IdentityQuota::default() };
    let Driven { meters, now } = Driven::new(quota);
    let a = meters.of("a");
    for _ in 0..1_000 {
        a.admit_call(true, now).unwrap();
    }
    let refused = delay(a.admit_call(false, now));
    assert_eq!(refused, (QuotaKind::Calls, Duration::from_millis(1_100)));
    assert_eq!(a.admit_call(false, now + refused.1), Ok(()));
    assert_eq!(meters.of("b").admit_call(false, now), Ok(()), "another identity");
}

#[test]
fn a_batch_takes_from_both_rates_or_from_none() {
    let quota = IdentityQuota { jobs: rate(10.0), bytes: rate(1_000.0), ..Default::default() };
    let mut driven = Driven::new(quota);
    let a = driven.a();
    a.admit_jobs(1, 1_000, driven.now).unwrap();
    let refused = delay(a.admit_jobs(9, 100, driven.now));
    assert_eq!(refused, (QuotaKind::Bytes, Duration::from_millis(100)));
    assert_eq!(a.admit_jobs(9, 0, driven.now), Ok(()), "the refused call has taken no job");
    assert_eq!(delay(a.admit_jobs(1, 0, driven.now)).0, QuotaKind::Jobs);
    driven.now += SECOND;
    a.admit_jobs(1_000, 5_000, driven.now).unwrap();
    let refused = delay(a.admit_jobs(1, 0, driven.now));
    assert_eq!(refused, (QuotaKind::Jobs, Duration::from_millis(99_100)));
    a.take_jobs(1_000, 1_000, driven.now);
    assert_eq!(delay(a.admit_jobs(1, 0, driven.now)), refused, "follow-ups add nothing to a debt");
}

#[test]
fn a_change_keeps_the_state_of_figures_that_stay() {
    let quota = IdentityQuota { calls: rate(1.0), jobs: rate(5.0), ..Default::default() };
    let driven = Driven::new(quota);
    let (now, before) = (driven.now, driven.a());
    before.admit_call(false, now).unwrap();
    before.admit_jobs(5, 0, now).unwrap();
    let slot = before.open_stream().unwrap();
    driven.replace(IdentityQuota { jobs: rate(7.0), streams: Some(1), ..quota });
    let a = driven.a();
    assert!(Arc::ptr_eq(&before, &a), "connections that know it see the change, too");
    assert_eq!(delay(a.admit_call(false, now)), (QuotaKind::Calls, SECOND));
    assert_eq!(a.admit_jobs(7, 0, now), Ok(()), "a new figure begins with a full bucket");
    assert_eq!(a.open_stream().unwrap_err().kind, QuotaKind::Streams);
    drop(slot);
    assert!(a.open_stream().is_ok());
    driven.replace(IdentityQuota::default());
    assert_eq!(a.admit_call(false, now), Ok(()), "without a figure there is no limit");
    driven.meters.replace(["b"], &HashMap::new(), now);
    driven.replace(quota);
    assert_eq!(driven.a().admit_call(false, now), Ok(()), "removed and added, it is another one");
}

#[test]
fn servers_share_rates_and_streams() {
    let quota = IdentityQuota { jobs: rate(100.0), streams: Some(5), ..Default::default() };
    let [one, two] = [Driven::new(quota), Driven::new(quota)];
    let mut passed = 0;
    for server in [&one, &two] {
        server.meters.set_servers(2);
        let now = server.now;
        passed += (0..10_000u32)
            .filter(|n| server.a().admit_jobs(1, 0, now + *n * Duration::from_millis(1)).is_ok())
            .count();
    }
    assert!((1_090..=1_100).contains(&passed), "{passed} in 10 s, of which 100 were saved");
    let open = |server: &Driven| -> Vec<_> {
        (0..9).map_while(|_| server.a().open_stream().ok()).collect()
    };
    assert_eq!([open(&one).len(), open(&two).len()], [3, 3], "half of 5, rounded up");
    one.meters.set_servers(0);
    assert_eq!(open(&one).len(), 5, "this server is always one");
}

// === Namespaces ===

struct Namespaces {
    meters: NamespaceMeters,
    metrics: Metrics,
}

impl Namespaces {
    fn new(quotas: &[(&str, u64)]) -> Namespaces {
        let metrics = Metrics::new();
        let namespaces = Namespaces { meters: NamespaceMeters::new(&metrics), metrics };
        namespaces.replace(quotas);
        namespaces
    }

    fn replace(&self, quotas: &[(&str, u64)]) {
        let quota = |(name, max): &(&str, u64)| {
            (
                (*name).to_owned(),
                NamespaceQuota { waiting_jobs: Some(*max), ..NamespaceQuota::default() },
            )
        };
        self.meters.replace(&quotas.iter().map(quota).collect());
    }

    /// Sets the quotas of the namespace `a.`, the only one.
    fn limit(&self, waiting_jobs: Option<u64>, stored_bytes: Option<u64>) {
        let quota = NamespaceQuota { waiting_jobs, stored_bytes, ..NamespaceQuota::default() };
        self.meters.replace(&[("a.".to_owned(), quota)].into());
    }

    fn reserve(&self, topics: &[&str]) -> Result<JobReservation, QuotaExceeded> {
        let jobs: Vec<_> = topics.iter().map(|name| (topic(name), 0)).collect();
        self.meters.reserve_at_once(&jobs).map_err(|no_room| no_room.exceeded)
    }

    /// Reserves room for a job of `a.x` with each of these numbers of bytes, its record included.
    fn reserve_bytes(&self, jobs: &[u64]) -> Result<JobReservation, QuotaExceeded> {
        let job = |bytes: &u64| (topic("a.x"), bytes - limit::STORED_JOB_BYTES);
        let jobs: Vec<_> = jobs.iter().map(job).collect();
        self.meters.reserve_at_once(&jobs).map_err(|no_room| no_room.exceeded)
    }

    async fn read(&self, found: &[(&str, u64)]) {
        self.read_figure(NamespaceFigure::WaitingJobs, found).await;
    }

    async fn read_figure(&self, figure: NamespaceFigure, found: &[(&str, u64)]) {
        let table = self.meters.wait_for_any(figure).await;
        self.meters.begin_read(&table, figure);
        self.end(&table, figure, found);
    }

    fn end(&self, table: &NamespaceTable, figure: NamespaceFigure, found: &[(&str, u64)]) {
        let found = found.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        self.meters.end_read(table, figure, &found);
    }
}

#[tokio::test]
async fn a_namespace_has_room_for_its_waiting_jobs() {
    let namespaces = Namespaces::new(&[("shop.", 5)]);
    let reserved = namespaces.reserve(&["shop.a", "shop.b.c", "shop.a", "other", "shop"]).unwrap();
    let refused = namespaces.reserve(&["shop.a", "shop.a", "shop.a"]).unwrap_err();
    assert_eq!(refused.subject, "namespaces/shop.");
    assert_eq!(refused.retry, QuotaRetry::After(SECOND));
    assert_eq!(namespaces.reserve(&["shop.a"; 6]).unwrap_err().retry, QuotaRetry::Never);
    assert!(namespaces.reserve(&["other"; 9]).is_ok(), "outside there is no limit");
    drop(reserved);
    namespaces.reserve(&["shop.a"; 5]).expect("what was not written left room").written();
    assert!(namespaces.reserve(&["shop.a"]).is_err());
    namespaces.read(&[("shop.", 3)]).await;
    namespaces.reserve(&["shop.a"; 2]).expect("workers have taken two").written();
    assert!(namespaces.reserve(&["shop.a"]).is_err());
    assert!(namespaces.metrics.render().contains("waiting_jobs{namespace=\"shop.\"} 3\n"));
}

/// Jobs that were written since the last read may have been taken: they refuse nothing before another read.
#[tokio::test(start_paused = true)]
async fn a_job_waits_for_a_read_where_only_outdated_numbers_refuse_it() {
    let namespaces = Namespaces::new(&[("a.", 2)]);
    let meters = &namespaces.meters;
    let jobs = |count: usize| vec![(topic("a.x"), 0); count];
    let reads = async |found: &[(&str, u64)]| {
        meters.read_wanted(WaitingJobs).await;
        namespaces.read(found).await;
    };
    meters.reserve(&jobs(2)).await.unwrap().written();
    let (job, ()) = tokio::join!(async { meters.reserve(&jobs(1)).await }, reads(&[("a.", 1)]));
    job.expect("workers have taken one").written();
    // A read that had begun before does not count.
    let table = meters.wait_for_any(WaitingJobs).await;
    meters.begin_read(&table, WaitingJobs);
    let ends_and_reads = async {
        meters.read_wanted(WaitingJobs).await;
        namespaces.end(&table, WaitingJobs, &[("a.", 0)]);
        namespaces.read(&[("a.", 2)]).await;
    };
    let (job, ()) = tokio::join!(async { meters.reserve(&jobs(1)).await }, ends_and_reads);
    let begun = Instant::now();
    assert_eq!(job.unwrap_err().retry, QuotaRetry::After(SECOND));
    // What was read refuses at once.
    assert!(meters.reserve(&jobs(1)).await.is_err());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // Without a read in time the outdated numbers count.
    namespaces.read(&[]).await;
    meters.reserve(&jobs(2)).await.unwrap().written();
    assert!(meters.reserve(&jobs(1)).await.is_err());
    assert_eq!(begun.elapsed(), Duration::from_millis(500));
}

#[tokio::test]
async fn jobs_that_a_read_may_have_missed_count_until_the_next_one() {
    let namespaces = Namespaces::new(&[("a.", 10)]);
    namespaces.reserve(&["a.x"; 3]).unwrap().written();
    let in_flight = namespaces.reserve(&["a.x"]).unwrap();
    let table = namespaces.meters.wait_for_any(WaitingJobs).await;
    namespaces.meters.begin_read(&table, WaitingJobs);
    namespaces.meters.count_written(&[(topic("a.x"), 0)]);
    namespaces.end(&table, WaitingJobs, &[("a.", 3)]);
    assert!(
        namespaces.reserve(&["a.x"; 6]).is_err(),
        "3 were read, 1 came since, 1 is written now"
    );
    assert!(namespaces.reserve(&["a.x"; 5]).is_ok());
    in_flight.written();
    namespaces.read(&[("a.", 5)]).await;
    assert!(namespaces.reserve(&["a.x"; 5]).is_ok());
}

#[tokio::test]
async fn a_topic_counts_in_all_of_its_namespaces() {
    let namespaces = Namespaces::new(&[("a.", 10), ("a.b.", 2), ("a-", 9), ("ab.", 9)]);
    let table = namespaces.meters.wait_for_any(WaitingJobs).await;
    assert_eq!(table.outermost(WaitingJobs), ["a-", "a.", "ab."]);
    let mut names: Vec<_> = table.names_of(&topic("a.b.c")).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.", "a.b."]);
    let refused = namespaces.reserve(&["a.b.c"; 3]).unwrap_err();
    assert_eq!(refused.subject, "namespaces/a.b.");
    assert!(namespaces.reserve(&["a.c"; 10]).is_ok(), "the refused call holds no room");
}

#[tokio::test]
async fn a_change_of_namespaces_keeps_numbers_and_removes_series() {
    let namespaces = Namespaces::new(&[("a.", 10), ("b.", 10)]);
    namespaces.read(&[("a.", 4), ("b.", 4)]).await;
    let former = namespaces.meters.wait_for_any(WaitingJobs).await;
    let in_flight = namespaces.reserve(&["a.x"]).unwrap();
    namespaces.replace(&[("a.", 6)]);
    drop(in_flight);
    assert!(namespaces.reserve(&["a.x"; 2]).is_err(), "4 were read, 1 may be written");
    assert!(namespaces.reserve(&["a.x"]).is_ok());
    assert!(namespaces.reserve(&["b.x"; 99]).is_ok());
    namespaces.end(&former, WaitingJobs, &[("a.", 4), ("b.", 4)]);
    let rendered = namespaces.metrics.render();
    assert!(rendered.contains("{namespace=\"a.\"}") && !rendered.contains("{namespace=\"b.\"}"));
    namespaces.replace(&[]);
    assert!(!namespaces.metrics.render().contains("ringq_namespace"));
    assert!(namespaces.reserve(&["a.x"; 99]).is_ok());
}

#[tokio::test]
async fn a_namespace_has_room_for_its_stored_bytes() {
    let namespaces = Namespaces::new(&[]);
    namespaces.limit(None, Some(10_000));
    namespaces.reserve_bytes(&[4_000, 4_000]).unwrap().written();
    let refused = namespaces.reserve_bytes(&[1_000, 1_001]).unwrap_err();
    let wanted = (QuotaKind::StoredBytes, "namespaces/a.", QuotaRetry::After(SECOND));
    assert_eq!((refused.kind, &*refused.subject, refused.retry), wanted);
    let never = namespaces.reserve_bytes(&[10_001]).unwrap_err();
    assert_eq!((never.kind, never.retry), (QuotaKind::StoredBytes, QuotaRetry::Never));
    drop(namespaces.reserve_bytes(&[2_000]).expect("the rest"));
    let in_flight = namespaces.reserve_bytes(&[2_000]).expect("what was not written left room");
    namespaces.read_figure(StoredBytes, &[("a.", 3_000)]).await;
    assert!(namespaces.reserve_bytes(&[5_001]).is_err(), "3,000 were read, 2,000 are written now");
    assert!(namespaces.reserve_bytes(&[5_000]).is_ok());
    in_flight.written();
    assert!(namespaces.metrics.render().contains("stored_bytes{namespace=\"a.\"} 3000\n"));
    assert!(!namespaces.metrics.render().contains("ringq_namespace_waiting"), "not read");
    assert!(namespaces.reserve(&["a.x"; 19]).is_ok(), "5,000 bytes are 19 empty jobs");
    assert!(namespaces.reserve(&["a.x"; 20]).is_err(), "a job without a payload takes room, too");
}

/// Room of both figures for one call.
#[tokio::test]
async fn a_call_takes_jobs_and_bytes_or_neither() {
    let namespaces = Namespaces::new(&[]);
    namespaces.limit(Some(3), Some(10_000));
    let kind = |jobs: &[u64]| namespaces.reserve_bytes(jobs).map(|_| ()).map_err(|e| e.kind);
    namespaces.reserve_bytes(&[6_000]).unwrap().written();
    assert_eq!(kind(&[4_001]), Err(QuotaKind::StoredBytes));
    assert_eq!(kind(&[500; 3]), Err(QuotaKind::WaitingJobs));
    assert_eq!(kind(&[2_000, 2_000]), Ok(()), "the refused calls hold neither");
    let never = namespaces.reserve_bytes(&[500, 500, 10_000]).unwrap_err();
    assert_eq!(never.retry, QuotaRetry::Never, "3 jobs may fit later, their bytes never");
    // Workers have taken the job and not acked it yet: it does not wait, and its bytes are still there.
    namespaces.read_figure(WaitingJobs, &[]).await;
    assert_eq!(kind(&[4_001]), Err(QuotaKind::StoredBytes));
    assert_eq!(kind(&[500; 3]), Ok(()));
    namespaces.read_figure(StoredBytes, &[]).await;
    assert_eq!(kind(&[10_000]), Ok(()));
}

#[tokio::test]
async fn each_figure_is_read_while_a_namespace_has_a_quota_of_it() {
    let namespaces = Namespaces::new(&[("a.", 9), ("b.", 9)]);
    let waits = async |figure| {
        tokio::time::timeout(Duration::ZERO, namespaces.meters.wait_for_any(figure)).await
    };
    assert!(waits(StoredBytes).await.is_err(), "nothing is read for nothing");
    namespaces.reserve(&["a.x"; 5]).unwrap().written();
    namespaces.limit(Some(9), Some(2_000));
    let table = waits(StoredBytes).await.unwrap();
    assert_eq!(table.outermost(StoredBytes), ["a."]);
    let room = namespaces.reserve_bytes(&[2_000]);
    assert!(room.is_ok(), "what was written without the quota is known by the first read");
    drop(room);
    namespaces.read(&[("a.", 5)]).await;
    namespaces.read_figure(StoredBytes, &[("a.", 1_500)]).await;
    let in_flight = namespaces.reserve_bytes(&[400]).unwrap();
    namespaces.limit(None, Some(3_000));
    drop(in_flight);
    assert!(!namespaces.metrics.render().contains("waiting_jobs"), "the series of the other stays");
    assert!(namespaces.metrics.render().contains("stored_bytes{namespace=\"a.\"} 1500\n"));
    assert!(waits(WaitingJobs).await.is_err());
    assert!(namespaces.reserve_bytes(&[1_101]).is_err(), "400 may be written");
    assert!(namespaces.reserve_bytes(&[1_100]).is_ok());
    // A read that began under the former quotas.
    namespaces.end(&table, StoredBytes, &[("a.", 9)]);
    namespaces.limit(None, None);
    assert!(!namespaces.metrics.render().contains("ringq_namespace"));
    namespaces.end(&table, StoredBytes, &[("a.", 9)]);
    assert!(!namespaces.metrics.render().contains("ringq_namespace"));
    assert!(namespaces.reserve_bytes(&[1_000_000]).is_ok());
}
