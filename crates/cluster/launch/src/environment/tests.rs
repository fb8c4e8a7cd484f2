//! Every launcher's variables, as tables.

use super::*;
use proptest::prelude::*;
use std::os::unix::ffi::OsStringExt;

/// Parses `"RANK=1 WORLD_SIZE=2"`.
fn read(variables: &str) -> Result<Option<LaunchedRank>, EnvironmentError> {
    LaunchedRank::from_lookup(lookup(variables))
}

/// Of several variables with one name the last counts.
fn lookup(variables: &str) -> impl Fn(&str) -> Option<OsString> {
    let pairs: Vec<(String, OsString)> = variables
        .split(' ')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    move |name| pairs.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.clone())
}

const ADDRESS: &str = "MASTER_ADDR=h MASTER_PORT=2000";

#[test]
fn places() {
    let check = |variables: &str, expected: Option<[usize; 6]>| {
        let place = read(variables).unwrap_or_else(|e| panic!("{variables}: {e}"));
        let place = place.map(|p| [p.rank, p.world_size, p.local_rank, p.local_world_size, p.node, p.node_count]);
        assert_eq!(place, expected, "{variables}");
    };
    check("", None);
    check("RANK= WORLD_SIZE=", None);
    // Variables that a batch script may export before anything is launched.
    check("MASTER_ADDR=h", None);
    check("LOCAL_RANK=1", None);
    check("RANK=\t WORLD_SIZE=", None);
    check("RANK=0 WORLD_SIZE=1", Some([0, 1, 0, 1, 0, 1]));
    check("RANK=0 WORLD_SIZE=1 MASTER_ADDR=h", Some([0, 1, 0, 1, 0, 1]));
    check(&format!("RANK=1 WORLD_SIZE=2 {ADDRESS}"), Some([1, 2, 1, 2, 0, 1]));
    check(
        &format!("RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=2 GROUP_WORLD_SIZE=3 {ADDRESS}"),
        Some([5, 6, 1, 2, 2, 3]),
    );
}

/// As set by DeepSpeed's launcher, the old torch.distributed.launch and users: the ranks find out how many share a
/// machine.
#[test]
fn a_local_rank_needs_no_local_size() {
    let check = |variables: &str, expected: [usize; 3]| {
        let found = interpret(&format!("{variables} {ADDRESS}")).unwrap();
        let place = found.place.unwrap();
        assert_eq!([place.rank, place.world_size, place.local_rank], expected, "{variables}");
        assert!(!found.is_local_told, "{variables}");
    };
    check("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", [0, 1, 0]);
    check("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", [1, 2, 1]);
    check("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=", [3, 4, 1]);
}

#[test]
fn contradictions() {
    let check = |variables: &str, expected: &str| assert_eq!(read(variables).unwrap_err().to_string(), expected);
    let half =
        |present: &str, missing: &str| format!("{missing} is not set although {present} is: set both or neither");
    check("RANK=0", &half("RANK", "WORLD_SIZE"));
    check("RANK=0 WORLD_SIZE=", &half("RANK", "WORLD_SIZE"));
    check("WORLD_SIZE=2", &half("WORLD_SIZE", "RANK"));
    check(
        "RANK=0 WORLD_SIZE=2",
        "WORLD_SIZE is 2 but MASTER_ADDR and MASTER_PORT are not set: set them to where rank 0 runs",
    );
    check("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", &half("MASTER_ADDR", "MASTER_PORT"));
    check("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", &half("MASTER_PORT", "MASTER_ADDR"));
    check("RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1", &half("LOCAL_WORLD_SIZE", "LOCAL_RANK"));
    check(
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=1",
        "LOCAL_RANK is 1 but LOCAL_WORLD_SIZE is 1: LOCAL_RANK must be less than LOCAL_WORLD_SIZE",
    );
    check("RANK=0 WORLD_SIZE=1 GROUP_WORLD_SIZE=1", &half("GROUP_WORLD_SIZE", "GROUP_RANK"));
    check("RANK=2 WORLD_SIZE=2", "RANK is 2 but WORLD_SIZE is 2: RANK must be less than WORLD_SIZE");
    check(
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3",
        "LOCAL_WORLD_SIZE is 3 but WORLD_SIZE is 2: LOCAL_WORLD_SIZE must be at most WORLD_SIZE",
    );
    check(
        "RANK=0 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
        "LOCAL_RANK is 1 but RANK is 0: LOCAL_RANK must be at most RANK",
    );
    check("RANK=x WORLD_SIZE=2", "RANK is \"x\": expected a whole number from 0 to 1048575");
    check("RANK=-1 WORLD_SIZE=2", "RANK is \"-1\": expected a whole number from 0 to 1048575");
    check("RANK=0 WORLD_SIZE=0", "WORLD_SIZE is \"0\": expected a whole number from 1 to 1048576");
    check(
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000",
        "MASTER_PORT is \"70000\": expected a whole number from 1 to 65535",
    );
}

