//! What a run folder says of its run: settings, epochs, the test at the end. Neither weights nor data are opened for it.

use std::collections::BTreeMap;
use std::path::Path;

use enmasse_charts::{EpochPoint, training_curves};
use enmasse_system::files::{FileError, read_text};
use enmasse_train::{Best, CheckpointMeta, RunConfig, RunPaths, SETTINGS, Setting, SettingOrigins};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{Failure, failed};
use crate::report::percent;

/// A share of the time that is worth a word.
const MATTERS: f64 = 0.1;

/// A line of `metrics.jsonl`. Values that are missing there, or no numbers, are unknown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Epoch {
    /// From 0.
    pub epoch: u64,
    pub train_loss: Option<f64>,
    pub val_loss: Option<f64>,
    pub train_accuracy: Option<f64>,
    pub val_accuracy: Option<f64>,
    pub learning_rate: Option<f64>,
    pub images_per_second: Option<f64>,
    pub data_wait: Option<f64>,
    pub rank_wait: Option<f64>,
    pub seconds: f64,
    pub world_size: usize,
    pub partial: bool,
    pub ranks: Ranks,
}

/// What each rank did and took, a list by rank for each figure.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ranks {
    pub images_per_second: Vec<Option<f64>>,
    pub data_wait: Vec<Option<f64>>,
    pub rank_wait: Vec<Option<f64>>,
    pub resident_bytes: Vec<Option<f64>>,
    pub device_bytes: Vec<Option<f64>>,
    pub device_utilization: Vec<Option<f64>>,
}

impl Epoch {
    /// From 1.
    pub fn number(&self) -> u64 {
        self.epoch + 1
    }

    /// What is drawn of it.
    pub fn point(&self) -> EpochPoint {
        let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
        EpochPoint {
            epoch: self.number(),
            train_loss: known(self.train_loss),
            val_loss: known(self.val_loss),
            train_accuracy: known(self.train_accuracy),
            val_accuracy: known(self.val_accuracy),
            learning_rate: known(self.learning_rate),
        }
    }
}

/// The test part's figures at the end of a run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Test {
    loss: Option<f64>,
    pub accuracy: Option<f64>,
    pub samples: u64,
    /// Those of labels and of numbers, and others.
    #[serde(flatten)]
    further: BTreeMap<String, Value>,
}

