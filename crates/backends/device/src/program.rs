//! The two traits: a device compiles plans to programs, and a program runs them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use enmasse_comm::Group;
use enmasse_graph::{Choices, FilterOrder, Graph, Mode, Phase, Plan, Plans, StateTensor, Target, ValueId};
use enmasse_tensor::{HostMemory, SystemMemory};

use crate::{DeviceError, Hosting, Roofline, StepBatch, StepMetrics, Ticket};

/// Inputs of one step.
#[derive(Clone)]
pub struct StepInputs {
    /// The samples of the shards that the program hosts. The program holds them as long as it reads them.
    pub batch: Arc<dyn StepBatch>,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// Number of this step since the optimiser's state was zero, from 1. The plan itself leaves out steps that loss scaling has
    /// skipped.
    pub optimizer_step: u64,
    /// The alpha of a step in which the weights and the slow weights of Lookahead meet: the share of the distance by which the slow
    /// ones move. `None` in other steps, and without Lookahead.
    pub lookahead: Option<f32>,
    /// Whether this rank was asked to stop. [`StepMetrics::stop`] tells all ranks at the same step.
    pub stop: bool,
    /// Whether this rank was asked for a checkpoint. [`StepMetrics::save`] tells all ranks at the same step.
    pub save: bool,
}

impl StepInputs {
    /// Inputs of an evaluation step.
    pub fn evaluation(batch: Arc<dyn StepBatch>) -> Self {
        StepInputs { batch, epoch: 0, learning_rate: 0.0, optimizer_step: 1, lookahead: None, stop: false, save: false }
    }
}

/// The memory of a program, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What outlives a step: parameters, running statistics, the optimiser's state, averages.
    pub state: usize,
    /// Gradients. A program that hosts several shards may need several arenas of them.
    pub gradients: usize,
    /// Values of a step; of every local shard if all shards run at once.
    pub activations: usize,
    /// Additional memory of the device: packed weights, per-thread scratch.
    pub scratch: usize,
    /// An allowance for what libraries take on the device by themselves, such as NCCL for its connections.
    pub library: usize,
    /// Memory of the process that a device with memory of its own takes in addition, such as to exchange gradients. No part of the
    /// total.
    pub staging: usize,
}

impl Memory {
    /// The sum of all parts on the device.
    pub fn total(&self) -> usize {
        self.state + self.gradients + self.activations + self.scratch + self.library
    }
}

/// When an instruction of the plan for training ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionSpan {
    /// Its place in [`Plan::instructions`].
    pub instruction: usize,
    /// The place of its shard among those that the program hosts; 0 for one that all shards share.
    pub shard: usize,
    /// When it began.
    pub began: Instant,
    /// When it had ended.
    pub ended: Instant,
}

/// What [`Device::tune`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned {
    /// The fastest algorithms.
    pub choices: Choices,
    /// How many of them the device knew from an earlier process.
    pub reused: usize,
    /// What is wrong with the device's record of earlier processes.
    pub warning: Option<String>,
}

/// What a device with memory of its own says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceUsage {
    /// Bytes of its memory that all programs on it hold.
    pub bytes: u64,
    /// The share of the last moments, at most a second, in which it computed anything: 0 to 1; `None` if it is not known.
    pub utilization: Option<f64>,
}

/// Compiles plans to programs.
pub trait Device: Send + Sync {
    /// The device's name with its settings, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// The physical device, under a name that no other device has, if several ranks should not share it by mistake.
    fn unit(&self) -> Option<String> {
        None
    }

    /// Its address on the PCI bus, such as `0000:1b:00.0`, if it lies there.
    fn bus_address(&self) -> Option<String> {
        None
    }

    /// What makes it slower than it could be, now or since it was opened: a sentence each, without a name of the rank.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Agrees with the devices of the group's other ranks on how their programs exchange numbers: lines for people, the same on all
    /// ranks, which all call this.
    ///
    /// # Errors
    /// The group fails, or the device was opened for sums ([`Summation`](crate::Summation)) that these ranks cannot
    /// make.
    fn ways(&self, group: &Group) -> Result<Vec<String>, DeviceError> {
        Ok(group.ways().to_vec())
    }

    /// Whether the group carries out its programs' sums over ranks, by [`Group::all_reduce_algorithm`]; after [`Device::ways`].
    fn sums_by_group(&self) -> bool {
        true
    }

