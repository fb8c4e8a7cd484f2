//! The optimiser's part of a training step: its state as values, the norm of all gradients, and one update over all of them.

use std::collections::HashMap;

use enmasse_tensor::DType;

use super::LossScale;
use crate::ops::GradientNorm;
use crate::{
    CompileOptions, Graph, GraphError, Metric, Node, Optimizer, Phase, Plan, Role, Scaling, Update, UpdateRange, Value,
    ValueId,
};

/// What the update of a step needs to know of all gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfGradients {
    /// Their norm, if they are clipped or the norm is a metric.
    pub norm: Option<ValueId>,
    /// Whether the step is skipped, if the loss is scaled.
    pub scaling: Option<Scaling<ValueId>>,
}

/// Appends the update of all trainable parameters. `gradients` lists `(parameter, gradient)` in the order of their arena.
pub(crate) fn optimize(
    graph: &mut Graph,
    gradients: &[(ValueId, ValueId)],
    options: &CompileOptions,
    loss_scale: Option<&LossScale>,
) -> Result<OfGradients, GraphError> {
    let optimizer = options.optimizer.clone();
    let clip_norm = options.clip_norm;
    if let Optimizer::Custom(own) = &optimizer {
        own.check()?;
    }
    if let Some(clip_norm) = clip_norm
        && !(clip_norm.is_finite() && clip_norm > 0.0)
    {
        return Err(GraphError::Option(format!("the clip norm must be finite and above 0, got {clip_norm}")));
    }
    options.layer_rates.check()?;
    // A rule may be about another stage's parameters. The whole model's compilation checks it.
    if options.stage.is_none() {
        options.groups.check(gradients.iter().map(|&(parameter, _)| graph.value(parameter).name.as_str()))?;
    }
    let is_measured = options.metrics.iter().any(|metric| matches!(metric, Metric::GradientNorm));
    let norm = (is_measured || clip_norm.is_some()).then(|| gradient_norm(graph, gradients, loss_scale));
    let all = || gradients.iter().map(|&(_, gradient)| gradient).collect();
    // A norm is not finite if a gradient is not, so one pass over them is enough.
    let scaling = loss_scale.map(|scale| scale.unscale(graph, norm.map_or_else(all, |norm| vec![norm])));
    let state = add_state(graph, &optimizer);
    let state = state.iter().flat_map(|of_parameter| gradients.iter().map(|(parameter, _)| of_parameter[parameter]));
    let inputs = (gradients.iter().map(|&(_, gradient)| gradient))
        .chain(gradients.iter().map(|&(parameter, _)| parameter))
        .chain(state)
        .chain(norm.filter(|_| clip_norm.is_some()))
        .chain(scaling.into_iter().flat_map(|scaling| [scaling.unscale, scaling.skipped_steps]))
        .collect::<Vec<_>>();
    let ranges = ranges(graph, gradients, options);
    let op = Update { optimizer, ranges, clip_norm, scaled: scaling.is_some() };
    graph.nodes.push(Node::new(op, inputs, [], Phase::Update, "step"));
    Ok(OfGradients { norm, scaling })
}

/// Appends the norm of all gradients, without the scale of the loss, to the reduce phase.
fn gradient_norm(graph: &mut Graph, gradients: &[(ValueId, ValueId)], scale: Option<&LossScale>) -> ValueId {
    let norm = graph.add_activation("gradient_norm", [1].into());
    let inputs = gradients.iter().map(|&(_, gradient)| gradient).chain(scale.map(|state| state.scale));
    let op = GradientNorm { scaled: scale.is_some() };
    graph.nodes.push(Node::new(op, inputs.collect::<Vec<_>>(), [norm], Phase::Reduce, "step"));
    norm
}

/// Adds the optimiser's state of each trainable parameter: a feature map from parameter to state for each state name.
fn add_state(graph: &mut Graph, optimizer: &Optimizer) -> Vec<HashMap<ValueId, ValueId>> {
    let trainable = graph.parameters().filter(|(_, _, parameter)| parameter.trainable);
    let trainable: Vec<_> = trainable.map(|(id, value, _)| (id, value.name.clone(), value.shape.clone())).collect();
    let mut add = |(slot, kind): (usize, &&str)| {
        let mut of_parameter = HashMap::new();
        for (parameter, name, shape) in &trainable {
            let role = Role::Optimizer { parameter: *parameter, slot };
            let value = graph.add_value(format!("optimizer.{kind}.{name}"), shape.clone(), DType::F32, role);
            of_parameter.insert(*parameter, value);
        }
        of_parameter
    };
    optimizer.state_names().iter().enumerate().map(&mut add).collect()
}

