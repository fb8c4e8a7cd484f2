//! The stages of a model that is computed by several ranks one after another, and the order in which each stage runs the
//! micro-batches of a step.

use std::fmt;

use crate::{Builder, CompileOptions, GraphError, LayerRates, Metric, Mode, Node, Recompute, Strategy, Tensor};

/// Which micro-batch a stage computes when, as a name of the field's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StageSchedule {
    /// Forward of all micro-batches, then backward of all. Every stage holds the activations of all of them.
    #[default]
    GPipe,
    /// After a few micro-batches of forward, one of backward follows each one of forward. A stage holds the activations of as many
    /// micro-batches as there are stages from it on.
    OneForwardOneBackward,
}

impl StageSchedule {
    /// The name in plans and settings.
    pub const fn name(self) -> &'static str {
        match self {
            StageSchedule::GPipe => "gpipe",
            StageSchedule::OneForwardOneBackward => "1f1b",
        }
    }

    /// What stage `index` of `count` runs in a step. Backward comes in the order of the micro-batches, so that the gradients of each
    /// are added to the earlier ones in the order of any other program.
    pub fn actions(self, index: usize, count: usize, micro_batches: usize) -> Vec<StageAction> {
        let ahead = match self {
            StageSchedule::GPipe => micro_batches,
            StageSchedule::OneForwardOneBackward => (count - 1 - index).min(micro_batches),
        };
        let first = (0..ahead).map(StageAction::Forward);
        let both =
            (ahead..micro_batches).flat_map(|next| [StageAction::Forward(next), StageAction::Backward(next - ahead)]);
        first.chain(both).chain((micro_batches - ahead..micro_batches).map(StageAction::Backward)).collect()
    }
}

impl fmt::Display for StageSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A part of a step for one micro-batch, by its number among those of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageAction {
    /// Forward and loss.
    Forward(usize),
    /// Backward.
    Backward(usize),
}

impl fmt::Display for StageAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StageAction::Forward(micro_batch) => write!(f, "forward {micro_batch}"),
            StageAction::Backward(micro_batch) => write!(f, "backward {micro_batch}"),
        }
    }
}

/// Where a model is cut into stages, and which of them a compilation is for. A micro-batch is a shard of the global batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageCut {
    /// The layers that begin a stage, in the order of the model: the layer with this name, or the first one within it. What comes before
    /// the first of them is stage 0.
    pub begins: Vec<String>,
    /// The stage to compile.
    pub index: usize,
    /// Micro-batches of a rank in each step.
    pub micro_batches: usize,
    /// Their order.
    pub schedule: StageSchedule,
}

impl StageCut {
    /// The number of stages.
    pub fn count(&self) -> usize {
        self.begins.len() + 1
    }

    /// Refuses options that need all stages at once.
    pub(crate) fn check(&self, options: &CompileOptions) -> Result<(), GraphError> {
        let is_norm = |metric: &Metric| matches!(metric, Metric::GradientNorm);
        let all = [
            (options.sync_batch_norm, "batch norm over all shards"),
            (options.strategy != Strategy::default(), "another strategy than that all ranks update"),
            (options.clip_norm.is_some(), "a limit of the norm of all gradients"),
            (options.metrics.iter().any(is_norm), "the norm of all gradients as a metric"),
            (options.average.is_some(), "averages of the weights"),
            (options.teacher.is_some(), "a teacher"),
            (options.recompute != Recompute::Nothing, "activations that are computed again"),
            (options.precision.scales_loss(), "a scaled loss"),
            (options.layer_rates != LayerRates::default(), "a learning rate for each layer"),
        ];
        if let Some((_, what)) = all.into_iter().find(|(is_given, _)| *is_given) {
            return Err(GraphError::Option(format!("a model in stages cannot have {what}: leave out one of them")));
        }
        if self.begins.is_empty() || self.index >= self.count() || self.micro_batches == 0 {
            return Err(GraphError::Option(
                "a model in stages needs a layer that begins one, and micro-batches".into(),
            ));
        }
        if !options.shards.is_multiple_of(self.micro_batches) {
            let reason = format!("{} shards are not divided into {} micro-batches", options.shards, self.micro_batches);
            return Err(GraphError::Option(reason));
        }
        Ok(())
    }
}

