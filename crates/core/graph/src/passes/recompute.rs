//! Gradient checkpointing: backward computes activations between marked values again, so that they need not be kept.
//!
//! A model marks values by [`Tensor::checkpoint`](crate::Tensor::checkpoint), such as the results of its blocks. Marked values stay in
//! memory, and so do vectors, such as the statistics of batch norm. What else backward reads of the values between two marks, copies
//! of the operations that wrote them compute before it: from the same operands, and therefore with the same bits.
//!
//! Source: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", 2016 (arXiv:1604.06174).

use std::collections::{BTreeMap, BTreeSet};

use crate::{Axes, Graph, GraphError, Node, Phase, ValueId};

/// Rewrites a graph with its backward nodes, before the passes over shards. It is an error if nothing lies between two marks.
pub(crate) fn recompute(graph: &mut Graph) -> Result<(), GraphError> {
    let forgotten = between_marks(graph);
    if !forgotten.contains(&true) {
        let reason = "`grad_checkpointing` has no effect: the model marks no blocks to be computed again";
        return Err(GraphError::Option(reason.to_owned()));
    }
    let is_forgotten = |value: &ValueId| forgotten.get(value.0) == Some(&true);
    let (producers, nodes) = (graph.producers(), std::mem::take(&mut graph.nodes));
    let mut copies: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let read_copies = |node: &mut Node, copies: &BTreeMap<ValueId, ValueId>| {
        node.inputs.iter_mut().filter(|input| is_forgotten(input)).for_each(|input| *input = copies[input]);
    };
    for node in &nodes {
        let mut node = node.clone();
        if node.phase == Phase::Backward {
            let (mut wanted, mut places) = (node.inputs.clone(), BTreeSet::new());
            while let Some(value) = wanted.pop() {
                let is_missing = is_forgotten(&value) && !copies.contains_key(&value);
                if let Some(place) = producers[value.0].filter(|_| is_missing)
                    && places.insert(place)
                {
                    wanted.extend(&nodes[place].inputs);
                }
            }
            for place in places {
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
    Ok(())
}

/// Whether each value is an image or tokens between two marks. Those before the first one and after the last one are kept.
fn between_marks(graph: &Graph) -> Vec<bool> {
    let forward = || graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
    let is_mark = |node: &&Node| node.outputs.iter().any(|&output| graph.value(output).checkpoint);
    let (all, mut passed) = (forward().filter(is_mark).count(), 0);
    let mut between = vec![false; graph.values.len()];
    for node in forward() {
        if is_mark(&node) {
            passed += 1;
            continue;
        }
        for &output in &node.outputs {
            let is_large = matches!(graph.value(output).axes, Axes::Images | Axes::Tokens);
            between[output.0] = is_large && passed > 0 && passed < all;
        }
    }
    between
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::Shape;

    use super::*;
    use crate::{Arena, CompileOptions, Conv, Op, Plan, Tensor, compile};

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

    fn plan(grad_checkpointing: bool) -> Plan {
        let options = CompileOptions { grad_checkpointing, ..CompileOptions::new("net", 8, 16, 5) };
        compile(&blocks, &options).unwrap().train.unwrap()
    }

    #[test]
    fn blocks_are_computed_again_before_their_gradients() {
        let (usual, again) = (plan(false), plan(true));
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
            let options = CompileOptions { grad_checkpointing: true, ..CompileOptions::new("net", 2, 8, 5) };
            let error = compile(model, &options).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("`grad_checkpointing` has no effect"), "{error}");
        };
        let stem = |x: Tensor| x.conv2d("stem", Conv::new(8, 3)).relu();
        check(&|x| stem(x).flatten().linear("fc", 5));
        check(&|x| stem(x).checkpoint().flatten().linear("fc", 5));
        check(&|x| stem(x).checkpoint().conv2d("conv", Conv::new(8, 3)).checkpoint().flatten().linear("fc", 5));
    }
}
