//! `enmasse eval RUN|WEIGHTS DATA`: loss and accuracy, exact at any number of ranks.

mod report;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use enmasse_data::{Dataset, DecodePool, EvalLoader, Sharding};
use enmasse_datasets::{
    DataKind, DataLayout, DataWarning, LeftOut, OpenData, OpenOptions, WholeData, holds_known_set, is_packed,
    open_whole, relabel,
};
use enmasse_image::EvalCrop;
use enmasse_system::files::write_whole;
use enmasse_train::{
    EpochPosition, Evaluation, LayeredConfig, MetricName, OnBadSample, RunConfig, RunPaths, Setting, SettingSource,
    SplitRecord, Surroundings, TrainingData, compare_devices, compare_evaluated, evaluate, evaluate_with_mistakes,
};
use enmasse_wording::counted;
use report::Report;
use serde_json::json;

use crate::command_line::arguments::{self, DECIDED};
use crate::command_line::settings::{self, Ranks, cores};
use crate::commands::weights::{self, OF_A_RUN, PREPARATION, Weights};
use crate::data::of_run::check_data_of_run;
use crate::data::staging::{Copier, stage};
use crate::data::stand_in::shapes;
use crate::failure::Failure;
use crate::output::{Output, say, warn_of_data, warn_of_left_out};
use crate::ranks::interrupt::Interrupts;
use crate::ranks::launched::Launched;
use crate::ranks::{self, Rank};
use crate::report::balance;
use crate::report::{Audience, Reporter, percent};

/// Mistakes that `--mistakes` lists on the screen, unless it says how many.
const MISTAKES: usize = 20;

/// Settings that apply to evaluation.
const EVALUATION: &[&str] = &[
    "model",
    "prefix",
    "size",
    "channels",
    "mean",
    "std",
    "batch",
    "devices",
    "ranks",
    "threads",
    "loader_threads",
    "precision",
    "isa",
    "exact",
    "convert_rgb",
    "exif_transpose",
    "on_bad_sample",
    "label_pattern",
    "path_column",
    "label_column",
    "manifest_root",
    "cache_dir",
    "cache_limit",
    "stage",
    "metrics",
    "timeout",
    "heartbeat",
    "json",
];

/// The name of [`test_command`].
pub const TEST: &str = "test";

