//! The precision of a plan: the element type in which activations are stored, and how products are
//! computed.
//!
//! With bf16, images `[N,H,W,C]`, tokens `[N,T,C]` and their gradients have that element type, on a GPU also the features
//! `[N,C]` before the logits. All other values stay f32: files, collectives and the optimiser see f32 only. `ops/mod.rs` says where
//! the two meet. Every value, state tensor and bucket states its own element type, so devices follow their
//! operands. They always compute and add in f32. The types are in the plan's text, so ranks that
//! differ are found.
//!
//! - bf16 halves the size of activations, and lets a device multiply pairs of elements.
//! - f16 does so too, with a smaller range, so its plans scale the loss. Only GPUs run it.
//! - tf32 stores everything in f32, and lets a GPU round what it multiplies. The CPU refuses it.
//!
//! In bf16 the error of a step against f64 may be at most 1.5 times that of PyTorch's autocast, or
//! 2.5 times with Winograd. The tests of `models` compare them, tensor by tensor.

use std::fmt;

use enmasse_tensor::DType;

use crate::ops::Reshape;
use crate::{Axes, Graph, Op, Role, ValueId};

/// The element type in which the activations between layers are stored, and how convolutions and linear layers multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// IEEE single precision, like everything else.
    #[default]
    F32,
    /// Stored as f32. Convolutions and linear layers may round both operands of a product to f32's range with ten bits of
    /// fraction, as the tensor cores of NVIDIA's GPUs do. Sums are f32. Evaluation multiplies in the same way.
    Tf32,
    /// The 16-bit float with f32's range. Parameters, their gradients, the optimiser's state, statistics, logits and the loss stay
    /// f32, and features unless the target narrows them ([`crate::Target::narrow_features`]).
    Bf16,
    /// IEEE half precision, for the same values. Gradients of activations would vanish below its range, so the loss is scaled: see
    /// [`crate::ops::UpdateScale`].
    F16,
}

