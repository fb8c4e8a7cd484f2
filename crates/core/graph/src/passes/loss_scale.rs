//! Loss scaling for f16: backward begins with the loss times a scale, so that small gradients do
//! not vanish, and the update divides by it. A step whose gradients overflow is skipped.
//!
//! Source: PyTorch's `torch.amp.GradScaler`, with its defaults. Here everything is part of the
//! plan:
//!
//! - The scale and its counts of steps are state tensors, `optimizer.loss_scale.*`.
//! - The first gradient of backward is multiplied by the scale.
//! - After the sums over shards one instruction checks all gradients, or their norm if they are
//!   clipped. So every rank decides alike, and the host is not asked.
//! - The division by the scale is part of the factor that the update applies anyway.
//!
//! In a skipped step the parameters, the optimiser's state and the averages stay, and the scale
//! halves. Running statistics move, as in PyTorch, where forward moves them. Adam's correction and
//! the first average count only the steps that were applied.

use enmasse_tensor::DType;

use crate::ops::{Scale, Unscale, UpdateScale};
use crate::{Graph, Node, Phase, Role, Scaling, ValueId};

/// Prefix of the names of the state of loss scaling.
pub const LOSS_SCALE_PREFIX: &str = "optimizer.loss_scale.";

/// The scale before the first step.
const INITIAL: f32 = 65536.0;
const GROWTH: f32 = 2.0;
const BACKOFF: f32 = 0.5;
const INTERVAL: u32 = 2000;

/// The state of loss scaling, `f32 [1]` each. The counts are exact up to 2^24.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossScale {
    pub scale: ValueId,
    good_steps: ValueId,
    skipped_steps: ValueId,
}

impl LossScale {
    /// Adds the state, and multiplies the first gradient that backward computes.
    pub fn begin(graph: &mut Graph) -> Self {
        let mut state = |name: &str, initial: f32| {
            let name = format!("{LOSS_SCALE_PREFIX}{name}");
            graph.add_value(name, [1].into(), DType::F32, Role::LossScale { initial })
        };
        let scale = state("scale", INITIAL);
        let good_steps = state("good_steps", 0.0);
        let skipped_steps = state("skipped_steps", 0.0);
        scale_first_gradient(graph, scale, "scale");
        LossScale { scale, good_steps, skipped_steps }
    }

    /// Appends the check of `values` to the reduce phase: of all gradients, or of their norm.
    pub fn unscale(&self, graph: &mut Graph, values: Vec<ValueId>) -> Scaling<ValueId> {
        let unscale = graph.add_activation("unscale", [2].into());
        let inputs = [values, vec![self.scale]].concat();
        graph.nodes.push(Node::new(Unscale, inputs, [unscale], Phase::Reduce, "step"));
        Scaling { unscale, skipped_steps: self.skipped_steps }
    }

    /// Appends the change of the scale to the update phase. It comes after everything that reads the count of skipped steps.
    pub fn end(&self, graph: &mut Graph, scaling: Scaling<ValueId>) {
        let op = UpdateScale { growth: GROWTH, backoff: BACKOFF, interval: INTERVAL };
        let inputs = [scaling.unscale, self.scale, self.good_steps, self.skipped_steps];
        graph.nodes.push(Node::new(op, inputs, [], Phase::Update, "step"));
    }
}

