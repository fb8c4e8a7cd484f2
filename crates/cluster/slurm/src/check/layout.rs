//! Tasks, cores and devices: whether the requested resources match the started processes.

use super::commands::{Body, Command};
use super::directives::{Directive, Directives};
use super::{Finding, find, quoted};
use crate::value::number;

pub(super) fn check(directives: &Directives, body: &Body, findings: &mut Vec<Finding>) {
    let tasks = Tasks::of(directives);
    tasks.check_product(directives, findings);
    check_cpus(directives, body, findings);
    check_gpus(directives, body, &tasks, findings);
    check_use(directives, body, &tasks, findings);
    check_srun(&tasks, body, findings);
    check_folders(directives, body, findings);
    for srun in body.sruns().filter(|srun| tasks.total() == 1 || !srun.is_single()) {
        check_options(srun, &tasks, directives, body, findings);
    }
}

/// The number of tasks, as far as the directives give it.
struct Tasks {
    nodes: Option<u64>,
    per_node: Option<u64>,
    /// The value of `--ntasks`.
    all: Option<u64>,
}

impl Tasks {
    fn of(directives: &Directives) -> Self {
        let nodes = match directives.get("nodes") {
            Some(_) => directives.count("nodes"),
            None => Some(1),
        };
        Tasks { nodes, per_node: directives.count("ntasks-per-node"), all: directives.count("ntasks") }
    }

    fn total(&self) -> u64 {
        self.all.unwrap_or_else(|| self.nodes.unwrap_or(1).saturating_mul(self.per_node.unwrap_or(1)))
    }

    /// The number of tasks per node.
    fn each(&self) -> Option<u64> {
        self.per_node.or(match (self.all, self.nodes) {
            (Some(all), Some(nodes)) if all.is_multiple_of(nodes) => Some(all / nodes),
            (None, _) => Some(1),
            _ => None,
        })
    }

    fn check_product(&self, directives: &Directives, findings: &mut Vec<Finding>) {
        let (Some(nodes), Some(per_node), Some(all)) = (self.nodes, self.per_node, self.all) else { return };
        let (product, Some(ntasks)) = (nodes.saturating_mul(per_node), directives.get("ntasks")) else { return };
        if directives.get("nodes").is_some() && product != all {
            let problem = format!("--ntasks={all}, but --nodes={nodes} x --ntasks-per-node={per_node} is {product}");
            find(findings, ntasks.line, problem, "leave --ntasks out: nodes x tasks per node already sets it");
        }
    }
}

/// Several tasks, but a command that starts only once.
fn check_srun(tasks: &Tasks, body: &Body, findings: &mut Vec<Finding>) {
    let Some(command) = body.alone() else { return };
    let words = quoted(&command.words.join(" "));
    let mend = format!("srun {words}");
    match command.node_launcher() {
        // The launcher starts the ranks of its own node.
        Some(launcher) => {
            if let Some(nodes @ 2..) = tasks.nodes {
                let problem = format!("{launcher} runs only on the first of {nodes} nodes");
                find(findings, command.line, problem, format!("srun --ntasks-per-node=1 {words}"));
            }
        }
        None if tasks.total() > 1 => {
            let problem = format!("no srun: one process starts although {} tasks are requested", tasks.total());
            find(findings, command.line, problem, mend);
        }
        None => {}
    }
}

fn check_cpus(directives: &Directives, body: &Body, findings: &mut Vec<Finding>) {
    let given = ["cpus-per-task", "cpus-per-gpu"].iter().any(|name| directives.get(name).is_some());
    let on_each_srun = body.sruns().count() > 0 && body.sruns().all(|srun| srun.has_option(CPUS));
    if !given && !on_each_srun {
        let place = ["ntasks-per-node", "ntasks"].iter().find_map(|name| directives.get(name));
        let line = place.map_or(directives.last_line(), |directive| directive.line);
        let problem = "no --cpus-per-task: all threads of a task share one core, including those that load data";
        find(findings, line, problem, "#SBATCH --cpus-per-task=8, or the cores of a node divided by its tasks");
    }
}

