//! The types of settings: how each reads from text, and writes itself as text and TOML.

use std::fmt;
use std::path::{Path, PathBuf};

use enmasse_files::expand_home;
use enmasse_graph::Precision;

/// What kind of value a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On where named; `=true` and `=false` say so too.
    Switch,
    /// A number.
    Number,
    /// Numbers separated by commas.
    Numbers,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A path.
    Path,
    /// Texts separated by commas; on a command line repeatable.
    List,
}

/// Which numbers a setting allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    low: Option<i32>,
    /// Whether `low` itself is left out.
    open_low: bool,
    high: Option<i32>,
    open_high: bool,
}

/// No limits but the type's own.
pub(super) const ANY: Range = Range { low: None, open_low: false, high: None, open_high: false };

pub(super) const fn at_least(low: i32) -> Range {
    Range { low: Some(low), ..ANY }
}

pub(super) const fn above(low: i32) -> Range {
    Range { low: Some(low), open_low: true, ..ANY }
}

/// From `low` to `high`, both allowed.
pub(super) const fn between(low: i32, high: i32) -> Range {
    Range { low: Some(low), high: Some(high), ..ANY }
}

/// Above `low`, up to `high`.
pub(super) const fn above_to(low: i32, high: i32) -> Range {
    Range { low: Some(low), open_low: true, high: Some(high), ..ANY }
}

/// From `low` to below `high`.
pub(super) const fn below(low: i32, high: i32) -> Range {
    Range { low: Some(low), high: Some(high), open_high: true, ..ANY }
}

impl Range {
    /// Whether the number is finite and within the limits.
    pub fn contains(&self, number: f64) -> bool {
        let low = self.low.map(f64::from).is_none_or(|low| number > low || (number == low && !self.open_low));
        let high = self.high.map(f64::from).is_none_or(|high| number < high || (number == high && !self.open_high));
        number.is_finite() && low && high
    }
}

/// `1 or more`, `above 0`, `above 0 to 1`, `from 0 to below 1`; empty without limits.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (Some(low), None) if self.open_low => write!(f, "above {low}"),
            (Some(low), None) => write!(f, "{low} or more"),
            (Some(low), Some(high)) if self.open_low => write!(f, "above {low} to {high}"),
            (Some(low), Some(high)) => write!(f, "from {low} to {}{high}", if self.open_high { "below " } else { "" }),
            (None, _) => Ok(()),
        }
    }
}

/// A type that a setting can have. Errors are the end of a sentence that begins with the setting and its value.
pub(super) trait SettingValue: Sized {
    const KIND: Kind;

    fn parse(text: &str) -> Result<Self, String>;

    /// What [`SettingValue::parse`] takes; `None` for no value.
    fn text(&self) -> Option<String>;

    /// A TOML literal; `None` for no value.
    fn to_toml(&self) -> Option<String>;

    fn check(&self, _range: &Range) -> Result<(), String> {
        Ok(())
    }

    fn inspection(&self, range: &Range) -> Inspection {
        Inspection { text: self.text(), toml: self.to_toml(), fault: self.check(range).err() }
    }
}

/// A value of any type, looked at from outside.
#[derive(Default)]
pub(super) struct Inspection {
    pub text: Option<String>,
    pub toml: Option<String>,
    /// What [`SettingValue::check`] says against it.
    pub fault: Option<String>,
}

pub(super) fn quoted(text: &str) -> Option<String> {
    Some(toml::Value::from(text).to_string())
}

macro_rules! whole_numbers {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: Kind = Kind::Number;

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| "must be a whole number".to_owned())
            }

            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }

            /// TOML's integers end at 2^63 - 1; larger ones are written as text, which reads the same.
            fn to_toml(&self) -> Option<String> {
                if i64::try_from(*self).is_ok() { self.text() } else { quoted(&self.to_string()) }
            }

            fn check(&self, range: &Range) -> Result<(), String> {
                if range.contains(*self as f64) { Ok(()) } else { Err(format!("must be {range}")) }
            }
        }
    )+};
}
whole_numbers!(usize, u64);

impl SettingValue for f64 {
    const KIND: Kind = Kind::Number;

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "must be a number".to_owned())
    }

    /// The shortest decimal that reads back as the same number.
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn to_toml(&self) -> Option<String> {
        Some(toml::Value::from(*self).to_string())
    }

    fn check(&self, range: &Range) -> Result<(), String> {
        if range.contains(*self) { Ok(()) } else { Err(format!("must be a finite number, {range}")) }
    }
}

/// Any case is taken, as Python's own words are `True` and `False`.
impl SettingValue for bool {
    const KIND: Kind = Kind::Switch;

    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err("must be true or false".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn to_toml(&self) -> Option<String> {
        self.text()
    }
}

impl SettingValue for String {
    const KIND: Kind = Kind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
    }

    fn text(&self) -> Option<String> {
        Some(self.clone())
    }

    fn to_toml(&self) -> Option<String> {
        quoted(self)
    }
}

impl SettingValue for PathBuf {
    const KIND: Kind = Kind::Path;

    fn parse(text: &str) -> Result<Self, String> {
        expand_home(Path::new(&String::parse(text)?)).map_err(|error| error.to_string())
    }

    fn text(&self) -> Option<String> {
        Some(self.display().to_string())
    }

    fn to_toml(&self) -> Option<String> {
        quoted(&self.display().to_string())
    }
}

/// Text without anything between commas is the empty list.
impl SettingValue for Vec<String> {
    const KIND: Kind = Kind::List;

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect())
    }

    fn text(&self) -> Option<String> {
        Some(self.join(","))
    }

    fn to_toml(&self) -> Option<String> {
        Some(toml::Value::from(self.clone()).to_string())
    }
}

