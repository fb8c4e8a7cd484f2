//! The options of a training run. Each has one definition, from which flag, TOML key, environment variable,
//! help and type follow.
//!
//! A setting named `sync_bn` is the flag `--sync-bn`, the TOML key `sync_bn` (or `sync-bn`), the variable `ENMASSE_SYNC_BN`,
//! and the field [`TrainConfig::sync_bn`]. [`SETTINGS`] lists them for builders of command lines. Those that concern devices, ranks and
//! the terminal are fields of [`ProgramConfig`]: the trainer gets its device and its group from the program around it. [`LayeredConfig`]
//! combines defaults, a saved run, a file, the environment and the command line in order of precedence.
//!
//! ```
//! use enmasse_train::{OptimizerKind, RunConfig, TrainConfig};
//! let mut config = TrainConfig { epochs: 3, ..TrainConfig::default() };
//! config.set("optimizer", "adamw")?;
//! assert_eq!(config.optimizer, OptimizerKind::AdamW);
//! assert_eq!(config.set("batch", "0").unwrap_err().to_string(), "batch 0: must be 1 or more");
//! let run = RunConfig { train: config, ..RunConfig::default() };
//! assert_eq!(RunConfig::from_toml(&run.to_toml())?, run);
//! # Ok::<(), enmasse_train::ConfigError>(())
//! ```

mod aliases;
mod augmentation;
mod bytes;
mod check;
mod class_weights;
mod colossal;
mod devices;
mod error;
mod factor;
mod fields;
mod fine_tune;
mod flip;
mod ineffective;
mod keep;
mod layers;
mod limits;
mod metrics;
mod opt_arg;
mod origins;
mod pretrained;
mod recipe;
mod recompute;
mod resources;
mod resume;
mod setting;
mod value;

use std::path::PathBuf;

use enmasse_datasets::{RemoteOptions, TaskKind};
use enmasse_graph::optimizers::MOMENTUM;
use enmasse_graph::range::{ANY, above, above_to, at_least, below, between};
use enmasse_image::{PaddingMode, Resampling};
use enmasse_weights::Rename;

pub use aliases::{ALIASES, ANSWERS, answer, is_near};
pub use augmentation::AutoAugmentation;
pub use bytes::ByteCount;
pub use class_weights::ClassWeights;
pub use devices::{DeviceSelection, Devices};
pub use enmasse_graph::range::Range;
pub use enmasse_graph::{OptimizerKind, Precision};
pub use error::{ConfigError, SettingSource};
pub use factor::ParameterFactor;
pub use fine_tune::FineTune;
pub use flip::Flip;
pub use ineffective::Surroundings;
pub use keep::Keep;
pub use layers::LayeredConfig;
pub use limits::{BatchLimit, FastDevRun, TimeLimit};
pub use metrics::MetricName;
pub use opt_arg::OptimizerArgument;
pub(crate) use opt_arg::of_optimizers;
pub use origins::SettingOrigins;
pub use pretrained::Pretrained;
pub use recipe::RECIPES;
pub use recompute::Recomputation;
pub use resume::Resume;
pub use setting::{Scope, Setting, SettingGroup};
pub use value::{
    AllReduceAlgorithm, AnnealStrategy, Augmentation, Balance, Decoding, ErasingColors, LossKind, LrScaling,
    OnBadSample, RankKind, ReducePrecision, RequeueSignal, SamplerKind, ScheduleKind, SettingKind, Shuffling,
    SplitRule, StageScheduleKind, StrategyKind, SumOrder, TransportKind, UnusedParameters,
};

use value::{Inspection, SettingValue};

/// Samples in a global batch if neither `--batch` nor `--global-batch` is given.
pub const DEFAULT_GLOBAL_BATCH: usize = 64;

