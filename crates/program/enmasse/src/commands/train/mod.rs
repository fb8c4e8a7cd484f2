//! `enmasse train`: checks everything possible, then runs the ranks.

mod finished;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Arg, ArgAction, ArgMatches, Command};
use enmasse_comm::{Group, ShardMap};
use enmasse_data::{Crop, DataError};
use enmasse_graph::Target;
use enmasse_launch::{Launcher, process_variable};
use enmasse_models::Model;
use enmasse_train::{
    Devices, DoneRecord, LayeredConfig, Objective, Preparation, ProgramConfig, RUNS, Resume, RunConfig, RunFolder,
    RunPaths, SETTINGS, Source, Stop, StopRequests, TrainConfig, TrainError, Trainer, TrainingData, TransportKind,
    compile_plans, locate_run,
};
use enmasse_wording::{counted, grouped, one_line};

use crate::command_line::arguments::{DECIDED, data, flag, path};
use crate::command_line::launcher_flags::{self, LauncherFlags};
use crate::command_line::settings::{self, Ranks, cores};
use crate::data::of_run::check_data_of_run;
use crate::data::staging::{Copier, stage};
use crate::data::stand_in::{SHAPES_SIZE, shapes};
use crate::failure::Failure;
use crate::failure::flight::keep_flight;
use crate::failure::record::keep_failure;
use crate::output::{Output, say, warn_of_data, warn_of_left_out};
use crate::ranks::attempt::attempt;
use crate::ranks::interrupt::{Interrupts, RunSignals};
use crate::ranks::launched::not_of_mpi;
use crate::ranks::requeue::requeue;
use crate::ranks::{self, Rank};
use crate::report::device_warnings::DeviceWarnings;
use crate::report::rank_log::RankLog;
use crate::report::{Audience, Reporter};
use finished::is_finished;

const EXAMPLES: &str = "\
Examples:
  enmasse train photos --model resnet34 --epochs 30 --out runs/a
  enmasse train --resume runs/a
  enmasse train cifar-10-batches-py --batch 128 --lr 0.1 --devices cpu:4
  enmasse train photos --weights resnet34.pth --model resnet34 --freeze-layers
  enmasse train photos --config settings.toml --lr 0.05";

/// The command line of `enmasse train`.
pub fn command() -> Command {
    let flags = SETTINGS.iter().filter(|setting| setting.name != "data").map(flag);
    Command::new("train")
        .about("Train a model on images: a folder of class folders, CIFAR, MNIST")
        .after_help(EXAMPLES)
        .after_long_help(format!(
            "Every setting is also a key of --config FILE and a variable ENMASSE_NAME. The flags --config, --data-path and those known \
             from PyTorch's scripts are no settings. Later ones win: defaults, the saved run, --config, the environment, the command \
             line.\n\n{EXAMPLES}"
        ))
        .args(data())
        .args(flags)
        .args(launcher_flags::arguments())
        .args(run_names())
        .arg(Arg::new(DECIDED).long(DECIDED).action(ArgAction::SetTrue).hide(true))
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(path)
                .help("Read settings from this TOML file"),
        )
}

/// The flags by which YOLO's scripts name a run's folder in two parts.
fn run_names() -> [Arg; 2] {
    let flag = |name: &'static str, placeholder: &'static str, help: &'static str| {
        let arg = Arg::new(name).long(name).value_name(placeholder).value_parser(path).overrides_with(name);
        arg.help(help).help_heading(launcher_flags::HEADING)
    };
    [
        flag("project", "DIR", "The folder of --name [default: runs]"),
        flag("name", "NAME", "A name for the run: --project P --name N is --out P/N"),
    ]
}

