//! Placement of jobs with server-made ids: round robin by weight, counted in jobs.

use parking_lot::Mutex;

use super::Shard;

/// Number of jobs of one call that stay together: enough for a batch, few enough to spread a large call.
pub const RUN_MAX: usize = 64;

/// Credit of each shard: its part of the jobs so far, less those it got. Smooth weighted round robin (as nginx does
/// it), so that no shard gets its whole part at once; a shard that was passed over, because it did not answer, has
/// nothing to catch up on.
pub(super) struct WeightedRoundRobin(Mutex<Vec<i64>>);

// === impl WeightedRoundRobin ===

impl WeightedRoundRobin {
    pub(super) fn new(shards: usize) -> WeightedRoundRobin {
        WeightedRoundRobin(Mutex::new(vec![0; shards]))
    }

    /// Returns the eligible shard that gets the next `jobs` jobs.
    pub(super) fn pick<'a>(
        &self,
        shards: &'a [Shard],
        jobs: usize,
        eligible: &dyn Fn(&Shard) -> bool,
    ) -> Option<&'a Shard> {
        let eligible: Vec<_> =
            shards.iter().enumerate().filter(|(_, shard)| eligible(shard)).collect();
        let mut credits = self.0.lock();
        let weights = eligible.iter().map(|(index, shard)| (*index, shard.weight()));
        let next = pick_index(&mut credits, weights, jobs)?;
        Some(&shards[next])
    }
}

fn pick_index(
    credits: &mut [i64],
    weights: impl Iterator<Item = (usize, u32)>,
    jobs: usize,
) -> Option<usize> {
    let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
    let (mut total, mut best): (i64, Option<usize>) = (0, None);
    for (index, weight) in weights {
        let part = i64::from(weight).saturating_mul(jobs);
        total = total.saturating_add(part);
        credits[index] = credits[index].saturating_add(part);
        if best.is_none_or(|best| credits[index] > credits[best]) {
            best = Some(index);
        }
    }
    let best = best?;
    credits[best] = credits[best].saturating_sub(total);
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of jobs that each shard of these weights gets from calls of these sizes, in runs.
    fn spread(weights: &[u32], calls: impl Iterator<Item = usize>) -> Vec<usize> {
        let (mut credits, mut got) = (vec![0; weights.len()], vec![0; weights.len()]);
        for mut left in calls {
            while left > 0 {
                let run = left.min(RUN_MAX);
                let weights = weights.iter().copied().enumerate();
                got[pick_index(&mut credits, weights, run).unwrap()] += run;
                left -= run;
            }
        }
        got
    }

    #[test]
    fn shards_get_their_part_however_large_the_calls_are() {
        for size in [1, 63, 64, 65, 100, 1_000] {
            for weights in [&[1, 1, 1, 1][..], &[1, 2, 5], &[1]] {
                let calls = 20_000_usize.div_ceil(size);
                let got = spread(weights, std::iter::repeat_n(size, calls));
                for (got, weight) in got.iter().zip(weights) {
                    let whole = (calls * size) as f64;
                    let part = whole * f64::from(*weight) / f64::from(weights.iter().sum::<u32>());
                    let off = *got as f64 / part - 1.0;
                    assert!(off.abs() < 0.1, "{size} {weights:?}: {off:+.2}");
                }
            }
        }
    }

    #[test]
    fn single_jobs_take_turns() {
        let mut credits = vec![0; 3];
        let mut turn =
            || pick_index(&mut credits, [(0, 1), (1, 1), (2, 1)].into_iter(), 1).unwrap();
        let turns: Vec<_> = (0..6).map(|_| turn()).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_recovered_shard_gets_no_backlog() {
        let mut credits = vec![0; 2];
        for _ in 0..1_000 {
            pick_index(&mut credits, [(0, 1)].into_iter(), 1);
        }
        let got: usize = (0..100)
            .map(|_| pick_index(&mut credits, [(0, 1), (1, 1)].into_iter(), 1).unwrap())
            .sum();
        assert_eq!(got, 50);
        assert_eq!(pick_index(&mut credits, std::iter::empty(), 1), None);
    }
}
