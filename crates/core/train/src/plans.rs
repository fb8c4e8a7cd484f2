//! Turns a configuration and a model into the plans of a run and the initial values of its parameters.

use std::sync::Arc;

use enmasse_comm::ShardMap;
use enmasse_data::Sharding;
use enmasse_datasets::TaskKind;
use enmasse_device::{DeviceError, Program};
use enmasse_graph::optimizers::Custom;
use enmasse_graph::{
    AVERAGE_PREFIX, Arena, Averaging, CompileOptions, Freeze, GraphError, GroupRule, LayerRates, Loss, Measured,
    Metric, Optimizer, ParameterGroups, PerSample, Plans, StageCut, StateTensor, Strategy, Target, TargetKind, Tensor,
};
use enmasse_tensor::DType;

use crate::config::of_optimizers;
use crate::task::of_data;
use crate::teacher::TrainedTeacher;
use crate::{
    Classification, ConfigError, Direction, FineTune, Monitor, OptimizerKind, Preparation, ReducePrecision, RunConfig,
    StrategyKind, Task, TrainConfig, TrainError, TrainingData, UnusedParameters,
};

/// A model: turns images and the number of classes, or of a task's outputs, into logits.
pub type ModelFn<'a> = dyn Fn(Tensor, usize) -> Tensor + 'a;

/// The task, the loss, the metrics and the optimiser of a run that its configuration does not contain.
#[derive(Clone, Debug, Default)]
pub struct Objective {
    /// The task; `None` for classification.
    pub task: Option<Arc<dyn Task>>,
    /// A loss that replaces the task's.
    pub loss: Option<PerSample>,
    /// Metrics in addition to those of the configuration and of the task.
    pub metrics: Vec<Metric>,
    /// What decides which epoch is the best, in place of the task's.
    pub monitor: Option<Monitor>,
    /// An optimiser that replaces that of the configuration.
    pub optimizer: Option<Custom>,
    /// Exceptions by name from the configuration's weight decay and learning rate; later rules win.
    pub groups: Vec<GroupRule>,
    /// The model that the run imitates ([`Objective::taught`]).
    pub(crate) teacher: Option<Arc<TrainedTeacher>>,
}

impl Objective {
    /// The task, which is classification unless there is another.
    pub(crate) fn task(&self) -> Arc<dyn Task> {
        self.task.clone().unwrap_or_else(|| Arc::new(Classification::default()))
    }

    /// The same with the task that the data have, unless there is another.
    ///
    /// # Errors
    /// A setting of the loss does not belong to the data's task, or cannot be used, such as a file of weights. Or one
    /// is set although the objective has a task or a loss of its own.
    pub fn of_data(&self, data: &TrainingData, config: &TrainConfig) -> Result<Self, TrainError> {
        if self.task.is_some() || self.loss.is_some() {
            let run = RunConfig { train: config.clone(), ..RunConfig::default() };
            let default = RunConfig::default();
            let is_custom = self.task.as_ref().is_some_and(|task| matches!(task.loss(config), Loss::Custom(_)));
            let smoothing = is_custom.then_some("label_smoothing");
            let mut given = ["loss", "focal_gamma", "huber_delta", "class_weights"].into_iter().chain(smoothing);
            if let Some(name) = given.find(|name| run.get(name) != default.get(name)) {
                return Err(without_effect(name, &run.get(name).unwrap_or_default(), "loss"));
            }
        }
        let task = match &self.task {
            Some(task) => task.clone(),
            None => of_data(data, config)?,
        };
        Ok(Objective { task: Some(task), ..self.clone() })
    }

    /// The same with the teacher of the configuration, if it has one that takes part.
    ///
    /// # Errors
    /// Its file cannot be opened, or it does not predict the same of an image as `data`, if they are known, or does not
    /// see as many channels. Or `data` have classes, and the objective has a task of its own that predicts none.
    pub fn taught(
        self,
        config: &TrainConfig,
        preparation: &Preparation,
        data: Option<&TrainingData>,
    ) -> Result<Self, TrainError> {
        let own =
            data.is_some_and(|data| data.task == TaskKind::Classification) && self.task().target() != TargetKind::Class;
        if let (Some(teacher), true) = (&config.teacher, own) {
            return Err(without_effect("teacher", &teacher.display().to_string(), "task"));
        }
        let teacher = TrainedTeacher::open(config, preparation, self.task().as_ref(), data)?;
        Ok(Objective { teacher: teacher.map(Arc::new), ..self })
    }

