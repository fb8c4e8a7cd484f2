//! One step over the local shards in lock-step, from its batch to its metrics.

use std::collections::HashMap;

use enmasse_device::{DeviceError, StepInputs, StepMetrics, check_batch, step_metrics};
use enmasse_graph::{MixtureInputs, Mode, Phase, Plan, with_op};

use crate::exchange::Exchange;
use crate::ops::all_reduce::InFlight;
use crate::ops::{OnReference, StepContext, unsupported};
use crate::shard::Shard;
use crate::tree;

/// The step that began with the latest forward phase.
#[derive(Debug)]
pub(crate) struct Step {
    /// Keys dropout, in backward as in forward.
    epoch: u64,
    in_flight: InFlight,
}

impl Step {
    /// Begins a step: gives each local shard its piece of the batch, which must fit the plan.
    pub fn begin(plan: &Plan, shards: &mut [Shard], inputs: &StepInputs) -> Result<Step, DeviceError> {
        let batch = inputs.batch.as_ref();
        check_batch(plan, shards.len(), batch)?;
        let pixels = plan.shape(plan.images).elements();
        for (s, shard) in shards.iter_mut().enumerate() {
            let samples = s * plan.batch..(s + 1) * plan.batch;
            shard.begin(plan);
            let images = &batch.images()[s * pixels..(s + 1) * pixels];
            shard.write(plan, plan.images, images.iter().map(|&byte| f64::from(byte)).collect());
            let labels = &batch.labels()[samples.clone()];
            shard.write(plan, plan.labels, labels.iter().map(|&label| f64::from(label)).collect());
            let indices = &batch.sample_indices()[samples.clone()];
            shard.write(plan, plan.sample_indices, indices.iter().map(|&index| index as f64).collect());
            if let Some(MixtureInputs { other_labels, lambdas }) = plan.mixture {
                let others = &batch.other_labels()[samples.clone()];
                shard.write(plan, other_labels, others.iter().map(|&label| f64::from(label)).collect());
                let shares = &batch.lambdas()[samples.clone()];
                shard.write(plan, lambdas, shares.iter().map(|&share| f64::from(share)).collect());
            }
            if let Some(targets) = plan.targets {
                let values = plan.shape(targets).last();
                let own = &batch.targets()[samples.start * values..samples.end * values];
                shard.write(plan, targets, own.iter().map(|&value| f64::from(value)).collect());
            }
            if let Some(weight) = plan.loss_weight {
                shard.write(plan, weight, vec![batch.loss_weight().into()]);
            }
        }
        Ok(Step { epoch: inputs.epoch, in_flight: InFlight::new() })
    }

    /// Runs one phase. Returns the metrics after the phase that completes them.
    pub fn run(
        &mut self,
        plan: &Plan,
        shards: &mut [Shard],
        exchange: &Exchange,
        phase: Phase,
        inputs: &StepInputs,
    ) -> Result<Option<StepMetrics>, DeviceError> {
        for node in plan.phase(phase) {
            if !node.op.takes(node.inputs.len(), node.outputs.len()) {
                return Err(unsupported(node));
            }
            let Step { epoch, in_flight } = self;
            let shards = &mut *shards;
            let epoch = *epoch;
            let mut step = StepContext { plan, node, shards, exchange, inputs, epoch, in_flight };
            with_op!(&node.op, op => op.run(&mut step))?;
        }
        // In training the reduce phase completes the sums over shards; evaluation has no collectives.
        let measured = if plan.mode == Mode::Train { Phase::Reduce } else { Phase::Loss };
        if phase == measured { measure(plan, shards).map(Some) } else { Ok(None) }
    }

    /// Ends sums in progress, so that their values can be read. The plan may still wait for them afterwards.
    pub fn drain(&mut self, plan: &Plan, shards: &mut [Shard]) {
        for (id, sum) in self.in_flight.values_mut().flat_map(std::mem::take) {
            shards.iter_mut().for_each(|shard| shard.write(plan, id, sum.clone()));
        }
    }
}

/// The metrics of the step: in training the values that all shards share, in evaluation sums over the local shards.
fn measure(plan: &Plan, shards: &[Shard]) -> Result<StepMetrics, DeviceError> {
    let mut values = HashMap::new();
    let measured = plan.measured.iter().map(|metric| metric.value).chain(plan.unscale());
    for id in plan.metrics.into_iter().chain([plan.loss]).chain(plan.correct).chain(measured) {
        let of_shards = match plan.mode {
            Mode::Train => &shards[..1],
            Mode::Evaluate => shards,
        };
        let pieces = of_shards.iter().map(|shard| shard.read(plan, id).map(<[f64]>::to_vec));
        values.insert(id, tree::sum(&pieces.collect::<Result<Vec<_>, _>>()?));
    }
    Ok(step_metrics(plan, &|id, at| values[&id][at]))
}
