//! `enmasse slurm script`: from options to a script, with the training's arguments checked as by `enmasse train`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{ArgMatches, Command};
use enmasse_slurm::{
    Axis, Container, ContainerRuntime, NODES, RunName, Script, SignalAhead, Sweep, cores_beside_gpus, gpus_of,
};
use enmasse_train::{ProgramConfig, RunConfig, Setting};

use super::tools::slurm;
use crate::command_line::arguments::given;
use crate::command_line::parse;
use crate::command_line::settings;
use crate::commands::train;
use crate::failure::{Failure, failed, usage};
use crate::output::Output;

/// Default time between the warning to the ranks and the time limit.
const SECONDS_AHEAD: u64 = 90;
/// Cores of a rank with a GPU, which decode its images, where nodes have as many.
const CORES_OF_A_GPU: usize = 8;
/// Settings that differ for each element, or that the job decides.
const NOT_SWEPT: [&str; 4] = ["out", "devices", "ranks", "resume"];

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(script) = script(matches)? else { return Ok(()) };
    let text = script.text().map_err(Failure::usage)?;
    let mut output = Output::new(false);
    match matches.get_one::<PathBuf>("to") {
        Some(path) => {
            write_new(path, &text)?;
            output.text(format_args!("submit with: sbatch {}", path.display()));
        }
        None => output.block(text.trim_end()),
    }
    output.finish()
}

fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let refused = |error| failed!("cannot write {}: {error}", path.display());
    let mut file = File::create_new(path).map_err(refused)?;
    file.write_all(text.as_bytes()).map_err(refused)
}

/// The requested script; `None` if the training's arguments ask for help, which is printed.
pub fn script(matches: &ArgMatches) -> Result<Option<Script>, Failure> {
    // Scripts may be written elsewhere than on the cluster.
    script_for(matches, &|| Some(slurm("sinfo", &NODES, "").ok().filter(|said| said.success)?.stdout))
}

/// The same for a cluster of these nodes.
fn script_for(matches: &ArgMatches, nodes: &dyn Fn() -> Option<String>) -> Result<Option<Script>, Failure> {
    let words: Vec<String> = matches
        .get_many::<OsString>("train")
        .into_iter()
        .flatten()
        .map(|word| word.to_str().map(str::to_owned))
        .collect::<Option<_>>()
        .ok_or_else(|| usage!("the arguments of train must be UTF-8 text"))?;
    let Some(train) = train_matches(&words)? else { return Ok(None) };
    let config = train_config(&train)?;
    let folder = config.train.resume.run().or(config.train.out.as_deref());
    if config.train.resume.is_on() && folder.is_none() {
        return Err(usage!("--resume: a new job has a new folder; name the run, as in --resume RUN"));
    }
    let sweep = sweep(matches, &words, &train)?;

    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let texts = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<_>>();
    let count = |name: &str| matches.get_one::<usize>(name).copied();
    let job_name = text("job-name").unwrap_or_else(|| config.train.model.clone());
    let layout = JobLayout::of(matches, &config.program)?;
    let time = text("time").map(|time| time.parse()).transpose().map_err(Failure::usage)?;
    let requeue = !matches.get_flag("no-requeue");
    let mut script = Script {
        partition: text("partition"),
        account: text("account"),
        qos: text("qos"),
        nodes: layout.nodes,
        ntasks_per_node: layout.tasks,
        cpus_per_task: match count("cpus-per-task").or(count("cpus-per-gpu")) {
            Some(cores) => cores,
            None if layout.has_gpus => layout.cores_of_a_gpu(text("partition").as_deref(), nodes),
            None => 1,
        },
        gres: text("gres"),
        gpus_per_node: layout.gpus_per_node,
        gpus_per_task: text("gpus-per-task"),
        memory: text("mem"),
        output: text("output"),
        error: text("error"),
        mail_type: text("mail-type"),
        mail_user: text("mail-user"),
        requeue,
        kill_on_bad_exit: text("kill-on-bad-exit").is_none_or(|choice| choice == "1"),
        array_limit: count("array-limit"),
        extra: texts("sbatch"),
        modules: texts("module"),
        arguments: without_out(words),
        sweep,
        time,
        ..Script::new(job_name, Vec::<String>::new())
    };
    script.signal = signal(text("signal").as_deref(), &script)?;
    if let Some(image) = text("container") {
        let runtime = match text("container-runtime").as_deref() {
            Some("pyxis") => ContainerRuntime::Pyxis,
            Some("singularity") => ContainerRuntime::Singularity,
            _ => ContainerRuntime::Apptainer,
        };
        script.container = Some(Container { image, runtime, mounts: texts("container-mounts") });
    }
    let program = if script.container.is_some() { "enmasse".to_owned() } else { own_name()? };
    script.program = vec![program, "train".to_owned()];
    if let Some(signal) = script.signal.as_ref().filter(|signal| signal.name == "USR2") {
        script.program.push(format!("--requeue-signal={}", signal.name));
    }
    if let Some(out) = folder {
        let out = out.to_str().ok_or_else(|| usage!("--out {}: must be UTF-8 text", out.display()))?;
        script.run = RunName::Fixed(out.to_owned());
    }
    if script.array_limit.is_some() && script.sweep.is_empty() {
        return Err(usage!("--array-limit: there is no array; set one with --array"));
    }
    Ok(Some(script))
}

