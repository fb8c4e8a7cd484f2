//! Stores which elements the activations of batch norms passed, a bit each, for their gradients.

use enmasse_tensor::DType;

use super::fuse::after_trained;
use crate::ops::BatchNormNormalize;
use crate::passes::Precision;
use crate::{Graph, Op, Role};

/// Makes `passed` a further result of each [`BatchNormNormalize`] that has a ReLU and will have a gradient, in a forward graph for
/// training. A byte of it is for `bytes` of the activations in `precision`, or for one element if the channels do not divide so.
pub(crate) fn store_gates(graph: &mut Graph, bytes: usize, precision: Precision) {
    let trained = after_trained(graph);
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::BatchNormNormalize(BatchNormNormalize { activation: Some(activation), .. }) = node.op else { continue };
        let y = node.outputs[0];
        if !activation.is_relu() || !trained[y.0] {
            continue;
        }
        let value = graph.value(y);
        let dtype = if value.has_precision() { precision.activations() } else { value.dtype };
        let channels = value.shape.last();
        let group = bytes / dtype.size();
        let groups = if channels.is_multiple_of(group) { channels / group } else { channels };
        let mut shape = value.shape.to_vec();
        shape.truncate(shape.len() - 1);
        shape.push(groups);
        let passed = graph.add_value(format!("{}.passed", node.layer), shape.into(), DType::U8, Role::Activation);
        graph.nodes[index].outputs.push(passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, Conv, Freeze, Plan, Target, Tensor, compile};

    /// A stem, a residual block and a layer whose channels do not divide by a packet's.
    fn net(x: Tensor) -> Tensor {
        let conv = |x: Tensor, name: &str, channels: usize| {
            let x = x.conv2d(name, Conv::new(channels, 3).padding(1).no_bias());
            x.batch_norm(&format!("{name}.bn"))
        };
        let x = conv(x, "stem", 16).relu();
        let x = (conv(x.clone(), "a", 16) + x).relu6();
        let x = conv(conv(x, "odd", 6).relu(), "open", 8);
        x.flatten().linear("fc1", 20).batch_norm("vector").relu().linear("fc2", 3)
    }

    fn options(precision: Precision) -> CompileOptions {
        CompileOptions { precision, ..CompileOptions::new("net", 4, 8, 3) }
    }

    fn plan(gate_bytes: Option<usize>, options: &CompileOptions) -> Plan {
        Target { gate_bytes, ..Target::default() }.compile(&net, options).unwrap().train.unwrap()
    }

    /// The last dimension of `passed` by layer.
    fn groups(plan: &Plan) -> Vec<(&str, usize)> {
        let norms = plan.instructions.iter().filter(|node| matches!(node.op, Op::BatchNormNormalize(_)));
        let gated = norms.filter_map(|node| Some((node.layer.as_str(), *node.outputs.get(1)?)));
        gated.map(|(layer, id)| (layer, plan.shape(id).last())).collect()
    }

    #[test]
    fn a_byte_for_a_packet_or_for_an_element() {
        let check = |precision, expected: [usize; 4]| {
            let plan = plan(Some(16), &options(precision));
            let layers = ["stem.bn", "a.bn", "odd.bn", "vector"].into_iter();
            assert_eq!(groups(&plan), layers.zip(expected).collect::<Vec<_>>());
            let text = plan.to_string();
            assert!(text.contains(&format!("u8[4,8,8,{}]", expected[0])), "{text}");
        };
        // Matrices stay f32.
        check(Precision::F32, [4, 4, 6, 5]);
        check(Precision::Tf32, [4, 4, 6, 5]);
        check(Precision::Bf16, [2, 2, 6, 5]);
        check(Precision::F16, [2, 2, 6, 5]);
    }

    #[test]
    fn gradients_read_the_bits_instead_of_the_result() {
        let plan = plan(Some(16), &options(Precision::Bf16));
        let is_gradient = |op: &Op| matches!(op, Op::BatchNormReduce(_) | Op::BatchNormBackward(_));
        let last = plan.instructions.iter().filter(|node| is_gradient(&node.op)).map(|node| {
            let value = plan.value(*node.inputs.last().unwrap());
            (node.layer.as_str(), value.name.as_str(), value.dtype)
        });
        let found: Vec<_> = last.collect();
        for layer in ["stem.bn", "a.bn", "odd.bn", "vector"] {
            let name = format!("{layer}.passed");
            let gates = found.iter().filter(|(of, ..)| *of == layer);
            assert!(gates.clone().count() == 2 && gates.clone().all(|&(_, n, dtype)| (n, dtype) == (&name, DType::U8)));
        }
        assert!(found.iter().filter(|(of, ..)| *of == "open.bn").all(|&(.., dtype)| dtype == DType::F32));
    }

    #[test]
    fn only_where_a_gradient_will_read_them() {
        let options = options(Precision::F32);
        assert_eq!(groups(&plan(None, &options)), []);
        let frozen = Freeze::Patterns(vec!["stem".into(), "stem.bn".into()]);
        let part = plan(Some(16), &CompileOptions { freeze: frozen, ..options.clone() });
        assert_eq!(groups(&part).iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), ["a.bn", "odd.bn", "vector"]);
        assert_eq!(groups(&plan(Some(16), &CompileOptions { fuse: false, ..options.clone() })), []);
        let target = Target { gate_bytes: Some(16), ..Target::default() };
        let evaluate = target.compile(&net, &options).unwrap().evaluate;
        assert_eq!(evaluate.to_string(), compile(&net, &options).unwrap().evaluate.to_string());
    }
}
