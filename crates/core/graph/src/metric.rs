//! Metrics of a step besides loss and accuracy: named values that its plan computes.
//!
//! Some are built in: hits among the K largest logits, and the norm of the gradients. Others are
//! functions on the builder, like models. Sums of metrics over samples travel with the shards'
//! losses.

use crate::builder::Forward;
use crate::ops::{SampleSum, TopKCorrect};
use crate::{GraphError, PerSample, TargetKind, ValueId};

/// The maximum number of metrics of a plan. The results of a step have a fixed size, so reading them allocates nothing.
pub const MAX_METRICS: usize = 8;

/// A metric besides loss and accuracy.
#[derive(Clone, Debug)]
pub enum Metric {
    /// The share of samples whose label is among the K largest logits, named `topK`. K is above 1 and at most the number of
    /// classes. Of equal logits, the one of the lower class counts as larger. The other label of a mixture does not count.
    Top(usize),
    /// The norm of all gradients before clipping, named `gradient_norm`. Only training has it.
    GradientNorm,
    /// The mean of a function over samples.
    Custom {
        /// Its name: lower-case letters, digits and `_`.
        name: String,
        /// Computes the value of each sample.
        function: PerSample,
    },
}

impl Metric {
    /// The name in records, charts and messages.
    pub fn name(&self) -> String {
        match self {
            Metric::Top(k) => format!("top{k}"),
            Metric::GradientNorm => "gradient_norm".into(),
            Metric::Custom { name, .. } => name.clone(),
        }
    }
}

/// The unit over which a metric is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    /// A sum over samples: each shard holds the sum over its own samples. The reader divides by their number.
    Sample,
    /// One number for the whole step, equal on all ranks after the reduce phase.
    Step,
}

/// A metric's value in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// See [`Metric::name`].
    pub name: String,
    /// The value that holds it, `f32 [1]`.
    pub value: ValueId,
    /// The unit over which it is computed.
    pub per: Per,
}

/// Refuses metrics that are too many, invalid or not distinct by name.
pub(crate) fn check(metrics: &[Metric], classes: usize, target: TargetKind) -> Result<(), GraphError> {
    /// Names of results that every step has.
    const TAKEN: [&str; 5] = ["loss", "accuracy", "macro_f1", "top1", "correct"];
    let refuse = |reason: String| Err(GraphError::Option(reason));
    if metrics.len() > MAX_METRICS {
        return refuse(format!("a step has at most {MAX_METRICS} metrics, got {}", metrics.len()));
    }
    for (index, metric) in metrics.iter().enumerate() {
        let name = metric.name();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return refuse(format!("metric {name:?}: a name may contain only lower-case letters, digits and _"));
        }
        if TAKEN.contains(&name.as_str()) {
            return refuse(format!("metric {name}: every step measures loss and accuracy; choose another name"));
        }
        if metrics[..index].iter().any(|other| other.name() == name) {
            return refuse(format!("metric {name}: another metric has the same name"));
        }
        match metric {
            Metric::Top(_) if target != TargetKind::Class => {
                return refuse(format!("metric {name}: it counts classes, and the targets are values"));
            }
            Metric::Top(k) if !(1..=classes).contains(k) => {
                return refuse(format!("metric {name}: the number must be from 2 to the {classes} classes"));
            }
            Metric::Top(_) | Metric::GradientNorm | Metric::Custom { .. } => {}
        }
    }
    Ok(())
}

/// Appends the per-sample metrics to the loss phase.
pub(crate) fn add_metrics(forward: &mut Forward, metrics: &[Metric]) -> Result<Vec<Measured>, GraphError> {
    let mut measured = Vec::new();
    for metric in metrics {
        let name = metric.name();
        let values = match metric {
            Metric::Top(k) => top_k_correct(forward, &name, *k),
            Metric::GradientNorm => continue,
            Metric::Custom { function, .. } => {
                forward.record(&format!("metric {name}"), &name, forward.logits, function)?
            }
        };
        measured.push(Measured { value: sample_sum(forward, &name, values, 1.0), name, per: Per::Sample });
    }
    Ok(measured)
}

/// Appends the top-k correctness of each sample, `[N]`: whether its label is among the `k` largest logits.
pub(crate) fn top_k_correct(forward: &mut Forward, layer: &str, k: usize) -> ValueId {
    let samples = forward.graph.shape(forward.labels).clone();
    let top_k_correct = forward.graph.add_activation(format!("{layer}.top_k_correct"), samples);
    forward.append(TopKCorrect { k }, vec![forward.logits, forward.labels], top_k_correct, layer);
    top_k_correct
}

