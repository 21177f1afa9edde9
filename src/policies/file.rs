//! Settings of topics from a file. All servers apply their own copy of it: the copy of the higher revision counts, so
//! that servers with an older one change nothing back while a new one is rolled out.

use std::collections::HashMap;

use crate::domain::{PolicySource, Time, TopicPattern, TopicPolicy, TopicSettings};

use super::{Policies, PolicyChangeError, PolicyView};

/// Settings of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilePolicies {
    /// Revision; a higher one replaces a lower one.
    pub revision: u64,
    /// Settings by topic or pattern.
    pub settings: HashMap<TopicPattern, TopicSettings>,
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
        "another file of the same revision is in force, which differs in {name}; raise the revision of the one that is to count"
    )]
    Differs {
        /// First topic or pattern that differs, by name.
        name: TopicPattern,
    },
    /// A shard does not answer, or other changes came first; the change goes on later.
    #[error("not applied yet: {0}")]
    NotYet(String),
}

/// Reason why one policy stays as it is.
enum Kept {
    Unchanged,
    Refused(FileRefusal),
}

// === impl FilePolicies ===

impl FilePolicies {
    /// Returns whether the file may be applied over what is in force.
    ///
    /// # Errors
    /// [`FileRefusal`], but not that it is not applied yet.
    pub fn check(&self, view: &PolicyView) -> Result<(), FileRefusal> {
        let from_files = view.all().filter_map(|policy| Some((policy, file_revision(policy)?)));
        let (mut highest, mut differing) = (0, None::<&TopicPattern>);
        for (policy, revision) in from_files {
            highest = highest.max(revision);
            let live = policy.settings.as_ref().filter(|_| !policy.is_deleted);
            let is_other = self.settings.get(&policy.name) != live;
            if revision == self.revision && is_other {
                let first = differing.filter(|name| name.to_string() <= policy.name.to_string());
                differing = first.or(Some(&policy.name));
            }
        }
        match differing {
            _ if highest > self.revision => Err(FileRefusal::Older { revision: highest }),
            Some(name) => Err(FileRefusal::Differs { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// Returns whether all settings of the file are in force, and none of another one.
    #[must_use]
    pub fn is_in_force(&self, view: &PolicyView) -> bool {
        let is_here = |(name, settings): (&TopicPattern, &TopicSettings)| {
            view.policy(name).is_some_and(|policy| {
                has_file_settings(policy) && policy.settings.as_ref() == Some(settings)
            })
        };
        self.settings.iter().all(is_here)
            && view.all().filter(|policy| has_file_settings(policy)).count() == self.settings.len()
    }

    /// Returns the policy of `name` by this file, in place of the last one.
    fn decide(
        &self,
        name: &TopicPattern,
        last: Option<&TopicPolicy>,
        now: Time,
    ) -> Result<TopicPolicy, Kept> {
        let live = last.filter(|last| !last.is_deleted);
        let revision = last.and_then(file_revision);
        let wanted = self.settings.get(name);
        let is_same = live.and_then(|last| last.settings.as_ref()) == wanted;
        match revision {
            Some(revision) if revision > self.revision => {
                return Err(Kept::Refused(FileRefusal::Older { revision }));
            }
            Some(revision) if revision == self.revision && is_same => return Err(Kept::Unchanged),
            Some(revision) if revision == self.revision => {
                return Err(Kept::Refused(FileRefusal::Differs { name: name.clone() }));
            }
            // What calls have set is not the file's to remove.
            None if wanted.is_none() => return Err(Kept::Unchanged),
            Some(_) if wanted.is_none() && is_same => return Err(Kept::Unchanged),
            Some(_) | None => {}
        }
        let policy = live.cloned().unwrap_or_else(|| TopicPolicy::new(name.clone(), now));
        Ok(match wanted {
            Some(settings) => TopicPolicy {
                settings: Some(settings.clone()),
                source: PolicySource::File { revision: self.revision },
                ..policy
            },
            // A pause stays: it is not the file's.
            None => TopicPolicy {
                settings: None,
                // The revision stays, so that an older file does not bring the settings back.
                source: PolicySource::File { revision: self.revision },
                is_deleted: policy.pause.is_none() && policy.paused_groups.is_empty(),
                ..policy
            },
        })
    }
}

/// Returns the revision of the file that has set or taken away the settings.
fn file_revision(policy: &TopicPolicy) -> Option<u64> {
    match policy.source {
        PolicySource::File { revision } => Some(revision),
        PolicySource::Rpc => None,
    }
}

/// Returns whether the policy has settings of a file.
fn has_file_settings(policy: &TopicPolicy) -> bool {
    file_revision(policy).is_some() && policy.settings.is_some() && !policy.is_deleted
}

// === impl Policies ===

impl Policies {
    /// Puts the settings of a file in force, and takes back those that an earlier file had and this one does not. Returns
    /// the number of policies that have changed.
    ///
    /// # Errors
    /// [`FileRefusal`]; unless it is [`FileRefusal::NotYet`], nothing was changed.
    pub async fn apply_file(&self, file: &FilePolicies) -> Result<usize, FileRefusal> {
        let view = self.view();
        file.check(&view)?;
        let former = view.all().filter(|policy| has_file_settings(policy));
        let removed =
            former.map(|policy| &policy.name).filter(|name| !file.settings.contains_key(name));
        let mut names: Vec<TopicPattern> = file.settings.keys().chain(removed).cloned().collect();
        names.sort_by_key(ToString::to_string);
        let mut changed = 0;
        for name in names {
            let decide = |last: Option<&TopicPolicy>, now| file.decide(&name, last, now);
            match self.change(&name, None, decide).await {
                Ok(_) => changed += 1,
                Err(PolicyChangeError::Refused(Kept::Unchanged)) => {}
                Err(PolicyChangeError::Refused(Kept::Refused(refusal))) => return Err(refusal),
                Err(PolicyChangeError::NoActiveShard) => {
                    return Err(FileRefusal::NotYet("no shard is active".to_owned()));
                }
                Err(PolicyChangeError::Shard(error)) => {
                    return Err(FileRefusal::NotYet(error.to_string()));
                }
            }
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::TopicPause;

    fn name(text: &str) -> TopicPattern {
        TopicPattern::parse(text).unwrap()
    }

    fn file(revision: u64, settings: &[(&str, u8)]) -> FilePolicies {
        let settings = settings.iter().map(|(text, priority)| {
            let priority = Some(*priority);
            (name(text), TopicSettings { priority, ..TopicSettings::default() })
        });
        FilePolicies { revision, settings: settings.collect() }
    }

    /// Returns a view in which the file is in force.
    fn in_force(file: &FilePolicies) -> PolicyView {
        let policies = file.settings.iter().map(|(name, settings)| {
            Arc::new(TopicPolicy {
                version: 1,
                settings: Some(settings.clone()),
                source: PolicySource::File { revision: file.revision },
                ..TopicPolicy::new(name.clone(), Time(0))
            })
        });
        let mut view = PolicyView::default();
        view.merge(&policies.collect::<Vec<_>>());
        view
    }

    #[test]
    fn the_higher_revision_counts_and_equal_ones_are_equal() {
        let view = in_force(&file(5, &[("a", 1), ("b.*", 2)]));
        assert_eq!(file(5, &[("a", 1), ("b.*", 2)]).check(&view), Ok(()));
        assert_eq!(file(6, &[("c", 1)]).check(&view), Ok(()));
        assert_eq!(file(4, &[("a", 1)]).check(&view), Err(FileRefusal::Older { revision: 5 }));
        for other in [&[("a", 1)][..], &[("a", 1), ("b.*", 3)]] {
            let differs = Err(FileRefusal::Differs { name: name("b.*") });
            assert_eq!(file(5, other).check(&view), differs);
        }
        assert_eq!(file(1, &[]).check(&PolicyView::default()), Ok(()));
    }

    #[test]
    fn a_file_keeps_pauses_and_what_calls_have_set_in_other_topics() {
        let pause = Some(TopicPause::default());
        let by_call = TopicPolicy {
            settings: Some(TopicSettings::default()),
            pause: pause.clone(),
            ..TopicPolicy::new(name("a"), Time(1))
        };
        let Ok(taken) = file(2, &[("a", 1)]).decide(&name("a"), Some(&by_call), Time(2)) else {
            panic!("it takes the settings over");
        };
        assert_eq!((taken.source, &taken.pause), (PolicySource::File { revision: 2 }, &pause));
        let left = file(3, &[]).decide(&name("a"), Some(&taken), Time(3)).ok().unwrap();
        assert_eq!((&left.settings, &left.pause, left.is_deleted), (&None, &pause, false));
        let mut view = PolicyView::default();
        view.merge(&[Arc::new(TopicPolicy { version: 9, ..left })]);
        let older = file(2, &[("a", 1)]).check(&view);
        assert_eq!(older, Err(FileRefusal::Older { revision: 3 }), "a removal has a revision");
        let unpaused = TopicPolicy { pause: None, ..taken };
        assert!(file(3, &[]).decide(&name("a"), Some(&unpaused), Time(3)).ok().unwrap().is_deleted);
        assert!(matches!(
            file(3, &[]).decide(&name("a"), Some(&by_call), Time(3)),
            Err(Kept::Unchanged)
        ));
    }
}
