//! The configuration that a fit really uses: checked like a command line's, compared with the device, the group and the data that were
//! given, and completed by them, so that the run's record is true.

use enmasse_datasets::TaskKind;
use enmasse_graph::{Plans, TargetKind};
use enmasse_wording::counted;

use super::Trainer;
use crate::plans::Compilation;
use crate::{
    Balance, ConfigError, Devices, FineTune, ModelFn, Preparation, ProgramConfig, RunConfig, TrainConfig, TrainError,
    TrainingData,
};

/// The settings that decide the rate of a step.
const SCHEDULE: [&str; 14] = [
    "schedule",
    "lr",
    "lrf",
    "step_size",
    "gamma",
    "plateau_patience",
    "restart_epochs",
    "restart_mult",
    "power",
    "pct_start",
    "div_factor",
    "final_div_factor",
    "warmup_epochs",
    "scale_lr",
];

impl Trainer<'_> {
    /// The configuration for a fit of the model with this name on these data.
    pub(super) fn used(&self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<RunConfig, TrainError> {
        let program = self.program.clone().unwrap_or_else(|| self.own_program());
        let mut config = RunConfig { train: self.config.clone().shortened(), program };
        config.check()?;
        self.record_own(&mut config)?;
        let refuse = |name: &str, reason: String| Err(ConfigError::setting(&config, name, reason).into());
        if self.config.num_classes.is_some_and(|expected| expected != data.classes.len()) {
            return refuse("num_classes", format!("the data have {}", counted(data.classes.len(), "class")));
        }
        let task = self.objective.of_data(data, &config.train)?.task();
        let has_classes = task.target() == TargetKind::Class;
        if self.config.balance == Balance::Classes && !has_classes {
            return refuse("balance", "has no effect on a task without classes: leave it out".to_owned());
        }
        if self.config.model != name && self.config.model != TrainConfig::default().model {
            return refuse("model", format!("the trainer was given {name}"));
        }
        config.train.model = name.to_owned();
        if self.objective.task.is_none() && data.task != TaskKind::Classification {
            // The run's weights are used for it.
            config.train.task = Some(data.task);
        }
        match config.train.fine_tune {
            Some(FineTune::All) if !has_classes => config.train.fine_tune = None,
            Some(_) if !has_classes => {
                let reason = "begins with a head that is fitted to classes; leave it out, or use `freeze_layers`";
                return Err(ConfigError::setting(&config, "fine_tune", reason.to_owned()).into());
            }
            _ => {}
        }
        config.train.epochs = config.train.epochs_of_run();
        // A program with settings of its own has found the model by its name.
        if self.program.is_none() && !self.is_its_own(&config.train, model, data)? {
            let reason = "the zoo has a model of this name with other tensors; give this one a name of its own";
            return Err(ConfigError::setting(&config, "model", reason.to_owned()).into());
        }
        config.train.size = Some(Preparation::of(&config.train, data).train.size());
        Ok(config)
    }

    /// Records what the program has given in place of settings. Settings that have no effect beside it are an error.
    fn record_own(&self, config: &mut RunConfig) -> Result<(), TrainError> {
        let default = RunConfig::default();
        let sampler = ["sampler", "shuffle", "balance", "repeat_augment"];
        // An optimiser's hyper-parameters are checked where plans are compiled.
        for (kind, names, is_given) in [
            ("schedule", &SCHEDULE[..], self.schedule.is_some()),
            ("sampler", &sampler, self.sampler.is_some()),
            ("optimizer", &["optimizer"], self.objective.optimizer.is_some()),
        ] {
            let is_recorded = config.get(kind).as_deref() == Some("own");
            let refuse = |name: &str, reason: String| Err(ConfigError::setting(config, name, reason).into());
            if is_recorded && !is_given {
                let reason = format!("is that of the program which began the run: give it by Trainer::{kind}");
                return refuse(kind, reason);
            }
            let is_idle = |name: &&&str| config.get(name) != default.get(name) && !(**name == kind && is_recorded);
            if let Some(name) = names.iter().find(is_idle).filter(|_| is_given) {
                return refuse(name, format!("has no effect on this program's own {kind}: leave it out"));
            }
            if is_given {
                config.set(kind, "own")?;
            }
        }
        Ok(())
    }

    /// What a program without settings of its own has given this trainer.
    fn own_program(&self) -> ProgramConfig {
        let name = self.device.name();
        let kind = name.split(' ').next().unwrap_or_default();
        let world_size = self.group.as_ref().map_or(1, |group| group.world_size());
        ProgramConfig { devices: Some(Devices::new(kind, world_size)), ..ProgramConfig::default() }
    }

    /// Whether the model may bear its name: the zoo has none of this name, or one of the same tensors.
    fn is_its_own(&self, config: &TrainConfig, model: &ModelFn, data: &TrainingData) -> Result<bool, TrainError> {
        let Ok(known) = enmasse_models::find(&config.model) else { return Ok(true) };
        let preparation = Preparation::of(config, data);
        let objective = self.objective.of_data(data, config)?;
        let plans = |model: &ModelFn| {
            let compilation = Compilation {
                config,
                preparation: &preparation,
                model,
                objective: &objective,
                outputs: objective.task().outputs(),
                target: &self.device.target(),
            };
            compilation.plans(1)
        };
        // A model of the zoo may not fit these images.
        let Ok(expected) = plans(&|x, classes| known.forward(x, classes)) else { return Ok(false) };
        let tensors = |plans: &Plans| -> Vec<_> {
            plans.state.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect()
        };
        Ok(tensors(&plans(model)?) == tensors(&expected))
    }
}
