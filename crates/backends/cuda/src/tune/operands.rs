//! Memory on the GPU to run a single convolution on, and the time that a run takes.

use std::sync::PoisonError;
use std::time::Duration;

use enmasse_tensor::{Bf16, DType, RandomStream};

use crate::CudaError;
use crate::cudnn::{self, ConvolutionPlan, Direction, Problem};
use crate::driver::{Buffer, Graph, Stream, Timestamp};
use crate::gpu::Gpu;
use crate::kernels::elementwise;
use crate::program::Launch;
use crate::work::{Memory, Place, Span};

/// Runs of an engine in one graph. The host submits a convolution in 10 to 25 µs, so that a single run of a small one would measure
/// the host.
const RUNS: usize = 8;
/// Operands of consecutive runs begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// Room for the operands of any of some convolutions, a stream, and timestamps around runs.
pub(super) struct Operands {
    /// As [`sizes`] has them, for each of the sets that [`sets`] counts.
    buffers: [Buffer; OPERANDS],
    pattern: Vec<u8>,
    before: Timestamp,
    after: Timestamp,
    stream: Stream,
}

/// x, w, y, bias, the workspace, and gradients of weights that are cast to f32.
const OPERANDS: usize = 6;
const WORKSPACE: usize = 4;

/// Bytes of the operands.
fn sizes(plan: &ConvolutionPlan) -> [usize; OPERANDS] {
    let Problem { x, w, y, arithmetic, .. } = plan.problem();
    let bytes = |shape: &[usize; 4]| shape.iter().product::<usize>() * arithmetic.activations().size();
    // Gradients of weights may be f32 although activations are narrower.
    let weights = w.iter().product::<usize>();
    let cast = if is_cast(plan) { weights * size_of::<f32>() } else { 0 };
    let workspace = usize::try_from(plan.workspace).unwrap_or(usize::MAX);
    [bytes(x), weights * plan.weights.size(), bytes(y), y[3] * size_of::<f32>(), workspace, cast]
}

/// Whether the program casts the result of the engine to f32: a part of its time.
fn is_cast(plan: &ConvolutionPlan) -> bool {
    plan.problem().direction == Direction::BackwardWeights && plan.weights != DType::F32
}

/// Sets of operands that runs take in turn: as many as do not fit into the second-level cache together, which holds nothing of an
/// operand either when a step comes to it.
fn sets(plan: &ConvolutionPlan, gpu: &Gpu) -> usize {
    let [x, w, y, ..] = sizes(plan);
    (gpu.context.properties.l2_cache / (x + w + y) + 1).min(RUNS)
}

/// Bytes of the operands for all runs. The workspace is the same for each.
fn room(plan: &ConvolutionPlan, gpu: &Gpu) -> [usize; OPERANDS] {
    let sizes = sizes(plan);
    let sets = sets(plan, gpu);
    std::array::from_fn(|operand| match operand {
        WORKSPACE => sizes[operand],
        _ => sets * sizes[operand].next_multiple_of(ALIGNMENT),
    })
}

