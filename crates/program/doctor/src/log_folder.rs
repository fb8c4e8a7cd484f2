//! A folder of logs in the layout of torchrun and `enmasse launch --log-dir`, of any program:
//! `DIR/JOB/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}`.

use std::fs::{Metadata, read_dir};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use enmasse_launch::python_exception;
use serde_json::Value;

use crate::report::{Finding, Section};
use crate::tail::tail;
use enmasse_wording::{counted, one_line};

/// Size limit of an error file, which holds a traceback or the like.
const MAX: u64 = 1 << 20;
/// Lines shown of the failed rank's standard error.
const LINES: usize = 10;
/// Depth of the attempts below the given folder.
const DEPTH: usize = 2;

/// The findings about the latest attempt in `folder`; `None` if it holds no such logs.
pub fn section(folder: &Path) -> Option<Section> {
    let mut attempts = Vec::new();
    collect(folder, DEPTH, &mut attempts);
    // The last attempt of the newest job.
    let latest = attempts.into_iter().max_by_key(|(path, number)| (modified(path.parent()), *number))?.0;
    let mut ranks: Vec<RankFiles> = folders(&latest).filter_map(|path| RankFiles::read(&path)).collect();
    ranks.sort_by_key(|files| files.rank);
    Some(Section { title: "run", findings: findings(&latest, &ranks) })
}

/// Collects the folders of attempts, with their numbers.
fn collect(folder: &Path, depth: usize, attempts: &mut Vec<(PathBuf, u64)>) {
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("attempt_")?.parse().ok();
    if let Some(number) = number(folder) {
        attempts.push((folder.to_owned(), number));
    } else if depth > 0 || folders(folder).any(|below| number(&below).is_some()) {
        folders(folder).for_each(|below| collect(&below, depth.saturating_sub(1), attempts));
    }
}

fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    // Links are skipped: they might lead upwards.
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

fn modified(path: Option<&Path>) -> Option<SystemTime> {
    path?.metadata().as_ref().map(Metadata::modified).ok()?.ok()
}

/// The files of a rank.
#[derive(Clone, Debug, PartialEq)]
struct RankFiles {
    /// Its number on its machine.
    rank: usize,
    /// When it wrote its error file, and the error.
    error: Option<(SystemTime, String)>,
    /// The last lines of its standard error.
    stderr: Vec<String>,
}

impl RankFiles {
    fn read(folder: &Path) -> Option<Self> {
        let rank = folder.file_name()?.to_str()?.parse().ok()?;
        let file = folder.join("error.json");
        let error = || Some((modified(Some(&file))?, message(&tail(&file, MAX)?)?));
        let text = tail(&folder.join("stderr.log"), MAX).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let stderr = lines[lines.len().saturating_sub(LINES)..].iter().map(|line| one_line(line)).collect();
        Some(RankFiles { rank, error: error(), stderr })
    }
}

/// The first line of an error file's message, in either of its two forms.
fn message(text: &str) -> Option<String> {
    let record: Value = serde_json::from_str(text).ok()?;
    let message = record.get("message")?;
    let text = message.as_str().or_else(|| message.get("message")?.as_str())?;
    Some(one_line(text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()))
}

/// The earliest error, the last lines of its rank, and the errors of other ranks.
fn findings(attempt: &Path, ranks: &[RankFiles]) -> Vec<Finding> {
    let count = counted(ranks.len(), "rank");
    let errors = || ranks.iter().filter_map(|files| Some((files, files.error.as_ref()?)));
    let Some((first, (_, why))) = errors().min_by_key(|(_, (time, _))| *time) else {
        let text = format!("{}: none of {count} wrote an error file", attempt.display());
        let remedy = "see the launcher's last lines; PyTorch's @record makes a Python program write error files";
        let said = |files: &RankFiles| {
            let last = || files.stderr.last().map(String::as_str);
            Some((files.rank, python_exception(&files.stderr).or_else(last)?.to_owned()))
        };
        let said = ranks.iter().filter_map(said);
        let said = said.map(|(rank, line)| Finding::note("last line", format!("local rank {rank}: {line}"), ""));
        return std::iter::once(Finding::note("state", text, remedy)).chain(said.take(LINES)).collect();
    };
    let text = format!("local rank {} failed first, of {count}: {why}", first.rank);
    let mut found = vec![Finding::problem("root cause", text, format!("its whole output is in {}", attempt.display()))];
    found[0].facts.insert("local_rank".to_owned(), first.rank.into());
    if !first.stderr.is_empty() {
        found.push(Finding::note("last lines", first.stderr.join(" | "), ""));
    }
    let others = errors().filter(|(files, _)| files.rank != first.rank);
    let others = others.map(|(files, (_, why))| Finding::note("said", format!("local rank {}: {why}", files.rank), ""));
    found.extend(others.take(LINES));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;
    use std::fs::{File, create_dir_all, write};
    use std::time::Duration;

    #[test]
    fn messages() {
        let check = |text: &str, expected: Option<&str>| assert_eq!(message(text).as_deref(), expected, "{text}");
        check(
            r#"{"message": {"message": "ValueError: no\nmore", "extraInfo": {"timestamp": "17"}}}"#,
            Some("ValueError: no"),
        );
        check(r#"{"message": "plain"}"#, Some("plain"));
        check(r#"{"message": 5}"#, None);
        check("[1", None);
    }

    /// An attempt's folder, with (local rank, seconds of its error, standard error).
    fn attempt(folder: &Path, ranks: &[(usize, Option<u64>, &str)]) {
        for (rank, error, stderr) in ranks {
            let folder = folder.join(rank.to_string());
            create_dir_all(&folder).unwrap();
            write(folder.join("stderr.log"), stderr).unwrap();
            if let Some(seconds) = error {
                let path = folder.join("error.json");
                write(&path, format!("{{\"message\":{{\"message\":\"error of {rank}\"}}}}")).unwrap();
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds);
                File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            }
        }
    }

    #[test]
    fn the_first_error_of_the_last_attempt() {
        let root = tempfile::tempdir().unwrap();
        assert!(section(root.path()).is_none() && section(Path::new("/nowhere")).is_none());
        let job = root.path().join("job_a1");
        attempt(&job.join("attempt_0"), &[(0, Some(5), "long ago\n")]);
        attempt(&job.join("attempt_10"), &[(0, Some(30), ""), (1, Some(20), "a\n\nb\n"), (2, None, "c\n")]);
        attempt(&job.join("attempt_9"), &[(0, Some(5), "before\n")]);
        for named in [root.path(), &job, &job.join("attempt_10")] {
            let findings = section(named).unwrap().findings;
            let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
            assert_eq!(
                texts,
                ["local rank 1 failed first, of 3 ranks: error of 1", "a | b", "local rank 0: error of 0"]
            );
            assert_eq!(findings[0].status, Status::Problem);
        }
    }

    #[test]
    fn without_error_files_the_last_lines_are_shown() {
        let root = tempfile::tempdir().unwrap();
        let traceback = "Traceback (most recent call last):\n  File \"a.py\", line 1\nValueError: no\nand more\n";
        attempt(&root.path().join("attempt_0"), &[(0, None, ""), (1, None, traceback), (2, None, "a\nlast\n")]);
        let findings = section(root.path()).unwrap().findings;
        assert_eq!(findings[0].status, Status::Note);
        assert_eq!(findings[1].text, "local rank 1: ValueError: no");
        assert_eq!(findings[2].text, "local rank 2: last");
    }
}