/// An output folder that only the script itself creates.
fn check_folders(directives: &Directives, body: &Body, findings: &mut Vec<Finding>) {
    for directive in ["output", "error"].into_iter().filter_map(|name| directives.get(name)) {
        let Some((folder, _)) = directive.value.rsplit_once('/') else { continue };
        if !folder.is_empty() && body.makes_folder(folder) {
            let Directive { line, name, .. } = directive;
            let problem = format!(
                "--{name}: Slurm opens the file before the script creates {}, and ends the job",
                quoted(folder)
            );
            find(findings, *line, problem, format!("run before sbatch: mkdir -p {}", quoted(folder)));
        }
    }
}

/// GPUs that are booked and not used, or used and not booked.
fn check_use(directives: &Directives, body: &Body, tasks: &Tasks, findings: &mut Vec<Finding>) {
    let booked = booked(directives, &GPU_OPTIONS);
    for (command, training) in body.trainings() {
        let on_cpus = training.devices.is_some_and(|devices| devices == "cpu" || devices.starts_with("cpu:"));
        let on_gpus = training.devices.is_some_and(|devices| devices.starts_with("gpu") || devices.starts_with("cuda"));
        let on_srun =
            GPU_OPTIONS.iter().any(|name| command.has_option(&[&format!("--{name}")])) || command.has_option(&["-G"]);
        match booked {
            Some((Directive { name, value, .. }, _)) if on_cpus => {
                let problem = format!("--{name}={} books GPUs, and this computes on CPUs", quoted(value));
                find(findings, command.line, problem, "leave --devices out: auto takes the GPUs that work");
            }
            None if on_gpus && !on_srun && directives.get("exclusive").is_none() => {
                let problem = "this computes on GPUs, and the job books none";
                find(findings, command.line, problem, "#SBATCH --gpus-per-task=1, or --gres=gpu:N for each node");
            }
            _ => {}
        }
    }
    for (command, _) in body.trainings() {
        check_ranks(command, directives, tasks, findings);
    }
    let is_own = body.trainings().next().is_some();
    let Some((Directive { line, name, value, .. }, gpus)) = booked.filter(|_| is_own) else { return };
    match (name.as_str(), tasks.total()) {
        ("gpus-per-task", _) if gpus > 1 => {
            let problem = format!("--{name}={}: {gpus} GPUs for each task, and a rank computes on one", quoted(value));
            find(findings, *line, problem, format!("#SBATCH --gpus-per-task=1, and {gpus} times the tasks"));
        }
        ("gpus", all @ 2..) if all != gpus && !body.is_launched() => {
            let problem = format!("--{name}={}: {gpus} GPUs for {all} tasks", quoted(value));
            find(findings, *line, problem, format!("one task per GPU: #SBATCH --ntasks={gpus}"));
        }
        _ => {}
    }
}

/// GPUs beside the ranks of a command: too many, too few, or with too few cores. A single task takes all GPUs of its node.
fn check_ranks(command: &Command, directives: &Directives, tasks: &Tasks, findings: &mut Vec<Finding>) {
    let Some((Directive { name, value, .. }, gpus)) = booked(directives, &GPU_OPTIONS) else { return };
    let nodes = if name == "gpus" { Some(1) } else { tasks.nodes };
    let started = command.option(&["--ntasks", "-n"]).and_then(number);
    let option = format!("--{name}={}", quoted(value));
    match (command.launched_ranks(), started, nodes.and_then(|nodes| gpus.checked_mul(nodes))) {
        (Some(ranks), ..) if ranks != gpus && GPU_OPTIONS[..2].contains(&name.as_str()) => {
            let problem = format!("{option}: {gpus} GPUs of a node for {ranks} launched ranks");
            find(findings, command.line, problem, format!("one rank per GPU: launch -n {gpus}"));
        }
        (None, Some(started @ 2..), Some(all)) if started != all && name != "gpus-per-task" => {
            let problem = format!("{option}: {all} GPUs for {started} tasks of srun");
            find(findings, command.line, problem, format!("one task per GPU: srun --ntasks={all}"));
        }
        _ => {}
    }
    let cores = directives.get("cpus-per-task").filter(|cores| number(&cores.value) == Some(1));
    if let Some(Directive { line, .. }) =
        cores.filter(|_| !command.has_option(CPUS) || command.option(CPUS) == Some("1"))
    {
        let problem = "--cpus-per-task=1: one core decodes the images of a GPU, which waits for them";
        find(findings, *line, problem, "#SBATCH --cpus-per-task=8, or the cores of a node divided by its tasks");
    }
}