/// The command line of `enmasse eval`.
pub fn command() -> Command {
    Command::new("eval")
        .about("Loss and accuracy of a run's best checkpoint or of a weights file; precision, recall and F1 of each class")
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
        .arg(
            Arg::new("confusion")
                .long("confusion")
                .value_name("FILE")
                .value_parser(arguments::path)
                .help("Draw the true and the predicted classes as an SVG file"),
        )
        .arg(
            Arg::new("mistakes")
                .long("mistakes")
                .value_name("N")
                .num_args(0..=1)
                .value_parser(arguments::count_value)
                .help("List the images that were predicted as another class, the most certain first, with the probabilities of both classes [default of N: 20, with --csv and --json all]"),
        )
        .arg(Arg::new("csv").long("csv").action(ArgAction::SetTrue).help(
            "Print a table: label, class, images, predicted, precision, recall, f1, confused_with, confused. With --mistakes: path, class, predicted, probability, class_probability",
        ))
        .arg(arguments::crops())
        .arg(Arg::new(DECIDED).long(DECIDED).action(ArgAction::SetTrue).hide(true))
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
    let layers = settings::layers(matches)?;
    let csv = matches.get_flag("csv");
    if csv && layers.config().program.json {
        return Err(Failure::Usage("--csv: cannot be combined with --json; use one of them".to_owned()));
    }
    let launched = Launched::from_environment(&layers)?;
    let interrupts = match &launched {
        // A rank's launcher handles its signals.
        Some(launched) => launched.check_devices(&layers).map(|()| None)?,
        None => Some(Interrupts::watch()?),
    };
    let source = matches.get_one::<PathBuf>("source").cloned().unwrap_or_default();
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
    let named =
        layers.config().train.data.clone().filter(|_| layers.source("data") == Some(&SettingSource::CommandLine));
    let root = match (named, &own) {
        (Some(root), _) => root,
        (None, Some(root)) => {
            check_data_of_run(root, &source)?;
            root.clone()
        }
        (None, None) => {
            let reason =
                format!("name the DATA to evaluate: {} does not know any; a run folder does", source.display());
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
    let warns = launched.as_ref().is_none_or(|launched| launched.place.rank == 0);
    let weights = weights::open(matches, &layers, kind, warns)?;
    // A rank is given all metrics of the run.
    if launched.is_none()
        && layers.source("metrics") == Some(&SettingSource::CommandLine)
        && layers.config().train.metrics.contains(&MetricName::GradientNorm)
    {
        return Err(Failure::Usage("--metrics gradient_norm: only training has gradients; leave it out".to_owned()));
    }
    let crops = arguments::given_crops(matches);
    if crops.len() > 1 && launched.is_none() && layers.source("metrics") == Some(&SettingSource::CommandLine) {
        let reason = "--metrics: cannot be combined with --crops, which gives loss and accuracy; use one of them";
        return Err(Failure::Usage(reason.to_owned()));
    }
    let mistakes = matches.contains_id("mistakes").then(|| matches.get_one::<usize>("mistakes").copied());
    let ranks = match &launched {
        Some(launched) => {
            Ranks::Launched { local_rank: launched.place.local_rank, speaks: warns && !settings::is_decided(matches) }
        }
        None => Ranks::OfMachine,
    };
    // Ranks that are processes get the values decided here.
    let mut config = weights.compute_as_trained(settings::finish(layers.clone(), ranks)?)?;
    config
        .program
        .devices
        .iter_mut()
        .filter(|devices| !devices.is_undecided())
        .for_each(|devices| devices.automatic = false);
    let asked = matches.get_one::<String>("part").map(String::as_str);
    if let (Some(part), Some("all"), false) = (form.held_out(), asked, settings::is_decided(matches)) {
        return Err(Failure::Usage(format!(
            "--split all: {} comes in parts, of which the {} is evaluated; leave --split out",
            root.display(),
            part.describe()
        )));
    }
    let options = match &saved {
        Some(saved) if is_own => {
            OpenOptions { reading: config.train.reading(), remote: config.train.remote(), ..saved.train.open_options() }
        }
        _ => config.train.open_options(),
    };
    let asked = match asked {
        Some("test") => Asked::Test,
        Some("val") if form == Form::Other => Asked::Validation,
        None if form == Form::Other && is_own => Asked::Validation,
        _ => Asked::Whole,
    };
    let confusion = matches.get_one::<PathBuf>("confusion").cloned();
    let shown = Shown { confusion, mistakes, csv };
    let saved = saved.map(|saved| Saved { config: saved, is_own });
    let request = Request { weights, saved, root, form, asked, options, config, shown, crops };
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
            let root = request.root.clone();
            let task = request.open(Copier::Alone, Some(&layers), false)?;
            let world_size = task.config.program.rank_count(cores());
            let command = || task.command_line(&root);
            ranks::host(world_size, &task.config, None, command, interrupts, |rank| task.evaluate(rank))
        }
    }
}

/// What kind of data is named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Packed,
    /// CIFAR or MNIST.
    Known,
    Other,
}

impl Form {
    fn of(root: &Path) -> Self {
        if is_packed(root) {
            Form::Packed
        } else if holds_known_set(root) {
            Form::Known
        } else {
            Form::Other
        }
    }

    /// The part that is evaluated of data that always come in parts.
    fn held_out(self) -> Option<Part> {
        match self {
            Form::Packed => Some(Part::Validation),
            Form::Known => Some(Part::Test),
            Form::Other => None,
        }
    }
}

/// What is to be evaluated, before the data are opened.
struct Request {
    weights: Weights,
    /// The run.
    saved: Option<Saved>,
    root: PathBuf,
    form: Form,
    asked: Asked,
    options: OpenOptions,
    config: RunConfig,
    shown: Shown,
    crops: Vec<EvalCrop>,
}

/// What is made of the results.
struct Shown {
    /// Where to draw the confusion matrix.
    confusion: Option<PathBuf>,
    /// Whether to list mistakes, and how many.
    mistakes: Option<Option<usize>>,
    /// Whether to print a table for other programs.
    csv: bool,
}

impl Shown {
    /// The flags of a rank.
    fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        if let Some(path) = &self.confusion {
            flags.extend(["--confusion".into(), path.into()]);
        }
        if self.csv {
            flags.push("--csv".into());
        }
        flags.extend(self.mistakes.map(|count| match count {
            Some(count) => format!("--mistakes={count}").into(),
            None => "--mistakes".into(),
        }));
        flags
    }
}

