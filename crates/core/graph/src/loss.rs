//! Losses: cross-entropy, or a function on the builder.
//!
//! A function ([`PerSample`]) takes logits and targets, and gives a number for
//! each sample. It is recorded after `fuse`, in the phase of the loss, and autodiff differentiates
//! it like any layer. A position without a sample is masked. So its gradient is 0, even where the
//! derivative of the function is infinite.

use crate::builder::Forward;
use crate::metric::{sample_sum, top_k_correct};
use crate::ops::{CrossEntropy, MaskSamples};
use crate::{CompileOptions, GraphError, Mode, Node, PerSample, Phase, Teacher, Tensor, ValueId, losses};

/// The loss of a sample; a training step minimises its mean over the global batch.
///
/// ```
/// use enmasse_graph::{CompileOptions, Loss, PerSample, Tensor, compile};
/// // The focal loss with gamma 2: -(1 - p)^2 log p of the label's probability p.
/// let focal = PerSample::new(|logits: Tensor, targets: Tensor| {
///     let log_p = (logits.log_softmax() * targets).sum_classes();
///     log_p.clone().exp().affine(-1.0, 1.0).power(2.0) * log_p.affine(-1.0, 0.0)
/// });
/// let options = CompileOptions { loss: Loss::Custom(focal), ..CompileOptions::new("softmax", 8, 16, 10) };
/// compile(&|x: Tensor| x.flatten().linear("fc", 10), &options).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// Cross-entropy of the softmax (PyTorch's `CrossEntropyLoss`). Evaluation neither smooths labels nor weighs classes.
    CrossEntropy {
        /// Label smoothing, from 0 to below 1.
        smoothing: f32,
        /// A weight for each class, or none: the factor of its share in a target, which smoothing has spread before. PyTorch divides
        /// the loss of a batch by the weights of its labels. Here it is a mean over samples, so that all shards and ranks give the
        /// same bits. Weights whose mean over the training samples is 1 make both equal in expectation.
        weights: Vec<f32>,
    },
    /// A function of logits and targets, the same in evaluation. A place without a sample adds nothing and has no gradient.
    /// Targets of mixtures have the lambdas of both labels. Of [`crate::TargetKind::Values`] they are the values.
    Custom(PerSample),
}

impl Default for Loss {
    /// Cross-entropy without smoothing.
    fn default() -> Self {
        Loss::CrossEntropy { smoothing: 0.0, weights: Vec::new() }
    }
}

/// A loss that was added to a graph.
pub(crate) struct AddedLoss {
    /// The node at which autodiff starts.
    pub node: usize,
    /// The sum of the samples' losses, scaled, `[1]`.
    pub loss: ValueId,
    /// The number of hits, `[1]`; `None` of values as targets.
    pub correct: Option<ValueId>,
}

/// Appends the sum of the samples' losses, times `scale`, and the hits. With a teacher the loss of training has its part.
pub(crate) fn add_loss(
    forward: &mut Forward,
    options: &CompileOptions,
    scale: f32,
    mode: Mode,
) -> Result<AddedLoss, GraphError> {
    let teacher = options.teacher.as_ref().filter(|_| mode == Mode::Train);
    match &options.loss {
        Loss::CrossEntropy { .. } if mode == Mode::Evaluate => Ok(cross_entropy(forward, scale, 0.0)),
        Loss::CrossEntropy { smoothing, weights } if weights.is_empty() && teacher.is_none() => {
            Ok(cross_entropy(forward, scale, *smoothing))
        }
        Loss::CrossEntropy { smoothing, weights } => {
            let smoothing = *smoothing;
            let weights = weights.clone();
            let function = PerSample::new(move |logits: Tensor, targets: Tensor| {
                let smoothed = targets.affine(1.0 - smoothing, smoothing / logits.shape().last() as f32);
                let weighted = if weights.is_empty() { smoothed } else { smoothed.scale_classes(&weights) };
                losses::cross_entropy(logits, weighted)
            });
            own_loss(forward, &function, teacher, scale, mode)
        }
        Loss::Custom(function) => own_loss(forward, function, teacher, scale, mode),
    }
}

fn cross_entropy(forward: &mut Forward, scale: f32, smoothing: f32) -> AddedLoss {
    let inputs = [vec![forward.logits], forward.label_operands()].concat();
    let graph = &mut forward.graph;
    let probabilities = graph.add_like("probabilities", forward.logits);
    let loss = graph.add_activation("loss", [1].into());
    let correct = graph.add_activation("correct", [1].into());
    let op = CrossEntropy { scale, smoothing };
    graph.nodes.push(Node::new(op, inputs, [probabilities, loss, correct], Phase::Loss, "loss"));
    AddedLoss { node: graph.nodes.len() - 1, loss, correct: Some(correct) }
}

