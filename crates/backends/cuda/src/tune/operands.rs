//! Memory on the GPU to run a single convolution on, and the time that a run takes.

use std::sync::PoisonError;
use std::time::Duration;

use enmasse_tensor::{Bf16, RandomStream};

use crate::CudaError;
use crate::cudnn::{self, ConvolutionPlan, Problem};
use crate::driver::{Buffer, Event, Stream};
use crate::gpu::Gpu;

/// Room for the operands of any of some convolutions, a stream, and events around a run.
pub(super) struct Operands {
    /// x, w, y, bias and workspace, as [`sizes`] has them.
    buffers: [Buffer; 5],
    pattern: Vec<u8>,
    before: Event,
    after: Event,
    stream: Stream,
}

/// Bytes of x, w, y, bias and workspace.
fn sizes(plan: &ConvolutionPlan) -> [usize; 5] {
    let Problem { x, w, y, arithmetic, .. } = plan.problem();
    let bytes = |shape: &[usize; 4]| shape.iter().product::<usize>() * arithmetic.activations().size();
    // Gradients of weights may be f32 although activations are narrower.
    let weights = w.iter().product::<usize>() * plan.weights.size();
    [bytes(x), weights, bytes(y), y[3] * size_of::<f32>(), usize::try_from(plan.workspace).unwrap_or(usize::MAX)]
}

impl Operands {
    /// Room for each of these engines. The GPU's context must be current.
    pub fn new<'a>(gpu: &Gpu, plans: impl Iterator<Item = &'a ConvolutionPlan>) -> Result<Self, CudaError> {
        let larger = |a: [usize; 5], b: [usize; 5]| std::array::from_fn(|operand| a[operand].max(b[operand]));
        let largest: [usize; 5] = plans.map(sizes).fold([0; 5], larger);
        let buffer = |operand: usize| Buffer::new(&gpu.context, "operands to measure with", largest[operand]);
        Ok(Operands {
            buffers: [buffer(0)?, buffer(1)?, buffer(2)?, buffer(3)?, buffer(4)?],
            pattern: pattern(),
            before: Event::new(&gpu.context)?,
            after: Event::new(&gpu.context)?,
            stream: Stream::new(&gpu.context)?,
        })
    }

    /// Makes up the operands of a problem: zeros would take less power, and therefore less time.
    pub fn fill(&self, plan: &ConvolutionPlan) -> Result<(), CudaError> {
        for (buffer, bytes) in self.buffers.iter().zip(sizes(plan)).take(4) {
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

    /// Runs an engine once, alone. Its time on the GPU.
    pub fn time(&self, gpu: &Gpu, plan: &ConvolutionPlan) -> Result<Duration, CudaError> {
        let [x, w, y, bias, workspace] = self.buffers.each_ref().map(Buffer::address);
        let mut handle = gpu.engines.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the next user of the handle sets another stream first.
        unsafe { handle.set_stream(self.stream.raw()) }?;
        self.before.record(&self.stream)?;
        // SAFETY: the plan is for this handle's GPU, and the buffers have room for its operands until the stream has been
        // waited for.
        unsafe { plan.execute(&handle, &cudnn::Operands { x, w, y, bias, workspace }) }?;
        self.after.record(&self.stream)?;
        self.stream.wait()?;
        self.after.since(&self.before)
    }
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
