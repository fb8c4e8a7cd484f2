//! Dispatches an instruction that concerns only one shard to its kernel.

use std::borrow::Cow;

use enmasse_device::DeviceError;
use enmasse_graph::{Activation, Node, NormStatistics, Op, Plan, ValueId};

use crate::kernels::batch_norm::{self, Normalizer};
use crate::kernels::conv2d::{self, Shapes};
use crate::kernels::{activation, dropout, function, image, linear, loss, loss_scale, pool, samples, update};

/// Runs `node` on its operands and returns its outputs, in order. `requests` are those to stop and to save.
pub(crate) fn run(
    plan: &Plan,
    node: &Node,
    operands: &[&[f64]],
    shard: usize,
    epoch: u64,
    requests: [bool; 2],
) -> Result<Vec<Vec<f64>>, DeviceError> {
    let input = |i: usize| dims(plan, node, &node.inputs, i);
    let output = |i: usize| dims(plan, node, &node.outputs, i);
    // Channels or features: the last dimension of an operand.
    let last = |i: usize| node.inputs.get(i).map_or(1, |&id| plan.shape(id).last());
    let classes = node.outputs.first().map_or(1, |&id| plan.shape(id).last());
    let outputs = match (&node.op, operands) {
        (Op::Normalize { mean, std }, [x]) => vec![image::normalize(x, mean, std)],
        (Op::Conv2d(conv), [x, w, bias @ ..]) => {
            let shapes = Shapes { x: input(0)?, w: input(1)?, y: output(0)?, filters: plan.filters };
            vec![conv2d::forward(x, w, bias.first().copied(), &shapes, conv)]
        }
        (Op::Conv2dBackwardData(conv), [dy, w, base @ ..]) => {
            let shapes = Shapes { x: output(0)?, w: input(1)?, y: input(0)?, filters: plan.filters };
            vec![conv2d::backward_data(dy, w, base.first().copied(), &shapes, conv)]
        }
        (Op::Conv2dBackwardWeights(conv), [x, dy]) => {
            let shapes = Shapes { x: input(0)?, w: output(0)?, y: input(1)?, filters: plan.filters };
            vec![conv2d::backward_weights(x, dy, &shapes, conv)]
        }
        (Op::Linear, [x, w, bias @ ..]) => vec![linear::forward(x, w, bias.first().copied(), last(0), last(1))],
        (Op::LinearBackwardData, [dy, w]) => vec![linear::backward_data(dy, w, last(0))],
        (Op::LinearBackwardWeights, [x, dy]) => vec![linear::backward_weights(x, dy, last(0), last(1))],
        (Op::BiasBackward, [dy]) => vec![linear::bias_backward(dy, last(0))],
        (Op::BatchNormStatistics, [x]) => pair(batch_norm::statistics(x, last(0))),
        (&Op::BatchNormNormalize { epsilon, activation, .. }, [x, mean, variance, weight, bias, residual @ ..]) => {
            let by = Normalizer { mean, variance, epsilon };
            vec![batch_norm::normalize(x, &by, weight, bias, residual.first().copied(), activation)]
        }
        (&Op::BatchNormReduce { epsilon, activation }, [dy, x, mean, variance, rest @ ..]) => {
            let by = Normalizer { mean, variance, epsilon };
            let y = activated(node, activation, x, &by, rest)?;
            pair(batch_norm::reduce(dy, x, &by, activation.zip(y.as_deref())))
        }
        (
            &Op::BatchNormBackward { epsilon, statistics, activation, residual },
            [dy, x, mean, variance, weight, rest @ ..],
        ) => {
            let by = Normalizer { mean, variance, epsilon };
            let (sums, rest) = match (statistics, rest) {
                (NormStatistics::Batch { count }, &[dbias, dweight, ref rest @ ..]) => {
                    (Some((dbias, dweight, count)), rest)
                }
                (NormStatistics::Running, rest) => (None, rest),
                _ => return Err(unsupported(node)),
            };
            let y = activated(node, activation, x, &by, rest)?;
            let gate = activation.zip(y.as_deref());
            let dx = match sums {
                Some(sums) => batch_norm::backward(dy, x, &by, weight, sums, gate),
                None => batch_norm::backward_running(dy, &by, weight, gate),
            };
            if residual { vec![dx, batch_norm::masked(dy, gate)] } else { vec![dx] }
        }
        (&Op::RunningShare { count, shards }, [mean, variance]) => {
            vec![batch_norm::running_share(mean, variance, count, shards)]
        }
        (&Op::Activation(activation), [x]) => vec![activation::activate(x, activation)],
        (&Op::ActivationBackward(activation), [dy, y]) => vec![activation::activate_backward(dy, y, activation)],
        (Op::MaxPool(window), [x]) => pair(pool::max(x, input(0)?, output(0)?, window)),
        (Op::MaxPoolBackward(window), [dy, position]) => {
            vec![pool::max_backward(dy, position, output(0)?, input(0)?, window)]
        }
        (Op::AvgPool(window), [x]) => vec![pool::average(x, input(0)?, output(0)?, window)],
        (Op::AvgPoolBackward(window), [dy]) => vec![pool::average_backward(dy, output(0)?, input(0)?, window)],
        (Op::AdaptiveAvgPool(_), [x]) => vec![pool::adaptive_average(x, input(0)?, output(0)?)],
        (Op::AdaptiveAvgPoolBackward(_), [dy]) => vec![pool::adaptive_average_backward(dy, output(0)?, input(0)?)],
        (Op::Dropout { probability, seed, layer }, [x, indices]) => {
            vec![dropout::dropout(x, indices, *probability, *seed, layer, epoch)]
        }
        (Op::Add, [a, b]) => vec![activation::add(a, b)],
        (Op::Multiply, [a, b]) => vec![activation::multiply(a, b)],
        (Op::Flatten, [x]) => vec![activation::flatten(x, input(0)?)],
        (Op::FlattenBackward, [dy]) => vec![activation::flatten_backward(dy, output(0)?)],
        (&Op::CrossEntropy { scale, smoothing }, [logits, labels, mixture @ ..]) => {
            let targets = samples::targets(labels, mixed(node, mixture)?, last(0));
            let result = loss::cross_entropy(logits, labels, &targets, last(0), scale, smoothing);
            vec![result.probabilities, vec![result.loss], vec![result.correct]]
        }
        (&Op::CrossEntropyBackward { scale, smoothing }, [probabilities, labels, mixture @ ..]) => {
            let targets = samples::targets(labels, mixed(node, mixture)?, last(0));
            vec![loss::cross_entropy_backward(probabilities, labels, &targets, last(0), scale, smoothing)]
        }
        (&Op::Map(function), [x]) => vec![function::map(x, function)],
        (&Op::MapBackward(function), [dy, x]) => vec![function::map_backward(dy, x, function)],
        (Op::LogSoftmax, [x]) => vec![samples::log_softmax(x, last(0))],
        (Op::LogSoftmaxBackward, [dy, y]) => vec![samples::log_softmax_backward(dy, y, last(0))],
        (Op::ScaleClasses { factors }, [x]) => vec![samples::scale_classes(x, factors)],
        (&Op::SampleSumBackward { scale }, [labels]) => vec![samples::sample_sum_backward(labels, scale)],
        (Op::MaskSamples, [x, labels]) => vec![samples::mask(x, labels, last(0))],
        (Op::SumClasses, [x]) => vec![samples::sum_classes(x, last(0))],
        (Op::SumClassesBackward, [dy]) => vec![samples::sum_classes_backward(dy, classes)],
        (Op::Targets, [labels, mixture @ ..]) => vec![samples::targets(labels, mixed(node, mixture)?, classes)],
        (&Op::TopKCorrect { k }, [logits, labels]) => vec![samples::top_k_correct(logits, labels, last(0), k)],
        (&Op::SampleSum { scale }, [values, labels]) => vec![vec![samples::sample_sum(values, labels, scale)]],
        (Op::GradientNorm { scaled: false }, gradients) => vec![vec![update::norm(&gradients.concat())]],
        (Op::GradientNorm { scaled: true }, [gradients @ .., [scale]]) => {
            vec![vec![update::norm(&loss_scale::scale(&gradients.concat(), 1.0 / scale))]]
        }
        (Op::Scale, [x, [factor]]) => vec![loss_scale::scale(x, *factor)],
        (Op::Unscale, [values @ .., [scale]]) => vec![loss_scale::unscale(&values.concat(), *scale)],
        (&Op::ShareMetrics { shards }, [[loss], rest @ ..]) => {
            vec![loss::share_metrics(*loss, &rest.concat(), requests, shard, shards)]
        }
        // The number of operands is wrong.
        (
            Op::Normalize { .. }
            | Op::Conv2d(_)
            | Op::Conv2dBackwardData(_)
            | Op::Conv2dBackwardWeights(_)
            | Op::Linear
            | Op::LinearBackwardData
            | Op::LinearBackwardWeights
            | Op::BiasBackward
            | Op::BatchNormStatistics
            | Op::BatchNormNormalize { .. }
            | Op::BatchNormReduce { .. }
            | Op::BatchNormBackward { .. }
            | Op::RunningShare { .. }
            | Op::Activation(_)
            | Op::ActivationBackward(_)
            | Op::MaxPool(_)
            | Op::MaxPoolBackward(_)
            | Op::AvgPool(_)
            | Op::AvgPoolBackward(_)
            | Op::AdaptiveAvgPool(_)
            | Op::AdaptiveAvgPoolBackward(_)
            | Op::Dropout { .. }
            | Op::Add
            | Op::Multiply
            | Op::Map(_)
            | Op::MapBackward(_)
            | Op::Flatten
            | Op::FlattenBackward
            | Op::CrossEntropy { .. }
            | Op::CrossEntropyBackward { .. }
            | Op::LogSoftmax
            | Op::LogSoftmaxBackward
            | Op::ScaleClasses { .. }
            | Op::SumClasses
            | Op::SumClassesBackward
            | Op::Targets
            | Op::TopKCorrect { .. }
            | Op::SampleSum { .. }
            | Op::SampleSumBackward { .. }
            | Op::MaskSamples
            | Op::GradientNorm { scaled: true }
            | Op::Scale
            | Op::Unscale
            | Op::ShareMetrics { .. },
            _,
        ) => return Err(unsupported(node)),
        // `Step` runs the operations that concern all shards or change state. They only get here with wrong operands.
        (
            Op::SyncStatistics { .. }
            | Op::SyncSum
            | Op::AllReduceStart { .. }
            | Op::AllReduceWait { .. }
            | Op::ReduceStart { .. }
            | Op::ReduceWait { .. }
            | Op::Replicate
            | Op::CheckFinite
            | Op::Update(_)
            | Op::Average { .. }
            | Op::UpdateScale { .. }
            | Op::RunningUpdate { .. },
            _,
        ) => return Err(unsupported(node)),
    };
    if outputs.len() == node.outputs.len() { Ok(outputs) } else { Err(unsupported(node)) }
}