impl SettingValue for Vec<f64> {
    const KIND: Kind = Kind::Numbers;

    fn parse(text: &str) -> Result<Self, String> {
        let number = |item: &str| item.trim().parse().map_err(|_| "must be numbers separated by commas".to_owned());
        text.split(',').map(number).collect()
    }

    fn text(&self) -> Option<String> {
        Some(self.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
    }

    fn to_toml(&self) -> Option<String> {
        Some(toml::Value::from(self.clone()).to_string())
    }

    fn check(&self, range: &Range) -> Result<(), String> {
        match self.iter().all(|number| range.contains(*number)) {
            true => Ok(()),
            false => Err(format!("must be finite numbers, {range}")),
        }
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const KIND: Kind = T::KIND;

    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(Some)
    }

    fn text(&self) -> Option<String> {
        self.as_ref().and_then(T::text)
    }

    fn to_toml(&self) -> Option<String> {
        self.as_ref().and_then(T::to_toml)
    }

    fn check(&self, range: &Range) -> Result<(), String> {
        self.as_ref().map_or(Ok(()), |value| value.check(range))
    }
}

/// Makes an enum whose variants have one word each.
macro_rules! choices {
    ($($(#[$meta:meta])* $type:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+ })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $type {
            /// The word that stands for it.
            pub const fn word(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl SettingValue for $type {
            const KIND: Kind = Kind::Choice(&[$($word),+]);

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($type::$variant),)+
                    _ => Err(format!("must be {}", [$($word),+].join(" or "))),
                }
            }

            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }

            fn to_toml(&self) -> Option<String> {
                quoted(self.word())
            }
        }
    )+};
}

choices! {
    /// What hosts a rank.
    RankKind {
        /// A process of its own.
        Process = "process",
        /// A thread of this process.
        Thread = "thread",
    }
    /// How parameters are updated.
    OptimizerKind {
        /// Stochastic gradient descent, as PyTorch's `SGD`.
        Sgd = "sgd",
        /// Adam with decoupled weight decay, as PyTorch's `AdamW`.
        AdamW = "adamw",
        /// Stochastic gradient descent with a rate for each parameter, by the norms of its weights and its gradient.
        Lars = "lars",
    }
    /// The learning rate over the epochs.
    ScheduleKind {
        /// Half a cosine from the learning rate to a fraction of it.
        Cosine = "cosine",
        /// Half a cosine to zero.
        CosineAnnealing = "cosine-annealing",
        /// A factor every so many epochs.
        Step = "step",
        /// Always the same.
        Constant = "constant",
    }
    /// How the learning rate follows from the number of ranks.
    LrScaling {
        /// Not at all.
        None = "none",
        /// Multiplied by it.
        Linear = "linear",
    }
    /// What is drawn of a training picture.
    Augmentation {
        /// A part of random place, area and shape, resized: torchvision's `RandomResizedCrop`.
        ResizedCrop = "resized-crop",
        /// A crop of random place from the picture with black pixels around it: torchvision's `RandomCrop(size, padding)`.
        Crop = "crop",
        /// Always what validation sees.
        None = "none",
    }
    /// In which order training samples come.
    SamplerKind {
        /// A permutation of all samples by seed and epoch, whatever the number of ranks.
        Shuffle = "shuffle",
        /// That of PyTorch's `DistributedSampler`, with its padding.
        Distributed = "distributed",
    }
    /// How a folder without a validation part is split.
    SplitRule {
        /// By the split seed and the names of files.
        Seeded = "seeded",
        /// By CPython's `random.seed` and `random.sample`, class after class.
        Python = "python",
    }
    /// What to do with a parameter that does not reach the loss.
    UnusedParameters {
        /// Refuse the model, naming the parameter.
        Error = "error",
        /// Give it zero gradient.
        Zero = "zero",
    }
}

/// The signal that asks a run to have its job requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequeueSignal {
    /// SIGUSR1, as Slurm's users mostly choose.
    Usr1,
    /// SIGUSR2, where something else takes the other.
    Usr2,
    /// No signal.
    None,
}

/// Slurm's `--signal` takes names with and without SIG.
impl SettingValue for RequeueSignal {
    const KIND: Kind = Kind::Choice(&["USR1", "USR2", "none"]);

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "USR1" | "SIGUSR1" => Ok(RequeueSignal::Usr1),
            "USR2" | "SIGUSR2" => Ok(RequeueSignal::Usr2),
            "none" => Ok(RequeueSignal::None),
            _ => Err("must be USR1 or USR2 or none".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        let text = match self {
            RequeueSignal::Usr1 => "USR1",
            RequeueSignal::Usr2 => "USR2",
            RequeueSignal::None => "none",
        };
        Some(text.to_owned())
    }

    fn to_toml(&self) -> Option<String> {
        self.text().and_then(|text| quoted(&text))
    }
}

/// The names of PyTorch and Lightning are taken too; with bf16 both keep weights in f32, as we do.
impl SettingValue for Precision {
    const KIND: Kind = Kind::Choice(&[Precision::F32.name(), Precision::Bf16.name()]);

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "f32" | "fp32" | "float32" | "32" | "32-true" => Ok(Precision::F32),
            "bf16" | "bfloat16" | "bf16-mixed" => Ok(Precision::Bf16),
            _ => Err("must be f32 or bf16".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn to_toml(&self) -> Option<String> {
        quoted(self.name())
    }
}
