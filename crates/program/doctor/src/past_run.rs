//! Examines a run folder: how the run ended according to its files, and whether it can resume.

use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use enmasse_train::RunPaths;
use rustix::fs::{major, minor};
use serde_json::Value;

use crate::failure_record::FailureRecord;
use crate::flight_record;
use crate::lists::entries;
use crate::log_folder;
use crate::rank_end::{RankEnd, read_log};
use crate::report::{Finding, Section};
use crate::story::Evidence;
use crate::tail::tail;

/// The part of a log that is read, from its end: the latest attempt is there.
const LOG_TAIL: u64 = 1 << 20;
/// A failure record has a few KiB, a flight record some hundred bytes for each of 512 operations.
const RECORD: u64 = 1 << 20;
/// Logs of further ranks are left out.
const MAX_LOGS: usize = 4096;

pub fn section(run: &Path) -> Section {
    let is_run = RunPaths::new(run).holds_run();
    if let Some(section) = Some(run).filter(|_| !is_run).and_then(log_folder::section) {
        return section;
    }
    let findings = match run.is_dir() {
        true => look(run),
        false => {
            let why = if run.exists() { "is not a folder" } else { "no such folder" };
            vec![Finding::problem("run", format!("{:?}: {why}", run.display().to_string()), "name the folder of a run")]
        }
    };
    Section { title: "run", findings }
}

fn look(run: &Path) -> Vec<Finding> {
    let paths = RunPaths::new(run);
    let mut findings = evidence(run).findings();
    if findings.len() == 1 && !paths.holds_run() {
        let text = format!("{}: holds no run", run.display());
        return vec![Finding::problem(
            "run",
            text,
            "name the folder of a run, such as one in runs/, or of a launcher's logs",
        )];
    }
    let metrics = tail(&paths.metrics(), LOG_TAIL).unwrap_or_default();
    findings.push(progress(&metrics, paths.is_resumable()));
    findings.extend(straggler(&metrics));
    findings
}

fn evidence(run: &Path) -> Evidence {
    let record = tail(&FailureRecord::path(run), RECORD).and_then(|text| FailureRecord::parse(&text));
    let resumable = RunPaths::new(run).is_resumable();
    let ends = ends(&run.join("logs"));
    let read = |rank: usize| Some((rank, flight_record::parse(&tail(&flight_record::path(run, rank), RECORD)?)?));
    let flights = ends.iter().filter_map(|end| read(end.rank)).collect();
    Evidence { record, ends, flights, writer: writer(&run.join(".lock")), resumable }
}

fn ends(logs: &Path) -> Vec<RankEnd> {
    let rank = |name: &str| name.strip_prefix("rank-")?.strip_suffix(".log")?.parse::<usize>().ok();
    let mut ranks: Vec<usize> = entries(logs).filter_map(|name| rank(&name)).collect();
    ranks.sort_unstable();
    ranks.truncate(MAX_LOGS);
    let read = |rank: usize| read_log(rank, &tail(&logs.join(format!("rank-{rank}.log")), LOG_TAIL)?);
    ranks.into_iter().filter_map(read).collect()
}

/// The process on this machine that holds the lock of a run folder. The lock itself is not taken, since a run that
/// starts at this moment would take it for another run's.
fn writer(lock: &Path) -> Option<u32> {
    let file = lock.metadata().ok()?;
    holder(&read_to_string("/proc/locks").ok()?, major(file.dev()), minor(file.dev()), file.ino())
}

/// Parses `1: FLOCK  ADVISORY  WRITE 5249 fe:00:10322940 0 EOF`: process, device and file of the lock's holder, not of
/// those that wait for it.
fn holder(locks: &str, major: u32, minor: u32, file: u64) -> Option<u32> {
    let held = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, "WRITE", process, place, ..] = fields.as_slice() else { return None };
        let mut place = place.split(':');
        let mut device = || u32::from_str_radix(place.next()?, 16).ok();
        let is_it = device()? == major && device()? == minor && place.next()?.parse::<u64>().ok()? == file;
        process.parse().ok().filter(|_| is_it)
    };
    locks.lines().find_map(held)
}

/// The last epoch of `metrics.jsonl`, and whether there is a checkpoint to resume from.
fn progress(metrics: &str, resumable: bool) -> Finding {
    let mut epochs = metrics.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = epochs.find(|epoch| epoch["epoch"].is_u64());
    let done = match &last {
        Some(epoch) => {
            let number =
                |name: &str| epoch[name].as_f64().map_or("not finite".to_owned(), |number| format!("{number:.4}"));
            let epochs = epoch["epoch"].as_u64().unwrap_or(0).saturating_add(1);
            let loss = number("train_loss");
            // A run that predicts no classes has none.
            let accuracy = epoch.get("val_accuracy").map(|_| format!(", val accuracy {}", number("val_accuracy")));
            let accuracy = accuracy.unwrap_or_default();
            let plural = if epochs == 1 { "" } else { "s" };
            format!("{epochs} complete epoch{plural}, train loss {loss}{accuracy}")
        }
        None => "no complete epoch".to_owned(),
    };
    let finding = match resumable {
        true => Finding::ok("progress", format!("{done}; there is a checkpoint to continue from with --resume")),
        false => Finding::ok("progress", format!("{done}; there is no checkpoint, so a new attempt starts again")),
    };
    finding.fact("epoch", last.map(|epoch| epoch["epoch"].clone())).fact("resumable", resumable)
}