/// Defines [`SETTINGS`], and [`TrainConfig`] and [`ProgramConfig`] with their fields, by one list: a section of the help, and in it
/// the summary, more sentences, and `name: type = default => default value, placeholder, range, scope;`. A row that ends with
/// `program` is a field of [`ProgramConfig`].
macro_rules! settings {
    ($($group:ident {$(
        #[doc = $summary:literal] $(#[doc = $detail:literal])*
        $name:ident: $type:ty = $default:expr $(=> $default_words:literal)?, $placeholder:literal, $range:expr,
            $scope:ident $(, $owner:ident)?;
    )+})+) => {
        /// Every setting, in the order of the help.
        pub static SETTINGS: &[Setting] = &[$($(Setting {
            name: stringify!($name),
            group: SettingGroup::$group,
            summary: $summary.trim_ascii(),
            details: concat!($($detail),*).trim_ascii(),
            default_words: concat!($($default_words)?),
            placeholder: $placeholder,
            kind: <$type as SettingValue>::KIND,
            range: $range,
            scope: Scope::$scope,
        },)+)+];

        settings! {
            @sort [] []
            $($([$($owner)?] { #[doc = $summary] #[doc = ""] $(#[doc = $detail])* $name: $type = $default; })+)+
        }
    };
    // The fields of each struct, in the order of the list.
    (@sort [$($train:tt)*] [$($program:tt)*] [] $row:tt $($rows:tt)*) => {
        settings! { @sort [$($train)* $row] [$($program)*] $($rows)* }
    };
    (@sort [$($train:tt)*] [$($program:tt)*] [program] $row:tt $($rows:tt)*) => {
        settings! { @sort [$($train)*] [$($program)* $row] $($rows)* }
    };
    (@sort [$($train:tt)*] [$($program:tt)*]) => {
        settings! {
            /// The settings that [`Trainer`](crate::Trainer) obeys.
            @fields TrainConfig $($train)*
        }
        settings! {
            /// The settings that the program around the trainer obeys: which devices and how many ranks it starts, how they meet, what
            /// it prints. A program that obeys them lets the trainer record them ([`Trainer::program`](crate::Trainer::program)).
            @fields ProgramConfig $($program)*
        }
    };
    ($(#[$doc:meta])* @fields $config:ident $({ $(#[$field_doc:meta])* $name:ident: $type:ty = $default:expr; })+) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $config {
            $($(#[$field_doc])* pub $name: $type,)+
        }

        impl Default for $config {
            fn default() -> Self {
                $config { $($name: $default,)+ }
            }
        }

        impl $config {
            /// Parses `text` into the field of a setting, if there is one. The error says what is allowed, or which name is nearest.
            fn parse(&mut self, setting: &Setting, text: &str) -> Option<Result<(), String>> {
                match setting.name {
                    $(stringify!($name) => Some(setting::parse(setting, text).map(|value| self.$name = value)),)+
                    _ => None,
                }
            }

            /// Sets the field of a setting, if there is one, to the value that it has in `other`.
            fn take(&mut self, setting: &Setting, other: &Self) {
                match setting.name {
                    $(stringify!($name) => self.$name = other.$name.clone(),)+
                    _ => {}
                }
            }

            /// The value of the field of a setting, if there is one.
            fn inspect(&self, setting: &Setting) -> Option<Inspection> {
                match setting.name {
                    $(stringify!($name) => Some(self.$name.inspection(&setting.range)),)+
                    _ => None,
                }
            }
        }
    };
}

settings! {
    Data {
        /// Folder of images, manifest, archives, Parquet or packed file
        /// A folder of class folders, of which a fifth validates; or one with train/, val/ and perhaps test/, which is evaluated at the end; or a manifest (.csv, .tsv, .jsonl) that lists images and their classes; or WebDataset's archives (.tar) or Hugging Face's Parquet files: a folder of them, one, or a pattern such as train-{000..099}.tar; or a packed file of "enmasse data pack"; or ImageNet as Kaggle packs it; or the files of CIFAR-10, CIFAR-100, MNIST or Fashion-MNIST. Archives, Parquet files and packed files may lie on a server: s3://BUCKET/KEY or https://HOST/FILE.
        data: Option<PathBuf> = None => "the embedded data set \"shapes\"", "DATA", ANY, Run;
        /// Folder for a copy of the data
        /// On a disk of the node, such as $SLURM_TMPDIR. The data is copied there once for all ranks of the node, and again only when it has changed. The run reads the copy, with the same results, and keeps the path of the original.
        stage: Option<PathBuf> = None => "the data is read where it is", "DIR", ANY, Invocation, program;
        /// Folder for what is read of servers
        /// What a run reads of a DATA on a server is kept here, up to --cache-limit, for its ranks on this node and for later runs. A disk of the node is best.
        cache_dir: Option<PathBuf> = None => "~/.cache/enmasse/objects", "DIR", ANY, Invocation;
        /// Size of that folder
        /// Such as 200GB, 1.5TB or 512MiB. What does not fit is fetched again in each epoch.
        cache_limit: ByteCount = ByteCount(RemoteOptions::LIMIT), "SIZE", ANY, Invocation;
        /// Where files' names have their class
        /// For images without class folders, such as {class}.{number}.jpg for cat.0.jpg. {class} takes as few characters as fit, {number} takes digits, and * anything. A pattern with a / is for paths below DATA, another for names.
        label_pattern: Option<String> = None => "classes are folders", "PATTERN", ANY, Fixed;
        /// Column of images in a table
        /// Of their paths in a manifest, or of their bytes in Parquet files. Found by its name if there is one: path, file, filename, image, image_path and alike.
        path_column: Option<String> = None => "found by its name", "NAME", ANY, Fixed;
        /// Column of classes in a table
        /// Of a manifest or Parquet files, or the field in the .json files of WebDataset; of labels or numbers, too, and several separated by commas. Found by its name if there is one: label, class, target, category and alike.
        label_column: Option<String> = None => "found by its name", "NAME", ANY, Fixed;
        /// What to predict of an image
        /// "classification" is one class, "multi-label" any number of labels, and "regression" one number or several. Labels and numbers are in tables: a manifest or Parquet files.
        task: Option<TaskKind> = None => "found from the table's columns", "TASK", ANY, Fixed;
        /// Where the paths in a manifest begin
        /// The folder that relative paths are relative to.
        manifest_root: Option<PathBuf> = None => "the manifest's folder", "DIR", ANY, Run;
        /// Classes to expect in the data
        /// Another number is an error.
        num_classes: Option<usize> = None, "N", at_least(1), Run;
        /// Height and width of the images
        /// This is what the model sees; images of other sizes are resized.
        size: Option<usize> = None => "the data set's own: 32 for CIFAR, 28 for MNIST, 64 for \"shapes\"; 224 for a folder", "PIXELS", at_least(1), Run;
        /// Channels that the model sees
        /// 1 converts colour images to grey, as torchvision's Grayscale does (Pillow's convert("L")). 3 repeats the grey of MNIST.
        channels: Option<usize> = None => "1 for MNIST and Fashion-MNIST, 3 for other data, and where --mean or --std has three numbers", "1|3", ANY, Fixed;
        /// Mean of each colour channel
        /// On the scale 0 to 1; one number is for all channels.
        mean: Option<Vec<f64>> = None => "the data set's own", "R,G,B", between(0, 1), Fixed;
        /// Std of each colour channel
        /// On the scale 0 to 1; one number is for all channels.
        std: Option<Vec<f64>> = None => "the data set's own", "R,G,B", above_to(0, 1), Fixed;
        /// Filter that resizes images
        /// In training, validation and prediction. Both are Pillow's and torchvision's, with antialiasing; "bicubic" is sharper.
        interpolation: Option<Resampling> = None => "bilinear", "FILTER", ANY, Run;
        /// Share of an image that is evaluated
        /// The middle of the image, along its shorter side, which is resized to --size divided by this. timm's name.
        crop_pct: Option<f64> = None => "0.875, as 224 of 256 pixels; 1 for CIFAR and MNIST", "SHARE", above_to(0, 1), Run;
        /// What is sampled of a training image
        /// A part of it that is resized, a crop of the padded image, or always the same.
        augment: Option<Augmentation> = None => "crop for CIFAR, none for MNIST, resized-crop for a folder", "KIND", ANY, Run;
        /// Size of a resized crop
        /// Least and largest share of the image's area that it covers, as torchvision's and timm's scale. Small parts make a task harder, which long training needs and fine-tuning on few images does not.
        scale: Option<Vec<f64>> = None => "0.08,1", "MIN,MAX", above_to(0, 1), Run;
        /// Shape of a resized crop
        /// Least and largest width of it, divided by its height, before it is resized to a square.
        ratio: Option<Vec<f64>> = None => "3/4 to 4/3", "MIN,MAX", above_to(0, 100), Run;
        /// Border before a crop
        /// Pixels around an image before its crop is sampled.
        crop_padding: usize = 4, "PIXELS", ANY, Run;
        /// What the border shows
        /// As torchvision's padding_mode: "constant" is black, "reflect" mirrors the image at its outermost pixels.
        padding_mode: PaddingMode = PaddingMode::Constant, "MODE", ANY, Run;
        /// Probability of mirroring an image
        /// Or "alternating", airbench's: each image is flipped in every second epoch, half of them in the first. Validation images are never flipped.
        flip: Option<Flip> = None => "0.5; 0 for MNIST", "CHANCE", ANY, Run;
        /// Flip top and bottom
        /// The probability for an image, which then stands upside down as in a mirror below it.
        vertical_flip: f64 = 0.0, "CHANCE", between(0, 1), Run;
        /// Largest rotation of an image
        /// The angle is sampled from both directions. Corners that come from outside are black.
        rotation: f64 = 0.0, "DEGREES", between(0, 180), Run;
        /// Change the perspective
        /// The probability for an image. Each of its corners moves towards the middle by up to a quarter of the image.
        perspective: f64 = 0.0, "CHANCE", between(0, 1), Run;
        /// Automatic augmentation
        /// As by torchvision's classes RandAugment, TrivialAugmentWide and AugMix; imagenet, cifar10 and svhn are the policies of its AutoAugment.
        auto_augment: AutoAugmentation = AutoAugmentation::None, "METHOD", ANY, Run;
        /// Operations of randaugment
        /// As many are sampled for each image.
        ra_num_ops: usize = 2, "N", between(1, 100), Run;
        /// Strength of randaugment
        /// Its operations have 31 strengths, from 0 to 30.
        ra_magnitude: usize = 9, "LEVEL", between(0, 30), Run;
        /// Strength of augmix
        /// An operation has one of its weakest LEVEL strengths, of ten.
        augmix_severity: usize = 3, "LEVEL", between(1, 10), Run;
        /// Random colours of an image
        /// Largest changes of brightness, contrast, saturation and hue. One number is for the first three; the hue's is at most 0.5.
        color_jitter: Option<Vec<f64>> = None => "no change", "B,C,S,H", at_least(0), Run;
        /// Make images grey
        /// The probability for an image, which keeps three channels.
        grayscale: f64 = 0.0, "CHANCE", between(0, 1), Run;
        /// Blur images
        /// The probability for an image. The Gaussian has a std between 0.1 and 2 pixels.
        gaussian_blur: f64 = 0.0, "CHANCE", between(0, 1), Run;
        /// Erase a part of images
        /// The probability for an image. A rectangle of 2 to 33 % of it is painted over, after all other changes.
        random_erasing: f64 = 0.0, "CHANCE", between(0, 1), Run;
        /// Colours of an erased part
        /// "mean" is the data set's mean colour, as torchvision's value 0. "random" draws each pixel.
        erasing_value: ErasingColors = ErasingColors::Mean, "COLOR", ANY, Run;
        /// Mix images
        /// As torchvision's MixUp: two images of a batch and their labels are mixed by a share that is sampled from Beta(ALPHA, ALPHA), usually with 0.2 or 0.8; 0 is none. With --cutmix too, each pair is mixed by one of them. The loss and the accuracy of training are those of mixtures.
        mixup: f64 = 0.0, "ALPHA", at_least(0), Run;
        /// Exchange parts of images
        /// As torchvision's CutMix: two images of a batch exchange a rectangle, whose area is sampled from Beta(ALPHA, ALPHA), usually with 1; 0 is none. Their labels are mixed by the area.
        cutmix: f64 = 0.0, "ALPHA", at_least(0), Run;
        /// Convert images that are not RGB
        /// Grey, CMYK, palette, transparent and 16-bit ones, as torchvision's ImageFolder does by Pillow's convert("RGB"). With --no-convert-rgb such images cannot be read.
        convert_rgb: bool = true, "", ANY, Run;
        /// Turn images by their EXIF orientation
        /// As Pillow's ImageOps.exif_transpose does, in JPEG, PNG and WebP files. Images are taken as stored otherwise, as by torchvision.
        exif_transpose: bool = false, "", ANY, Run;
        /// Size of decoded images
        /// "exact" decodes at full size, as validation and prediction always do. "fast" decodes a JPEG for training at 1/2, 1/4 or 1/8 of its size where a crop is at least that much larger than --size in both directions, which may cost accuracy.
        decode: Decoding = Decoding::Exact, "RULE", ANY, Run;
        /// Images that cannot be read
        /// "error" ends the run. "skip" trains on the next image of the epoch instead, and leaves it out of validation; the run names all of them at its end and in logs/unreadable.txt. More than 1 % of the data set, and more than 10, are an error. "substitute" is the same for any number.
        on_bad_sample: Option<OnBadSample> = None => "skip; error with --no-convert-rgb", "RULE", ANY, Run;
        /// Rule of the 80/20 split
        /// How a folder without a validation part is split: by enmasse's own rule, or by Python's random.sample per class.
        split: SplitRule = SplitRule::Seeded, "RULE", ANY, Fixed;
        /// Seed of the 80/20 split
        /// --seed does not change the split.
        split_seed: u64 = 0, "SEED", ANY, Fixed;
        /// Order of training samples
        /// "shuffle" is the same for any number of ranks. "distributed" is that of PyTorch's DistributedSampler.
        sampler: SamplerKind = SamplerKind::Shuffle, "RULE", ANY, Fixed;
        /// Which samples are shuffled together
        /// "full" shuffles all samples. "block" shuffles blocks of neighbouring samples, and then the samples of each 16 blocks, so that archives and Parquet files are read from their beginnings to their ends. Each sample comes once in an epoch with both.
        shuffle: Option<Shuffling> = None => "block for Parquet files, full for other data", "RULE", ANY, Fixed;
        /// Draw each class equally often
        /// "classes" draws as many samples of each class in an epoch, which has as many steps as otherwise. Small classes repeat samples, each time with another augmentation. Large classes leave samples to later epochs: none returns before all others of its class have been drawn.
        balance: Balance = Balance::None, "RULE", ANY, Fixed;
        /// Repetitions of each sample
        /// Repeated augmentation, as by torchvision's --ra-sampler: each sample comes N times in a row, on different shards and with another augmentation each time. An epoch has as many steps as otherwise and an N-th of the samples; N epochs have all.
        repeat_augment: usize = 1, "N", at_least(1), Fixed;
        /// Leave out a last batch that is not full
        /// Of each epoch of training, as PyTorch's drop_last. Otherwise the last batch has the samples that are left, and its loss is the mean over these, on all ranks together. Its other places show the first images of the epoch again, for batch norm alone. Data smaller than one batch are one such batch, and with this flag an error.
        drop_last: bool = false, "", ANY, Run;
    }
    Model {
        /// Name of the model
        /// enmasse models lists all of them.
        model: String = "resnet18".to_owned(), "NAME", ANY, Fixed;
        /// Begin with known weights
        /// The best ones for --model, or those of this name (enmasse weights list), hf:OWNER/REPO, perhaps with @REVISION, address or file. They are fetched once. Images are prepared as for these weights, and the recipe is fine-tune, unless other settings say otherwise.
        pretrained: Pretrained = Pretrained::No, "NAME|FILE", ANY, Fixed;
        /// Weights to begin with
        /// The same for the weights and the preparation of images alone. A .pth, .ckpt or .safetensors file has torchvision's or timm's names. A classifier for other classes begins anew; any other difference of shape is an error.
        weights: Option<PathBuf> = None => "random weights", "FILE|NAME", ANY, Fixed;
        /// File of the weights
        /// What --pretrained and --weights have found, for all ranks.
        weights_file: Option<PathBuf> = None => "found by --pretrained and --weights", "FILE", ANY, Found;
        /// Origin of the weights
        /// Their name, licence and source, kept with the run.
        weights_origin: Option<String> = None => "found by --pretrained and --weights", "TEXT", ANY, Found;
        /// Other beginnings of the file's names
        /// The names in a weights file may begin with the name of a module: backbone.= removes it, and =model. adds one. Repeatable, or separated by commas; the first that fits a name counts. A prefix that all names share, such as Lightning's model., needs no rule. A layer with a name that the model lacks begins anew: conv1.=old.conv1.
        prefix: Vec<Rename> = Vec::new(), "OLD=NEW", ANY, Fixed;
        /// Train the classifier alone
        /// Every other parameter stays as it is. With --freeze, what that names in the classifier stays too.
        freeze_layers: bool = false, "", ANY, Run;
        /// Parameters to leave as they are
        /// Patterns of names, such as layer1.*; repeatable, or separated by commas.
        freeze: Vec<String> = Vec::new(), "PATTERN", ANY, Run;
        /// Train layers that have weights
        /// The first epoch trains the head, which is the last layer, alone, on features that are computed once. "head" is no more than that. "all" goes on with all layers, "last:N" with the head and the N layers before it: stages or blocks, as parameters' names number them. Needs --weights or --pretrained.
        fine_tune: Option<FineTune> = None => "all layers, from the first epoch", "head|all|last:N", ANY, Fixed;
        /// Keep the statistics of batch norms
        /// Batch norms normalise by their running statistics in training too, and keep them; their scale and shift are trained. Known as norm_eval.
        freeze_bn: bool = false, "", ANY, Run;
        /// Parameters without effect
        /// A parameter that does not reach the loss is an error, or has zero gradient.
        unused_parameters: UnusedParameters = UnusedParameters::Error, "RULE", ANY, Run;
    }
    Training {
        /// Settings to begin with
        /// The name of a recipe of enmasse, such as fine-tune, or a TOML file with keys of --config and perhaps extends = "NAME". Everything else that is given takes precedence. enmasse config show --recipe NAME prints all values.
        recipe: Option<String> = None => "none", "NAME|FILE", ANY, Fixed, program;
        /// Passes over the data
        epochs: usize = 10, "N", at_least(1), Run;
        /// Samples per shard and step
        /// A rank has one shard, unless --shards or --accumulate gives it more.
        batch: Option<usize> = None => "--global-batch, divided over the shards", "SAMPLES", at_least(1), Run;
        /// Samples of a step
        /// Over all shards, without --batch.
        global_batch: usize = DEFAULT_GLOBAL_BATCH, "SAMPLES", at_least(1), Run;
        /// Highest learning rate
        lr: f64 = 0.03, "RATE", above(0), Run;
        /// Schedule of the rate
        /// As PyTorch's, from epoch to epoch: "cosine" falls to lr x lrf, "cosine-annealing" to 0, "warm-restarts" too, again and again; "polynomial" falls to 0 by a power; "step" falls by gamma each step-size epochs, "plateau" where what --monitor names no longer improves. From step to step: "one-cycle" rises to --lr and falls again. The momentum stays, where PyTorch's OneCycleLR cycles it too.
        schedule: ScheduleKind = ScheduleKind::Cosine, "NAME", ANY, Run;
        /// Where the cosine ends
        /// As a fraction of --lr, with schedule cosine.
        lrf: f64 = 0.01, "FRACTION", between(0, 1), Run;
        /// Epochs between steps
        /// Of schedule step.
        step_size: usize = 10, "EPOCHS", at_least(1), Run;
        /// Factor of a step
        /// Of schedules step and plateau.
        gamma: f64 = 0.1, "FACTOR", between(0, 1), Run;
        /// Epochs that a plateau lasts
        /// Of schedule plateau: after more epochs without improvement the rate falls. Improvement is by more than a ten-thousandth. Epochs of warm-up do not count.
        plateau_patience: u64 = 10, "EPOCHS", at_least(0), Run;
        /// Epochs to the first restart
        /// Of schedule warm-restarts.
        restart_epochs: usize = 10, "EPOCHS", at_least(1), Run;
        /// Growth of these epochs
        /// Of schedule warm-restarts: from one restart to the next takes N times as many epochs as before.
        restart_mult: usize = 1, "N", at_least(1), Run;
        /// Power of the polynomial
        /// Of schedule polynomial. 1 is a line.
        power: f64 = 1.0, "POWER", above(0), Run;
        /// Where the rate is highest
        /// As a share of the run, of schedule one-cycle. It has no other warm-up.
        pct_start: f64 = 0.3, "SHARE", between(0, 1), Run;
        /// Where one cycle begins
        /// Schedule one-cycle begins at lr / FACTOR.
        div_factor: f64 = 25.0, "FACTOR", at_least(1), Run;
        /// Where one cycle ends
        /// Schedule one-cycle ends at its beginning / FACTOR.
        final_div_factor: f64 = 1e4, "FACTOR", at_least(1), Run;
        /// Curve of one cycle
        /// As OneCycleLR's: "cos" is half a cosine up and another one down, "linear" a triangle.
        anneal_strategy: AnnealStrategy = AnnealStrategy::Cos, "NAME", ANY, Run;
        /// Epochs of warm-up
        /// In these epochs, or a part of one, the learning rate rises to --lr. The schedule takes the rest.
        warmup_epochs: f64 = 0.0, "EPOCHS", at_least(0), Run;
        /// Scale --lr by the shards
        /// "linear" multiplies --lr by the number of shards, "sqrt" by its square root; it is the number of ranks unless --shards or --accumulate is given.
        scale_lr: LrScaling = LrScaling::None, "RULE", ANY, Run;
        /// Lower rates towards the stem
        /// Each layer has the rate of the next one towards the head times this, as in timm. Layers are those of --fine-tune last:N.
        layer_decay: f64 = 1.0, "FACTOR", above_to(0, 1), Run;
        /// Factor of the head's rate
        /// The head, the last layer, has --lr times this.
        head_lr_mult: f64 = 1.0, "FACTOR", above(0), Run;
        /// Factors of rates by name
        /// The parameters that a pattern names have --lr times its factor: *.bias=2. Repeatable, or separated by commas; the last pattern that fits counts.
        lr_mult: Vec<ParameterFactor> = Vec::new(), "PATTERN=FACTOR", ANY, Run;
        /// Factors of weight decay by name
        /// Likewise of --weight-decay, which the rate multiplies: with --lr-mult *.bias=64, a 64th of the decay makes as much of it as elsewhere.
        decay_mult: Vec<ParameterFactor> = Vec::new(), "PATTERN=FACTOR", ANY, Run;
        /// Optimiser
        optimizer: OptimizerKind = OptimizerKind::Sgd, "NAME", ANY, Run;
        /// Hyper-parameters of the optimiser
        /// Those that are no settings: betas=0.9,0.999 and epsilon=1e-8 of adamw, trust_coefficient=0.001 and epsilon=1e-8 of lars. Repeatable, or separated by commas.
        opt_arg: Vec<OptimizerArgument> = Vec::new(), "NAME=VALUE", ANY, Run;
        /// Momentum of sgd and lars
        momentum: f64 = MOMENTUM, "FACTOR", below(0, 1), Run;
        /// Nesterov's momentum in sgd
        nesterov: bool = false, "", ANY, Run;
        /// Weight decay
        weight_decay: f64 = 5e-4, "FACTOR", at_least(0), Run;
        /// No weight decay on norms and biases
        /// With lars, the rate is not adapted for them either.
        no_decay_norm_bias: bool = false, "", ANY, Run;
        /// Largest norm of the gradients
        /// Over all parameters. Longer gradients are made as long, as by PyTorch's clip_grad_norm_.
        clip_norm: Option<f64> = None => "no limit", "NORM", above(0), Run;
        /// Label smoothing
        /// Share of each target that is spread evenly over the classes.
        label_smoothing: f64 = 0.0, "SHARE", below(0, 1), Run;
        /// Drop path, or stochastic depth
        /// Training leaves out the last residual branch of a sample with this probability, and those before it with less, in proportion to their place: in ConvNeXt, EfficientNet and vision transformers, as in timm.
        drop_path: Option<f64> = None => "the model's own", "PROBABILITY", below(0, 1), Run;
        /// Average the weights over the steps
        /// Keeps a moving average of weights and running statistics, of which each step leaves this share, such as 0.999. Evaluation uses the average, and so do exported weights.
        ema: Option<f64> = None => "no average", "SHARE", below(0, 1), Fixed;
        /// Lookahead: steps between two meetings
        /// Every so many steps slow weights move towards the weights, which go on from there. Running statistics take part. Evaluation uses the slow weights, and so do exported weights.
        lookahead: Option<u64> = None => "no slow weights", "STEPS", at_least(1), Fixed;
        /// Step of the slow weights
        /// The share of the distance by which they move.
        lookahead_alpha: f64 = 0.5, "SHARE", above_to(0, 1), Run;
        /// Fall of that step
        /// It falls over the run, from 1 to --lookahead-alpha, with this power of the share that is done. At 0 it stays.
        lookahead_power: f64 = 0.0, "POWER", at_least(0), Run;
        /// Compute blocks again in backward
        /// Of such a block memory keeps only the result, and backward computes the rest once more: with the same bits, in less memory, and more slowly. With BYTES (2GiB) or a PERCENT of what the plans take without (60%) these are as few blocks as let the plans fit, with "auto" as few as let the step fit into what is free. Alone, or with "all", all of them.
        recompute: Recomputation = Recomputation::No, "BYTES", ANY, Run;
        /// Batch norm over the global batch
        /// Its statistics are those of each shard otherwise.
        sync_bn: bool = false, "", ANY, Run;
        /// Shards per rank and update
        /// A rank computes them one after another before an update.
        accumulate: usize = 1, "K", at_least(1), Run;
        /// Pieces of the global batch
        /// Each has --batch samples. They fix the arithmetic: with the same number the weights are the same bits on any number of ranks. A rank hosts one or more.
        shards: Option<usize> = None => "one per rank, or --accumulate", "S", at_least(1), Run;
        /// Order of sums by NCCL
        /// Where NCCL exchanges the gradients of GPUs. "auto" is its own order, which depends on the number of ranks. "tree" is the fixed tree, in which --shards give the same bits on any number of ranks: each rank gathers the gradients of all.
        sum: SumOrder = SumOrder::Auto, "ORDER", ANY, Run, program;
        /// Type that is sent
        /// "bf16" and "f16" halve what crosses between nodes. What rounding loses is kept and added in the next step (error feedback: docs/collectives.md). By NCCL "bf16" halves what travels between GPUs, as bf16_compress_hook of PyTorch's DDP does. Losses and metrics stay f32.
        reduce_precision: ReducePrecision = ReducePrecision::F32, "TYPE", ANY, Run;
        /// Algorithm of all-reduces
        /// The order in which ranks add up gradients, and the way these travel. "tree" adds up shards in the fixed tree, in which --shards give the same bits on any number of ranks. By "ring", "halving-doubling", "direct" and "hierarchical" each rank first adds up its own shards, and the bits depend on the number of ranks, by the last one also on which of them share a node: docs/collectives.md. "auto" takes the one that a fixed model of costs says is the fastest for the largest bucket on these nodes. NCCL has its own.
        all_reduce: AllReduceAlgorithm = AllReduceAlgorithm::Tree, "NAME", ANY, Run;
        /// Loss
        /// Of classes "cross-entropy" or "focal"; of labels "bce", "focal" or "asymmetric"; of numbers, which have a std of 1 here, "mse", "l1" or "huber".
        loss: Option<LossKind> = None => "cross-entropy of classes, bce of labels, mse of numbers", "NAME", ANY, Run;
        /// Exponent of the focal loss
        /// What the model is sure of counts the less the larger it is.
        focal_gamma: f64 = 2.0, "GAMMA", at_least(0), Run;
        /// End of the square in huber
        /// The error up to which it is squared, and from which it is straight: PyTorch's delta, in std of the numbers.
        huber_delta: f64 = 1.0, "STD", above(0), Run;
        /// Weights of classes in the loss
        /// "balanced": all classes count alike, however many images they have, as scikit-learn's class_weight; of labels each counts as much where it is there as where it is not (pos_weight). Or a JSON file, {"daisy": 2.5, …}. Of classes their mean over the training images becomes 1, and the cross-entropy of validation has none.
        class_weights: Option<ClassWeights> = None => "all 1", "FILE", ANY, Run;
        /// Trained model to imitate
        /// Knowledge distillation: a run's folder, whose best weights count as in "enmasse eval", or a checkpoint. It sees the same images, with their augmentation and mixtures, and must know the same classes, labels or numbers. The loss of training then has a part that is small where both models give the same; the loss of validation has none.
        teacher: Option<PathBuf> = None => "none", "RUN", ANY, Run;
        /// Teacher's share of the loss
        /// The loss of the targets has the rest. 0 is training without the teacher.
        distillation_alpha: f64 = 0.5, "SHARE", between(0, 1), Run;
        /// Temperature of a distillation
        /// Both models' logits are divided by it, so that a larger one shows more of how the teacher ranks the other classes, and the divergence is multiplied by its square, as by Hinton, Vinyals and Dean (2015), who found 2.5 to 4 the best for small models. Numbers have none.
        distillation_temperature: f64 = 4.0, "T", above(0), Run;
        /// Metrics besides loss and accuracy
        /// Measured in training and validation: topK, such as top5, and gradient_norm.
        metrics: Vec<MetricName> = Vec::new(), "NAMES", ANY, Run;
        /// What decides which epoch is the best
        /// The value of an epoch whose best checkpoint is kept as checkpoints/best.safetensors, and tested at the end: val_accuracy, val_loss, balanced_accuracy, macro_f1, train_accuracy, train_loss, or one of --metrics, such as val_top5. Of losses the lowest is the best, of others the highest.
        monitor: Option<String> = None => "val_accuracy", "NAME", ANY, Run;
        /// Stop after this many steps
        /// Counted from the start of the run.
        max_steps: Option<u64> = None => "all epochs", "STEPS", at_least(1), Invocation;
        /// Stop after this time
        /// As days, hours, minutes and seconds (00:12:00:00), or as 12h or 90m. Training then ends as a success, between two steps and after a checkpoint. A resumed run goes on counting.
        max_time: Option<TimeLimit> = None => "all epochs", "TIME", ANY, Run;
        /// Batches of an epoch to train on
        /// A number of global batches, or a share of them with a point: 1 is one batch, 1.0 all of them.
        limit_train_batches: Option<BatchLimit> = None => "all", "N", ANY, Run;
        /// Batches to validate on
        /// Likewise. Their images are evenly spaced over those for validation, so that all classes are there.
        limit_val_batches: Option<BatchLimit> = None => "all", "N", ANY, Run;
        /// Epochs between validations
        /// The last epoch is validated in any case. Only an epoch that is validated can be the best one, and counts for --patience.
        val_every: u64 = 1, "EPOCHS", at_least(1), Run;
        /// Try whether everything works
        /// Trains on one batch, or N, validates on as many, and ends: no folder, checkpoint or record is left.
        fast_dev_run: FastDevRun = FastDevRun(None), "N", ANY, Invocation;
        /// Search for a learning rate
        /// Trains on up to 100 batches with a rate that grows from 1e-7 to 10, until the loss diverges, draws find_lr.svg here, and prints the --lr where the loss falls fastest: the range test of fastai and Lightning. Nothing else is kept.
        find_lr: bool = false, "", ANY, Invocation;
        /// Search for a batch
        /// Prints the largest --batch that fits, how fast batches of 1, 2, 4 and more train, and the smallest that is as fast as any. Nothing is kept.
        find_batch: bool = false, "", ANY, Invocation;
        /// Stop after epochs without improvement
        /// After so many validated epochs that are no better than the best one training ends as a success. The best epoch's weights are kept in any case. A resumed run goes on counting.
        patience: Option<u64> = None => "all epochs", "EPOCHS", at_least(1), Run;
        /// Seed of the run
        /// It decides the initial weights, the order of samples, augmentation and dropout.
        seed: u64 = 0, "SEED", ANY, Run;
    }
    Devices {
        /// Devices of this machine, one per rank
        /// KIND:N, such as cpu:2 or gpu:1, KIND:all, KIND:free:N for those that nobody uses, or KIND:LIST where they have numbers. "auto" takes the GPUs that pass a self-test and that nobody uses, otherwise one CPU rank for each core, at most 8; several launched ranks take one GPU each. A resumed run looks again.
        devices: Option<Devices> = None => "auto", "KIND:N", ANY, Run, program;
        /// Let several ranks compute on one GPU
        /// Otherwise that is an error, since it is mostly a mistake: such ranks take turns, and share its memory.
        share_devices: bool = false, "", ANY, Run, program;
        /// Where gradients are applied
        /// "ddp": every rank updates, after sums that overlap with backward, as PyTorch's DistributedDataParallel. "dp": as its DataParallel, to compare with. The ranks are threads of one process; after backward the first device sums all gradients, updates, and copies the parameters to the others. "zero1": each rank keeps the optimiser's state of a part alone, updates that part, and gets the others, with the bits of ddp; as DeepSpeed's ZeRO stage 1. On CPUs.
        strategy: StrategyKind = StrategyKind::Ddp, "NAME", ANY, Run;
        /// Layers that begin a stage of the model
        /// The model is cut before these layers, in its order, and each rank computes one stage: layer3 makes two of a ResNet. With a multiple of as many ranks, several compute each stage. The weights are the bits of one rank with as many --shards.
        stages: Vec<String> = Vec::new(), "LAYERS", ANY, Run;
        /// Order of work in stages
        /// "gpipe" is forward of all micro-batches, then backward of all. "1f1b" alternates, so that a stage holds the activations of fewer. The bits are the same.
        schedule_stages: StageScheduleKind = StageScheduleKind::GPipe, "NAME", ANY, Run;
        /// Pieces of a batch in stages
        /// A stage computes one while the next stage has another. Each has --batch samples, and its own statistics in batch norms.
        micro_batches: Option<usize> = None => "4 for each stage", "M", at_least(1), Run;
        /// Ranks over which layers are cut
        /// Pairs of linear layers, and the heads of attention, are divided among so many ranks, which compute the same images: each has a part of the weights, gradients and optimiser's state. With a multiple of as many ranks, each group has images of its own. The weights are those of a whole model up to rounding. On CPUs.
        tensor_parallel: usize = 1, "N", at_least(1), Run;
        /// What a rank is
        /// A process, or a thread (for tests and debuggers).
        ranks: RankKind = RankKind::Process, "KIND", ANY, Run;
        /// Computing threads per rank
        threads: Option<usize> = None => "the ranks share the cores", "N", at_least(1), Run, program;
        /// Threads per rank that decode images
        loader_threads: Option<usize> = None => "the ranks share the cores", "N", at_least(1), Run;
        /// Type of activations and matmuls
        /// Activations and their gradients take half of the memory in bf16 and f16. f16 scales the loss. tf32 rounds only
        /// what convolutions and linear layers multiply. f16 and tf32 need a GPU. Weights and sums are always f32.
        precision: Precision = Precision::F32, "TYPE", ANY, Run;
        /// Instruction-set level of the kernels
        /// portable, avx2, avx512, avx512_bf16 or amx; on 64-bit ARM portable, neon or neon_bf16. All ranks must have the same.
        isa: Option<String> = None => "the machine's best", "LEVEL", ANY, Run, program;
        /// Convolutions by direct sums only
        /// Leaves out Winograd, whose rounding is two to four times as large.
        exact: bool = false, "", ANY, Run;
        /// Fuse operations
        /// Computes several as one, such as batch norm, the sum with a shortcut and ReLU in one pass over memory, on a CPU also with the convolution before them in evaluation, and with that after them in training. --no-fuse runs each as the model has it, which is slower and takes more memory, for comparisons.
        fuse: bool = true, "", ANY, Run;
        /// Measure the fastest convolutions first
        /// Otherwise they follow from a convolution's shape, on a GPU by cuDNN's estimate. Rank 0 measures for all; --resume reuses what it chose.
        tune: bool = false, "", ANY, Run;
        /// Longest wait for a rank or disk
        /// In seconds. After that the run fails, and names the rank that the others waited for, or the image.
        timeout: f64 = 600.0, "SECONDS", above(0), Run;
        /// Longest silence of a rank
        /// In seconds. A rank that hangs or is cut off ends the run after that; a run that is stopped as a whole goes on.
        heartbeat: f64 = 5.0, "SECONDS", above(0), Run, program;
        /// What carries data between nodes
        /// "auto" is TCP. "mpi" is the MPI library of the mpirun, mpiexec or srun that has started the ranks, and so the cluster's own network. Ranks of one node share memory with both, and the sums are the same bits.
        transport: TransportKind = TransportKind::Auto, "KIND", ANY, Invocation, program;
        /// Compare parameters after every step
        /// The run fails at the first tensor that differs between ranks.
        check_ranks: bool = false, "", ANY, Run;
    }
    Output {
        /// Run folder to make or to resume
        out: Option<PathBuf> = None => "runs/TIME-MODEL", "DIR", ANY, Invocation;
        /// Go on from a checkpoint
        /// From the last one of the run in --out, or else of the newest run in runs/, with DATA of the newest of these data; where there is no run, it starts. RUN is the folder of the run to go on with. "best" goes on from the best epoch, and drops what came after it.
        resume: Resume = Resume::No, "RUN|best", ANY, Invocation;
        /// Steps between checkpoints
        /// 0: only at the end of each epoch.
        save_every: u64 = 0, "STEPS", ANY, Run;
        /// Checkpoints to keep
        /// The last and the best always stay. N keeps those of the N newest epochs too, as checkpoints/epoch-E.safetensors; all keeps those of every epoch.
        keep: Keep = Keep::Newest(0), "last,best|N|all", ANY, Run;
        /// Epochs between weights for PyTorch
        /// Writes weights/model-E.pth after every N epochs, with the preparation of images as JSON beside it. These files all stay. 0: never.
        export_every: u64 = 0, "EPOCHS", ANY, Run;
        /// MLflow's file store to log into
        /// The folder that MLflow calls mlruns: parameters are the settings, metrics the values of each epoch. mlflow ui --backend-store-uri DIR shows it; MLflow 3 wants MLFLOW_ALLOW_FILE_STORE=true in the environment for that. A resumed run goes on in the same place.
        mlflow: Option<PathBuf> = None => "none", "DIR", ANY, Run;
        /// Log how weights are distributed
        /// A histogram of each parameter after every epoch, for TensorBoard. For that all weights are read once an epoch, on a GPU also copied from it.
        histograms: bool = false, "", ANY, Run;
        /// Steps between lines about steps
        /// They have loss, learning rate and images per second. 0: none.
        log_every: u64 = 0, "STEPS", ANY, Run, program;
        /// Steps to draw on a timeline
        /// As logs/trace.json of the run folder, for chrome://tracing and ui.perfetto.dev: this many steps of every rank after the first ten, on one clock.
        trace_steps: Option<u64> = None => "no timeline", "N", between(1, 100), Invocation;
        /// Signal to save and requeue
        /// At this signal the run is saved, its Slurm job requeued, and the program ends with code 75.
        requeue_signal: RequeueSignal = RequeueSignal::Usr1, "SIGNAL", ANY, Run, program;
        /// Let every rank print
        /// To standard error. Otherwise only the first rank prints.
        log_ranks: bool = false, "", ANY, Invocation, program;
        /// Print JSON objects, one per line
        /// Standard output then holds nothing else.
        json: bool = false, "", ANY, Invocation, program;
    }
}

/// All settings of a run, as they are saved with it. Build one with [`LayeredConfig`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunConfig {
    /// What the trainer obeys.
    pub train: TrainConfig,
    /// What the program around it obeys.
    pub program: ProgramConfig,
}

#[cfg(test)]
mod tests;
