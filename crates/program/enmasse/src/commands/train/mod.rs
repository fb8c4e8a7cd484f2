//! `enmasse train`, in two stages: what was typed becomes a [`RunSpec`], and the run is what that says.

mod finished;
mod prepare;
mod rank;
mod search;
mod spec;
mod typed;

use clap::{ArgMatches, Command};
use enmasse_train::{RunFolder, SETTINGS, Stop};

use crate::command_line::arguments::{data, decided, file, flag, origins};
use crate::command_line::launcher_flags;
use crate::commands::view;
use crate::data::staging::Copier;
use crate::failure::{Failure, usage};
use crate::ranks::attempt::attempt;
use crate::ranks::interrupt::{Interrupts, RunSignals};
use crate::ranks::requeue::requeue;
use crate::ranks::{self, Rank};
use finished::is_finished;
use prepare::Run;
use spec::RunSpec;
use typed::Typed;

const EXAMPLES: &str = "\
Examples:
  enmasse train photos --model resnet34 --epochs 30 --out runs/a
  enmasse train --resume runs/a
  enmasse train cifar-10-batches-py --batch 128 --lr 0.1 --devices cpu:4
  enmasse train photos --pretrained --model resnet34 --freeze-layers
  enmasse train photos --config settings.toml --lr 0.05";

/// The command line of `enmasse train`.
pub fn command() -> Command {
    let flags = SETTINGS.iter().filter(|setting| setting.name != "data").map(flag);
    Command::new("train")
        .about("Train a model on images: a folder of class folders, CIFAR, MNIST")
        .after_help(EXAMPLES)
        .after_long_help(format!(
            "Every setting is also a key of --config FILE and a variable ENMASSE_NAME. The flags --config, --data-path, \
             --dashboard and those known from PyTorch's scripts are no settings. Later ones win: defaults, the recipe, the saved run, --config, the environment, \
             the command line.\n\n{EXAMPLES}"
        ))
        .args(data())
        .args(flags)
        .args(launcher_flags::arguments())
        .args(typed::run_names())
        .arg(decided())
        .arg(origins())
        .arg(file("config", "Read settings from this TOML file"))
        .arg(view::dashboard_flag())
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    // First of all: a warning before the time limit must not end this process.
    let signals = RunSignals::default();
    let interrupts = Interrupts::watch_run(&signals)?;
    let typed = Typed::read(matches)?;
    if matches.contains_id(view::DASHBOARD) && typed.layers.config().train.keeps_nothing() {
        return Err(usage!("--dashboard: a search keeps no run to show; leave it out"));
    }
    let is_first = typed.launched.as_ref().is_none_or(|launched| launched.place.rank == 0);
    if let Some(out) = typed.layers.config().train.out.as_deref().filter(|out| is_first && !out.exists()) {
        signals.made(out);
    }
    let ended = match typed.launched.clone() {
        Some(launched) => {
            launched.check_devices(&typed.layers)?;
            let joining = spec::joining(&typed.layers);
            let folder = typed.layers.config().train.out.clone();
            signals.launched(launched.place.rank);
            let join = |rank: &Rank| signals.within(rank.group.clone(), || join_run(typed, rank, &signals, matches));
            ranks::as_rank(&launched, &joining, folder.as_deref(), join)
        }
        None => start_run(typed, interrupts, &signals, matches),
    };
    ended.inspect_err(|_| signals.remove_unbegun())
}

/// Runs all ranks, in a process without a launcher.
fn start_run(typed: Typed, interrupts: Interrupts, signals: &RunSignals, matches: &ArgMatches) -> Result<(), Failure> {
    let spec = RunSpec::of_machine(typed, signals)?;
    signals.requeue_on(spec.config.program.requeue_signal);
    let mut run = Run::open(&spec, Copier::Alone)?;
    if let Some(paths) = spec.resumed()
        && is_finished(&run.config, paths, &Rank::alone(), run.data.test.is_some())?
    {
        return Ok(());
    }
    run.warn(&spec);
    if run.config.train.keeps_nothing() {
        let body = |rank: &Rank| rank::train(&run, rank, &signals.requests);
        return ranks::host(spec.world_size, &run.config, None, || rank::command_line(&run), Some(interrupts), body);
    }
    let paths = match spec.folder {
        Some(paths) => paths,
        None => spec::locate(&run.config.train, false, signals)?,
    };
    run.config.train.out = Some(paths.root().to_owned());
    // Checks that the folder can be written, and is free; rank 0 opens it again.
    RunFolder::open(paths.clone(), run.config.train.resume.clone(), &attempt()).map_err(Failure::error)?;
    if signals.requests.asked() == Some(Stop::Requeue) {
        // Nothing is done yet, so there is nothing to save.
        return requeue(&Rank::alone()).and(Err(Failure::Stopped(Stop::Requeue)));
    }
    let _dashboard = view::dashboard(matches, paths.root())?;
    let command = || rank::command_line(&run);
    let body = |rank: &Rank| rank::train(&run, rank, &signals.requests);
    ranks::host(spec.world_size, &run.config, Some(paths.root()), command, Some(interrupts), body)
}

/// Takes part in a launched job's run, as one of its ranks.
fn join_run(typed: Typed, rank: &Rank, signals: &RunSignals, matches: &ArgMatches) -> Result<(), Failure> {
    let copier = if typed.is_decided { Copier::Others } else { Copier::Rank(rank) };
    let spec = RunSpec::of_rank(typed, rank, signals)?;
    signals.requeue_on(spec.config.program.requeue_signal);
    let run = Run::open(&spec, copier)?;
    if let Some(paths) = spec.resumed()
        && is_finished(&run.config, paths, rank, run.data.test.is_some())?
    {
        return Ok(());
    }
    if spec.speaks {
        run.warn(&spec);
    }
    let shown = run.config.train.out.as_deref().filter(|_| rank.is_first());
    let _dashboard = shown.map(|folder| view::dashboard(matches, folder)).transpose()?;
    rank::train(&run, rank, &signals.requests)
}