impl Request {
    /// Copies the data, if that is asked for, and opens them. Warns of settings of `checked` that have no effect on them.
    fn open(self, copier: Copier, checked: Option<&LayeredConfig>, is_launched: bool) -> Result<Task, Failure> {
        checked.into_iter().for_each(settings::tell_of_idle_devices);
        let Request { weights, saved, root, form, asked, options, config, shown, crops } = self;
        let (root, not_copied) = stage(&config, &root, copier)?;
        let found = match form.held_out() {
            Some(part) => {
                let mut opened = enmasse_datasets::open(&root, &options).map_err(Failure::error)?;
                let mut part = part;
                if asked == Asked::Test && part != Part::Test {
                    opened.validation = opened.test.take().ok_or_else(|| no_test_part(&root))?;
                    part = Part::Test;
                }
                let (kind, layout) = (opened.kind, opened.layout);
                let warnings = opened.warnings.clone();
                let classes = opened.classes.clone();
                let data = held_out(&weights, opened, &root)?;
                Found { part, data, classes, kind, layout, left_out: LeftOut::default(), warnings }
            }
            None if asked == Asked::Test => {
                let opened = test_part(&weights, saved.as_ref(), &root, &options)?;
                let TrainingData { kind, layout, left_out, warnings, test, classes, .. } = opened;
                let data = label_as(&weights, test.ok_or_else(|| no_test_part(&root))?, &classes, &root)?;
                Found { part: Part::Test, data, classes, kind, layout, left_out, warnings }
            }
            None if asked == Asked::Validation => {
                let TrainingData { validation: data, classes, kind, layout, left_out, warnings, .. } =
                    validation_part(&weights, saved.as_ref().map(|saved| &saved.config), &root, &options)?;
                Found { part: Part::Validation, data, classes, kind, layout, left_out, warnings }
            }
            None => {
                let WholeData { dataset, classes, kind, layout, is_held_out, left_out, warnings } =
                    open_whole(&root, &options).map_err(Failure::error)?;
                let part = if is_held_out { Part::Test } else { Part::Whole };
                let data = label_as(&weights, dataset, &classes, &root)?;
                Found { part, data, classes, kind, layout, left_out, warnings }
            }
        };
        let Found { part, data, classes, kind, layout, mut left_out, warnings } = found;
        left_out.append(not_copied);
        if let Some(layers) = checked {
            let has_blocks = data.locality().is_some_and(|locality| locality.blocks().is_some());
            let surroundings =
                Surroundings { kind, layout, has_blocks, has_parts: true, is_padded: false, is_launched };
            let idle = layers.without_effect(&surroundings, |setting| weights::is_checked(EVALUATION, setting));
            idle.iter().for_each(|line| say(format_args!("warning: {line}")));
        }
        // Bare weights know only the number of their classes.
        let classes = if weights.is_bare { classes } else { weights.classifier.classes.clone() };
        Ok(Task { weights, data, classes, left_out, warnings, asked, part, config, shown, crops })
    }
}

/// The configuration of a run, and whether its data are those to evaluate.
struct Saved {
    config: RunConfig,
    is_own: bool,
}

/// What `--split` asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// All of DATA, or the part that it holds out itself.
    Whole,
    /// The part on which the run validated.
    Validation,
    /// The test part.
    Test,
}

impl Asked {
    /// Its value of `--split`.
    fn word(self) -> &'static str {
        match self {
            Asked::Whole => "all",
            Asked::Validation => "val",
            Asked::Test => "test",
        }
    }
}

/// The images of a request.
struct Found {
    part: Part,
    data: Arc<dyn Dataset>,
    /// The classes of the data, which bare weights have no names for.
    classes: Vec<String>,
    kind: DataKind,
    layout: DataLayout,
    left_out: LeftOut,
    warnings: Vec<DataWarning>,
}

/// The part of DATA that is evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All of DATA.
    Whole,
    /// The images on which the run validated.
    Validation,
    /// The test part, or the part that DATA holds out itself.
    Test,
}

impl Part {
    /// Its value in JSON.
    fn word(self) -> &'static str {
        match self {
            Part::Whole => "all",
            Part::Validation => "val",
            Part::Test => "test",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Part::Whole => "all images",
            Part::Validation => "validation part",
            Part::Test => "test part",
        }
    }
}

