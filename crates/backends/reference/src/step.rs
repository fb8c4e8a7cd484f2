//! One step over the local shards in lock-step: instructions, collectives, and updates of state.

use std::collections::HashMap;

use enmasse_device::{DeviceError, StepInputs, StepMetrics, check_batch, first_non_finite, step_metrics};
use enmasse_graph::{MixtureInputs, Mode, Node, Op, Phase, Plan, Scaling, Update, UpdateOperands, ValueId};
use enmasse_tensor::DType;

use crate::dispatch;
use crate::exchange::Exchange;
use crate::kernels::update::{Rule, clip_factor};
use crate::kernels::{batch_norm, loss_scale, tree, update};
use crate::shard::Shard;

/// A bucket whose sum has started: the values that belong to the collective, and their sums.
type InFlight = Vec<(ValueId, Vec<f64>)>;

/// The step that began with the latest forward phase.
#[derive(Debug)]
pub(crate) struct Step {
    mode: Mode,
    /// Keys dropout, in backward as in forward.
    epoch: u64,
    /// Sums that have started and have not been waited for, by bucket.
    in_flight: HashMap<usize, InFlight>,
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
                shard.write(plan, lambdas, batch.lambdas()[samples].iter().map(|&share| f64::from(share)).collect());
            }
            if let Some(weight) = plan.loss_weight {
                shard.write(plan, weight, vec![batch.loss_weight().into()]);
            }
        }
        Ok(Step { mode: plan.mode, epoch: inputs.epoch, in_flight: HashMap::new() })
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
            self.execute(plan, shards, exchange, node, inputs)?;
        }
        // In training the reduce phase completes the sums over shards; evaluation has no collectives.
        let measured = if self.mode == Mode::Train { Phase::Reduce } else { Phase::Loss };
        if phase == measured { measure(plan, shards).map(Some) } else { Ok(None) }
    }

    /// Ends sums in progress, so that their values can be read. The plan may still wait for them afterwards.
    pub fn drain(&mut self, plan: &Plan, shards: &mut [Shard]) {
        for (id, sum) in self.in_flight.values_mut().flat_map(std::mem::take) {
            shards.iter_mut().for_each(|shard| shard.write(plan, id, sum.clone()));
        }
    }

    fn execute(
        &mut self,
        plan: &Plan,
        shards: &mut [Shard],
        exchange: &Exchange,
        node: &Node,
        inputs: &StepInputs,
    ) -> Result<(), DeviceError> {
        let gather = |shards: &[Shard], id: ValueId| {
            exchange
                .all(shards.iter().map(|shard| shard.read(plan, id).map(<[f64]>::to_vec)).collect::<Result<_, _>>()?)
        };
        match (&node.op, &node.inputs[..]) {
            (&Op::AllReduceStart { bucket } | &Op::ReduceStart { bucket }, ids) => {
                let mut sums = InFlight::new();
                for &id in ids {
                    let own = shards.iter_mut().map(|shard| shard.take(plan, id)).collect::<Result<Vec<_>, _>>()?;
                    sums.push((id, tree::sum(&exchange.all(own)?)));
                }
                self.in_flight.insert(bucket, sums);
            }
            (&Op::AllReduceWait { bucket } | &Op::ReduceWait { bucket }, _) => {
                let sums = self.in_flight.remove(&bucket).ok_or_else(|| {
                    DeviceError::Unsupported(format!("bucket {bucket} is waited for, but its sum was never started"))
                })?;
                // Other ranks than the first could gather a reduced bucket, too, but must not use it.
                let is_ours = exchange.hosting.rank() == 0 || matches!(node.op, Op::AllReduceWait { .. });
                for (id, sum) in sums.into_iter().filter(|_| is_ours) {
                    shards.iter_mut().for_each(|shard| shard.write(plan, id, sum.clone()));
                }
            }
            (&Op::SyncStatistics { count }, &[mean, variance]) => {
                let (means, variances) = (gather(shards, mean)?, gather(shards, variance)?);
                let (mean, variance) = tree::statistics(&means, &variances, count);
                scatter(plan, shards, node, &[mean, variance]);
            }
            (Op::SyncSum, &[a, b]) => {
                let sums = [tree::sum(&gather(shards, a)?), tree::sum(&gather(shards, b)?)];
                scatter(plan, shards, node, &sums);
            }
            (Op::Replicate, ids) => {
                for &id in ids {
                    let mut value = match exchange.hosting.rank() {
                        0 => shards[0].read(plan, id)?.to_vec(),
                        _ => vec![0.0; plan.shape(id).elements()],
                    };
                    if let Some(group) = &exchange.group {
                        group.broadcast(&mut value, 0)?;
                    }
                    shards.iter_mut().for_each(|shard| shard.set(plan, id, value.clone()));
                }
            }
            (Op::CheckFinite, &[metrics]) => {
                let metrics = shards[0].read(plan, metrics)?;
                if let Some((shard, loss)) = first_non_finite(metrics.iter().copied().take(plan.shards)) {
                    return Err(DeviceError::NonFinite { shard, loss });
                }
            }
            (Op::Update(update), ids) => {
                let operands = update.operands(ids).ok_or_else(|| dispatch::unsupported(node))?;
                for shard in shards {
                    update_parameters(plan, shard, update, &operands, inputs)?;
                }
            }
            (&Op::Average { decay, scaled }, ids) => {
                let (ids, scaling) = match ids {
                    [ids @ .., unscale, skipped_steps] if scaled => {
                        (ids, Some(Scaling { unscale: *unscale, skipped_steps: *skipped_steps }))
                    }
                    _ => (ids, None),
                };
                let (values, averages) = ids.split_at(ids.len() / 2);
                for shard in shards {
                    let Some((_, step)) = applied(plan, shard, scaling, inputs)? else { continue };
                    for (&value, &average) in values.iter().zip(averages) {
                        let (value, old) = (shard.read(plan, value)?, shard.read(plan, average)?);
                        let moved = update::average(decay, step, value, old);
                        shard.state.insert(plan.value(average).name.clone(), moved);
                    }
                }
            }
            (&Op::UpdateScale { growth, backoff, interval }, &[unscale, scale, good_steps, skipped_steps]) => {
                for shard in shards {
                    let read = |id: ValueId| Ok::<f64, DeviceError>(shard.read(plan, id)?[0]);
                    let state = [read(scale)?, read(good_steps)?, read(skipped_steps)?];
                    let after = loss_scale::update_scale(read(unscale)?, state, [growth, backoff], interval);
                    for (id, value) in [scale, good_steps, skipped_steps].into_iter().zip(after) {
                        shard.state.insert(plan.value(id).name.clone(), vec![value]);
                    }
                }
            }
            (&Op::RunningUpdate { momentum }, &[share, running_mean, running_var]) => {
                for shard in shards {
                    let share = shard.read(plan, share)?.to_vec();
                    let halves = share.split_at(share.len() / 2);
                    for (id, share) in [(running_mean, halves.0), (running_var, halves.1)] {
                        let updated = batch_norm::running_update(share, shard.read(plan, id)?, momentum);
                        shard.state.insert(plan.value(id).name.clone(), updated);
                    }
                }
            }
            _ => {
                for (s, shard) in shards.iter_mut().enumerate() {
                    let rounded: Vec<_> =
                        (0..node.inputs.len()).map(|operand| shard.rounded_operand(plan, node, operand)).collect();
                    let operands = (node.inputs.iter().zip(&rounded))
                        .map(|(&id, rounded)| rounded.as_deref().map_or_else(|| shard.read(plan, id), Ok))
                        .collect::<Result<Vec<_>, _>>()?;
                    let number = exchange.hosting.shards().start + s;
                    let outputs = dispatch::run(plan, node, &operands, number, self.epoch, [inputs.stop, inputs.save])?;
                    node.outputs.iter().zip(outputs).for_each(|(&id, value)| shard.write(plan, id, value));
                }
            }
        }
        Ok(())
    }
}