impl Precision {
    /// The name in plans and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => DType::F32.name(),
            Precision::Tf32 => "tf32",
            Precision::Bf16 => DType::Bf16.name(),
            Precision::F16 => DType::F16.name(),
        }
    }

    /// The element type of activations.
    pub const fn activations(self) -> DType {
        match self {
            Precision::F32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
            Precision::F16 => DType::F16,
        }
    }

    /// Whether a training step scales its loss.
    pub const fn scales_loss(self) -> bool {
        matches!(self, Precision::F16)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Stores the activations of a graph and their gradients in `precision`. [`crate::ops`] documents the types of all operands.
pub fn precision(graph: &mut Graph, precision: Precision) {
    graph
        .values
        .iter_mut()
        .filter(|value| value.has_precision())
        .for_each(|value| value.dtype = precision.activations());
}

/// Lets features, and the gradients that autodiff gives them, have the precision's element type. Logits stay f32, and what an operation
/// has beside them, unless it may mix types: a linear layer, or [`crate::ops::Flatten`]. One of the latter that changes neither type nor
/// order becomes a [`Reshape`], which is no work.
pub(crate) fn narrow_features(graph: &mut Graph, logits: ValueId) {
    let is_matrix = |graph: &Graph, id: ValueId| {
        let value = graph.value(id);
        value.role == Role::Activation && value.axes == Axes::Matrix
    };
    let mut wide = vec![logits];
    loop {
        let same = graph.nodes.iter().filter(|node| !matches!(node.op, Op::LinearForward(_) | Op::Flatten(_)));
        let beside = same
            .map(|node| node.inputs.iter().chain(&node.outputs).copied())
            .filter(|operands| operands.clone().any(|id| wide.contains(&id)))
            .flatten();
        let more: Vec<ValueId> = beside.filter(|&id| is_matrix(graph, id) && !wide.contains(&id)).collect();
        if more.is_empty() {
            break;
        }
        wide.extend(more);
    }
    let features: Vec<ValueId> =
        graph.ids().map(|(id, _)| id).filter(|&id| is_matrix(graph, id) && !wide.contains(&id)).collect();
    features.into_iter().for_each(|id| graph.values[id.0].axes = Axes::Features);
    let Graph { nodes, values, .. } = graph;
    for node in nodes.iter_mut().filter(|node| matches!(node.op, Op::Flatten(_))) {
        let [x, y] = [node.inputs[0], node.outputs[0]].map(|id| &values[id.0]);
        let pixels = x.shape[1] * x.shape[2];
        let channels = x.shape[3];
        if (pixels == 1 || channels == 1) && x.has_precision() && y.has_precision() {
            node.op = Reshape.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Arena, CompileOptions, Conv, Loss, Metric, Mode, Op, PerSample, Plan, Pool, Target, Tensor, Value, compile,
    };

    /// Every kind of operation that touches activations.
    fn net(x: Tensor) -> Tensor {
        let x = x.conv2d("stem", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn").relu();
        let y = x.clone().conv2d("a", Conv::new(8, 3).padding(1)).relu6().batch_norm("bn_a");
        let x = (y + x).relu().max_pool(Pool::new(2)).dropout("drop", 0.5).avg_pool(Pool::new(2));
        x.adaptive_avg_pool([1, 1]).flatten().linear("fc1", 20).batch_norm("bn_1").relu().linear("fc2", 10)
    }

    fn plan(precision: Precision, mode: Mode) -> Plan {
        let options =
            CompileOptions { precision, shards: 2, sync_batch_norm: true, ..CompileOptions::new("net", 4, 16, 10) };
        compile(&net, &options).unwrap().plan(mode).unwrap().clone()
    }

    #[test]
    fn operands_of_each_operation() {
        let [train, evaluate] = [Mode::Train, Mode::Evaluate].map(|mode| plan(Precision::Bf16, mode));
        let check = |plan: &Plan, op: &str, layer: &str, expected: &str| {
            let node = plan.instructions.iter().find(|node| node.op.name() == op && node.layer == layer);
            let node = node.unwrap_or_else(|| panic!("no {op} of {layer}\n{plan}"));
            let names = |ids: &[crate::ValueId]| -> String {
                ids.iter().map(|&id| plan.value(id).dtype.name()).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(format!("{} -> {}", names(&node.inputs), names(&node.outputs)), expected, "{op} of {layer}");
        };
        for plan in [&train, &evaluate] {
            check(plan, "normalize", "input", "u8 -> bf16");
            check(plan, "conv2d", "stem", "bf16 f32 -> bf16");
            check(plan, "conv2d", "a", "bf16 f32 f32 -> bf16");
            check(plan, "batch_norm_normalize", "bn", "bf16 f32 f32 f32 f32 -> bf16");
            check(plan, "batch_norm_normalize", "bn_a", "bf16 f32 f32 f32 f32 bf16 -> bf16");
            check(plan, "batch_norm_normalize", "bn_1", "f32 f32 f32 f32 f32 -> f32");
            check(plan, "relu6", "a", "bf16 -> bf16");
            check(plan, "max_pool", "bn_a", "bf16 -> bf16 u8");
            check(plan, "adaptive_avg_pool", "drop", "bf16 -> bf16");
            check(plan, "flatten", "drop", "bf16 -> f32");
            check(plan, "linear", "fc1", "f32 f32 f32 -> f32");
            check(plan, "cross_entropy", "loss", "f32 i32 -> f32 f32 f32");
        }
        check(&train, "flatten_backward", "drop", "f32 -> bf16");
        check(&train, "dropout", "drop", "bf16 i64 -> bf16");
        check(&train, "avg_pool_backward", "drop", "bf16 -> bf16");
        check(&train, "max_pool_backward", "bn_a", "bf16 u8 -> bf16");
        check(&train, "batch_norm_statistics", "bn", "bf16 -> f32 f32");
        check(&train, "batch_norm_reduce", "bn", "bf16 bf16 f32 f32 f32 f32 -> f32 f32");
        check(&train, "batch_norm_backward", "bn", "bf16 bf16 f32 f32 f32 f32 f32 f32 f32 -> bf16");
        check(&train, "batch_norm_backward", "bn_a", "bf16 bf16 f32 f32 f32 f32 f32 bf16 -> bf16 bf16");
        check(&train, "batch_norm_backward", "bn_1", "f32 f32 f32 f32 f32 f32 f32 f32 f32 -> f32");
        check(&train, "sync_statistics", "bn", "f32 f32 -> f32 f32");
        check(&train, "conv2d_backward_data", "a", "bf16 f32 bf16 -> bf16");
        check(&train, "conv2d_backward_weights", "a", "bf16 bf16 -> f32");
        check(&train, "bias_backward", "a", "bf16 -> f32");
        check(&train, "linear_backward_data", "fc1", "f32 f32 -> f32");
    }

    #[test]
    fn only_maps_change() {
        for mode in [Mode::Train, Mode::Evaluate] {
            let (single, half) = (plan(Precision::F32, mode), plan(Precision::Bf16, mode));
            let instructions = |plan: &Plan| -> Vec<Op> { plan.instructions.iter().map(|n| n.op.clone()).collect() };
            assert_eq!(instructions(&single), instructions(&half));
            for (single, half) in single.values.iter().zip(&half.values) {
                let image = single.role == Role::Activation && single.shape.len() == 4;
                assert_eq!(single.has_precision(), image && single.dtype == DType::F32, "{}", single.name);
                assert_eq!(
                    half.dtype,
                    if single.has_precision() { DType::Bf16 } else { single.dtype },
                    "{}",
                    half.name
                );
            }
            let activations = |plan: &Plan| (plan.arena_bytes(Arena::Activations), plan.unshared_activations);
            let ((arena, unshared), before) = (activations(&half), activations(&single));
            assert!(arena * 10 < before.0 * 6 && unshared * 10 < before.1 * 6, "{arena} {unshared} {before:?}");
            let others = |plan: &Plan| -> Vec<(Arena, usize)> {
                plan.arenas.iter().copied().filter(|&(arena, _)| arena != Arena::Activations).collect()
            };
            assert_eq!(others(&single), others(&half));
        }
    }

    /// Values `[N,C]` and their gradients, up to the last linear layer. Before logits that no linear layer gives, as when features are
    /// asked for, what shares an operation with them is f32 too.
    #[test]
    fn features_of_a_target_that_narrows_them() {
        let target = Target { narrow_features: true, ..Target::default() };
        let options = CompileOptions { precision: Precision::Bf16, ..CompileOptions::new("net", 4, 16, 10) };
        let plans = target.compile(&net, &options).unwrap();
        let whole = plans.train.unwrap();
        let types = |plan: &Plan, op: &str, layer: &str| {
            let node = plan.instructions.iter().find(|node| node.op.name() == op && node.layer == layer);
            let node = node.unwrap_or_else(|| panic!("no {op} of {layer}\n{plan}"));
            let names =
                |ids: &[ValueId]| ids.iter().map(|&id| plan.value(id).dtype.name()).collect::<Vec<_>>().join(" ");
            format!("{} -> {}", names(&node.inputs), names(&node.outputs))
        };
        for (op, layer, expected) in [
            ("reshape", "drop", "bf16 -> bf16"),
            ("linear", "fc1", "bf16 f32 f32 -> bf16"),
            ("batch_norm_statistics", "bn_1", "bf16 -> f32 f32"),
            ("batch_norm_normalize", "bn_1", "bf16 f32 f32 f32 f32 -> bf16"),
            ("linear", "fc2", "bf16 f32 f32 -> f32"),
            ("cross_entropy", "loss", "f32 i32 -> f32 f32 f32"),
            ("linear_backward_weights", "fc2", "bf16 f32 -> f32"),
            ("bias_backward", "fc2", "f32 -> f32"),
            ("linear_backward_data", "fc2", "f32 f32 -> bf16"),
            ("linear_backward_weights", "fc1", "bf16 bf16 -> f32"),
        ] {
            assert_eq!(types(&whole, op, layer), expected, "{op} of {layer}");
        }
        let of_features = target.compile_features(&net, &options, Some("bn_1")).unwrap().evaluate;
        assert_eq!(types(&of_features, "linear", "fc1"), "bf16 f32 f32 -> f32");
        assert_eq!(types(&of_features, "batch_norm_normalize", "bn_1"), "f32 f32 f32 f32 f32 -> f32");
        let several = |x: Tensor| x.conv2d("conv", Conv::new(8, 3)).flatten().linear("fc", 10);
        let plan = target.compile(&several, &options).unwrap().train.unwrap();
        assert_eq!(types(&plan, "flatten", "conv"), "bf16 -> bf16");
        assert_eq!(types(&plan, "flatten_backward", "conv"), "bf16 -> bf16");
    }

    /// The plans differ in their first line alone, from which a device takes how it multiplies.
    #[test]
    fn tf32_is_a_name_in_the_header() {
        for mode in [Mode::Train, Mode::Evaluate] {
            let [single, rounding] =
                [Precision::F32, Precision::Tf32].map(|precision| plan(precision, mode).to_string());
            assert_eq!(single.replacen("precision f32", "precision tf32", 1), rounding);
        }
    }

    /// Logits, and values computed from them, are not activations.
    #[test]
    fn functions_of_logits_stay_in_f32() {
        let function = PerSample::new(|logits: Tensor, targets: Tensor| {
            let y = logits.log_softmax().scale_classes(&[0.5; 10]) * targets;
            y.exp().log().sum_classes().power(2.0).clamp_min(0.5).affine(-1.0, 1.0)
        });
        let own = Metric::Custom { name: "own".into(), function: function.clone() };
        let loss = Loss::Custom(function);
        let metrics = vec![Metric::Top(5), own];
        let options =
            CompileOptions { loss, metrics, precision: Precision::Bf16, ..CompileOptions::new("net", 4, 16, 10) };
        let plans = compile(&net, &options).unwrap();
        for plan in [plans.train.as_ref().unwrap(), &plans.evaluate] {
            let of_loss = plan.instructions.iter().filter(|node| ["loss", "own", "top5"].contains(&&*node.layer));
            let values: Vec<&Value> = of_loss.flat_map(|node| &node.outputs).map(|&id| plan.value(id)).collect();
            assert!(values.len() > 20, "{plan}");
            assert!(values.iter().all(|value| value.dtype == DType::F32 && !value.has_precision()), "{plan}");
        }
    }

    #[test]
    fn the_text_states_the_precision() {
        let check = |precision, header: &str, normalized: &str| {
            let text = plan(precision, Mode::Train).to_string();
            assert!(text.lines().next().is_some_and(|line| line.ends_with(header)), "{text}");
            assert!(text.contains(normalized), "{text}");
        };
        check(Precision::F32, "shards 2, precision f32, filters hwio", "f32[4,16,16,3] @activations");
        check(Precision::Bf16, "shards 2, precision bf16, filters hwio", "bf16[4,16,16,3] @activations");
    }
}
