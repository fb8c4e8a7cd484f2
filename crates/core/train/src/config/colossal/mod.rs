//! `--config config.py`: a configuration of ColossalAI, whose keys mean settings.
//!
//! The file is read as data ([`assignments()`]). Each key is a setting, or has a line that says why it means nothing here.

mod assignments;

use assignments::{Value, assignments};

use super::aliases::nearest;
use super::{ConfigError, Setting, answer};

/// What a configuration of ColossalAI says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Settings by name, each with its value as text and the key that it comes from.
    pub settings: Vec<(&'static str, String, String)>,
    /// A line for each key that has no meaning here.
    pub remarks: Vec<String>,
}

/// Of layers that are cut over ranks.
const PARALLEL: &str = "every rank trains the whole model on its share of the batch";

/// Keys without a setting, and what to say of each.
const WITHOUT: &[(&str, &str)] = &[
    ("gradient_handler", "gradients are summed over ranks in any case"),
    ("cudnn_deterministic", "every run gives the same bits again"),
    ("logging", "every run keeps its logs in its folder; give --out DIR"),
    ("log_path", "every run keeps its logs in its folder; give --out DIR"),
    ("train_data", "the folder of images is DATA on the command line"),
    ("test_data", "the folder of images is DATA on the command line"),
    ("dataloader", "the loader needs no settings"),
    ("zero", "give --strategy zero1, which cuts the optimiser's state over ranks"),
    ("sequence", PARALLEL),
];

/// Hooks, and where what they record is without one.
const HOOKS: &[(&str, &str)] = &[
    ("LossHook AccuracyHook LogMetricByEpochHook", "each epoch's record has its losses and metrics"),
    ("LogMetricByStepHook", "give --log-every N"),
    ("LRSchedulerHook", "give --schedule"),
    ("LogMemoryByEpochHook", "each epoch's record has resident_bytes and device_bytes of every rank"),
    ("LogTimingByEpochHook", "each epoch's record has seconds, images_per_second and waits"),
    ("TensorboardHook", "every run writes TensorBoard's events"),
    ("SaveCheckpointHook", "give --save-every and --keep"),
];

/// Reads the text of a configuration, whose origin is `place`.
pub(super) fn read(text: &str, place: &str) -> Result<Read, ConfigError> {
    let refuse = |reason: String| ConfigError::File { path: place.to_owned(), reason };
    let mut read = Read::default();
    for (key, value) in assignments(text).map_err(refuse)? {
        read.key(&key, &value).map_err(refuse)?;
    }
    let Read { settings, .. } = &mut read;
    let mut kept: Vec<(&'static str, String, String)> = Vec::with_capacity(settings.len());
    for (name, text, key) in settings.drain(..) {
        match kept.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, same, _)) if *same == text => {}
            // Its items are joined, as those of several flags.
            Some((_, items, _)) if name == "opt_arg" => *items = format!("{items},{text}"),
            Some((.., earlier)) => return Err(refuse(format!("{name} is given twice, as {earlier} and as {key}"))),
            None => kept.push((name, text, key)),
        }
    }
    read.settings = kept;
    Ok(read)
}

impl Read {
    fn set(&mut self, name: &'static str, text: impl Into<String>, key: &str) {
        self.settings.push((name, text.into(), key.to_owned()));
    }

    fn remark(&mut self, key: &str, why: &str) {
        self.remarks.push(format!("{key} has no meaning here: {why}"));
    }

    fn key(&mut self, key: &str, value: &Value) -> Result<(), String> {
        let lower = key.to_ascii_lowercase();
        match (lower.as_str(), value) {
            (_, Value::None) => {}
            ("optimizer", Value::Dict(entries)) => self.optimizer(entries)?,
            ("lr_scheduler", Value::Dict(entries)) => self.schedule(entries)?,
            ("fp16" | "amp", Value::Dict(entries)) => self.fp16(key, entries),
            ("fp16" | "amp", Value::Truth(true)) => self.set("precision", "f16", key),
            ("bf16", Value::Dict(_) | Value::Truth(true)) => self.set("precision", "bf16", key),
            ("fp16" | "amp" | "bf16" | "cudnn_benchmark", Value::Truth(false)) => {}
            ("cudnn_benchmark", Value::Truth(true)) => self.set("tune", "true", key),
            ("parallel", Value::Dict(entries)) => self.parallel(entries),
            ("model", Value::Dict(entries)) => self.typed("model", "model", entries)?,
            ("loss", Value::Dict(entries)) => self.loss(entries)?,
            // ColossalAI's default, which clips nothing.
            ("hooks", Value::List(hooks)) => hooks.iter().for_each(|hook| self.hook(hook)),
            ("clip_grad_norm", Value::Number(number)) if number.parse() == Ok(0.0) => {}
            _ => match (Setting::spelled(key), WITHOUT.iter().find(|(without, _)| *without == lower)) {
                (Some(setting), _) => {
                    let text =
                        scalar(value).ok_or_else(|| format!("{key} must be a number, a text or a list of them"))?;
                    self.set(setting.name, text, key);
                }
                (None, Some((_, why))) => self.remark(key, why),
                (None, None) => match (answer(key), nearest(key)) {
                    (Some(answer), _) => self.remark(key, answer),
                    (None, Some(near)) => self.remark(key, &format!("did you mean {}?", near.name)),
                    (None, None) => self.remark(key, "it is no setting"),
                },
            },
        }
        Ok(())
    }

