//! `enmasse eval RUN|WEIGHTS DATA`: loss and accuracy, exact at any number of ranks.

pub mod figures;
pub mod images;
mod knn;
mod report;
mod task;
pub mod values;

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use enmasse_datasets::{DataKind, OpenOptions, TaskKind};
use enmasse_image::EvalCrop;
use enmasse_train::{LayeredConfig, MetricName, RunConfig, RunPaths, SettingSource, Surroundings};
use images::{Form, Found, ImageSelection, Part};
use task::{Shown, Task};

use crate::command_line::arguments;
use crate::command_line::settings::{self, Ranks, cores};
use crate::commands::weights::{self, OF_A_RUN, Source, Weights};
use crate::data::of_run::check_data_of_run;
use crate::data::staging::{Copier, stage};
use crate::data::stand_in::shapes;
use crate::failure::{Failure, usage};
use crate::output::warn;
use crate::ranks;
use crate::ranks::interrupt::Interrupts;
use crate::ranks::launched::Launched;

/// Settings that apply to evaluation.
const EVALUATION: &str = "\
    model prefix size channels mean std interpolation crop_pct batch devices ranks threads loader_threads precision isa \
    exact convert_rgb exif_transpose on_bad_sample label_pattern path_column label_column task \
    manifest_root cache_dir cache_limit stage metrics timeout heartbeat json";

/// The name of [`test_command`].
pub const TEST: &str = "test";

/// The command line of `enmasse eval`.
pub fn command() -> Command {
    Command::new("eval")
        .about("Loss and accuracy of a run's best checkpoint or of a weights file; figures of each class, and calibration")
        .arg(arguments::source())
        .arg(arguments::data_as(
            "Data as for train, but of a folder with train/ and val/ one of these; of CIFAR and MNIST the test part, of a packed file the validation part. Without it, the data of the run",
        ))
        .arg(
            Arg::new("part")
                .long("split")
                .value_name("PART")
                .value_parser(["all", "val", "test"])
                .help("\"val\" takes the validation part of the run, \"test\" the test part of the data, \"all\" every image of DATA [default: val on the data of the run, all on other data]"),
        )
        .arg(arguments::file("confusion", "Draw the true and the predicted classes as an SVG file"))
        .arg(arguments::file(
            "curves",
            "Draw the receiver operating characteristic and precision over recall of each class as an SVG file; of more than 10 classes those with the least average precision",
        ))
        .arg(arguments::file("reliability", "Draw how often the model is right over how sure it is as an SVG file"))
        .arg(
            arguments::option("mistakes", "N")
                .num_args(0..=1)
                .value_parser(arguments::count_value)
                .help("List the images that were predicted as another class, the most certain first, with the probabilities of both classes [default of N: 20, with --csv and --json all]"),
        )
        .arg(arguments::switch(
            "csv",
            "Print a table: label, class, images, predicted, precision, recall, f1, confused_with, confused, roc_auc, average_precision. With --mistakes: path, class, predicted, probability, class_probability",
        ))
        .args(arguments::crops())
        .arg(
            arguments::count("knn", "K", "Instead, accuracy on the validation part by the classes of the K nearest training images: by the cosine of what the last layer reads, each with the weight exp(cosine / 0.07), as in DINO's evaluation. The model's own classes do not count")
                .conflicts_with_all(["part", "confusion", "curves", "reliability", "mistakes", "csv", "crops", "tta"]),
        )
        .arg(arguments::decided())
        .args(arguments::settings_with(EVALUATION, OF_A_RUN))
}

