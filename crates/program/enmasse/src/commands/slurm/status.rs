//! `enmasse slurm status`: the state of jobs in Slurm, and the progress of their runs. Needs no accounting.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use enmasse_slurm::{JobId, SlurmJob, job_ids, jobs, run_folder};
use enmasse_system::files::open_regular;
use enmasse_train::{RunConfig, RunPaths};
use enmasse_wording::{counted, one_line};
use serde_json::{Value, json};

use super::tools::slurm;
use crate::failure::{Failure, failed, usage};
use crate::output::Output;
use crate::report::percent;

/// Bytes read from the end of a run's log to find its last line.
const TAIL: u64 = 64 << 10;

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let asked: Vec<&String> = matches.get_many("job").into_iter().flatten().collect();
    let mut found = Vec::new();
    match asked.is_empty() {
        true => {
            let queue = slurm("squeue", &["--me", "--noheader", "--format=%F"], "")?;
            if !queue.success {
                return Err(failed!("squeue: {}", queue.problem));
            }
            for id in job_ids(&queue.stdout) {
                // It may have ended in the meantime, and be forgotten.
                found.extend(known(id)?.unwrap_or_default());
            }
        }
        false => {
            for name in asked {
                found.extend(named(name)?);
            }
        }
    }
    let mut output = Output::new(matches.get_flag("json"));
    let mut scripts = HashMap::new();
    for job in &found {
        let run = run_of(job, &mut scripts);
        let epoch = run.as_ref().and_then(|run| last_epoch(run));
        output.json(record(job, run.as_deref(), epoch.as_ref()));
        output.text(line(job));
        if let Some(run) = run {
            output.text(format_args!(
                "    {}: {}",
                one_line(&run.display().to_string()),
                progress(&run, epoch.as_ref())
            ));
        }
    }
    if found.is_empty() {
        output.text("no jobs");
    }
    output.finish()
}

/// The jobs meant by `ID` or `ID_ELEMENT`.
fn named(name: &str) -> Result<Vec<SlurmJob>, Failure> {
    let (id, element) = name.split_once('_').map_or((name, None), |(id, element)| (id, Some(element)));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = id.parse().ok().filter(|_| digits(id) && element.is_none_or(digits));
    let Some(number) = number else {
        return Err(usage!("{}: a job is ID or ID_ELEMENT, such as 12 or 12_3", name.escape_default()));
    };
    let mut found = known(number)?.unwrap_or_default();
    if let Some(element) = element {
        found.retain(|job| job.array.as_ref().is_some_and(|(_, index)| index == element));
    }
    match found.is_empty() {
        true => Err(failed!("job {name}: Slurm does not know it; ended jobs are soon forgotten")),
        false => Ok(found),
    }
}

/// The controller's report of a job or of all elements of an array; `None` if it knows none.
fn known(id: JobId) -> Result<Option<Vec<SlurmJob>>, Failure> {
    let said = slurm("scontrol", &["show", "job", "--oneliner", &id.to_string()], "")?;
    match jobs(&said.stdout) {
        found if !found.is_empty() => Ok(Some(found)),
        _ if said.success || said.problem.contains("Invalid job id") => Ok(None),
        _ => Err(failed!("scontrol: {}", said.problem)),
    }
}

/// The run folder, from the job's script.
fn run_of(job: &SlurmJob, scripts: &mut HashMap<JobId, Option<String>>) -> Option<PathBuf> {
    let whole = job.array.as_ref().map_or(job.id, |(array, _)| *array);
    let script = scripts.entry(whole).or_insert_with(|| {
        // Other users' scripts are not shown, which is no reason to fail.
        let said = slurm("scontrol", &["write", "batch_script", &job.id.to_string(), "-"], "").ok()?;
        said.success.then_some(said.stdout)
    });
    Some(Path::new(&job.folder).join(run_folder(script.as_deref()?, job)?))
}

/// The last complete line of a run's log.
fn last_epoch(run: &Path) -> Option<Value> {
    let mut file = open_regular(&RunPaths::new(run).metrics()).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (whole, _) = text.rsplit_once('\n')?;
    serde_json::from_str(whole.lines().next_back()?).ok()
}

fn progress(run: &Path, epoch: Option<&Value>) -> String {
    let Some(epoch) = epoch else {
        return if run.is_dir() { "no epoch has ended".to_owned() } else { "has not begun".to_owned() };
    };
    let number = |key: &str| epoch[key].as_f64().map_or("none".to_owned(), |number| format!("{number:.4}"));
    let saved = RunPaths::new(run).saved_config().ok().flatten();
    let epochs =
        saved.and_then(|text| RunConfig::from_toml(&text).ok()).map(|config| format!("/{}", config.train.epochs));
    format!(
        "epoch {}{}: train loss {}, val loss {}{}",
        epoch["epoch"].as_u64().unwrap_or(0).saturating_add(1),
        epochs.unwrap_or_default(),
        number("train_loss"),
        number("val_loss"),
        epoch["val_accuracy"].as_f64().map_or(String::new(), |share| format!(", val accuracy {}", percent(share))),
    )
}

