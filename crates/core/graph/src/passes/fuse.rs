//! Fuses batch norm, residual addition and activation into one pass over memory. In evaluation the convolution before does all of that;
//! in training the convolution before does the statistics, and the one after the rest, where it alone reads the result.

use crate::ops::{BatchNormConv2d, BatchNormNormalize, Conv2dBatchNorm, NormStatistics};
use crate::{Activation, Graph, Mode, Node, Op, ValueId};

/// Fuses `batch_norm -> relu`, `batch_norm -> add` and `batch_norm -> add -> relu` (or relu6) in a forward graph if no other
/// node uses the intermediate values. The values in `keep`, such as the logits, must stay.
pub fn fuse(graph: &mut Graph, keep: &[ValueId]) {
    fuse_with(graph, keep, Activation::is_relu);
}

/// As [`fuse`], and also `batch_norm -> silu` and `batch_norm -> hard_swish`, for a device whose gradient of a batch norm computes their
/// derivatives from the batch norm's operands.
pub fn fuse_activations(graph: &mut Graph, keep: &[ValueId]) {
    fuse_with(graph, keep, |_| true);
}

fn fuse_with(graph: &mut Graph, keep: &[ValueId], takes: impl Fn(Activation) -> bool) {
    let mut uses = graph.uses();
    keep.iter().for_each(|id| uses[id.0] += 1);
    let mut index = 0;
    while index < graph.nodes.len() {
        let taken = match graph.nodes[index].op {
            Op::Add(_) => fuse_residual(graph, &uses, index),
            Op::Activation(activation) if takes(activation) => fuse_activation(graph, &uses, index, activation),
            _ => None,
        };
        match taken {
            // The batch norm has moved to this place, where all its operands exist.
            Some(old) => {
                graph.nodes.remove(old);
            }
            None => index += 1,
        }
    }
}

/// Fuses `conv2d -> batch_norm` by running statistics, with what [`fuse`] has fused into the batch norm, in a forward graph where no
/// gradient will be taken: all of it in evaluation, and what is before all trained parameters in training. No other node may use the
/// convolution's result, and it has no bias. The values in `keep` must stay.
pub fn fuse_convolutions(graph: &mut Graph, keep: &[ValueId], mode: Mode) {
    let mut uses = graph.uses();
    keep.iter().for_each(|id| uses[id.0] += 1);
    let trained = if mode == Mode::Train { after_trained(graph) } else { vec![false; graph.values.len()] };
    let mut index = 0;
    while index < graph.nodes.len() {
        let fused = convolution_before(graph, &uses, index);
        match fused.filter(|(_, fused)| fused.outputs.iter().all(|id| !trained[id.0])) {
            // The convolution has moved to this place, where all operands exist.
            Some((old, fused)) => {
                graph.nodes[index] = fused;
                graph.nodes.remove(old);
            }
            None => index += 1,
        }
    }
}

/// Whether each value depends on trained parameters, or is one.
pub(super) fn after_trained(graph: &Graph) -> Vec<bool> {
    let mut trained = vec![false; graph.values.len()];
    graph.parameters().for_each(|(id, _, parameter)| trained[id.0] = parameter.trainable);
    for node in &graph.nodes {
        let is_trained = node.inputs.iter().any(|id| trained[id.0]);
        node.outputs.iter().for_each(|id| trained[id.0] |= is_trained);
    }
    trained
}

/// Makes the statistics of convolutions' results further results of the convolutions, in a forward graph for training.
pub fn fuse_statistics(graph: &mut Graph) {
    let producers = graph.producers();
    let mut is_fused = vec![false; graph.nodes.len()];
    for (index, is_fused) in is_fused.iter_mut().enumerate() {
        let Node { op: Op::BatchNormStatistics(_), inputs, outputs, .. } = &graph.nodes[index] else { continue };
        let (Some(before), outputs) = (producers[inputs[0].0], outputs.clone()) else { continue };
        let convolution = &mut graph.nodes[before];
        // One reader of a result takes its statistics; those of another are the same.
        if convolution.op.may_give_statistics() && convolution.outputs.len() == 1 {
            convolution.outputs.extend(outputs);
            *is_fused = true;
        }
    }
    let mut is_fused = is_fused.into_iter();
    graph.nodes.retain(|_| is_fused.next() != Some(true));
}