/// The same for the test part, as users of Lightning know it.
pub fn test_command() -> Command {
    command()
        .name(TEST)
        .about("The test part of a run's data: eval --split test")
        .hide(true)
        .mut_arg("part", |part| part.default_value("test").hide(true))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut layers = settings::layers(matches)?;
    if matches.get_flag("csv") && layers.config().program.json {
        return Err(usage!("--csv: cannot be combined with --json; use one of them"));
    }
    let launched = Launched::from_environment(&layers)?;
    let interrupts = match &launched {
        // A rank's launcher handles its signals.
        Some(launched) => launched.check_devices(&layers).map(|()| None)?,
        None => Some(Interrupts::watch()?),
    };
    let request = Request::new(matches, &mut layers, launched.as_ref())?;
    if let Some(&neighbors) = matches.get_one::<usize>("knn") {
        if launched.is_some() {
            return Err(usage!("--knn: computes on one device; start it without a launcher"));
        }
        return knn::evaluate(request, neighbors);
    }
    request.weights.classifier.require_classes()?;
    request.check_task()?;
    // The process that started this one has checked the flags, and copied the data.
    let is_decided = settings::is_decided(matches);
    match launched {
        Some(launched) => {
            let config = request.config.clone();
            ranks::as_rank(&launched, &config, None, |rank| {
                let mut request = request;
                rank.settle(&mut request.config, &layers, !is_decided && rank.is_first())?;
                request.config.program.devices.iter_mut().for_each(|devices| devices.automatic = false);
                let copier = if is_decided { Copier::Others } else { Copier::Rank(rank) };
                let judging = (!is_decided && rank.is_first()).then_some(&layers);
                request.open(copier, judging, true)?.evaluate(rank)
            })
        }
        None => {
            let root = request.selection.root.clone();
            let task = request.open(Copier::Alone, Some(&layers), false)?;
            let world_size = task.config.program.rank_count(cores());
            let command = || task.command_line(&root);
            ranks::host(world_size, &task.config, None, command, interrupts, |rank| task.evaluate(rank))
        }
    }
}

/// What is to be evaluated, before the data are opened.
struct Request {
    weights: Weights,
    selection: ImageSelection,
    config: RunConfig,
    shown: Shown,
    crops: Vec<EvalCrop>,
}

impl Request {
    /// What the command line asks for. A rank has been given its devices, and all metrics of the run.
    fn new(matches: &ArgMatches, layers: &mut LayeredConfig, launched: Option<&Launched>) -> Result<Self, Failure> {
        let opened = Source::find(matches, layers)?;
        let source = opened.path.clone();
        if !source.exists() {
            let reason = format!("{}: it does not exist; name a run folder or a weights file", source.display());
            return Err(Failure::Error(reason));
        }
        let saved = saved_config(&source)?;
        if let Some(saved) = &saved {
            // Before the data: those of a program may be its own too.
            weights::known_model(&source, &saved.train.model)?;
        }
        let own = match &saved {
            Some(saved) => Some(saved.train.data.clone().map_or_else(shapes, Ok)?),
            None => None,
        };
        let is_given = |name: &str| layers.source(name) == Some(&SettingSource::CommandLine);
        let named = layers.config().train.data.clone().filter(|_| is_given("data"));
        let root = match (named, &own) {
            (Some(root), _) => root,
            (None, Some(root)) => {
                check_data_of_run(root, &source)?;
                root.clone()
            }
            (None, None) => {
                let source = source.display();
                let reason = format!("name the DATA to evaluate: {source} does not know any; a run folder does");
                return Err(Failure::Usage(reason));
            }
        };
        let is_own = own.is_some_and(|own| own == root || is_same(&own, &root));
        let form = Form::of(&root);
        let kind = match form {
            Form::Packed | Form::Known => {
                enmasse_datasets::open(&root, &layers.config().train.open_options()).map_err(Failure::error)?.kind
            }
            Form::Other => DataKind::Folder,
        };
        let is_decided = settings::is_decided(matches);
        let warns = !is_decided && launched.is_none_or(|launched| launched.place.rank == 0);
        let weights = weights::open(opened, layers, kind, warns)?;
        let asks_for_metrics = launched.is_none() && is_given("metrics");
        if asks_for_metrics && layers.config().train.metrics.contains(&MetricName::GradientNorm) {
            return Err(usage!("--metrics gradient_norm: only training has gradients; leave it out"));
        }
        let crops = arguments::given_crops(matches);
        if asks_for_metrics && crops.len() > 1 {
            return Err(usage!(
                "--metrics: cannot be combined with --crops or --tta, which give loss and accuracy; use one of them"
            ));
        }
        let ranks = match launched {
            Some(launched) => Ranks::Launched { local_rank: launched.place.local_rank, speaks: warns },
            None => Ranks::OfMachine,
        };
        // Ranks that are processes get the values decided here.
        let mut config = weights.compute_as_trained(settings::finish(layers.clone(), ranks)?)?;
        if let Some(devices) = config.program.devices.as_mut().filter(|devices| !devices.is_undecided()) {
            devices.automatic = false;
        }
        let asked = matches.get_one::<String>("part").map(String::as_str);
        if let (Some(part), Some("all"), false) = (form.held_out(), asked, is_decided) {
            return Err(usage!(
                "--split all: {} comes in parts, of which the {} is evaluated; leave --split out",
                root.display(),
                part.describe()
            ));
        }
        let part = match asked {
            Some("test") => Part::Test,
            Some("val") if form == Form::Other => Part::Validation,
            None if form == Form::Other && is_own => Part::Validation,
            _ => Part::Whole,
        };
        let (reading, remote) = (config.train.reading(), config.train.remote());
        let options = match &saved {
            Some(saved) if is_own => OpenOptions { reading, remote, ..saved.train.open_options() },
            _ => config.train.open_options(),
        };
        let shown = Shown {
            confusion: matches.get_one::<PathBuf>("confusion").cloned(),
            curves: matches.get_one::<PathBuf>("curves").cloned(),
            reliability: matches.get_one::<PathBuf>("reliability").cloned(),
            mistakes: matches.contains_id("mistakes").then(|| matches.get_one::<usize>("mistakes").copied()),
            csv: matches.get_flag("csv"),
        };
        let selection = ImageSelection { root, form, part, options, saved, is_own };
        Ok(Request { weights, selection, config, shown, crops })
    }

