//! The run folder: its contents, the right to write to it, and the name of a default one.
//!
//! | Path | Contents |
//! |---|---|
//! | `config.toml` | the effective configuration |
//! | `origins.json` | where the settings come from that have not their defaults |
//! | `metrics.jsonl` | one line per epoch |
//! | `metrics.csv` | the same as a table |
//! | `mlflow_id.txt` | with `--mlflow`: the run's name in that store |
//! | `events.out.tfevents.*` | the same for TensorBoard, with the settings, the augmented images and, if wanted, histograms |
//! | `steps/events.out.tfevents.*` | values of single steps for TensorBoard, if a callback logs any |
//! | `class_indices.json` | class names by label, as the tutorials write them |
//! | `algorithms.txt` | the algorithms that a tuned run uses, which `--resume` reuses |
//! | `split.json` | the files of each part |
//! | `test.json` | the evaluation of the test part at the end, if the data have one |
//! | `calibration.json` | the temperature for the probabilities of `predict`, after `eval` on the validation part |
//! | `thresholds.json` | of a run of labels: from which probability on each is predicted, if `eval` has found them on the validation part |
//! | `charts/class_distribution.svg`, `charts/augmented.svg` | charts of the training data |
//! | `charts/training_curves.svg` | loss, accuracy and learning rate of all epochs |
//! | `charts/confusion_matrix.svg` | true and predicted classes in the validation of the best epoch |
//! | `weights/model-{epoch}.pth`, `.json` | weights for PyTorch, and how images are prepared for them, with `--export-every` |
//! | `checkpoints/last.safetensors` | where `--resume` continues |
//! | `checkpoints/previous.safetensors` | the one before it, until a step after the last one has a finite loss |
//! | `checkpoints/best.safetensors` | the weights for eval and predict |
//! | `checkpoints/epoch-{epoch}.safetensors` | checkpoints of single epochs, with `--keep` |
//! | `logs/rank-R.log` | the messages of each rank, written by the rank itself |
//! | `logs/trace.json` | with `--trace-steps`: a timeline of some steps on all ranks |
//! | `logs/unreadable.txt` | the images that the run skipped because they cannot be read: a path, a tab and the reason per line |
//! | `logs/failure.json` | why the latest failed attempt ended, for `doctor` |
//! | `.lock` | empty; locked by the process that writes |
//! | `.attempt-JOB-…` | where the writer writes files before renaming them; without it the writer cannot write |

mod calibration;
mod checkpoint_lock;
mod claim;
mod epochs;
mod origins;
mod thresholds;
mod trace;
mod unbegun;
mod unreadable;

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_graph::Choices;
use enmasse_system::files::{FileError, Staging, remove_temporaries};
use enmasse_wording::utc_time;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{PrettyFormatter, Serializer};
use thiserror::Error;

use crate::{Attempt, CheckpointMeta, Resume, RunConfig};
pub use calibration::CalibrationRecord;
pub(crate) use checkpoint_lock::SharedFolder;
use claim::Claim;
pub use thresholds::ThresholdsRecord;
pub use unbegun::remove_unbegun;

/// The folder in which runs are created without `--out`.
pub const RUNS: &str = "runs";

/// Why a run folder could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is a file where the folder should be.
    #[error("{}: is a file; a run needs a folder, so choose another `out`", .0.display())]
    IsFile(PathBuf),
    /// The folder holds a run, and `--resume` was not given.
    #[error("{}: already holds a run; continue it with `resume`, or choose another `out`", .0.display())]
    HoldsRun(PathBuf),
    /// The folder holds a run that has nothing to continue, and `--resume` was not given.
    #[error(
        "{}: holds a run that ended before its first checkpoint; start it again with `resume`, or choose another `out`",
        .0.display()
    )]
    HoldsNoCheckpoint(PathBuf),
    /// `--resume` was given, and epochs were saved, but the checkpoint is gone.
    #[error(
        "{}: checkpoints/last.safetensors is gone, though {epochs} epochs are recorded; go on with `resume = best`, copy another \
         checkpoint of the run there and resume, or choose another `out`",
        path.display()
    )]
    LostCheckpoint {
        /// The folder.
        path: PathBuf,
        /// Lines of its `metrics.jsonl`.
        epochs: usize,
    },
    /// The run to be resumed is not there.
    #[error("{}: {}", .0.display(), no_run(.0))]
    NoRun(PathBuf),
    /// The run to be resumed has no checkpoint of a best epoch.
    #[error("{}: has no checkpoints/best.safetensors: no epoch of the run has ended; use `resume`", .0.display())]
    NoBest(PathBuf),
    /// Another process writes to the folder.
    #[error("{}: another process is training there; wait until it ends, or choose another `out`", .0.display())]
    Busy(PathBuf),
    /// A later start of the same job writes to the folder.
    #[error("{}: {by} has taken over the run, so {own} may no longer write to it", path.display())]
    Superseded {
        /// The folder.
        path: PathBuf,
        /// This process's start.
        own: Attempt,
        /// The start that writes there.
        by: Attempt,
    },
    /// The folder lacks something that was requested, or a file in it is malformed.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn no_run(path: &Path) -> &'static str {
    match path.exists() {
        true => "holds no run to resume; name the folder of a run",
        false => "there is no such folder to resume; name the folder of a run",
    }
}

