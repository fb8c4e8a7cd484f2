//! Runs that train on this machine: a run locks its folder, and the kernel lists who holds which lock.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use enmasse_train::RunPaths;

use crate::commands::view::run::Follower;

/// A run that trains now.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// Its folder.
    pub run: PathBuf,
    /// The process of its first rank.
    pub pid: u32,
    pub model: Option<String>,
    /// Epochs that have ended.
    pub epochs: u64,
    pub epochs_asked: Option<u64>,
    /// Of the last epoch that has ended.
    pub images_per_second: Option<f64>,
    /// Its ranks on all machines.
    pub ranks: Option<usize>,
    pub seconds_left: Option<f64>,
}

/// The runs whose processes this user may look at, by their folders.
pub fn running() -> Vec<Running> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut runs: Vec<Running> = holders(&locks).into_iter().flat_map(of_process).collect();
    runs.sort_by(|one, other| one.run.cmp(&other.run));
    runs.dedup_by(|one, other| one.run == other.run);
    runs
}

/// The processes that hold locks of files, from the kernel's list.
fn holders(locks: &str) -> HashSet<u32> {
    let pid = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "FLOCK")?;
        // The kind and the mode come before the process; one that waits has an arrow before FLOCK.
        words.nth(2)?.parse().ok()
    };
    locks.lines().filter(|line| !line.contains("->")).filter_map(pid).collect()
}

/// The runs whose locks a process holds open.
fn of_process(pid: u32) -> Vec<Running> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let opened = files.filter_map(|file| fs::read_link(file.path()).ok());
    let folders = opened.filter(|path| path.file_name().is_some_and(|name| name == ".lock"));
    folders.filter_map(|lock| of_folder(lock.parent()?.to_owned(), pid)).collect()
}

fn of_folder(run: PathBuf, pid: u32) -> Option<Running> {
    let paths = RunPaths::new(&run);
    let seen = Follower::new(String::new(), paths, true).look(&HashSet::new())?;
    // Other programs have files of this name.
    let config = seen.config.as_ref()?;
    let logs = || {
        let names = fs::read_dir(run.join("logs")).into_iter().flatten().flatten().map(|file| file.file_name());
        names
            .filter(|name| name.to_str().is_some_and(|name| name.starts_with("rank-") && name.ends_with(".log")))
            .count()
    };
    let ranks = seen.last.as_ref().map_or_else(logs, |last| last.world_size);
    Some(Running {
        pid,
        model: Some(config.train.model.clone()),
        epochs: seen.epochs,
        epochs_asked: seen.asked(),
        images_per_second: seen.last.as_ref().and_then(|last| last.images_per_second),
        ranks: Some(ranks).filter(|ranks| *ranks > 0),
        seconds_left: seen.left,
        run,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_hold_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 12 08:01:131 0 EOF\n2: POSIX  ADVISORY  WRITE 13 08:01:132 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 14 08:01:131 0 EOF\n3: FLOCK  ADVISORY  READ 15 00:2a:7 0 EOF\nbroken\n\
                     4: FLOCK\n";
        assert_eq!(holders(locks), HashSet::from([12, 15]));
        assert_eq!(holders(""), HashSet::new());
    }
}
