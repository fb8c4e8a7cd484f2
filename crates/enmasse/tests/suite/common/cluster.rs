//! A real Slurm cluster of made-up hosts on this machine, for one test at a time. If it cannot be created, the test
//! is skipped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use needs::Need;
use rustix::fs::{FlockOperation, flock};

use super::{Ended, finish, plain_environment, until};

/// A cluster, which runs until this is dropped.
pub struct Cluster {
    tool: PathBuf,
    /// Only one cluster can run on a machine.
    _lock: File,
}

impl Cluster {
    /// Starts nodes named `node1` and so on, with 8 processors and 4 made-up devices each. Waits for the cluster of
    /// another test to end. `None` if the test is skipped.
    pub fn start(nodes: usize) -> Option<Self> {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/slurm/mini-slurm");
        if !needs::tool_of_root(Need::Slurm, &tool) || !needs::time() {
            return None;
        }
        let path = std::env::temp_dir().join("mini-slurm.lock");
        let lock = File::options().create(true).append(true).open(path).expect("a lock file");
        flock(&lock, FlockOperation::LockExclusive).expect("locks");
        let cluster = Cluster { tool, _lock: lock };
        // A killed test may have left processes running.
        cluster.tool(&["stop"]);
        let started = cluster.tool(&["start", "--nodes", &nodes.to_string()]);
        if started.code != Some(0) {
            needs::skip(Need::Slurm, started.stderr.trim());
            return None;
        }
        Some(cluster)
    }

    /// Runs a command on the head node, which has `sbatch`, `srun`, `squeue` and `scontrol`.
    #[track_caller]
    pub fn head(&self, command: &[&str]) -> Ended {
        self.tool(&[&["exec"], command].concat())
    }

    /// A command on the head node, to be started with its own variables, or left running.
    pub fn head_command(&self, command: &[&str]) -> Command {
        self.tool_command(&[&["exec"], command].concat())
    }

    /// Submits a batch script, and returns the job's number.
    #[track_caller]
    pub fn submit(&self, script: &Path, options: &[&str]) -> String {
        let script = script.display().to_string();
        let ended = self.head(&[&["sbatch", "--parsable"], options, &[&script]].concat()).well();
        ended.stdout.trim().to_owned()
    }

    /// A job's state, such as RUNNING; empty once Slurm has forgotten it.
    #[track_caller]
    pub fn state(&self, job: &str) -> String {
        self.field(job, "JobState")
    }

    /// One field of `scontrol show job`; empty if it is missing.
    #[track_caller]
    pub fn field(&self, job: &str, name: &str) -> String {
        let ended = self.head(&["scontrol", "--oneliner", "show", "job", job]);
        let field =
            |word: &str| word.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
        ended.stdout.split_whitespace().find_map(field).unwrap_or_default()
    }

    /// Waits until a job is in one of these states, and returns which.
    #[track_caller]
    pub fn wait_for(&self, job: &str, states: &[&str]) -> String {
        until(&format!("job {job} in one of {states:?}"), || {
            Some(self.state(job)).filter(|state| states.contains(&state.as_str()))
        })
    }

    /// A fault, or its end: `cut`, `crash`, `heal` and a node. The other nodes notice only silence.
    #[track_caller]
    pub fn fault(&self, kind: &str, node: &str) {
        let mut command = Command::new(self.tool.with_file_name("mini-net"));
        finish(command.args(["--net", "slurm", kind, node])).well();
    }

    /// Numbers of the processes, anywhere in the cluster, whose command line contains `part`. A process that has ended
    /// but was not reaped has no command line.
    pub fn processes(&self, part: &str) -> Vec<i32> {
        let own = i32::try_from(std::process::id()).expect("a process number");
        let numbers = std::fs::read_dir("/proc").expect("readable").filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            String::from_utf8_lossy(&line).replace('\0', " ").contains(part).then_some(pid)
        });
        numbers.filter(|pid| *pid != own).collect()
    }

    fn tool_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.tool);
        plain_environment(&mut command);
        command.args(arguments);
        command
    }

    #[track_caller]
    fn tool(&self, arguments: &[&str]) -> Ended {
        finish(&mut self.tool_command(arguments))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A failed test has its own message; the next test stops the remaining processes.
        let _ = self.tool_command(&["stop"]).output();
    }
}