#[test]
fn bytes_that_are_not_text() {
    let place = LaunchedRank::from_lookup(|name| (name == RANK).then(|| OsString::from_vec(vec![0xff])));
    assert_eq!(place, Err(EnvironmentError::NotText(RANK)));
}

#[test]
fn one_thread_each_unless_told() {
    let check = |world_size: usize, is_set: bool, expected: bool| {
        let variables = read(&format!("RANK=0 WORLD_SIZE={world_size} {ADDRESS}")).unwrap().unwrap();
        let omp = variables.variables(is_set).into_iter().find(|(name, _)| *name == "OMP_NUM_THREADS");
        assert_eq!(omp, expected.then(|| ("OMP_NUM_THREADS", "1".into())), "{world_size} {is_set}");
    };
    check(1, false, false);
    check(2, false, true);
    check(2, true, false);
}

/// The interpretation of the variables, with node names and numbers separated.
fn interpret(variables: &str) -> Result<Interpretation, EnvironmentError> {
    LaunchedRank::interpret(lookup(variables))
}

/// `[rank, world size, local rank, local world size, node, nodes]`, and where rank 0 is.
#[track_caller]
fn check(variables: &str, launcher: Launcher, numbers: [usize; 6], host: Option<&str>) {
    let found = interpret(variables).unwrap_or_else(|error| panic!("{variables}: {error}"));
    let place = found.place.clone().unwrap_or_else(|| panic!("{variables}: no place"));
    let LaunchedRank { rank, world_size, local_rank, local_world_size, node, node_count, .. } = place;
    let own = [rank, world_size, local_rank, local_world_size, node, node_count];
    let master = place.master.as_ref().map(|(host, _)| host.as_str());
    assert_eq!((found.launcher, own, master), (launcher, numbers, host), "{variables}");
    assert_eq!((found.warning, found.attempt), (None, place.restart_count));
}

#[track_caller]
fn refuse(variables: &str, expected: &str) {
    let error = interpret(variables).unwrap_err().to_string();
    assert!(error.contains(expected) && !error.contains('\n'), "{variables}: {error}");
}

/// A task of a step of two nodes with two tasks each, as seen on a cluster.
fn task(rank: usize, more: &str) -> String {
    let local = rank % 2;
    let node = rank / 2;
    format!(
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID={rank} SLURM_LOCALID={local} SLURM_NODEID={node} SLURM_NTASKS=4 \
         SLURM_NPROCS=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=node[1-2] \
         SLURM_NODELIST=node[1-4] SLURMD_NODENAME=node{} SLURM_LAUNCH_NODE_IPADDR=10.213.0.1 {more}",
        node + 1
    )
}

#[test]
fn slurm_steps() {
    for rank in 0..4 {
        let numbers = [rank, 4, rank % 2, 2, rank / 2, 2];
        check(&task(rank, ""), Launcher::Slurm, numbers, Some("node1"));
        check(&task(rank, "MASTER_ADDR=node2"), Launcher::Slurm, numbers, Some("node2"));
        // The variables of both launchers, which agree.
        check(
            &task(rank, &format!("PMI_RANK={rank} PMI_SIZE=4 PMI_JOBID=7.0")),
            Launcher::Slurm,
            numbers,
            Some("node1"),
        );
    }
    let place = |variables: &str| interpret(variables).unwrap().place.unwrap();
    let (first, second) = (place(&task(0, "")), place(&task(3, "")));
    assert_eq!((first.master, first.run_id.as_str()), (second.master, "7.0"));
    let again = interpret(&task(0, "SLURM_RESTART_COUNT=2")).unwrap();
    assert_eq!((again.attempt, again.place.unwrap().restart_count, again.more_ports.len()), (2, 2, 7));
    let chosen = interpret(&task(0, "MASTER_PORT=29500")).unwrap();
    assert_eq!((chosen.place.unwrap().master, chosen.more_ports), (Some(("node1".into(), 29500)), vec![]));

    let uneven = "SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=3 \
                  SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_STEP_NODELIST=alpha,gpu[1-2]";
    check(uneven, Launcher::Slurm, [2, 3, 0, 1, 1, 3], Some("alpha"));
    // Ranks that share a node need neither its name nor a secret.
    let one = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=2 \
               SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=node2 SLURMD_NODENAME=node2";
    check(one, Launcher::Slurm, [1, 2, 1, 2, 0, 1], Some("127.0.0.1"));
    let single = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NODELIST=node2";
    check(single, Launcher::Slurm, [0, 1, 0, 1, 0, 1], None);
}

