//! The types of settings: how each is read from text, and written as text and TOML.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use enmasse_datasets::TaskKind;
use enmasse_graph::range::Range;
use enmasse_graph::{OptimizerKind, Precision};
use enmasse_system::files::expand_home;
use enmasse_weights::Rename;

/// The kind of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// On if the flag is given; `=true` and `=false` also work.
    Switch,
    /// Like a switch, but other values after `=` work, too.
    Optional,
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
    /// Texts separated by commas; repeatable on a command line.
    List,
}

impl SettingKind {
    /// Whether the flag has a meaning without a value.
    pub fn stands_alone(self) -> bool {
        matches!(self, SettingKind::Switch | SettingKind::Optional)
    }
}

/// A type of settings. Errors are the end of a sentence that begins with the setting and its value.
pub(super) trait SettingValue: Sized {
    const KIND: SettingKind;

    fn parse(text: &str) -> Result<Self, String>;

    /// The text that [`SettingValue::parse`] takes; `None` for no value.
    fn text(&self) -> Option<String>;

    /// A TOML literal, by default the text as a string; `None` for no value.
    fn to_toml(&self) -> Option<String> {
        self.text().map(quoted)
    }

    fn check(&self, _range: &Range) -> Result<(), String> {
        Ok(())
    }

    fn inspection(&self, range: &Range) -> Inspection {
        Inspection { text: self.text(), toml: self.to_toml(), fault: self.check(range).err() }
    }
}

/// The properties of a value of any type.
#[derive(Default)]
pub(super) struct Inspection {
    pub text: Option<String>,
    pub toml: Option<String>,
    /// The error of [`SettingValue::check`].
    pub fault: Option<String>,
}

pub(super) fn quoted(text: String) -> String {
    toml::Value::from(text).to_string()
}

macro_rules! whole_numbers {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: SettingKind = SettingKind::Number;

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| "must be a whole number".to_owned())
            }

            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }

            /// TOML's integers end at 2^63 - 1; larger ones are written as strings, which read back the same.
            fn to_toml(&self) -> Option<String> {
                if i64::try_from(*self).is_ok() { self.text() } else { self.text().map(quoted) }
            }

            fn check(&self, range: &Range) -> Result<(), String> {
                if range.contains(*self as f64) { Ok(()) } else { Err(format!("must be {range}")) }
            }
        }
    )+};
}
whole_numbers!(usize, u64);

impl SettingValue for f64 {
    const KIND: SettingKind = SettingKind::Number;

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

/// Upper and lower case are equivalent, because Python's own words are `True` and `False`.
impl SettingValue for bool {
    const KIND: SettingKind = SettingKind::Switch;

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
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
    }

