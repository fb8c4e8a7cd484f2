//! One thread looks at the files of all runs; clients wait for what it finds.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use enmasse_train::RunPaths;

use super::run::{Follower, Seen, held_locks};
use crate::failure::{Failure, failed};
use crate::web::lower_priority;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// The same beside training, whose processors the pages of many clients take for some milliseconds after each look that finds something.
const INTERVAL_BESIDE_TRAINING: Duration = Duration::from_secs(3);

/// Runs that are shown, at most.
const MAX_RUNS: usize = 500;

/// A run, and the look at which it changed last.
#[derive(Clone)]
struct Entry {
    seen: Arc<Seen>,
    changed: u64,
}

#[derive(Default)]
struct State {
    /// Counts the looks that found something.
    version: u64,
    runs: Vec<Entry>,
}

/// All runs as they are now. A run keeps its place, by which addresses name it.
#[derive(Default)]
pub struct Runs {
    state: Mutex<State>,
    changed: Condvar,
}

/// Where runs are found.
pub enum Source {
    /// These folders; they are this process's own if it trains.
    Folders { folders: Vec<PathBuf>, are_own: bool },
    /// The runs below a folder, also those that are begun later.
    Below(PathBuf),
}

impl Runs {
    /// Looks once, and then from time to time in the background for as long as the result is held.
    pub fn watch(source: Source) -> Result<Arc<Self>, Failure> {
        let runs = Arc::new(Runs::default());
        let is_training = matches!(source, Source::Folders { are_own: true, .. });
        let interval = if is_training { INTERVAL_BESIDE_TRAINING } else { INTERVAL };
        let mut watcher = Watcher { source, followers: Vec::new() };
        watcher.look(&runs);
        let held: Weak<Runs> = Arc::downgrade(&runs);
        let follow = move || {
            lower_priority();
            while let Some(runs) = held.upgrade() {
                watcher.look(&runs);
                drop(runs);
                std::thread::park_timeout(interval);
            }
        };
        let started = std::thread::Builder::new().name("watch".to_owned()).spawn(follow);
        started.map_err(|error| failed!("cannot start a thread: {error}"))?;
        Ok(runs)
    }

    pub fn all(&self) -> Vec<Arc<Seen>> {
        self.state().runs.iter().map(|entry| entry.seen.clone()).collect()
    }

    pub fn get(&self, place: usize) -> Option<Arc<Seen>> {
        self.state().runs.get(place).map(|entry| entry.seen.clone())
    }

    /// Waits until a run, or any of them, has changed after this look, and returns the look that found it. `None` after a while.
    pub fn wait(&self, place: Option<usize>, after: u64, most: Duration) -> Option<u64> {
        let latest = |state: &State| match place {
            Some(place) => state.runs.get(place).map_or(0, |entry| entry.changed),
            None => state.version,
        };
        let waited = self.changed.wait_timeout_while(self.state(), most, |state| latest(state) <= after);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(latest(&state)).filter(|latest| *latest > after)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watcher {
    source: Source,
    followers: Vec<Follower>,
}

impl Watcher {
    fn look(&mut self, runs: &Runs) {
        self.find();
        let held = held_locks();
        let found: Vec<_> = self.followers.iter_mut().map(|follower| follower.look(&held)).collect();
        if found.iter().all(Option::is_none) {
            return;
        }
        let mut state = runs.state();
        let version = state.version + 1;
        state.version = version;
        for (place, seen) in found.into_iter().enumerate() {
            let Some(seen) = seen else { continue };
            let entry = Entry { seen, changed: version };
            match state.runs.get_mut(place) {
                Some(own) => *own = entry,
                None => state.runs.push(entry),
            }
        }
        runs.changed.notify_all();
    }

    /// Adds runs that are new.
    fn find(&mut self) {
        let (folders, are_own) = match &self.source {
            Source::Folders { folders, .. } if self.followers.len() == folders.len() => return,
            Source::Folders { folders, are_own } => (folders.clone(), *are_own),
            Source::Below(folder) => (below(folder), false),
        };
        let known: HashSet<PathBuf> = self.followers.iter().map(|own| own.paths().root().to_owned()).collect();
        let room = MAX_RUNS.saturating_sub(self.followers.len());
        let added = folders.iter().filter(|folder| !known.contains(*folder)).take(room);
        self.followers.extend(added.map(|folder| {
            let is_shared = folders.iter().filter(|other| other.file_name() == folder.file_name()).count() > 1;
            Follower::new(name(folder, is_shared), RunPaths::new(folder), are_own)
        }));
    }
}

/// The runs in a folder, in the order of their names.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = entries.filter(|path| RunPaths::new(path).holds_run()).collect();
    runs.sort();
    runs
}

/// The name of a run: its folder's, or the path where others have the same name.
fn name(folder: &Path, is_shared: bool) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match whole.file_name() {
        Some(name) if !is_shared => name.display().to_string(),
        _ => folder.display().to_string(),
    }
}