/// Defines the paths in a run folder.
macro_rules! paths {
    ($($(#[$doc:meta])* $visibility:vis $name:ident = $path:literal;)+) => {
        impl RunPaths {
            $($(#[$doc])* $visibility fn $name(&self) -> PathBuf {
                self.root.join($path)
            })+
        }
    };
}

paths! {
    /// The effective configuration.
    pub config = "config.toml";
    /// One line per epoch.
    pub metrics = "metrics.jsonl";
    /// The same as a table.
    pub(crate) metrics_table = "metrics.csv";
    /// Which run of MLflow's it is.
    pub(crate) mlflow_id = "mlflow_id.txt";
    /// The evaluation of the test part at the end of the run.
    pub test_record = "test.json";
    /// The temperature for probabilities.
    pub calibration = "calibration.json";
    /// The probabilities from which labels are predicted.
    pub thresholds = "thresholds.json";
    /// Class names by label.
    pub class_indices = "class_indices.json";
    /// The files of each part.
    pub split = "split.json";
    /// The algorithms that a tuned run uses.
    pub algorithms = "algorithms.txt";
    /// The number of samples of each class, as a chart.
    pub class_distribution = "charts/class_distribution.svg";
    /// Some images as the model sees them in training.
    pub augmented = "charts/augmented.svg";
    /// Loss, accuracy and learning rate of all epochs, as an image.
    pub training_curves = "charts/training_curves.svg";
    /// The validation of the best epoch by true and predicted classes, as an image.
    pub confusion_matrix = "charts/confusion_matrix.svg";
    /// Where the settings come from.
    pub origins = "origins.json";
    /// The checkpoint to resume from.
    pub last_checkpoint = "checkpoints/last.safetensors";
    /// The checkpoint before the last one, until a step after that has a finite loss.
    pub previous_checkpoint = "checkpoints/previous.safetensors";
    /// The checkpoint of the best epoch.
    pub best_checkpoint = "checkpoints/best.safetensors";
    /// The timeline of some steps on all ranks.
    pub trace = "logs/trace.json";
    /// The images that the run skipped: a path, a tab and the reason per line.
    pub unreadable = "logs/unreadable.txt";
    charts = "charts";
    weights = "weights";
    checkpoints = "checkpoints";
}

/// The paths in a run folder, and the files that can be read there without owning it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPaths {
    root: PathBuf,
}

impl RunPaths {
    /// The paths below `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        RunPaths { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether a run was begun here.
    pub fn holds_run(&self) -> bool {
        [self.config(), self.metrics(), self.last_checkpoint()].iter().any(|path| path.exists())
    }

    /// Whether `--resume` finds a checkpoint here. Without one it starts fresh.
    pub fn is_resumable(&self) -> bool {
        self.last_checkpoint().exists()
    }

    /// The checkpoint from which a run here goes on, whether or not it exists.
    pub fn resumed_checkpoint(&self, resume: &Resume) -> PathBuf {
        match resume {
            Resume::Best => self.best_checkpoint(),
            Resume::No | Resume::Last | Resume::Run(_) => self.last_checkpoint(),
        }
    }

    /// Checks that what `resume` asks for is here.
    ///
    /// # Errors
    /// It asks for what is not here: a run that is named, or the checkpoint of a best epoch.
    pub fn check_resume(&self, resume: &Resume) -> Result<(), RunError> {
        match resume {
            Resume::Run(_) if !self.holds_run() => Err(RunError::NoRun(self.root.clone())),
            Resume::Best if !self.best_checkpoint().exists() => Err(RunError::NoBest(self.root.clone())),
            Resume::No | Resume::Last | Resume::Best | Resume::Run(_) => Ok(()),
        }
    }

    /// An error where the last checkpoint must have existed: the record of an epoch precedes the first checkpoint at most
    /// once. A fresh start would overwrite everything that the run still has.
    fn check_not_lost(&self) -> Result<(), RunError> {
        if self.is_resumable() || !self.metrics().exists() {
            return Ok(());
        }
        let epochs = read(&self.metrics())?.matches('\n').count();
        if epochs > 1 { Err(RunError::LostCheckpoint { path: self.root.clone(), epochs }) } else { Ok(()) }
    }

    /// Whether the run that was begun here has left nothing to go on from, nor any other result.
    fn is_barren(&self) -> Result<bool, RunError> {
        let has_files = |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        let has_records = self.metrics().exists() && !read(&self.metrics())?.is_empty();
        Ok(!has_records && !has_files(&self.checkpoints()) && !has_files(&self.weights()))
    }

    /// The configuration of the run that was begun here, as TOML; `None` if there is no run. A run that ended before its first
    /// checkpoint starts fresh, with the same settings.
    ///
    /// # Errors
    /// The file is gone or cannot be read.
    pub fn saved_config(&self) -> Result<Option<String>, RunError> {
        let is_begun = self.is_resumable() || self.config().exists();
        if is_begun { Ok(Some(read(&self.config())?)) } else { Ok(None) }
    }

    /// The data of the run that was begun here, as they were named, which is a part of their identity.
    pub fn saved_data(&self) -> Option<PathBuf> {
        RunConfig::from_toml(&self.saved_config().ok()??).ok()?.train.data
    }

    /// Reads the file of [`RunFolder::write_split`].
    ///
    /// # Errors
    /// The file is not there, cannot be read, or is malformed.
    pub fn read_split<T: DeserializeOwned>(&self) -> Result<T, RunError> {
        read_json(&self.split())
    }

    /// Reads the file of [`RunFolder::write_algorithms`]; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn read_algorithms(&self) -> Result<Option<Choices>, RunError> {
        let path = self.algorithms();
        if !path.exists() {
            return Ok(None);
        }
        let choices = read(&path)?.parse();
        choices.map(Some).map_err(|error| RunError::Content { path, reason: format!("is malformed: {error}") })
    }

    /// The checkpoint whose weights a run is used with: the best one, or the last one if no whole epoch has ended yet.
    ///
    /// # Errors
    /// The folder has no checkpoint, or the best one, which it had, is gone.
    pub fn require_weights(&self) -> Result<PathBuf, RunError> {
        let (best, last) = (self.best_checkpoint(), self.last_checkpoint());
        // A damaged file is an error when it is read.
        let had_best = || CheckpointMeta::load(&last).is_ok_and(|meta| meta.best.value.is_some());
        if !best.exists() && had_best() {
            let reason = format!("is gone; name {} to use the last weights of the run instead", last.display());
            return Err(RunError::Content { path: best, reason });
        }
        let found = [best, last].into_iter().find(|path| path.exists());
        let reason = match self.holds_run() {
            true => "is a run without a checkpoint: it ended before the first one",
            false => "is not a run folder: it has no checkpoints/best.safetensors",
        };
        found.ok_or_else(|| RunError::Content { path: self.root.clone(), reason: reason.to_owned() })
    }
}

