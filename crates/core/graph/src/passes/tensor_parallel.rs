//! Tensor parallelism, as in Megatron-LM: pairs of linear layers, and attention, are cut over ranks that compute the same samples.
//!
//! The first linear layer of a pair is cut by columns: each rank has a part of its outputs. What is between the two works on single
//! elements or single heads, and so on the part alone. The second one is cut by rows: each rank multiplies its part of the inputs, and the
//! products are added up over the ranks. So each rank has a part of the weights, of their gradients and of the optimiser's state, and
//! a pair costs one sum in forward and one in backward.
//!
//! Pairs are found in the recorded graph, in the order of the model. The cut comes before fusing and before gradients, which follow
//! from the rules of [`CopyToRanks`] and [`SumOverRanks`]. The plan is the same on all ranks: what differs is which part of a tensor a rank
//! has ([`ParameterCut::runs`]).
//!
//! Source: M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019.

use std::fmt;
use std::ops::Range;

use enmasse_tensor::Shape;

use crate::ops::{CopyToRanks, Dropout, SumOverRanks};
use crate::{CompileOptions, Graph, GraphError, Metric, Node, Op, Phase, Recompute, Role, Strategy, ValueId};

/// The layers that are cut over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorParallel {
    /// Ranks that have a part of each of them.
    pub ranks: usize,
    /// Their layers, in the order of the model, and how each is cut.
    pub layers: Vec<(String, LayerCut)>,
    /// Their parameters. The other parameters are whole on each rank.
    pub parameters: Vec<ParameterCut>,
}

/// How a linear layer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCut {
    /// Each rank has a part of the outputs.
    Columns,
    /// Each rank has some heads of the queries, keys and values that the layer gives.
    Heads,
    /// Each rank has a part of the inputs.
    Rows,
}

/// How a parameter is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterCut {
    /// Its name.
    pub name: String,
    /// Its stored shape before the cut.
    pub whole: Shape,
    /// The dimension that is cut.
    axis: usize,
    /// Equal blocks of this dimension, of each of which a rank has a part: one, or three of queries, keys and values.
    blocks: usize,
}

impl ParameterCut {
    /// The elements of the whole tensor that a rank of so many has, in the order in which it has them.
    pub fn runs(&self, rank: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let inner: usize = self.whole[self.axis + 1..].iter().product();
        let outer: usize = self.whole[..self.axis].iter().product();
        let block = self.whole[self.axis] / self.blocks * inner;
        let run = block / ranks;
        (0..outer * self.blocks).map(move |index| index * block + rank * run..index * block + (rank + 1) * run)
    }
}

impl fmt::Display for LayerCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LayerCut::Columns => "columns",
            LayerCut::Heads => "heads",
            LayerCut::Rows => "rows",
        })
    }
}

/// `tensor parallel over 2 ranks: classifier.0 by columns, classifier.3 by rows`.
impl fmt::Display for TensorParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.layers.iter().map(|(layer, cut)| format!("{layer} by {cut}"));
        write!(f, "tensor parallel over {} ranks: {}", self.ranks, layers.collect::<Vec<_>>().join(", "))
    }
}

/// Refuses options that need whole tensors, or have not been made to work with parts of them.
pub(crate) fn check_tensor_parallel(ranks: usize, options: &CompileOptions) -> Result<(), GraphError> {
    let is_norm = |metric: &Metric| matches!(metric, Metric::GradientNorm);
    let refused = [
        (options.stage.is_some(), "stages"),
        (options.sync_batch_norm, "batch norm over all shards"),
        (options.strategy != Strategy::default(), "another strategy than that all ranks update"),
        (options.clip_norm.is_some(), "a limit of the norm of all gradients"),
        (options.metrics.iter().any(is_norm), "the norm of all gradients as a metric"),
        (options.optimizer.adapts(), "an optimizer that uses the norm of each parameter"),
        (options.average.is_some(), "averages of the weights"),
        (options.teacher.is_some(), "a teacher"),
        (options.recompute != Recompute::Nothing, "activations that are computed again"),
        (options.precision.scales_loss(), "a scaled loss"),
    ];
    if let Some((_, what)) = refused.into_iter().find(|(is_given, _)| *is_given) {
        return Err(GraphError::Option(format!("a tensor-parallel model cannot have {what}: leave out one of them")));
    }
    if ranks < 2 {
        return Err(GraphError::Option(format!("a tensor-parallel model needs at least 2 ranks, got {ranks}")));
    }
    Ok(())
}