    fn text(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl SettingValue for PathBuf {
    const KIND: SettingKind = SettingKind::Path;

    fn parse(text: &str) -> Result<Self, String> {
        expand_home(Path::new(&String::parse(text)?)).map_err(|error| error.to_string())
    }

    fn text(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

/// What a list has, besides numbers.
pub(super) trait ListItem: FromStr<Err: fmt::Display> + fmt::Display {
    /// Whether the text after a comma belongs to the item before it.
    fn continues(_text: &str) -> bool {
        false
    }
}

impl ListItem for String {}
impl ListItem for Rename {}

/// Text with nothing between commas is the empty list.
impl<T: ListItem> SettingValue for Vec<T> {
    const KIND: SettingKind = SettingKind::List;

    fn parse(text: &str) -> Result<Self, String> {
        let mut items: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match items.last_mut().filter(|_| T::continues(part)) {
                Some(item) => *item = format!("{item},{part}"),
                None => items.push(part.to_owned()),
            }
        }
        items.iter().map(|item| item.parse().map_err(|error: T::Err| error.to_string())).collect()
    }

    fn text(&self) -> Option<String> {
        Some(self.iter().map(T::to_string).collect::<Vec<_>>().join(","))
    }

    fn to_toml(&self) -> Option<String> {
        let items: Vec<String> = self.iter().map(T::to_string).collect();
        Some(toml::Value::from(items).to_string())
    }
}

impl SettingValue for Vec<f64> {
    const KIND: SettingKind = SettingKind::Numbers;

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
    const KIND: SettingKind = T::KIND;

    /// A number is left out by `none`, also where a lower layer has one.
    fn parse(text: &str) -> Result<Self, String> {
        if Self::KIND == SettingKind::Number && text == "none" { Ok(None) } else { T::parse(text).map(Some) }
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

/// Defines enums whose variants have one word each, and perhaps others that are read. A `@record` names what programs give in place of
/// the setting; no list of choices has it.
macro_rules! choices {
    ($($(#[$meta:meta])* $type:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal $(| $other:literal)*,)+
        $(@record $(#[$record_meta:meta])* $record:ident = $record_word:literal,)?
    })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_meta])* $variant,)+
            $($(#[$record_meta])* $record,)?
        }

        impl $type {
            /// The word for the variant.
            pub const fn word(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                    $($type::$record => $record_word,)?
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl SettingValue for $type {
            const KIND: SettingKind = SettingKind::Choice(&[$($word),+]);

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($word $(| $other)* => Ok($type::$variant),)+
                    $($record_word => Ok($type::$record),)?
                    _ => Err(format!("must be {}", [$($word),+].join(" or "))),
                }
            }

            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+};
}

choices! {
    /// What hosts a rank.
    RankKind {
        /// A separate process.
        Process = "process",
        /// A thread of this process.
        Thread = "thread",
    }
    /// How gradients reach the update.
    StrategyKind {
        /// Every rank updates, after sums that overlap with backward: PyTorch's `DistributedDataParallel`.
        Ddp = "ddp",
        /// The first rank updates, and copies the parameters to the others: PyTorch's `DataParallel`.
        Dp = "dp",
        /// Each rank has the optimiser's state of a part, and updates that part: ZeRO's first stage.
        Zero1 = "zero1",
    }
    /// The order of micro-batches in the stages of a model.
    StageScheduleKind {
        /// Forward of all, then backward of all.
        GPipe = "gpipe",
        /// Forward and backward in turns.
        OneForwardOneBackward = "1f1b",
    }
    /// The curve of one cycle.
    AnnealStrategy {
        /// Halves of cosines.
        Cos = "cos" | "cosine",
        /// Lines.
        Linear = "linear",
    }
    /// The learning rate over the epochs.
    ScheduleKind {
        /// Half a cosine from the learning rate to a fraction of it.
        Cosine = "cosine",
        /// Half a cosine to zero.
        CosineAnnealing = "cosine-annealing" | "CosineAnnealingLR" | "cosineannealinglr",
        /// Half a cosine to zero, again and again.
        WarmRestarts = "warm-restarts" | "CosineAnnealingWarmRestarts" | "cosine_with_restarts",
        /// Half a cosine up and another one down, from step to step.
        OneCycle = "one-cycle" | "OneCycleLR" | "onecycle" | "one_cycle",
        /// A power of the share that is left.
        Polynomial = "polynomial" | "PolynomialLR" | "poly",
        /// Multiplied by a factor at regular intervals of epochs.
        Step = "step" | "StepLR" | "steplr",
        /// Multiplied by a factor where the monitored value no longer improves.
        Plateau = "plateau" | "ReduceLROnPlateau" | "reduce_lr_on_plateau",
        /// Always the same.
        Constant = "constant",
        @record
        /// That of the program which trains: [`crate::Trainer::schedule`].
        Own = "own",
    }
    /// How the learning rate depends on the number of ranks.
    LrScaling {
        /// Not at all.
        None = "none",
        /// Proportionally.
        Linear = "linear",
        /// By the square root.
        Sqrt = "sqrt",
    }
    /// The random transform of a training image.
    Augmentation {
        /// A part of random position, area and shape, resized: torchvision's `RandomResizedCrop`.
        ResizedCrop = "resized-crop",
        /// A crop at a random position of the image with a black border: torchvision's `RandomCrop(size, padding)`.
        Crop = "crop",
        /// No random transform: the same as in validation.
        None = "none",
    }
    /// The colours of the part that random erasing paints over.
    ErasingColors {
        /// The data set's mean: torchvision's `value=0` on normalised images.
        Mean = "mean",
        /// Drawn for each pixel from a normal distribution about the mean: torchvision's `value="random"`.
        Random = "random",
    }
    /// What to do with a sample that cannot be read.
    OnBadSample {
        /// End the run, naming the file.
        Error = "error",
        /// Train on the next sample instead, and evaluate without it; too many such samples end the run.
        Skip = "skip",
        /// The same for any number of samples.
        Substitute = "substitute",
    }
    /// The size at which JPEG images for training are decoded.
    Decoding {
        /// That at which they are stored.
        Exact = "exact",
        /// Smaller by 2, 4 or 8 where a crop is at least that much larger than what it becomes.
        Fast = "fast",
    }
    /// What carries data between nodes.
    TransportKind {
        /// TCP.
        Auto = "auto",
        /// The MPI library of the mpirun that has started the ranks.
        Mpi = "mpi",
    }
    /// The order in which ranks on GPUs sum gradients.
    SumOrder {
        /// That of the library which exchanges them.
        Auto = "auto",
        /// The fixed tree over shards.
        Tree = "tree",
    }
    /// The algorithm by which ranks sum gradients: [`enmasse_comm::AlgorithmChoice`].
    AllReduceAlgorithm {
        /// The fixed tree over shards.
        Tree = "tree",
        /// Sums of pieces go round, from each rank to the next.
        Ring = "ring",
        /// Ranks at doubling distances exchange halves.
        HalvingDoubling = "halving-doubling",
        /// Every rank exchanges pieces with every other.
        Direct = "direct",
        /// Directly within each node, then by a ring over nodes.
        Hierarchical = "hierarchical",
        /// The one that a model of costs says is the fastest for the largest bucket on these nodes.
        Auto = "auto",
    }
    /// The type of gradients on their way between ranks.
    ReducePrecision {
        /// As they are.
        F32 = "f32",
        /// Rounded to bf16.
        Bf16 = "bf16",
        /// Rounded to f16.
        F16 = "f16",
    }
    /// The order of training samples.
    SamplerKind {
        /// A permutation of all samples by seed and epoch, for any number of ranks.
        Shuffle = "shuffle",
        /// The order of PyTorch's `DistributedSampler`, with its padding.
        Distributed = "distributed",
        @record
        /// That of the program which trains: [`crate::Trainer::sampler`].
        Own = "own",
    }
    /// How samples are shuffled.
    Shuffling {
        /// All samples of the data set among each other.
        Full = "full",
        /// Blocks of neighbouring samples, and the samples of each few blocks.
        Block = "block",
    }
    /// How often the samples of a class are sampled.
    Balance {
        /// As often as there are samples.
        None = "none",
        /// As often as those of every other class.
        Classes = "classes",
    }
    /// What training minimises.
    LossKind {
        /// Cross-entropy of the softmax, for classification.
        CrossEntropy = "cross-entropy" | "ce",
        /// Binary cross-entropy of each label.
        Binary = "bce",
        /// The focal loss, of classes or of labels.
        Focal = "focal",
        /// The asymmetric loss of labels.
        Asymmetric = "asymmetric" | "asl",
        /// The squared error of numbers.
        Squared = "mse",
        /// The absolute error of numbers.
        Absolute = "l1" | "mae",
        /// Squared up to `huber_delta`, and absolute from there.
        Huber = "huber",
    }
    /// How a folder without a validation part is split.
    SplitRule {
        /// By the split seed and the names of files.
        Seeded = "seeded",
        /// By CPython's `random.seed` and `random.sample`, class by class.
        Python = "python",
    }
    /// What to do with a parameter that does not reach the loss.
    UnusedParameters {
        /// Refuse the model, naming the parameter.
        Error = "error",
        /// Give it zero gradient.
        Zero = "zero",
    }
    /// The signal that requests that the job be requeued, with or without SIG, as in Slurm's `--signal`.
    RequeueSignal {
        /// SIGUSR1, the usual choice of Slurm's users.
        Usr1 = "USR1" | "SIGUSR1",
        /// SIGUSR2, if SIGUSR1 is used otherwise.
        Usr2 = "USR2" | "SIGUSR2",
        /// No signal.
        None = "none",
    }
}

/// The names of PyTorch and Lightning are accepted too; with 16 bits both keep weights in f32, like this program.
impl SettingValue for Precision {
    const KIND: SettingKind = SettingKind::Choice(&[
        Precision::F32.name(),
        Precision::Tf32.name(),
        Precision::Bf16.name(),
        Precision::F16.name(),
    ]);

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "f32" | "fp32" | "float32" | "32" | "32-true" => Ok(Precision::F32),
            "tf32" => Ok(Precision::Tf32),
            "bf16" | "bfloat16" | "bf16-mixed" => Ok(Precision::Bf16),
            "f16" | "fp16" | "float16" | "16" | "16-mixed" => Ok(Precision::F16),
            _ => Err("must be f32 or tf32 or bf16 or f16".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl SettingValue for OptimizerKind {
    const KIND: SettingKind = SettingKind::Choice(OptimizerKind::NAMES);

    fn parse(text: &str) -> Result<Self, String> {
        let kind = OptimizerKind::ALL.iter().chain([&OptimizerKind::Own]).find(|kind| kind.name() == text);
        kind.copied().ok_or_else(|| format!("must be {}", OptimizerKind::NAMES.join(" or ")))
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl SettingValue for TaskKind {
    const KIND: SettingKind = SettingKind::Choice(&[
        TaskKind::Classification.name(),
        TaskKind::MultiLabel.name(),
        TaskKind::Regression.name(),
    ]);

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "multilabel" | "multi_label" => Ok(TaskKind::MultiLabel),
            _ => text.parse(),
        }
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}
