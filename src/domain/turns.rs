//! Order of the turns of groups: the score of a lane is the time of its last turn, counted in turns of its topic on its
//! shard, plus a part for each running job by the weight of the group. The lowest score has the next turn.
//!
//! In the short run that is the lane with the least running jobs, among equals the one that was served longest ago. But
//! each turn of another lane raises the score of that one past a lane that waits, so that jobs that never end delay the
//! next turn of their group by a number of turns, and not for ever.

/// Turns of its topic by which one running job delays the next turn of a group of weight 1.
pub const TURNS_PER_RUNNING_JOB: i64 = 512;

/// Places per turn: a new lane comes between the lane that was served last and the one before.
pub const PLACES_PER_TURN: i64 = 2;

/// Returns the score of a lane that was served at this place. Exact: far less than 2^40 jobs run.
#[must_use]
pub fn score(served: i64, running: i64, weight: u8) -> i64 {
    served + running * TURNS_PER_RUNNING_JOB * PLACES_PER_TURN / i64::from(weight.max(1))
}

/// Returns the place of a lane that has the turn of this number, counted from 1.
#[must_use]
pub fn place_served(turn: i64) -> i64 {
    PLACES_PER_TURN * turn + 1
}

/// Returns the place of a lane that begins after this number of turns: right before the one that was served last.
#[must_use]
pub fn place_new(turns: i64) -> i64 {
    PLACES_PER_TURN * turns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of some lanes that always have a ready job; some have jobs that never end, those of the others end at once.
    /// Returns the longest time between two turns of each lane, in turns.
    fn longest_waits(lanes: &mut [(i64, u8, i64)], turns: i64) -> Vec<i64> {
        let mut waits = vec![0; lanes.len()];
        for turn in 1..=turns {
            let next = (0..lanes.len()).min_by_key(|&lane| {
                let (running, weight, last) = lanes[lane];
                (score(place_served(last), running, weight), lane)
            });
            let next = next.unwrap();
            waits[next] = waits[next].max(turn - lanes[next].2);
            lanes[next].2 = turn;
        }
        waits
    }

    #[test]
    fn a_lane_waits_for_its_running_jobs_and_one_turn_of_each_other_lane() {
        for (hung, weight) in [(0, 1), (1, 1), (2, 1), (7, 1), (7, 3), (100, 100)] {
            for others in [1, 2, 20, 997] {
                let mut lanes = vec![(0, 1, 0); others];
                lanes.push((hung, weight, 0));
                let own = hung * TURNS_PER_RUNNING_JOB / i64::from(weight);
                let count = i64::try_from(lanes.len()).unwrap();
                let waits = longest_waits(&mut lanes, 3 * (own + count));
                for (wait, (running, ..)) in waits.iter().zip(&lanes) {
                    let own = if *running > 0 { own } else { 0 };
                    assert!(
                        *wait > own && *wait <= own + count,
                        "{hung} {weight} {others}: {wait}"
                    );
                }
            }
        }
    }

    /// Workers that the slow groups hold in the mean, of so many, beside fast groups whose jobs take 5 ms: all have a
    /// backlog. The least running jobs alone would give each group its part.
    fn held_by_slow(workers: usize, slow: usize, run_ms: u64, fast: usize) -> f64 {
        let lanes = slow + fast;
        let (mut running, mut last) = (vec![0; lanes], vec![0; lanes]);
        // Ends of the running jobs, with their lanes.
        let mut ends: Vec<(u64, usize)> = Vec::new();
        let (mut now, mut held, mut turn) = (0, 0, 0);
        let end = 20 * run_ms;
        while now < end {
            while ends.len() < workers {
                turn += 1;
                let score = |&lane: &usize| score(place_served(last[lane]), running[lane], 1);
                let next = (0..lanes).min_by_key(score).unwrap();
                (running[next], last[next]) = (running[next] + 1, turn);
                // Workers are not in step.
                let run = if next < slow { run_ms * 1_000 } else { 5_000 };
                ends.push((now * 1_000 + run + turn.unsigned_abs() % 977, next));
            }
            let first = ends.iter().enumerate().min_by_key(|(_, end)| **end).unwrap().0;
            let (at, lane) = ends.swap_remove(first);
            let slow_running: i64 = running[..slow].iter().sum();
            held += slow_running.unsigned_abs() * (at / 1_000).saturating_sub(now);
            (now, running[lane]) = (now.max(at / 1_000), running[lane] - 1);
        }
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let mean = held as f64 / now as f64;
        println!(
            "{slow} slow groups ({run_ms} ms), {fast} fast ones: {mean:.2} of {workers} workers"
        );
        mean
    }

    #[test]
    fn groups_with_slow_jobs_do_not_hold_all_workers() {
        for (workers, slow, run_ms, fast, most) in [
            (4, 1, 1_000, 19, 1.5),
            (16, 1, 1_000, 19, 3.0),
            (4, 1, 5_000, 19, 2.5),
            (16, 1, 5_000, 19, 5.5),
            (8, 3, 1_000, 1, 6.6),
            (40, 20, 1_000, 1, 39.0),
            (4, 1, 1_000, 1, 2.6),
        ] {
            let held = held_by_slow(workers, slow, run_ms, fast);
            assert!(held <= most, "{held} of {workers}");
        }
    }

    #[test]
    fn running_jobs_are_shared_by_weight_and_numbers_stay_exact() {
        for served in [0, 1 << 47] {
            assert!(score(served, 3, 3) == score(served, 1, 1));
            assert!(score(served, 29, 100) < score(served, 30, 100));
            assert!(score(served, 2, 3) < score(served, 1, 1));
            // What the stores keep, and what a double of Redis is exact for.
            assert!(score(served, 1 << 32, 1) < 1 << 53);
        }
    }
}