/// The rank that the others waited for in the last epoch of `metrics.jsonl`, if there was one.
fn straggler(metrics: &str) -> Option<Finding> {
    let last = metrics.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
    let straggler = last.get("straggler")?;
    let (rank, host) = (straggler["rank"].as_u64()?, straggler["host"].as_str()?);
    let times = straggler["times"].as_f64()?;
    let waited = straggler["waited"].as_f64()?;
    let work = match straggler["work"].as_str()? {
        "data" => "waiting for images",
        "compute" => "computing",
        _ => "with checkpoints or callbacks",
    };
    let text = format!(
        "in the last epoch rank {rank} on {host} took {times:.1} times as long as the others, {work}; they waited \
         {:.0} % of the time for it",
        100.0 * waited
    );
    let remedy = format!("look at what else runs on {host}, and at its disk and clock rates");
    Some(Finding::note("straggler", text, remedy).fact("straggler", straggler.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use std::fs::File;

    #[test]
    fn holders() {
        let locks = "\
1: FLOCK  ADVISORY  WRITE 5249 fe:00:10322940 0 EOF
1: -> FLOCK  ADVISORY  WRITE 77 fe:00:10322999 0 EOF
2: FLOCK  ADVISORY  READ 5250 fe:00:10322941 0 EOF
3: POSIX  ADVISORY  WRITE x fe:01
";
        let check = |minor, file, expected| assert_eq!(holder(locks, 0xfe, minor, file), expected);
        check(0, 10_322_940, Some(5249));
        check(1, 10_322_940, None);
        check(0, 10_322_941, None);
        check(0, 10_322_999, None);
    }

    #[test]
    fn a_lock_that_is_held_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        assert_eq!(writer(&path), None);
        let file = File::create(&path).unwrap();
        assert_eq!(writer(&path), None);
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        // Some file systems (overlay) report another device in the table of locks; then the holder cannot be found.
        assert!([None, Some(std::process::id())].contains(&writer(&path)));
    }

    #[test]
    fn progresses() {
        let check = |metrics: &str, resumable, expected: &str| assert_eq!(progress(metrics, resumable).text, expected);
        let none = "there is no checkpoint, so a new attempt starts again";
        check("", false, &format!("no complete epoch; {none}"));
        check("torn\n{\"epo", false, &format!("no complete epoch; {none}"));
        let line = |epoch: u64| format!("{{\"epoch\":{epoch},\"train_loss\":0.5,\"val_accuracy\":null}}\n");
        let waits = "there is a checkpoint to continue from with --resume";
        check(&line(0), true, &format!("1 complete epoch, train loss 0.5000, val accuracy not finite; {waits}"));
        let text = format!("11 complete epochs, train loss 0.5000, val accuracy not finite; {waits}");
        check(&(line(9) + &line(10)), true, &text);
        let values = "{\"epoch\":0,\"train_loss\":0.5,\"val_loss\":0.25}\n";
        check(values, true, &format!("1 complete epoch, train loss 0.5000; {waits}"));
    }

    #[test]
    fn stragglers() {
        let check = |metrics: &str, expected: Option<&str>| {
            assert_eq!(straggler(metrics).map(|finding| finding.text).as_deref(), expected);
        };
        let slow = |work: &str| {
            format!(r#"{{"epoch":1,"straggler":{{"rank":3,"host":"b","work":"{work}","times":1.84,"waited":0.4}}}}"#)
        };
        check("", None);
        check("{\"epoch\":1}\n", None);
        check(&slow("compute").replace("1.84", "null"), None);
        let line = "in the last epoch rank 3 on b took 1.8 times as long as the others, computing; they waited 40 % of the time for it";
        check(&slow("compute"), Some(line));
        check(&slow("data"), Some(&line.replace("computing", "waiting for images")));
        check(&(slow("data") + "\n{\"epoch\":2}\n"), None);
    }

    #[test]
    fn only_the_end_of_a_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(tail(&path, 4).as_deref(), Some("6789"));
        assert_eq!(tail(&path, 40).as_deref(), Some("0123456789"));
        assert_eq!(tail(&folder.path().join("b"), 4), None);
    }
}
