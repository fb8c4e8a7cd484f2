//! The arithmetic and the memory traffic of an instruction, for profiles.

use crate::ops::{Matmuls, Operand};
use crate::{Node, Op, Plan, ValueId};

/// The cost of an instruction, independent of the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations of the matmuls: two for each product of a direct convolution, including matmuls
    /// with padding. Zero for passes over memory.
    pub flops: u64,
    /// Bytes of operands and results that are stored. Each is counted once, or twice if it is changed in place.
    pub bytes: u64,
}

impl Plan {
    /// The cost of one instruction of this plan. What is never stored is computed where it is read.
    pub fn cost(&self, node: &Node) -> Cost {
        match node.outputs.iter().any(|&id| self.value(id).in_cache) {
            true => Cost::default(),
            false => self.cost_through_cache(node),
        }
    }

    fn cost_through_cache(&self, node: &Node) -> Cost {
        let in_cache = node.inputs.iter().filter(|id| self.value(**id).in_cache);
        let producers = in_cache.filter_map(|id| self.instructions.iter().find(|node| node.outputs.contains(id)));
        producers.map(|producer| self.cost_through_cache(producer)).fold(self.cost_apart(node), Cost::plus)
    }

    fn cost_apart(&self, node: &Node) -> Cost {
        if matches!(node.op, Op::Reshape(_)) && self.slot(node.inputs[0]) == self.slot(node.outputs[0]) {
            return Cost::default();
        }
        let bytes = |index: usize, ids: &[ValueId]| {
            let value = self.value(ids[index]);
            if value.in_cache { 0 } else { (value.shape.elements() * value.dtype.size()) as u64 }
        };
        let operands: u64 = [&node.inputs, &node.outputs]
            .into_iter()
            .flat_map(|ids| (0..ids.len()).map(move |index| bytes(index, ids)))
            .sum();
        let shape = |operand| match operand {
            Operand::Input(index) => self.shape(node.inputs[index]),
            Operand::Output(index) => self.shape(node.outputs[index]),
        };
        let flops = node.op.matmuls().map_or(0, |Matmuls { result, weights }| {
            let (result, weights) = (shape(result), shape(weights));
            2 * (result.elements() * (weights.elements() / result.last().max(1))) as u64
        });
        // Two matmuls of queries, keys and values, and five in the gradient.
        let attention = |matmuls: usize, qkv: ValueId| {
            let shape = self.shape(qkv);
            (2 * matmuls * shape.elements() / 3 * shape[1]) as u64
        };
        let flops = match node.op {
            Op::Attention(_) => attention(2, node.inputs[0]),
            Op::AttentionBackward(_) => attention(5, node.inputs[1]),
            _ => flops,
        };
        // An operand that is changed in place is read and written.
        let changed = node.op.changes(node.inputs.len()).map(|index| bytes(index, &node.inputs));
        Cost { flops, bytes: operands + changed.sum::<u64>() }
    }

    /// The cost of a whole step.
    pub fn total_cost(&self) -> Cost {
        self.instructions.iter().map(|node| self.cost(node)).fold(Cost::default(), Cost::plus)
    }
}

