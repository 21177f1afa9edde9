//! Settings of topics from a file. All servers apply their own copy of it: the copy of the higher revision counts, so
//! that servers with an older one change nothing back while a new one is rolled out. Which file counts is one record, decided
//! on its home shard: of two files of one revision that differ only one can come first.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{
    DocumentContent, DocumentName, FileRecord, PolicySource, Time, TopicPattern, TopicPolicy,
    TopicSettings,
};
use crate::store::codec;

use super::{DocumentChangeError, DocumentView, Documents};

/// Settings of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilePolicies {
    /// Revision; a higher one replaces a lower one.
    revision: u64,
    /// Settings by topic or pattern.
    settings: HashMap<TopicPattern, TopicSettings>,
    /// Hash of the settings.
    digest: u64,
}

/// Reason why a file is not in force.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FileRefusal {
    /// The shards have a file of a higher revision.
    #[error(
        "revision {revision} is in force, which is higher; take that file, or raise the revision of this one"
    )]
    Older {
        /// Revision that is in force.
        revision: u64,
    },
    /// The shards have another file of the same revision.
    #[error(
        "another file of the same revision is in force, which differs{}; raise the revision of the one that is to count",
        name.as_ref().map(|name| format!(" in {name}")).unwrap_or_default()
    )]
    Differs {
        /// First topic or pattern that differs, by name, as far as that is known.
        name: Option<TopicPattern>,
    },
    /// A shard does not answer, or other changes came first; the change goes on later.
    #[error("not applied yet: {0}")]
    NotYet(String),
}

// === impl FilePolicies ===

impl FilePolicies {
    /// Creates the settings of a file of this revision.
    #[must_use]
    pub fn new(revision: u64, settings: HashMap<TopicPattern, TopicSettings>) -> FilePolicies {
        let digest = digest(&settings);
        FilePolicies { revision, settings, digest }
    }

    /// Returns the revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the number of topics and patterns.
    #[must_use]
    pub fn topics(&self) -> usize {
        self.settings.len()
    }

    /// Returns the record that puts the file in force, or is to be kept if it does already.
    ///
    /// # Errors
    /// [`FileRefusal`], but not that it is not applied yet.
    fn record(&self, view: &DocumentView) -> Result<FileRecord, FileRefusal> {
        let &FilePolicies { revision, digest, .. } = self;
        let new = |former| Ok(FileRecord { revision, digest, former: Some(former) });
        match view.file() {
            None => new(0),
            Some(file) if file.revision < revision => new(file.former.unwrap_or(file.revision)),
            Some(file) if file.revision > revision => {
                Err(FileRefusal::Older { revision: file.revision })
            }
            Some(file) if file.digest != digest => {
                Err(FileRefusal::Differs { name: self.first_difference(view) })
            }
            Some(file) => Ok(file),
        }
    }

    fn first_difference(&self, view: &DocumentView) -> Option<TopicPattern> {
        let differs = |name: &&TopicPattern| {
            let policy = view.policy(name).filter(|policy| policy.is_of_file());
            policy.and_then(|policy| policy.settings.as_ref()) != self.settings.get(*name)
        };
        self.names(view).into_iter().filter(|name| differs(&name)).min_by_key(ToString::to_string)
    }

    /// Returns the names that the file has, and those that have their settings from any file.
    fn names(&self, view: &DocumentView) -> Vec<TopicPattern> {
        let others =
            view.policies().filter(|policy| policy.is_of_file()).map(|policy| &policy.name);
        let others = others.filter(|name| !self.settings.contains_key(name));
        self.settings.keys().chain(others).cloned().collect()
    }

    /// Returns whether all settings of the file are in force, and none of another one.
    #[must_use]
    pub fn is_in_force(&self, view: &DocumentView) -> bool {
        let &FilePolicies { revision, digest, .. } = self;
        view.file() == Some(FileRecord { revision, digest, former: None })
            && self.names(view).iter().all(|name| self.decide(name, view, Time(0)).is_none())
    }

    /// Returns the policy of `name` by this file, if it changes.
    fn decide(&self, name: &TopicPattern, view: &DocumentView, now: Time) -> Option<TopicPolicy> {
        let last = view.policy(name).filter(|last| last.is_live());
        let (wanted, is_of_file) =
            (self.settings.get(name), last.is_some_and(|last| last.is_of_file()));
        let settings = last.filter(|_| is_of_file).and_then(|last| last.settings.as_ref());
        // What calls have set is not the file's to remove.
        if settings == wanted {
            return None;
        }
        let policy =
            last.map_or_else(|| TopicPolicy::new(name.clone(), now), |last| (**last).clone());
        let revision = self.revision;
        let source = wanted.map_or(PolicySource::Rpc, |_| PolicySource::File { revision });
        // A pause stays: it is not the file's.
        Some(TopicPolicy { settings: wanted.cloned(), source, ..policy })
    }
}

