//! What the files of a run say now. The file of epochs only grows, and is read from where the last look ended.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use enmasse_charts::EpochPoint;
use enmasse_doctor::FailureRecord;
use enmasse_system::files::{open_regular, read_regular};
use enmasse_train::{Best, CheckpointMeta, RunConfig, RunPaths, SettingOrigins};
use enmasse_wording::one_line;
use serde::Deserialize;
use serde_json::Value;

use super::series::Series;
use crate::commands::report::record::{Epoch, Test};

/// Longer lines are no records.
const MAX_LINE: usize = 1 << 20;

/// Larger files of settings and results are not read.
const MAX_FILE: u64 = 4 << 20;

/// Of the log.
const LOG_BYTES: u64 = 16 << 10;
const LOG_LINES: usize = 60;

/// Epochs by whose time the rest is estimated.
const RECENT: usize = 5;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Finished,
    Failed,
    /// It ended before its last epoch: as asked, or without a word.
    Stopped,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Finished => "finished",
            State::Failed => "failed",
            State::Stopped => "stopped",
        }
    }
}

/// A run at a moment.
#[derive(Clone, Debug)]
pub struct Seen {
    pub name: String,
    pub paths: RunPaths,
    pub state: State,
    pub config: Option<Arc<RunConfig>>,
    /// Where its settings come from, if the run kept it.
    pub origins: Option<SettingOrigins>,
    /// Epochs that have ended.
    pub epochs: u64,
    pub points: Vec<EpochPoint>,
    pub last: Option<Epoch>,
    /// Figures of the last epoch that not every run has.
    pub further: Vec<(String, f64)>,
    /// The rank that others waited for in it.
    pub straggler: Option<String>,
    /// Seconds until the last epoch ends.
    pub left: Option<f64>,
    pub best: Option<Best>,
    pub test: Option<Test>,
    pub failure: Option<String>,
    /// The end of the log of the first rank.
    pub log: String,
    /// Why a part is missing.
    pub problem: Option<String>,
    /// The curves as SVG, drawn once for all clients.
    pub curves: OnceLock<String>,
}

impl Seen {
    /// Epochs that were asked for.
    pub fn asked(&self) -> Option<u64> {
        self.config.as_ref().map(|config| config.train.epochs as u64)
    }
}

/// Whether a file has changed: its number, length and time.
type Stamp = Option<(u64, u64, SystemTime)>;

fn stamp(path: &Path) -> Stamp {
    let file = path.metadata().ok()?;
    Some((file.ino(), file.len(), file.modified().ok()?))
}

/// A run that is watched.
pub struct Follower {
    name: String,
    paths: RunPaths,
    /// Whether this process trains it.
    is_own: bool,
    stamps: Vec<Stamp>,
    epochs: Epochs,
    seen: Option<Arc<Seen>>,
}

impl Follower {
    pub fn new(name: String, paths: RunPaths, is_own: bool) -> Self {
        Follower { name, paths, is_own, stamps: Vec::new(), epochs: Epochs::default(), seen: None }
    }

    pub fn paths(&self) -> &RunPaths {
        &self.paths
    }

    /// Looks at the files, and returns what they say if it is something new. `held` are the locks of this machine.
    pub fn look(&mut self, held: &HashSet<u64>) -> Option<Arc<Seen>> {
        let paths = &self.paths;
        let lock = paths.root().join(".lock");
        let is_running = self.is_own || lock.metadata().is_ok_and(|file| held.contains(&file.ino()));
        let failure = FailureRecord::path(paths.root());
        let log = paths.root().join("logs/rank-0.log");
        let files = [&paths.config(), &paths.metrics(), &paths.test_record(), &paths.best_checkpoint(), &failure, &log];
        let stamps: Vec<Stamp> = files.into_iter().map(|path| stamp(path)).collect();
        let was_running = self.seen.as_ref().map(|seen| seen.state == State::Running);
        if self.stamps == stamps && was_running == Some(is_running) {
            return None;
        }
        // Taken before the files are read: what is written meanwhile is read next time.
        self.stamps = stamps;
        let read = self.epochs.read(&paths.metrics());
        let seen = Arc::new(self.seen(is_running, &failure, &log, read.err().map(|error| error.to_string())));
        self.seen = Some(seen.clone());
        Some(seen)
    }