impl Cost {
    /// Both together.
    pub fn plus(self, more: Cost) -> Cost {
        Cost { flops: self.flops + more.flops, bytes: self.bytes + more.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, Conv, Graph, Target, Tensor, chain, compile, fuse_convolutions};

    fn plan(model: &dyn Fn(Tensor) -> Tensor) -> Plan {
        compile(model, &CompileOptions::new("net", 2, 4, 10)).unwrap().train.unwrap()
    }

    fn check(plan: &Plan, name: &str, expected: (u64, u64)) {
        let node = plan.instructions.iter().find(|node| node.op.name() == name).unwrap();
        let Cost { flops, bytes } = plan.cost(node);
        assert_eq!((flops, bytes), expected, "{name}");
    }

    #[test]
    fn matmuls_and_bytes_of_a_small_net() {
        let plan = plan(&|x| x.conv2d("c", Conv::new(8, 3).padding(1).no_bias()).relu().flatten().linear("fc", 10));
        let check = |name: &str, expected: (u64, u64)| check(&plan, name, expected);
        // 2 x 4 x 4 pixels, with 27 matmuls for each of 8 channels.
        let flops = 2 * 32 * 8 * 27;
        check("conv2d", (flops, 4 * (32 * 3 + 27 * 8 + 32 * 8)));
        check("conv2d_backward_weights", (flops, 4 * (32 * 3 + 27 * 8 + 32 * 8)));
        check("linear", (2 * 2 * 128 * 10, 4 * (256 + 1280 + 10 + 20)));
        check("linear_backward_data", (2 * 2 * 128 * 10, 4 * (20 + 1280 + 256)));
        check("relu", (0, 4 * 2 * 256));
        assert_eq!(plan.total_cost().flops, 2 * flops + 3 * 2 * 2 * 128 * 10);
    }

    #[test]
    fn what_is_in_cache_is_computed_where_it_is_read() {
        let model = |x: Tensor| {
            let conv =
                |x: Tensor, name: &str, conv: Conv| x.conv2d(name, conv.no_bias()).batch_norm(&format!("bn_{name}"));
            let x = conv(x, "expand", Conv::new(8, 1));
            let x = conv(x, "deep", Conv::new(8, 3).padding(1).groups(8));
            conv(x, "project", Conv::new(5, 1)).flatten().linear("fc", 10)
        };
        let costs = |in_strips: bool| {
            let fuse = |graph: &mut Graph, keep: &[ValueId], mode| {
                fuse_convolutions(graph, keep, mode);
                chain(graph, keep, |_, _| in_strips);
            };
            let target = Target { fuse: Box::new(fuse), ..Target::default() };
            let plan = target.compile_evaluation(&model, &CompileOptions::new("net", 2, 4, 10)).unwrap().evaluate;
            let nodes = plan.instructions.iter().filter(|node| matches!(node.op, Op::Conv2dBatchNorm(_)));
            nodes.map(|node| (plan.cost(node).flops, plan.cost(node).bytes)).collect::<Vec<_>>()
        };
        // 32 pixels, and four values of each channel of a batch norm.
        let flops = [2 * 32 * 8 * 3, 2 * 32 * 8 * 9, 2 * 32 * 5 * 8];
        let own = [8 * 3 + 4 * 8, 8 * 9 + 4 * 8, 5 * 8 + 4 * 5].map(|values| 4 * values);
        let between = 4 * 32 * 8;
        let stored = [own[0] + 4 * 32 * 3 + between, own[1] + 2 * between, own[2] + between + 4 * 32 * 5];
        assert_eq!(costs(false), flops.into_iter().zip(stored).collect::<Vec<_>>());
        let all = own.iter().sum::<u64>() + 4 * 32 * (3 + 5);
        assert_eq!(costs(true), [(0, 0), (0, 0), (flops.iter().sum(), all)]);
    }

    #[test]
    fn tokens_are_rows_and_a_reshape_in_place_is_free() {
        let plan = plan(&|x| x.conv2d("c", Conv::new(8, 1)).tokens().linear("fc1", 5).mean_tokens().linear("fc2", 10));
        check(&plan, "linear", (2 * 32 * 8 * 5, 4 * (32 * 8 + 8 * 5 + 5 + 32 * 5)));
        check(&plan, "reshape", (0, 0));
    }

    #[test]
    fn the_matmuls_of_attention() {
        let plan = plan(&|x| x.conv2d("qkv", Conv::new(12, 1)).tokens().attention(2).mean_tokens().linear("fc", 10));
        // 2 samples of 16 tokens with 4 channels of each kind.
        let matmul = 2 * 2 * 16 * 16 * 4;
        let token = 2 * 16 * 4;
        let sums = 2 * 2 * 16;
        check(&plan, "attention", (2 * matmul, 4 * (4 * token + sums)));
        check(&plan, "attention_backward", (5 * matmul, 4 * (8 * token + sums)));
    }
}