/// The index of the convolution whose result a batch norm alone reads, and both as one node.
fn convolution_before(graph: &Graph, uses: &[usize], index: usize) -> Option<(usize, Node)> {
    let norm = &graph.nodes[index];
    let Op::BatchNormNormalize(BatchNormNormalize { epsilon, statistics: NormStatistics::Running, activation }) =
        norm.op
    else {
        return None;
    };
    let (x, others) = norm.inputs.split_first()?;
    let old = graph.nodes[..index].iter().position(|node| node.outputs.contains(x))?;
    let Node { op: Op::Conv2d(conv), inputs, layer, .. } = &graph.nodes[old] else { return None };
    if uses[x.0] != 1 || inputs.len() != 2 || graph.value(*x).checkpoint {
        return None;
    }
    let inputs: Vec<ValueId> = inputs.iter().chain(others).copied().collect();
    let op = Conv2dBatchNorm { conv: *conv, epsilon, activation };
    Some((old, Node::new(op, inputs, norm.outputs.clone(), norm.phase, layer.clone())))
}

/// Fuses `batch_norm -> conv2d`, with the activation that [`fuse`] has fused into the batch norm, in a forward graph before its gradients
/// are taken, if the batch norm has no residual and no other node uses its result. The values in `keep` must stay.
pub fn fuse_loads(graph: &mut Graph, keep: &[ValueId]) {
    let mut uses = graph.uses();
    keep.iter().for_each(|id| uses[id.0] += 1);
    let mut index = 0;
    while index < graph.nodes.len() {
        match normalized_source(graph, &uses, index) {
            // The batch norm has moved to this place, where all operands exist.
            Some((old, fused)) => {
                graph.nodes[index] = fused;
                graph.nodes.remove(old);
            }
            None => index += 1,
        }
    }
}

/// The index of the batch norm whose result a convolution alone reads, and both as one node.
fn normalized_source(graph: &Graph, uses: &[usize], index: usize) -> Option<(usize, Node)> {
    let Node { op: Op::Conv2d(conv), ref inputs, .. } = graph.nodes[index] else { return None };
    let (source, others) = inputs.split_first()?;
    let old = graph.nodes[..index].iter().position(|node| node.outputs.contains(source))?;
    let Node { op: Op::BatchNormNormalize(norm), inputs: ref of_norm, .. } = graph.nodes[old] else { return None };
    // Gradient checkpointing needs the values that a model marks.
    if uses[source.0] != 1 || of_norm.len() != 5 || graph.value(*source).checkpoint {
        return None;
    }
    let (x, of_norm) = of_norm.split_first()?;
    let (w, bias) = others.split_first()?;
    let inputs: Vec<ValueId> = [x, w].into_iter().chain(of_norm).chain(bias).copied().collect();
    Some((old, Node { op: BatchNormConv2d { norm, conv }.into(), inputs, ..graph.nodes[index].clone() }))
}

/// The index of the batch norm without activation that produces `value`, if `value` has only one use.
fn batch_norm_of(graph: &Graph, uses: &[usize], value: ValueId) -> Option<usize> {
    let index = graph.nodes.iter().position(|node| node.outputs.contains(&value))?;
    let plain = matches!(graph.nodes[index].op, Op::BatchNormNormalize(BatchNormNormalize { activation: None, .. }));
    (plain && uses[value.0] == 1).then_some(index)
}

fn fuse_residual(graph: &mut Graph, uses: &[usize], add: usize) -> Option<usize> {
    let [a, b] = [graph.nodes[add].inputs[0], graph.nodes[add].inputs[1]];
    let (norm, residual) = [(a, b), (b, a)].into_iter().find_map(|(value, other)| {
        let norm = batch_norm_of(graph, uses, value)?;
        (graph.nodes[norm].inputs.len() == 5 && value != other).then_some((norm, other))
    })?;
    let mut fused = graph.nodes[norm].clone();
    fused.inputs.push(residual);
    fused.outputs.clone_from(&graph.nodes[add].outputs);
    graph.nodes[add] = fused;
    Some(norm)
}

