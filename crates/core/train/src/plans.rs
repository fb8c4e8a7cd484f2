//! Turns a configuration and a model into the plans of a run and the initial values of its parameters.

use enmasse_device::{DeviceError, Program};
use enmasse_graph::optimizers::Custom;
use enmasse_graph::{
    AVERAGE_PREFIX, Arena, CompileOptions, Freeze, GraphError, GroupRule, Loss, Measured, Metric, Optimizer,
    ParameterGroups, PerSample, Plans, StateTensor, Strategy, Target, Tensor,
};

use crate::config::of_optimizers;
use crate::{ConfigError, Preparation, RunConfig, StrategyKind, TrainConfig, TrainError, UnusedParameters};

/// A model: turns images and the number of classes into logits.
pub type ModelFn<'a> = dyn Fn(Tensor, usize) -> Tensor + 'a;

/// The loss, the metrics and the optimiser of a run that its configuration does not contain.
#[derive(Clone, Debug, Default)]
pub struct Objective {
    /// A loss that replaces cross-entropy with the configuration's label smoothing.
    pub loss: Option<PerSample>,
    /// Metrics in addition to those of the configuration.
    pub metrics: Vec<Metric>,
    /// An optimiser that replaces that of the configuration.
    pub optimizer: Option<Custom>,
    /// Exceptions by name from the configuration's weight decay and learning rate; later rules win.
    pub groups: Vec<GroupRule>,
}

impl Objective {
    /// The loss of a configuration. Smoothing belongs to cross-entropy: with another loss it is an error.
    fn loss(&self, config: &TrainConfig) -> Result<Loss, TrainError> {
        let smoothing = config.label_smoothing as f32;
        match &self.loss {
            None => Ok(Loss::CrossEntropy { smoothing }),
            Some(function) if smoothing == 0.0 => Ok(Loss::Custom(function.clone())),
            Some(_) => Err(without_effect("label_smoothing", &smoothing.to_string(), "loss")),
        }
    }

    /// The optimiser of a configuration. Its settings belong to the optimisers that have names: with another one they are an error.
    fn optimizer(&self, config: &TrainConfig) -> Result<Optimizer, TrainError> {
        let run = RunConfig { train: config.clone(), ..RunConfig::default() };
        let Some(own) = &self.optimizer else {
            return Ok(config.chosen_optimizer().map_err(|reason| ConfigError::setting(&run, "opt_arg", reason))?);
        };
        let defaults = RunConfig::default();
        for name in ["optimizer", "opt_arg"].into_iter().chain(of_optimizers().map(|(setting, _)| setting.name)) {
            let value = run.get(name).unwrap_or_default();
            if Some(&value) != defaults.get(name).as_ref() {
                return Err(without_effect(name, &value, "optimiser"));
            }
        }
        Ok(own.clone().into())
    }
}

/// The error of a setting for what this program replaces.
fn without_effect(name: &str, value: &str, own: &str) -> TrainError {
    let reason = format!("`{name} = {value}` has no effect on this program's own {own}: leave it out");
    TrainError::Graph(GraphError::Option(reason))
}

/// The plans of a configuration, for this number of shards, the target of a device, and images prepared in this way.
pub fn compile_plans(
    config: &TrainConfig,
    preparation: &Preparation,
    model: &ModelFn,
    objective: &Objective,
    classes: usize,
    shards: usize,
    target: &Target,
) -> Result<Plans, TrainError> {
    let options = CompileOptions {
        shards,
        sync_batch_norm: config.sync_bn,
        freeze: match config.freeze_layers {
            true => Freeze::AllButClassifier(config.freeze.clone()),
            false => Freeze::Patterns(config.freeze.clone()),
        },
        loss: objective.loss(config)?,
        mixed: preparation.train.mixing().is_some(),
        weighted_loss: !config.drop_last,
        strategy: match config.strategy {
            StrategyKind::Ddp => Strategy::Distributed,
            StrategyKind::Dp => Strategy::Replicated,
        },
        optimizer: objective.optimizer(config)?,
        clip_norm: config.clip_norm.map(|norm| norm as f32),
        average: config.ema.map(|decay| decay as f32),
        groups: ParameterGroups {
            weight_decay: config.weight_decay as f32,
            no_decay_norm_bias: config.no_decay_norm_bias,
            rules: objective.groups.clone(),
        },
        metrics: config.metrics.iter().copied().map(Metric::from).chain(objective.metrics.iter().cloned()).collect(),
        seed: config.seed,
        precision: config.precision,
        mean: preparation.normalization.mean.clone(),
        std: preparation.normalization.std.clone(),
        allow_unused: config.unused_parameters == UnusedParameters::Zero,
        ..CompileOptions::new(config.model.clone(), config.batch_per_shard(shards), preparation.train.size(), classes)
    };
    Ok(target.compile(&|x| model(x, classes), &options)?)
}

/// Sets every parameter of a new program to its initial value, a function of (seed, name, element), and every average
/// to the initial value of the tensor that it averages.
pub fn initialize(program: &mut dyn Program, seed: u64) -> Result<(), DeviceError> {
    let starts = |tensor: &StateTensor| matches!(tensor.slot.arena, Arena::Parameters | Arena::Average);
    program.fill_state(&starts, &|tensor, first, values| {
        let name = tensor.name.strip_prefix(AVERAGE_PREFIX).filter(|_| tensor.slot.arena == Arena::Average);
        tensor.init.fill(seed, name.unwrap_or(&tensor.name), tensor.layout, &tensor.shape, first, values);
    })
}

/// The metrics of a training step in addition to loss and hits.
pub(crate) fn training_metrics(plans: &Plans) -> &[Measured] {
    plans.train.as_ref().map_or(&[], |plan| &plan.measured)
}

#[cfg(test)]
mod tests {
    use enmasse_datasets::DataKind;
    use enmasse_graph::Per;

    use super::*;

    #[test]
    fn an_own_loss_replaces_cross_entropy() {
        let net = |x: Tensor, classes| x.flatten().linear("fc", classes);
        let function = PerSample::new(|logits: Tensor, targets: Tensor| {
            (logits.log_softmax() * targets).sum_classes().affine(-1.0, 0.0)
        });
        let check = |label_smoothing: f64, loss: Option<PerSample>, expected: Result<&str, &str>| {
            let config = TrainConfig {
                label_smoothing,
                size: Some(8),
                batch: Some(4),
                model: "net".into(),
                ..Default::default()
            };
            let preparation = Preparation::new(&config, DataKind::Folder);
            let metrics = vec![Metric::Top(2), Metric::GradientNorm];
            let objective = Objective { loss, metrics, ..Objective::default() };
            let plans = compile_plans(&config, &preparation, &net, &objective, 3, 1, &Target::default());
            match (plans, expected) {
                (Ok(plans), Ok(operation)) => {
                    let train = plans.train.unwrap();
                    assert!(train.to_string().contains(operation), "{train}");
                    let per: Vec<Per> = train.measured.iter().map(|metric| metric.per).collect();
                    assert_eq!(per, [Per::Sample, Per::Step]);
                }
                (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
                (found, _) => panic!("{label_smoothing}: {found:?}"),
            }
        };
        check(0.0, None, Ok("cross_entropy {scale 0.25 smoothing 0}"));
        check(0.125, None, Ok("cross_entropy {scale 0.25 smoothing 0.125}"));
        check(0.0, Some(function.clone()), Ok("sample_sum {scale 0.25}"));
        let refused = "`label_smoothing = 0.125` has no effect on this program's own loss: leave it out";
        check(0.125, Some(function), Err(refused));
    }
}
