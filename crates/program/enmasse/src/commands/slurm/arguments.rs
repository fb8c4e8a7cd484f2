//! The command line of `enmasse slurm`. Options that sbatch also has keep its names.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, value_parser};

use crate::command_line::arguments::{count, file, group, option, path, switch};

/// The whole command line.
pub fn command() -> Command {
    group("slurm", "Write, submit, watch and check Slurm's batch scripts", [script(), submit(), status(), check()])
}

fn script() -> Command {
    Command::new("script")
        .about("Print a batch script that trains on the nodes of a cluster")
        .override_usage("enmasse slurm script [OPTIONS] -- [ARGUMENTS OF enmasse train]")
        .args(job())
        .arg(file("to", "Write it to this file, which must be new [default: standard output]"))
        .arg(train())
}

fn submit() -> Command {
    let of_a_job: Vec<_> = job().iter().map(|arg| arg.get_id().clone()).collect();
    Command::new("submit")
        .about("Submit such a script, or one that there is")
        .override_usage(
            "enmasse slurm submit [OPTIONS] -- [ARGUMENTS OF enmasse train]\n       enmasse slurm submit FILE",
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .value_parser(path)
                .conflicts_with_all(of_a_job)
                .conflicts_with("train")
                .help("A batch script; its mistakes are told, as by check"),
        )
        .args(job())
        .arg(switch("dry-run", "Print what would be run and submitted, and do nothing"))
        .arg(json())
        .arg(train())
}

fn status() -> Command {
    Command::new("status")
        .about("The state of jobs, and the last epoch of their runs")
        .arg(Arg::new("job").value_name("JOB").num_args(0..).help("Jobs: ID, or ID_ELEMENT [default: all of yours]"))
        .arg(json())
}

fn check() -> Command {
    Command::new("check")
        .about("Find the usual mistakes in a batch script; the exit code is 1 where there are some")
        .arg(Arg::new("file").value_name("FILE").required(true).value_parser(path).help("A batch script"))
        .arg(json())
}

fn json() -> Arg {
    switch("json", "Print JSON objects, one per line")
}

fn train() -> Arg {
    Arg::new("train")
        .value_name("TRAIN")
        .last(true)
        .num_args(0..)
        .allow_hyphen_values(true)
        .value_parser(value_parser!(OsString))
        .help("Arguments of enmasse train")
}

fn text(name: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    option(name, placeholder).help(help)
}

/// The options of a job.
fn job() -> Vec<Arg> {
    vec![
        text("job-name", "NAME", "The job's name [default: the model's]").short('J'),
        text("partition", "NAME", "Where to queue").short('p'),
        text("account", "NAME", "Whom to charge").short('A'),
        text("qos", "NAME", "Quality of service").short('q'),
        count("nodes", "N", "Number of nodes [default: 1]").short('N'),
        count("ntasks", "N", "Ranks of all nodes").short('n').conflicts_with("ntasks-per-node"),
        count("ntasks-per-node", "N", "Ranks of each node [default: one for each GPU, otherwise 1]"),
        count(
            "cpus-per-task",
            "N",
            "Cores of each rank [default: 8 of a rank with a GPU, or those that its node has for it, otherwise 1]",
        )
        .short('c'),
        count("cpus-per-gpu", "N", "Cores of each GPU's rank, as --cpus-per-task").conflicts_with("cpus-per-task"),
        text("gres", "LIST", "Devices of each node, such as gpu:4"),
        text("gpus-per-node", "[TYPE:]N", "GPUs of each node").conflicts_with("gres"),
        text("gpus", "[TYPE:]N", "GPUs of all nodes").short('G').conflicts_with_all(["gres", "gpus-per-node"]),
        text("gpus-per-task", "[TYPE:]1", "The GPU of each rank, which sees no other").conflicts_with_all([
            "gres",
            "gpus-per-node",
            "gpus",
        ]),
        text("mem", "SIZE", "Memory of each node, such as 64G"),
        text("time", "LIMIT", "Time limit: MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS, ...").short('t'),
        text("output", "FILE", "File of what the job says [default: NAME-%j.out, NAME-%A_%a.out of an array]")
            .short('o'),
        text("error", "FILE", "File of standard error [default: that of --output]").short('e'),
        text("mail-type", "EVENTS", "What to be told of by mail, such as END,FAIL"),
        text("mail-user", "ADDRESS", "Whom to tell"),
        text("array", "NAME=VALUE,...", "Settings of train and their values: a run for each combination, in an array")
            .num_args(1..)
            .action(ArgAction::Append),
        count("array-limit", "N", "Runs of the array at the same time, at most"),
        text(
            "signal",
            "NAME@SECONDS|none",
            "USR1, USR2 or TERM so long before the time limit: the ranks save, and at the first \
             two go on in a new start of the job [default: USR1@90; TERM@90 with --no-requeue]",
        ),
        switch("no-requeue", "Never start the job again: not after a node's failure, and not for a signal"),
        option("kill-on-bad-exit", "0|1")
            .short('K')
            .value_parser(["0", "1"])
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("1")
            .help("Whether a rank that fails ends the others [default: 1]"),
        text("module", "NAME", "Module to load; may be repeated").action(ArgAction::Append),
        text("container", "IMAGE", "Run the ranks in this container, which must hold enmasse"),
        text("container-runtime", "NAME", "What runs it [default: apptainer]")
            .value_parser(["apptainer", "singularity", "pyxis"])
            .requires("container"),
        text("container-mounts", "PATH[:INSIDE],...", "Folders to be seen inside, beside the working folder")
            .value_delimiter(',')
            .requires("container"),
        text("sbatch", "OPTION", "Any other option of sbatch, such as --sbatch=--constraint=h100; may be repeated")
            .allow_hyphen_values(true)
            .action(ArgAction::Append),
    ]
}
