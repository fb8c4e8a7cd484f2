//! The configuration that a fit really uses: checked like a command line's, compared with the device, the group and the data that were
//! given, and completed by them, so that the run's record is true.

use enmasse_graph::Plans;
use enmasse_wording::counted;

use super::{ModelFn, Trainer};
use crate::plans::compile_plans;
use crate::{ConfigError, Devices, Preparation, TrainConfig, TrainError, TrainingData};

/// The settings that [`Trainer::fit`] cannot obey, since they concern the device that it is given, the group, the terminal or the job.
/// A caller that sets one must obey it, and says so by [`Trainer::obeys`].
pub const CALLERS_SETTINGS: &[&str] = &[
    "devices",
    "isa",
    "threads",
    "share_devices",
    "heartbeat",
    "transport",
    "sum",
    "reduce_precision",
    "stage",
    "log_every",
    "log_ranks",
    "requeue_signal",
    "json",
];

impl Trainer<'_> {
    /// The configuration for a fit of the model with this name on these data.
    pub(super) fn used(&self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<TrainConfig, TrainError> {
        let mut config = self.config.clone();
        config.check()?;
        let refuse = |name: &str, reason: String| Err(ConfigError::setting(&self.config, name, reason).into());
        if config.num_classes.is_some_and(|expected| expected != data.classes.len()) {
            return refuse("num_classes", format!("the data have {}", counted(data.classes.len(), "class")));
        }
        let world_size = self.group.as_ref().map_or(1, |group| group.world_size());
        if !self.callers.contains(&"devices") {
            let name = self.device.name();
            let used = Devices::new(name.split(' ').next().unwrap_or_default(), world_size);
            if config
                .devices
                .as_ref()
                .is_some_and(|devices| (&devices.kind, devices.count()) != (&used.kind, world_size))
            {
                return refuse("devices", format!("the trainer was given {name}, and a group of {world_size}"));
            }
            config.devices = Some(used);
        }
        let defaults = TrainConfig::default();
        for name in CALLERS_SETTINGS.iter().filter(|name| **name != "devices" && !self.callers.contains(name)) {
            if config.get(name) != defaults.get(name) {
                let reason =
                    "the trainer cannot obey it: it is decided by the device, the group or the program around it";
                return refuse(name, reason.to_owned());
            }
        }
        if config.model != name && config.model != defaults.model {
            return refuse("model", format!("the trainer was given {name}"));
        }
        config.model = name.to_owned();
        // A caller that obeys the settings has found the model by its name.
        if self.callers.is_empty() && !self.is_its_own(&config, model, data)? {
            let reason = "the zoo has a model of this name with other tensors; give this one a name of its own";
            return Err(ConfigError::setting(&config, "model", reason.to_owned()).into());
        }
        config.size = Some(Preparation::of(&config, data).train.size());
        Ok(config)
    }

    /// Whether the model may bear its name: the zoo has none of this name, or one of the same tensors.
    fn is_its_own(&self, config: &TrainConfig, model: &ModelFn, data: &TrainingData) -> Result<bool, TrainError> {
        let Ok(known) = enmasse_models::find(&config.model) else { return Ok(true) };
        let preparation = Preparation::of(config, data);
        let plans = |model: &ModelFn| {
            let (objective, classes) = (&self.objective, data.classes.len());
            compile_plans(config, &preparation, model, objective, classes, 1, &self.device.target())
        };
        // A model of the zoo may not fit these images.
        let Ok(expected) = plans(&|x, classes| known.forward(x, classes)) else { return Ok(false) };
        let tensors = |plans: &Plans| -> Vec<_> {
            plans.state.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect()
        };
        Ok(tensors(&plans(model)?) == tensors(&expected))
    }
}
