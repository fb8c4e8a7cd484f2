//! Where the output of each rank goes, and the folder of its logs, laid out as by torchrun:
//! `DIR/ID_random/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use enmasse_comm::Token;

use crate::error::LaunchError;

/// Some or all of the streams of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

impl Streams {
    /// Parses 0 for none, 1 for standard output, 2 for standard error, or 3 for both.
    fn parse(text: &str) -> Option<Self> {
        let bits = ["0", "1", "2", "3"].iter().position(|known| *known == text)?;
        Some(Streams { stdout: bits & 1 != 0, stderr: bits & 2 != 0 })
    }
}

/// The streams of every rank of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The same streams for all ranks.
    All(Streams),
    /// Streams of these local ranks; none of the others.
    Some(BTreeMap<usize, Streams>),
}

impl Default for Selection {
    fn default() -> Self {
        Selection::All(Streams::default())
    }
}

impl Selection {
    /// Parses torchrun's notation: a number from 0 to 3 for all ranks (0 none, 1 standard output, 2 standard error, 3
    /// both), or for some ranks, `0:3,1:2`.
    ///
    /// ```
    /// use enmasse_launch::Selection;
    /// let selection = Selection::parse("0:3,11:1").unwrap();
    /// assert!(selection.of(11).stdout && !selection.of(11).stderr && !selection.of(1).stdout);
    /// assert_eq!(Selection::parse("4"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(streams) = Streams::parse(text) {
            return Some(Selection::All(streams));
        }
        let pair = |pair: &str| {
            let (rank, streams) = pair.split_once(':')?;
            Some((rank.parse().ok()?, Streams::parse(streams)?))
        };
        text.split(',').map(pair).collect::<Option<_>>().map(Selection::Some)
    }

    /// The streams of one rank.
    pub fn of(&self, local_rank: usize) -> Streams {
        match self {
            Selection::All(streams) => *streams,
            Selection::Some(ranks) => ranks.get(&local_rank).copied().unwrap_or_default(),
        }
    }

    fn is_empty(&self) -> bool {
        let none = |streams: &Streams| *streams == Streams::default();
        match self {
            Selection::All(streams) => none(streams),
            Selection::Some(ranks) => ranks.values().all(none),
        }
    }
}

/// Which output of the ranks is kept, and which is shown.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// Streams that go to a file instead of the terminal.
    pub redirects: Selection,
    /// Streams that go to a file and also, with each line marked with its rank, to the terminal.
    pub tee: Selection,
    /// Local ranks whose output is shown. By default all.
    pub shown: Option<BTreeSet<usize>>,
    /// The prefix of a marked line, with `${role_name}`, `${rank}` and `${local_rank}`. By default `[ROLELOCAL_RANK]:`.
    pub prefix: Option<String>,
    /// Marked lines of standard output that contain one of these words also go to `filtered_stdout.log`.
    pub stdout_filters: Vec<String>,
    /// The same for standard error, `filtered_stderr.log`.
    pub stderr_filters: Vec<String>,
    root: Option<PathBuf>,
    temporary: Option<PathBuf>,
}

impl Logs {
    /// Creates the folder of this run, `BASE/ID_random`; without a base, in a new temporary folder. With the base
    /// `/dev/null` nothing is kept.
    ///
    /// # Errors
    /// A folder cannot be created, or the kernel gives no random numbers.
    pub fn create(base: Option<&Path>, run_id: &str) -> Result<Self, LaunchError> {
        let mut logs = Logs::default();
        if base == Some(Path::new("/dev/null")) {
            return Ok(logs);
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| LaunchError::Logs { path, source }
        };
        let random = random_name().map_err(LaunchError::kernel("draw random numbers"))?;
        let base = match base {
            Some(base) => {
                fs::create_dir_all(base).map_err(failed(base))?;
                // The ranks may have another working directory.
                std::path::absolute(base).map_err(failed(base))?
            }
            None => {
                let base = std::env::temp_dir().join(format!("enmasse_{random}"));
                // Other users may look into the folder for temporary files.
                DirBuilder::new().mode(0o700).create(&base).map_err(failed(&base))?;
                logs.temporary = Some(base.clone());
                base
            }
        };
        let root = base.join(format!("{}_{random}", run_id.replace(['/', '\0'], "_")));
        fs::create_dir(&root).map_err(failed(&root))?;
        logs.root = Some(root);
        Ok(logs)
    }