/// Writes the outputs of a collective, the same for every shard.
fn scatter(plan: &Plan, shards: &mut [Shard], node: &Node, outputs: &[Vec<f64>]) {
    for shard in shards {
        node.outputs.iter().zip(outputs).for_each(|(&id, value)| shard.write(plan, id, value.clone()));
    }
}

/// The factor of the gradients, and the number of the update from 1, of a step; `None` if it is skipped.
fn applied(
    plan: &Plan,
    shard: &Shard,
    scaling: Option<Scaling<ValueId>>,
    inputs: &StepInputs,
) -> Result<Option<(f64, u64)>, DeviceError> {
    let Some(Scaling { unscale, skipped_steps }) = scaling else { return Ok(Some((1.0, inputs.optimizer_step))) };
    let (factor, skipped) = (shard.read(plan, unscale)?[0], shard.read(plan, skipped_steps)?[0] as u64);
    Ok((factor != 0.0).then(|| (factor, inputs.optimizer_step.saturating_sub(skipped))))
}

/// Updates the elements of parameters and their optimiser state that lie in a range of the update.
fn update_parameters(
    plan: &Plan,
    shard: &mut Shard,
    update: &Update,
    operands: &UpdateOperands,
    inputs: &StepInputs,
) -> Result<(), DeviceError> {
    let Some((unscale, step)) = applied(plan, shard, operands.scaling, inputs)? else { return Ok(()) };
    let clip = match (update.clip_norm, operands.norm) {
        (Some(limit), Some(norm)) => clip_factor(limit, shard.read(plan, norm)?[0]),
        _ => 1.0,
    };
    for (index, &parameter) in operands.parameters.iter().enumerate() {
        let gradient = shard.read(plan, operands.gradients[index])?.to_vec();
        let mut w = shard.read(plan, parameter)?.to_vec();
        let ids: Vec<ValueId> = operands.state.iter().map(|of_name| of_name[index]).collect();
        let mut state =
            ids.iter().map(|&id| shard.read(plan, id).map(<[f64]>::to_vec)).collect::<Result<Vec<_>, _>>()?;
        let first = plan.slot(parameter).offset / DType::F32.size();
        for range in &update.ranges {
            let start = range.start.max(first) - first;
            let end = range.end().min(first + w.len()).saturating_sub(first);
            if start < end {
                let rule = Rule {
                    optimizer: update.optimizer,
                    weight_decay: range.group.weight_decay.into(),
                    learning_rate: f64::from(inputs.learning_rate) * f64::from(range.group.learning_rate_scale),
                    adaptive: range.adaptive,
                    clip: clip * unscale,
                    step,
                };
                let state = state.iter_mut().map(|values| &mut values[start..end]).collect();
                rule.update(&mut w[start..end], &gradient[start..end], state);
            }
        }
        for (id, values) in [parameter].into_iter().chain(ids).zip([w].into_iter().chain(state)) {
            shard.state.insert(plan.value(id).name.clone(), values);
        }
    }
    Ok(())
}

/// The metrics of the step: in training the values that all shards share, in evaluation sums over the local shards.
fn measure(plan: &Plan, shards: &[Shard]) -> Result<StepMetrics, DeviceError> {
    let mut values = HashMap::new();
    let measured = plan.measured.iter().map(|metric| metric.value).chain(plan.unscale());
    for id in plan.metrics.into_iter().chain([plan.loss, plan.correct]).chain(measured) {
        let of_shards = match plan.mode {
            Mode::Train => &shards[..1],
            Mode::Evaluate => shards,
        };
        let pieces = of_shards.iter().map(|shard| shard.read(plan, id).map(<[f64]>::to_vec));
        values.insert(id, tree::sum(&pieces.collect::<Result<Vec<_>, _>>()?));
    }
    Ok(step_metrics(plan, &|id, at| values[&id][at]))
}