fn fuse_activation(graph: &mut Graph, uses: &[usize], index: usize, by: Activation) -> Option<usize> {
    let norm = batch_norm_of(graph, uses, graph.nodes[index].inputs[0])?;
    if graph.nodes[norm].inputs.len() > 5 && !by.is_relu() {
        return None;
    }
    let mut fused = graph.nodes[norm].clone();
    if let Op::BatchNormNormalize(norm) = &mut fused.op {
        norm.activation = Some(by);
    }
    fused.outputs.clone_from(&graph.nodes[index].outputs);
    graph.nodes[index] = fused;
    Some(norm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::freeze;
    use crate::{Builder, Conv, Freeze, Tensor};

    /// Checks the names of the forward operations after fusion; `+` marks a residual, `r` a ReLU, `6` a ReLU6.
    fn check(model: impl Fn(Tensor) -> Tensor, expected: &[&str]) {
        check_fused(fuse, model, expected);
    }

    /// As [`check`], after a pass; `s` marks a SiLU, `h` a hard swish.
    fn check_fused(pass: fn(&mut Graph, &[ValueId]), model: impl Fn(Tensor) -> Tensor, expected: &[&str]) {
        let builder = Builder::new(2, [4, 4], Mode::Evaluate, 0);
        let logits = model(builder.pixels(&[0.0; 3], &[1.0; 3])).flatten().linear("fc", 2);
        let mut forward = builder.finish(&logits, 2).unwrap();
        pass(&mut forward.graph, &[forward.logits]);
        let names: Vec<String> = (forward.graph.nodes.iter())
            .map(|node| match node.op {
                Op::BatchNormNormalize(BatchNormNormalize { activation, .. }) => {
                    let activation = activation.map_or("", |activation| match activation {
                        Activation::Relu => "r",
                        Activation::Relu6 => "6",
                        Activation::Silu => "s",
                        Activation::HardSwish => "h",
                    });
                    format!("bn{}{activation}", if node.inputs.len() > 5 { "+" } else { "" })
                }
                _ => node.op.name().into(),
            })
            .collect();
        assert_eq!(names[1..names.len() - 2], *expected);
    }

    #[test]
    fn convolutions_fuse_with_the_batch_norms_after_them() {
        let check = |model: &dyn Fn(Tensor) -> Tensor, mode: Mode, expected: &[&str]| {
            let builder = Builder::new(2, [4, 4], mode, 0);
            let logits = model(builder.pixels(&[0.0; 3], &[1.0; 3])).flatten().linear("fc", 2);
            let mut forward = builder.finish(&logits, 2).unwrap();
            fuse(&mut forward.graph, &[forward.logits]);
            fuse_convolutions(&mut forward.graph, &[forward.logits], mode);
            let nodes = &forward.graph.nodes;
            let texts: Vec<String> =
                nodes.iter().map(|node| format!("{} ({}) {}", node.op, node.inputs.len(), node.layer)).collect();
            assert_eq!(texts[1..nodes.len() - 2], *expected);
        };
        let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(3, 1).no_bias());
        let residual = |x: Tensor| (conv(x.clone(), "c").batch_norm("b") + x).relu();
        let fused = "conv2d_batch_norm {kernel 1x1 epsilon 0.00001 relu} (7) c";
        check(&residual, Mode::Evaluate, &[fused]);
        let chain = |x: Tensor| conv(conv(x, "c").batch_norm("b").relu6(), "d").batch_norm("e");
        let [first, second] = [
            "conv2d_batch_norm {kernel 1x1 epsilon 0.00001 relu6} (6) c",
            "conv2d_batch_norm {kernel 1x1 epsilon 0.00001} (6) d",
        ];
        check(&chain, Mode::Evaluate, &[first, second]);
        let twice = |x: Tensor| {
            let y = conv(x, "c");
            y.clone().batch_norm("b") + y
        };
        let apart = ["conv2d {kernel 1x1} (2) c", "batch_norm_normalize {epsilon 0.00001 running} (6) b"];
        check(&twice, Mode::Evaluate, &apart);
        let bias = |x: Tensor| x.conv2d("c", Conv::new(3, 1)).batch_norm("b");
        let apart = ["conv2d {kernel 1x1} (3) c", "batch_norm_normalize {epsilon 0.00001 running} (5) b"];
        check(&bias, Mode::Evaluate, &apart);
    }

    #[test]
    fn convolutions_fuse_in_training_before_all_that_is_trained() {
        let check = |frozen: &[&str], expected: &[&str]| {
            let builder = Builder::new(2, [4, 4], Mode::Train, 0);
            let x = builder.pixels(&[0.0; 3], &[1.0; 3]);
            let x = x.conv2d("a", Conv::new(3, 1).no_bias()).batch_norm("a.bn");
            let x = x.conv2d("b", Conv::new(3, 1).no_bias()).batch_norm("b.bn").relu();
            let mut forward = builder.finish(&x.flatten().linear("fc", 2), 2).unwrap();
            let patterns = frozen.iter().map(ToString::to_string).collect();
            freeze(&mut forward.graph, &Freeze::Patterns(patterns)).unwrap();
            fuse(&mut forward.graph, &[forward.logits]);
            fuse_convolutions(&mut forward.graph, &[forward.logits], Mode::Train);
            let nodes = forward.graph.nodes.iter().filter(|node| matches!(node.op, Op::Conv2dBatchNorm(_)));
            assert_eq!(nodes.map(|node| node.layer.as_str()).collect::<Vec<_>>(), expected, "{frozen:?}");
        };
        check(&[], &[]);
        check(&["a"], &["a"]);
        check(&["a", "b"], &["a", "b"]);
        check(&["a", "b.bn"], &["a"]);
        // These statistics are constant, and gradients go through them.
        check(&["b"], &[]);
    }

    #[test]
    fn convolutions_have_the_statistics_of_their_results() {
        let check = |model: &dyn Fn(Tensor) -> Tensor, expected: &[&str]| {
            let builder = Builder::new(2, [4, 4], Mode::Train, 0);
            let logits = model(builder.pixels(&[0.0; 3], &[1.0; 3])).flatten().linear("fc", 2);
            let mut forward = builder.finish(&logits, 2).unwrap();
            fuse_statistics(&mut forward.graph);
            let nodes = forward.graph.nodes.iter().filter(|node| {
                matches!(node.op, Op::Conv2d(_) | Op::BatchNormStatistics(_) | Op::BatchNormNormalize(_))
            });
            let texts: Vec<String> =
                nodes.map(|node| format!("{} {} -> {}", node.layer, node.op.name(), node.outputs.len())).collect();
            assert_eq!(texts, expected);
        };
        let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(3, 1));
        check(&|x| conv(x, "c").batch_norm("b").relu(), &["c conv2d -> 3", "b batch_norm_normalize -> 1"]);
        let twice = |x: Tensor| {
            let y = conv(x, "c");
            conv(y.clone(), "d").batch_norm("a") + y.batch_norm("b")
        };
        let both = ["c conv2d -> 3", "d conv2d -> 3", "a batch_norm_normalize -> 1", "b batch_norm_normalize -> 1"];
        check(&twice, &both);
        // Other values than a convolution's result, and a second reader of one.
        let apart = ["b batch_norm_statistics -> 2", "b batch_norm_normalize -> 1"];
        check(&|x| x.relu().batch_norm("b"), &apart);
        let same = |x: Tensor| {
            let y = conv(x, "c");
            y.clone().batch_norm("a") + y.batch_norm("b")
        };
        check(&same, &[&["c conv2d -> 3", "a batch_norm_normalize -> 1"], &apart[..]].concat());
    }

    #[test]
    fn batch_norms_fuse_unless_their_result_is_used_twice() {
        let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(3, 1).no_bias());
        check(|x| conv(x, "c").batch_norm("b").relu(), &["conv2d", "bnr"]);
        check(|x| conv(x, "c").batch_norm("b").relu6(), &["conv2d", "bn6"]);
        check(|x| conv(x.clone(), "c").batch_norm("b") + x, &["conv2d", "bn+"]);
        check(|x| (x.clone() + conv(x, "c").batch_norm("b")).relu(), &["conv2d", "bn+r"]);
        check(
            |x| (conv(x.clone(), "c").batch_norm("b") + conv(x, "d").batch_norm("e")).relu(),
            &["conv2d", "conv2d", "bn", "bn+r"],
        );
        // The batch norm's output has a second use, so nothing is fused.
        check(
            |x| {
                let y = conv(x, "c").batch_norm("b");
                y.clone().relu() + y
            },
            &["conv2d", "bn", "relu", "add"],
        );
        check(|x| x.clone().relu() + x, &["relu", "add"]);
    }

    #[test]
    fn smooth_activations_fuse_where_a_device_has_them() {
        let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(3, 1).no_bias());
        let silu = |x: Tensor| conv(x, "c").batch_norm("b").silu();
        check(silu, &["conv2d", "bn", "silu"]);
        check_fused(fuse_activations, silu, &["conv2d", "bns"]);
        check_fused(fuse_activations, |x| conv(x, "c").batch_norm("b").hard_swish(), &["conv2d", "bnh"]);
        check_fused(fuse_activations, |x| conv(x, "c").batch_norm("b").relu(), &["conv2d", "bnr"]);
        // The activation's operand does not follow from its result, and with a residual it cannot be recomputed.
        let residual = |x: Tensor| (conv(x.clone(), "c").batch_norm("b") + x).silu();
        check_fused(fuse_activations, residual, &["conv2d", "bn+", "silu"]);
    }
}