/// Takes `--project` and `--name` as `--out`.
fn name_run(matches: &ArgMatches, layers: &mut LayeredConfig) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<PathBuf>(name);
    let (project, name) = match (given("project"), given("name")) {
        (None, None) => return Ok(()),
        (Some(project), None) => {
            let why = "the run has no name there; give --name NAME too, or --out DIR alone";
            return Err(Failure::Usage(format!("--project {}: {why}", project.display())));
        }
        (project, Some(name)) => (project.map_or(Path::new(RUNS), PathBuf::as_path), name),
    };
    if name.as_os_str().is_empty() {
        return Err(Failure::Usage("--name is empty; give a name for the run".to_owned()));
    }
    if let (Some(out), Some(&Source::CommandLine)) = (&layers.config().train.out, layers.source("out")) {
        let why = format!("--out {} names the run's folder; leave one of them out", out.display());
        return Err(Failure::Usage(format!("--name {}: {why}", name.display())));
    }
    let out = project.join(name);
    let text = out.to_str().ok_or_else(|| Failure::Usage(format!("--name {}: must be UTF-8 text", name.display())))?;
    Ok(layers.argument("out", text)?)
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    // First of all: a warning before the time limit must not end this process.
    let signals = RunSignals::default();
    let interrupts = Interrupts::watch_run(&signals)?;
    let mut layers = settings::layers(matches)?;
    name_run(matches, &mut layers)?;
    name_resumed(&mut layers)?;
    let launched = LauncherFlags::of(matches).place(process_variable, &mut layers)?;
    if let (Some(out), None | Some(0)) =
        (&layers.config().train.out, launched.as_ref().map(|launched| launched.place.rank))
        && !out.exists()
    {
        signals.made(out);
    }
    let ended = match launched {
        Some(launched) => {
            launched.check_devices(&layers)?;
            let asked = layers.config().clone();
            signals.launched(launched.place.rank);
            let checks = !settings::is_decided(matches);
            let join = |rank: &Rank| signals.within(rank.group.clone(), || join_run(layers, rank, checks, &signals));
            ranks::as_rank(&launched, &asked, asked.train.out.as_deref(), join)
        }
        None => start_run(layers, interrupts, &signals),
    };
    ended.inspect_err(|_| signals.remove_unbegun())
}

/// The parts of a run, once they have been checked against each other.
struct Run {
    config: RunConfig,
    model: Model,
    data: TrainingData,
}

/// For a process without a launcher: decides the run's folder and its number of ranks, and runs them.
fn start_run(mut layers: LayeredConfig, interrupts: Interrupts, signals: &RunSignals) -> Result<(), Failure> {
    let attempt = attempt();
    let asked = layers.config();
    let located = match asked.train.resume.is_on() || attempt.is_repeated() {
        true => {
            let paths = locate(asked.train.out.as_deref(), &asked.train.model, asked.train.resume.is_on(), signals)?;
            check_resumes(&asked.train, &paths)?;
            if attempt.is_repeated() {
                // Slurm has restarted the job: the run goes on where its last start has left it.
                layers.argument("resume", "true")?;
            }
            Some(paths)
        }
        false => None,
    };
    if let Some(paths) = &located {
        lay_saved_run(&mut layers, paths)?;
    }
    let mut config = settings::finish(layers.clone(), Ranks::OfMachine)?;
    if config.program.transport == TransportKind::Mpi {
        return Err(not_of_mpi(Launcher::Nobody));
    }
    signals.requeue_on(config.program.requeue_signal);
    let world_size = config.program.rank_count(cores());
    // The effective configuration includes the machine's defaults.
    config.program.devices = config.program.devices.or_else(|| Some(Devices::new(settings::usual_kind(), world_size)));
    let resumed = located.as_ref().filter(|paths| paths.resumed_checkpoint(&config.train.resume).exists());
    let mut run = prepare(config, resumed, world_size, Copier::Alone)?;
    if let Some(paths) = resumed
        && is_finished(&run.config, paths, &Rank::alone(), run.data.test.is_some())?
    {
        return Ok(());
    }
    settings::tell_of_idle_devices(&layers);
    warn(&layers, &run, false, world_size);
    // The folder comes last: a run that is refused before leaves nothing behind.
    let paths = match located {
        Some(paths) => paths,
        None => locate(run.config.train.out.as_deref(), &run.config.train.model, false, signals)?,
    };
    run.config.train.out = Some(paths.root().to_owned());
    // Checks that the folder can be written, and is free; rank 0 opens it again.
    RunFolder::open(paths.clone(), run.config.train.resume.clone(), &attempt).map_err(Failure::error)?;
    let command = || command_line(&run.config);
    if signals.requests.asked() == Some(Stop::Requeue) {
        // Nothing is done yet, so there is nothing to save.
        return requeue(&Rank::alone()).and(Err(Failure::Stopped(Stop::Requeue)));
    }
    let body = |rank: &Rank| train(&run, rank, &signals.requests);
    ranks::host(world_size, &run.config, Some(paths.root()), command, Some(interrupts), body)
}