    /// The folder of this run.
    pub fn folder(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Whether any stream goes to a file.
    pub fn keeps_output(&self) -> bool {
        !(self.redirects.is_empty() && self.tee.is_empty())
    }

    /// Removes a temporary folder that holds only error files, which have been read.
    pub fn discard_unless_asked_for(&self) {
        if let Some(folder) = self.temporary.as_ref().filter(|_| !self.keeps_output()) {
            // If that fails, the files remain in the folder for temporary files.
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Creates the folders of an attempt afresh.
    pub(crate) fn begin_attempt(&self, attempt: usize, ranks: usize) -> Result<(), LaunchError> {
        let Some(folder) = self.attempt_folder(attempt) else { return Ok(()) };
        // There is no such folder, or it belongs to an earlier attempt of that number, which is over.
        let _ = fs::remove_dir_all(&folder);
        let make = |path: PathBuf| fs::create_dir_all(&path).map_err(|source| LaunchError::Logs { path, source });
        (0..ranks).try_for_each(|rank| make(folder.join(rank.to_string())))
    }

    pub(crate) fn attempt_folder(&self, attempt: usize) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join(format!("attempt_{attempt}")))
    }

    pub(crate) fn rank_folder(&self, attempt: usize, local_rank: usize) -> Option<PathBuf> {
        Some(self.attempt_folder(attempt)?.join(local_rank.to_string()))
    }

    pub(crate) fn is_shown(&self, local_rank: usize) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&local_rank))
    }

    /// The prefix of a rank's marked lines.
    pub(crate) fn mark(&self, role: &str, rank: usize, local_rank: usize) -> String {
        let Some(template) = &self.prefix else { return format!("[{role}{local_rank}]:") };
        let (rank, local_rank) = (rank.to_string(), local_rank.to_string());
        let names = [("role_name", role), ("local_rank", &local_rank), ("rank", &rank)];
        names.iter().fold(template.clone(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
        })
    }
}

/// Sixteen random hexadecimal digits.
pub(crate) fn random_name() -> io::Result<String> {
    random_number().map(|number| format!("{number:016x}"))
}

pub(crate) fn random_number() -> io::Result<u64> {
    let token = Token::generate()?;
    Ok(token.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections() {
        let check = |text: &str, expected: Option<&[(bool, bool)]>| {
            let streams = |selection: Selection| -> Vec<_> {
                (0..3).map(|rank| selection.of(rank)).map(|streams| (streams.stdout, streams.stderr)).collect()
            };
            assert_eq!(Selection::parse(text).map(streams).as_deref(), expected, "{text}");
        };
        check("0", Some(&[(false, false); 3]));
        check("1", Some(&[(true, false); 3]));
        check("2", Some(&[(false, true); 3]));
        check("3", Some(&[(true, true); 3]));
        check("0:1,2:2", Some(&[(true, false), (false, false), (false, true)]));
        check("10:3", Some(&[(false, false); 3]));
        for nonsense in ["", "4", "0:4", "0:", ":1", "0:1,", "x:1", "0;1"] {
            check(nonsense, None);
        }
    }

    #[test]
    fn marks() {
        let check = |prefix: Option<&str>, expected: &str| {
            let logs = Logs { prefix: prefix.map(str::to_owned), ..Logs::default() };
            assert_eq!(logs.mark("trainer", 5, 1), expected);
        };
        check(None, "[trainer1]:");
        check(Some("[${role_name} ${rank}/$local_rank] "), "[trainer 5/1] ");
        check(Some("$nothing "), "$nothing ");
    }
}
