//! The variables by which launchers tell a process its place, and how enmasse interprets them.
//!
//! Only variables named here are ever shown: a report is meant to be published, and others may hold secrets.

use std::ffi::OsString;

use enmasse_launch::{Interpretation, LaunchedRank};
use enmasse_train::SETTINGS;
use serde_json::{Map, Value};

use crate::report::{Finding, Section};
use enmasse_wording::counted;

/// Variables of launchers, in the order in which they are shown.
pub const LAUNCHER_VARIABLES: &str = "
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
    TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE
    SLURM_JOB_ID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_STEP_ID SLURM_PROCID SLURM_LOCALID SLURM_NODEID
    SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE
    SLURM_NNODES SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST
    SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE SLURM_CPU_BIND SLURM_GPUS_ON_NODE SLURM_GPUS_PER_TASK SLURM_STEP_GPUS
    SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_RESTART_COUNT SLURM_JOB_PARTITION SLURMD_NODENAME SLURM_SUBMIT_HOST
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
    OMPI_COMM_WORLD_NODE_RANK PMI_RANK PMI_SIZE PMI_JOBID PMIX_RANK PMIX_NAMESPACE MPI_LOCALRANKID MPI_LOCALNRANKS
    LSB_JOBID LSB_HOSTS LSB_MCPU_HOSTS
    JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE
    PET_NNODES PET_NPROC_PER_NODE KUBERNETES_SERVICE_HOST
    ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE TORCHELASTIC_ERROR_FILE
    ENMASSE_JOB ENMASSE_TOKEN ENMASSE_TOKEN_FD ENMASSE_TOKEN_FILE ENMASSE_STORE_FD ENMASSE_CAUSE_FD";

/// Other variables that affect how programs use a machine.
const OTHERS: &str = "
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES
    OMP_NUM_THREADS OMP_PROC_BIND GOMP_CPU_AFFINITY KMP_AFFINITY
    NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_DISABLE GLOO_SOCKET_IFNAME
    ENMASSE_CACHE";

/// Variables whose value is not shown.
const SECRET: &[&str] = &["ENMASSE_TOKEN"];

/// Longest value shown, in characters.
const MAX: usize = 200;

/// A source of variables.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

pub fn section(lookup: Lookup) -> Section {
    let mut findings = vec![interpretation(lookup)];
    let settings = SETTINGS.iter().map(|setting| setting.variable()).collect::<Vec<_>>().join(" ");
    let groups = [("launcher's", LAUNCHER_VARIABLES), ("settings", &settings), ("others", OTHERS)];
    findings.extend(groups.iter().filter_map(|(name, names)| shown(name, names, lookup)));
    Section { title: "launcher and environment", findings }
}

/// The place that the variables give this process, and which variables decided.
fn interpretation(lookup: Lookup) -> Finding {
    let Interpretation { place, launcher, why, warning, is_local_told, .. } = match LaunchedRank::interpret(lookup) {
        Ok(interpretation) => interpretation,
        Err(error) => {
            return Finding::problem("launcher", error, "unset these variables, or let a launcher set them all");
        }
    };
    let finding = match (place, warning) {
        (Some(place), _) => {
            let master = place.master.map_or(String::new(), |(host, port)| format!(", which meet at {host}:{port}"));
            let LaunchedRank { rank, world_size, local_rank, local_world_size, node, node_count, .. } = place;
            let local = format!(", local rank {local_rank} of {local_world_size}, node {node} of {node_count}");
            let local = if is_local_told { local } else { String::new() };
            let text =
                format!("this process is rank {rank} of {world_size}{master}{local}, by {}: {why}", launcher.name());
            Finding::ok("launcher", text).fact("rank", place.rank).fact("world_size", place.world_size)
        }
        // The doctor may run as a single process where training must not.
        (None, Some(warning)) => Finding::note("launcher", why, format!("before training here: {warning}")),
        (None, None) => Finding::ok("launcher", format!("{why}; `enmasse train` starts its own ranks")),
    };
    finding.fact("launcher", launcher.name())
}