/// Returns a hash of settings, the same in all versions of the server that know all that is set.
fn digest(settings: &HashMap<TopicPattern, TopicSettings>) -> u64 {
    let mut tables: Vec<_> = settings.iter().map(|(name, all)| (name.to_string(), all)).collect();
    tables.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut bytes = Vec::new();
    for (name, all) in tables {
        // Weights are hashed in their order, which messages do not have.
        let plain = TopicSettings { group_weights: [].into(), ..all.clone() };
        let pattern = TopicPattern::Prefix(String::new());
        let policy = TopicPolicy { settings: Some(plain), ..TopicPolicy::new(pattern, Time(0)) };
        let weights = all.group_weights.iter().map(|(group, weight)| format!("{group} {weight} "));
        for part in [
            name.into_bytes(),
            codec::encode_document_content(&policy.into()),
            weights.collect::<String>().into_bytes(),
        ] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&part);
        }
    }
    xxh3_64(&bytes)
}

// === impl Documents ===

impl Documents {
    /// Puts the settings of a file in force, and takes back those that an earlier file had and this one does not. Returns
    /// the number of policies that have changed.
    ///
    /// # Errors
    /// [`FileRefusal`]; unless it is [`FileRefusal::NotYet`], nothing was changed.
    pub async fn apply_file(&self, file: &FilePolicies) -> Result<usize, FileRefusal> {
        file.record(&self.view())?;
        self.set_file_record(file, false).await?;
        let names = file.names(&self.view()).into_iter().map(DocumentName::TopicPolicy).collect();
        let changed = self.change_all(names, |name, view, now| {
            // Another server may have put another file in force.
            file.record(view)?;
            let DocumentName::TopicPolicy(name) = name else { return Ok(None) };
            Ok(file.decide(name, view, now).map(DocumentContent::from))
        });
        let changed = changed.await.map_err(refusal)?;
        self.set_file_record(file, true).await?;
        Ok(changed)
    }

    /// Records that the file is being put in force, or that it is.
    async fn set_file_record(
        &self,
        file: &FilePolicies,
        is_in_force: bool,
    ) -> Result<(), FileRefusal> {
        let record = |view: &DocumentView| {
            let record = file.record(view)?;
            let former = record.former.filter(|_| !is_in_force);
            Ok::<_, FileRefusal>(FileRecord { former, ..record })
        };
        let changed = self.change_all(vec![DocumentName::TopicFile], |_, view, _| {
            let record = Some(record(view)?).filter(|record| view.file() != Some(*record));
            Ok(record.map(DocumentContent::TopicFile))
        });
        changed.await.map(drop).map_err(refusal)
    }
}