fn line(job: &SlurmJob) -> String {
    let mut line = format!("{} {}: {}", job.name_of_id(), job.name, job.state);
    match job.state.as_str() {
        "FAILED" => line.push_str(&format!(" with exit code {}", job.exit_code)),
        _ if !job.reason.is_empty() => line.push_str(&format!(" ({}{})", job.reason, meaning(&job.reason))),
        _ => {}
    }
    if !job.nodes.is_empty() {
        line.push_str(&format!(" on {}", job.nodes));
    }
    line.push_str(&format!(", {} of {}", job.run_time, job.time_limit));
    if job.restarts > 0 {
        line.push_str(&format!(", {} so far", counted(job.restarts as usize, "restart")));
    }
    one_line(&line)
}

/// What to do about a job that would wait for ever.
fn meaning(reason: &str) -> &'static str {
    match reason {
        "PartitionConfig" | "BadConstraints" => {
            ": no node of the partition is as large as the job asks for; cancel it, and ask for fewer cores, GPUs or less memory"
        }
        _ => "",
    }
}

fn record(job: &SlurmJob, run: Option<&Path>, epoch: Option<&Value>) -> Value {
    json!({
        "event": "job",
        "job": job.name_of_id(),
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "nodes": job.nodes,
        "run_time": job.run_time,
        "time_limit": job.time_limit,
        "restarts": job.restarts,
        "exit_code": job.exit_code,
        "output": job.output,
        "run": run.map(|run| run.display().to_string()),
        "epoch": epoch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_of_a_log() {
        let folder = tempfile::tempdir().unwrap();
        let check = |log: Option<&str>, epoch: Option<u64>, says: &str| {
            if let Some(log) = log {
                std::fs::write(folder.path().join("metrics.jsonl"), log).unwrap();
            }
            let found = last_epoch(folder.path());
            assert_eq!(found.as_ref().and_then(|found| found["epoch"].as_u64()), epoch);
            assert_eq!(progress(folder.path(), found.as_ref()), says);
        };
        check(None, None, "no epoch has ended");
        check(Some(""), None, "no epoch has ended");
        let first = r#"{"event":"epoch","epoch":0,"train_loss":0.5,"val_loss":null,"val_accuracy":0.25}"#;
        let says = "epoch 1: train loss 0.5000, val loss none, val accuracy 25.00 %";
        check(Some(&format!("{first}\n")), Some(0), says);
        // A run without classes.
        let values = r#"{"event":"epoch","epoch":0,"train_loss":0.5,"val_loss":0.25}"#;
        check(Some(&format!("{values}\n")), Some(0), "epoch 1: train loss 0.5000, val loss 0.2500");
        check(Some(&format!("{first}\n{{\"epoch\":1,\"tr")), Some(0), says);
        check(Some(&format!("{}\n{first}\n", "x".repeat(2 * TAIL as usize))), Some(0), says);
        check(Some("torn\n"), None, "no epoch has ended");
        // The run of a job may be another user's. A pipe was waited for.
        std::fs::remove_file(folder.path().join("metrics.jsonl")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("metrics.jsonl"), rustix::fs::Mode::RWXU).unwrap();
        check(None, None, "no epoch has ended");
        assert_eq!(progress(&folder.path().join("none"), None), "has not begun");
    }

    #[test]
    fn lines_of_jobs() {
        let job = SlurmJob {
            id: 12,
            name: "a\u{1b}b".into(),
            state: "PENDING".into(),
            reason: "Priority".into(),
            ..SlurmJob::default()
        };
        let check = |job: &SlurmJob, expected: &str| assert_eq!(line(job), expected);
        let times = |job: SlurmJob| SlurmJob { run_time: "00:00:10".into(), time_limit: "01:00:00".into(), ..job };
        check(&times(job.clone()), "12 a b: PENDING (Priority), 00:00:10 of 01:00:00");
        let large = SlurmJob { reason: "PartitionConfig".into(), ..job.clone() };
        let says = "12 a b: PENDING (PartitionConfig: no node of the partition is as large as the job asks for; cancel it, \
                    and ask for fewer cores, GPUs or less memory), 00:00:10 of 01:00:00";
        check(&times(large), says);
        let running = SlurmJob {
            state: "RUNNING".into(),
            reason: String::new(),
            nodes: "node[1-2]".into(),
            restarts: 1,
            ..job.clone()
        };
        check(&times(running), "12 a b: RUNNING on node[1-2], 00:00:10 of 01:00:00, 1 restart so far");
        let failed =
            SlurmJob { state: "FAILED".into(), reason: "NonZeroExitCode".into(), exit_code: "1:0".into(), ..job };
        check(&times(failed), "12 a b: FAILED with exit code 1:0, 00:00:10 of 01:00:00");
    }

    #[test]
    fn names_of_jobs() {
        for name in ["", "_", "12_", "_3", "12_3_4", "-1", "+1", "1;2", "99999999999999999999", "a\nb"] {
            let Err(Failure::Usage(line)) = named(name) else { panic!("{name} is taken") };
            assert!(line.contains("a job is ID or ID_ELEMENT") && line.lines().count() == 1, "{line}");
        }
    }
}
