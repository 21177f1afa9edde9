//! Turns of the topics of a stream with weights, counted over all shards.
//!
//! Each pattern has a pass: the virtual time of its next job. The smallest pass is next, and a job moves it on by a
//! stride, which is the shorter the larger the weight. A topic that has jobs again after it had none begins at the
//! present virtual time: it gets nothing for the turns that it left to the others.

use parking_lot::Mutex;
use rand::Rng as _;

use crate::domain::{TopicName, TopicPattern};

use crate::dispatch::StreamOptions;

/// Stride of a topic of weight 1.
const STRIDE: u128 = 1 << 40;

/// Turns of the topics of one stream.
pub(in crate::dispatch) struct WeightedTurns {
    patterns: Box<[WeightedPattern]>,
    passes: Mutex<Passes>,
}

/// A pattern and the turns per round of each topic that matches it and no narrower pattern of the stream.
struct WeightedPattern {
    pattern: TopicPattern,
    weight: u32,
    /// Narrowest other pattern that includes this one.
    parent: Option<usize>,
    /// True if another pattern is included in this one.
    has_narrower: bool,
}

struct Passes {
    next: Box<[u128]>,
    /// Present virtual time: the pass of the job that was served last.
    now: u128,
}

/// Turns that a claim has taken in advance.
#[derive(Clone, Copy, Debug)]
pub(in crate::dispatch) struct TakenTurns {
    /// Index of the pattern.
    pub(in crate::dispatch) pattern: usize,
    /// Weight of the pattern, at least 1.
    pub(in crate::dispatch) weight: u32,
    /// Pass of the first job.
    first: u128,
    stride: u128,
    jobs: u32,
}

// === impl WeightedTurns ===

impl WeightedTurns {
    /// Creates the turns of a stream; `None` if it has no weights. Each pattern begins within its first stride at
    /// random: otherwise streams that end after a few jobs would never come to the topics of small weights.
    pub(in crate::dispatch) fn new(options: &StreamOptions) -> Option<WeightedTurns> {
        if options.topic_weights.is_empty() {
            return None;
        }
        let mut patterns: Vec<WeightedPattern> = Vec::with_capacity(options.topics.len());
        for pattern in &options.topics {
            if patterns.iter().all(|known| known.pattern != *pattern) {
                let given = options.topic_weights.iter().filter(|(of, _)| of.includes(pattern));
                let given = given.max_by_key(|(of, _)| narrowness(of));
                let weight = given.map_or(1, |(_, weight)| *weight);
                let pattern = pattern.clone();
                patterns.push(WeightedPattern {
                    pattern,
                    weight,
                    parent: None,
                    has_narrower: false,
                });
            }
        }
        for index in 0..patterns.len() {
            let parent = parent_of(&patterns, index);
            patterns[index].parent = parent;
            if let Some(parent) = parent {
                patterns[parent].has_narrower = true;
            }
        }
        let mut rng = rand::rng();
        let next = patterns.iter().map(|of| rng.random_range(0..of.stride(1))).collect();
        let passes = Mutex::new(Passes { next, now: 0 });
        Some(WeightedTurns { patterns: patterns.into(), passes })
    }

    /// Number of patterns.
    pub(in crate::dispatch) fn len(&self) -> usize {
        self.patterns.len()
    }

    /// Returns the patterns, narrower ones included.
    pub(in crate::dispatch) fn patterns(&self) -> impl Iterator<Item = &TopicPattern> {
        self.patterns.iter().map(|of| &of.pattern)
    }

    /// Returns whether the topic, which matches the pattern, matches no narrower pattern: each topic has the weight of
    /// its narrowest one.
    pub(in crate::dispatch) fn counts_for(&self, pattern: usize, topic: &TopicName) -> bool {
        let wide = &self.patterns[pattern];
        !wide.has_narrower
            || !self.patterns.iter().enumerate().any(|(other, narrow)| {
                other != pattern
                    && wide.pattern.includes(&narrow.pattern)
                    && narrow.pattern.matches(topic)
            })
    }

