//! Settings that have no effect with the value of another setting, or on a data set: tables of
//! them. (`enmasse launch` has a table of its own.)
//!
//! Only settings that a user gave are checked: on the command line, in the environment, in a file.
//! Two flags on one command line, one of which disables the other, are an error. In a file or the
//! environment they are a warning. Defaults and the values of a saved run are not checked, so that
//! every run can continue. A setting that is fulfilled anyway, such as SyncBatchNorm on a single
//! rank, does not count as ineffective.

use enmasse_datasets::DataLayout::{self, Archives, Manifest, NamedImages, Parquet};
use enmasse_datasets::{DataKind, TaskKind};

use super::opt_arg::of_optimizers;
use super::{
    ConfigError, FineTune, LayeredConfig, LossKind, RankKind, SETTINGS, Scope, Setting, SettingSource, Shuffling,
    StrategyKind, TrainConfig,
};

/// The circumstances of a run that settings depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// The kind of images.
    pub kind: DataKind,
    /// What is to be predicted.
    pub task: TaskKind,
    /// How the data lie in files.
    pub layout: DataLayout,
    /// Whether the samples lie in blocks ([`enmasse_data::Locality::blocks`]).
    pub has_blocks: bool,
    /// Whether the data set comes in two parts, so that it is not split.
    pub has_parts: bool,
    /// Whether the data set's default training images are crops of padded ones.
    pub is_padded: bool,
    /// Whether a launcher started the ranks.
    pub is_launched: bool,
    /// Whether there is one rank.
    pub is_single: bool,
}

/// Settings that have an effect only if another one has one of some values: the setting, the other one, and these values.
/// Those that are hyper-parameters of some optimisers follow from the list of these.
const BESIDE: &[(&str, &str, &[&str])] = &[
    ("lrf", "schedule", &["cosine"]),
    ("step_size", "schedule", &["step"]),
    ("gamma", "schedule", &["step", "plateau"]),
    ("plateau_patience", "schedule", &["plateau"]),
    ("restart_epochs", "schedule", &["warm-restarts"]),
    ("restart_mult", "schedule", &["warm-restarts"]),
    ("power", "schedule", &["polynomial"]),
    ("pct_start", "schedule", &["one-cycle"]),
    ("div_factor", "schedule", &["one-cycle"]),
    ("final_div_factor", "schedule", &["one-cycle"]),
    ("anneal_strategy", "schedule", &["one-cycle"]),
    ("scale", "augment", &["resized-crop"]),
    ("ratio", "augment", &["resized-crop"]),
    ("crop_padding", "augment", &["crop"]),
    ("padding_mode", "augment", &["crop"]),
    ("ra_num_ops", "auto_augment", &["randaugment"]),
    ("ra_magnitude", "auto_augment", &["randaugment"]),
    ("augmix_severity", "auto_augment", &["augmix"]),
    ("shuffle", "sampler", &["shuffle"]),
    ("balance", "sampler", &["shuffle"]),
    ("repeat_augment", "sampler", &["shuffle"]),
];

/// A setting, when it has no effect, and the reason: the end of "has no effect".
type Rule = (&'static str, fn(&TrainConfig, &Surroundings) -> bool, &'static str);

/// Why the split has no effect.
const PARTS: &str = "on a data set that comes in parts for training and validation";

/// Why settings of steps have no effect.
const HEAD: &str = "with `fine_tune = head`, which trains on features in one epoch without steps";