/// For a rank of a launched job: takes part in the run that rank 0 decides on.
/// `checks` if no process before has checked the flags, and copied the data.
fn join_run(mut layers: LayeredConfig, rank: &Rank, checks: bool, signals: &RunSignals) -> Result<(), Failure> {
    let warns = checks && rank.is_first();
    let attempt = attempt();
    let asked = layers.config().clone();
    // The job's launcher, or Slurm, has restarted it: the run resumes.
    let repeated = rank.attempt() > 0 || attempt.is_repeated();
    let out = match &asked.train.out {
        Some(out) => out.clone(),
        None => {
            let own = if rank.is_first() {
                let anybodys = asked.train.resume.is_on() || (repeated && attempt.job.is_empty());
                locate(None, &asked.train.model, anybodys, signals)?.root().display().to_string()
            } else {
                String::new()
            };
            PathBuf::from(rank.agree(own)?)
        }
    };
    if repeated {
        layers.argument("resume", "true")?;
    }
    let paths = RunPaths::new(&out);
    if warns {
        check_resumes(&asked.train, &paths)?;
    }
    if layers.config().train.resume.is_on() {
        lay_saved_run(&mut layers, &paths)?;
    }
    let ranks = Ranks::Launched { local_rank: rank.local_rank(), speaks: warns };
    let mut config = settings::finish(layers.clone(), ranks)?;
    settings::settle(&mut config, &layers, rank, warns)?;
    signals.requeue_on(config.program.requeue_signal);
    config.train.out = Some(out);
    // A rank of a job computes on one device; the run's record has the number of devices.
    let one = config.program.devices.unwrap_or_else(|| Devices::new(settings::usual_kind(), 1));
    config.program.devices = Some(one.of_run(rank.world_size()));
    let resumes = config.train.resume.is_on() && paths.resumed_checkpoint(&config.train.resume).exists();
    let resumed = Some(&paths).filter(|_| resumes);
    let copier = if checks { Copier::Rank(rank) } else { Copier::Others };
    let run = prepare(config, resumed, rank.world_size(), copier)?;
    if let Some(paths) = resumed
        && is_finished(&run.config, paths, rank, run.data.test.is_some())?
    {
        return Ok(());
    }
    if warns {
        settings::tell_of_idle_devices(&layers);
        warn(&layers, &run, true, rank.sharers());
    }
    train(&run, rank, &signals.requests)
}

/// Says where the run goes. A folder that is made here is removed if the run ends before it begins.
fn locate(out: Option<&Path>, model: &str, resume: bool, signals: &RunSignals) -> Result<RunPaths, Failure> {
    let paths = locate_run(out, model, resume, &attempt()).map_err(Failure::error)?;
    if out.is_none() {
        signals.made(paths.root());
    }
    Ok(paths)
}

/// Puts the configuration of the run to be resumed below all other settings, if there is one.
fn lay_saved_run(layers: &mut LayeredConfig, paths: &RunPaths) -> Result<(), Failure> {
    let Some(text) = paths.saved_config().map_err(Failure::error)? else { return Ok(()) };
    let laid = match paths.resumed_checkpoint(&layers.config().train.resume).exists() {
        true => layers.saved_run(&text, paths.root()),
        false => layers.begun_run(&text, paths.root()),
    };
    // The file is the run's, not what the user typed.
    laid.map_err(Failure::error)?;
    match (&layers.config().train.data, layers.source("data")) {
        (Some(data), Some(Source::Saved(run))) => check_data_of_run(data, run),
        _ => Ok(()),
    }
}

/// `--resume RUN` is `--resume` with RUN as the folder of the run, which must hold one.
fn name_resumed(layers: &mut LayeredConfig) -> Result<(), Failure> {
    let asked = layers.config();
    let Some(run) = asked.train.resume.run() else { return Ok(()) };
    let refuse = |why: String| Err(Failure::Usage(format!("--resume {why}")));
    if let Some(out) = asked.train.out.as_deref().filter(|out| *out != run) {
        let (run, out) = (run.display(), out.display());
        return refuse(format!("{run}: the run goes on in its own folder; leave out --out {out}"));
    }
    if let Err(error) = RunPaths::new(run).check_resume(&asked.train.resume) {
        return refuse(error.to_string());
    }
    let run = run.display().to_string();
    layers.argument("out", &run)?;
    Ok(layers.argument("resume", "true")?)
}