/// Nodes, ranks and GPUs that fit each other.
struct JobLayout {
    nodes: usize,
    /// Ranks of each node.
    tasks: usize,
    has_gpus: bool,
    /// The value of this option of sbatch, if `--gres` or `--gpus-per-task` does not give the GPUs.
    gpus_per_node: Option<String>,
}

impl JobLayout {
    /// What the options ask for. A rank computes on one GPU.
    fn of(matches: &ArgMatches, config: &ProgramConfig) -> Result<Self, Failure> {
        let count = |name: &str| matches.get_one::<usize>(name).copied();
        let text = |name: &str| matches.get_one::<String>(name).map(|text| (format!("--{name} {text}"), text.as_str()));
        let nodes = count("nodes").unwrap_or(1);
        let each = |said: &str, all: usize| match all % nodes {
            0 => Ok(all / nodes),
            _ => Err(usage!("{said}: must be a multiple of --nodes {nodes}: all nodes are alike")),
        };
        let given =
            ["gres", "gpus-per-node", "gpus", "gpus-per-task"].into_iter().find_map(|name| Some((name, text(name)?)));
        let gpus = given.as_ref().and_then(|(name, (said, value))| Some((*name, said, *value, gpus_of(value, name)?)));
        let of_gpus = match (&given, &gpus) {
            (Some((name, (said, _))), None) if *name != "gres" => {
                return Err(usage!("{said}: must be a number of GPUs, or TYPE:N"));
            }
            (_, Some((name @ "gpus-per-task", said, _, gpus @ 2..))) => {
                return Err(usage!("{said}: a rank computes on one GPU; use --{name} 1, and {gpus} times the tasks"));
            }
            (_, None | Some(("gpus-per-task", ..))) => None,
            (_, Some(("gpus", said, _, all))) => Some(each(said, *all as usize)?),
            (_, Some((.., all))) => Some(*all as usize),
        };
        let tasks = match count("ntasks") {
            Some(all) => Some(each(&format!("--ntasks {all}"), all)?),
            None => count("ntasks-per-node"),
        };
        if let (Some(gpus), Some(tasks), Some((_, said, ..))) = (of_gpus, tasks, &gpus)
            && gpus != tasks
        {
            return Err(usage!(
                "{said}: each node has {gpus} of them for {tasks} ranks, and a rank computes on one; ask for as many of both"
            ));
        }
        match (&gpus, config.devices.as_ref().map(|devices| devices.kind.as_str())) {
            (Some((_, said, ..)), Some("cpu")) => {
                return Err(usage!("{said}: --devices cpu leaves the GPUs idle; leave one of them out"));
            }
            (None, Some("gpu")) => {
                return Err(usage!(
                    "--devices gpu: the job has no GPU; ask for one with --gres gpu:N or --gpus-per-task 1"
                ));
            }
            _ => {}
        }
        if let (None, Some(cores)) = (&gpus, count("cpus-per-gpu")) {
            return Err(usage!("--cpus-per-gpu {cores}: the job has no GPU; use --cpus-per-task"));
        }
        let gpus_per_node = match &gpus {
            Some(("gpus", _, value, _)) => {
                let kind = value.rsplit_once(':').map_or(String::new(), |(kind, _)| format!("{kind}:"));
                of_gpus.map(|gpus| format!("{kind}{gpus}"))
            }
            _ => text("gpus-per-node").map(|(_, value)| value.to_owned()),
        };
        Ok(JobLayout { nodes, tasks: tasks.or(of_gpus).unwrap_or(1), has_gpus: gpus.is_some(), gpus_per_node })
    }
}

