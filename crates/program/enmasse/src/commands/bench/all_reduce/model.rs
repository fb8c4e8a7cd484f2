//! The textbook's model of a sum over ranks: so many rounds of one latency (α), bytes that a rank receives (β each), and bytes
//! that it adds up (γ each).

use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::{Algorithm, Cause, Group};
use serde::{Deserialize, Serialize};

/// Bytes of what all ranks gather, and add up, to measure β and γ: more than the caches of a core.
const BYTES: usize = 4 << 20;
/// Calls of a measurement, of which the median counts.
const CALLS: usize = 9;
/// Up to this many bytes the tree takes one exchange instead of two.
const SHORT: usize = 8 << 10;

/// What an algorithm does on the rank that does most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Messages, one after another.
    pub rounds: f64,
    /// Bytes received.
    pub bytes: f64,
    /// Bytes added to others.
    pub added: f64,
}

impl Work {
    /// Of a sum of `bytes` by ranks on nodes of these sizes.
    pub fn of(algorithm: Algorithm, nodes: &[usize], bytes: usize) -> Self {
        let (ranks, size) = (nodes.iter().sum::<usize>() as f64, bytes as f64);
        let share = (ranks - 1.0) / ranks;
        let halves = Work { rounds: 2.0 * (ranks - 1.0), bytes: 2.0 * share * size, added: share * size };
        match algorithm {
            // The messages of an exchange leave together.
            Algorithm::Tree if bytes <= SHORT => {
                Work { rounds: 1.0, bytes: (ranks - 1.0) * size, added: (ranks - 1.0) * size }
            }
            Algorithm::Tree => Work { rounds: 2.0, ..halves },
            Algorithm::HalvingDoubling => {
                let core = 2f64.powi((ranks as u32).ilog2() as i32);
                let (share, fold) = ((core - 1.0) / core, f64::from(u8::from(ranks > core)));
                Work {
                    rounds: 2.0 * core.log2() + 2.0 * fold,
                    bytes: 2.0 * share * size + 2.0 * fold * size,
                    added: share * size + fold * size,
                }
            }
            Algorithm::Hierarchical => {
                let extreme = |of: fn(usize, usize) -> usize| nodes.iter().copied().reduce(of).unwrap_or(1) as f64;
                let (most, least, nodes) = (extreme(usize::max), extreme(usize::min), nodes.len() as f64);
                let (piece, between) = (size / least, (nodes - 1.0) / nodes);
                Work {
                    rounds: 2.0 * (most - 1.0) + 2.0 * (nodes - 1.0),
                    bytes: 2.0 * (most - 1.0) * piece + 2.0 * between * piece,
                    added: (most - 1.0) * piece + between * piece,
                }
            }
            _ => halves,
        }
    }
}

/// The model's parameters, in seconds, and seconds a byte.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Model {
    pub alpha: f64,
    pub beta: f64,
    pub gamma: f64,
}

impl Model {
    /// Measured by all ranks at once, in operations other than those that it predicts: rounds of a cache line, copies, and
    /// additions in a rank's own memory. Equal on all ranks.
    pub fn measure(group: &Group) -> Result<Self, Arc<Cause>> {
        let ranks = group.world_size();
        let mut little = vec![0f32; 16 * ranks];
        let alpha = median(|| group.all_reduce_by(&mut little, Algorithm::Ring))? / (2 * (ranks - 1)) as f64;
        let (own, mut all) = (vec![0f32; BYTES / size_of::<f32>()], vec![0f32; ranks * BYTES / size_of::<f32>()]);
        let copies = median(|| group.all_gather(&own, &mut all))?;
        let beta = (copies - alpha).max(0.0) / ((ranks - 1) * BYTES) as f64;
        let mut sum = vec![0f32; own.len()];
        group.barrier()?;
        let additions = median(|| {
            sum.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            std::hint::black_box(&mut sum);
            Ok(())
        })?;
        let mut parameters = [alpha, beta, additions / BYTES as f64];
        group.broadcast(&mut parameters, 0)?;
        let [alpha, beta, gamma] = parameters;
        Ok(Model { alpha, beta, gamma })
    }

    /// The seconds of a sum.
    pub fn predict(&self, algorithm: Algorithm, nodes: &[usize], bytes: usize) -> f64 {
        let work = Work::of(algorithm, nodes, bytes);
        work.rounds * self.alpha + work.bytes * self.beta + work.added * self.gamma
    }
}

/// The median seconds of a call, after one that is not counted.
fn median(mut call: impl FnMut() -> Result<(), Arc<Cause>>) -> Result<f64, Arc<Cause>> {
    call()?;
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[CALLS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model's bytes are those that groups count.
    #[test]
    fn bytes_are_those_that_ranks_receive() {
        for ranks in [2, 3, 4, 5] {
            // Pieces of whole cache lines, also in halves of halves.
            let bytes = 3 * 4 * 5 * 64 * 4;
            let threads = Group::threads(ranks).unwrap().into_iter().map(|group| {
                std::thread::spawn(move || {
                    Algorithm::ALL.map(|algorithm| {
                        let before = group.traffic();
                        group.all_reduce_by(&mut vec![1f32; bytes / 4], algorithm).unwrap();
                        (group.traffic() - before).received as f64
                    })
                })
            });
            let found: Vec<_> = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
            for (place, algorithm) in Algorithm::ALL.into_iter().enumerate() {
                let work = Work::of(algorithm, &[ranks], bytes);
                // What a rank beyond the power of two gives and gets, no other rank receives both of.
                let most = found.iter().map(|found| found[place]).fold(0.0, f64::max);
                let beside =
                    if algorithm == Algorithm::HalvingDoubling && !ranks.is_power_of_two() { bytes } else { 0 };
                assert_eq!(most + beside as f64, work.bytes, "{algorithm} over {ranks}");
            }
        }
    }

    #[test]
    fn work_by_topology() {
        let check = |algorithm: Algorithm, nodes: &[usize], expected: [f64; 3]| {
            let Work { rounds, bytes, added } = Work::of(algorithm, nodes, 24000);
            assert_eq!([rounds, bytes, added], expected, "{algorithm} {nodes:?}");
        };
        check(Algorithm::Tree, &[4], [2.0, 36000.0, 18000.0]);
        check(Algorithm::Ring, &[2, 2], [6.0, 36000.0, 18000.0]);
        check(Algorithm::HalvingDoubling, &[4], [4.0, 36000.0, 18000.0]);
        check(Algorithm::HalvingDoubling, &[5], [6.0, 84000.0, 42000.0]);
        check(Algorithm::Hierarchical, &[4], [6.0, 36000.0, 18000.0]);
        check(Algorithm::Hierarchical, &[2, 2], [4.0, 36000.0, 18000.0]);
        check(Algorithm::Hierarchical, &[2, 1], [4.0, 72000.0, 36000.0]);
        assert_eq!(Work::of(Algorithm::Tree, &[3], 4096), Work { rounds: 1.0, bytes: 8192.0, added: 8192.0 });
    }

    #[test]
    fn parameters_are_measured_and_equal() {
        let threads =
            Group::threads(3).unwrap().into_iter().map(|group| std::thread::spawn(move || Model::measure(&group)));
        let found: Vec<_> =
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert!(
            found.iter().all(|model| *model == found[0]) && found[0].alpha > 0.0 && found[0].gamma > 0.0,
            "{found:?}"
        );
        let (short, long) =
            (found[0].predict(Algorithm::Ring, &[3], 4096), found[0].predict(Algorithm::Ring, &[3], 1 << 30));
        assert!(0.0 < short && short < long, "{found:?}");
    }
}