/// `--resume` without DATA where no run is, as after a mistyped `--out`, does not mean the embedded data set.
fn check_resumes(asked: &TrainConfig, paths: &RunPaths) -> Result<(), Failure> {
    if paths.holds_run() {
        return paths.check_resume(&asked.resume).map_err(|error| Failure::Usage(error.to_string()));
    }
    if !asked.resume.is_on() || (asked.data.is_some() && asked.resume != Resume::Best) {
        return Ok(());
    }
    let place = asked.out.as_deref().unwrap_or(Path::new(RUNS)).display();
    Err(Failure::Usage(format!("{place} holds no run to resume; check --out, or name the DATA to start a run")))
}

/// Opens the data, and makes all checks that need no running ranks.
fn prepare(
    mut config: RunConfig,
    resumed: Option<&RunPaths>,
    world_size: usize,
    copier: Copier,
) -> Result<Run, Failure> {
    let model = enmasse_models::find(&config.train.model).map_err(|error| Failure::Usage(error.to_string()))?;
    if let (Some(weights), None) = (&config.train.weights, resumed) {
        check_weights(weights)?;
    }
    if let Some(run) = config.train.data.as_deref().filter(|root| RunPaths::new(*root).is_resumable()) {
        let run = run.display();
        return Err(Failure::Usage(format!("{run} is a run, not data: to resume it, pass --resume {run}")));
    }
    let (root, own_size) = match &config.train.data {
        Some(root) => (root.clone(), None),
        None => (shapes()?, Some(SHAPES_SIZE)),
    };
    config.train.size = config.train.size.or(own_size);
    let (read_from, left_out) = stage(&config, &root, copier)?;
    let mut data = match resumed.filter(|paths| paths.split().exists()) {
        Some(paths) => {
            let split = paths.read_split().map_err(Failure::error)?;
            TrainingData::from_record(&read_from, split, &config.train.open_options())?
        }
        None => TrainingData::open(&read_from, &config.train.open_options())?,
    };
    data.left_out.append(left_out);
    // A resumed run keeps its split, so repeating the option is not a mistake.
    data.has_parts &= resumed.is_none();
    check_classes(&config.train, &root, &data.classes)?;
    config.train.size = Some(config.train.image_size(data.kind.native_size()));
    let preparation = Preparation::new(&config.train, data.kind);
    let shards = config.train.shard_count(world_size);
    ShardMap::new(shards, world_size).map_err(|error| Failure::Usage(format!("--shards {shards}: {error}")))?;
    let (samples, batch) = (data.train.len(), config.train.batch_per_shard(shards));
    let global_batch = batch.saturating_mul(shards);
    if config.train.drop_last && samples < global_batch {
        return Err(Failure::error(DataError::TooFewSamples { samples, global_batch, shards, batch }));
    }
    compile_plans(
        &config.train,
        &preparation,
        &|x, classes| model.forward(x, classes),
        &Objective::default(),
        data.classes.len(),
        shards,
        &Target::default(),
    )?;
    Ok(Run { config, model, data })
}

/// Warns of what is left out of the data, of options that have no effect, and of more computing threads than cores.
fn warn(layers: &LayeredConfig, run: &Run, is_launched: bool, local_ranks: usize) {
    let Run { config, data, .. } = run;
    let size = config.train.image_size(data.kind.native_size());
    let is_padded = matches!(data.kind.crop(size), Crop::Padded { .. });
    let surroundings = data.surroundings(is_padded, is_launched);
    warn_of_left_out(&data.left_out);
    warn_of_data(&data.warnings);
    if let Some(line) = unvalidated(&data.unvalidated_classes()) {
        say(format_args!("warning: {line}"));
    }
    for line in layers.without_effect(&surroundings, |_| true) {
        say(format_args!("warning: {line}"));
    }
    if let Some(line) = too_many_threads(&config.program, local_ranks, cores()) {
        say(format_args!("warning: {line}"));
    }
}