/// Chooses the folder of a run, before any process owns it. It is `out` if given. Otherwise it is the newest run in
/// `runs/` that can be resumed and was left by an earlier start of the same job, or with `resume` by any job, of these `data` if
/// they are given. Otherwise it is a new folder `runs/<UTC time>-<model>`, which is created at once so that two runs never choose
/// the same.
///
/// # Errors
/// `runs/` cannot be read, or a folder in it cannot be created.
pub fn locate_run(
    out: Option<&Path>,
    model: &str,
    resume: bool,
    data: Option<&Path>,
    attempt: &Attempt,
) -> Result<RunPaths, RunError> {
    match out {
        Some(out) => Ok(RunPaths::new(out)),
        None => locate_below(Path::new(RUNS), model, resume, data, attempt, SystemTime::now()),
    }
}

/// The newest run in `runs/` that can be resumed, of these data if they are given.
///
/// # Errors
/// `runs/` cannot be read.
pub fn newest_run(data: Option<&Path>) -> Result<Option<RunPaths>, RunError> {
    newest_resumable(Path::new(RUNS), None, data)
}

fn locate_below(
    runs: &Path,
    model: &str,
    resume: bool,
    data: Option<&Path>,
    attempt: &Attempt,
    now: SystemTime,
) -> Result<RunPaths, RunError> {
    if attempt.is_repeated()
        && !attempt.job.is_empty()
        && let Some(own) = newest_resumable(runs, Some(&attempt.job), None)?
    {
        return Ok(own);
    }
    if resume && let Some(newest) = newest_resumable(runs, None, data)? {
        return Ok(newest);
    }
    std::fs::create_dir_all(runs).map_err(FileError::of("create", runs))?;
    // A model may be named by a path; the folder's name must not be a path.
    let model = model.replace('/', "-");
    let time = utc_time(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    for attempt in 1.. {
        let suffix = if attempt == 1 { String::new() } else { format!("-{attempt}") };
        let path = runs.join(format!("{time}-{model}{suffix}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(RunPaths::new(path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(FileError::of("create", &path)(error).into()),
        }
    }
    Err(RunError::Busy(runs.to_owned()))
}

/// The run that can be resumed and was saved last, of any job or of one, and of any data or of these. Names do not tell: `--out` makes any.
fn newest_resumable(runs: &Path, job: Option<&str>, data: Option<&Path>) -> Result<Option<RunPaths>, RunError> {
    let saved_at = |run: &RunPaths| run.last_checkpoint().metadata().and_then(|file| file.modified()).ok();
    let resumable = claim::entries(runs)?.into_iter().map(RunPaths::new).filter_map(|run| Some((saved_at(&run)?, run)));
    let mut resumable: Vec<_> = resumable.collect();
    resumable.sort_by(|(a_time, a), (b_time, b)| (b_time, &b.root).cmp(&(a_time, &a.root)));
    for (_, run) in resumable {
        if job.map_or(Ok(true), |job| claim::is_of_job(&run.root, job))?
            && data.is_none_or(|data| run.saved_data().as_deref() == Some(data))
        {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// A run folder that only this process writes to. The right ends with the value, with the end of the process in any
/// form, or when a later start of the same job takes over the run.
#[derive(Debug)]
pub struct RunFolder {
    paths: RunPaths,
    claim: Claim,
}

impl RunFolder {
    /// Creates the folder if it does not exist, claims it, and removes incomplete files that a killed writer left.
    ///
    /// # Errors
    /// The folder holds a run with any result, and is not resumed; what is to be resumed is not there; or another
    /// process writes to it that is not an earlier start of this job. Or it cannot be created or written to.
    pub fn open(paths: RunPaths, resume: impl Into<Resume>, attempt: &Attempt) -> Result<Self, RunError> {
        let (root, resume) = (paths.root(), resume.into());
        paths.check_resume(&resume)?;
        if root.exists() && !root.is_dir() {
            return Err(RunError::IsFile(root.to_owned()));
        }
        std::fs::create_dir_all(root).map_err(FileError::of("create", root))?;
        let attempt = &claim::as_named(attempt);
        let lock = Claim::lock(root, attempt)?;
        // Checked under the lock, so that a run that began a moment ago counts.
        if paths.holds_run() && !resume.is_on() && !paths.is_barren()? {
            let error = if paths.is_resumable() { RunError::HoldsRun } else { RunError::HoldsNoCheckpoint };
            return Err(error(root.to_owned()));
        }
        if resume != Resume::Best {
            paths.check_not_lost()?;
        }
        let claim = Claim::take(root, attempt, lock)?;
        let folders = [root.to_owned(), paths.checkpoints(), paths.charts(), paths.weights()];
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            remove_temporaries(folder)?;
        }
        Ok(RunFolder { paths, claim })
    }

    /// Removes incomplete files that killed ranks of an earlier attempt left among the logs. Call it before ranks of this one write
    /// there.
    pub(crate) fn clear_logs(&self) -> Result<(), RunError> {
        let logs = self.paths.root().join("logs");
        if logs.is_dir() {
            remove_temporaries(&logs)?;
        }
        Ok(())
    }

    /// The paths in the folder.
    pub fn paths(&self) -> &RunPaths {
        &self.paths
    }

    /// Where files of the run are written before they are renamed.
    pub(crate) fn staging(&self) -> &Staging {
        &self.claim.staging
    }

    /// Removes what another run would not replace of one that left no checkpoint.
    pub(crate) fn clear(&self) -> Result<(), RunError> {
        let paths = [self.paths.split(), self.paths.algorithms(), self.paths.unreadable()];
        paths.iter().try_for_each(|path| self.remove(path))
    }

    /// The name of this writer's claim, by which others know that they see the same folder.
    pub(crate) fn claim(&self) -> &OsStr {
        self.claim.staging.folder().file_name().unwrap_or_default()
    }

    /// Writes the effective configuration.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_config(&self, config: &RunConfig) -> Result<(), RunError> {
        // Callbacks draw there.
        create_folder_of(&self.paths.class_distribution())?;
        self.write(&self.paths.config(), config.to_toml().as_bytes())
    }

    /// Writes the class names by label, in the tutorials' format: `{"0": "daisy", …}`, indented by four.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_class_indices(&self, classes: &[String]) -> Result<(), RunError> {
        let by_label: serde_json::Map<_, _> =
            classes.iter().enumerate().map(|(label, class)| (label.to_string(), class.as_str().into())).collect();
        self.write_json(&self.paths.class_indices(), &by_label)
    }

    /// Writes the lists of files of each part.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_split(&self, split: &impl Serialize) -> Result<(), RunError> {
        self.write_json(&self.paths.split(), split)
    }

    /// Writes the evaluation of the test part: the line of its event.
    pub(crate) fn write_test(&self, line: &str) -> Result<(), RunError> {
        self.write(&self.paths.test_record(), format!("{line}\n").as_bytes())
    }

    /// Removes the evaluation of the test part, the temperature and the thresholds: training goes on, so other weights may become the best.
    pub(crate) fn remove_evaluations(&self) -> Result<(), RunError> {
        // A later start of the job may have written them.
        self.staging().check(self.paths.root())?;
        self.remove(&self.paths.calibration())?;
        self.remove(&self.paths.thresholds())?;
        self.remove(&self.paths.test_record())
    }

    /// Writes the algorithms that a tuned run uses.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_algorithms(&self, choices: &Choices) -> Result<(), RunError> {
        self.write(&self.paths.algorithms(), choices.to_string().as_bytes())
    }

    /// Writes the chart of classes, as SVG.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_class_distribution(&self, svg: &str) -> Result<(), RunError> {
        self.write(&self.paths.class_distribution(), svg.as_bytes())
    }

    /// Puts the checkpoint at `from` in the place of the one at `to`, and keeps both.
    pub(crate) fn copy_checkpoint(&self, from: &Path, to: &Path) -> Result<(), RunError> {
        Ok(self.staging().write_link(from, to)?)
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), RunError> {
        // A later start of the job keeps what it likes.
        self.staging().check(path)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::of("remove", path)(error).into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn write_json(&self, path: &Path, value: &impl Serialize) -> Result<(), RunError> {
        let mut json = Vec::new();
        value.serialize(&mut Serializer::with_formatter(&mut json, PrettyFormatter::with_indent(b"    "))).map_err(
            |error| RunError::Content { path: path.to_owned(), reason: format!("cannot be written as JSON: {error}") },
        )?;
        json.push(b'\n');
        self.write(path, &json)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), RunError> {
        create_folder_of(path)?;
        Ok(self.staging().write_whole(path, |file| file.write_all(bytes))?)
    }
}

/// Folders appear with their first files, so that a run that never began leaves none.
pub(crate) fn create_folder_of(path: &Path) -> Result<(), RunError> {
    let folder = path.parent().unwrap_or(path);
    Ok(std::fs::create_dir_all(folder).map_err(FileError::of("create", folder))?)
}

fn read(path: &Path) -> Result<String, RunError> {
    Ok(enmasse_system::files::read_text(path).map_err(FileError::of("read", path))?)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RunError> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| RunError::Content { path: path.to_owned(), reason: format!("is malformed: {error}") })
}

#[cfg(test)]
mod tests;
