//! The data of a checkpoint other than its tensors, as texts in the metadata of a safetensors file.

use std::collections::BTreeMap;

use super::FORMAT_VERSION;
use crate::{Best, TargetKind, TargetStatistics};

/// The key of [`CheckpointMeta::statistics`].
const STATISTICS: &str = "target_statistics";

/// The states of callbacks, by their keys.
pub type CallbackStates = BTreeMap<String, String>;

/// Sums over the samples of the current epoch. They let a resumed epoch report the same training loss to the last bit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochSums {
    /// Sum of the losses.
    pub loss: f64,
    /// Hits.
    pub correct: u64,
    /// Number of samples in the sums.
    pub samples: u64,
    /// Sums of further metrics, by their names.
    pub metrics: BTreeMap<String, f64>,
}

/// A type that metadata texts can hold. Numbers are written so that they read back as the same bits.
trait Text: Sized {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

macro_rules! displayed {
    ($($type:ty),+) => {$(
        impl Text for $type {
            fn write(&self) -> String {
                self.to_string()
            }

            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )+};
}
displayed!(String, u64, usize, f64);

impl Text for Option<f64> {
    fn write(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |value| value.write())
    }

    fn read(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { f64::read(text).map(Some) }
    }
}

/// A JSON array of texts.
impl Text for Vec<String> {
    fn write(&self) -> String {
        serde_json::Value::from(self.clone()).to_string()
    }

    fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// A JSON array of numbers.
impl Text for Vec<f32> {
    fn write(&self) -> String {
        format!("[{}]", self.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    fn read(text: &str) -> Option<Self> {
        let numbers = text.strip_prefix('[')?.strip_suffix(']')?.split(", ").filter(|number| !number.is_empty());
        numbers.map(|number| number.parse().ok()).collect()
    }
}

/// A metric's name and sum.
fn metric((name, sum): (&str, &str)) -> Option<(String, f64)> {
    Some((name.to_owned(), f64::read(sum)?))
}

impl Text for EpochSums {
    fn write(&self) -> String {
        let metrics = self.metrics.iter().map(|(name, sum)| format!(" {name}={sum}"));
        format!("{} {} {}{}", self.loss, self.correct, self.samples, metrics.collect::<String>())
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(EpochSums {
            loss: f64::read(words.next()?)?,
            correct: u64::read(words.next()?)?,
            samples: u64::read(words.next()?)?,
            metrics: words.map(|word| word.split_once('=').and_then(metric)).collect::<Option<_>>()?,
        })
    }
}

fn read_best(map: &BTreeMap<String, String>) -> Result<Best, String> {
    let found = map.iter().find_map(|(key, text)| Some((key, key.strip_prefix("best_")?, text)));
    let (key, metric, text) = found.ok_or("is not a checkpoint: it has no best_val_accuracy")?;
    let value = Text::read(text).ok_or_else(|| format!("is not a checkpoint: its {key} is invalid"))?;
    Ok(Best { metric: metric.to_owned(), value })
}

fn read_callbacks(map: &BTreeMap<String, String>) -> Result<CallbackStates, String> {
    let states = map.get("callbacks").map(|text| serde_json::from_str(text)).transpose();
    Ok(states.map_err(|_| "is not a checkpoint: its callbacks is invalid")?.unwrap_or_default())
}

fn read_target(map: &BTreeMap<String, String>) -> Result<TargetKind, String> {
    let Some(text) = map.get("target") else { return Ok(TargetKind::Class) };
    let count = text.strip_suffix(" values").and_then(|count| count.parse().ok());
    count.map(TargetKind::Values).ok_or_else(|| "is not a checkpoint: its target is invalid".to_owned())
}

fn read_statistics(map: &BTreeMap<String, String>) -> Result<Option<TargetStatistics>, String> {
    let found = map.get(STATISTICS).map(|text| serde_json::from_str(text)).transpose();
    found.map_err(|_| format!("is not a checkpoint: its {STATISTICS} is invalid"))
}

/// Defines [`CheckpointMeta`] by its fields. Each field is the metadata key with the same name, except that `best` names the best
/// value, and that a checkpoint may lack `callbacks`, `target`, `target_statistics` and `teacher`.
macro_rules! metadata {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty,)+) => {
        /// The data of a checkpoint other than its tensors. Each field is a key of the file's metadata.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct CheckpointMeta {
            $($(#[doc = $doc])+ pub $name: $type,)+
            /// The best value so far of what the run monitors, under a key that names it: `best_val_accuracy`.
            pub best: Best,
            /// The states of callbacks.
            pub callbacks: CallbackStates,
            /// What the model predicts. Only the texts of a model of values have it.
            pub target: TargetKind,
            /// By what its outputs are scaled, if they are.
            pub statistics: Option<TargetStatistics>,
            /// A digest of the teacher, if it has one.
            pub teacher: Option<String>,
        }

        impl CheckpointMeta {
            fn fields_to(&self, map: &mut BTreeMap<String, String>) {
                $(map.insert(stringify!($name).to_owned(), self.$name.write());)+
                map.insert(self.best.key(), self.best.value.write());
                if !self.callbacks.is_empty() {
                    map.insert("callbacks".to_owned(), serde_json::json!(self.callbacks).to_string());
                }
                if self.target != TargetKind::Class {
                    map.insert("target".to_owned(), self.target.to_string());
                }
                if let Some(statistics) = &self.statistics {
                    map.insert(STATISTICS.to_owned(), serde_json::json!(statistics).to_string());
                }
                if let Some(teacher) = &self.teacher {
                    map.insert("teacher".to_owned(), teacher.clone());
                }
            }

            /// The error is the second part of a sentence that begins with the file.
            pub(crate) fn from_map(map: &BTreeMap<String, String>) -> Result<Self, String> {
                let read = |name: &str| map.get(name).ok_or_else(|| format!("is not a checkpoint: it has no {name}"));
                Ok(CheckpointMeta {
                    $($name: read(stringify!($name)).and_then(|text| {
                        <$type>::read(text).ok_or_else(|| format!("is not a checkpoint: its {} is invalid", stringify!($name)))
                    })?,)+
                    best: read_best(map)?,
                    callbacks: read_callbacks(map)?,
                    target: read_target(map)?,
                    statistics: read_statistics(map)?,
                    teacher: map.get("teacher").cloned(),
                })
            }
        }
    };
}

metadata! {
    /// The model's name.
    model: String,
    /// Names of the classes, by label.
    classes: Vec<String>,
    /// Height and width of the images that the model sees.
    size: usize,
    /// Evaluation resizes the shorter side to this before it cuts out the centre.
    resize: usize,
    /// Mean of each channel (3, or 1 for grey images), of pixels from 0 to 1, that normalisation subtracts.
    mean: Vec<f32>,
    /// Std of each channel, by which normalisation divides.
    std: Vec<f32>,
    /// The effective configuration, as TOML.
    configuration: String,
    /// A digest of the lists of files. The lists are in the run folder.
    split: String,
    /// The seed of weights, order and augmentation.
    seed: u64,
    /// The epoch in which to continue, from 0.
    epoch: u64,
    /// Samples of that epoch that are done, over all ranks.
    samples_consumed: u64,
    /// Sums over those samples.
    epoch_sums: EpochSums,
    /// Number of updates that the optimiser made.
    optimizer_step: u64,
}

impl CheckpointMeta {
    pub(crate) fn to_map(&self) -> BTreeMap<String, String> {
        let fixed = [
            ("format_version", FORMAT_VERSION.to_string()),
            ("enmasse_version", env!("CARGO_PKG_VERSION").to_owned()),
            // Some Python readers require it.
            ("format", "pt".to_owned()),
        ];
        let mut map = BTreeMap::from(fixed.map(|(key, value)| (key.to_owned(), value)));
        self.fields_to(&mut map);
        map
    }
}