    /// Returns whether the pattern is the name of this topic.
    pub(in crate::dispatch) fn names(&self, pattern: usize, topic: &TopicName) -> bool {
        matches!(&self.patterns[pattern].pattern, TopicPattern::Exact(name) if name == topic)
    }

    /// Returns the pattern that the topic counts for.
    pub(in crate::dispatch) fn pattern_of(&self, topic: &TopicName) -> Option<usize> {
        (0..self.len()).find(|&pattern| {
            self.patterns[pattern].pattern.matches(topic) && self.counts_for(pattern, topic)
        })
    }

    /// Subtracts from the number of awake topics of each pattern those that count for a narrower one.
    pub(in crate::dispatch) fn subtract_narrower(&self, awake: &mut [usize]) {
        let all: Vec<usize> = awake.to_vec();
        for (index, pattern) in self.patterns.iter().enumerate() {
            if let Some(parent) = pattern.parent {
                awake[parent] = awake[parent].saturating_sub(all[index]);
            }
        }
    }

    /// Splits `jobs` over the patterns, by the number of awake topics of each. `active` has the patterns that were
    /// awake before, and is updated: those that were not begin at the present.
    pub(in crate::dispatch) fn split(
        &self,
        jobs: u32,
        awake: &[usize],
        active: &mut [bool],
    ) -> Vec<u32> {
        let mut passes = self.passes.lock();
        let Passes { next, now } = &mut *passes;
        for (index, active) in active.iter_mut().enumerate() {
            let is_awake = awake[index] > 0;
            if is_awake && !*active {
                next[index] = next[index].max(*now);
            }
            *active = is_awake;
        }
        let mut next = next.clone();
        drop(passes);
        let mut parts = vec![0; self.len()];
        for _ in 0..jobs {
            let awake_ones = (0..self.len()).filter(|&index| awake[index] > 0);
            let Some(first) = awake_ones.min_by_key(|&index| next[index]) else { break };
            parts[first] += 1;
            next[first] += self.patterns[first].stride(awake[first]);
        }
        parts
    }

    /// Takes turns of a pattern with that many awake topics, before the claim: the other shards see them at once.
    pub(in crate::dispatch) fn take(&self, pattern: usize, awake: usize, jobs: u32) -> TakenTurns {
        let stride = self.patterns[pattern].stride(awake);
        let mut passes = self.passes.lock();
        let first = passes.next[pattern];
        passes.next[pattern] += stride * u128::from(jobs);
        let weight = self.patterns[pattern].weight;
        TakenTurns { pattern, weight, first, stride, jobs }
    }

    /// Gives back the turns for which the claim found no job. `used` of them are over.
    pub(in crate::dispatch) fn finish(&self, taken: TakenTurns, used: u32) {
        let unused = u128::from(taken.jobs.saturating_sub(used));
        let mut passes = self.passes.lock();
        let next = &mut passes.next[taken.pattern];
        *next = next.saturating_sub(taken.stride * unused);
        if used > 0 {
            let last = taken.first + taken.stride * u128::from(used - 1);
            passes.now = passes.now.max(last);
        }
    }
}

fn parent_of(patterns: &[WeightedPattern], index: usize) -> Option<usize> {
    let own = &patterns[index].pattern;
    let wider = |&other: &usize| other != index && patterns[other].pattern.includes(own);
    (0..patterns.len()).filter(wider).max_by_key(|&other| narrowness(&patterns[other].pattern))
}

/// Order of patterns that match the same topic, the widest first.
fn narrowness(pattern: &TopicPattern) -> usize {
    match pattern {
        TopicPattern::Prefix(prefix) => prefix.len(),
        TopicPattern::Exact(_) => usize::MAX,
    }
}

// === impl WeightedPattern ===

impl WeightedPattern {
    /// Returns the stride of the pattern: each of its awake topics has the weight.
    fn stride(&self, awake: usize) -> u128 {
        (STRIDE / (u128::from(self.weight) * awake.max(1) as u128)).max(1)
    }
}