impl Operands {
    /// Room for each of these engines. The GPU's context must be current.
    pub fn new<'a>(gpu: &Gpu, plans: impl Iterator<Item = &'a ConvolutionPlan>) -> Result<Self, CudaError> {
        let larger = |a: [usize; OPERANDS], b: [usize; OPERANDS]| std::array::from_fn(|at| a[at].max(b[at]));
        let largest: [usize; OPERANDS] = plans.map(|plan| room(plan, gpu)).fold([0; OPERANDS], larger);
        let buffer = |operand: usize| Buffer::new(&gpu.context, "operands to measure with", largest[operand]);
        Ok(Operands {
            buffers: [buffer(0)?, buffer(1)?, buffer(2)?, buffer(3)?, buffer(4)?, buffer(5)?],
            pattern: pattern(),
            before: Timestamp::new(&gpu.context)?,
            after: Timestamp::new(&gpu.context)?,
            stream: Stream::new(&gpu.context)?,
        })
    }

    /// Makes up the operands of a problem: zeros would take less power, and therefore less time.
    pub fn fill(&self, gpu: &Gpu, plan: &ConvolutionPlan) -> Result<(), CudaError> {
        for (buffer, bytes) in self.buffers.iter().zip(room(plan, gpu)).take(WORKSPACE) {
            let first = bytes.min(self.pattern.len());
            buffer.write(&self.stream, 0, &self.pattern[..first])?;
            let mut filled = first;
            while filled < bytes {
                let more = filled.min(bytes - filled);
                // SAFETY: both ranges lie in the buffer, which outlives the stream's work, and do not overlap.
                unsafe { self.stream.copy(buffer.address(), buffer.address() + filled as u64, more) }?;
                filled += more;
            }
        }
        self.stream.wait()
    }

    /// Captures the runs of an engine, with the cast of its result where the program needs one.
    pub fn capture(&self, gpu: &Gpu, plan: &ConvolutionPlan) -> Result<Graph, CudaError> {
        let sets: Vec<Set> = (0..sets(plan, gpu)).map(|set| self.set(gpu, plan, set)).collect::<Result<_, _>>()?;
        let mut handle = gpu.engines.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the next user of the handle sets another stream first.
        unsafe { handle.set_stream(self.stream.raw()) }?;
        let run = |set: &Set| {
            // SAFETY: the plan is for this handle's GPU, and the buffers have room for its operands as long as the graph lives,
            // which is dropped before them.
            unsafe {
                plan.execute(&handle, &set.operands)?;
                set.cast.iter().try_for_each(|cast| cast.run(&self.stream))
            }
        };
        // An engine loads its kernels in its first run, which a capture does not allow.
        run(&sets[0])?;
        self.stream.wait()?;
        Graph::capture(&self.stream, |_| sets.iter().cycle().take(RUNS).try_for_each(run))
    }

    /// The operands of a run.
    fn set(&self, gpu: &Gpu, plan: &ConvolutionPlan, set: usize) -> Result<Set, CudaError> {
        let sizes = sizes(plan);
        let at = |operand: usize| {
            let skipped = if operand == WORKSPACE { 0 } else { set * sizes[operand].next_multiple_of(ALIGNMENT) };
            self.buffers[operand].address() + skipped as u64
        };
        // Addresses stand for places.
        let span = |operand: usize| Span {
            place: Place { memory: Memory::Scratch, offset: at(operand) as usize },
            bytes: sizes[operand],
        };
        let cast = is_cast(plan).then(|| {
            let kernel = elementwise::cast(plan.weights, span(1), DType::F32, span(5));
            Launch::new(gpu, &kernel, &|place| place.offset as u64)
        });
        let operands = cudnn::Operands { x: at(0), w: at(1), y: at(2), bias: at(3), workspace: at(WORKSPACE) };
        Ok(Set { operands, cast: cast.transpose()? })
    }

    /// The time on the GPU of one of the captured runs, on average.
    pub fn time(&self, runs: &Graph) -> Result<Duration, CudaError> {
        self.before.record(&self.stream)?;
        runs.launch(&self.stream)?;
        self.after.record(&self.stream)?;
        self.stream.wait()?;
        Ok(self.after.since(&self.before)? / RUNS as u32)
    }
}

/// Operands of one run.
struct Set {
    operands: cudnn::Operands,
    cast: Option<Launch>,
}

/// Numbers between -1 and 1, in f32 as in 16 bits: a pair of equal bf16 numbers reads as an f32 of nearly their value.
fn pattern() -> Vec<u8> {
    // A prime, so that rows of a feature map do not repeat each other.
    const PERIOD: usize = 4099;
    let mut random = RandomStream::new(0, "tune", 0, 0);
    let pairs = (0..PERIOD).flat_map(|_| {
        let bits = Bf16::from_f32(random.uniform(-1.0, 1.0) as f32).to_bits().to_ne_bytes();
        [bits, bits].concat()
    });
    pairs.collect()
}