    /// The instruction-set levels that it supports, weakest first. It computes at the last one, which influences the rounding
    /// of results. Empty if the device has no levels.
    fn levels(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The order in which it stores the weights of convolutions.
    fn filters(&self) -> FilterOrder {
        FilterOrder::default()
    }

    /// Whether it stores features in the plan's precision: see [`Target::narrow_features`].
    fn narrow_features(&self) -> bool {
        false
    }

    /// Rewrites the forward graph of a mode before its gradients and memory are planned, such as by fusing operations that it
    /// computes as one. The values in `keep` must stay.
    fn fuse(&self, graph: &mut Graph, keep: &[ValueId], _mode: Mode) {
        enmasse_graph::fuse(graph, keep);
    }

    /// Bytes of activations for each byte that tells gradients which of them the activation of a batch norm passed, if it stores
    /// such bytes.
    fn gate_bytes(&self) -> Option<usize> {
        None
    }

    /// What the channels of normalised images are a multiple of, if it pads them: see [`Target::image_channels`].
    fn image_channels(&self) -> Option<usize> {
        None
    }

    /// Whether ranks sum gradients through their group, which compresses as plans say: see [`Target::compresses_sums`].
    fn compresses_sums(&self) -> bool {
        false
    }

    /// The target for which models must be compiled to run on this device.
    fn target(&self) -> Target<'_> {
        Target {
            filters: self.filters(),
            narrow_features: self.narrow_features(),
            gate_bytes: self.gate_bytes(),
            image_channels: self.image_channels(),
            compresses_sums: self.compresses_sums(),
            fuse: Box::new(|graph, keep, mode| self.fuse(graph, keep, mode)),
        }
    }

    /// The algorithm for each instruction of a plan, in the device's own names; "" if there is no choice.
    ///
    /// # Errors
    /// The plan chooses an algorithm that cannot compute the instruction or that this device does not have, or the
    /// device fails.
    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        Ok(vec![String::new(); plan.instructions.len()])
    }

    /// The device's own work for a step, one piece a line, after a line that sums it up. Empty if the plan's instructions are all
    /// there is to say.
    ///
    /// # Errors
    /// The device cannot run the plans, or it fails.
    fn work(&self, _plans: &Plans, _hosting: &Hosting, _mode: Mode) -> Result<Vec<String>, DeviceError> {
        Ok(Vec::new())
    }

    /// Measures the fastest algorithm of each operation of the plans that has several and is not in `known`.
    /// [`Plans::choose`] makes choices part of the plans, and [`Device::compile`] obeys them.
    ///
    /// # Errors
    /// The device has too little memory for an operation, or cannot compute it.
    fn tune(&self, _plans: &Plans, _known: &Choices) -> Result<Tuned, DeviceError> {
        Ok(Tuned::default())
    }

    /// The peak rate of matmuls with activations of this plan's precision, in 10^9 floating-point operations per second;
    /// `None` if unknown.
    ///
    /// # Errors
    /// The device cannot measure it.
    fn peak_gflops(&self, _plan: &Plan) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// The least time of each instruction of a plan with one shard, by limits of the device that it measures now; `None` if it
    /// measures none.
    ///
    /// # Errors
    /// The device cannot measure its limits, or the plan has several shards.
    fn roofline(&self, _plan: &Plan) -> Result<Option<Roofline>, DeviceError> {
        Ok(None)
    }

    /// The memory in which batches for this device are made, such as page-locked memory for a device that copies them itself.
    fn host_memory(&self) -> Arc<dyn HostMemory> {
        Arc::new(SystemMemory)
    }

    /// The free bytes of the device's own memory; `None` if programs take memory of the host.
    ///
    /// # Errors
    /// The device does not answer.
    fn free_memory(&self) -> Result<Option<usize>, DeviceError> {
        Ok(None)
    }

    /// How much of its own memory is taken, and how busy it is; `None` if programs take memory of the host.
    fn usage(&self) -> Option<DeviceUsage> {
        None
    }

    /// The memory that a program of these plans would hold, which is not allocated.
    ///
    /// # Errors
    /// The device cannot run the plans: they have an instruction, a precision or an algorithm that it does not have.
    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError>;

    /// Allocates everything that the plans need, and sets parameters to zero and buffers to their initial values. `group`
    /// connects the ranks. The program hosts this rank's part of the plans' shards ([`crate::Hosting`]), and the plans are those of
    /// this rank ([`Plans::of_rank`]).
    ///
    /// # Errors
    /// The device has too little memory, or cannot run the plans. Or the group has more ranks than the plans have
    /// shards, or fails.
    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError>;
}

/// Selects state tensors.
pub type Which<'a> = dyn Fn(&StateTensor) -> bool + 'a;

/// Sets the elements of a state tensor from a stored index on.
pub type Fill<'a> = dyn Fn(&StateTensor, usize, &mut [f32]) + Sync + 'a;

/// Receives the values of a state tensor. The first argument is its index in [`Plans::state`].
pub type Read<'a> = dyn Fn(usize, &StateTensor, &[f32]) + Sync + 'a;