impl JobLayout {
    /// Cores of each rank: a job that asks for more than a node has would wait for ever.
    fn cores_of_a_gpu(&self, partition: Option<&str>, nodes: &dyn Fn() -> Option<String>) -> usize {
        let of_node = nodes().and_then(|nodes| cores_beside_gpus(&nodes, partition, self.tasks));
        of_node.map_or(CORES_OF_A_GPU, |cores| (cores / self.tasks).clamp(1, CORES_OF_A_GPU))
    }
}

/// The command line of `enmasse train` with these arguments.
fn train_matches(words: &[String]) -> Result<Option<ArgMatches>, Failure> {
    let line = ["enmasse", "train"].into_iter().chain(words.iter().map(String::as_str)).map(OsString::from);
    let command = Command::new("enmasse").subcommand(train::command());
    let matches = parse(command, line).map_err(|failure| match failure {
        Failure::Usage(message) => usage!("train: {message}"),
        other => other,
    })?;
    Ok(matches.and_then(|mut matches| matches.remove_subcommand()).map(|(_, train)| train))
}

/// The resulting configuration: every error shows here rather than hours later on a node.
fn train_config(train: &ArgMatches) -> Result<RunConfig, Failure> {
    let config = settings::layers(train)?.finish()?;
    enmasse_models::find(&config.train.model).map_err(Failure::usage)?;
    match &config.program.devices {
        Some(devices) if devices.count() > 1 => Err(usage!(
            "--devices {devices}: in a job each task is a rank of one device; use --nodes and --ntasks-per-node instead"
        )),
        _ => Ok(config),
    }
}

/// The array. Each element must be valid for `enmasse train`.
fn sweep(matches: &ArgMatches, words: &[String], train: &ArgMatches) -> Result<Sweep, Failure> {
    let axes = matches.get_many::<String>("array").into_iter().flatten();
    let axes: Vec<Axis> = axes.map(|axis| Axis::parse(axis)).collect::<Result<_, _>>().map_err(Failure::usage)?;
    for Axis { name, .. } in &axes {
        let refuse = |why: &str| Err(usage!("--array {name}: {why}"));
        match Setting::find(name) {
            None => return refuse("enmasse train has no such setting"),
            Some(setting) if NOT_SWEPT.contains(&setting.name) => return refuse("the script decides this itself"),
            Some(setting) if given(train).any(|(given, _)| given == setting.name) => {
                return refuse("the arguments of train set it too; leave one of them out");
            }
            Some(_) => {}
        }
    }
    let sweep = Sweep::new(axes).map_err(Failure::usage)?;
    for element in sweep.elements() {
        let line: Vec<String> = element.flags().iter().chain(words).cloned().collect();
        train_matches(&line)?.map(|train| train_config(&train)).transpose()?;
    }
    Ok(sweep)
}

fn signal(asked: Option<&str>, script: &Script) -> Result<Option<SignalAhead>, Failure> {
    let limit = script.time.as_ref().and_then(|time| time.seconds);
    match asked {
        Some("none") => Ok(None),
        Some(text) => {
            let signal = SignalAhead::from_str(text).map_err(Failure::usage)?;
            if signal.name != "TERM" && !script.requeue {
                return Err(usage!(
                    "--signal {signal} with --no-requeue: the signal asks for a restart, which is forbidden; use TERM@{}",
                    signal.seconds
                ));
            }
            Ok(Some(signal))
        }
        // With a shorter limit the signal would arrive at once.
        None if limit.is_some_and(|limit| limit <= SECONDS_AHEAD) => Ok(None),
        None => {
            let name = if script.requeue { "USR1" } else { "TERM" };
            SignalAhead::from_str(&format!("{name}@{SECONDS_AHEAD}")).map(Some).map_err(Failure::usage)
        }
    }
}

/// The arguments without `--out`, which the script sets itself.
fn without_out(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--" => {
                kept.push(word);
                kept.extend(words.by_ref());
            }
            "--out" => drop(words.next()),
            other if other.starts_with("--out=") => {}
            _ => kept.push(word),
        }
    }
    kept
}