/// The options that book GPUs, first those that do so for each node.
const GPU_OPTIONS: [&str; 4] = ["gres", "gpus-per-node", "gpus-per-task", "gpus"];

/// The first of these options that is given, and its number of GPUs.
fn booked<'a>(directives: &'a Directives, options: &[&str]) -> Option<(&'a Directive, u64)> {
    options.iter().find_map(|name| {
        let directive = directives.get(name)?;
        Some((directive, gpus_of(&directive.value, name)?))
    })
}

fn check_gpus(directives: &Directives, body: &Body, tasks: &Tasks, findings: &mut Vec<Finding>) {
    let Some((Directive { line, name, value, .. }, gpus)) = booked(directives, &GPU_OPTIONS[..2]) else { return };
    // One task can use all devices of its node, and a launcher starts further processes.
    if let Some(each @ 2..) = tasks.each().filter(|&each| each != gpus && !body.is_launched()) {
        let problem = format!("--{name}={}: {gpus} GPUs of a node for {each} tasks", quoted(value));
        find(findings, *line, problem, format!("one task per GPU: #SBATCH --ntasks-per-node={gpus}"));
    }
}

/// The number of GPUs in `gpu:4`, `gpu:a100:4` or, for other options of sbatch than `gres`, `4` or `a100:4`.
pub fn gpus_of(value: &str, option: &str) -> Option<u64> {
    let value = match option {
        "gres" => value.split(',').find_map(|part| part.strip_prefix("gpu").filter(|rest| !rest.starts_with('_')))?,
        _ => value,
    };
    let count = value.split('(').next().and_then(|value| number(value.rsplit(':').next()?));
    if value.is_empty() { Some(1) } else { count.filter(|&count| count > 0) }
}

const CPUS: &[&str] = &["--cpus-per-task", "-c", "--cpus-per-gpu"];
const KILL: &[&str] = &["--kill-on-bad-exit", "-K"];

fn check_options(srun: &Command, tasks: &Tasks, directives: &Directives, body: &Body, findings: &mut Vec<Finding>) {
    let inherited = body.sets(&["SRUN_CPUS_PER_TASK"]);
    if directives.count("cpus-per-task").is_some_and(|count| count > 1) && !srun.has_option(CPUS) && !inherited {
        let problem = "srun does not inherit --cpus-per-task (Slurm 22.05 to 23.02): each task gets one core";
        find(findings, srun.line, problem, "srun --cpus-per-task=\"$SLURM_CPUS_PER_TASK\" ...");
    }
    if tasks.total() > 1 {
        if !srun.has_option(KILL) && !body.sets(&["SLURM_KILL_BAD_EXIT"]) {
            let problem = "a task that fails leaves the others waiting for it until the time limit";
            find(findings, srun.line, problem, "srun --kill-on-bad-exit=1 ...");
        }
        if let (Some(launcher), Some(each @ 2..)) = (srun.node_launcher(), tasks.each())
            && !srun.has_option(&["--ntasks-per-node"])
        {
            let problem =
                format!("{launcher} is started {each} times on each node, and starts that node's ranks each time");
            let mend = "#SBATCH --ntasks-per-node=1, and all cores of a node as --cpus-per-task";
            find(findings, srun.line, problem, mend);
        }
    }
    let to_shell = directives.get("signal").filter(|signal| signal.value.starts_with("B:"));
    let waits = body.waits();
    if let Some(signal) = to_shell.filter(|_| !waits) {
        let problem =
            format!("--signal={} goes to the shell, which handles it only after srun has ended", quoted(&signal.value));
        let mend = format!("#SBATCH --signal={}, or srun ... & wait", quoted(signal.value.trim_start_matches("B:")));
        find(findings, signal.line, problem, mend);
    }
}
