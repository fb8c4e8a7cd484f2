//! The two traits: a device makes programs of plans, and a program runs them.

use std::sync::Arc;
use std::time::Duration;

use enmasse_comm::Group;
use enmasse_graph::{Choices, FilterOrder, Graph, Mode, Phase, Plan, Plans, StateTensor, Target, ValueId};
use enmasse_tensor::{HostMemory, SystemMemory};

use crate::{Batch, DeviceError, StepMetrics, Ticket};

/// Inputs of one step.
#[derive(Clone)]
pub struct StepInputs {
    /// The samples of the shards that the program hosts. The program holds them for as long as it reads them.
    pub batch: Arc<dyn Batch>,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// Number of this update since the optimiser's state was zero, from 1.
    pub optimizer_step: u64,
    /// Whether somebody asked this rank to stop: [`StepMetrics::stop`] tells all of them, at the same step.
    pub stop: bool,
    /// Whether somebody asked this rank for a checkpoint: [`StepMetrics::save`] tells all of them, at the same step.
    pub save: bool,
}

impl StepInputs {
    /// The inputs of an evaluation.
    pub fn evaluation(batch: Arc<dyn Batch>) -> Self {
        StepInputs { batch, epoch: 0, learning_rate: 0.0, optimizer_step: 1, stop: false, save: false }
    }
}

/// Bytes that a program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The arenas of the plans: each once, but for what [`Memory::shards`] counts.
    pub arenas: usize,
    /// Arenas of gradients, and where all shards run at once of activations, beyond the first of each: what it costs to host
    /// several shards.
    pub shards: usize,
    /// What the device adds: packed weights, per-thread scratch.
    pub scratch: usize,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> usize {
        self.arenas + self.shards + self.scratch
    }
}

/// Makes programs of plans.
pub trait Device: Send + Sync {
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

    /// The floating-point operations per second, in thousand millions, that matrix products reach at most with maps of this
    /// plan's precision; `None` where nobody knows.
    fn peak_gflops(&self, _plan: &Plan) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// Where batches are made that this device reads: page-locked memory for one that copies them by itself.
    fn host_memory(&self) -> Arc<dyn HostMemory> {
        Arc::new(SystemMemory)
    }

    /// Allocates everything the plans need, and sets parameters to zero and buffers to their initial values. `group` joins
    /// the ranks; the program hosts this rank's part of the plans' shards ([`crate::Hosting`]).
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
/// parameter, `gradient_norm` where they are clipped or it is a metric, and `logits`, `loss`, `correct` of the step last submitted: logits of the hosted shards one after another, the
/// others summed over them. Elements come in PyTorch's order, but for [`Program::fill_state`] and [`Program::read_state`], which
/// go through a whole model where it lies. Everything that reads or sets a tensor waits for what is under way.
pub trait Program: Send {
    /// The plans it runs.
    fn plans(&self) -> &Plans;

    /// What it holds.
    fn memory(&self) -> Memory;

    /// Sets a state tensor.
    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError>;

    /// Reads a tensor.
    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError>;

    /// Sets state tensors to f32 values in stored order ([`enmasse_graph::Layout`]). Pieces of them are given to `fill` on
    /// several threads at once; it must set every element of each.
    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        let chosen: Vec<StateTensor> = self.plans().state.iter().filter(|tensor| which(tensor)).cloned().collect();
        for tensor in chosen {
            let mut stored = vec![0.0; tensor.shape.elements()];
            fill(&tensor, 0, &mut stored);
            let values = crate::to_torch(&stored, &tensor.shape, tensor.layout);
            self.load(&tensor.name, &values)?;
        }
        Ok(())
    }

    /// Gives state tensors to `read` as f32 in stored order, each once and whole, several of them at once on as many
    /// threads. All ranks of a group read the same tensors at the same step: a device may have spread them over ranks.
    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        let chosen = self.plans().state.iter().enumerate().filter(|(_, tensor)| which(tensor));
        let chosen: Vec<(usize, StateTensor)> = chosen.map(|(number, tensor)| (number, tensor.clone())).collect();
        for (number, tensor) in chosen {
            let values = self.store(&tensor.name)?;
            let mut stored = vec![0.0; values.len()];
            crate::from_torch(&values, &tensor.shape, tensor.layout, |to, value| stored[to] = value as f32);
            read(number, &tensor, &stored);
        }
        Ok(())
    }

    /// Runs the given phases of a step, in order. May return before they are done: errors of the step itself come from
    /// [`Program::metrics`]. Phases after [`Phase::Forward`] go on with the batch of that forward. A program that hosts several
    /// shards may ask for forward to backward of a training step in one call.
    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError>;

    /// The metrics of the step last submitted or the one before, waiting for it. What the loss of a step that is not finite
    /// does to later ones: see [`crate::Ledger`].
    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError>;

    /// Goes on in another group, or alone: state stays where it is, and the program hosts the part of the shards of `plans` that
    /// falls to its new rank. Steps that are under way end first; a group that failed cannot finish its sums, which is no
    /// error here, since the step they belong to is begun anew. The plans must hold the same state as before.
    fn rejoin(&mut self, plans: Plans, group: Option<Group>) -> Result<(), DeviceError>;

    /// Begins to measure the time of every instruction, which takes some of it.
    fn start_profile(&mut self) {}

    /// How long each instruction of the mode's plan has run since [`Program::start_profile`]. Empty where nothing was
    /// measured.
    fn profile(&self, _mode: Mode) -> Vec<Duration> {
        Vec::new()
    }
}