    fn hook(&mut self, hook: &Value) {
        let name = match hook {
            Value::Dict(entries) => entries.iter().find(|(name, _)| name == "type").map(|(_, kind)| kind),
            name => Some(name),
        };
        let name = name.and_then(scalar).unwrap_or_default();
        let known = HOOKS.iter().find(|(names, _)| names.split(' ').any(|known| known == name));
        self.remark(
            &format!("hook {name}"),
            known.map_or("a program's own callbacks are in docs/callbacks.md", |(_, why)| why),
        );
    }

    fn optimizer(&mut self, entries: &[(String, Value)]) -> Result<(), String> {
        for (name, value) in entries {
            let key = format!("optimizer.{name}");
            match (name.as_str(), value) {
                ("type", Value::Text(kind)) => {
                    let kind = kind.to_ascii_lowercase();
                    // Those of ColossalAI are the same rules, fused or on other devices.
                    let plain = ["fused", "hybrid", "cpu"].iter().find_map(|prefix| kind.strip_prefix(prefix));
                    let plain = match plain {
                        // Their Adam decouples weight decay by default.
                        Some("adam") => "adamw",
                        Some(plain) => plain,
                        None => &kind,
                    };
                    self.set("optimizer", plain, &key);
                }
                ("betas" | "eps", value) => {
                    let argument = if name == "eps" { "epsilon" } else { "betas" };
                    let text = scalar(value).ok_or_else(|| format!("{key} must be numbers"))?;
                    self.set("opt_arg", format!("{argument}={text}"), &key);
                }
                ("lr" | "momentum" | "weight_decay" | "nesterov", _) => self.inner("optimizer", name, value)?,
                _ => self.remark(&key, "no optimizer has this argument; see --opt-arg"),
            }
        }
        Ok(())
    }

    fn schedule(&mut self, entries: &[(String, Value)]) -> Result<(), String> {
        for (name, value) in entries {
            let key = format!("lr_scheduler.{name}");
            match (name.as_str(), value) {
                ("type", Value::Text(kind)) => {
                    let warms_up = kind.contains("Warmup");
                    let plain = kind.replace("Warmup", "").replace("LinearLR", "constant");
                    self.set("schedule", plain, &key);
                    if warms_up {
                        self.remark(&key, "its warm-up is given by --warmup-epochs EPOCHS");
                    }
                }
                ("total_steps", _) => self.remark(&key, "the schedule lasts for all epochs"),
                ("warmup_steps", _) => self.remark(&key, "give --warmup-epochs EPOCHS, such as 0.5"),
                ("gamma" | "step_size" | "power" | "pct_start", _) => self.inner("lr_scheduler", name, value)?,
                _ => self.remark(&key, "no schedule has this argument"),
            }
        }
        Ok(())
    }

    fn fp16(&mut self, key: &str, entries: &[(String, Value)]) {
        self.set("precision", "f16", key);
        for (name, _) in entries.iter().filter(|(name, _)| name != "mode") {
            self.remark(&format!("{key}.{name}"), "the scale of the loss is found by itself");
        }
    }

    fn parallel(&mut self, entries: &[(String, Value)]) {
        for (name, value) in entries {
            let size = match value {
                Value::Dict(inner) => inner.iter().find(|(name, _)| name == "size").map(|(_, value)| value),
                value => Some(value),
            };
            let is_one = matches!(size, Some(Value::Number(number)) if number.parse() == Ok(1.0));
            if !is_one && name != "data" {
                let why = match name.as_str() {
                    "pipeline" => "name the layers before which the model is cut, such as --stages layer3",
                    "tensor" => "give --tensor-parallel N, which is mode 1d",
                    _ => PARALLEL,
                };
                self.remark(&format!("parallel.{name}"), why);
            }
        }
    }

    fn loss(&mut self, entries: &[(String, Value)]) -> Result<(), String> {
        for (name, value) in entries {
            match (name.as_str(), value) {
                ("type", Value::Text(kind)) if kind == "CrossEntropyLoss" => {}
                ("label_smoothing", _) => self.inner("loss", name, value)?,
                _ => self.remark(&format!("loss.{name}"), "give --loss, one of those of enmasse train --help"),
            }
        }
        Ok(())
    }

    /// A dictionary whose `type` is the value of a setting, and whose other entries are settings.
    fn typed(&mut self, setting: &'static str, key: &str, entries: &[(String, Value)]) -> Result<(), String> {
        for (name, value) in entries {
            match (name.as_str(), value) {
                ("type", Value::Text(kind)) => self.set(setting, kind.as_str(), &format!("{key}.type")),
                _ if Setting::spelled(name).is_some() => self.inner(key, name, value)?,
                _ => self.remark(&format!("{key}.{name}"), "it is no setting"),
            }
        }
        Ok(())
    }

    /// An entry of a dictionary that is a setting of its own.
    fn inner(&mut self, of: &str, name: &str, value: &Value) -> Result<(), String> {
        let key = format!("{of}.{name}");
        let text = scalar(value).ok_or_else(|| format!("{key} must be a number, a text or a list of them"))?;
        let Some(setting) = Setting::spelled(name) else { return Ok(()) };
        self.set(setting.name, text, &key);
        Ok(())
    }
}

/// A value as the text of a setting.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Number(text) | Value::Text(text) => Some(text.clone()),
        Value::Truth(truth) => Some(truth.to_string()),
        Value::List(items) => Some(items.iter().map(scalar).collect::<Option<Vec<_>>>()?.join(",")),
        Value::None | Value::Dict(_) | Value::Constant(_) => None,
    }
}

#[cfg(test)]
mod tests;