/// Settings that have an effect except in some circumstances.
const UNLESS: &[Rule] = &[
    ("scale", has_no_resized_crop, "on this data set without `augment = resized-crop`"),
    ("ratio", has_no_resized_crop, "on this data set without `augment = resized-crop`"),
    ("crop_padding", has_no_crop, "on this data set without `augment = crop`"),
    ("padding_mode", has_no_crop, "on this data set without `augment = crop`"),
    ("global_batch", |config, _| config.batch.is_some(), "with `batch`"),
    ("erasing_value", |config, _| config.random_erasing == 0.0, "without `random_erasing`"),
    ("label_pattern", |_, data| data.layout != NamedImages, "on data other than folders of images"),
    ("path_column", |_, data| !data.has_columns(), "on data other than manifests and Parquet files"),
    ("label_column", has_no_labels, "on data other than manifests, WebDataset archives and Parquet files"),
    ("manifest_root", |_, data| data.layout != Manifest, "on data other than manifests"),
    (
        "class_weights",
        |config, data| tunes_head(config, data) && config.loss == Some(LossKind::Focal),
        "with `fine_tune = head` and `loss = focal`",
    ),
    ("loss", tunes_head, "with `fine_tune = head`, which fits the head by cross-entropy"),
    ("label_smoothing", |_, data| data.task == TaskKind::Regression, "on numbers"),
    (
        "fine_tune",
        |_, data| data.task != TaskKind::Classification,
        "on labels and numbers: a head is fitted to classes",
    ),
    ("teacher", |config, _| config.distillation_alpha == 0.0, "with `distillation_alpha = 0`"),
    ("teacher", tunes_head, "with `fine_tune = head`, which fits the head by cross-entropy"),
    ("distillation_alpha", |config, _| config.teacher.is_none(), "without `teacher`"),
    ("distillation_temperature", |config, _| config.teacher.is_none(), "without `teacher`"),
    ("distillation_temperature", |_, data| data.task == TaskKind::Regression, "on numbers"),
    ("focal_gamma", |config, _| config.loss != Some(LossKind::Focal), "without `loss = focal`"),
    ("huber_delta", |config, _| config.loss != Some(LossKind::Huber), "without `loss = huber`"),
    ("shuffle", has_no_blocks, "on data other than WebDataset archives and Parquet files"),
    ("split", |_, data| data.has_parts, PARTS),
    ("split_seed", |_, data| data.has_parts, PARTS),
    ("epochs", tunes_head, HEAD),
    ("lr", tunes_head, HEAD),
    ("optimizer", tunes_head, HEAD),
    ("augment", tunes_head, HEAD),
    ("recompute", tunes_head, HEAD),
    ("ema", tunes_head, HEAD),
    ("lookahead", tunes_head, HEAD),
    ("lookahead_alpha", |config, _| config.lookahead.is_none(), "without `lookahead`"),
    ("lookahead_power", |config, _| config.lookahead.is_none(), "without `lookahead`"),
    ("layer_decay", tunes_head, HEAD),
    ("head_lr_mult", tunes_head, HEAD),
    ("lr_mult", tunes_head, HEAD),
    ("decay_mult", tunes_head, HEAD),
    ("sync_bn", |config, _| config.freeze_bn, "with `freeze_bn`"),
    ("all_reduce", tunes_head, HEAD),
    ("reduce_precision", tunes_head, HEAD),
    ("prefix", |config, _| !config.begins_with_weights(), "without `weights` or `pretrained`"),
    ("convert_rgb", |_, data| data.is_known(), "on CIFAR and MNIST: only images in folders are converted"),
    ("exif_transpose", |_, data| data.is_known(), "on CIFAR and MNIST: only images in folders have an orientation"),
    ("decode", |_, data| data.is_known(), "on CIFAR and MNIST, which are not stored as JPEG"),
    ("on_bad_sample", |_, data| data.is_known(), "on CIFAR and MNIST, whose files are read whole before the run"),
    ("out", |config, _| config.keeps_nothing(), "where nothing is kept"),
    ("mlflow", |config, _| config.keeps_nothing(), "where nothing is kept"),
    ("histograms", |config, _| config.keeps_nothing(), "where nothing is kept"),
    ("tune", |config, _| config.keeps_nothing(), "in a trial or search, which takes the usual algorithms"),
    ("schedule_stages", |config, _| config.stages.is_empty(), "without `stages`"),
    ("shards", |config, _| !config.stages.is_empty(), "with `stages`, where `micro_batches` are the shards of a rank"),
    (
        "accumulate",
        |config, _| !config.stages.is_empty(),
        "with `stages`, where `micro_batches` are the shards of a rank",
    ),
    ("micro_batches", |config, _| config.stages.is_empty(), "without `stages`"),
    ("ranks", has_ranks, "in ranks that a launcher has started"),
    ("strategy", |config, data| data.is_single && config.strategy == StrategyKind::Zero1, "with one rank"),
];