fn refusal(error: DocumentChangeError<FileRefusal>) -> FileRefusal {
    match error {
        DocumentChangeError::Refused(refusal) => refusal,
        DocumentChangeError::Shard(error) => FileRefusal::NotYet(error.to_string()),
        error @ (DocumentChangeError::NoActiveShard | DocumentChangeError::NoRoom(_)) => {
            FileRefusal::NotYet(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::{Document, TopicPause};
    use crate::scheduler::tests::test_ring::TestRing;

    fn name(text: &str) -> TopicPattern {
        TopicPattern::parse(text).unwrap()
    }

    fn file(revision: u64, settings: &[(&str, u8)]) -> FilePolicies {
        let settings = settings.iter().map(|(text, priority)| {
            let priority = Some(*priority);
            (name(text), TopicSettings { priority, ..TopicSettings::default() })
        });
        FilePolicies::new(revision, settings.collect())
    }

    fn document(version: u64, policy: TopicPolicy) -> Document {
        let name = DocumentName::TopicPolicy(policy.name.clone());
        Document { name, version, update_time: Time(1), content: Some(policy.into()) }
    }

    /// Returns the view in which the file is in force after another one.
    fn applied(file: &FilePolicies, over: &DocumentView) -> DocumentView {
        let mut view = over.clone();
        let version = 1 + view.all().map(|document| document.version).max().unwrap_or(0);
        let policies = file.names(&view).into_iter();
        let policies = policies.filter_map(|name| file.decide(&name, &view, Time(1)));
        let mut documents: Vec<_> = policies.map(|policy| document(version, policy)).collect();
        let record = FileRecord { former: None, ..file.record(&view).unwrap() };
        let (name, content) = (DocumentName::TopicFile, Some(DocumentContent::TopicFile(record)));
        documents.push(Document { name, version, update_time: Time(1), content });
        view.merge(&documents);
        view
    }

    #[test]
    fn the_higher_revision_counts_and_equal_ones_are_equal() {
        let none = DocumentView::default();
        let first = file(5, &[("a", 1), ("b.*", 2)]);
        let view = applied(&first, &none);
        assert!(first.is_in_force(&view) && !file(6, &[("a", 1)]).is_in_force(&view));
        assert_eq!(file(5, &[("b.*", 2), ("a", 1)]).record(&view), Ok(view.file().unwrap()));
        assert!(file(6, &[("c", 1)]).record(&view).is_ok());
        assert_eq!(file(4, &[("a", 1)]).record(&view), Err(FileRefusal::Older { revision: 5 }));
        for other in [&[("a", 1)][..], &[("a", 1), ("b.*", 3)]] {
            let differs = Err(FileRefusal::Differs { name: Some(name("b.*")) });
            assert_eq!(file(5, other).record(&view), differs);
        }
        // What is equal is not written again.
        let second = file(6, &[("a", 1), ("b.*", 3)]);
        let changed = second.names(&view).into_iter();
        let changed = changed.filter(|name| second.decide(name, &view, Time(2)).is_some());
        assert_eq!(changed.collect::<Vec<_>>(), [name("b.*")]);
        let view = applied(&second, &view);
        assert!(second.is_in_force(&view));
        let revision = |text| view.file_revision(view.policy(&name(text)).unwrap());
        assert_eq!([revision("a"), revision("b.*")], [Some(6); 2]);
    }

    #[test]
    fn a_file_keeps_pauses_and_what_calls_have_set_in_other_topics() {
        let pause = Some(TopicPause::default());
        let by_call = TopicPolicy {
            settings: Some(TopicSettings::default()),
            pause: pause.clone(),
            ..TopicPolicy::new(name("a"), Time(1))
        };
        let mut view = DocumentView::default();
        view.merge(&[document(0, by_call)]);
        assert_eq!(file(3, &[]).decide(&name("a"), &view, Time(3)), None);
        let view = applied(&file(2, &[("a", 1)]), &view);
        let taken = view.policy(&name("a")).unwrap();
        assert_eq!((taken.source, &taken.pause), (PolicySource::File { revision: 2 }, &pause));
        let view = applied(&file(3, &[]), &view);
        let left = view.policy(&name("a")).unwrap();
        assert_eq!((&left.settings, &left.pause, left.is_live()), (&None, &pause, true));
        let older = file(2, &[("a", 1)]).record(&view);
        assert_eq!(older, Err(FileRefusal::Older { revision: 3 }), "a removal has a revision");
    }

    /// Servers that start at once with two files of one revision: one file is in force, whole, and the others report it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_two_files_of_one_revision_one_is_in_force_whole() {
        for round in 0..5 {
            let ring = TestRing::new(2);
            let shards = ring.scheduler.shards();
            let names: Vec<String> = (0..150).map(|n| format!("t{n}")).collect();
            let files: Vec<_> = (1..=3)
                .map(|priority| {
                    names.iter().map(|name| (name.as_str(), priority)).collect::<Vec<_>>()
                })
                .map(|tables| file(7, &tables))
                .collect();
            let servers: Vec<_> =
                files.iter().map(|_| Documents::new(shards.clone(), Clock::system())).collect();
            let applied = servers.iter().zip(&files).map(|(server, file)| server.apply_file(file));
            let applied = join_all(applied).await;
            let winners: Vec<_> = (0..3).filter(|n| applied[*n].is_ok()).collect();
            println!("round {round}: {applied:?}");
            let [winner] = winners[..] else { panic!("{winners:?}") };
            let refused = applied.iter().filter(|r| matches!(r, Err(FileRefusal::Differs { .. })));
            assert_eq!(refused.count(), 2);
            for server in &servers {
                server.read_all().await;
                assert!(files[winner].is_in_force(&server.view()), "round {round}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn servers_with_one_file_apply_it_together_and_a_new_one_replaces_it() {
        let ring = TestRing::new(2);
        let shards = ring.scheduler.shards();
        let servers: Vec<_> =
            (0..3).map(|_| Documents::new(shards.clone(), Clock::system())).collect();
        for (revision, count) in [(1, 1), (2, 331), (3, 2), (4, 0), (5, 97)] {
            let names: Vec<String> = (0..count).map(|n| format!("t{n}.*")).collect();
            let tables: Vec<_> = names.iter().map(|name| (name.as_str(), 3)).collect();
            let file = file(revision, &tables);
            let apply = servers.iter().map(|server| async {
                while let Err(refusal) = server.apply_file(&file).await {
                    assert!(matches!(refusal, FileRefusal::NotYet(_)), "{refusal}");
                }
            });
            join_all(apply).await;
            for server in &servers {
                server.read_all().await;
                assert!(file.is_in_force(&server.view()), "revision {revision}");
                assert_eq!(server.view().settings_count(), count);
            }
        }
    }
}