impl Test {
    /// The figures that have a value, with their names.
    pub fn figures(&self) -> String {
        let own = [("accuracy", self.accuracy), ("loss", self.loss)];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let further = ["map", "macro_f1", "micro_f1", "r2", "mae", "rmse"];
        let further = further.into_iter().filter_map(|name| Some((name, self.further.get(name)?.as_f64()?)));
        let words = own.chain(further).map(|(name, value)| match name {
            "accuracy" => format!("accuracy {}", percent(value)),
            _ => format!("{name} {value:.4}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// A setting as a run has it.
pub struct UsedSetting {
    pub setting: &'static Setting,
    pub value: String,
    /// Where the value comes from, in words.
    pub origin: String,
}

impl UsedSetting {
    /// The settings that were given or differ from their defaults, or all others. `origins` are those that the run kept.
    pub fn of(config: &RunConfig, origins: Option<&SettingOrigins>, own: bool) -> Vec<Self> {
        let default = RunConfig::default();
        let used = SETTINGS.iter().filter_map(|setting| {
            let value = config.get(setting.name)?;
            let given = origins.and_then(|origins| origins.get(setting.name));
            let differs = default.get(setting.name).as_ref() != Some(&value);
            let origin = match (given, differs, origins) {
                (Some(given), ..) => given,
                (None, false, _) => "default",
                (None, true, Some(_)) => "chosen for data and machine",
                (None, true, None) => "not kept",
            };
            (own == (given.is_some() || differs)).then(|| UsedSetting { setting, value, origin: origin.to_owned() })
        });
        used.collect()
    }
}

/// A run, as far as its folder tells.
pub struct RunRecord {
    pub name: String,
    pub paths: RunPaths,
    pub config: RunConfig,
    /// Where the settings come from; none of a run that did not keep it.
    pub origins: Option<SettingOrigins>,
    pub epochs: Vec<Epoch>,
    /// The best value of what the run monitors.
    pub best: Best,
    /// The first epoch with that value.
    pub best_epoch: Option<Epoch>,
    pub test: Option<Test>,
    /// Images that the run skipped.
    pub unreadable: usize,
}

impl RunRecord {
    /// Reads the folder of a run.
    pub fn open(root: &Path) -> Result<Self, Failure> {
        let paths = RunPaths::new(root);
        let weights = paths.require_weights().map_err(Failure::error)?;
        let text = paths.saved_config().map_err(Failure::error)?.unwrap_or_default();
        let config = RunConfig::from_toml(&text).map_err(Failure::error)?;
        let origins = paths.read_origins().map_err(Failure::error)?;
        let best = CheckpointMeta::load(&weights).map_err(Failure::error)?.best;
        let lines = read(&paths.metrics())?;
        let mut epochs = Vec::new();
        let mut best_epoch = None;
        for (number, line) in lines.iter().flat_map(|text| text.lines()).enumerate() {
            let epoch: Epoch = parse(&paths.metrics(), number + 1, line)?;
            let values: Value = parse(&paths.metrics(), number + 1, line)?;
            if best_epoch.is_none() && best.value.is_some() && values[&best.metric].as_f64() == best.value {
                best_epoch = Some(epoch.clone());
            }
            epochs.push(epoch);
        }
        let test = read(&paths.test_record())?.map(|text| parse(&paths.test_record(), 1, &text)).transpose()?;
        let unreadable = read(&paths.unreadable())?.map_or(0, |text| text.lines().count());
        let name = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let name = name.file_name().map_or_else(|| root.display().to_string(), |name| name.display().to_string());
        Ok(RunRecord { name, paths, config, origins, epochs, best, best_epoch, test, unreadable })
    }

    /// Images per second in training: the median of the whole epochs, without the first one if there are more.
    pub fn images_per_second(&self) -> Option<f64> {
        median(self.measured().filter_map(|epoch| epoch.images_per_second))
    }

    /// Seconds of an epoch with its validation: the median of the same epochs.
    pub fn epoch_seconds(&self) -> Option<f64> {
        median(self.measured().map(|epoch| epoch.seconds))
    }

    /// Seconds of all epochs.
    pub fn seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum()
    }

    /// Ranks of the last epoch.
    pub fn ranks(&self) -> usize {
        self.epochs.last().map_or(1, |epoch| epoch.world_size.max(1))
    }

    /// What the time of training went on besides computing: waiting for images, and for other ranks. Shares from 0 to 1.
    pub fn waits(&self) -> Option<[f64; 2]> {
        let data = median(self.measured().filter_map(|epoch| epoch.data_wait))?;
        let ranks = median(self.measured().filter_map(|epoch| epoch.rank_wait)).unwrap_or(0.0);
        Some([data, ranks])
    }

    /// What bounded the speed, in words.
    pub fn bound(&self) -> Option<&'static str> {
        let [data, ranks] = self.waits()?;
        Some(match (data >= MATTERS, ranks >= MATTERS) {
            (true, _) if data >= ranks => "reading images",
            (_, true) => "sums over ranks",
            _ => "computing",
        })
    }

    fn measured(&self) -> impl Iterator<Item = &Epoch> {
        let whole = self.epochs.iter().filter(|epoch| !epoch.partial);
        let first = usize::from(self.epochs.len() > 1);
        whole.skip(first)
    }

    /// Loss, accuracy and learning rate of the epochs, as SVG. None if no epoch has ended.
    pub fn curves(&self) -> Option<String> {
        let points: Vec<EpochPoint> = self.epochs.iter().map(Epoch::point).collect();
        let words = self.best.to_string();
        let mark = self.best_epoch.as_ref().map(|epoch| (epoch.number(), words.as_str()));
        (!points.is_empty()).then(|| training_curves("training curves", &points, mark))
    }
}

/// The text of a file; none if it does not exist.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    read_text(path).map(Some).map_err(|error| Failure::error(FileError::of("read", path)(error)))
}

fn parse<T: DeserializeOwned>(path: &Path, line: usize, text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| failed!("{}: line {line} is malformed: {error}", path.display()))
}

/// The middle of the finite values, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => None,
        1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |values: &[f64], expected: Option<f64>| assert_eq!(median(values.iter().copied()), expected);
        check(&[], None);
        check(&[f64::NAN], None);
        check(&[3.0], Some(3.0));
        check(&[3.0, 1.0], Some(2.0));
        check(&[3.0, f64::INFINITY, 1.0, 2.0], Some(2.0));
    }
}