/// The warning of classes that no validation image has.
fn unvalidated(classes: &[&str]) -> Option<String> {
    const NAMED: usize = 5;
    let names = classes.iter().take(NAMED).map(|class| one_line(class)).collect::<Vec<_>>().join(", ");
    let more = match classes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {} more", grouped(more as u64)),
    };
    let (verb, them) = if classes.len() == 1 { ("has", "it") } else { ("have", "them") };
    let count = counted(classes.len(), "class");
    (!classes.is_empty())
        .then(|| format!("{count} {verb} no image for validation, so nothing evaluates {them}: {names}{more}"))
}

/// The warning if ranks that share some cores have more computing threads than these.
fn too_many_threads(config: &ProgramConfig, local_ranks: usize, cores: usize) -> Option<String> {
    let threads = (0..local_ranks).map(|rank| config.threads_of_rank(cores, rank, local_ranks));
    let threads = threads.fold(0, usize::saturating_add);
    (threads > cores).then(|| {
        let (ranks, threads) = (counted(local_ranks, "rank"), counted(threads, "computing thread"));
        format!("{ranks} with {threads} in all on {}: every step waits for the slowest", counted(cores, "core"))
    })
}

/// A mistyped path must not lead to training from random weights. This is checked before anything else is done.
fn check_weights(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(Failure::Error(format!("--weights {}: is not a file", path.display()))),
        Err(_) if path.to_str().is_some_and(is_published) => {
            let why =
                "enmasse comes without weights; give a file, such as the .pth file that torchvision downloads for it";
            Err(Failure::Usage(format!("--weights {}: {why}", path.display())))
        }
        Err(error) => Err(Failure::Error(format!("--weights {}: cannot be read: {error}", path.display()))),
    }
}

/// Whether a word names published weights, as in torchvision's `DEFAULT`, `IMAGENET1K_V2` and `ResNet50_Weights.DEFAULT`.
fn is_published(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    ["default", "true", "pretrained", "coco"].contains(&&*word)
        || word.starts_with("imagenet")
        || word.contains("_weights.")
}

/// The number of classes that the user expects must match the data.
fn check_classes(config: &TrainConfig, root: &Path, classes: &[String]) -> Result<(), Failure> {
    const SHOWN: usize = 10;
    match config.num_classes {
        Some(expected) if expected != classes.len() => {
            let more = if classes.len() > SHOWN { ", ..." } else { "" };
            Err(Failure::Usage(format!(
                "--num-classes {expected}: {} has {} ({}{more})",
                root.display(),
                counted(classes.len(), "class"),
                classes.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", "),
            )))
        }
        _ => Ok(()),
    }
}

/// One rank of the run.
fn train(run: &Run, rank: &Rank, requests: &StopRequests) -> Result<(), Failure> {
    let Run { config, model, data, .. } = run;
    let (device, loader_threads) = (rank.device(config)?, rank.loader_threads(&config.train));
    let fit = |trainer: Trainer| {
        let trainer = match &rank.group {
            Some(group) => trainer.group(group.clone()),
            None => trainer,
        };
        let trainer = trainer.loader_threads(loader_threads).program(config.program.clone()).attempt(attempt());
        let mut trainer = trainer.stop_on(requests.clone());
        let began = Instant::now();
        let done = trainer.fit(model.name(), &|x, classes| model.forward(x, classes), data)?;
        if data.test.is_none() {
            return Ok(done);
        }
        trainer.test(data)?;
        let run_bytes = RunPaths::new(&done.run).bytes();
        Ok(DoneRecord { seconds: began.elapsed().as_secs_f64(), run_bytes, ..done })
    };
    let number = rank.group.as_ref().map_or(0, Group::rank);
    let audience = match rank.is_first() {
        true => Audience::Everybody(Output::new(config.program.json)),
        false if config.program.log_ranks => Audience::Marked(number),
        false => Audience::Nobody,
    };
    let ranks = rank.introductions(device.as_ref())?;
    let mut reporter = Reporter::new(audience).introduce(ranks, config, cores() / rank.sharers());
    if let Some(run) = &config.train.out {
        reporter = reporter.log_to(RankLog::new(run, number));
        rank.group.iter().for_each(|group| keep_flight(group, run));
    }
    let warnings = DeviceWarnings::start(rank, device.as_ref())?;
    let _near = rank.near(device.as_ref());
    match fit(Trainer::new(config.train.clone(), device.as_ref()).callback(&mut reporter).callback(warnings)) {
        Ok(done) => reporter.done(&done),
        Err(TrainError::Stopped { stop, epoch, samples }) => {
            reporter.stopped(config.train.out.as_deref(), epoch, samples)?;
            match stop {
                Stop::Requeue => requeue(rank)?,
                Stop::Interrupt | Stop::End => {}
            }
            Err(Failure::Stopped(stop))
        }
        Err(error) => {
            let failure = Failure::from(error);
            reporter.failed(&failure);
            keep_failure(config.train.out.as_deref(), rank.group.as_ref(), &failure);
            Err(failure)
        }
    }
}