/// Multiplies the first gradient that backward computes, and so all of them. `word` is a part of the result's name.
pub(super) fn scale_first_gradient(graph: &mut Graph, factor: ValueId, word: &str) {
    // Without backward nodes no parameter reaches the loss.
    let Some(first) = graph.nodes.iter().position(|node| node.phase == Phase::Backward) else { return };
    let Node { outputs, layer, .. } = &graph.nodes[first];
    let seed = outputs[0];
    let layer = layer.clone();
    let scaled = graph.add_like(format!("{layer}.{word}"), seed);
    let users = graph.nodes[first + 1..].iter_mut().flat_map(|node| &mut node.inputs);
    users.filter(|input| **input == seed).for_each(|input| *input = scaled);
    graph.nodes.insert(first + 1, Node::new(Scale, [seed, factor], [scaled], Phase::Backward, layer));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::GradientNorm;
    use crate::{
        Arena, Averaging, CompileOptions, Conv, Init, Loss, Metric, Op, PerSample, Plan, Plans, Precision, Tensor,
        compile,
    };

    fn net(x: Tensor) -> Tensor {
        x.conv2d("conv", Conv::new(8, 3).no_bias()).batch_norm("bn").relu().flatten().linear("fc", 10)
    }

    fn plans(change: impl FnOnce(CompileOptions) -> CompileOptions) -> Plans {
        let options = CompileOptions { precision: Precision::F16, ..CompileOptions::new("net", 2, 4, 10) };
        compile(&net, &change(options)).unwrap()
    }

    /// The instructions of the phases from reduce on, with their operands.
    fn end(plan: &Plan) -> Vec<String> {
        let phases = [Phase::Reduce, Phase::Check, Phase::Update];
        let nodes = phases.iter().flat_map(|&phase| plan.phase(phase));
        let text = |node: &Node| {
            let names: Vec<&str> = node.inputs.iter().rev().take(3).map(|&id| &*plan.value(id).name).collect();
            format!("{} {}", node.op.name(), names.into_iter().rev().collect::<Vec<_>>().join(" "))
        };
        nodes.map(text).collect()
    }

    #[test]
    fn the_state_has_names_and_initial_values() {
        let plans = plans(|options| options);
        let state = plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::LossScale);
        let found: Vec<_> = state.map(|tensor| (&*tensor.name, tensor.slot.offset, tensor.init)).collect();
        let expected = [("scale", 65536.0), ("good_steps", 0.0), ("skipped_steps", 0.0)];
        assert_eq!(found.len(), expected.len());
        for (at, ((name, initial), found)) in expected.into_iter().zip(found).enumerate() {
            assert_eq!(found, (&*format!("optimizer.loss_scale.{name}"), 64 * at, Init::Constant(initial)));
        }
        assert_eq!(plans.arena_bytes(Arena::LossScale), 192);
        assert!(plans.evaluate.arenas.iter().all(|(arena, _)| *arena != Arena::LossScale));
    }

    #[test]
    fn the_first_gradient_is_scaled() {
        let own = PerSample::new(|logits: Tensor, targets: Tensor| (logits.log_softmax() * targets).sum_classes());
        for loss in [Loss::default(), Loss::Custom(own)] {
            let plan = plans(|options| CompileOptions { loss, ..options }).train.unwrap();
            let [seed, scale, next] = &plan.phase(Phase::Backward)[..3] else { panic!("{plan}") };
            assert_eq!((&scale.op, scale.inputs[0], plan.value(scale.inputs[1]).name.as_str()), {
                (&Op::Scale(Scale), seed.outputs[0], "optimizer.loss_scale.scale")
            });
            assert!(next.inputs.contains(&scale.outputs[0]), "{plan}");
            let uses = plan.instructions.iter().flat_map(|node| &node.inputs).filter(|id| **id == seed.outputs[0]);
            assert_eq!(uses.count(), 1);
            // In place, so the scale costs no memory.
            assert_eq!(plan.slot(seed.outputs[0]), plan.slot(scale.outputs[0]));
        }
    }

    #[test]
    fn every_change_of_state_knows_of_the_scale() {
        let plan = plans(|options| CompileOptions { average: Some(Averaging::Ema(0.5)), ..options }).train.unwrap();
        let scaling = "unscale optimizer.loss_scale.skipped_steps";
        let state = "optimizer.loss_scale.scale optimizer.loss_scale.good_steps optimizer.loss_scale.skipped_steps";
        let running = "bn.share bn.running_mean bn.running_var";
        let buffer = "optimizer.momentum_buffer.conv.weight";
        let mut expected = vec![
            "unscale gradient.bn.weight gradient.conv.weight optimizer.loss_scale.scale".to_owned(),
            "check_finite metrics".to_owned(),
            format!("update {buffer} {scaling}"),
            format!("running_update {running}"),
            format!("average ema.fc.bias {scaling}"),
            format!("update_scale {state}"),
        ];
        assert_eq!(end(&plan), expected);
        let norm = |options| CompileOptions { clip_norm: Some(1.0), shards: 2, ..options };
        let plan = plans(norm).train.unwrap();
        expected.remove(4);
        expected[0] = "unscale gradient_norm optimizer.loss_scale.scale".to_owned();
        expected[2] = format!("update gradient_norm {scaling}");
        expected
            .insert(0, "gradient_norm gradient.bn.weight gradient.conv.weight optimizer.loss_scale.scale".to_owned());
        assert_eq!(end(&plan)[1..], expected);
        let text = plan.to_string();
        for part in ["gradient_norm {scaled}", "clip_norm 1 scaled; 0..", "{growth 2 backoff 0.5 interval 2000}"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_norm_is_of_what_is_not_scaled() {
        let plan = plans(|options| CompileOptions { metrics: vec![Metric::GradientNorm], ..options }).train.unwrap();
        let node = plan.instructions.iter().find(|node| node.op == GradientNorm { scaled: true }.into()).unwrap();
        assert_eq!(plan.value(*node.inputs.last().unwrap()).name, "optimizer.loss_scale.scale");
    }

    #[test]
    fn other_precisions_have_no_scale() {
        for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
            let plans = plans(|options| CompileOptions { precision, average: Some(Averaging::Ema(0.5)), ..options });
            assert!(plans.state.iter().all(|tensor| !tensor.name.contains("scale")));
            let text = plans.train.unwrap().to_string();
            assert!(!text.contains("unscale") && !text.contains("scaled") && !text.contains("loss_scale"), "{text}");
        }
    }
}