fn pair((a, b): (Vec<f64>, Vec<f64>)) -> Vec<Vec<f64>> {
    vec![a, b]
}

/// The other labels and the lambdas of mixtures, if there are any.
fn mixed<'a>(node: &Node, operands: &[&'a [f64]]) -> Result<Option<[&'a [f64]; 2]>, DeviceError> {
    match *operands {
        [] => Ok(None),
        [others, lambdas] => Ok(Some([others, lambdas])),
        _ => Err(unsupported(node)),
    }
}

/// The result of a batch norm's fused activation, if it has one: either an operand, or computed from x, weight and bias.
fn activated<'a>(
    node: &Node,
    activation: Option<Activation>,
    x: &[f64],
    by: &Normalizer,
    gate: &[&'a [f64]],
) -> Result<Option<Cow<'a, [f64]>>, DeviceError> {
    match (activation, gate) {
        (None, []) => Ok(None),
        (Some(_), &[y]) => Ok(Some(Cow::Borrowed(y))),
        (Some(_), [weight, bias]) => Ok(Some(Cow::Owned(batch_norm::normalize(x, by, weight, bias, None, activation)))),
        _ => Err(unsupported(node)),
    }
}

pub(crate) fn unsupported(node: &Node) -> DeviceError {
    let (inputs, outputs) = (node.inputs.len(), node.outputs.len());
    let layer = &node.layer;
    DeviceError::Unsupported(format!("layer {layer}: {} does not take {inputs} operands to {outputs} results", node.op))
}

/// The four dimensions of operand or result `i`.
fn dims(plan: &Plan, node: &Node, ids: &[ValueId], i: usize) -> Result<[usize; 4], DeviceError> {
    let shape = ids.get(i).map(|&id| plan.shape(id)).ok_or_else(|| unsupported(node))?;
    <[usize; 4]>::try_from(&shape[..])
        .map_err(|_| DeviceError::Unsupported(format!("layer {}: {} does not take {shape}", node.layer, node.op)))
}