/// The arguments of a rank: every value as decided here, so that ranks cannot decide differently.
fn command_line(config: &RunConfig) -> Vec<OsString> {
    let mut arguments = vec!["train".into(), format!("--{DECIDED}").into()];
    arguments.extend(settings::rank_flags(config, SETTINGS.iter().filter(|setting| setting.name != "data")));
    if let Some(data) = &config.train.data {
        arguments.extend(["--".into(), data.into()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_without_a_validation_image_are_named() {
        let check = |classes: usize, expected: Option<&str>| {
            let names: Vec<String> = (0..classes).map(|class| format!("c{class}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(unvalidated(&names).as_deref(), expected);
        };
        check(0, None);
        check(1, Some("1 class has no image for validation, so nothing evaluates it: c0"));
        check(2, Some("2 classes have no image for validation, so nothing evaluates them: c0, c1"));
        let many =
            "1,005 classes have no image for validation, so nothing evaluates them: c0, c1, c2, c3, c4 and 1,000 more";
        check(1005, Some(many));
    }

    #[test]
    fn the_folder_of_a_run_may_be_named_in_two_parts() {
        let named = |line: &str| {
            let matches = command().try_get_matches_from(std::iter::once("train").chain(line.split(' '))).unwrap();
            let mut layers = LayeredConfig::new();
            for (name, value) in crate::command_line::arguments::given(&matches) {
                layers.argument(name, &value).unwrap();
            }
            let named = name_run(&matches, &mut layers);
            named.map(|()| layers.config().train.out.clone()).map_err(|failure| failure.message().to_owned())
        };
        let check =
            |line: &str, expected: Option<&str>| assert_eq!(named(line), Ok(expected.map(PathBuf::from)), "{line}");
        check("--epochs 1", None);
        check("--name a", Some("runs/a"));
        check("--project p/q --name a", Some("p/q/a"));
        check("--project p --name a --name b", Some("p/b"));
        let alone = "--project p: the run has no name there; give --name NAME too, or --out DIR alone";
        assert_eq!(named("--project p").unwrap_err(), alone);
        let both = "--name a: --out o names the run's folder; leave one of them out";
        assert_eq!(named("--out o --project p --name a").unwrap_err(), both);
    }

    #[test]
    fn words_for_published_weights_have_an_answer() {
        let check = |word: &str, expected: bool| assert_eq!(is_published(word), expected, "{word}");
        check("imagenet", true);
        check("DEFAULT", true);
        check("IMAGENET1K_V2", true);
        check("ResNet50_Weights.DEFAULT", true);
        check("resnet34.pth", false);
        check("", false);
        let failure = check_weights(Path::new("IMAGENET1K_V1")).unwrap_err();
        assert!(
            failure.message().starts_with("--weights IMAGENET1K_V1: enmasse comes without weights; "),
            "{failure:?}"
        );
    }

    #[test]
    fn more_threads_than_cores_are_a_warning() {
        let check = |threads: Option<usize>, ranks: usize, cores: usize, expected: Option<&str>| {
            let config = ProgramConfig { threads, ..ProgramConfig::default() };
            let expected = expected.map(|text| format!("{text}: every step waits for the slowest"));
            assert_eq!(too_many_threads(&config, ranks, cores), expected, "{threads:?} {ranks} {cores}");
        };
        check(None, 2, 2, None);
        check(None, 1, 8, None);
        check(None, 5, 2, Some("5 ranks with 5 computing threads in all on 2 cores"));
        check(Some(4), 1, 4, None);
        check(Some(5), 1, 4, Some("1 rank with 5 computing threads in all on 4 cores"));
        check(Some(2), 2, 3, Some("2 ranks with 4 computing threads in all on 3 cores"));
    }
}