/// The ranges of the arena. Adjacent parameters of one group form one range, except parameters to whose norms the optimiser
/// adapts its rate.
fn ranges(graph: &Graph, gradients: &[(ValueId, ValueId)], options: &CompileOptions) -> Vec<UpdateRange> {
    let mut ranges: Vec<UpdateRange> = Vec::new();
    let of_layers: HashMap<ValueId, f32> = options.layer_rates.of(graph).into_iter().collect();
    let mut start = 0;
    for &(parameter, _) in gradients {
        let Value { name, shape, .. } = graph.value(parameter);
        let len = shape.elements();
        let mut group = options.groups.of(name, shape);
        group.learning_rate_scale *= of_layers.get(&parameter).copied().unwrap_or(1.0);
        let adaptive = options.optimizer.adapts() && !options.groups.spares(shape);
        let joins = |last: &UpdateRange| last.group == group && !last.adaptive && !adaptive;
        // An optimiser of a program's own need not leave the padding between them zero.
        let fits = |last: &UpdateRange| last.end() == start || !matches!(options.optimizer, Optimizer::Custom(_));
        match ranges.last_mut().filter(|last| joins(last) && fits(last)) {
            // The padding between them is zero, and stays zero.
            Some(last) => last.len = start + len - last.start,
            None => ranges.push(UpdateRange { start, len, group, adaptive }),
        }
        start += len.next_multiple_of(Plan::ALIGNMENT / size_of::<f32>());
    }
    ranges
}

#[cfg(test)]
mod tests {
    use crate::optimizers::{AdamW, Lars, Sgd};
    use crate::{CompileOptions, Conv, GroupRule, LayerRates, Op, Optimizer, ParameterGroups, Plan, Tensor, compile};

    fn net(x: Tensor) -> Tensor {
        let x = x.conv2d("conv", Conv::new(8, 3).no_bias()).batch_norm("bn").relu();
        x.flatten().linear("fc", 10)
    }

    /// The text of a training step's update, without its operands.
    fn update(groups: ParameterGroups, optimizer: impl Into<Optimizer>) -> (String, Plan) {
        let optimizer = optimizer.into();
        let options = CompileOptions { groups, optimizer, ..CompileOptions::new("net", 2, 4, 10) };
        let plan = compile(&net, &options).unwrap().train.unwrap();
        let node = plan.instructions.iter().find(|node| node.op.name() == "update").unwrap();
        (node.op.to_string(), plan)
    }

    #[test]
    fn one_group_is_one_range_from_the_first_parameter_to_the_last() {
        let groups = ParameterGroups::one(0.5);
        let (text, plan) = update(groups, Sgd { momentum: 0.5, nesterov: true });
        assert_eq!(text, "update {sgd momentum 0.5 nesterov; 0..584 weight_decay 0.5}");
        // The weights of the convolution come last: 216 elements and 8 of padding.
        assert_eq!(plan.trainable, 592);
    }

    #[test]
    fn neighbours_of_one_group_are_one_range() {
        let slow = GroupRule { pattern: "bn".into(), weight_decay: None, learning_rate_scale: Some(0.25) };
        let groups = ParameterGroups { weight_decay: 0.5, no_decay_norm_bias: true, rules: vec![slow.clone()] };
        let (text, _) = update(groups, Sgd { momentum: 0.0, nesterov: false });
        let ranges = [
            "0..320 weight_decay 0.5",
            "320..330 weight_decay 0",
            "336..360 weight_decay 0 learning_rate_scale 0.25",
            "368..584 weight_decay 0.5",
        ];
        assert_eq!(text, format!("update {{sgd momentum 0; {}}}", ranges.join("; ")));
        let rules = vec![GroupRule { pattern: "layer1".into(), ..slow }];
        let groups = ParameterGroups { rules, ..ParameterGroups::default() };
        let options = CompileOptions { groups, ..CompileOptions::new("net", 2, 4, 10) };
        assert!(compile(&net, &options).unwrap_err().to_string().contains("pattern \"layer1\""));
    }

