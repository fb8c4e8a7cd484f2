//! `--transport mpi`: ranks that mpirun or mpiexec has started on two hosts, if this machine can create them, and what is said
//! where there is no MPI.

use std::process::Command;

use test_support::Need;

use crate::common::network::Network;
use crate::common::runs::{Folder, assert_same};
use crate::common::{Running, enmasse, refused, send};
use rustix::process::Signal;

const TOKEN: (&str, &str) = ("ENMASSE_TOKEN", "a secret that both hosts know");

/// Two ranks on each of two hosts.
fn mpirun(network: &Network, need: Need, program: &str, arguments: &[String]) -> Command {
    let mut command = network.command("h1", program);
    let agent = network.agent().display().to_string();
    match need {
        // Ranks that mpirun ends have three seconds to say why. It waits for as long.
        Need::OpenMpi => command
            .args(["--mca", "plm_rsh_agent", &agent, "--mca", "odls_base_sigkill_timeout", "3"])
            .args(["--oversubscribe", "--host", "h1:2,h2:2", "-n", "4"])
            .args(["-x", "MASTER_ADDR", "-x", TOKEN.0]),
        _ => command
            .args(["-launcher", "rsh", "-launcher-exec", &agent, "-hosts", "h1,h2", "-ppn", "2", "-n", "4"])
            .args(["-genvlist", &format!("MASTER_ADDR,{}", TOKEN.0)]),
    };
    command
        .arg(env!("CARGO_BIN_EXE_enmasse"))
        .args(arguments)
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .envs([("MASTER_ADDR", "h1"), TOKEN]);
    command
}

#[test]
fn the_weights_are_those_of_ranks_that_share_memory() {
    let Some(program) = test_support::mpirun(Need::OpenMpi) else { return };
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let runs = Folder::new("2");
    let (one, four) = (runs.path("one"), runs.path("four"));
    enmasse(&runs.arguments(&one, &["--shards", "4", "--devices", "cpu:1"])).well();
    let arguments = runs.arguments(&four, &["--shards", "4", "--transport", "mpi"]);
    let told = Running::start(&mut mpirun(&network, Need::OpenMpi, program, &arguments)).finish().well();
    let told = told.stdout + &told.stderr;
    let way = "ranks share memory on 2 nodes, which exchange data over Open MPI ";
    assert!(told.lines().any(|line| line.starts_with(way)), "{told}");
    assert_same(&one, &four);
}

/// MPICH 4.0 hung in `MPI_Finalize`, most of the times.
#[test]
fn a_library_that_hangs_at_its_end_is_refused() {
    let Some(program) = test_support::mpirun(Need::Mpich) else { return };
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let runs = Folder::new("1");
    let arguments = runs.arguments(&runs.path("run"), &["--transport", "mpi"]);
    let ended = Running::start(&mut mpirun(&network, Need::Mpich, program, &arguments)).finish();
    let told = ended.stdout + &ended.stderr;
    let of_this_version = "error: MPI cannot be used: MPICH 4.0.";
    let is_refused =
        told.contains(of_this_version) && told.contains(" is known to hang at its end between hosts, here h1");
    // A later one is used.
    let is_used = ended.code == Some(0) && told.contains("which exchange data over MPICH ");
    assert!(is_refused || is_used && !told.contains("MPICH 4.0."), "{told}");
}

/// mpirun then ends the other ranks, which must have named it before.
#[test]
fn a_rank_that_dies_is_named() {
    let Some(program) = test_support::mpirun(Need::OpenMpi) else { return };
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let runs = Folder::new("100000");
    let run = runs.path("run");
    let arguments = runs.arguments(&run, &["--transport", "mpi"]);
    let job = Running::start(&mut mpirun(&network, Need::OpenMpi, program, &arguments));
    let victim = crate::common::until("a rank in its steps", || {
        let lines = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        (!lines.is_empty()).then(|| network.process_with("OMPI_COMM_WORLD_RANK=3"))
    });
    send(victim, Signal::KILL);
    let ended = job.finish();
    let told = ended.stdout + &ended.stderr;
    assert!(ended.code != Some(0) && told.contains("error: rank 3 on host h2 exited"), "{told}");
}

#[test]
fn ranks_without_mpi_are_refused() {
    let runs = Folder::new("1");
    let check = |variables: &[(&str, &str)], code: i32, mentions: &[&str]| {
        let mut command = crate::common::program();
        command.args(runs.arguments(&runs.path("run"), &["--transport", "mpi"])).envs(variables.iter().copied());
        refused(&crate::common::finish(&mut command), code, mentions);
    };
    check(&[], 2, &["--transport mpi needs ranks that mpirun, mpiexec or srun --mpi=pmix has started, and nobody has"]);
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    check(
        &torchrun,
        2,
        &["--transport mpi needs ranks that", "and torchrun has started these: mpirun -n 4 enmasse train"],
    );
}
