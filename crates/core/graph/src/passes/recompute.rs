//! Gradient checkpointing: backward computes activations between marked values again, so that they need not be kept.
//!
//! A model marks values by [`Tensor::checkpoint`](crate::Tensor::checkpoint), such as the results of its blocks; of other models the
//! boundaries of blocks are found. Marked values stay in memory, and so do vectors, such as the statistics of batch norm. What else
//! backward reads of the values between two marks, copies of the operations that wrote them compute before it: from the same operands,
//! and therefore with the same bits. Which blocks are computed again, [`crate::recomputation`] chooses.
//!
//! Source: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", 2016 (arXiv:1604.06174).

use std::collections::{BTreeMap, BTreeSet};

use crate::{Axes, Graph, Node, Phase, Role, Value, ValueId};

/// The blocks of a model, between two neighbouring marks each. Those before the first mark and after the last one are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// The first layer of each.
    pub layers: Vec<String>,
    /// For each value that memory need not keep the block that computes it: an image or tokens.
    of_values: Vec<Option<usize>>,
}

impl Blocks {
    /// The blocks of a plan or a graph.
    pub fn new(nodes: &[Node], values: &[Value]) -> Self {
        let forward = || nodes.iter().filter(|node| node.phase == Phase::Forward);
        let is_mark = |node: &&Node| node.outputs.iter().any(|output| values[output.0].checkpoint);
        let all = forward().filter(is_mark).count();
        let mut passed = 0;
        let mut is_new = true;
        let mut blocks = Blocks { layers: Vec::new(), of_values: vec![None; values.len()] };
        for node in forward() {
            if is_mark(&node) {
                (passed, is_new) = (passed + 1, true);
                continue;
            }
            let is_large = |output: &&ValueId| matches!(values[output.0].axes, Axes::Images | Axes::Tokens);
            for output in node.outputs.iter().filter(is_large).filter(|_| passed > 0 && passed < all) {
                if is_new {
                    blocks.layers.push(node.layer.clone());
                }
                is_new = false;
                blocks.of_values[output.0] = Some(blocks.layers.len() - 1);
            }
        }
        blocks
    }

    /// The block of a value that memory need not keep. Later passes add values that belong to none.
    pub fn of(&self, value: ValueId) -> Option<usize> {
        self.of_values.get(value.0).copied().flatten()
    }
}

/// The nodes that must run again for these values, in order.
pub(crate) fn nodes_again(
    nodes: &[Node],
    producers: &[Option<usize>],
    mut wanted: Vec<ValueId>,
    is_missing: impl Fn(ValueId) -> bool,
) -> BTreeSet<usize> {
    let mut places = BTreeSet::new();
    while let Some(value) = wanted.pop() {
        if is_missing(value)
            && let Some(place) = producers[value.0]
            && places.insert(place)
        {
            wanted.extend(&nodes[place].inputs);
        }
    }
    places
}

/// Rewrites a graph with its backward nodes, before the passes over shards. `chosen` says of each block whether backward computes it
/// again.
pub(crate) fn recompute(graph: &mut Graph, chosen: &[bool]) {
    let blocks = Blocks::new(&graph.nodes, &graph.values);
    let is_forgotten = |value: ValueId| blocks.of(value).is_some_and(|block| chosen[block]);
    let producers = graph.producers();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut copies: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let read_copies = |node: &mut Node, copies: &BTreeMap<ValueId, ValueId>| {
        node.inputs.iter_mut().filter(|input| is_forgotten(**input)).for_each(|input| *input = copies[input]);
    };
    for node in &nodes {
        let mut node = node.clone();
        if node.phase == Phase::Backward {
            let is_missing = |value| is_forgotten(value) && !copies.contains_key(&value);
            for place in nodes_again(&nodes, &producers, node.inputs.clone(), is_missing) {
                let mut copy = Node { phase: Phase::Backward, ..nodes[place].clone() };
                read_copies(&mut copy, &copies);
                // Vectors are kept.
                if copy.op.may_give_statistics() {
                    copy.outputs.truncate(1);
                }
                for output in &mut copy.outputs {
                    let again = graph.add_like(graph.value(*output).name.clone(), *output);
                    copies.insert(std::mem::replace(output, again), again);
                }
                graph.nodes.push(copy);
            }
            read_copies(&mut node, &copies);
        }
        graph.nodes.push(node);
    }
}