fn own_loss(
    forward: &mut Forward,
    function: &PerSample,
    teacher: Option<&Teacher>,
    scale: f32,
    mode: Mode,
) -> Result<AddedLoss, GraphError> {
    let mut logits = forward.logits;
    if mode == Mode::Train {
        // A function may have an infinite derivative where the targets are all 0, and 0 times infinity is NaN.
        let masked = forward.graph.add_like("masked", logits);
        forward.append(MaskSamples, vec![logits, forward.labels], masked, "loss");
        logits = masked;
    }
    let mut values = forward.record("the loss", "loss", logits, function)?;
    if let Some(teacher) = teacher {
        values = teacher.mix(forward, logits, values)?;
    }
    let loss = sample_sum(forward, "loss", values, scale);
    let node = forward.graph.nodes.len() - 1;
    let correct = forward.targets.is_none().then(|| {
        let top_k_correct = top_k_correct(forward, "correct", 1);
        sample_sum(forward, "correct", top_k_correct, 1.0)
    });
    Ok(AddedLoss { node, loss, correct })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, Metric, MixtureInputs, Plan, Role, TargetKind, compile};

    fn options(function: fn(Tensor, Tensor) -> Tensor) -> CompileOptions {
        CompileOptions { loss: Loss::Custom(PerSample::new(function)), ..CompileOptions::new("net", 4, 8, 10) }
    }

    fn net(x: Tensor) -> Tensor {
        x.flatten().linear("fc", 10)
    }

    #[test]
    fn mistakes_are_named() {
        let check = |function: fn(Tensor, Tensor) -> Tensor, expected: &str| {
            assert_eq!(compile(&net, &options(function)).unwrap_err().to_string(), expected);
        };
        check(|logits, _| logits.log_softmax(), "the loss gives [4,10], not a number for each of 4 samples");
        check(|_, targets| targets.sum_classes(), "the loss does not depend on the logits");
        check(
            |logits, _| logits.scale_classes(&[1.0; 3]).sum_classes(),
            "scale_classes in the loss takes a factor for each of 10 classes, got 3",
        );
        check(
            |logits, _| logits.scale_classes(&[f32::NAN; 10]).sum_classes(),
            "scale_classes in the loss takes finite factors, got NaN",
        );
        check(
            |logits, _| logits.sum_classes().log_softmax(),
            "log_softmax in the loss got [4], but it needs [batch,classes]",
        );
        check(
            |logits, _| logits.sum_classes().power(f32::NAN),
            "power in the loss takes only finite numbers, not power {NaN}",
        );
    }

    /// Names of the operations in the loss phase and in the backward phase.
    fn names(plan: &Plan) -> [Vec<&'static str>; 2] {
        [Phase::Loss, Phase::Backward].map(|phase| plan.phase(phase).iter().map(|node| node.op.name()).collect())
    }

    #[test]
    fn only_training_takes_mixtures() {
        let own = Loss::Custom(PerSample::new(|x: Tensor, y: Tensor| (x.log_softmax() * y).sum_classes()));
        for (loss, taking) in
            [(Loss::default(), &["cross_entropy", "cross_entropy_backward"][..]), (own, &["targets"][..])]
        {
            let mixed = CompileOptions { loss, mixed: true, ..CompileOptions::new("net", 4, 8, 10) };
            let plans = compile(&net, &mixed).unwrap();
            let train = plans.train.unwrap();
            let Some(MixtureInputs { other_labels, lambdas }) = train.mixture else { panic!("{train}") };
            let takes = |node: &&Node| node.inputs.ends_with(&[train.labels, other_labels, lambdas]);
            let names: Vec<&str> = train.instructions.iter().filter(takes).map(|node| node.op.name()).collect();
            assert_eq!(names, taking);
            assert_eq!(plans.evaluate.mixture, None);
            assert!(!plans.evaluate.to_string().contains("lambdas"), "{}", plans.evaluate);
        }
    }

    #[test]
    fn weights_of_classes_are_those_of_training_alone() {
        let compiled = |weights: &[f32]| {
            let loss = Loss::CrossEntropy { smoothing: 0.1, weights: weights.into() };
            compile(&net, &CompileOptions { loss, mixed: true, ..CompileOptions::new("net", 4, 8, 10) })
        };
        let plans = compiled(&[0.5; 10]).unwrap();
        let [loss, _] = names(&plans.train.unwrap());
        let function = ["targets", "affine", "scale_classes", "log_softmax", "multiply", "sum_classes", "affine"];
        let end = ["sample_sum", "top_k_correct", "sample_sum", "share_metrics"];
        assert_eq!(loss, [&["mask_samples"], &function[..], &end].concat());
        assert_eq!(plans.evaluate.to_string(), compiled(&[]).unwrap().evaluate.to_string());
        let check = |weights: &[f32], expected: &str| {
            assert_eq!(compiled(weights).unwrap_err().to_string(), format!("weights of classes: {expected}"));
        };
        check(&[1.0; 3], "there must be one for each of 10 classes, got 3");
        check(&[0.0; 10], "at least one must be above 0");
        for wrong in [f32::NAN, f32::INFINITY, -1.0] {
            check(&[&[1.0; 9][..], &[wrong]].concat(), &format!("they must be finite and at least 0, got {wrong}"));
        }
    }

    fn squared_error(outputs: Tensor, values: Tensor) -> Tensor {
        (outputs + values.affine(-1.0, 0.0)).power(2.0).sum_classes()
    }

    /// Loss and metrics share the values, which are 0 in places without a sample. Nothing is counted.
    #[test]
    fn values_as_targets_are_an_input_and_have_no_hits() {
        let metrics = vec![Metric::Custom { name: "error".into(), function: PerSample::new(squared_error) }];
        let options = CompileOptions { target: TargetKind::Values(10), metrics, mixed: true, ..options(squared_error) };
        let plans = compile(&net, &CompileOptions { shards: 2, ..options.clone() }).unwrap();
        let train = plans.train.unwrap();
        for plan in [&train, &plans.evaluate] {
            let targets = plan.targets.unwrap();
            assert_eq!((&plan.value(targets).role, &**plan.shape(targets)), (&Role::Input, &[4, 10][..]));
            let [loss, _] = names(plan);
            assert_eq!(loss.iter().filter(|name| **name == "targets" || **name == "top_k_correct").count(), 0);
            let reads = plan.instructions.iter().filter(|node| node.inputs.contains(&targets));
            assert!(reads.map(|node| node.op.name()).eq(["mask_samples"]), "{plan}");
            assert_eq!((plan.correct, plan.mixture, plan.of_samples().count()), (None, None, 2));
            assert!(plan.to_string().contains(", outputs 10, target values 10, shards 2,"), "{plan}");
        }
        // The losses of two shards, a metric, and two requests.
        assert_eq!(**train.shape(train.metrics.unwrap()), [2 + 1 + 2]);
    }

    #[test]
    fn values_as_targets_need_a_function_of_them() {
        let check = |change: fn(CompileOptions) -> CompileOptions, expected: Result<(), &str>| {
            let options = CompileOptions { target: TargetKind::Values(10), ..options(squared_error) };
            let found = compile(&net, &change(options)).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(|options| options, Ok(()));
        let own = "cross-entropy compares with labels; values as targets need a loss of their own";
        check(|options| CompileOptions { loss: Loss::default(), ..options }, Err(own));
        let top = "metric top5: it counts classes, and the targets are values";
        check(|options| CompileOptions { metrics: vec![Metric::Top(5)], ..options }, Err(top));
        let none = "a sample needs at least one value as its target, and a model one output";
        check(|options| CompileOptions { target: TargetKind::Values(0), ..options }, Err(none));
        check(|options| CompileOptions { classes: 0, ..options }, Err(none));
        let different = "add in the loss: [4,10] and [4,3] must have the same shape";
        check(|options| CompileOptions { target: TargetKind::Values(3), ..options }, Err(different));
    }

    #[test]
    fn both_plans_have_the_function_and_count_hits() {
        let plans = compile(&net, &options(|x, y| (x.log_softmax() * y).sum_classes().affine(-1.0, 0.0))).unwrap();
        let function = ["targets", "log_softmax", "multiply", "sum_classes", "affine", "sample_sum"];
        let correct = ["top_k_correct", "sample_sum"];
        let [loss, backward] = names(&plans.train.unwrap());
        assert_eq!(loss, [&["mask_samples"], &function[..], &correct, &["share_metrics"]].concat());
        let gradients = ["sample_sum", "affine", "sum_classes", "multiply", "log_softmax", "mask_samples"];
        let gradients = gradients.map(|name| match name {
            // These are their own gradients.
            "multiply" | "mask_samples" => name.into(),
            _ => format!("{name}_backward"),
        });
        assert_eq!(backward[..gradients.len()], gradients);
        let [loss, backward] = names(&plans.evaluate);
        assert_eq!((loss, backward.len()), ([&function[..], &correct].concat(), 0));
    }
}