/// The variables among `names` that are set.
fn shown(name: &str, names: &str, lookup: Lookup) -> Option<Finding> {
    let set = names.split_whitespace().filter_map(|name| Some((name, lookup(name)?)));
    let facts: Map<String, Value> = set.map(|(name, value)| (name.to_owned(), value_of(name, value).into())).collect();
    let pairs: Vec<String> =
        facts.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() {
        return None;
    }
    let finding = Finding::ok(name, format!("{} set: {}", counted(pairs.len(), "variable"), pairs.join(" ")));
    Some(Finding { facts, ..finding })
}

fn value_of(name: &str, value: OsString) -> String {
    if SECRET.contains(&name) {
        return "(secret)".to_owned();
    }
    let value = value.to_string_lossy();
    match value.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.into_owned(),
    }
}

/// Values that must not appear in a report: those of every variable whose name suggests a secret.
pub fn secrets(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    /// A shorter value would occur in unrelated texts.
    const MIN: usize = 6;
    const WORDS: [&str; 9] =
        ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "JWT"];
    let is_secret = |name: &str| !name.ends_with("_FD") && WORDS.iter().any(|word| name.to_uppercase().contains(word));
    let secret = variables.filter(|(name, _)| is_secret(&name.to_string_lossy()));
    let values = secret.map(|(_, value)| value.to_string_lossy().trim().to_owned());
    let mut values: Vec<String> = values.filter(|value| value.len() >= MIN).collect();
    // Longest first: removing a part of a longer value would leave its rest.
    values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    /// The section of `"RANK=1 WORLD_SIZE=2"`.
    fn of(variables: &str) -> Section {
        let lookup = |name: &str| {
            let pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.rev().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        section(&lookup)
    }

    #[test]
    fn interpretations() {
        let check = |variables: &str, status: Status, mention: &str| {
            let found = of(variables).findings.remove(0);
            assert_eq!(found.status, status, "{variables}");
            assert!(found.text.contains(mention), "{variables}: {}", found.text);
        };
        check("", Status::Ok, "`enmasse train` starts its own ranks");
        let place = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500";
        check(place, Status::Ok, "rank 1 of 2, which meet at node1:29500, by torchrun");
        let told = format!("{place} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1");
        check(&told, Status::Ok, "rank 1 of 2, which meet at node1:29500, local rank 0 of 1, node 0 of 1, by torchrun");
        check("RANK=1", Status::Problem, "WORLD_SIZE is not set although RANK is");
        let mpi =
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        check(mpi, Status::Ok, "by Open MPI");
        // In a batch script, without srun.
        check("SLURM_JOB_ID=7 SLURM_NTASKS=4", Status::Note, "SLURM");
    }

    #[test]
    fn only_listed_variables_are_shown_and_no_secret() {
        let secret = "ENMASSE_TOKEN=aaaabbbbccccdddd AWS_SECRET_ACCESS_KEY=eeee SLURM_JWT=ffff PMI_FD=9";
        let long = "x".repeat(500);
        let section = of(&format!("{secret} SLURM_JOB_ID=7 ENMASSE_BATCH=32 OMP_NUM_THREADS=4 MASTER_ADDR={long}"));
        let texts: Vec<&str> = section.findings.iter().skip(1).map(|finding| finding.text.as_str()).collect();
        let cut = format!("{}...", "x".repeat(200));
        assert_eq!(
            texts,
            [
                format!("3 variables set: MASTER_ADDR={cut} SLURM_JOB_ID=7 ENMASSE_TOKEN=(secret)").as_str(),
                "1 variable set: ENMASSE_BATCH=32",
                "1 variable set: OMP_NUM_THREADS=4"
            ]
        );
        assert_eq!(section.findings[1].facts["SLURM_JOB_ID"], "7");
    }

    #[test]
    fn names_that_suggest_a_secret() {
        let check = |name: &str, value: &str, expected: bool| {
            let found = secrets([(name.into(), value.into())].into_iter());
            assert_eq!(!found.is_empty(), expected, "{name}");
        };
        check("ENMASSE_TOKEN", "abcdefgh", true);
        check("my_password", "abcdefgh", true);
        check("GH_TOKEN", "abcdefgh", true);
        check("ENMASSE_TOKEN_FD", "123456", false);
        check("TOKEN", "short", false);
        check("HOME", "/home/somebody", false);
        let all = ["abcdef", "abcdefgh", "abcdefg"].map(|value| (format!("TOKEN{value}").into(), value.into()));
        assert_eq!(secrets(all.into_iter()), ["abcdefgh", "abcdefg", "abcdef"]);
    }
}
