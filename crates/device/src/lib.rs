//! What a device is: it takes whole plans and gives back a program, which owns its memory.
//!
//! The trait is small on purpose. A program loads and stores named tensors, runs the instructions of a step, and tells the
//! metrics of an earlier step; everything else (which kernels, which threads, what is packed how) is the device's own affair.

use std::sync::Arc;
use std::time::Duration;

use enmasse_comm::{Cause, Group};
use enmasse_graph::{Choices, FilterOrder, Graph, Mode, Phase, Plan, Plans, StateTensor, Target, ValueId};
use thiserror::Error;

/// Why a device could not do what it was asked.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The device's memory does not suffice.
    #[error("no memory for {bytes} bytes of {arena}: use a smaller --batch or --size")]
    Memory {
        /// What was being allocated.
        arena: String,
        /// How much.
        bytes: usize,
    },
    /// No tensor of that name.
    #[error("the program holds no tensor named {0}")]
    Name(String),
    /// A tensor of another size.
    #[error("tensor {name} has {expected} elements, got {found}")]
    Size {
        /// The tensor.
        name: String,
        /// Elements it has.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The batch does not fit the plan.
    #[error("batch does not fit the plan: {0}")]
    Batch(String),
    /// The plan asks for something this device cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// A shard's loss is infinite or not a number; parameters are as before the step.
    #[error("non-finite loss {loss} on shard {shard}")]
    NonFinite {
        /// The first offending shard.
        shard: usize,
        /// Its loss.
        loss: f64,
    },
    /// The group failed.
    #[error(transparent)]
    Cause(#[from] Arc<Cause>),
}

/// What one step is given. `images` is `[batch, height, width, 3]`; a label below 0 marks no sample.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// Pictures, as the loader decoded them.
    pub images: &'a [u8],
    /// Class labels.
    pub labels: &'a [i32],
    /// Positions in the data set, which key the random numbers of dropout.
    pub sample_indices: &'a [u64],
    /// Epoch, from 0.
    pub epoch: u64,
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// Number of this update since the optimiser's state was zero, from 1.
    pub optimizer_step: u64,
    /// Whether somebody asked this rank to stop: [`StepMetrics::stop`] tells all of them, at the same step.
    pub stop: bool,
}

/// Names a submitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What a step measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMetrics {
    /// Training: mean loss over the global batch. Evaluation: sum of the losses of this program's samples.
    pub loss: f64,
    /// Training: hits in the global batch. Evaluation: hits among this program's samples.
    pub correct: u64,
    /// Training: whether any rank was asked to stop ([`StepInputs::stop`]). It travels with the last bucket, and costs nothing.
    pub stop: bool,
}

/// Bytes a program will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The arenas of the plans.
    pub arenas: usize,
    /// What the device adds: packed weights, per-thread scratch.
    pub scratch: usize,
}

/// Makes programs of plans.
pub trait Device {
    /// The device's name with what it chose, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// The instruction-set levels that it can compute at, weakest first; the last one is what it computes at, and has
    /// a say in how results are rounded. Empty where there is one way only.
    fn levels(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// How it keeps the weights of convolutions.
    fn filters(&self) -> FilterOrder {
        FilterOrder::default()
    }

    /// Rewrites a forward graph before its gradients and memory are planned, such as operations that it computes as one.
    /// The values in `keep` must stay.
    fn fuse(&self, graph: &mut Graph, keep: &[ValueId]) {
        enmasse_graph::fuse(graph, keep);
    }

    /// What to compile models for, so that this device can run them.
    fn target(&self) -> Target<'_> {
        Target { filters: self.filters(), fuse: Box::new(|graph, keep| self.fuse(graph, keep)) }
    }

    /// What a program of these plans will hold.
    fn memory(&self, plans: &Plans) -> Memory;

    /// By which algorithm each instruction of a plan would be carried out, in the device's own names; "" where there is no
    /// choice. An error where the plan chooses one that cannot, or that this device does not have.
    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        Ok(vec![String::new(); plan.instructions.len()])
    }

    /// Measures by which algorithm each operation of the plans is computed fastest, where there is a choice and `known` has
    /// none. [`Plans::choose`] makes what is found, and known, a part of the plans, which [`Device::compile`] obeys.
    fn tune(&self, _plans: &Plans, _known: &Choices) -> Result<Choices, DeviceError> {
        Ok(Choices::default())
    }

    /// Allocates everything the plans need, and sets parameters to zero and buffers to their initial values. `group` joins
    /// the ranks when the plan has more shards than this program hosts.
    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError>;
}

/// Chooses state tensors.
pub type Which<'a> = dyn Fn(&StateTensor) -> bool + 'a;

/// Sets the elements of a state tensor from a stored index on.
pub type Fill<'a> = dyn Fn(&StateTensor, usize, &mut [f32]) + Sync + 'a;

/// Looks at a state tensor, whose number in [`Plans::state`] comes first.
pub type Read<'a> = dyn Fn(usize, &StateTensor, &[f32]) + Sync + 'a;

/// A plan bound to memory.
///
/// Tensor names are those of [`enmasse_graph::StateTensor`], and beside them `gradient.NAME` for the gradient of a trainable
/// parameter, and `logits`, `loss`, `correct` of the step last submitted. Elements come in PyTorch's order, but for
/// [`Program::fill_state`] and [`Program::read_state`], which go through a whole model where it lies.
pub trait Program: Send {
    /// The plans it runs.
    fn plans(&self) -> &Plans;

    /// Sets a state tensor.
    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError>;

    /// Reads a tensor; waits for steps that are still running.
    fn store(&self, name: &str) -> Result<Vec<f64>, DeviceError>;

    /// Sets state tensors to f32 values in stored order ([`enmasse_graph::Layout`]). Pieces of them are given to `fill` on
    /// several threads at once; it must set every element of each.
    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        let chosen: Vec<StateTensor> = self.plans().state.iter().filter(|tensor| which(tensor)).cloned().collect();
        for tensor in chosen {
            let mut stored = vec![0.0; tensor.shape.elements()];
            fill(&tensor, 0, &mut stored);
            let mut values = vec![0.0; stored.len()];
            tensor.layout.for_each(&tensor.shape, |from, to| values[to] = f64::from(stored[from]));
            self.load(&tensor.name, &values)?;
        }
        Ok(())
    }

    /// Gives state tensors to `read` as f32 in stored order, each once and whole, several of them at once on as many
    /// threads; waits for steps that are still running.
    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        for (number, tensor) in self.plans().state.iter().enumerate().filter(|(_, tensor)| which(tensor)) {
            let values = self.store(&tensor.name)?;
            let mut stored = vec![0.0; values.len()];
            tensor.layout.for_each(&tensor.shape, |to, from| stored[to] = values[from] as f32);
            read(number, tensor, &stored);
        }
        Ok(())
    }

    /// Runs the given phases of a step, in order. May return before they are done: errors of the step itself come from
    /// [`Program::metrics`]. Phases after [`Phase::Forward`] go on with the batch of that forward.
    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError>;

    /// The metrics of the step last submitted or the one before, waiting for it.
    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError>;

    /// Begins to measure the time of every instruction, which takes some of it.
    fn start_profile(&mut self) {}

    /// How long each instruction of the mode's plan has run since [`Program::start_profile`]. Empty where nothing was
    /// measured.
    fn profile(&self, _mode: Mode) -> Vec<Duration> {
        Vec::new()
    }
}