/// Two linear layers, by the indices of their nodes, and what is between them.
struct Pair {
    first: usize,
    between: Vec<usize>,
    second: usize,
}

/// Cuts every pair of linear layers of a recorded forward graph.
pub(crate) fn cut_layers(graph: &mut Graph, ranks: usize) -> Result<TensorParallel, GraphError> {
    let pairs = pairs(graph);
    if pairs.is_empty() {
        let reason = "tensor parallelism has nothing to cut: the model has no two linear layers with only activations, \
                      dropout or attention between them";
        return Err(GraphError::Option(reason.into()));
    }
    let mut cut = TensorParallel { ranks, layers: Vec::new(), parameters: Vec::new() };
    for pair in &pairs {
        cut.cut_pair(graph, pair)?;
    }
    let mut nodes = Vec::with_capacity(graph.nodes.len() + 2 * pairs.len());
    for (index, mut node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        let layer = node.layer.clone();
        if pairs.iter().any(|pair| pair.first == index) {
            let x = node.inputs[0];
            let copy = graph.add_like(format!("{layer}.copy_to_ranks"), x);
            nodes.push(Node::new(CopyToRanks { ranks }, [x], [copy], Phase::Forward, layer));
            node.inputs[0] = copy;
            nodes.push(node);
        } else if pairs.iter().any(|pair| pair.second == index) {
            let part = graph.add_like(format!("{layer}.part"), node.outputs[0]);
            // The bias is added once, to the sum.
            let bias = node.inputs.split_off(2);
            let [x, w, y] = [node.inputs[0], node.inputs[1], node.outputs[0]];
            nodes.push(Node { inputs: vec![x, w], outputs: vec![part], ..node });
            nodes.push(Node::new(SumOverRanks { ranks }, [vec![part], bias].concat(), [y], Phase::Forward, layer));
        } else {
            nodes.push(node);
        }
    }
    graph.nodes = nodes;
    Ok(cut)
}

/// The pairs of a graph, in its order. No layer is in two.
fn pairs(graph: &Graph) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for first in 0..graph.nodes.len() {
        if pairs.iter().all(|pair| pair.second != first) {
            pairs.extend(pair_from(graph, first));
        }
    }
    pairs
}

/// The pair that begins with a node.
fn pair_from(graph: &Graph, first: usize) -> Option<Pair> {
    let uses = graph.uses();
    let is_own = |node: &Node| {
        let parameters = &node.inputs[1..];
        parameters.iter().all(|id| uses[id.0] == 1 && matches!(graph.value(*id).role, Role::Parameter(_)))
    };
    let is_linear = |node: &Node| matches!(node.op, Op::LinearForward(_)) && is_own(node);
    let mut node = graph.nodes.get(first).filter(|node| is_linear(node))?;
    let mut between = Vec::new();
    loop {
        let y = node.outputs[0];
        let next = graph.nodes.iter().position(|user| user.inputs.first() == Some(&y)).filter(|_| uses[y.0] == 1)?;
        node = &graph.nodes[next];
        match node.op {
            Op::LinearForward(_) if is_linear(node) => return Some(Pair { first, between, second: next }),
            Op::Activation(_) | Op::Function(_) | Op::Dropout(_) => {}
            // What is before it has queries, keys and values in each row, in which dropout would not find its elements.
            Op::Attention(_) if between.is_empty() => {}
            _ => return None,
        }
        between.push(next);
    }
}

impl TensorParallel {
    /// How a state tensor is cut: a parameter, or the optimiser's state of one, which has its name after that of the state.
    pub fn cut_of(&self, state: &str) -> Option<&ParameterCut> {
        let parameter = match state.strip_prefix("optimizer.").and_then(|rest| rest.split_once('.')) {
            Some((_, parameter)) => parameter,
            None => state,
        };
        self.parameters.iter().find(|cut| cut.name == parameter)
    }

