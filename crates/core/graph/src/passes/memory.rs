//! Computes offsets from liveness: values of the activation arena whose lifetimes do not overlap share memory.

use enmasse_tensor::{DType, Shape};

use crate::plan::aligned_bytes;
use crate::{Graph, Node, Role, ValueId};

/// Offsets in the activation arena for every activation that some node uses, and the arena's size in bytes.
///
/// A value lives from the node that writes it to the last node that reads it; the values in `keep` live to the end. An output
/// takes the place of an input whose life ends there if the operation allows it ([`crate::Op::in_place`]). Blocks are placed
/// largest first, each at the lowest offset where it overlaps no block with an overlapping lifetime.
pub(crate) fn place_activations(graph: &Graph, keep: &[ValueId]) -> (Vec<Option<usize>>, usize) {
    let blocks = blocks(graph, keep);
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].bytes), blocks[i].first));
    let mut offsets = vec![None; graph.values.len()];
    let mut placed: Vec<(usize, usize)> = Vec::new(); // (block, offset), by offset
    let mut total = 0;
    for index in order {
        let block = &blocks[index];
        let mut offset = 0;
        for &(other, at) in &placed {
            let other = &blocks[other];
            let together = block.first <= other.last && other.first <= block.last;
            if together && at < offset + block.bytes && offset < at + other.bytes {
                offset = at + other.bytes;
            }
        }
        let at = placed.partition_point(|&(_, o)| o < offset);
        placed.insert(at, (index, offset));
        total = total.max(offset + block.bytes);
        block.values.iter().for_each(|id| offsets[id.0] = Some(offset));
    }
    (offsets, total)
}

/// Bytes that the activations would need if none shared memory.
pub(crate) fn unshared_bytes(graph: &Graph) -> usize {
    touched(graph).into_iter().map(|id| bytes(graph, id)).sum()
}

struct ArenaBlock {
    values: Vec<ValueId>,
    bytes: usize,
    first: usize,
    last: usize,
}

fn bytes(graph: &Graph, id: ValueId) -> usize {
    let (shape, dtype): (&Shape, DType) = (graph.shape(id), graph.value(id).dtype);
    aligned_bytes(shape, dtype)
}

fn is_activation(graph: &Graph, id: ValueId) -> bool {
    graph.value(id).role == Role::Activation && !graph.value(id).in_cache
}

fn operands(node: &Node) -> impl Iterator<Item = ValueId> {
    node.inputs.iter().chain(&node.outputs).copied()
}

fn touched(graph: &Graph) -> Vec<ValueId> {
    let mut ids: Vec<ValueId> = graph.nodes.iter().flat_map(operands).filter(|&id| is_activation(graph, id)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// One block per value, or per chain of values at the same place.
fn blocks(graph: &Graph, keep: &[ValueId]) -> Vec<ArenaBlock> {
    let mut first = vec![usize::MAX; graph.values.len()];
    let mut last = vec![0; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in operands(node) {
            first[id.0] = first[id.0].min(index);
            last[id.0] = index;
        }
    }
    // What is computed together with its reader has its operands read there.
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let read = node.outputs.iter().filter(|id| graph.value(**id).in_cache).map(|id| last[id.0]).max();
        node.inputs.iter().for_each(|id| last[id.0] = last[id.0].max(read.unwrap_or(index)));
    }
    keep.iter().for_each(|id| last[id.0] = graph.nodes.len());
    let mut block_of: Vec<Option<usize>> = vec![None; graph.values.len()];
    let mut blocks: Vec<ArenaBlock> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for (position, &id) in node.outputs.iter().enumerate() {
            if !is_activation(graph, id) {
                continue;
            }
            let host =
                node.op.in_place(node.inputs.len()).filter(|&(output, _)| output == position).and_then(|(_, input)| {
                    let host = node.inputs[input];
                    let ends = last[host.0] == index && node.inputs.iter().filter(|&&i| i == host).count() == 1;
                    (ends && bytes(graph, host) == bytes(graph, id)).then_some(block_of[host.0]).flatten()
                });
            let block = host.unwrap_or_else(|| {
                blocks.push(ArenaBlock {
                    values: Vec::new(),
                    bytes: bytes(graph, id),
                    first: first[id.0],
                    last: last[id.0],
                });
                blocks.len() - 1
            });
            blocks[block].values.push(id);
            blocks[block].last = blocks[block].last.max(last[id.0]);
            block_of[id.0] = Some(block);
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Dropout, Flatten};
    use crate::{Op, Phase};

    /// A chain of element-wise nodes over values of the given sizes.
    fn chain(op: Op, sizes: &[usize]) -> (Graph, Vec<ValueId>) {
        let mut graph = Graph::default();
        let ids: Vec<ValueId> = sizes.iter().map(|&n| graph.add_activation("v", [n].into())).collect();
        let node = |op: &Op, inputs: &[ValueId], output| Node {
            op: op.clone(),
            inputs: inputs.into(),
            outputs: vec![output],
            phase: Phase::Forward,
            layer: String::new(),
        };
        graph.nodes.push(node(&Flatten.into(), &[], ids[0]));
        for pair in ids.windows(2) {
            graph.nodes.push(node(&op, &pair[..1], pair[1]));
        }
        (graph, ids)
    }

    #[test]
    fn operands_live_until_what_is_in_cache_is_read() {
        let (mut graph, ids) = chain(Flatten.into(), &[16, 16, 16, 16, 16]);
        [2, 3].into_iter().for_each(|at| graph.values[ids[at].0].in_cache = true);
        let (offsets, total) = place_activations(&graph, &[ids[4]]);
        assert_eq!([2, 3].map(|at| offsets[ids[at].0]), [None; 2]);
        // The second value is read by the last node.
        assert_ne!(offsets[ids[1].0], offsets[ids[4].0]);
        assert_eq!((offsets[ids[0].0], total), (offsets[ids[4].0], 128));
    }

    #[test]
    fn two_values_of_a_chain_live_at_a_time() {
        let check = |op: Op, sizes: &[usize], expected: usize| {
            let (graph, ids) = chain(op, sizes);
            let (offsets, total) = place_activations(&graph, &[*ids.last().unwrap()]);
            assert_eq!(total, expected);
            assert!(ids.iter().all(|id| offsets[id.0].unwrap() + bytes(&graph, *id) <= total));
        };
        check(Flatten.into(), &[16, 16, 16, 16], 128);
        check(Flatten.into(), &[16, 32, 16, 32], 192);
        // All values share one place.
        let dropout =
            Dropout { probability: 0.5, seed: 0, layer: String::new(), per_sample: false, cut_channels: None };
        check(dropout.into(), &[16, 16, 16, 16], 64);
        check(Flatten.into(), &[1, 1], 128);
    }
}
