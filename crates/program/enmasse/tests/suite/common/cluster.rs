//! A real Slurm cluster of made-up hosts on this machine, for one test at a time. If it cannot be created, the test
//! is skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;
use test_support::Need;

use super::network::Network;
use super::{Ended, finish, until};

/// Two clusters at a time would be too much for Slurm's own deadlines.
static ONE: Mutex<()> = Mutex::new(());

/// A cluster, which runs until this is dropped.
pub struct Cluster {
    network: Network,
    /// Configuration, state and logs.
    folder: TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts nodes named `node1` and so on, with 8 processors each, and a host `head`. Waits for the cluster of another
    /// test to end. `None` if the test is skipped.
    pub fn start(nodes: usize) -> Option<Self> {
        Self::start_with_gpus(nodes, 0)
    }

    /// The same with this number of GPUs on each node, which Slurm counts and gives to tasks; they are files that hold nothing.
    pub fn start_with_gpus(nodes: usize, gpus: usize) -> Option<Self> {
        if !test_support::time() {
            return None;
        }
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !rustix::process::geteuid().is_root() {
            test_support::skip(Need::Slurm, "Slurm's daemons need root");
            return None;
        }
        for program in ["slurmctld", "slurmd", "srun"] {
            let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
            if !folders.iter().any(|folder| Path::new(folder).join(program).is_file()) {
                test_support::skip(Need::Slurm, format_args!("there is no {program}"));
                return None;
            }
        }
        let nodes: Vec<String> = (1..=nodes).map(|number| format!("node{number}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let network = Network::up(&[&["head"], &nodes[..]].concat())?;
        let cluster = Cluster { network, folder: tempfile::tempdir().expect("a folder"), _one: one };
        cluster.configure(&nodes, gpus);
        cluster.head(&["slurmctld"]).well();
        for node in &nodes {
            finish(cluster.on(node, "slurmd").args(["-N", node])).well();
        }
        until("all nodes to be idle", || {
            let idle = cluster.head(&["sinfo", "--noheader", "--states=idle", "--format=%D"]);
            (idle.stdout.trim() == nodes.len().to_string()).then_some(())
        });
        Some(cluster)
    }

    /// Writes `slurm.conf`. Time limits are shorter than Slurm's defaults: a silent node is down after 10 to 20 s.
    fn configure(&self, nodes: &[&str], gpus: usize) {
        let folder = self.folder.path().display();
        for name in ["state", "spool", "tmp"] {
            fs::create_dir(self.folder.path().join(name)).expect("creates");
        }
        let mut lines = vec![
            "ClusterName=tests".to_owned(),
            format!("SlurmctldHost=head({})", self.network.address("head")),
            // One user starts all of it, on hosts that nobody else reaches.
            "SlurmUser=root".into(),
            "AuthType=auth/none".into(),
            // A job that is requeued waits until the credentials of its earlier start have expired.
            "AuthInfo=cred_expire=5".into(),
            "CredType=cred/none".into(),
            format!("StateSaveLocation={folder}/state"),
            format!("SlurmdSpoolDir={folder}/spool/%n"),
            format!("TmpFS={folder}/tmp"),
            format!("SlurmctldPidFile={folder}/head.pid"),
            format!("SlurmdPidFile={folder}/%n.pid"),
            format!("SlurmctldLogFile={folder}/head.log"),
            format!("SlurmdLogFile={folder}/%n.log"),
            "ProctrackType=proctrack/linuxproc".into(),
            "TaskPlugin=task/none".into(),
            "JobAcctGatherType=jobacct_gather/none".into(),
            "SelectType=select/cons_tres".into(),
            "SelectTypeParameters=CR_CPU".into(),
            "MpiDefault=none".into(),
            "PropagateResourceLimits=NONE".into(),
            // The nodes claim more processors than the machine has.
            "SlurmdParameters=config_overrides".into(),
            "ReturnToService=2".into(),
            "KillWait=5".into(),
            "SlurmdTimeout=10".into(),
            "SlurmctldTimeout=10".into(),
            "MessageTimeout=5".into(),
            "TCPTimeout=2".into(),
            "BatchStartTimeout=10".into(),
            "UnkillableStepTimeout=15".into(),
            "SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0".into(),
        ];
        let mut devices = String::new();
        for gpu in 0..gpus {
            let file = self.folder.path().join(format!("nvidia{gpu}"));
            finish(Command::new("mknod").arg(&file).args(["c", "1", "3"])).well();
            devices.push_str(&format!("Name=gpu File={}\n", file.display()));
        }
        fs::write(self.folder.path().join("gres.conf"), devices).expect("writes");
        if gpus > 0 {
            lines.push("GresTypes=gpu".into());
        }
        let resources = if gpus > 0 { format!(" Gres=gpu:{gpus}") } else { String::new() };
        for node in nodes {
            let address = self.network.address(node);
            lines.push(format!("NodeName={node} NodeAddr={address} CPUs=8 RealMemory=4000{resources}"));
        }
        lines.push(format!("PartitionName=main Nodes={} Default=YES MaxTime=60", nodes.join(",")));
        fs::write(self.configuration(), lines.join("\n") + "\n").expect("writes");
    }

    fn configuration(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn on(&self, host: &str, program: &str) -> Command {
        let mut command = self.network.command(host, program);
        command.env("SLURM_CONF", self.configuration());
        command
    }

    /// Runs a command on the head node, which has `sbatch`, `srun`, `squeue` and `scontrol`.
    #[track_caller]
    pub fn head(&self, command: &[&str]) -> Ended {
        finish(&mut self.head_command(command))
    }

    /// A command on the head node, to be started with its own variables, or left running.
    pub fn head_command(&self, command: &[&str]) -> Command {
        let mut head = self.on("head", command[0]);
        head.args(&command[1..]);
        head
    }

    /// The nodes' network, for its faults.
    pub fn network(&mut self) -> &mut Network {
        &mut self.network
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
}
