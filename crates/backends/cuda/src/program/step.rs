//! One of the steps that may be in flight: its batch, its results on the host, and where the GPU is with it.

use std::sync::Arc;

use enmasse_device::{DeviceError, ShardSchedule, StepBatch, StepInputs, Ticket};
use enmasse_graph::{Mode, Plan, Plans, ValueId};
use enmasse_tensor::HostBuffer;

use crate::CudaError;
use crate::driver::{Buffer, Event, PinnedMemory, Stream};
use crate::gpu::Gpu;
use crate::kernels::step::FAILURE_BYTES;
use crate::lower::Places;
use crate::sequence::Sequence;

/// A step in flight, or the place for one.
pub(super) struct Step {
    /// Indices and labels of the batch, what mixtures have besides, values to predict, and the weight of the loss for each shard, for
    /// the GPU to copy.
    /// The images are copied from the batch itself.
    staging: HostBuffer,
    /// A `Failure`, then numbers.
    results: HostBuffer,
    copied: Event,
    done: Event,
    running: Option<Running>,
}

struct Running {
    ticket: Ticket,
    mode: Mode,
    /// Steps begun until this one, inclusive.
    number: u64,
    epoch: u64,
    /// Whether the phases that measure it have been submitted.
    measured: bool,
    /// Held until the GPU has copied it.
    batch: Option<Arc<dyn StepBatch>>,
}

/// How a step ended.
pub(super) struct Ended {
    pub ticket: Ticket,
    pub mode: Mode,
    /// The first shard whose loss was not finite, and that loss.
    pub failure: Option<(usize, f64)>,
}

/// Bytes of a sample's index and label.
const OF_A_SAMPLE: usize = size_of::<u64>() + size_of::<i32>();

/// Bytes of a mixture's other label and share.
const OF_A_MIXTURE: usize = size_of::<i32>() + size_of::<f32>();

/// Writes numbers to the start of page-locked memory. Returns them there, and the rest of the memory.
fn stage<'a, T: Copy, const BYTES: usize>(
    memory: &'a mut [u8],
    numbers: &[T],
    bytes: fn(T) -> [u8; BYTES],
) -> (&'a [u8], &'a mut [u8]) {
    let (staged, rest) = memory.split_at_mut(numbers.len() * BYTES);
    staged.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, &number)| *to = bytes(number));
    (staged, rest)
}

impl Step {
    pub fn new(gpu: &Gpu, plans: &Plans, schedule: &ShardSchedule, results: usize) -> Result<Self, CudaError> {
        let memory = PinnedMemory { context: gpu.context.clone() };
        let allocate = |bytes: usize| memory.allocate_for("the inputs and results of steps", bytes);
        let shards = schedule.shards.len();
        let samples = plans.evaluate.batch * shards;
        let mixed = plans.train.as_ref().is_some_and(|plan| plan.mixture.is_some());
        let values = plans.evaluate.targets.map_or(0, |targets| plans.evaluate.shape(targets).last());
        let of_a_sample = OF_A_SAMPLE + if mixed { OF_A_MIXTURE } else { 0 } + values * size_of::<f32>();
        Ok(Step {
            staging: allocate(samples * of_a_sample + shards * size_of::<f32>())?,
            results: allocate(results)?,
            copied: Event::new(&gpu.context)?,
            done: Event::new(&gpu.context)?,
            running: None,
        })
    }

    /// Where the GPU writes the results.
    pub fn results(&self) -> *mut u8 {
        self.results.as_ptr().cast_mut()
    }

    /// Passed once the GPU has the batch.
    pub fn copied(&self) -> &Event {
        &self.copied
    }

    /// The number of the step, if it is that of a ticket.
    pub fn number_of(&self, ticket: Ticket) -> Option<u64> {
        self.running.as_ref().filter(|running| running.ticket == ticket).map(|running| running.number)
    }