    /// Leaves one rank's part of the parameters of a pair and of the values between them.
    fn cut_pair(&mut self, graph: &mut Graph, pair: &Pair) -> Result<(), GraphError> {
        let Pair { first, ref between, second } = *pair;
        let [first, second] = [first, second].map(|index| graph.nodes[index].clone());
        let attention = between.iter().find_map(|&index| match graph.nodes[index].op {
            Op::Attention(attention) => Some(attention),
            _ => None,
        });
        let (divided, what) = match attention {
            Some(attention) => (attention.heads, "heads"),
            None => (graph.shape(first.outputs[0]).last(), "outputs"),
        };
        if !divided.is_multiple_of(self.ranks) {
            let reason = format!("layer {}: its {divided} {what} cannot be cut over {} ranks", first.layer, self.ranks);
            return Err(GraphError::Option(reason));
        }
        let (cut, blocks) = if attention.is_some() { (LayerCut::Heads, 3) } else { (LayerCut::Columns, 1) };
        self.layers.push((first.layer.clone(), cut));
        for &parameter in &first.inputs[1..] {
            let columns = graph.shape(parameter).len() - 1;
            self.cut_parameter(graph, parameter, columns, blocks);
        }
        self.layers.push((second.layer.clone(), LayerCut::Rows));
        self.cut_parameter(graph, second.inputs[1], 0, 1);
        self.narrow_last(graph, first.outputs[0]);
        for &index in between {
            let y = graph.nodes[index].outputs[0];
            let channels = graph.shape(y).last();
            match &mut graph.nodes[index].op {
                Op::Attention(attention) => attention.heads /= self.ranks,
                Op::Dropout(Dropout { per_sample: false, cut_channels, .. }) => *cut_channels = Some(channels),
                _ => {}
            }
            self.narrow_last(graph, y);
            // Of attention the logarithms of sums, one for each head.
            for others in graph.nodes[index].outputs.clone().into_iter().skip(1) {
                self.narrow_last(graph, others);
            }
        }
        Ok(())
    }

    fn cut_parameter(&mut self, graph: &mut Graph, id: ValueId, axis: usize, blocks: usize) {
        let value = &mut graph.values[id.0];
        self.parameters.push(ParameterCut { name: value.name.clone(), whole: value.shape.clone(), axis, blocks });
        narrow(&mut value.shape, axis, self.ranks);
    }

    fn narrow_last(&self, graph: &mut Graph, id: ValueId) {
        let shape = &mut graph.values[id.0].shape;
        narrow(shape, shape.len() - 1, self.ranks);
    }
}

