//! What a step takes in a training loop: two steps are in flight as the trainer has them, and the batch lies where loaders put it.

use std::sync::Arc;
use std::time::Instant;

use enmasse_device::{HostBatch, Program, StepBatch, StepInputs, Ticket};
use enmasse_graph::{Mode, Phase};
use enmasse_tensor::{HostBuffer, HostMemory, RandomStream};
use enmasse_train::TrainConfig;

use super::process_age::process_age;
use crate::failure::Failure;

/// Steps before the timed ones, which touch memory pages and warm up threads and caches.
const WARM_UP: usize = 3;
/// The most steps of a window, over which times are averaged: the host notices the end of a GPU's step late and irregularly.
const MAX_WINDOW: usize = 10;
/// Windows, unless there are fewer steps.
const MIN_WINDOWS: usize = 5;
/// Steps that are timed alone.
const ALONE: usize = 3;

/// Times in milliseconds.
pub struct StepTimes {
    /// From the start of the process to the first step, in the kernel's precision of 10 ms.
    pub start: f64,
    /// The first step, which touches most memory pages for the first time.
    pub first: f64,
    /// A step of each window after the warm-up, sorted.
    pub windows: Vec<f64>,
    /// The median of steps of which each has ended before the next one begins; `None` of a profiled program.
    pub latency: Option<f64>,
}

impl StepTimes {
    /// Times `steps` steps after the warm-up.
    pub fn measure(
        program: &mut dyn Program,
        memory: &dyn HostMemory,
        config: &TrainConfig,
        (batch, classes): (usize, usize),
        steps: usize,
        profiled: bool,
    ) -> Result<Self, Failure> {
        let batch = synthetic(program, memory, config, batch, classes)?;
        let start = process_age().map_or(f64::NAN, |age| age.as_secs_f64() * 1e3);
        let mut run = Steps { program, batch, submitted: 0, began: Instant::now() };
        let first = run.alone()?;
        for _ in 1..WARM_UP {
            run.alone()?;
        }
        let ends = if profiled {
            run.program.start_profile();
            run.ends_alone(steps)?
        } else {
            ends_in_flight(&mut run, steps)?
        };
        let alone = if profiled { 0 } else { ALONE };
        let alone = sorted((0..alone).map(|_| run.alone()).collect::<Result<_, _>>()?);
        let latency = (!alone.is_empty()).then(|| median(&alone));
        Ok(StepTimes { start, first, windows: windows(&ends), latency })
    }

    /// The median over the windows.
    pub fn median(&self) -> f64 {
        median(&self.windows)
    }
}

/// A program, and the batch of all its steps.
struct Steps<'a> {
    program: &'a mut dyn Program,
    batch: Arc<dyn StepBatch>,
    submitted: u64,
    began: Instant,
}

impl Steps<'_> {
    /// Milliseconds since the beginning.
    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e3
    }

    /// When each of some steps had ended with no other in flight, after the beginning of the first one.
    fn ends_alone(&mut self, steps: usize) -> Result<Vec<f64>, Failure> {
        let mut ends = vec![self.now()];
        for _ in 0..steps {
            self.alone()?;
            ends.push(self.now());
        }
        Ok(ends)
    }

    /// What a step takes with no other in flight.
    fn alone(&mut self) -> Result<f64, Failure> {
        let began = self.now();
        let ticket = self.submit()?;
        Ok(self.end(ticket)? - began)
    }
}

impl Timed for Steps<'_> {
    type Ticket = Ticket;

    fn submit(&mut self) -> Result<Ticket, Failure> {
        self.submitted += 1;
        let inputs = StepInputs {
            // Small enough that repeating the same batch never leads to infinities.
            learning_rate: 1e-3,
            optimizer_step: self.submitted,
            ..StepInputs::evaluation(self.batch.clone())
        };
        let (mode, phases) = match self.program.plans().train {
            Some(_) => (Mode::Train, &Phase::ALL[..]),
            None => (Mode::Evaluate, &[Phase::Forward, Phase::Loss][..]),
        };
        self.program.submit(mode, phases, &inputs).map_err(Failure::error)
    }

    fn end(&mut self, ticket: Ticket) -> Result<f64, Failure> {
        self.program.metrics(ticket).map_err(Failure::error)?;
        Ok(self.now())
    }
}

/// Steps that are submitted and end by a clock.
trait Timed {
    /// What identifies a submitted step.
    type Ticket;

    fn submit(&mut self) -> Result<Self::Ticket, Failure>;

    /// When a step had ended.
    fn end(&mut self, ticket: Self::Ticket) -> Result<f64, Failure>;
}