    /// The epoch that the step began with.
    pub fn epoch(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.epoch)
    }

    /// Begins a step in this place, whose earlier step has ended: copies a batch to `input`. The number is that of steps begun.
    pub fn begin(
        &mut self,
        (ticket, number): (Ticket, u64),
        plan: &Plan,
        places: &Places,
        inputs: &StepInputs,
        input: &Buffer,
        copies: &Stream,
    ) -> Result<(), CudaError> {
        let batch = inputs.batch.clone();
        let mode = plan.mode;
        let local = places.schedule.shards.len();
        let (indices, rest) = stage(&mut self.staging, batch.sample_indices(), u64::to_ne_bytes);
        let (labels, rest) = stage(rest, batch.labels(), i32::to_ne_bytes);
        let (others, rest) = stage(rest, batch.other_labels(), i32::to_ne_bytes);
        let (lambdas, rest) = stage(rest, batch.lambdas(), f32::to_ne_bytes);
        let (targets, rest) = stage(rest, batch.targets(), f32::to_ne_bytes);
        let weights = &mut rest[..local * size_of::<f32>()];
        weights.as_chunks_mut().0.fill(batch.loss_weight().to_ne_bytes());
        self.results[..FAILURE_BYTES].fill(0);
        let sources = [
            (Some(plan.images), batch.images()),
            (Some(plan.sample_indices), indices),
            (Some(plan.labels), labels),
            (plan.mixture.map(|mixture| mixture.other_labels), others),
            (plan.mixture.map(|mixture| mixture.lambdas), lambdas),
            (plan.targets, targets),
            (plan.loss_weight, weights),
        ];
        for (value, source) in sources.into_iter().filter_map(|(value, source)| Some((value?, source))) {
            let bytes = source.len() / local.max(1);
            for (shard, piece) in source.chunks_exact(bytes.max(1)).enumerate() {
                let offset = places.of(plan, value, shard).offset;
                // SAFETY: the place lies in the arena of inputs. The batch and the staging memory stay as they are until the
                // step has ended.
                unsafe { copies.write(piece.as_ptr(), input.address() + offset as u64, bytes) }?;
            }
        }
        self.copied.record(copies)?;
        self.running = Some(Running { ticket, mode, number, epoch: inputs.epoch, measured: false, batch: Some(batch) });
        Ok(())
    }

    /// Waits until the GPU has copied the batch, and lets go of it.
    pub fn release_batch(&mut self) -> Result<(), CudaError> {
        if let Some(running) = &mut self.running {
            self.copied.wait()?;
            running.batch = None;
        }
        Ok(())
    }

    /// Phases were put into the stream, those that measure the step among them if `measured`.
    pub fn submitted(&mut self, stream: &Stream, measured: bool) -> Result<(), CudaError> {
        if let Some(running) = &mut self.running {
            running.measured |= measured;
        }
        self.done.record(stream)
    }

    /// Waits for what was submitted of the step. `None` if that does not measure it, or if there is none.
    pub fn wait(&mut self) -> Result<Option<Ended>, DeviceError> {
        self.copied.wait()?;
        self.done.wait()?;
        let Some(running) = self.running.as_ref().filter(|running| running.measured) else { return Ok(None) };
        let word = |at: usize| self.results.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; 4]);
        let (shard, loss) = (u32::from_ne_bytes(word(0)), f32::from_ne_bytes(word(4)));
        let failure = (shard > 0).then(|| (shard as usize - 1, f64::from(loss)));
        Ok(Some(Ended { ticket: running.ticket, mode: running.mode, failure }))
    }

    /// Element `at` of a value among the results of a step that has ended.
    pub fn number(&self, sequence: &Sequence, value: ValueId, local: usize, at: usize) -> f64 {
        let number = sequence.numbers.iter().find(|number| number.value == value && number.local == local);
        let start = number.map_or(usize::MAX, |number| number.at.saturating_add(at * size_of::<f32>()));
        let bytes = self.results.get(start..start.saturating_add(4)).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(f64::NAN, |bytes| f32::from_ne_bytes(bytes).into())
    }
}