    fn seen(&self, is_running: bool, failure: &Path, log: &Path, unread: Option<String>) -> Seen {
        let (paths, epochs) = (&self.paths, &self.epochs);
        let text =
            |path: &Path| read_regular(path, MAX_FILE).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let config = text(&paths.config()).map(|text| RunConfig::from_toml(&text));
        let (config, malformed) = match config {
            Some(Ok(config)) => (Some(Arc::new(config)), None),
            Some(Err(error)) => (None, Some(format!("config.toml: {error}"))),
            None => (None, None),
        };
        let asked = config.as_ref().map(|config| config.train.epochs as u64);
        let left = asked.zip(epochs.recent()).map(|(asked, each)| asked.saturating_sub(epochs.count) as f64 * each);
        let best = CheckpointMeta::load(&paths.best_checkpoint()).ok().map(|meta| meta.best);
        let test = text(&paths.test_record()).and_then(|text| serde_json::from_str(&text).ok());
        let time = |path: &Path| path.metadata().ok()?.modified().ok();
        // The record of an earlier attempt stays.
        let has_failed = time(failure).is_some_and(|failed| time(&paths.metrics()).is_none_or(|epoch| failed > epoch));
        let state = match () {
            () if is_running => State::Running,
            () if test.is_some() || asked.is_some_and(|asked| epochs.count >= asked) => State::Finished,
            () if has_failed => State::Failed,
            () => State::Stopped,
        };
        let failure =
            (state == State::Failed).then(|| text(failure).as_deref().and_then(FailureRecord::parse)).flatten();
        Seen {
            name: self.name.clone(),
            paths: paths.clone(),
            state,
            config,
            origins: paths.read_origins().ok().flatten(),
            epochs: epochs.count,
            points: epochs.series.points(),
            last: epochs.last.clone(),
            further: epochs.further.clone(),
            straggler: epochs.straggler.clone(),
            left: left.filter(|left| is_running && *left > 0.0),
            best,
            test,
            failure: failure.map(|record| record.message).filter(|message| !message.is_empty()),
            log: tail(log).unwrap_or_default(),
            problem: malformed.or(unread).or_else(|| epochs.problem.clone()).map(|problem| one_line(&problem)),
            curves: OnceLock::new(),
        }
    }
}

/// The epochs of `metrics.jsonl`, as far as it has been read.
#[derive(Default)]
struct Epochs {
    /// The number of the file: a run that goes on replaces it.
    file: u64,
    read: u64,
    /// The beginning of a line whose end has not been written.
    line: Vec<u8>,
    count: u64,
    series: Series,
    last: Option<Epoch>,
    further: Vec<(String, f64)>,
    straggler: Option<String>,
    seconds: VecDeque<f64>,
    problem: Option<String>,
}

impl Epochs {
    /// Reads what has been added.
    fn read(&mut self, path: &Path) -> io::Result<()> {
        let mut file = match open_regular(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let metadata = file.metadata()?;
        if metadata.ino() != self.file || metadata.len() < self.read {
            *self = Epochs { file: metadata.ino(), ..Epochs::default() };
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut piece = vec![0; 64 << 10];
        loop {
            let read = file.read(&mut piece)?;
            if read == 0 {
                return Ok(());
            }
            self.read += read as u64;
            let mut rest = &piece[..read];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                self.line.extend_from_slice(&rest[..end]);
                rest = &rest[end + 1..];
                let line = std::mem::take(&mut self.line);
                self.take(&line);
            }
            if self.line.len() + rest.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "metrics.jsonl: a line is too long"));
            }
            self.line.extend_from_slice(rest);
        }
    }

    fn take(&mut self, line: &[u8]) {
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => return self.refuse(&error),
        };
        match Epoch::deserialize(&value) {
            Ok(epoch) => {
                self.series.push(epoch.point());
                self.count = epoch.number();
                self.seconds.push_back(epoch.seconds);
                self.seconds.drain(..self.seconds.len().saturating_sub(RECENT));
                self.last = Some(epoch);
                self.further = further(&value);
                self.straggler = straggler(&value["straggler"]);
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn refuse(&mut self, error: &serde_json::Error) {
        self.problem = Some(format!("metrics.jsonl: a line after epoch {} is malformed: {error}", self.count));
    }

    /// Seconds of an epoch, of late.
    fn recent(&self) -> Option<f64> {
        let count = self.seconds.len();
        (count > 0).then(|| self.seconds.iter().sum::<f64>() / count as f64).filter(|mean| mean.is_finite())
    }
}

/// Numbers of an epoch that have no place of their own.
fn further(value: &Value) -> Vec<(String, f64)> {
    const PLACED: &str = "epoch train_loss val_loss train_accuracy val_accuracy learning_rate images_per_second data_wait \
        rank_wait seconds world_size ranks";
    let is_placed = |name: &str| PLACED.split_whitespace().any(|placed| placed == name);
    let own = value.as_object().into_iter().flatten().filter(|(name, _)| !is_placed(name));
    own.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
}

fn straggler(value: &Value) -> Option<String> {
    let rank = value["rank"].as_u64()?;
    let host = value["host"].as_str().unwrap_or_default();
    let times =
        value["times"].as_f64().map(|times| format!(", {times:.1} × as long as the others")).unwrap_or_default();
    Some(format!("rank {rank} on {host}{times}"))
}

/// The last lines of a file.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line of a piece has lost its beginning.
    let lines: Vec<&str> = text.lines().skip(usize::from(length > LOG_BYTES)).collect();
    Ok(lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"))
}

/// The numbers of the files that are locked on this machine. Nothing is locked to find out, which could refuse a run its own folder.
pub fn held_locks() -> HashSet<u64> {
    let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = |line: &str| {
        line.split_whitespace().find(|word| word.matches(':').count() == 2)?.rsplit(':').next()?.parse().ok()
    };
    text.lines().filter(|line| line.contains("FLOCK") && !line.contains("->")).filter_map(inode).collect()
}
