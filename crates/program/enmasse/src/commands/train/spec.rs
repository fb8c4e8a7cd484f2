//! What is decided of a run before its data are opened: the settings with their devices, the ranks, the folder.

use std::path::{Path, PathBuf};

use enmasse_launch::Launcher;
use enmasse_train::{
    Devices, LayeredConfig, RUNS, Resume, RunConfig, RunPaths, SettingOrigins, SettingSource, TrainConfig,
    TransportKind, locate_run, newest_run,
};

use super::typed::Typed;
use crate::command_line::settings::{self, Ranks, cores};
use crate::data::of_run::check_data_of_run;
use crate::failure::{Failure, usage};
use crate::pretrained::{Settings, resolve};
use crate::ranks::Rank;
use crate::ranks::attempt::attempt;
use crate::ranks::interrupt::RunSignals;
use crate::ranks::launched::not_of_mpi;

/// A run as it was decided. Nothing changes it any more.
pub struct RunSpec {
    /// Every setting, with the devices of the run.
    pub config: RunConfig,
    /// The same as they were given, each with its source.
    pub layers: LayeredConfig,
    /// Where they come from, through all starts of the run.
    pub origins: SettingOrigins,
    /// The run's folder. A new one without a name is made last, so that a run that is refused leaves nothing behind.
    pub folder: Option<RunPaths>,
    pub world_size: usize,
    /// The ranks that share this machine's cores.
    pub local_ranks: usize,
    pub is_launched: bool,
    /// Whether this process tells the user of the run for all ranks.
    pub speaks: bool,
}

impl RunSpec {
    /// For a process without a launcher: decides the number of ranks, and whether a run goes on.
    pub fn of_machine(typed: Typed, signals: &RunSignals) -> Result<Self, Failure> {
        let mut layers = typed.layers;
        let attempt = attempt();
        let asked = &layers.config().train;
        check_newest(asked)?;
        let goes_on = asked.resume.is_on() || attempt.is_repeated();
        let folder = match goes_on && !asked.keeps_nothing() {
            true => Some(locate(asked, asked.resume.is_on(), signals)?),
            false => None,
        };
        if let Some(folder) = &folder {
            check_resumes(&layers.config().train, folder)?;
            if attempt.is_repeated() {
                // Slurm has restarted the job: the run goes on where its last start has left it.
                layers.argument("resume", "true")?;
            }
            lay_saved_run(&mut layers, folder)?;
        }
        if begins(&layers, folder.as_ref())
            && let Some(weights) = resolve(&layers)?
        {
            weights.lay(&mut layers)?;
        }
        let mut config = settings::finish(layers.clone(), Ranks::OfMachine)?;
        if config.program.transport == TransportKind::Mpi {
            return Err(not_of_mpi(Launcher::Nobody));
        }
        let world_size = config.program.rank_count(cores());
        // The effective configuration includes the machine's defaults.
        config.program.devices.get_or_insert_with(|| Devices::new(settings::default_kind(), world_size));
        let (local_ranks, is_launched, speaks) = (world_size, false, true);
        let origins = origins(&layers, folder.as_ref())?;
        Ok(RunSpec { config, layers, origins, folder, world_size, local_ranks, is_launched, speaks })
    }

    /// For a rank of a launched job: takes part in what rank 0 decides.
    pub fn of_rank(typed: Typed, rank: &Rank, signals: &RunSignals) -> Result<Self, Failure> {
        let Typed { mut layers, is_decided, origins: decided, .. } = typed;
        let speaks = !is_decided && rank.is_first();
        let attempt = attempt();
        let asked = layers.config().train.clone();
        // The job's launcher, or Slurm, has restarted it: the run resumes.
        let is_repeated = (rank.attempt > 0 || attempt.is_repeated()) && !asked.keeps_nothing();
        let out = match &asked.out {
            _ if asked.keeps_nothing() => PathBuf::new(),
            Some(out) => out.clone(),
            None => {
                let own = if rank.is_first() {
                    let anybodys = asked.resume.is_on() || (is_repeated && attempt.job.is_empty());
                    check_newest(&asked)?;
                    locate(&asked, anybodys, signals)?.root().display().to_string()
                } else {
                    String::new()
                };
                PathBuf::from(rank.agree(own)?)
            }
        };
        if is_repeated {
            layers.argument("resume", "true")?;
        }
        let folder = RunPaths::new(&out);
        if speaks && !asked.keeps_nothing() {
            check_resumes(&asked, &folder)?;
        }
        if layers.config().train.resume.is_on() && !asked.keeps_nothing() {
            lay_saved_run(&mut layers, &folder)?;
        }
        if !is_decided && begins(&layers, Some(&folder)) && layers.config().train.begins_with_weights() {
            // Rank 0 finds them for all.
            let asking = layers.clone();
            let config = layers.config().train.clone();
            let own = rank.at_once(&config, "weights", move || if speaks { resolve(&asking) } else { Ok(None) })?;
            let agreed = rank.agree(own.map_or(String::new(), |weights| weights.to_text()))?;
            Settings::read(&agreed).lay(&mut layers)?;
        }
        let ranks = Ranks::Launched { local_rank: rank.share.local_rank, speaks };
        let mut config = settings::finish(layers.clone(), ranks)?;
        rank.settle(&mut config, &layers, speaks)?;
        config.train.out = (!asked.keeps_nothing()).then_some(out);
        // A rank of a job computes on one device; the run's record has the number of devices.
        let one = config.program.devices.unwrap_or_else(settings::default_device);
        config.program.devices = Some(one.of_run(rank.world_size()));
        let origins = match decided {
            Some(decided) => decided,
            None => origins(&layers, Some(&folder))?,
        };
        Ok(RunSpec {
            config,
            layers,
            origins,
            folder: (!asked.keeps_nothing()).then_some(folder),
            world_size: rank.world_size(),
            local_ranks: rank.share.sharers,
            is_launched: true,
            speaks,
        })
    }