    /// The loss of a configuration. Smoothing belongs to the tasks that data have: with a loss of the program's own it is an error.
    fn loss(&self, task: &dyn Task, config: &TrainConfig) -> Result<Loss, TrainError> {
        let smoothing = config.label_smoothing;
        match &self.loss {
            Some(_) if smoothing != 0.0 => Err(without_effect("label_smoothing", &smoothing.to_string(), "loss")),
            Some(own) => Ok(Loss::Custom(own.clone())),
            None => Ok(task.loss(config)),
        }
    }

    /// All metrics of a run.
    fn metrics(&self, task: &dyn Task, config: &TrainConfig) -> Vec<Metric> {
        let configured = config.metrics.iter().copied().map(Metric::from);
        configured.chain(task.metrics().into_iter().map(Metric::from)).chain(self.metrics.iter().cloned()).collect()
    }

    /// The values of an epoch's record by which epochs can be compared, with the better direction where it is known.
    fn comparable(&self, task: &dyn Task, config: &TrainConfig) -> Vec<(String, Option<Direction>)> {
        let mut values = vec![("train_loss".to_owned(), Some(Direction::Lower))];
        values.push(("val_loss".to_owned(), Some(Direction::Lower)));
        if task.target() == TargetKind::Class {
            let figures = ["train_accuracy", "val_accuracy", "balanced_accuracy", "val_macro_f1"];
            values.extend(figures.map(|name| (name.to_owned(), Some(Direction::Higher))));
        }
        let figures = task.figures().iter();
        values.extend(figures.map(|figure| (format!("val_{}", figure.name), Some(figure.direction))));
        let own = task.metrics();
        for metric in self.metrics(task, config) {
            let name = metric.name();
            let direction = match metric {
                Metric::Top(_) => Some(Direction::Higher),
                Metric::GradientNorm => continue,
                Metric::Custom { .. } => own.iter().find(|own| own.name == name).map(|own| own.direction),
            };
            values.extend(["train", "val"].map(|part| (format!("{part}_{name}"), direction)));
        }
        values
    }

    /// What decides which epoch is the best. A name that no epoch's record has is an error.
    pub(crate) fn monitor(&self, task: &dyn Task, config: &TrainConfig) -> Result<Monitor, ConfigError> {
        let said: Vec<Monitor> = self.monitor.clone().into_iter().chain([task.monitor()]).collect();
        let values = self.comparable(task, config);
        let name = config.monitor.as_ref().unwrap_or(&said[0].name);
        // A figure's own name is that of validation.
        let of_validation = format!("val_{name}");
        let is_known = |name: &str| values.iter().any(|(value, _)| value == name);
        let name = if !is_known(name) && is_known(&of_validation) { &of_validation } else { name };
        let refuse = |reason: String| Err(ConfigError::Value { what: format!("monitor {name}"), reason });
        let Some((_, known)) = values.iter().find(|(value, _)| value == name) else {
            let names = values.iter().filter(|(_, direction)| direction.is_some()).map(|(name, _)| name.as_str());
            return refuse(format!("an epoch has no such value: use {}", names.collect::<Vec<_>>().join(", ")));
        };
        match said.iter().find(|monitor| monitor.name == *name).map(|monitor| monitor.direction).or(*known) {
            Some(direction) => Ok(Monitor { name: name.clone(), direction }),
            None => refuse("whether lower or higher is better is not known: say so by `Trainer::monitor`".to_owned()),
        }
    }