    /// An error for flags that are about classes, where the weights predict something else.
    fn check_task(&self) -> Result<(), Failure> {
        let kind = self.weights.classifier.kind();
        let shown = &self.shown;
        let of_classes = [
            ("confusion", shown.confusion.is_some()),
            ("mistakes", shown.mistakes.is_some()),
            ("curves", shown.curves.is_some()),
            ("reliability", shown.reliability.is_some()),
            ("crops", self.crops.len() > 1),
        ];
        match of_classes.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) if kind != TaskKind::Classification => {
                Err(usage!("--{flag}: is about one class of each image, and this run is a {kind}; leave it out"))
            }
            _ => Ok(()),
        }
    }

    /// Copies the data, if that is asked for, and opens them. Warns of settings of `checked` that have no effect on them.
    fn open(self, copier: Copier, checked: Option<&LayeredConfig>, is_launched: bool) -> Result<Task, Failure> {
        checked.into_iter().for_each(settings::tell_of_idle_devices);
        let Request { weights, selection, config, shown, crops } = self;
        let (root, not_copied) = stage(&config, &selection.root, copier)?;
        let mut images = selection.open(&weights, &root)?;
        let validates_run = selection.is_validation_of_run(images.part);
        images.left_out.append(not_copied);
        if let Some(layers) = checked {
            let Found { kind, layout, .. } = images;
            let task = weights.classifier.kind();
            let has_blocks = images.data.locality().is_some_and(|locality| locality.blocks().is_some());
            let (has_parts, is_padded, is_single) = (true, false, false);
            let surroundings =
                Surroundings { kind, task, layout, has_blocks, has_parts, is_padded, is_launched, is_single };
            let idle = layers.without_effect(&surroundings, |setting| weights::is_checked(EVALUATION, setting));
            idle.iter().for_each(warn);
        }
        // Bare weights know only the number of their classes.
        if !weights.is_bare {
            images.classes.clone_from(&weights.classifier.classes);
        }
        Ok(Task { weights, images, asked: selection.part, config, shown, crops, validates_run })
    }
}

/// The configuration of a run; `None` for a weights file.
fn saved_config(path: &Path) -> Result<Option<RunConfig>, Failure> {
    if !path.is_dir() {
        return Ok(None);
    }
    let paths = RunPaths::new(path);
    paths.require_weights().map_err(Failure::error)?;
    let text = paths.saved_config().map_err(Failure::error)?;
    text.map(|text| RunConfig::from_toml(&text)).transpose().map_err(Failure::error)
}

/// Whether both paths lead to the same folder.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