/// An evaluation: the weights, the images, the settings.
struct Task {
    weights: Weights,
    data: Arc<dyn Dataset>,
    /// Names of the classes, by label.
    classes: Vec<String>,
    /// What is no image in its folders.
    left_out: LeftOut,
    /// What the user should know about the data.
    warnings: Vec<DataWarning>,
    asked: Asked,
    part: Part,
    config: RunConfig,
    shown: Shown,
    /// Those by which each image is evaluated.
    crops: Vec<EvalCrop>,
}

impl Task {
    /// One rank of the evaluation; the first one prints.
    fn evaluate(&self, rank: &Rank) -> Result<(), Failure> {
        let Task { weights, data, left_out, warnings, part, config, shown, crops, .. } = self;
        if rank.is_first() {
            weights.report();
            warn_of_left_out(left_out);
            warn_of_data(warnings);
        }
        let batch = config.train.batch_per_shard(rank.world_size());
        let shard = rank.group.as_ref().map_or(0, |group| group.rank());
        let sharding = Sharding::one(shard, rank.world_size(), batch);
        let pool = DecodePool::new(rank.loader_threads(&config.train)).map_err(Failure::error)?;
        let pool = pool.timeout(config.train.timeout(rank.world_size()));
        let transform = weights.classifier.transform.clone();
        let loader = EvalLoader::new(&pool, data.clone(), transform, sharding).map_err(Failure::error)?;
        let loader = loader.skip_unreadable(config.train.bad_samples() != OnBadSample::Error);
        let loader = loader.cropped(crops).map_err(Failure::error)?;
        let device = rank.device(config)?;
        if let Some(group) = &rank.group {
            compare_devices(group, device.as_ref(), config.program.share_devices)?;
        }
        let forward = |x, classes| weights.model.forward(x, classes);
        // Evaluation has no collectives: the group only adds up the sums at its end.
        let mut program = weights.classifier.program(&forward, device.as_ref(), batch)?;
        if let Some(group) = &rank.group {
            compare_evaluated(group, program.as_mut(), &self.classes, data.as_ref())?;
        }
        let (total, group) = (data.len() as u64, rank.group.as_ref());
        let audience =
            if rank.is_first() { Audience::Everybody(Output::new(config.program.json)) } else { Audience::Nobody };
        let mut reporter = Reporter::new(audience);
        let position = EpochPosition::default();
        let evaluate = if shown.mistakes.is_some() { evaluate_with_mistakes } else { evaluate };
        let found = evaluate(program.as_mut(), &loader, total, group, position, &mut reporter)?;
        if let (true, Some(path)) = (rank.is_first(), &shown.confusion) {
            self.draw(path, &found)?;
        }
        let everything = config.program.json || shown.csv;
        let mistakes = shown.mistakes.map(|count| count.unwrap_or(if everything { usize::MAX } else { MISTAKES }));
        let report = Report { found: &found, classes: &self.classes, data: data.as_ref(), mistakes };
        let Evaluation { loss, accuracy, balanced_accuracy, samples, unreadable, metrics, per_class, .. } = &found;
        reporter.finish(|output| match output.is_json() {
            true => {
                let mut event = json!({
                    "event": "eval", "loss": loss, "accuracy": accuracy, "balanced_accuracy": balanced_accuracy,
                    "samples": samples, "unreadable": unreadable,
                    "averaged": weights.classifier.averaged, "part": part.word(), "crops": crops.len()
                });
                metrics.iter().for_each(|(name, mean)| event[name] = (*mean).into());
                report.add_to(&mut event);
                output.json(event);
            }
            false => {
                let skipped = if *unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() };
                let images = counted(*samples as usize, "image") + &skipped;
                let averaged = if weights.classifier.averaged { ", with the averages of --ema" } else { "" };
                let crops = if crops.len() > 1 { format!(", by {} crops of each", crops.len()) } else { String::new() };
                let metrics = metrics.iter().map(|(name, mean)| format!(", {name} {mean:.4}")).collect::<String>();
                let summary = format!(
                    "{}, {images}{crops}: accuracy {}{}, loss {loss:.4}{metrics}{averaged}",
                    part.describe(),
                    percent(*accuracy),
                    balance::beside(per_class)
                );
                match shown.csv {
                    true => {
                        output.fact(summary);
                        report.csv().into_iter().for_each(|line| output.text(line));
                    }
                    false => {
                        output.text(summary);
                        report.lines().into_iter().for_each(|line| output.text(line));
                    }
                }
            }
        })
    }

    /// Writes the confusion matrix.
    fn draw(&self, path: &Path, found: &Evaluation) -> Result<(), Failure> {
        let none = || Failure::Error("--confusion: more than 1024 classes make too large a matrix".to_owned());
        let title = format!("confusion matrix, {}", self.part.describe());
        let confusion = found.confusion.as_ref().ok_or_else(none)?;
        let svg = confusion.draw(&title, &self.classes)?;
        write_whole(path, |file| file.write_all(svg.as_bytes())).map_err(Failure::error)
    }

    /// The arguments of a rank.
    fn command_line(&self, root: &Path) -> Vec<OsString> {
        // Values from a run or a checkpoint must not be passed again.
        let is_own = |name: &str| !self.weights.is_bare && (name == "model" || PREPARATION.contains(&name));
        let names = EVALUATION.iter().filter(|name| !is_own(name));
        let mut arguments = vec!["eval".into(), format!("--{DECIDED}").into()];
        arguments.extend(settings::rank_flags(&self.config, names.filter_map(|name| Setting::find(name))));
        arguments.push(format!("--split={}", self.asked.word()).into());
        arguments.push(format!("--crops={}", self.crops.len()).into());
        arguments.extend(self.shown.flags());
        arguments.extend(["--".into(), self.weights.path.as_os_str().to_owned(), root.into()]);
        arguments
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

/// The part of a known data set or a packed file that is held out for evaluation.
fn held_out(weights: &Weights, opened: OpenData, root: &Path) -> Result<Arc<dyn Dataset>, Failure> {
    let known = &weights.classifier.classes;
    let fits = if weights.is_bare { opened.classes.len() == known.len() } else { opened.classes == *known };
    match fits {
        true => Ok(opened.validation),
        false => Err(Failure::Error(format!(
            "{}: its {} are not the {} of the weights",
            root.display(),
            counted(opened.classes.len(), "class"),
            known.len(),
        ))),
    }
}

/// The data of a run in its parts: those of its split, or the data set's own.
fn validation_part(
    weights: &Weights,
    saved: Option<&RunConfig>,
    root: &Path,
    options: &OpenOptions,
) -> Result<TrainingData, Failure> {
    let Some(saved) = saved else {
        return Err(Failure::Usage("--split val: only a run folder knows which part of DATA validated it".to_owned()));
    };
    let options =
        OpenOptions { reading: options.reading, remote: options.remote.clone(), ..saved.train.open_options() };
    let paths = RunPaths::new(&weights.path);
    match paths.split().exists() {
        true => {
            let split = paths.read_split().map_err(Failure::error)?;
            Ok(TrainingData::from_record(root, split, &options)?)
        }
        false => Ok(TrainingData::open(root, &options)?),
    }
}

/// The data of a run with the test part of its split, or DATA in its parts.
fn test_part(
    weights: &Weights,
    saved: Option<&Saved>,
    root: &Path,
    options: &OpenOptions,
) -> Result<TrainingData, Failure> {
    let paths = RunPaths::new(&weights.path);
    if saved.is_some_and(|saved| saved.is_own) && paths.split().exists() {
        let split: SplitRecord = paths.read_split().map_err(Failure::error)?;
        if split.test.is_some() {
            return Ok(TrainingData::from_record(root, split, options)?);
        }
    }
    // A test part may have been added since.
    Ok(TrainingData::open(root, options)?)
}

fn no_test_part(root: &Path) -> Failure {
    Failure::Error(format!(
        "{}: there is no test part besides the one for validation: add one (test/ beside train/ and val/, or files or rows named \
         test), or evaluate the validation part with --split val",
        root.display()
    ))
}

/// Whether both paths lead to the same folder.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The same images, labelled by the classes of the weights.
fn label_as(
    weights: &Weights,
    dataset: Arc<dyn Dataset>,
    classes: &[String],
    root: &Path,
) -> Result<Arc<dyn Dataset>, Failure> {
    let (found, known) = (classes.len(), weights.classifier.classes.len());
    match weights.is_bare {
        false => relabel(dataset, root, classes, &weights.classifier.classes).map_err(Failure::error),
        // Without names, only the order of classes is known.
        true if found == known => Ok(dataset),
        true => {
            let path = root.display();
            Err(Failure::Error(format!("{path}: has {}, but the weights have {known}", counted(found, "class"))))
        }
    }
}