#[test]
fn impossible_slurm_steps() {
    let swapped = task(0, "").replace("SLURMD_NODENAME=node1", "SLURMD_NODENAME=node2");
    refuse(&swapped, "rank 0 runs on node2, but the others look for it on node1");
    assert!(interpret(&format!("{swapped} MASTER_ADDR=node2")).is_ok());
    refuse(&task(0, "").replace("node[1-2]", "node[2-1]"), "SLURM_STEP_NODELIST: \"node[2-1]\"");
    refuse(&task(0, "").replace("2(x2)", "2("), "SLURM_STEP_TASKS_PER_NODE is \"2(\"");
    refuse(&task(3, "").replace("2(x2)", "2"), "one for node 1");
    refuse(&task(3, "").replace("SLURM_PROCID=3", "SLURM_PROCID=4"), "SLURM_PROCID must be less than SLURM_NTASKS");
    refuse(
        &task(3, "").replace("SLURM_LOCALID=1", "SLURM_LOCALID=2"),
        "SLURM_LOCALID must be less than SLURM_STEP_TASKS",
    );
    refuse(&task(3, "WORLD_SIZE=8"), "WORLD_SIZE must be left out, or equal to SLURM_NTASKS");
    refuse(&task(3, "RANK=0"), "RANK must be left out, or equal to SLURM_PROCID");
    assert!(interpret(&task(3, "WORLD_SIZE=4")).is_ok());
}

/// A batch script, and a shell of salloc.
#[test]
fn inside_a_job_but_not_in_a_task() {
    let batch =
        "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2(x2)";
    let salloc = "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=2(x2)";
    for variables in [batch, salloc] {
        let found = interpret(variables).unwrap();
        assert_eq!((found.place, found.launcher), (None, Launcher::Nobody));
        assert!(found.why.contains("SLURM_STEP_ID is not set"), "{}", found.why);
        let error = read(variables).unwrap_err().to_string();
        assert!(error.starts_with("SLURM_NTASKS is 4, but no launcher started this process"), "{error}");
        assert!(error.contains("srun enmasse train"), "{error}");
    }
    let one = interpret("SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_RESTART_COUNT=1").unwrap();
    assert_eq!((one.place, one.warning, one.attempt), (None, None, 1));
}