    /// The optimiser of a configuration. Its settings belong to the optimisers that have names: with another one they are an error.
    fn optimizer(&self, config: &TrainConfig) -> Result<Optimizer, TrainError> {
        let run = RunConfig { train: config.clone(), ..RunConfig::default() };
        let Some(own) = &self.optimizer else {
            let named = if config.opt_arg.is_empty() { "optimizer" } else { "opt_arg" };
            return Ok(config.chosen_optimizer().map_err(|reason| ConfigError::setting(&run, named, reason))?);
        };
        let defaults = RunConfig::default();
        for name in ["optimizer", "opt_arg"].into_iter().chain(of_optimizers().map(|(setting, _)| setting.name)) {
            let value = run.get(name).unwrap_or_default();
            let is_record = name == "optimizer" && config.optimizer == OptimizerKind::Own;
            if Some(&value) != defaults.get(name).as_ref() && !is_record {
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

/// What the plans of a run are compiled from.
#[derive(Clone, Copy)]
pub struct Compilation<'a> {
    /// The settings.
    pub config: &'a TrainConfig,
    /// How images are prepared.
    pub preparation: &'a Preparation,
    /// The model.
    pub model: &'a ModelFn<'a>,
    /// What it is trained for.
    pub objective: &'a Objective,
    /// The number of the model's outputs, such as classes.
    pub outputs: usize,
    /// What a device makes of plans.
    pub target: &'a Target<'a>,
}

impl Compilation<'_> {
    /// The plans for this number of shards. Nothing in them is cut over ranks: see [`Compilation::plans_of_ranks`]. With
    /// [`Recomputation::Auto`](crate::Recomputation::Auto) nothing is computed again: the trainer puts bytes in its place.
    ///
    /// # Errors
    /// The model or an option of the configuration is wrong: see [`Target::compile`].
    pub fn plans(&self, shards: usize) -> Result<Plans, TrainError> {
        self.plans_of_ranks(&ShardMap::new(shards, 1)?)
    }

    /// The same for ranks that host the shards in this way, of which each takes its part ([`Plans::of_rank`]).
    ///
    /// # Errors
    /// As of [`Compilation::plans`].
    pub fn plans_of_ranks(&self, map: &ShardMap) -> Result<Plans, TrainError> {
        self.compile(&self.options(map)?)
    }

    /// The plans of each stage, or those that every rank has of layers cut over ranks, as [`Compilation::plans`] makes those of the
    /// whole model; none if the model is not cut.
    ///
    /// # Errors
    /// As of [`Compilation::plans`], or the model has no layer of a stage's name, or none that can be cut over so many ranks.
    pub fn parts(&self, shards: usize) -> Result<Vec<Plans>, TrainError> {
        let whole = self.options(&ShardMap::new(shards, 1)?)?;
        let config = self.config;
        if config.tensor_parallel > 1 {
            let tensor_parallel = Some(config.tensor_parallel);
            return Ok(vec![self.compile(&CompileOptions { tensor_parallel, ..whole })?]);
        }
        let stage = |index| {
            let begins = config.stages.clone();
            let micro_batches = config.micro_batches();
            let schedule = config.schedule_stages.into();
            let stage = Some(StageCut { begins, index, micro_batches, schedule });
            self.compile(&CompileOptions { stage, ..whole.clone() })
        };
        if config.stages.is_empty() { Ok(Vec::new()) } else { (0..=config.stages.len()).map(stage).collect() }
    }

    /// The plans that compute what the model's last layer reads, for the shards of one rank, of images prepared for evaluation.
    pub(crate) fn features(&self, sharding: &Sharding) -> Result<Plans, TrainError> {
        let config = self.config;
        let normalization = &self.preparation.normalization;
        let size = self.preparation.evaluation.size;
        let options = CompileOptions {
            shards: sharding.local.len(),
            precision: config.precision,
            fuse: config.fuse,
            mean: normalization.mean.clone(),
            std: normalization.std.clone(),
            ..CompileOptions::new(config.model.clone(), sharding.batch, size, self.outputs)
        };
        Ok(self.target.compile_features(&|x| (self.model)(x, self.outputs), &options, None)?)
    }

    fn compile(&self, options: &CompileOptions) -> Result<Plans, TrainError> {
        Ok(self.target.compile(&|x| (self.model)(x, self.outputs), options)?)
    }

    /// The options with which the whole model is compiled.
    fn options(&self, map: &ShardMap) -> Result<CompileOptions, TrainError> {
        let Compilation { config, preparation, objective, outputs, .. } = *self;
        let (task, shards) = (objective.task(), map.shards());
        Ok(CompileOptions {
            shards,
            recompute: config.recompute.option().unwrap_or_default(),
            drop_path: config.drop_path.map(|rate| rate as f32),
            sync_batch_norm: config.sync_bn,
            freeze: match (config.fine_tune, config.freeze_layers) {
                (Some(FineTune::Head), _) => Freeze::AllButLast(0, config.freeze.clone()),
                (Some(FineTune::Last(layers)), _) => Freeze::AllButLast(layers, config.freeze.clone()),
                (_, true) => Freeze::AllButClassifier(config.freeze.clone()),
                (_, false) => Freeze::Patterns(config.freeze.clone()),
            },
            freeze_statistics: config.freeze_bn,
            target: task.target(),
            loss: objective.loss(task.as_ref(), config)?,
            teacher: objective.teacher.as_ref().map(|teacher| teacher.in_plan.clone()),
            mixed: preparation.train.mixing().is_some(),
            weighted_loss: !config.drop_last,
            strategy: match config.strategy {
                StrategyKind::Ddp => Strategy::Distributed,
                StrategyKind::Dp => Strategy::Replicated,
                StrategyKind::Zero1 => Strategy::Partitioned { ranks: map.ranks() },
            },
            all_reduce: config.all_reduce.word(),
            compress: match config.reduce_precision {
                ReducePrecision::F32 => None,
                ReducePrecision::Bf16 => Some(DType::Bf16),
                ReducePrecision::F16 => Some(DType::F16),
            },
            optimizer: objective.optimizer(config)?,
            clip_norm: config.clip_norm.map(|norm| norm as f32),
            average: match config.lookahead {
                Some(_) => Some(Averaging::Lookahead),
                None => config.ema.map(|decay| Averaging::Ema(decay as f32)),
            },
            groups: ParameterGroups {
                weight_decay: config.weight_decay as f32,
                no_decay_norm_bias: config.no_decay_norm_bias,
                rules: config.group_rules().chain(objective.groups.iter().cloned()).collect(),
            },
            layer_rates: LayerRates { decay: config.layer_decay as f32, head: config.head_lr_mult as f32 },
            metrics: objective.metrics(task.as_ref(), config),
            seed: config.seed,
            precision: config.precision,
            fuse: config.fuse,
            mean: preparation.normalization.mean.clone(),
            std: preparation.normalization.std.clone(),
            allow_unused: config.unused_parameters == UnusedParameters::Zero,
            ..CompileOptions::new(
                config.model.clone(),
                config.batch_per_shard(shards),
                preparation.train.size(),
                outputs,
            )
        })
    }
}

/// Sets every parameter of a new program to its initial value, a function of (seed, name, element), and every average
/// to the initial value of the tensor that it averages.
///
/// # Errors
/// The device fails.
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
    use crate::{MetricName, TaskMetric};

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
            let compilation = Compilation {
                config: &config,
                preparation: &preparation,
                model: &net,
                objective: &objective,
                outputs: 3,
                target: &Target::default(),
            };
            let plans = compilation.plans(1);
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

    #[derive(Debug)]
    struct Error;

    impl Task for Error {
        fn target(&self) -> TargetKind {
            TargetKind::Values(1)
        }
        fn outputs(&self) -> usize {
            1
        }
        fn loss(&self, _: &TrainConfig) -> Loss {
            Loss::Custom(PerSample::new(|x: Tensor, _| x.sum_classes()))
        }
        fn metrics(&self) -> Vec<TaskMetric> {
            let function = PerSample::new(|x: Tensor, _| x.sum_classes());
            vec![TaskMetric { name: "mae".into(), direction: Direction::Lower, function }]
        }
    }

    #[test]
    fn the_best_epoch_is_that_of_a_value_that_epochs_have() {
        let function = PerSample::new(|x: Tensor, _| x.sum_classes());
        let own = || vec![Metric::Custom { name: "own".into(), function: function.clone() }];
        let check = |name: Option<&str>, objective: Objective, expected: Result<Monitor, &str>| {
            let metrics = vec![MetricName::Top(5), MetricName::GradientNorm];
            let metrics = if objective.task.is_none() { metrics } else { Vec::new() };
            let config = TrainConfig { monitor: name.map(str::to_owned), metrics, ..TrainConfig::default() };
            let found = objective.monitor(objective.task().as_ref(), &config);
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        };
        let classes = || Objective { metrics: own(), ..Objective::default() };
        let values = || Objective { task: Some(Arc::new(Error)), ..classes() };
        check(None, classes(), Ok(Monitor::higher("val_accuracy")));
        check(Some("val_loss"), classes(), Ok(Monitor::lower("val_loss")));
        check(Some("balanced_accuracy"), classes(), Ok(Monitor::higher("balanced_accuracy")));
        check(Some("val_top5"), classes(), Ok(Monitor::higher("val_top5")));
        check(None, values(), Ok(Monitor::lower("val_loss")));
        check(Some("train_mae"), values(), Ok(Monitor::lower("train_mae")));
        let names =
            "train_loss, val_loss, train_accuracy, val_accuracy, balanced_accuracy, val_macro_f1, train_top5, val_top5";
        let unknown = format!("monitor recall: an epoch has no such value: use {names}");
        check(Some("recall"), classes(), Err(&unknown));
        let norm = format!("monitor train_gradient_norm: an epoch has no such value: use {names}");
        check(Some("train_gradient_norm"), classes(), Err(&norm));
        let unknown = "monitor val_accuracy: an epoch has no such value: use train_loss, val_loss, train_mae, val_mae";
        check(Some("val_accuracy"), values(), Err(unknown));
        // The direction of a program's own metric is what it says.
        let unsaid = "monitor val_own: whether lower or higher is better is not known: say so by `Trainer::monitor`";
        check(Some("val_own"), classes(), Err(unsaid));
        let said = || Objective { monitor: Some(Monitor::lower("val_own")), ..classes() };
        check(None, said(), Ok(Monitor::lower("val_own")));
        check(Some("val_own"), said(), Ok(Monitor::lower("val_own")));
        check(Some("val_loss"), said(), Ok(Monitor::lower("val_loss")));
        check(Some("loss"), said(), Ok(Monitor::lower("val_loss")));
        check(Some("accuracy"), said(), Ok(Monitor::higher("val_accuracy")));
    }
}
