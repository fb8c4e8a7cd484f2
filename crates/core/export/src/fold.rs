//! Batch norms folded into the convolutions before them, so that one kernel of integers gives the result of both.

use enmasse_graph::ops::{BatchNormNormalize, NormStatistics};
use enmasse_graph::{Forward, Node, Op, ValueId};

use crate::Weights;

/// A parameter whose values differ from those of the trained model.
pub(crate) struct Folded {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Folded {
    pub(crate) fn weights(&self) -> Weights<'_> {
        Weights { name: &self.name, shape: &self.shape, values: &self.values }
    }
}

/// Takes out each batch norm that is alone in reading a convolution. Returns the convolution's weights and bias as they are instead; the
/// bias has the name of the batch norm's.
pub(crate) fn fold_batch_norms(forward: &mut Forward, weights: &[Weights]) -> Vec<Folded> {
    let graph = &mut forward.graph;
    let (producers, uses) = (graph.producers(), graph.uses());
    let (mut all, mut taken) = (Vec::new(), Vec::new());
    for at in 0..graph.nodes.len() {
        let norm = graph.nodes[at].clone();
        let Some(epsilon) = foldable(&norm) else { continue };
        let Some(conv) = producers[norm.inputs[0].0].filter(|_| uses[norm.inputs[0].0] == 1) else { continue };
        if !matches!(graph.nodes[conv].op, Op::Conv2d(_)) {
            continue;
        }
        let of = |id: &ValueId| weights.iter().find(|weights| weights.name == graph.value(*id).name);
        let of_conv: Option<Vec<_>> = graph.nodes[conv].inputs[1..].iter().map(of).collect();
        let of_norm: Option<Vec<_>> = norm.inputs[1..].iter().map(of).collect();
        // What is missing is an error of the translation.
        let (Some(of_conv), Some([mean, variance, gamma, beta])) = (of_conv, of_norm.as_deref()) else { continue };
        all.extend(folded(&of_conv, [mean, variance, gamma, beta], epsilon));
        let conv = &mut graph.nodes[conv];
        conv.inputs.truncate(2);
        conv.inputs.push(norm.inputs[4]);
        conv.outputs[0] = norm.outputs[0];
        taken.push(at);
    }
    for at in taken.into_iter().rev() {
        graph.nodes.remove(at);
    }
    all
}

/// The epsilon of a batch norm as a builder records it for evaluation.
fn foldable(node: &Node) -> Option<f32> {
    match node.op {
        Op::BatchNormNormalize(BatchNormNormalize {
            epsilon,
            statistics: NormStatistics::Running,
            activation: None,
        }) if node.inputs.len() == 5 => Some(epsilon),
        _ => None,
    }
}

/// The weights and the bias of a convolution that gives `(conv - mean) / sqrt(variance + epsilon) * gamma + beta`.
fn folded(conv: &[&Weights], [mean, variance, gamma, beta]: [&Weights; 4], epsilon: f32) -> [Folded; 2] {
    let [weight, bias @ ..] = conv else { unreachable!("a convolution has weights") };
    let outputs = gamma.values.len();
    let factor = |output: usize| f64::from(gamma.values[output]) / f64::from(variance.values[output] + epsilon).sqrt();
    let inputs = weight.values.len() / outputs.max(1);
    let values = weight.values.iter().enumerate().map(|(at, value)| (f64::from(*value) * factor(at / inputs)) as f32);
    let shifts = (0..outputs).map(|output| {
        let own = bias.first().map_or(0.0, |bias| f64::from(bias.values[output]));
        ((own - f64::from(mean.values[output])) * factor(output) + f64::from(beta.values[output])) as f32
    });
    [
        Folded { name: weight.name.to_owned(), shape: weight.shape.to_vec(), values: values.collect() },
        Folded { name: beta.name.to_owned(), shape: beta.shape.to_vec(), values: shifts.collect() },
    ]
}
