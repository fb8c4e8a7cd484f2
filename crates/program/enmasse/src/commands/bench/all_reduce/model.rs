//! The parameters of [`enmasse_comm::CostModel`] as measured on this machine.

use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::{Algorithm, Cause, Connection, CostModel, Group};
use serde::{Deserialize, Serialize};

/// Bytes of what all ranks gather, and add up, to measure β and γ: more than the caches of a core.
const BYTES: usize = 4 << 20;
/// Calls of a measurement, of which the median counts.
const CALLS: usize = 9;
/// The model's parameters, in seconds, and seconds a byte.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Model {
    /// Of a round.
    pub alpha: f64,
    /// Of a message on the processors; not known of two ranks, where each has one message a round.
    pub overhead: f64,
    /// Of a byte that is copied.
    pub beta: f64,
    /// Of a byte that is added.
    pub gamma: f64,
}

impl Model {
    /// Measured by all ranks at once, in operations other than those that it predicts: rounds of a cache line, barriers, copies,
    /// and additions in a rank's own memory. Equal on all ranks.
    pub fn measure(group: &Group) -> Result<Self, Arc<Cause>> {
        let ranks = group.world_size();
        let mut little = vec![0f32; 16 * ranks];
        let round = median(|| group.all_reduce_by(&mut little, Algorithm::Ring))? / (2 * (ranks - 1)) as f64;
        // One round, in which every rank has a message for each other one.
        let barrier = median(|| group.barrier())?;
        let overhead = match ranks {
            2 => 0.0,
            _ => ((barrier - round) / (ranks - 2) as f64).clamp(0.0, round),
        };
        let alpha = round - overhead;
        let own = vec![0f32; BYTES / size_of::<f32>()];
        let mut all = vec![0f32; ranks * BYTES / size_of::<f32>()];
        let copies = median(|| group.all_gather(&own, &mut all))?;
        let beta = (copies - round).max(0.0) / ((ranks - 1) * BYTES) as f64;
        let mut sum = vec![0f32; own.len()];
        group.barrier()?;
        let additions = median(|| {
            sum.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            std::hint::black_box(&mut sum);
            Ok(())
        })?;
        let mut parameters = [alpha, overhead, beta, additions / BYTES as f64];
        group.broadcast(&mut parameters, 0)?;
        let [alpha, overhead, beta, gamma] = parameters;
        Ok(Model { alpha, overhead, beta, gamma })
    }

    /// The seconds of a sum by these ranks, which are all on one node or each on its own.
    pub fn predict(&self, group: &Group, algorithm: Algorithm, bytes: usize) -> f64 {
        let connection = Connection { latency: self.alpha, overhead: self.overhead, per_byte: self.beta };
        let model = CostModel { within: connection, between: connection, per_byte_added: self.gamma };
        model.seconds(&group.all_reduce_work(algorithm, bytes))
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

    #[test]
    fn parameters_are_measured_and_equal() {
        let threads = Group::threads(3).unwrap().into_iter().map(|group| {
            std::thread::spawn(move || {
                let model = Model::measure(&group).unwrap();
                (model, [4096, 1 << 30].map(|bytes| model.predict(&group, Algorithm::Ring, bytes)))
            })
        });
        let found: Vec<_> = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
        let (model, [short, long]) = found[0];
        assert!(found.iter().all(|other| *other == found[0]) && model.gamma > 0.0, "{found:?}");
        assert!(0.0 < short && short < long, "{found:?}");
    }
}
