//! The log file of a rank, `RUN/logs/rank-R.log`: the rank's lines for people, whether or not they are shown.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_wording::{one_line, utc_time};

use crate::command_line::flag_names::with_flags;
use crate::output::warn;

/// The log of a rank. A run goes on without it, but reports that once.
pub struct RankLog {
    folder: PathBuf,
    name: String,
    /// `None` before the file is opened, and if it cannot be written.
    file: Option<File>,
}

impl RankLog {
    /// The log of a rank of `run`, whose folder is not touched yet.
    pub fn new(run: &Path, rank: usize) -> Self {
        RankLog { folder: run.join("logs"), name: format!("rank-{rank}.log"), file: None }
    }

    /// Opens the file, to append to the lines of an earlier part of the run.
    pub fn open(&mut self) {
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true);
        match create_dir_all(&self.folder).and_then(|()| options.open(self.folder.join(&self.name))) {
            Ok(file) => self.file = Some(file),
            Err(error) => self.lose(&error),
        }
    }

    /// Adds a line, with the time, to an open log.
    pub fn line(&mut self, text: &str) {
        let Some(file) = &mut self.file else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // In one piece, so that a killed rank leaves only whole lines.
        let line = format!("{} {}\n", utc_time(now.as_secs()), one_line(&with_flags(text)));
        if let Err(error) = file.write_all(line.as_bytes()) {
            self.lose(&error);
        }
    }

    fn lose(&mut self, error: &std::io::Error) {
        self.file = None;
        warn(format_args!("cannot write {}: {error}", self.folder.join(&self.name).display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_with_their_time() {
        let run = tempfile::tempdir().unwrap();
        for text in ["first", "second"] {
            let mut log = RankLog::new(run.path(), 3);
            log.line("before the run's folder is claimed");
            log.open();
            log.line(text);
        }
        let text = std::fs::read_to_string(run.path().join("logs/rank-3.log")).unwrap();
        let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert_eq!(lines.iter().map(|(_, text)| *text).collect::<Vec<_>>(), ["first", "second"]);
        assert!(lines.iter().all(|(time, _)| time.len() == "20260131-235959".len()), "{text}");
    }

    #[test]
    fn an_unwritable_log_is_not_a_failure() {
        let mut log = RankLog::new(Path::new("/proc/nowhere"), 0);
        log.open();
        log.line("unheard");
        assert!(log.file.is_none());
    }
}
