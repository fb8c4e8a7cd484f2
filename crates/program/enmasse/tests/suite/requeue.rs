//! Jobs of a real Slurm that are warned, lose nodes, or are cut off. They resume with the same bits, and stale
//! processes of an earlier start do no harm. On made-up hosts; skipped where these cannot be created.

use std::fs;
use std::path::PathBuf;

use crate::common::cluster::Cluster;
use crate::common::runs::{Folder, assert_same};
use crate::common::{assert_whole, enmasse, exists, metrics, send, until};
use rustix::process::Signal;

/// Enough epochs that a signal after the first one comes in time.
const EPOCHS: &str = "200";

struct Job {
    number: String,
    run: PathBuf,
    output: PathBuf,
}

impl Job {
    /// The output so far.
    fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    #[track_caller]
    fn says(&self, what: &str) {
        until(&format!("{what:?} in the output"), || self.text().contains(what).then_some(()));
    }
}

impl Folder {
    /// An uninterrupted run on this many ranks.
    fn never_stopped(&self, ranks: usize) -> PathBuf {
        let run = self.path(&format!("whole{ranks}"));
        enmasse(&self.arguments(&run, &["--devices", &format!("cpu:{ranks}")])).well();
        run
    }

    /// Submits a job whose script is built from its ranks' command, and waits for its first epoch.
    fn submit(&self, cluster: &Cluster, options: &[&str], script: impl Fn(&str) -> String) -> Job {
        let run = self.path("run");
        let output = self.path("job.out");
        let file = self.path("job.sh");
        let words = self.arguments(&run, &[]).join(" ");
        fs::write(&file, format!("#!/bin/sh\n{}\n", script(&format!("{} {words}", env!("CARGO_BIN_EXE_enmasse")))))
            .unwrap();
        let print = output.display().to_string();
        let options = [&["--requeue", "--open-mode=append", "--output", &print], options].concat();
        let number = cluster.submit(&file, &options);
        let job = Job { number, run, output };
        job.says("\"epoch\":0");
        job
    }
}

#[test]
fn a_warned_job_is_requeued_and_goes_on_with_the_same_bits() {
    let Some(cluster) = Cluster::start(2) else { return };
    let folder = Folder::new(EPOCHS);
    let whole = folder.never_stopped(4);
    let job = folder.submit(&cluster, &["--nodes=2", "--ntasks-per-node=2"], |train| format!("srun {train}"));
    cluster.head(&["scancel", "--signal=USR1", &job.number]).well();
    job.says("\"event\":\"done\"");
    cluster.wait_for(&job.number, &["COMPLETED"]);
    assert_eq!(cluster.field(&job.number, "Restarts"), "1");
    let text = job.text();
    let requeued = format!("requeued: Slurm starts job {} again", job.number);
    assert_eq!((text.matches(&requeued).count(), text.matches("resume:   epoch").count()), (1, 1), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("error: ")), "{text}");
    assert_same(&whole, &job.run);
    assert_whole(&job.run);
}

/// The whole first start runs on a node that Slurm has lost contact with, but that still reaches the file system. It is
/// frozen there, and goes on when the second start is running.
#[test]
fn a_stale_process_of_an_earlier_start_can_no_longer_write() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let folder = Folder::new(EPOCHS);
    let whole = folder.never_stopped(2);
    let job = folder.submit(&cluster, &["--nodes=1", "--ntasks=2"], |train| format!("srun {train}"));
    let mark = job.run.display().to_string();
    let earlier = cluster.processes(&mark);
    earlier.iter().for_each(|pid| send(*pid, Signal::STOP));
    let node = cluster.field(&job.number, "NodeList");
    cluster.network().cut(&node);
    job.says("resume:   epoch");
    assert!(earlier.iter().all(|pid| exists(*pid)), "the first start has ended by itself");
    earlier.iter().for_each(|pid| send(*pid, Signal::CONT));
    job.says("a later start of the job has taken over the run, so this one may no longer write to it");
    until("the end of the earlier start", || {
        let left = cluster.processes(&mark);
        earlier.iter().all(|pid| !left.contains(pid)).then_some(())
    });
    job.says("\"event\":\"done\"");
    cluster.wait_for(&job.number, &["COMPLETED"]);
    assert_same(&whole, &job.run);
    assert_whole(&job.run);
}

#[test]
fn a_job_that_lost_a_node_goes_on_with_the_others() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let folder = Folder::new(EPOCHS);
    let whole = folder.never_stopped(4);
    let job = folder.submit(&cluster, &["--nodes=2", "--ntasks-per-node=2"], |train| {
        format!("srun --kill-on-bad-exit=0 {train}; sleep $((1000 * !${{SLURM_RESTART_COUNT:-0}}))")
    });
    cluster.network().crash("node2");
    job.says("resume:   epoch");
    assert_eq!(cluster.field(&job.number, "NodeList"), "node[1,3]");
    job.says("\"event\":\"done\"");
    cluster.wait_for(&job.number, &["COMPLETED"]);
    assert_same(&whole, &job.run);
    assert_whole(&job.run);
}

/// A job that keeps its remaining nodes restarts its ranks on them, fewer than before.
#[test]
fn a_job_that_is_not_killed_shrinks_when_its_ranks_start_again() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let folder = Folder::new(EPOCHS);
    let job = folder.submit(&cluster, &["--nodes=2", "--ntasks-per-node=2", "--no-kill"], |train| {
        // Slurm waits for the lost node's part of the first step, and assigns its processors to no other step
        // meanwhile.
        format!("srun --no-kill {train} || srun --overlap --nodes=1 --ntasks=2 {train} --resume")
    });
    cluster.network().crash("node2");
    job.says("resume:   epoch");
    job.says("\"event\":\"done\"");
    let records = metrics(&job.run);
    let epochs: Vec<u64> = records.iter().map(|record| record["epoch"].as_u64().unwrap()).collect();
    assert_eq!(epochs, (0..200).collect::<Vec<_>>());
    let ranks = |record: Option<&serde_json::Value>| record.map(|record| record["world_size"].clone());
    assert_eq!((ranks(records.first()), ranks(records.last())), (Some(4.into()), Some(2.into())));
    assert_whole(&job.run);
}
