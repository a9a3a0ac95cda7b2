//! A run of an experiment: its scale, its seeds, and work on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::findings::Findings;

/// Time after which rounds of a real run are not repeated any more.
const LONGEST: Duration = Duration::from_secs(40 * 60);

/// Scale: how much is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Full scale, as in the paper.
    Full,
    /// Scale so small that only the way there is tried: minutes become seconds.
    Quick,
}

/// A run.
pub struct Run<'a> {
    /// Scale of the run: how much is played.
    pub scale: Scale,
    /// The first seed.
    pub seed: u64,
    /// Called with the finished share, from 0 to 1.
    pub progress: &'a (dyn Fn(f64) + Sync),
    /// Returns true if each claim of the experiment can be told by these findings.
    pub is_told: &'a (dyn Fn(&Findings) -> bool + Sync),
}

impl Run<'_> {
    /// Returns `full` or `quick`, by the scale.
    pub fn by_scale<T>(&self, full: T, quick: T) -> T {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => quick,
        }
    }

    /// The seeds of `full` runs, or of three in a quick run.
    pub fn seeds(&self, full: u64) -> Vec<u64> {
        let count = self.by_scale(full, 3);
        (0..count).map(|index| self.seed + index).collect()
    }

    /// Repeats rounds of a real run: `least` of them, and then until each claim of the experiment can be told or 40
    /// minutes are over. Answers what `found` makes of all rounds. A quick run has `least` rounds.
    ///
    /// # Errors
    ///
    /// If a round fails.
    pub(crate) fn repeat_rounds<T>(
        &self,
        least: usize,
        mut round: impl FnMut(usize) -> Result<T, String>,
        found: impl Fn(&[T]) -> Findings,
    ) -> Result<Findings, String> {
        let begun = Instant::now();
        let mut rounds = Vec::new();
        loop {
            rounds.push(round(rounds.len())?);
            (self.progress)((rounds.len() as f64 / least.max(1) as f64).min(1.0));
            if rounds.len() < least {
                continue;
            }
            let findings = found(&rounds);
            let next = begun.elapsed() + begun.elapsed() / rounds.len() as u32;
            let is_over = self.scale == Scale::Quick || next > LONGEST;
            if is_over || (self.is_told)(&findings) {
                return Ok(findings);
            }
        }
    }

    /// Does all jobs on all processors; answers in their order.
    pub fn run_jobs<J: Sync, T: Send>(&self, jobs: &[J], work: impl Fn(&J) -> T + Sync) -> Vec<T> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(jobs.len()));
        let worker = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(index) else {
                    return;
                };
                let result = work(job);
                if let Ok(mut results) = results.lock() {
                    results.push((index, result));
                }
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                (self.progress)(done as f64 / jobs.len() as f64);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            (0..threads.min(jobs.len())).for_each(|_| {
                scope.spawn(worker);
            });
        });
        let mut results = results.into_inner().unwrap_or_default();
        results.sort_unstable_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Does `work` for each variant with each seed; answers a list for each variant, by seed.
    pub fn run_grid<V: Sync, T: Send>(
        &self,
        variants: &[V],
        seeds: &[u64],
        work: impl Fn(&V, u64) -> T + Sync,
    ) -> Vec<Vec<T>> {
        let jobs: Vec<(&V, u64)> = variants
            .iter()
            .flat_map(|variant| seeds.iter().map(move |&seed| (variant, seed)))
            .collect();
        let mut all = self
            .run_jobs(&jobs, |(variant, seed)| work(variant, *seed))
            .into_iter();
        (variants.iter())
            .map(|_| all.by_ref().take(seeds.len()).collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_repeated_until_all_can_be_told() {
        let rounds = |scale, off: f64| {
            let run = Run {
                scale,
                seed: 1,
                progress: &|_| {},
                is_told: &|findings| {
                    let values = &findings.values["one"];
                    off == 0.0 || values.len() > 4
                },
            };
            let count = std::cell::Cell::new(0);
            let round = |index: usize| {
                count.set(index + 1);
                // Whoever looks at two rounds only cannot tell.
                Ok(if index.is_multiple_of(2) {
                    1.0
                } else {
                    1.0 + off
                })
            };
            let found = |values: &[f64]| {
                let mut findings = Findings::default();
                findings.add_measured("one", values.to_vec());
                findings
            };
            let found = run.repeat_rounds(2, round, found);
            assert!(found.is_ok_and(|found| found.values["one"].len() == count.get()));
            count.get()
        };
        // Told at once, after some rounds, and never asked.
        assert_eq!(rounds(Scale::Full, 0.0), 2);
        assert!(rounds(Scale::Full, 0.1) > 2);
        assert_eq!(rounds(Scale::Quick, 0.1), 2);
        let run = Run {
            scale: Scale::Full,
            seed: 1,
            progress: &|_| {},
            is_told: &|_| true,
        };
        let failed = run.repeat_rounds(2, |_| Err::<(), _>("no".into()), |_| Findings::default());
        assert_eq!(failed.err().as_deref(), Some("no"));
    }

    #[test]
    fn a_grid_answers_in_the_order_of_variants_and_seeds() {
        let run = Run {
            scale: Scale::Quick,
            seed: 5,
            progress: &|_| {},
            is_told: &|_| true,
        };
        let seeds = run.seeds(10);
        assert_eq!(seeds, [5, 6, 7]);
        let results = run.run_grid(&[10, 20], &seeds, |variant, seed| variant * 100 + seed);
        assert_eq!(results, [[1005, 1006, 1007], [2005, 2006, 2007]]);
    }
}