/// A plan bound to memory.
///
/// Tensor names are those of [`enmasse_graph::StateTensor`], `gradient.NAME` for the gradient of a trainable parameter,
/// `gradient_norm` if gradients are clipped or it is a metric, and `logits`, `loss` and `correct` of the latest step. `logits`
/// are those of the local shards, concatenated; `loss` and `correct` are sums over these shards. Elements are in PyTorch's
/// order, except in [`Program::fill_state`] and [`Program::read_state`], which access a whole model in stored order. Methods
/// that read or set a tensor first wait for submitted work.
pub trait Program: Send {
    /// The plans it runs.
    fn plans(&self) -> &Plans;

    /// Sets a state tensor.
    ///
    /// # Errors
    /// There is no state tensor with this name, it has another number of elements, or the device or the group fails.
    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError>;

    /// Reads a tensor.
    ///
    /// # Errors
    /// There is no tensor with this name, no step has computed it yet, or the device or the group fails.
    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError>;

    /// Sets state tensors to f32 values in stored order ([`enmasse_graph::Layout`]). Several threads may call `fill` at once
    /// with pieces of tensors. It must set every element of each piece.
    ///
    /// # Errors
    /// The device or the group fails. Some of the tensors may be set then.
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

    /// Passes state tensors to `read` as f32 in stored order, each once and whole. Several threads may call `read` at once.
    /// A rank may read what its program holds without the others.
    ///
    /// # Errors
    /// The device or the group fails. `read` may have got some of the tensors then.
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

    /// Whether this program holds a state tensor of its plans: one of a model in stages holds a part of them, and one of a model whose
    /// layers are cut over ranks holds no cut tensor as a whole.
    fn holds(&self, _tensor: &StateTensor) -> bool {
        true
    }

    /// The program whose state is what this rank alone holds, if that has the names of tensors of which other ranks hold other parts.
    fn parts(&mut self) -> Option<&mut dyn Program> {
        None
    }

    /// Whether logits, losses and hits count here: of a model in stages on the last one, and of layers cut over ranks on the first of the
    /// ranks that compute the same samples.
    fn gives_outputs(&self) -> bool {
        true
    }

    /// Copies the state that other ranks alone hold to rank 0, or everywhere, where it can be read until the next step of training. All
    /// ranks of the group must call it.
    ///
    /// # Errors
    /// The device or the group fails.
    fn gather_state(&mut self, _everywhere: bool) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Runs the given phases of a step, in order. May return before they are done; [`Program::metrics`] returns errors of the
    /// step itself. Phases after [`Phase::Forward`] continue with the batch of that forward. A program that hosts several
    /// shards may require forward to backward of a training step in one call.
    ///
    /// # Errors
    /// The batch does not fit the plan ([`check_batch`](crate::check_batch)), a phase comes before the one that it
    /// needs, there is no plan for `mode`, or the device or the group fails.
    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError>;

    /// Waits for the latest step or the one before, and returns its metrics. [`crate::Ledger`] documents how a loss that is
    /// not finite affects later steps.
    ///
    /// A group that fails does not interrupt a step that has begun to change the state. Afterwards this still returns the metrics of a
    /// finished step, and an error for one that has changed nothing. Where the program cannot tell, the state cannot be read either.
    ///
    /// # Errors
    /// [`DeviceError::NonFinite`] if the step's loss was not finite: parameters are as before the step. The step is not
    /// among the last two, it has not run the phases that measure it, or the device or the group fails.
    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError>;

    /// Continues in another group, or without one. State stays in place, and the program hosts its new rank's part of the
    /// shards of `plans`. Steps in flight end first. If their sums cannot finish because the old group failed, that is not an
    /// error, since the caller repeats the step.
    ///
    /// # Errors
    /// The plans do not hold the same state as before, the device has too little memory, or the new group fails.
    fn rejoin(&mut self, plans: Plans, group: Option<Group>) -> Result<(), DeviceError>;

    /// Starts to measure the time of every instruction. Measuring itself takes some time.
    fn start_profile(&mut self) {}

    /// The total time of each instruction of the mode's plan since [`Program::start_profile`]. Empty if nothing was measured.
    fn profile(&self, _mode: Mode) -> Vec<Duration> {
        Vec::new()
    }

    /// Starts to record when each instruction of training runs, in memory for this many steps that is allocated now. A device that
    /// would disturb the steps thereby records nothing.
    fn start_timeline(&mut self, _steps: usize) {}

    /// Ends that record and returns it, in the order in which the instructions ran. Empty if there is none.
    fn take_timeline(&mut self) -> Vec<InstructionSpan> {
        Vec::new()
    }
}