/// The layers that begin a stage of a model that says so itself ([`Tensor::begin_stage`]), in its order; none if it does not. The options
/// give the images that the model takes.
///
/// # Errors
/// The model's first error in a layer, or a stage begins after the last layer.
///
/// ```
/// use enmasse_graph::{CompileOptions, Tensor, stages_of};
/// let model = |x: Tensor| x.flatten().linear("fc1", 32).relu().begin_stage().linear("fc2", 10);
/// assert_eq!(stages_of(&model, &CompileOptions::new("mlp", 8, 16, 10))?, ["fc2"]);
/// # Ok::<(), enmasse_graph::GraphError>(())
/// ```
pub fn stages_of(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions) -> Result<Vec<String>, GraphError> {
    // In evaluation, whose layers training has, too.
    let builder = Builder::new(options.batch, options.size, Mode::Evaluate, options.seed);
    let logits = model(builder.pixels(&options.mean, &options.std));
    let stages = logits.stages();
    let nodes = builder.finish(&logits, options.classes)?.graph.nodes;
    let begin = |first: usize| {
        let before = first.checked_sub(1).map(|last| &nodes[last].layer);
        let next: Option<&Node> = nodes[first..].iter().find(|node| Some(&node.layer) != before);
        next.map(|node| node.layer.clone()).ok_or_else(|| {
            GraphError::Option("a stage begins after the model's last layer: begin it before a named one".into())
        })
    };
    stages.into_iter().map(begin).collect()
}

/// The stage of its model that a plan is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its number, from 0.
    pub index: usize,
    /// The number of stages.
    pub count: usize,
    /// The name of the order.
    pub schedule: StageSchedule,
    /// The order in which a training step runs the micro-batches. Evaluation runs forward of one after another.
    pub actions: Vec<StageAction>,
}

impl Stage {
    pub(crate) fn of(cut: &StageCut) -> Self {
        let index = cut.index;
        let count = cut.count();
        let schedule = cut.schedule;
        Stage { index, count, schedule, actions: schedule.actions(index, count, cut.micro_batches) }
    }

    /// Whether the model ends here, so that its outputs and the loss are those of this stage.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// The most micro-batches whose activations a step holds at a time.
    pub fn in_flight(&self) -> usize {
        let (mut now, mut most) = (0usize, 0);
        for action in &self.actions {
            match action {
                StageAction::Forward(_) => now += 1,
                StageAction::Backward(_) => now -= 1,
            }
            most = most.max(now);
        }
        most
    }
}

/// `stage 0 of 2, gpipe: forward 0, forward 1, backward 0, backward 1`.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stage { index, count, schedule, actions } = self;
        let actions: Vec<String> = actions.iter().map(StageAction::to_string).collect();
        write!(f, "stage {index} of {count}, {schedule}: {}", actions.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Conv;

    #[test]
    fn models_say_where_stages_begin() {
        let check = |model: &dyn Fn(Tensor) -> Tensor, expected: Result<&[&str], &str>| {
            let found = stages_of(model, &CompileOptions::new("net", 2, 8, 5)).map_err(|error| error.to_string());
            let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(&|x| x.flatten().linear("a", 5), Ok(&[]));
        // Dropout is no layer of evaluation, and an activation belongs to the layer before it.
        let halves = |x: Tensor| {
            let x = x.conv2d("a", Conv::new(4, 3)).begin_stage().relu().conv2d("b", Conv::new(4, 3));
            x.flatten().begin_stage().dropout("drop", 0.5).linear("c", 5)
        };
        check(&halves, Ok(&["b", "c"]));
        let late = |x: Tensor| x.flatten().linear("a", 5).begin_stage();
        check(&late, Err("a stage begins after the model's last layer: begin it before a named one"));
    }

    #[test]
    fn schedules_order_the_micro_batches() {
        let check = |schedule: StageSchedule, [index, count, micro_batches]: [usize; 3], actions: &str, held: usize| {
            let begins = vec![String::new(); count - 1];
            let stage = Stage::of(&StageCut { begins, index, micro_batches, schedule });
            let words = stage
                .actions
                .iter()
                .map(|action| action.to_string().replace("forward ", "F").replace("backward ", "B"));
            assert_eq!(words.collect::<Vec<_>>().join(" "), actions);
            assert_eq!(stage.in_flight(), held, "{actions}");
        };
        use StageSchedule::{GPipe, OneForwardOneBackward};
        check(GPipe, [0, 2, 3], "F0 F1 F2 B0 B1 B2", 3);
        check(GPipe, [1, 2, 1], "F0 B0", 1);
        check(OneForwardOneBackward, [0, 2, 3], "F0 F1 B0 F2 B1 B2", 2);
        check(OneForwardOneBackward, [1, 2, 3], "F0 B0 F1 B1 F2 B2", 1);
        check(OneForwardOneBackward, [0, 3, 4], "F0 F1 F2 B0 F3 B1 B2 B3", 3);
        check(OneForwardOneBackward, [0, 4, 2], "F0 F1 B0 B1", 2);
    }
}