#[test]
fn mpi() {
    let open = |rank: usize, more: &str| {
        let local = rank % 2;
        let world = 4;
        format!(
            "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={world} OMPI_COMM_WORLD_LOCAL_RANK={local} \
             OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK={local} {more}"
        )
    };
    check(&open(3, "MASTER_ADDR=h"), Launcher::OpenMpi, [3, 4, 1, 2, 1, 2], Some("h"));
    refuse(&open(3, ""), "Open MPI does not say where rank 0 runs");
    refuse(&open(3, ""), "mpirun -x MASTER_ADDR=HOST");
    refuse(&open(3, "MASTER_ADDR=h WORLD_SIZE=2"), "WORLD_SIZE must be left out, or equal to OMPI_COMM_WORLD_SIZE");
    refuse("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE is not set although OMPI_COMM_WORLD_RANK is");
    let one = open(1, "OMPI_MCA_orte_hnp_uri=2063.0;tcp://10.0.0.1:5").replace("SIZE=4", "SIZE=2");
    check(&one, Launcher::OpenMpi, [1, 2, 1, 2, 0, 1], Some("127.0.0.1"));
    let name = |variables: &str| interpret(variables).unwrap().place.unwrap().run_id;
    assert_eq!((name(&one), name(&format!("{one} PMIX_NAMESPACE=prterun-1"))), ("2063.0".into(), "prterun-1".into()));

    let hydra = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_JOBID=9";
    check(hydra, Launcher::Pmi, [1, 2, 1, 2, 0, 1], Some("127.0.0.1"));
    refuse("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "mpiexec -genv MASTER_ADDR HOST");
    let unnamed = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 ENMASSE_LOCAL_LAUNCHER=42";
    assert_eq!((name(hydra), name(unnamed)), ("9".into(), "42".into()));
    // On each node another process started its ranks.
    let apart = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=h ENMASSE_LOCAL_LAUNCHER=42";
    assert_eq!(name(apart), "");
    refuse("PMI_RANK=2 PMI_SIZE=2", "PMI_RANK must be less than PMI_SIZE");
}

/// Inside a Slurm job the ranks of another launcher see its daemon's Slurm variables.
#[test]
fn the_innermost_launcher_counts() {
    let slurm = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=2 \
                 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=node[1-2]";
    let torch = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2";
    let open =
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
    let hydra = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
    let numbers = [3, 4, 1, 2, 1, 2];
    let all = format!("{torch} {ADDRESS} {open} {hydra} {slurm}");
    check(&all, Launcher::Torch, numbers, Some("h"));
    let why = interpret(&all).unwrap().why;
    assert_eq!(why, "RANK and WORLD_SIZE are set; Open MPI's and PMI's and Slurm's are ignored");
    check(&format!("{open} {hydra} {slurm} MASTER_ADDR=h"), Launcher::OpenMpi, numbers, Some("h"));
    check(&format!("{hydra} {slurm} MASTER_ADDR=h"), Launcher::Pmi, numbers, Some("h"));
    check(slurm, Launcher::Slurm, [1, 2, 0, 1, 1, 2], Some("node1"));
}

#[test]
fn kubeflow_and_lsf() {
    let pod = "KUBERNETES_SERVICE_HOST=10.96.0.1 RANK=1 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456";
    check(pod, Launcher::Kubeflow, [1, 3, 0, 1, 1, 3], Some("job-master-0"));
    check(&format!("{pod} LOCAL_RANK=1 LOCAL_WORLD_SIZE=3"), Launcher::Torch, [1, 3, 1, 3, 0, 1], Some("job-master-0"));
    for elastic in ["PET_NNODES=1:4", "PET_NPROC_PER_NODE=2"] {
        let error = read(elastic).unwrap_err().to_string();
        assert!(error.contains("enmasse launch enmasse train"), "{error}");
        check(&format!("{elastic} {pod}"), Launcher::Kubeflow, [1, 3, 0, 1, 1, 3], Some("job-master-0"));
    }
    assert_eq!(read("PET_NNODES=1 PET_NPROC_PER_NODE=1"), Ok(None));

    let jsrun =
        "LSB_JOBID=5 JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2";
    let hosts = |list: &str| {
        let list = list.to_owned();
        let lookup = lookup(jsrun);
        let found = LaunchedRank::interpret(move |name| match name {
            "LSB_MCPU_HOSTS" => Some(list.clone().into()),
            _ => lookup(name),
        });
        let place = found.unwrap().place.unwrap();
        (place.node, place.node_count, place.master.unwrap().0)
    };
    assert_eq!(hosts("batch1 1 c01 42 c02 42"), (1, 2, "c01".into()));
    assert_eq!(hosts("c01 42 c02 42"), (1, 2, "c01".into()));
    refuse(jsrun, "jsrun -E MASTER_ADDR=HOST");
}

proptest! {
    #[test]
    fn written_variables_round_trip(
        nodes in 1usize..4, per_node in 1usize..5, pick: prop::sample::Index, restarts in 0usize..4, port in 1u16..,
    ) {
        let world_size = nodes * per_node;
        let rank = pick.index(nodes * per_node);
        let place = LaunchedRank {
            rank,
            world_size,
            local_rank: rank % per_node,
            local_world_size: per_node,
            node: rank / per_node,
            node_count: nodes,
            master: Some(("127.0.0.1".into(), port)),
            restart_count: restarts,
            max_restarts: 3,
            run_id: "job".into(),
        };
        let variables = place.variables(false);
        let found = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        prop_assert_eq!(LaunchedRank::from_lookup(found), Ok(Some(place)));
    }
}