fn has_no_resized_crop(config: &TrainConfig, data: &Surroundings) -> bool {
    config.augment.is_none() && data.kind != DataKind::Folder
}

fn has_no_crop(config: &TrainConfig, data: &Surroundings) -> bool {
    config.augment.is_none() && !data.is_padded
}

fn tunes_head(config: &TrainConfig, _: &Surroundings) -> bool {
    config.fine_tune == Some(FineTune::Head)
}

fn has_no_labels(_: &TrainConfig, data: &Surroundings) -> bool {
    !data.has_columns() && data.layout != Archives
}

fn has_no_blocks(config: &TrainConfig, data: &Surroundings) -> bool {
    config.shuffle == Some(Shuffling::Block) && !data.has_blocks
}

/// Whether the ranks are there, and of another kind than was asked for.
fn has_ranks(config: &TrainConfig, surroundings: &Surroundings) -> bool {
    surroundings.is_launched && config.ranks == RankKind::Thread
}

impl Surroundings {
    fn has_columns(&self) -> bool {
        matches!(self.layout, Manifest | Parquet)
    }

    /// Whether it is CIFAR or MNIST.
    fn is_known(&self) -> bool {
        self.kind != DataKind::Folder
    }
}

impl LayeredConfig {
    /// Checks that every flag has an effect.
    ///
    /// # Errors
    /// Another flag of the same command line makes a flag ineffective, or a flag sets what the program finds itself.
    pub fn check_flags(&self) -> Result<(), ConfigError> {
        let is_flag = |setting: &Setting| self.source(setting.name) == Some(&SettingSource::CommandLine);
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.scope == Scope::Found && is_flag(setting)) {
            let reason = format!("is {}; leave it out", setting.default_words);
            return Err(ConfigError::value(setting, &self.text(setting), &SettingSource::CommandLine, reason));
        }
        let both = |idle: &Idle| is_flag(idle.setting) && is_flag(idle.decided_by);
        let Some(Idle { setting, decided_by, values }) = self.beside_others().find(both) else { return Ok(()) };
        let reason = format!(
            "has no effect with {}; leave it out, or use {}",
            SettingSource::CommandLine.describe(decided_by, &self.text(decided_by)),
            SettingSource::CommandLine.describe(decided_by, &values.join(" or ")),
        );
        Err(ConfigError::value(setting, &self.text(setting), &SettingSource::CommandLine, reason))
    }

    /// A line for each setting that a user gave and that has no effect, as far as the command `takes` it.
    pub fn without_effect(&self, surroundings: &Surroundings, takes: impl Fn(&Setting) -> bool) -> Vec<String> {
        let beside = self.beside_others().map(|Idle { setting, decided_by, .. }| {
            (setting, format!("with `{} = {}`", decided_by.name, self.text(decided_by)))
        });
        let unless = UNLESS.iter().filter_map(|(name, is_idle, why)| {
            let setting = self.given(name)?;
            is_idle(&self.config().train, surroundings).then(|| (setting, (*why).to_owned()))
        });
        let line = |(setting, why): (&'static Setting, String)| {
            let source = self.source(setting.name).unwrap_or(&SettingSource::Default);
            format!("{} has no effect {why}", source.describe(setting, &self.text(setting)))
        };
        beside.chain(unless).filter(|(setting, _)| takes(setting)).map(line).collect()
    }

    /// The given settings that the value of another one makes ineffective.
    fn beside_others(&self) -> impl Iterator<Item = Idle> {
        let of_optimizers = of_optimizers().map(|(setting, names)| (setting.name, "optimizer", names));
        let others = BESIDE.iter().map(|&(name, other, values)| (name, other, values.to_vec()));
        of_optimizers.chain(others).filter_map(|(name, other, values)| {
            let setting = self.given(name)?;
            let decided_by = Setting::find(other)?;
            // If the program chooses, the value depends on the surroundings.
            let value = self.config().get(other)?;
            (!values.contains(&value.as_str())).then_some(Idle { setting, decided_by, values })
        })
    }

    /// The setting with this name if a user gave it a value. A switch that is off as by default requests nothing.
    fn given(&self, name: &str) -> Option<&'static Setting> {
        let setting = Setting::find(name)?;
        // What is on by default is turned off for a reason.
        let is_off = setting.kind.stands_alone()
            && self.text(setting) == "false"
            && setting.default_text().is_none_or(|default| default == "false");
        match self.source(name)? {
            SettingSource::File(_) | SettingSource::Environment | SettingSource::CommandLine => {
                Some(setting).filter(|_| !is_off)
            }
            SettingSource::Default | SettingSource::Recipe(_) | SettingSource::Saved(_) | SettingSource::Weights(_) => {
                None
            }
        }
    }

    fn text(&self, setting: &Setting) -> String {
        self.config().get(setting.name).unwrap_or_default()
    }
}

