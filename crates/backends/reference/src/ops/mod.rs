//! The operations of a plan in f64, one file each as in [`enmasse_graph::ops`]: the mathematical definition as a function, and
//! how a step runs it.
//!
//! Activations are dense `[batch, height, width, channels]`, linear weights `[inputs, outputs]`; convolution weights have the
//! order of the plan. Integers are held as f64 too, which is exact for every byte, every label, and every sample index below
//! 2^53. Slices must have the sizes of the given shapes.

/// Implements [`OnReference`] for an operation that each shard computes from its own values:
/// `each_shard!(Add, |op, call, [a, b]| vec![add(a, b)]);` names the attributes, the [`Call`] and the first operands, and gives
/// what the instruction writes.
macro_rules! each_shard {
    ($operation:ty, |$attributes:pat_param, $call:pat_param, $operands:pat_param| $written:expr) => {
        impl $crate::ops::OnReference for $operation {
            fn run(&self, step: &mut $crate::ops::StepContext) -> Result<(), enmasse_device::DeviceError> {
                let $attributes = self;
                step.each_shard(|$call, $operands| Ok($written))
            }
        }
    };
}

pub mod activation;
pub mod adaptive_avg_pool;
pub mod add;
mod all_gather;
pub(crate) mod all_reduce;
pub mod attention;
pub mod average;
pub mod avg_pool;
pub mod batch_norm;
mod batch_norm_conv2d;
mod check_finite;
pub mod conv2d;
mod conv2d_batch_norm;
pub mod cross_entropy;
mod custom;
pub mod dropout;
pub mod flatten;
pub mod function;
pub mod gradient_norm;
pub mod layer_norm;
pub mod linear;
pub mod log_softmax;
pub mod lookahead;
pub mod loss_scale;
pub mod mask_samples;
pub mod max_pool;
pub mod multiply;
pub mod normalize;
pub mod pointwise;
mod replicate;
mod reshape;
pub mod sample_sum;
pub mod scale_classes;
pub mod share_metrics;
mod stages;
pub mod sum_classes;
pub mod sync;
pub mod targets;
mod tensor_parallel;
pub mod tokens;
pub mod top_k_correct;
pub mod update;

use std::borrow::Cow;

use enmasse_device::{DeviceError, StepInputs};
use enmasse_graph::{Node, Plan, ValueId};

use self::all_reduce::InFlight;
use crate::exchange::Exchange;
use crate::shard::Shard;

/// How the reference device runs an operation.
pub(crate) trait OnReference {
    /// Runs an instruction for all local shards.
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError>;
}

/// An instruction of a step, whose numbers of operands and results are right, and what it runs on.
pub(crate) struct StepContext<'a> {
    pub plan: &'a Plan,
    pub node: &'a Node,
    pub shards: &'a mut [Shard],
    pub exchange: &'a Exchange,
    pub inputs: &'a StepInputs,
    /// That of the forward phase.
    pub epoch: u64,
    pub in_flight: &'a mut InFlight,
}

impl StepContext<'_> {
    /// Computes for each local shard what it writes, from the first operands and what else is in the call.
    pub fn each_shard<const N: usize>(
        &mut self,
        compute: impl Fn(&Call, [&[f64]; N]) -> Result<Vec<Vec<f64>>, DeviceError>,
    ) -> Result<(), DeviceError> {
        for local in 0..self.shards.len() {
            let shard = &self.shards[local];
            let index = self.exchange.hosting.shards().start + local;
            let operands =
                self.node.inputs.iter().map(|&id| shard.read(self.plan, id)).collect::<Result<Vec<_>, _>>()?;
            let (first, rest) = operands.split_first_chunk().ok_or_else(|| unsupported(self.node))?;
            let written = compute(&Call { step: self, shard, index, rest }, *first)?;
            self.write(local, written)?;
        }
        Ok(())
    }

    /// An operand of every shard of all ranks.
    pub fn gather(&self, operand: usize) -> Result<Vec<Vec<f64>>, DeviceError> {
        let read = |shard: &Shard| shard.read(self.plan, self.node.inputs[operand]).map(<[f64]>::to_vec);
        self.exchange.all(self.shards.iter().map(read).collect::<Result<_, _>>()?)
    }

    /// Adds up what ranks have found that update a part each.
    pub fn add_up(&self, values: &mut [f64]) -> Result<(), DeviceError> {
        let group = self.exchange.groups.replicas.as_ref().filter(|_| self.plan.is_partitioned());
        group.map_or(Ok(()), |group| Ok(group.all_reduce(values)?))
    }

    /// Writes the same for every local shard.
    pub fn scatter(&mut self, written: &[Vec<f64>]) -> Result<(), DeviceError> {
        (0..self.shards.len()).try_for_each(|local| self.write(local, written.to_vec()))
    }

    /// Writes the operands that the instruction changes, and then its results.
    fn write(&mut self, local: usize, written: Vec<Vec<f64>>) -> Result<(), DeviceError> {
        let Node { op, inputs, outputs, .. } = self.node;
        let ids = [&inputs[op.changes(inputs.len())], outputs].concat();
        if ids.len() != written.len() {
            return Err(unsupported(self.node));
        }
        ids.into_iter().zip(written).for_each(|(id, value)| self.shards[local].write(self.plan, id, value));
        Ok(())
    }
}

/// An instruction as one shard computes it.
pub(crate) struct Call<'a> {
    pub step: &'a StepContext<'a>,
    pub shard: &'a Shard,
    /// The shard's place among those of all ranks.
    pub index: usize,
    /// The operands after the first ones.
    pub rest: &'a [&'a [f64]],
}

impl Call<'_> {
    /// The dimensions of an operand.
    pub fn input<const N: usize>(&self, i: usize) -> Result<[usize; N], DeviceError> {
        self.dims(self.step.node.inputs[i])
    }

    /// The dimensions of a result.
    pub fn output<const N: usize>(&self, i: usize) -> Result<[usize; N], DeviceError> {
        self.dims(self.step.node.outputs[i])
    }

    /// Channels, features or classes: the last dimension of an operand.
    pub fn last(&self, i: usize) -> usize {
        self.step.plan.shape(self.step.node.inputs[i]).last()
    }

    /// The number of elements of a result.
    pub fn result_elements(&self, i: usize) -> usize {
        self.step.plan.shape(self.step.node.outputs[i]).elements()
    }

    /// A result as it is stored, and as other operations read it.
    pub fn stored<'b>(&self, i: usize, values: &'b [f64]) -> Cow<'b, [f64]> {
        let dtype = self.step.plan.value(self.step.node.outputs[i]).dtype;
        self.shard.rounded(dtype, values).map_or(Cow::Borrowed(values), Cow::Owned)
    }

    /// The last dimension of the result.
    pub fn classes(&self) -> usize {
        self.step.plan.shape(self.step.node.outputs[0]).last()
    }

    fn dims<const N: usize>(&self, id: ValueId) -> Result<[usize; N], DeviceError> {
        let node = self.step.node;
        let shape = self.step.plan.shape(id);
        <[usize; N]>::try_from(&shape[..])
            .map_err(|_| DeviceError::Unsupported(format!("layer {}: {} does not take {shape}", node.layer, node.op)))
    }
}

/// The error of an instruction whose numbers of operands or results are wrong.
pub(crate) fn unsupported(node: &Node) -> DeviceError {
    let (inputs, outputs) = (node.inputs.len(), node.outputs.len());
    let layer = &node.layer;
    DeviceError::Unsupported(format!("layer {layer}: {} does not take {inputs} operands to {outputs} results", node.op))
}