/// Appends the sum over samples, times `scale`, `[1]`.
pub(crate) fn sample_sum(forward: &mut Forward, layer: &str, values: ValueId, scale: f32) -> ValueId {
    let sum = forward.graph.add_activation(layer, [1].into());
    forward.append(SampleSum { scale }, vec![values, forward.labels], sum, layer);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, Node, Op, Phase, Plan, Tensor, compile};

    fn own(name: &str, function: impl Fn(Tensor, Tensor) -> Tensor + Send + Sync + 'static) -> Metric {
        Metric::Custom { name: name.into(), function: PerSample::new(function) }
    }

    fn label_logit(logits: Tensor, targets: Tensor) -> Tensor {
        (logits * targets).sum_classes()
    }

    fn net(x: Tensor) -> Tensor {
        x.flatten().linear("fc", 10)
    }

    fn options(metrics: Vec<Metric>) -> CompileOptions {
        CompileOptions { metrics, shards: 2, ..CompileOptions::new("net", 4, 8, 10) }
    }

    #[test]
    fn mistakes_are_named() {
        let check = |metrics: Vec<Metric>, expected: &str| {
            let error = compile(&net, &options(metrics)).unwrap_err().to_string();
            assert_eq!(error, expected);
        };
        check(vec![Metric::GradientNorm; 9], "a step has at most 8 metrics, got 9");
        let plain = "a name may contain only lower-case letters, digits and _";
        check(vec![own("", label_logit)], &format!("metric \"\": {plain}"));
        check(vec![own("Top\n", label_logit)], &format!("metric \"Top\\n\": {plain}"));
        for name in ["loss", "accuracy", "macro_f1", "top1", "correct"] {
            let expected = format!("metric {name}: every step measures loss and accuracy; choose another name");
            check(vec![own(name, label_logit)], &expected);
        }
        check(vec![Metric::Top(1)], "metric top1: every step measures loss and accuracy; choose another name");
        check(vec![Metric::Top(0)], "metric top0: the number must be from 2 to the 10 classes");
        check(vec![Metric::Top(11)], "metric top11: the number must be from 2 to the 10 classes");
        check(vec![Metric::Top(5), own("top5", label_logit)], "metric top5: another metric has the same name");
        check(
            vec![own("all", |logits, targets| logits * targets)],
            "metric all gives [4,10], not a number for each of 4 samples",
        );
        check(vec![own("count", |_, targets| targets.sum_classes())], "metric count does not depend on the logits");
        check(
            vec![own("far", |logits, targets| logits.linear("head", 10).sum_classes() + targets.sum_classes())],
            "linear in metric far takes head.weight; a function of logits and targets takes nothing else",
        );
        check(
            vec![own("noise", |logits, _| logits.dropout("d", 0.5).sum_classes())],
            "dropout in metric noise takes sample_indices; a function of logits and targets takes nothing else",
        );
        check(
            vec![own("sizes", |logits, targets| logits.sum_classes() * targets)],
            "multiply in metric sizes: [4] and [4,10] must have the same shape",
        );
    }

    /// Checks the names and units of a plan's metrics, and the operations that compute them.
    fn check(plan: &Plan, expected: &[(&str, Per, &str)]) {
        let found: Vec<_> = (plan.measured.iter())
            .map(|measured| {
                let of = |node: &&Node| node.outputs == [measured.value];
                let node = plan.instructions.iter().find(of).unwrap();
                (measured.name.as_str(), measured.per, node.op.name())
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn plans_keep_the_order_of_the_options() {
        let metrics = vec![own("a", label_logit), Metric::GradientNorm, Metric::Top(5), own("b", label_logit)];
        let plans = compile(&net, &options(metrics)).unwrap();
        let train = plans.train.unwrap();
        let sample = |name| (name, Per::Sample, "sample_sum");
        check(&train, &[sample("a"), ("gradient_norm", Per::Step, "gradient_norm"), sample("top5"), sample("b")]);
        check(&plans.evaluate, &[sample("a"), sample("top5"), sample("b")]);
        // The losses of two shards, the hits, three per-sample metrics, and two requests.
        assert_eq!(**train.shape(train.metrics.unwrap()), [2 + 1 + 3 + 2]);
        for plan in [&train, &plans.evaluate] {
            assert_eq!(plan.instructions.iter().filter(|node| matches!(node.op, Op::Targets(_))).count(), 1);
            assert!(plan.to_string().contains("\nmetric top5 %"), "{plan}");
        }
        let backward = train.phase(Phase::Backward).iter().map(|node| node.op.name());
        assert!(backward.eq([
            "cross_entropy_backward",
            "linear_backward_weights",
            "bias_backward",
            "all_reduce_start"
        ]));
    }

    #[test]
    fn measuring_the_norm_clips_nothing() {
        let clips = |metrics, clip_norm| {
            let options = CompileOptions { clip_norm, ..options(metrics) };
            let plan = compile(&net, &options).unwrap().train.unwrap();
            let update = plan.instructions.iter().find(|node| matches!(node.op, Op::Update(_))).unwrap();
            let norm = plan.gradient_norm().map(|norm| update.inputs.contains(&norm));
            (norm, plan.measured.len())
        };
        assert_eq!(clips(vec![], None), (None, 0));
        assert_eq!(clips(vec![Metric::GradientNorm], None), (Some(false), 1));
        assert_eq!(clips(vec![], Some(1.0)), (Some(true), 0));
        assert_eq!(clips(vec![Metric::GradientNorm], Some(1.0)), (Some(true), 1));
    }
}