/// A setting without effect, the setting that causes this, and the values of that setting that would give it one.
struct Idle {
    setting: &'static Setting,
    decided_by: &'static Setting,
    values: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::SettingKind;
    use super::*;
    use crate::RunConfig;

    const FOLDER: Surroundings = Surroundings {
        kind: DataKind::Folder,
        task: TaskKind::Classification,
        layout: DataLayout::ClassFolders,
        has_blocks: false,
        has_parts: false,
        is_padded: false,
        is_launched: false,
        is_single: false,
    };

    /// Flags, variables and a saved run, each as `name=value` pairs separated by spaces.
    fn layers(flags: &str, variables: &str, saved: &str) -> LayeredConfig {
        fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
            text.split_whitespace().filter_map(|pair| pair.split_once('='))
        }
        let mut layers = LayeredConfig::new();
        let mut run = RunConfig::default();
        pairs(saved).for_each(|(name, value)| run.set(name, value).unwrap());
        if !saved.is_empty() {
            layers.saved_run(&run.to_toml(), Path::new("runs/a")).unwrap();
        }
        for (name, value) in pairs(variables) {
            let variable = Setting::find(name).unwrap().variable();
            layers.environment([(variable.into(), value.into())]).unwrap();
        }
        pairs(flags).for_each(|(name, value)| layers.argument(name, value).unwrap());
        layers
    }

    #[test]
    fn every_rule_names_settings_and_their_values() {
        for (name, ..) in UNLESS {
            assert!(Setting::find(name).is_some(), "{name}");
        }
        for (name, other, values) in BESIDE {
            assert!(Setting::find(name).is_some(), "{name}");
            let decided_by = Setting::find(other).unwrap();
            let SettingKind::Choice(words) = decided_by.kind else { panic!("{other} is not a choice") };
            assert!(values.iter().all(|value| words.contains(value)), "{name} beside {other}");
        }
    }

    #[test]
    fn flags_that_make_each_other_ineffective() {
        let check = |flags: &str, expected: Option<&str>| {
            let error = layers(flags, "", "").check_flags().err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected, "{flags}");
        };
        check("optimizer=sgd momentum=0.5 nesterov=true", None);
        check("optimizer=adamw nesterov=false", None);
        check("gamma=0.5", None);
        let adamw = "has no effect with --optimizer adamw; leave it out, or use --optimizer sgd";
        check("optimizer=lars momentum=0.9", None);
        check("optimizer=adamw momentum=0.9", Some(&format!("--momentum 0.9: {adamw} or lars")));
        check("optimizer=adamw nesterov=true", Some(&format!("--nesterov: {adamw}")));
        let gamma =
            "--gamma 0.5: has no effect with --schedule constant; leave it out, or use --schedule step or plateau";
        check("schedule=constant gamma=0.5", Some(gamma));
        let blocks =
            "--shuffle block: has no effect with --sampler distributed; leave it out, or use --sampler shuffle";
        check("sampler=distributed shuffle=block", Some(blocks));
        let order =
            "--balance classes: has no effect with --sampler distributed; leave it out, or use --sampler shuffle";
        check("sampler=distributed balance=classes", Some(order));
    }

    #[test]
    fn values_that_were_not_given_here_are_not_checked() {
        let check = |flags: &str, variables: &str, saved: &str, expected: &[&str]| {
            let layers = layers(flags, variables, saved);
            layers.check_flags().unwrap();
            assert_eq!(layers.without_effect(&FOLDER, |_| true), expected, "{flags} {variables} {saved}");
        };
        check("", "", "", &[]);
        // The values of a saved run are a mixture of given and default ones.
        check("", "", "optimizer=adamw momentum=0.5", &[]);
        check("optimizer=adamw", "", "momentum=0.5", &[]);
        check("momentum=0.5", "", "optimizer=adamw", &["--momentum 0.5 has no effect with `optimizer = adamw`"]);
        // A leftover in the environment must not end a run.
        check("optimizer=adamw", "momentum=0.5", "", &["ENMASSE_MOMENTUM=0.5 has no effect with `optimizer = adamw`"]);
        check("", "gamma=0.5 schedule=constant", "", &["ENMASSE_GAMMA=0.5 has no effect with `schedule = constant`"]);
        check("gamma=0.5", "", "", &["--gamma 0.5 has no effect with `schedule = cosine`"]);
        let usual = "--tune has no effect in a trial or search, which takes the usual algorithms";
        check("tune=true find_batch=true", "", "", &[usual]);
        check("tune=true find_lr=true", "", "", &[usual]);
        let order = "ENMASSE_REPEAT_AUGMENT=2 has no effect with `sampler = distributed`";
        check("sampler=distributed", "repeat_augment=2", "", &[order]);
    }

    #[test]
    fn settings_of_some_layouts() {
        use DataLayout::{Archives, ClassFolders, KaggleImageNet, Known, Manifest, NamedImages, PackedFile, Parquet};
        const ALL: [DataLayout; 8] = [
            ClassFolders,
            NamedImages,
            Manifest,
            KaggleImageNet,
            Archives,
            Parquet,
            Known(DataKind::Mnist),
            PackedFile,
        ];
        let check = |setting: &str, text: &str, with: &[DataLayout], reason: &str| {
            for layout in ALL {
                let has_blocks = matches!(layout, Archives | Parquet);
                let found =
                    layers(setting, "", "").without_effect(&Surroundings { layout, has_blocks, ..FOLDER }, |_| true);
                let expected = format!("{text} has no effect on data other than {reason}");
                assert_eq!(found, if with.contains(&layout) { vec![] } else { vec![expected] }, "{layout:?}");
            }
        };
        let path = "--label-pattern {class}.jpg";
        check("label_pattern={class}.jpg", path, &[NamedImages], "folders of images");
        check("path_column=a", "--path-column a", &[Manifest, Parquet], "manifests and Parquet files");
        let tables = "manifests, WebDataset archives and Parquet files";
        check("label_column=a", "--label-column a", &[Manifest, Archives, Parquet], tables);
        check("manifest_root=a", "--manifest-root a", &[Manifest], "manifests");
        check("shuffle=block", "--shuffle block", &[Archives, Parquet], "WebDataset archives and Parquet files");
        check("shuffle=full", "", &ALL, "");
        // What the command does not take is none of its business.
        let foreign =
            layers("", "manifest_root=a gamma=0.5", "").without_effect(&FOLDER, |setting| setting.name == "gamma");
        assert_eq!(foreign, ["ENMASSE_GAMMA=0.5 has no effect with `schedule = cosine`"]);
    }

    #[test]
    fn surroundings_that_make_settings_ineffective() {
        let check = |flags: &str, surroundings: Surroundings, expected: &[&str]| {
            assert_eq!(
                layers(flags, "", "").without_effect(&surroundings, |_| true),
                expected,
                "{flags} {surroundings:?}"
            );
        };
        let all = "crop_padding=2 split=python split_seed=1 convert_rgb=true exif_transpose=true on_bad_sample=skip ranks=thread";
        check(all, Surroundings { is_padded: true, ..FOLDER }, &[]);
        check(
            "ranks=process exif_transpose=false",
            Surroundings { is_launched: true, kind: DataKind::Mnist, ..FOLDER },
            &[],
        );
        check("crop_padding=2", FOLDER, &["--crop-padding 2 has no effect on this data set without `augment = crop`"]);
        check("prefix=model.= weights=a.ckpt", FOLDER, &[]);
        check("prefix=model.=", FOLDER, &["--prefix model.= has no effect without `weights` or `pretrained`"]);
        check("augment=none crop_padding=2", FOLDER, &["--crop-padding 2 has no effect with `augment = none`"]);
        check("scale=0.5,1 ratio=1,1", FOLDER, &[]);
        check("augment=none scale=0.5,1", FOLDER, &["--scale 0.5,1 has no effect with `augment = none`"]);
        let cifar = Surroundings { kind: DataKind::Cifar10, is_padded: true, ..FOLDER };
        let because = "--ratio 1,1 has no effect on this data set without `augment = resized-crop`";
        check("ratio=1,1", cifar, &[because]);
        let strength = "--ra-magnitude 5 has no effect with `auto_augment = none`";
        check("ra_magnitude=5", FOLDER, &[strength]);
        check("ra_magnitude=5 ra_num_ops=1 auto_augment=ra", FOLDER, &[]);
        check("augmix_severity=5 auto_augment=augmix", FOLDER, &[]);
        check("erasing_value=random random_erasing=0.1", FOLDER, &[]);
        check("erasing_value=random", FOLDER, &["--erasing-value random has no effect without `random_erasing`"]);
        let parts = Surroundings { has_parts: true, ..FOLDER };
        let because = "has no effect on a data set that comes in parts for training and validation";
        check(
            "split=seeded split_seed=0",
            parts,
            &[&format!("--split seeded {because}"), &format!("--split-seed 0 {because}")],
        );
        let single = Surroundings { is_single: true, ..FOLDER };
        check("strategy=zero1", single, &["--strategy zero1 has no effect with one rank"]);
        check("strategy=dp", Surroundings { is_single: true, ..FOLDER }, &[]);
        check("strategy=zero1", FOLDER, &[]);
        let launched = Surroundings { is_launched: true, ..FOLDER };
        check("ranks=thread", launched, &["--ranks thread has no effect in ranks that a launcher has started"]);
        for kind in [DataKind::Cifar10, DataKind::Cifar100, DataKind::Mnist, DataKind::FashionMnist] {
            let converted = "--convert-rgb has no effect on CIFAR and MNIST: only images in folders are converted";
            check("convert_rgb=true", Surroundings { kind, ..FOLDER }, &[converted]);
            let refused = converted.replace("--convert-rgb", "--no-convert-rgb");
            check("convert_rgb=false", Surroundings { kind, ..FOLDER }, &[&refused]);
            let turned =
                "--exif-transpose has no effect on CIFAR and MNIST: only images in folders have an orientation";
            check("exif_transpose=true", Surroundings { kind, ..FOLDER }, &[turned]);
            let stored = "--decode fast has no effect on CIFAR and MNIST, which are not stored as JPEG";
            check("decode=fast", Surroundings { kind, ..FOLDER }, &[stored]);
            let whole =
                "--on-bad-sample skip has no effect on CIFAR and MNIST, whose files are read whole before the run";
            check("on_bad_sample=skip", Surroundings { kind, ..FOLDER }, &[whole]);
        }
    }
}
