//! Removes documents of which nothing is left, once every shard has them: [`super::ledger`] states why that is safe. Every
//! server does it; the first one wins, and the others read that it is done.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::shards::{self, Op, Shard};

use super::Documents;

/// Interval of the checks while there is anything to remove.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which all shards must have had a document before it is removed: longer than a write can be under way
/// (`WINDOW_MAX` of a Redis is 3 s), so that none of an older version arrives after the removal.
const AGE_MIN: Duration = Duration::from_secs(10);

// === impl Documents ===

impl Documents {
    pub(super) async fn keep_tidy(self) {
        let mut news = self.watch();
        loop {
            if !self.ledger().is_untidy() {
                // An emptied shard lacks its horizon, which is no news of a document. No shard is asked for that.
                let _ = tokio::time::timeout(AGE_MIN, news.changed()).await;
                continue;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
            while self.tidy(AGE_MIN).await.unwrap_or(false) {}
        }
    }

    /// Removes a batch of what all shards have had for `age`; returns whether it did. All shards must answer, and be all
    /// that any server has: a shard that this one does not know may lack a document, or be the only one with it.
    ///
    /// # Errors
    /// Errors of the store; what one shard has removed and another one not is removed there later.
    pub(super) async fn tidy(&self, age: Duration) -> shards::Result<bool> {
        let all = self.inner.shards.all();
        if all.iter().any(Shard::is_down) || self.inner.shards.others_serve_more() {
            return Ok(false);
        }
        // Nothing changes here while the shards are compared and changed.
        let mut gates = Vec::with_capacity(all.len());
        for gate in &self.inner.gates {
            gates.push(gate.lock().await);
        }
        let exchanged = join_all(all.iter().map(|shard| self.exchange_alone(shard))).await;
        exchanged.into_iter().collect::<shards::Result<()>>()?;
        self.forget_removed();
        let Some(removals) = self.ledger().removals(age) else { return Ok(false) };
        let remove = all.iter().zip(removals).map(|(shard, removal)| async move {
            if removal.documents.is_empty() && removal.horizon == removal.expected {
                return Ok(());
            }
            let forget = removal.clone();
            let is_done = shard
                .call(Op::ForgetDocuments, |store| store.forget_documents(forget, None))
                .await?;
            if is_done {
                self.ledger().removed(shard.index(), &removal);
            }
            Ok(())
        });
        let removed = join_all(remove).await;
        self.forget_removed();
        removed.into_iter().collect::<shards::Result<()>>()?;
        Ok(true)
    }

    fn forget_removed(&self) {
        let mut ledger = self.ledger();
        self.inner.view.send_if_modified(|view| {
            ledger.forget_removed(Arc::make_mut(view));
            // Nothing is news to others.
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::{DocumentChangeError, SettingsRoom};
    use super::*;
    use crate::clock::Clock;
    use crate::domain::{
        DocumentName, TopicName, TopicPattern, TopicPause, TopicPolicy, TopicSettings,
    };
    use crate::scheduler::tests::test_ring::{TestRing, eventually};
    use crate::store::faulty_store::{FaultyStore, InjectedFault};

    /// More than one call removes.
    const MANY: usize = 521;

    fn server(ring: &TestRing) -> Documents {
        Documents::new(ring.scheduler.shards().clone(), Clock::system())
    }

    fn name(n: usize) -> TopicPattern {
        TopicPattern::parse(&format!("a.{n}")).unwrap()
    }

    /// Changes the policy of the topic `n`, in place of none that is left.
    async fn change(
        server: &Documents,
        n: usize,
        room: Option<&SettingsRoom>,
        change: impl Fn(TopicPolicy) -> Option<TopicPolicy>,
    ) -> Result<(), DocumentChangeError<Infallible>> {
        let name = name(n);
        let decide = |view: &super::super::DocumentView, now| {
            let last = view.policy(&name).filter(|last| last.is_live());
            let policy =
                last.map_or_else(|| TopicPolicy::new(name.clone(), now), |last| (**last).clone());
            Ok(change(policy))
        };
        server.change_policy(&name, room, None, decide).await.map(drop)
    }

    fn create(policy: TopicPolicy) -> Option<TopicPolicy> {
        let settings = TopicSettings { priority: Some(3), ..TopicSettings::default() };
        Some(TopicPolicy { settings: Some(settings), ..policy })
    }

    fn delete(_policy: TopicPolicy) -> Option<TopicPolicy> {
        None
    }

    fn pause(policy: TopicPolicy) -> Option<TopicPolicy> {
        Some(TopicPolicy { pause: Some(TopicPause::default()), ..policy })
    }

    /// Removes all that can be removed now.
    async fn tidy(server: &Documents) {
        while server.tidy(Duration::ZERO).await.unwrap_or(false) {}
    }

    /// Returns the number of documents that each shard stores.
    async fn stored(stores: &[Arc<FaultyStore>]) -> Vec<usize> {
        let count = |store: &Arc<FaultyStore>| {
            let store = Arc::clone(store);
            async move { store.sqlite_store().documents(0, 100_000).await.unwrap().documents.len() }
        };
        join_all(stores.iter().map(count)).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nothing_is_removed_while_another_server_has_a_shard_more() {
        let stores = TestRing::stores(3);
        stores.iter().for_each(|store| store.share());
        let ring = TestRing::joined(&stores[..2], 1).await;
        let server = server(&ring);
        change(&server, 0, None, create).await.unwrap();
        change(&server, 0, None, delete).await.unwrap();
        let other = TestRing::joined(&stores, 2).await;
        eventually("the other server is seen", async || {
            ring.scheduler.shards().others_serve_more().then_some(())
        })
        .await;
        tidy(&server).await;
        assert_eq!(stored(&stores).await, [1, 1, 0]);
        let both = Documents::new(other.scheduler.shards().clone(), Clock::system());
        both.read_all().await;
        tidy(&both).await;
        assert_eq!(stored(&stores).await, [0, 0, 0]);
    }

    /// Calls give back each place that counts against a bound of the whole server, whatever the number.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn what_calls_leave_behind_goes() {
        for count in [0, 1, 2, 13, MANY] {
            // Of very many the first way only, which takes long enough.
            let ways = if count == MANY { 1 } else { 5 };
            let ring = TestRing::new(2);
            let server = server(&ring);
            for (begin, end) in [
                (
                    create as fn(TopicPolicy) -> Option<TopicPolicy>,
                    delete as fn(TopicPolicy) -> Option<TopicPolicy>,
                ),
                (create, |policy| Some(TopicPolicy { settings: None, ..policy })),
                (pause, |policy| Some(TopicPolicy { pause: None, ..policy })),
                (pause, delete),
                (
                    |policy| {
                        Some(TopicPolicy {
                            paused_groups: [(None, String::new())].into(),
                            ..policy
                        })
                    },
                    |policy| Some(TopicPolicy { paused_groups: [].into(), ..policy }),
                ),
            ]
            .into_iter()
            .take(ways)
            {
                for step in [begin, end] {
                    let all = (0..count).map(|n| change(&server, n, None, step));
                    join_all(all).await.into_iter().for_each(|done| done.unwrap());
                }
                assert_eq!(server.view().settings_count(), 0);
                tidy(&server).await;
                assert_eq!(
                    (server.view().all().count(), stored(&ring.stores).await),
                    (0, vec![0, 0])
                );
                assert!(!server.ledger().is_untidy());
            }
        }
    }

    /// Calls at once get settings for as many topics as there is room for, and pauses need none.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn calls_at_once_do_not_pass_the_number_together() {
        const MAX: usize = 13;
        let ring = TestRing::new(3);
        let server = server(&ring);
        let of_all = SettingsRoom { max: MAX, namespaces: Vec::new() };
        let of_one =
            SettingsRoom { namespaces: vec![("a.".into(), MAX as u64)], ..SettingsRoom::default() };
        let other = TopicPattern::parse("b").unwrap();
        for (room, namespace) in [(of_all, None), (of_one, Some("a.".to_owned()))] {
            for _ in 0..3 {
                let all = (0..3 * MAX).map(|n| change(&server, n, Some(&room), create));
                let done = join_all(all).await;
                assert_eq!(done.iter().filter(|done| done.is_ok()).count(), MAX);
                for refused in done.into_iter().filter_map(Result::err) {
                    assert_eq!(refused, DocumentChangeError::NoRoom(namespace.clone()));
                }
                let of_other = server.change_policy(&other, Some(&room), None, |_, now| {
                    Ok::<_, Infallible>(create(TopicPolicy::new(other.clone(), now)))
                });
                assert_eq!(
                    of_other.await.is_ok(),
                    namespace.is_some(),
                    "another namespace has room"
                );
                // A pause is never refused, and one that has settings may be changed.
                let live = server.view().policies().filter(|p| p.has_settings()).count();
                let all = (0..3 * MAX).map(|n| change(&server, n, Some(&room), pause));
                join_all(all).await.into_iter().for_each(|done| done.unwrap());
                assert_eq!(server.view().settings_count(), live);
                let all = (0..3 * MAX).map(|n| change(&server, n, Some(&room), delete));
                join_all(all).await.into_iter().for_each(|done| done.unwrap());
                _ = server
                    .change_policy(&other, None, None, |_, _| Ok::<_, Infallible>(None))
                    .await;
            }
            assert_eq!(server.view().settings_count(), 0);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn while_a_shard_is_away_nothing_is_removed_and_it_brings_nothing_back() {
        let ring = TestRing::new(2);
        let server = server(&ring);
        let shards = ring.scheduler.shards();
        // Decided on the shard that stays.
        let home = shards.all()[0].name().clone();
        let homes: Vec<_> = (0..)
            .filter(|n| server.home(&DocumentName::TopicPolicy(name(*n))).unwrap().name() == &home)
            .take(3)
            .collect();
        for n in &homes {
            change(&server, *n, None, create).await.unwrap();
        }
        ring.stores[1].set_fault(InjectedFault::Unreachable);
        for n in &homes[..2] {
            change(&server, *n, None, delete).await.unwrap();
        }
        for _ in 0..3 {
            tidy(&server).await;
        }
        assert_eq!(stored(&ring.stores).await, [3, 3], "the deletions are kept");
        ring.stores[1].set_fault(InjectedFault::None);
        ring.until_down(1, false).await;
        tidy(&server).await;
        assert_eq!((stored(&ring.stores).await, server.view().settings_count()), (vec![1, 1], 1));
        // A name that comes again has a version above all that were there.
        change(&server, homes[0], None, create).await.unwrap();
        assert_eq!(stored(&ring.stores).await, [2, 2]);
    }

    /// A server that slept while a topic was deleted and the deletion removed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_server_that_slept_brings_nothing_back() {
        for (is_reset, count) in [(false, 1), (true, 1), (false, MANY), (true, MANY)] {
            let ring = TestRing::new(2);
            let (awake, sleeper) = (server(&ring), server(&ring));
            for n in 0..=count {
                change(&awake, n, None, if n % 2 == 0 { create } else { pause }).await.unwrap();
            }
            sleeper.read_all().await;
            assert_eq!(sleeper.view().all().count(), count + 1);
            for n in 0..count {
                change(&awake, n, None, delete).await.unwrap();
            }
            tidy(&awake).await;
            if is_reset {
                // Its connections broke, too.
                let view = sleeper.view();
                (0..2).for_each(|shard| sleeper.ledger().reset(shard, &view));
            }
            sleeper.read_all().await;
            tidy(&sleeper).await;
            awake.read_all().await;
            for server in [&sleeper, &awake] {
                let names: Vec<_> = server.view().policies().map(|p| p.name.clone()).collect();
                assert_eq!(names, [name(count)], "{is_reset}");
            }
            assert_eq!(stored(&ring.stores).await, [1, 1]);
        }
    }

    /// A deletion reaches each shard, whatever another server has removed or written since this one has read.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_topic_is_forgotten_by_a_server_that_has_read_too_little() {
        for (has_policy, is_removed) in [(false, true), (false, false), (true, false)] {
            let ring = TestRing::new(2);
            let (awake, sleeper) = (server(&ring), server(&ring));
            let topic = TopicName::stored("a.1");
            let exists = async || {
                let topics = ring.stores[0].sqlite_store().topics(String::new(), None, 9).await;
                !topics.unwrap().is_empty()
            };
            change(&awake, 1, None, pause).await.unwrap();
            sleeper.read_all().await;
            change(&awake, 1, None, |policy| Some(TopicPolicy { pause: None, ..policy }))
                .await
                .unwrap();
            if is_removed {
                tidy(&awake).await;
            }
            if has_policy {
                change(&awake, 1, None, create).await.unwrap();
            }
            assert!(exists().await);
            sleeper.forget_topic(&topic, None).await.unwrap();
            assert_eq!(exists().await, has_policy, "{has_policy} {is_removed}");
        }
    }

    /// A shard comes back with the data of an earlier day, to servers that know nothing of it, and a new one is added.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_shard_with_older_data_brings_nothing_back() {
        for count in [1, 2, MANY] {
            let ring = TestRing::new(2);
            let first = server(&ring);
            for n in 0..=count {
                change(&first, n, None, if n % 2 == 0 { create } else { pause }).await.unwrap();
            }
            // Removals before the day of the data.
            change(&first, count + 1, None, create).await.unwrap();
            change(&first, count + 1, None, delete).await.unwrap();
            tidy(&first).await;
            let backup = ring.stores[1].sqlite_store().documents(0, 100_000).await.unwrap();
            for n in 0..count {
                change(&first, n, None, delete).await.unwrap();
            }
            tidy(&first).await;
            change(&first, count + 2, None, create).await.unwrap();

            let clock = Clock::system();
            let (old, new) = (FaultyStore::new("s1", &clock), FaultyStore::new("s2", &clock));
            for stored in &backup.documents {
                let document = crate::store::codec::decode_document(
                    stored.name.clone(),
                    stored.version,
                    &stored.body,
                );
                let write = super::super::copies::to_write(&document.unwrap(), 0);
                old.sqlite_store().write_documents(vec![write], None).await.unwrap();
            }
            let removal = crate::store::DocumentRemoval {
                last_sequence: backup.documents.len() as u64,
                expected: 0,
                horizon: backup.horizon.version,
                documents: Vec::new(),
            };
            assert!(old.sqlite_store().forget_documents(removal, None).await.unwrap());
            let stores = vec![Arc::clone(&ring.stores[0]), old, new];
            let states = [crate::domain::ring::ShardState::Active; 3];
            let ring = TestRing::with_stores(stores, &states, 2);
            let second = server(&ring);
            // In the order that shows the old data first.
            for shard in [1, 2, 0, 1, 2] {
                second.exchange(&ring.scheduler.shards().all()[shard]).await.unwrap();
            }
            tidy(&second).await;
            let mut names: Vec<_> = second.view().policies().map(|p| p.name.clone()).collect();
            names.sort();
            let mut want = vec![name(count), name(count + 2)];
            want.sort();
            assert_eq!(names, want);
            assert_eq!(stored(&ring.stores).await, [2, 2, 2]);
            assert!(!second.ledger().is_untidy());
        }
    }
}