    #[test]
    fn layers_have_rates_of_their_own() {
        let check = |layer_rates: LayerRates, expected: Result<&[&str], &str>| {
            let options = CompileOptions { layer_rates, ..CompileOptions::new("net", 2, 4, 10) };
            let found = compile(&net, &options).map(|plans| {
                let plan = plans.train.unwrap();
                let node = plan.instructions.iter().find(|node| node.op.name() == "update").unwrap();
                node.op.to_string()
            });
            match expected {
                Ok(ranges) => assert!(found.unwrap().ends_with(&format!("; {}}}", ranges.join("; ")))),
                Err(expected) => assert_eq!(found.unwrap_err().to_string(), expected),
            }
        };
        check(LayerRates::default(), Ok(&["0..584 weight_decay 0"]));
        let head = "0..330 weight_decay 0 learning_rate_scale 10";
        let backbone = "336..584 weight_decay 0 learning_rate_scale 0.5";
        check(LayerRates { decay: 0.5, head: 10.0 }, Ok(&[head, backbone]));
        let refused = "factors of layers' rates must be finite and above 0, got 0";
        check(LayerRates { decay: 0.0, head: 1.0 }, Err(refused));
    }

    #[test]
    fn operands_are_gradients_parameters_and_state() {
        let (_, plan) = update(ParameterGroups::default(), AdamW { betas: [0.5; 2], epsilon: 0.5 });
        let node = plan.instructions.iter().find(|node| matches!(node.op, Op::Update(_))).unwrap();
        let names: Vec<&str> = node.inputs.iter().map(|&id| plan.value(id).name.as_str()).collect();
        let order = ["fc.bias", "fc.weight", "bn.bias", "bn.weight", "conv.weight"];
        for (index, prefix) in ["gradient.", "", "optimizer.exp_avg.", "optimizer.exp_avg_sq."].into_iter().enumerate()
        {
            let part = &names[index * order.len()..(index + 1) * order.len()];
            let mut found: Vec<&str> = part.iter().map(|name| name.strip_prefix(prefix).unwrap()).collect();
            let mut expected = order.to_vec();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{prefix}");
        }
        assert!(op_changes(&plan).all(|name| !name.starts_with("gradient.")));
        assert_eq!(op_changes(&plan).count(), 3 * order.len());
    }

    /// Names of the values that the update changes in place.
    fn op_changes(plan: &Plan) -> impl Iterator<Item = &str> {
        let node = plan.instructions.iter().find(|node| matches!(node.op, Op::Update(_))).unwrap();
        node.op.changes(node.inputs.len()).map(|index| plan.value(node.inputs[index]).name.as_str())
    }

    #[test]
    fn parameters_that_lars_adapts_to_are_separate_ranges() {
        let groups = ParameterGroups { no_decay_norm_bias: true, ..ParameterGroups::one(0.5) };
        let lars = Lars { momentum: 0.5, trust_coefficient: 0.25, epsilon: 0.125 };
        let ranges =
            ["0..320 weight_decay 0.5 adaptive", "320..360 weight_decay 0", "368..584 weight_decay 0.5 adaptive"];
        let rule = "lars momentum 0.5 trust_coefficient 0.25 epsilon 0.125";
        assert_eq!(update(groups, lars).0, format!("update {{{rule}; {}}}", ranges.join("; ")));
        let adaptive = update(ParameterGroups::one(0.5), lars).0.matches("adaptive").count();
        assert_eq!(adaptive, 5, "every parameter of the net");
    }

    #[test]
    fn the_norm_of_all_gradients_is_known_before_the_check() {
        let options = |clip_norm| CompileOptions { shards: 2, clip_norm, ..CompileOptions::new("net", 2, 4, 10) };
        let plan = compile(&net, &options(Some(0.5))).unwrap().train.unwrap();
        let names: Vec<&str> = plan.instructions.iter().map(|node| node.op.name()).collect();
        let end = ["all_reduce_wait", "gradient_norm", "check_finite", "update"];
        let begin = names.iter().position(|name| *name == end[0]).unwrap();
        assert_eq!(names[begin..begin + 4], end);
        let norm = plan.gradient_norm().unwrap();
        assert_eq!(plan.instructions[begin + 1].outputs, [norm]);
        assert_eq!(plan.instructions[begin + 3].inputs.last(), Some(&norm));
        assert!(plan.instructions[begin + 3].op.to_string().starts_with("update {sgd momentum 0.9 clip_norm 0.5; 0.."));
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = compile(&net, &options(Some(wrong))).unwrap_err().to_string();
            assert_eq!(error, format!("the clip norm must be finite and above 0, got {wrong}"));
        }
    }
}