/// When each of some steps had ended while the next one was in flight, after the end of another.
///
/// A CPU runs a step as it is submitted, so what passes between two ends is one step only if both have a successor in flight.
fn ends_in_flight(run: &mut impl Timed, steps: usize) -> Result<Vec<f64>, Failure> {
    let mut in_flight = run.submit()?;
    let mut ends = Vec::new();
    for _ in 0..=steps {
        let next = run.submit()?;
        ends.push(run.end(in_flight)?);
        in_flight = next;
    }
    run.end(in_flight)?;
    Ok(ends)
}

/// The time of a step in each window, sorted, by the ends of steps; the first end is the beginning of the first step.
fn windows(ends: &[f64]) -> Vec<f64> {
    let steps = ends.len() - 1;
    let length = (steps / MIN_WINDOWS).clamp(1, MAX_WINDOW);
    let ends: Vec<f64> = ends.iter().step_by(length).copied().collect();
    sorted(ends.windows(2).map(|pair| (pair[1] - pair[0]) / length as f64).collect())
}

fn sorted(mut times: Vec<f64>) -> Vec<f64> {
    times.sort_unstable_by(f64::total_cmp);
    times
}

/// The median of sorted values; for an even number the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted {
        [] => 0.0,
        _ if sorted.len() % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// A batch whose images lie in the device's own kind of memory, as a loader's do.
struct Synthetic {
    images: HostBuffer,
    others: HostBatch,
}

impl StepBatch for Synthetic {
    fn images(&self) -> &[u8] {
        &self.images
    }

    fn labels(&self) -> &[i32] {
        &self.others.labels
    }

    fn sample_indices(&self) -> &[u64] {
        &self.others.sample_indices
    }

    fn other_labels(&self) -> &[i32] {
        &self.others.other_labels
    }

    fn lambdas(&self) -> &[f32] {
        &self.others.lambdas
    }
}

fn synthetic(
    program: &dyn Program,
    memory: &dyn HostMemory,
    config: &TrainConfig,
    batch: usize,
    classes: usize,
) -> Result<Arc<dyn StepBatch>, Failure> {
    let mut random = RandomStream::new(config.seed, "bench", 0, 0);
    let size = config.image_size(None);
    let mut images = memory.allocate(batch * size * size * 3).map_err(Failure::error)?;
    for bytes in images.chunks_mut(4) {
        bytes.copy_from_slice(&random.next_u32().to_le_bytes()[..bytes.len()]);
    }
    let mixture = program.plans().train.as_ref().and_then(|plan| plan.mixture);
    let mixed = mixture.map_or(0, |_| batch);
    let others = HostBatch {
        labels: (0..batch).map(|sample| (sample % classes) as i32).collect(),
        sample_indices: (0..batch as u64).collect(),
        other_labels: vec![0; mixed],
        lambdas: vec![0.75; mixed],
        ..HostBatch::default()
    };
    Ok(Arc::new(Synthetic { images, others }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |sorted: &[f64], expected: f64| assert_eq!(median(sorted), expected);
        check(&[], 0.0);
        check(&[3.0], 3.0);
        check(&[1.0, 2.0], 1.5);
        check(&[1.0, 2.0, 9.0], 2.0);
    }

    /// A device that runs a step of 2 ms as it is submitted.
    struct OnSubmit(f64);

    impl Timed for OnSubmit {
        type Ticket = ();

        fn submit(&mut self) -> Result<(), Failure> {
            self.0 += 2.0;
            Ok(())
        }

        fn end(&mut self, _: ()) -> Result<f64, Failure> {
            Ok(self.0)
        }
    }

    #[test]
    fn no_step_of_a_cpu_takes_no_time_or_that_of_two() {
        for steps in [1, 2, 5] {
            assert_eq!(windows(&ends_in_flight(&mut OnSubmit(0.0), steps).unwrap()), vec![2.0; steps]);
        }
    }

    #[test]
    fn windows_are_of_at_most_ten_steps() {
        // Steps of 2 ms, of which the third took 5.
        let check = |steps: usize, expected: &[f64]| {
            let ends: Vec<f64> = (0..=steps).map(|step| 2.0 * step as f64 + if step > 2 { 3.0 } else { 0.0 }).collect();
            assert_eq!(windows(&ends), expected, "{steps} steps");
        };
        check(1, &[2.0]);
        check(4, &[2.0, 2.0, 2.0, 5.0]);
        check(10, &[2.0, 2.0, 2.0, 2.0, 3.5]);
        check(12, &[2.0, 2.0, 2.0, 2.0, 2.0, 3.5]);
        check(50, &[2.0, 2.0, 2.0, 2.0, 2.3]);
        check(100, &[[2.0; 9].as_slice(), &[2.3]].concat());
    }
}
