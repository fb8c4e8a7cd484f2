//! A weight of the loss that comes with each batch, so that a batch that is not full counts by its
//! samples.
//!
//! The plan divides the loss by all places of a global batch. The weight is their number by that of
//! the samples, and the same for all shards. It multiplies the loss, and the first gradient of
//! backward. The weight of a full batch is 1, which changes no bit.

use enmasse_tensor::DType;

use super::loss_scale::scale_first_gradient;
use crate::ops::Scale;
use crate::{Graph, Node, Phase, Role, ValueId};

/// The weight, and the weighted loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedLoss {
    pub weight: ValueId,
    pub loss: ValueId,
}

impl WeightedLoss {
    /// Adds the input, and multiplies `loss` and its gradient by it.
    pub fn new(graph: &mut Graph, loss: ValueId) -> Self {
        let weight = graph.add_value("loss_weight", [1].into(), DType::F32, Role::Input);
        let weighted = graph.add_like("loss.weighted", loss);
        graph.nodes.push(Node::new(Scale, [loss, weight], [weighted], Phase::Loss, "loss"));
        scale_first_gradient(graph, weight, "weight");
        WeightedLoss { weight, loss: weighted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::ShareMetrics;
    use crate::{CompileOptions, Loss, Op, PerSample, Plan, Precision, Tensor, compile};

    fn net(x: Tensor) -> Tensor {
        x.flatten().linear("fc", 10)
    }

    /// The operands of the operations that scale, in their order.
    fn scaled(plan: &Plan, phase: Phase) -> Vec<[&str; 2]> {
        let nodes = plan.phase(phase).iter().filter(|node| matches!(node.op, Op::Scale(_)));
        nodes.map(|node| [0, 1].map(|at| plan.value(node.inputs[at]).name.as_str())).collect()
    }

    #[test]
    fn loss_and_gradient_are_weighted() {
        let own = PerSample::new(|logits: Tensor, targets: Tensor| (logits.log_softmax() * targets).sum_classes());
        let check = |loss: Loss, seed: &str| {
            let options = CompileOptions { loss, weighted_loss: true, ..CompileOptions::new("net", 4, 8, 10) };
            let plans = compile(&net, &options).unwrap();
            let plan = plans.train.unwrap();
            assert_eq!(scaled(&plan, Phase::Loss), [["loss", "loss_weight"]]);
            assert_eq!(scaled(&plan, Phase::Backward), [[seed, "loss_weight"]]);
            assert_eq!(plan.value(plan.loss_weight.unwrap()).role, Role::Input);
            let shared = plan.phase(Phase::Loss).last().unwrap();
            assert_eq!((&shared.op, shared.inputs[0]), (&ShareMetrics { shards: 1 }.into(), plan.loss));
            assert_eq!(plan.value(plan.loss).name, "loss.weighted");
            // A sum over all samples of an evaluation needs no weight.
            assert!(plans.evaluate.loss_weight.is_none() && !plans.evaluate.to_string().contains("weighted"));
        };
        check(Loss::default(), "loss.cross_entropy_backward");
        check(Loss::Custom(own), "loss.sample_sum_backward");
        let plain = compile(&net, &CompileOptions::new("net", 4, 8, 10)).unwrap().train.unwrap();
        assert!(plain.loss_weight.is_none() && scaled(&plain, Phase::Loss).is_empty());
    }

    #[test]
    fn the_gradient_of_f16_is_weighted_and_scaled() {
        let options =
            CompileOptions { precision: Precision::F16, weighted_loss: true, ..CompileOptions::new("net", 4, 8, 10) };
        let plan = compile(&net, &options).unwrap().train.unwrap();
        let factors: Vec<&str> = scaled(&plan, Phase::Backward).iter().map(|[_, factor]| *factor).collect();
        assert_eq!(factors, ["optimizer.loss_scale.scale", "loss_weight"]);
        assert_eq!(scaled(&plan, Phase::Loss), [["loss", "loss_weight"]]);
    }
}