/// The name of this program on a node: `enmasse` if the search path finds it, or its full path.
fn own_name() -> Result<String, Failure> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize());
    let own = own.map_err(|error| failed!("cannot find this program's own file: {error}"))?;
    let found = std::env::var_os("PATH").and_then(|search| {
        std::env::split_paths(&search)
            .map(|folder| folder.join("enmasse"))
            .find(|path| path.is_file())?
            .canonicalize()
            .ok()
    });
    match own.to_str() {
        _ if found.as_ref() == Some(&own) => Ok("enmasse".to_owned()),
        Some(path) => Ok(path.to_owned()),
        None => Err(failed!("{}: a script needs a UTF-8 path; put it on the PATH", own.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments;
    use super::*;

    /// The script of a command line, or the message.
    fn written(line: &str) -> Result<String, String> {
        written_for(line, None)
    }

    /// The same on a cluster of these nodes.
    fn written_for(line: &str, nodes: Option<&str>) -> Result<String, String> {
        let line = ["slurm", "script"].into_iter().chain(line.split_whitespace()).map(OsString::from);
        let matches = parse(arguments::command(), line).and_then(|matches| {
            let nodes = || nodes.map(str::to_owned);
            let script = script_for(matches.unwrap().subcommand().unwrap().1, &nodes)?.unwrap();
            script.text().map_err(Failure::usage)
        });
        matches.map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn options_appear_in_the_script() {
        let check = |line: &str, expected: &[&str]| {
            let text = written(line).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let has = |line: &&&str| lines.iter().any(|found| found == *line);
            let missing: Vec<_> = expected.iter().filter(|line| !has(line)).collect();
            assert!(missing.is_empty(), "{missing:?} not in\n{text}");
        };
        let sbatch = "#SBATCH --signal=USR1@90";
        check("", &["#SBATCH --job-name=resnet18", sbatch, "#SBATCH --requeue", "run=runs/resnet18-$SLURM_JOB_ID"]);
        check(
            "-N 2 --ntasks-per-node 4 -c 8 -t 10",
            &["#SBATCH --nodes=2", "#SBATCH --cpus-per-task=8", "#SBATCH --time=10", sbatch],
        );
        check("--no-requeue", &["#SBATCH --no-requeue", "#SBATCH --signal=TERM@90"]);
        check("-J a -- --out=~x/y --model mlp", &["run='~x/y'"]);
        check("-J a -- --epochs 3 --out x/y -- data", &["run=x/y"]);
        check("--sbatch --exclusive --sbatch=--constraint=a", &["#SBATCH --exclusive", "#SBATCH --constraint=a"]);
        let element = "1) set -- --lr=0.1 --batch=8; run=runs/resnet18-$SLURM_ARRAY_JOB_ID/1-lr=0.1-batch=8 ;;";
        check("--array lr=0.1 batch=4,8 --array-limit 1", &["#SBATCH --array=0-1%1", element]);
        assert!(!written("--time 1").unwrap().contains("--signal"));
        assert!(!written("--signal none").unwrap().contains("--signal"));
        assert!(written("--signal USR2@60").unwrap().contains("train --requeue-signal=USR2 --out=\"$run\""));
        let kept = without_out(["--epochs", "3", "--out", "a", "--out=b", "--", "--out"].map(str::to_owned).into());
        assert_eq!(kept, ["--epochs", "3", "--", "--out"]);
    }

    /// These booked GPUs, and one core for the only rank, which trained on it.
    #[test]
    fn booked_gpus_have_a_rank_each_and_its_cores() {
        let check = |line: &str, expected: &[&str]| {
            let text = written(line).unwrap();
            let missing: Vec<_> = expected.iter().filter(|line| !text.lines().any(|found| found == **line)).collect();
            assert!(missing.is_empty(), "{line}: {missing:?} not in\n{text}");
            assert_eq!(enmasse_slurm::check(&text), [], "{text}");
        };
        let four = "#SBATCH --ntasks-per-node=4";
        let cores = "#SBATCH --cpus-per-task=8";
        check("--gres gpu:4", &["#SBATCH --gres=gpu:4", four, cores]);
        check("--gres gpu:a100:4,nvme:1 -c 3", &[four, "#SBATCH --cpus-per-task=3"]);
        check("--gpus-per-node 4", &["#SBATCH --gpus-per-node=4", four, cores]);
        check("--gpus a100:8 -N 2", &["#SBATCH --gpus-per-node=a100:4", "#SBATCH --nodes=2", four, cores]);
        check("--gpus-per-task 1 -n 8 -N 2", &["#SBATCH --gpus-per-task=1", four, cores]);
        check("-n 4", &[four, "#SBATCH --cpus-per-task=1"]);
        check("--gres gpu:1 -- --devices gpu", &["#SBATCH --ntasks-per-node=1", cores]);
        let refused = |line: &str, expected: &str| assert_eq!(written(line).unwrap_err(), expected, "{line}");
        refused("-n 5 -N 2", "--ntasks 5: must be a multiple of --nodes 2: all nodes are alike");
        refused("--gpus 5 -N 2", "--gpus 5: must be a multiple of --nodes 2: all nodes are alike");
        refused("--gpus x", "--gpus x: must be a number of GPUs, or TYPE:N");
        refused(
            "--gpus-per-task 2",
            "--gpus-per-task 2: a rank computes on one GPU; use --gpus-per-task 1, and 2 times the tasks",
        );
        refused(
            "--gres gpu:4 --ntasks-per-node 2",
            "--gres gpu:4: each node has 4 of them for 2 ranks, and a rank computes on one; ask for as many of both",
        );
        let idle = "--gres gpu:4: --devices cpu leaves the GPUs idle; leave one of them out";
        refused("--gres gpu:4 -- --devices cpu", idle);
        let none = "--devices gpu: the job has no GPU; ask for one with --gres gpu:N or --gpus-per-task 1";
        refused("-- --devices gpu", none);
    }

    /// Such a job waited for ever.
    #[test]
    fn more_cores_were_asked_for_than_a_node_has() {
        let check = |line: &str, nodes: Option<&str>, cores: usize| {
            let text = written_for(line, nodes).unwrap();
            let expected = format!("#SBATCH --cpus-per-task={cores}\n");
            assert!(text.contains(&expected), "{line} {nodes:?}\n{text}");
        };
        let small = Some("main* 8 gpu:4\n");
        let both = Some("main* 8 gpu:4\nbig 64 gpu:h100:8(S:0-1)\ncpu 128 (null)\n");
        check("--nodes 2 --gres gpu:4", small, 2);
        check("--nodes 2 --gres gpu:4 -c 4", small, 4);
        check("--gpus-per-task 1 -n 2 --cpus-per-gpu 3", small, 3);
        check("--gres gpu:1", small, 8);
        check("--gpus 8 -p big", Some("big* 32 gpu:h100:8(S:0-1)\n"), 4);
        check("--gpus 4 -p big", both, 8);
        check("--gpus-per-node 8 -p other,main", both, 8);
        check("--gres gpu:4", None, 8);
        let none = "--cpus-per-gpu 2: the job has no GPU; use --cpus-per-task";
        assert_eq!(written_for("-n 2 --cpus-per-gpu 2", small).unwrap_err(), none);
    }

    #[test]
    fn arguments_that_train_refuses_are_refused_here() {
        let check = |line: &str, expected: &str| assert_eq!(written(line).unwrap_err(), expected, "{line}");
        check("-- --epoch 3", "train: unexpected argument '--epoch' found: did you mean --epochs?");
        check("--array lr=0.1 rate=3", "--array rate: enmasse train has no such setting");
        check("--array out=a,b", "--array out: the script decides this itself");
        check("--array lr=0.1,0.2 -- --lr 3", "--array lr: the arguments of train set it too; leave one of them out");
        check("-- --resume", "--resume: a new job has a new folder; name the run, as in --resume RUN");
        check("--array-limit 2", "--array-limit: there is no array; set one with --array");
        check(
            "-- --devices cpu:4",
            "--devices cpu:4: in a job each task is a rank of one device; use --nodes and --ntasks-per-node instead",
        );
        check(
            "--signal USR1@60 --no-requeue",
            "--signal USR1@60 with --no-requeue: the signal asks for a restart, which is forbidden; use TERM@60",
        );
        check("--array epochs=1,x", "--epochs x: must be a whole number, 1 or more");
        assert!(written("-- --model nonesuch").unwrap_err().contains("nonesuch"));
        assert!(written("data").unwrap_err().contains("data"));
    }
}