    /// The folder of the run that goes on.
    pub fn resumed(&self) -> Option<&RunPaths> {
        let resume = &self.config.train.resume;
        self.folder.as_ref().filter(|paths| resume.is_on() && paths.resumed_checkpoint(resume).exists())
    }
}

/// What a launched rank joins its group with: of the run that goes on it has the settings of training, if the command line names that
/// run, since ranks meet for the sums of one algorithm.
pub fn joining(layers: &LayeredConfig) -> RunConfig {
    let mut config = layers.config().clone();
    let folder = config.train.out.as_ref().filter(|_| config.train.resume.is_on());
    if let Some(folder) = folder.map(RunPaths::new) {
        let mut laid = layers.clone();
        // What is wrong with it, all ranks tell as one once they have met.
        if lay_saved_run(&mut laid, &folder).is_ok() {
            config.train = laid.config().train.clone();
        }
    }
    config
}

/// Where the settings come from. What the run in `folder` has of earlier starts keeps its origin.
fn origins(layers: &LayeredConfig, folder: Option<&RunPaths>) -> Result<SettingOrigins, Failure> {
    let earlier = folder.map_or(Ok(None), RunPaths::read_origins).map_err(Failure::error)?;
    Ok(SettingOrigins::of(layers, earlier.as_ref()))
}

/// Whether the run begins with its first weights, and not with a checkpoint.
fn begins(layers: &LayeredConfig, folder: Option<&RunPaths>) -> bool {
    let resume = &layers.config().train.resume;
    !(resume.is_on() && folder.is_some_and(|paths| paths.resumed_checkpoint(resume).exists()))
}

/// Says where the run goes. A folder that is made here is removed if the run ends before it begins.
pub fn locate(asked: &TrainConfig, resume: bool, signals: &RunSignals) -> Result<RunPaths, Failure> {
    let TrainConfig { out, model, data, .. } = asked;
    let paths = locate_run(out.as_deref(), model, resume, data.as_deref(), &attempt()).map_err(Failure::error)?;
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
        (Some(data), Some(SettingSource::Saved(run))) => check_data_of_run(data, run),
        _ => Ok(()),
    }
}

/// `--resume DATA` goes on with a run of these data. A folder that was meant as a run, and is none, must not lead to another run.
fn check_newest(asked: &TrainConfig) -> Result<(), Failure> {
    // A job that starts again finds its own run.
    if asked.out.is_some() || !asked.resume.is_on() || attempt().is_repeated() {
        return Ok(());
    }
    let newest = newest_run(None).map_err(Failure::error)?;
    match (&asked.data, newest) {
        (None, None) => check_resumes(asked, &RunPaths::new(RUNS)),
        (Some(data), Some(newest)) if newest_run(Some(data)).map_err(Failure::error)?.is_none() => {
            let data = data.display();
            let run = newest.root().display();
            let own = newest.saved_data().map_or(String::new(), |own| format!(", whose data are {}", own.display()));
            Err(usage!(
                "--resume {data}: it is no run, and {RUNS} has none of these data; to go on with {run}{own}, pass --resume {run}; \
                 to start a run, leave --resume out"
            ))
        }
        _ => Ok(()),
    }
}

/// `--resume` without DATA where no run is, as after a mistyped `--out`, does not mean the embedded data set.
fn check_resumes(asked: &TrainConfig, paths: &RunPaths) -> Result<(), Failure> {
    if paths.holds_run() {
        return paths.check_resume(&asked.resume).map_err(Failure::usage);
    }
    if !asked.resume.is_on() || (asked.data.is_some() && asked.resume != Resume::Best) {
        return Ok(());
    }
    let place = asked.out.as_deref().unwrap_or(Path::new(RUNS)).display();
    Err(usage!("{place} holds no run to resume; check --out, or name the DATA to start a run"))
}