fn narrow(shape: &mut Shape, axis: usize, ranks: usize) {
    let mut dims = shape.to_vec();
    dims[axis] /= ranks;
    *shape = dims.into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plans, Tensor, compile};

    fn compiled(ranks: usize, net: &dyn Fn(Tensor) -> Tensor) -> Result<Plans, GraphError> {
        compile(net, &CompileOptions { tensor_parallel: Some(ranks), ..CompileOptions::new("net", 2, 8, 5) })
    }

    fn mlp(x: Tensor) -> Tensor {
        x.flatten().linear("fc1", 24).relu().dropout("drop", 0.5).linear("fc2", 12).relu().linear("fc3", 5)
    }

    fn vit(x: Tensor) -> Tensor {
        let x = x.patches("patches", 16, 4);
        let y = x.clone().layer_norm("norm1", 1e-6).linear("qkv", 48).attention(4).linear("proj", 16);
        let x = x + y;
        let y = x.clone().layer_norm("norm2", 1e-6).linear("fc1", 64).gelu().linear("fc2", 16);
        (x + y).mean_tokens().linear("head", 5)
    }

    #[test]
    fn pairs_are_found_in_the_graph() {
        let check = |net: &dyn Fn(Tensor) -> Tensor, expected: &str| {
            let plans = compiled(2, net).unwrap();
            let cut = plans.evaluate.tensor_parallel.clone().unwrap();
            assert_eq!(cut.to_string(), format!("tensor parallel over 2 ranks: {expected}"));
            let train = plans.train.unwrap();
            assert_eq!(train.tensor_parallel, Some(cut.clone()));
            assert!(train.to_string().contains(&format!("\n{cut}\n")));
            // One sum of each pair in forward, and one in backward unless nothing before it is trained.
            let count = |plan: &crate::Plan, phase| {
                plan.phase(phase).iter().filter(|node| matches!(node.op, Op::SumOverRanks(_))).count()
            };
            let pairs = cut.layers.len() / 2;
            assert_eq!((count(&train, Phase::Forward), count(&plans.evaluate, Phase::Forward)), (pairs, pairs));
            assert!(count(&train, Phase::Backward) <= pairs);
        };
        check(&mlp, "fc1 by columns, fc2 by rows");
        check(&vit, "qkv by heads, proj by rows, fc1 by columns, fc2 by rows");
        // A value that something else reads is no part of a pair.
        let residual = |x: Tensor| {
            let x = x.flatten().linear("a", 12);
            let y = x.clone().relu().linear("b", 12);
            (x + y).relu().linear("c", 12).relu().linear("d", 5)
        };
        check(&residual, "c by columns, d by rows");
        // Four in a row are two pairs.
        let four = |x: Tensor| {
            let x = x.flatten().linear("a", 12).relu().linear("b", 12).gelu();
            x.linear("c", 8).silu().linear("d", 5)
        };
        check(&four, "a by columns, b by rows, c by columns, d by rows");
    }

    #[test]
    fn a_rank_has_its_part_of_parameters_and_state() {
        let plans = compiled(2, &vit).unwrap();
        let check =
            |name: &str, expected: &[usize]| assert_eq!(plans.find(name).unwrap().shape[..], *expected, "{name}");
        check("qkv.weight", &[16, 24]);
        check("qkv.bias", &[24]);
        check("proj.weight", &[8, 16]);
        check("proj.bias", &[16]);
        check("optimizer.momentum_buffer.fc1.weight", &[16, 32]);
        check("optimizer.momentum_buffer.fc2.weight", &[32, 16]);
        check("head.weight", &[16, 5]);
        let cut = plans.evaluate.tensor_parallel.as_ref().unwrap();
        for tensor in &plans.state {
            let whole = cut.cut_of(&tensor.name).map_or(tensor.shape.elements(), |cut| cut.whole.elements() / 2);
            assert_eq!(tensor.shape.elements(), whole, "{}", tensor.name);
        }
        let dropout = compiled(4, &mlp).unwrap().train.unwrap().to_string();
        assert!(dropout.contains("layer drop part of 24 channels}"), "{dropout}");
    }

    #[test]
    fn runs_are_in_the_order_of_the_part() {
        let check = |whole: &[usize], axis: usize, blocks: usize, rank: usize, expected: &[(usize, usize)]| {
            let cut = ParameterCut { name: "w".into(), whole: whole.to_vec().into(), axis, blocks };
            let found: Vec<_> = cut.runs(rank, 2).map(|run| (run.start, run.end)).collect();
            assert_eq!(found, expected);
        };
        check(&[4, 3], 0, 1, 1, &[(6, 12)]);
        check(&[2, 4], 1, 1, 0, &[(0, 2), (4, 6)]);
        check(&[2, 4], 1, 1, 1, &[(2, 4), (6, 8)]);
        check(&[2, 6], 1, 3, 1, &[(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12)]);
        check(&[12], 0, 3, 0, &[(0, 2), (4, 6), (8, 10)]);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let check = |ranks: usize, net: &dyn Fn(Tensor) -> Tensor, expected: &str| {
            let found = compiled(ranks, net).map(|_| ()).unwrap_err().to_string();
            assert!(found.contains(expected) && !found.contains('\n'), "{found}");
        };
        check(3, &vit, "layer qkv: its 4 heads cannot be cut over 3 ranks");
        check(5, &mlp, "layer fc1: its 24 outputs cannot be cut over 5 ranks");
        check(1, &mlp, "needs at least 2 ranks, got 1");
        check(2, &|x| x.flatten().linear("fc", 5), "nothing to cut");
        let option = |change: fn(&mut CompileOptions), expected: &str| {
            let mut options = CompileOptions { tensor_parallel: Some(2), ..CompileOptions::new("net", 2, 8, 5) };
            change(&mut options);
            let found = compile(&mlp, &options).map(|_| ()).unwrap_err().to_string();
            assert_eq!(found, format!("a tensor-parallel model cannot have {expected}: leave out one of them"));
        };
        option(|options| options.clip_norm = Some(1.0), "a limit of the norm of all gradients");
        option(|options| options.sync_batch_norm = true, "batch norm over all shards");
        option(|options| options.strategy = Strategy::Replicated, "another strategy than that all ranks update");
    }
}