/// Marks the boundaries of blocks in a model that marks none: the normalised images, and each image or tokens that alone pass on what
/// comes before them and have at most half of the elements that they are computed from, such as the result of a pool.
pub(crate) fn mark_boundaries(graph: &mut Graph) {
    if graph.values.iter().any(|value| value.checkpoint) {
        return;
    }
    let is_large = |value: &Value| value.role == Role::Activation && matches!(value.axes, Axes::Images | Axes::Tokens);
    let mut readers = vec![0; graph.values.len()];
    let forward = || graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
    forward().flat_map(|node| &node.inputs).for_each(|input| readers[input.0] += 1);
    // Images and tokens that a later node reads.
    let mut open: BTreeSet<ValueId> = BTreeSet::new();
    let mut marks: Vec<ValueId> = Vec::new();
    for node in forward() {
        for input in &node.inputs {
            readers[input.0] -= 1;
            if readers[input.0] == 0 {
                open.remove(input);
            }
        }
        let results = node.outputs.iter().filter(|output| is_large(graph.value(**output)) && readers[output.0] > 0);
        open.extend(results);
        let [Some(alone), None] = [open.first(), open.iter().nth(1)] else { continue };
        let elements = |id: &ValueId| graph.shape(*id).elements();
        let read = node.inputs.iter().filter(|input| is_large(graph.value(**input))).map(elements).max();
        let is_smaller = read.is_some_and(|read| 2 * elements(alone) <= read);
        if node.outputs.contains(alone) && (marks.is_empty() || is_smaller) {
            marks.push(*alone);
        }
    }
    for mark in marks {
        graph.values[mark.0].checkpoint = true;
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::Shape;

    use super::*;
    use crate::{Arena, CompileOptions, Conv, Op, Plan, Recompute, Tensor, compile};

    fn blocks(x: Tensor) -> Tensor {
        let mut x = x.conv2d("stem", Conv::new(8, 3).padding(1)).relu().checkpoint();
        for name in ["a", "b", "c"] {
            let y = x
                .clone()
                .conv2d(&format!("{name}.conv1"), Conv::new(16, 3).padding(1))
                .batch_norm(&format!("{name}.bn"));
            let y = y
                .relu()
                .conv2d(&format!("{name}.conv2"), Conv::new(8, 3).padding(1))
                .dropout(&format!("{name}.drop"), 0.1);
            x = (y + x).relu().checkpoint();
        }
        x.adaptive_avg_pool([1, 1]).flatten().linear("fc", 5)
    }

    fn plan(recompute: Recompute) -> Plan {
        let options = CompileOptions { recompute, ..CompileOptions::new("net", 8, 16, 5) };
        compile(&blocks, &options).unwrap().train.unwrap()
    }

    #[test]
    fn blocks_are_computed_again_before_their_gradients() {
        let (usual, again) = (plan(Recompute::Nothing), plan(Recompute::All));
        let layers = |plan: &Plan, phase: Phase| -> Vec<String> {
            let forward = |node: &&Node| matches!(node.op, Op::Conv2d(_) | Op::BatchNormNormalize(_));
            plan.phase(phase).iter().filter(forward).map(|node| node.layer.clone()).collect()
        };
        assert_eq!(layers(&usual, Phase::Forward), layers(&again, Phase::Forward));
        assert!(layers(&usual, Phase::Backward).is_empty());
        // What backward of a residual block reads is the inputs of its convolutions and norms; the sum's result is marked.
        let expected = ["c.conv1", "c.bn", "b.conv1", "b.bn", "a.conv1", "a.bn"];
        assert_eq!(layers(&again, Phase::Backward), expected);
        let bytes = |plan: &Plan| plan.arena_bytes(Arena::Activations);
        assert!(3 * bytes(&again) < 2 * bytes(&usual), "{} of {}", bytes(&again), bytes(&usual));
        // Gradients are complete in the same order, at the same places.
        let gradients = |plan: &Plan| -> Vec<(String, Shape, usize)> {
            let of_gradients = plan.values.iter().zip(&plan.slots).filter(|(_, slot)| slot.arena == Arena::Gradients);
            of_gradients.map(|(value, slot)| (value.name.clone(), value.shape.clone(), slot.offset)).collect()
        };
        assert_eq!(gradients(&usual), gradients(&again));
    }

    #[test]
    fn a_model_without_blocks_is_refused() {
        let check = |model: &dyn Fn(Tensor) -> Tensor| {
            let options = CompileOptions { recompute: Recompute::All, ..CompileOptions::new("net", 2, 8, 5) };
            let error = compile(model, &options).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("`recompute` has no effect"), "{error}");
        };
        let stem = |x: Tensor| x.conv2d("stem", Conv::new(8, 3)).relu();
        check(&|x| stem(x).flatten().linear("fc", 5));
        check(&|x| stem(x).checkpoint().flatten().linear("fc", 5));
        check(&|x| stem(x).checkpoint().conv2d("conv", Conv::new(8, 3)).checkpoint().flatten().linear("fc", 5));
    }
}
