//! An sbatch script: its requests to Slurm, and its text.

use crate::ScriptError;
use crate::job::SlurmJob;
use crate::shell::{Token, expand, quote, tokens};
use crate::sweep::Sweep;
use crate::value::{SignalAhead, TimeLimit, number};

/// Line width of the script, as far as words allow.
const COLUMNS: usize = 110;
const INDENT: &str = "    ";

/// The program that runs a container's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContainerRuntime {
    /// `apptainer exec`.
    Apptainer,
    /// `singularity exec`.
    Singularity,
    /// The plug-in that gives srun `--container-image`.
    Pyxis,
}

/// A container in which every rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// A file, or a name that the runtime knows.
    pub image: String,
    /// The program that runs it.
    pub runtime: ContainerRuntime,
    /// Folders mounted in addition to the working folder: `PATH` or `OUTSIDE:INSIDE`.
    pub mounts: Vec<String>,
}

/// The run folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunName {
    /// This folder.
    Fixed(String),
    /// A folder of this name followed by the job's id, so that no two jobs share one.
    PerJob(String),
}

/// An sbatch script. A field that is `None` leaves its option to the cluster's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The job's name.
    pub job_name: String,
    /// The partition in which to queue.
    pub partition: Option<String>,
    /// The account to charge.
    pub account: Option<String>,
    /// Quality of service.
    pub qos: Option<String>,
    /// Number of nodes.
    pub nodes: usize,
    /// Tasks per node; each task is a rank.
    pub ntasks_per_node: usize,
    /// Cores of each rank.
    pub cpus_per_task: usize,
    /// Devices of each node, such as `gpu:4`.
    pub gres: Option<String>,
    /// GPUs of each node, such as `4` or `a100:4`.
    pub gpus_per_node: Option<String>,
    /// GPUs of each rank, which then sees no other.
    pub gpus_per_task: Option<String>,
    /// Memory of each node, such as `64G`.
    pub memory: Option<String>,
    /// The time limit.
    pub time: Option<TimeLimit>,
    /// File of standard output; `%j` is the job's id, `%A` and `%a` an array's id and the element's index.
    pub output: Option<String>,
    /// File of standard error; without it, that of standard output.
    pub error: Option<String>,
    /// Events reported by mail, such as `END,FAIL`.
    pub mail_type: Option<String>,
    /// The recipient of mail.
    pub mail_user: Option<String>,
    /// Sent to the ranks before the time limit, so that they save.
    pub signal: Option<SignalAhead>,
    /// Whether Slurm may restart the job: after a node's failure, a preemption, or at the ranks' request.
    pub requeue: bool,
    /// Whether a rank that fails ends the others.
    pub kill_on_bad_exit: bool,
    /// Greatest number of array elements that run at the same time.
    pub array_limit: Option<usize>,
    /// Further options of sbatch, `--NAME` or `--NAME=VALUE`.
    pub extra: Vec<String>,
    /// Modules to load.
    pub modules: Vec<String>,
    /// The container in which the ranks run.
    pub container: Option<Container>,
    /// The run folder, or the folder of an array's runs.
    pub run: RunName,
    /// The program of a rank, with its subcommand; `--out` and an array element's flags follow.
    pub program: Vec<String>,
    /// The arguments after them.
    pub arguments: Vec<String>,
    /// Hyper-parameters, with a run for each combination; empty for a single run.
    pub sweep: Sweep,
}

impl Script {
    /// A script with a single rank and no further requests.
    pub fn new(job_name: impl Into<String>, program: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let job_name = job_name.into();
        Script {
            run: RunName::PerJob(format!("runs/{job_name}")),
            job_name,
            partition: None,
            account: None,
            qos: None,
            nodes: 1,
            ntasks_per_node: 1,
            cpus_per_task: 1,
            gres: None,
            gpus_per_node: None,
            gpus_per_task: None,
            memory: None,
            time: None,
            output: None,
            error: None,
            mail_type: None,
            mail_user: None,
            signal: None,
            requeue: true,
            kill_on_bad_exit: true,
            array_limit: None,
            extra: Vec::new(),
            modules: Vec::new(),
            container: None,
            program: program.into_iter().map(Into::into).collect(),
            arguments: Vec::new(),
            sweep: Sweep::default(),
        }
    }

    /// The script. [`crate::check()`] finds nothing in it.
    ///
    /// # Errors
    /// A value is empty, malformed, or has a character that no line of a script can hold, or the signal would arrive
    /// before the job begins.
    pub fn text(&self) -> Result<String, ScriptError> {
        self.check_words()?;
        let mut text = String::from("#!/bin/bash\n");
        for directive in self.directives()? {
            text.push_str(&format!("#SBATCH {directive}\n"));
        }
        let (nodes, tasks) = (self.nodes, self.ntasks_per_node);
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        text.push_str(&format!(
            "\n# Ranks: {nodes} node{} x {tasks} task{} = {}. Each finds its place in Slurm's variables.\nset -e\n",
            plural(nodes),
            plural(tasks),
            nodes.saturating_mul(tasks)
        ));
        for module in &self.modules {
            text.push_str(&format!("module load {}\n", quote(module)));
        }
        text.push_str(
            "\n# Ranks meet in the run folder, and a restarted job resumes from it: all nodes must share it.\n",
        );
        text.push_str(&self.run_lines());
        text.push('\n');
        if self.kill_on_bad_exit {
            text.push_str("# A rank that fails ends the others at once.\n");
        }
        text.push_str(&wrap(&self.command()));
        Ok(text)
    }

    /// Checks all words of the body, where they are quoted.
    fn check_words(&self) -> Result<(), ScriptError> {
        let container = self.container.iter().flat_map(|container| container.mounts.iter().chain([&container.image]));
        let (RunName::Fixed(run) | RunName::PerJob(run)) = &self.run;
        let values = self.sweep.axes.iter().flat_map(|axis| &axis.values);
        let mut words =
            self.program.iter().chain(&self.arguments).chain(&self.modules).chain(container).chain([run]).chain(values);
        match words.find(|word| word.contains(char::is_control)) {
            Some(word) => Err(ScriptError::Argument(word.clone())),
            None => Ok(()),
        }
    }

    fn directives(&self) -> Result<Vec<String>, ScriptError> {
        if let (Some(signal), Some(time)) = (&self.signal, &self.time)
            && time.seconds.is_some_and(|limit| limit <= signal.seconds)
        {
            return Err(ScriptError::SignalAtOnce { signal: signal.clone(), time: time.clone() });
        }
        if let Some(memory) = self.memory.as_ref().filter(|memory| !is_memory(memory)) {
            return Err(ScriptError::Memory(memory.clone()));
        }
        let count = |count: usize| Some(count.to_string());
        let elements = self.sweep.elements().len();
        let limit = self.array_limit.map_or(String::new(), |limit| format!("%{limit}"));
        let array = (elements > 0).then(|| format!("0-{}{limit}", elements - 1));
        let options = [
            ("job-name", Some(self.job_name.clone())),
            ("partition", self.partition.clone()),
            ("account", self.account.clone()),
            ("qos", self.qos.clone()),
            ("nodes", count(self.nodes)),
            ("ntasks-per-node", count(self.ntasks_per_node)),
            ("cpus-per-task", count(self.cpus_per_task)),
            ("gres", self.gres.clone()),
            ("gpus-per-node", self.gpus_per_node.clone()),
            ("gpus-per-task", self.gpus_per_task.clone()),
            ("mem", self.memory.clone()),
            ("time", self.time.as_ref().map(TimeLimit::to_string)),
            ("array", array),
            ("output", Some(self.output_file())),
            ("error", self.error.clone()),
            // Without it a second start of the job would overwrite the first one's output.
            ("open-mode", Some("append".to_owned())),
            ("mail-type", self.mail_type.clone()),
            ("mail-user", self.mail_user.clone()),
            ("signal", self.signal.as_ref().map(SignalAhead::to_string)),
        ];
        let mut lines = Vec::new();
        for (name, value) in &options {
            if let Some(value) = value {
                lines.push(format!("--{name}={}", directive_value(&format!("--{name}"), value)?));
            }
        }
        lines.push(if self.requeue { "--requeue" } else { "--no-requeue" }.to_owned());
        for extra in &self.extra {
            let malformed = || ScriptError::Extra(extra.clone());
            let option = extra.strip_prefix("--").ok_or_else(malformed)?;
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(malformed());
            }
            if options.iter().any(|(own, _)| *own == name)
                || ["requeue", "no-requeue", "ntasks", "gpus"].contains(&name)
            {
                return Err(ScriptError::ExtraTwice(extra.clone()));
            }
            lines.push(match value {
                Some(value) => format!("--{name}={}", directive_value(extra, value)?),
                None => extra.clone(),
            });
        }
        Ok(lines)
    }

    /// The file to which Slurm writes the job's output.
    pub fn output_file(&self) -> String {
        let id = if self.sweep.is_empty() { "%j" } else { "%A_%a" };
        // The job's name may contain characters that stand for a folder or a number in a file name.
        let name = self.job_name.replace(['/', '%'], "_");
        self.output.clone().unwrap_or_else(|| format!("{name}-{id}.out"))
    }

    /// The lines that set `run`, and for an array the flags of the element.
    fn run_lines(&self) -> String {
        if self.sweep.is_empty() {
            return format!("run={}\n", self.run_word(""));
        }
        let mut lines = String::from("case $SLURM_ARRAY_TASK_ID in\n");
        for element in self.sweep.elements() {
            let flags: Vec<String> = element.flags().iter().map(|flag| quote(flag)).collect();
            let folder = self.run_word(&format!("/{}", element.folder()));
            lines.push_str(&format!("{INDENT}{}) set -- {}; run={folder} ;;\n", element.index, flags.join(" ")));
        }
        let otherwise = "*) echo \"error: this script has no element $SLURM_ARRAY_TASK_ID\" >&2; exit 2 ;;";
        lines.push_str(&format!("{INDENT}{otherwise}\nesac\n"));
        lines
    }

    /// The run folder as a shell word.
    fn run_word(&self, below: &str) -> String {
        match &self.run {
            RunName::Fixed(folder) => quote(&format!("{folder}{below}")),
            RunName::PerJob(folder) => {
                let id = if self.sweep.is_empty() { "SLURM_JOB_ID" } else { "SLURM_ARRAY_JOB_ID" };
                let below = if below.is_empty() { String::new() } else { quote(below) };
                format!("{}${id}{below}", quote(&format!("{folder}-")))
            }
        }
    }

    /// The last command, as shell words: those of srun, of the container, and of the program.
    fn command(&self) -> [Vec<String>; 3] {
        let srun = vec![
            "srun".to_owned(),
            format!("--kill-on-bad-exit={}", u8::from(self.kill_on_bad_exit)),
            // Since 22.05 srun takes this number only from its own command line.
            "--cpus-per-task=\"$SLURM_CPUS_PER_TASK\"".to_owned(),
        ];
        let container = self.container.as_ref().map_or(Vec::new(), |container| self.container_words(container));
        let mut program: Vec<String> = self.program.iter().map(|word| quote(word)).collect();
        // Before the arguments, since one of them may be `--`.
        program.push("--out=\"$run\"".to_owned());
        if !self.sweep.is_empty() {
            program.push("\"$@\"".to_owned());
        }
        program.extend(self.arguments.iter().map(|word| quote(word)));
        [srun, container, program]
    }

    fn container_words(&self, container: &Container) -> Vec<String> {
        let mounts = || container.mounts.iter().map(|mount| quote(mount));
        let program = match container.runtime {
            ContainerRuntime::Pyxis => {
                // The working folder under its own name, since the command's paths may be relative to it.
                let mounts: String = mounts().map(|mount| format!(",{mount}")).collect();
                return vec![
                    format!("--container-image={}", quote(&container.image)),
                    format!("--container-mounts=\"$PWD:$PWD\"{mounts}"),
                    "--container-workdir=\"$PWD\"".to_owned(),
                ];
            }
            ContainerRuntime::Apptainer => "apptainer",
            ContainerRuntime::Singularity => "singularity",
        };
        let mut words = vec![program.to_owned(), "exec".to_owned()];
        let gres = self.gres.as_ref().is_some_and(|gres| gres.starts_with("gpu"));
        if gres || self.gpus_per_node.is_some() || self.gpus_per_task.is_some() {
            words.push("--nv".to_owned());
        }
        words.extend(["--bind".to_owned(), "\"$PWD\"".to_owned()]);
        words.extend(mounts().flat_map(|mount| ["--bind".to_owned(), mount]));
        words.extend(["--pwd".to_owned(), "\"$PWD\"".to_owned(), quote(&container.image)]);
        words
    }
}

/// A command on one line, or each of its parts on separate lines; all lines but the last end in backslashes.
fn wrap(parts: &[Vec<String>]) -> String {
    let whole = parts.concat().join(" ");
    if whole.chars().count() <= COLUMNS {
        return whole + "\n";
    }
    let mut lines: Vec<String> = Vec::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        lines.push(String::new());
        for word in part {
            let last = lines.last().map_or(0, |line| line.chars().count());
            if last > 0 && INDENT.len() + last + 1 + word.chars().count() > COLUMNS {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(word);
            }
        }
    }
    lines.join(&format!(" \\\n{INDENT}")) + "\n"
}

/// The form of a value in a directive.
fn directive_value(option: &str, value: &str) -> Result<String, ScriptError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    match value {
        "" => Err(ScriptError::Empty(option.to_owned())),
        value if value.contains(|c: char| c.is_control() || "\"'\\$".contains(c)) => {
            Err(ScriptError::Text { option: option.to_owned(), value: value.to_owned() })
        }
        value if value.chars().all(plain) => Ok(value.to_owned()),
        value => Ok(format!("\"{value}\"")),
    }
}

fn is_memory(text: &str) -> bool {
    let digits = text.strip_suffix(|c: char| "KMGTkmgt".contains(c)).unwrap_or(text);
    !digits.is_empty() && number(digits).is_some()
}

/// The run folder of a job, from the text of its script; relative to the job's working folder. `None` if the script was
/// not written by [`Script::text`], or if the job stands for several elements of an array.
pub fn run_folder(script: &str, job: &SlurmJob) -> Option<String> {
    let value = |name: &str| match name {
        "SLURM_JOB_ID" => job.id.to_string(),
        "SLURM_ARRAY_JOB_ID" => job.array.as_ref().map_or(String::new(), |(array, _)| array.to_string()),
        _ => String::new(),
    };
    let line = match &job.array {
        None => script.lines().find(|line| line.starts_with("run="))?,
        Some((_, element)) => {
            let index = number(element)?;
            script.lines().find_map(|line| line.strip_prefix(INDENT)?.strip_prefix(&format!("{index}) set -- ")))?
        }
    };
    // The last `run=` is the script's own; earlier ones are flags.
    tokens(line).iter().rev().find_map(|token| match token {
        Token::Word(word) => Some(expand(word, value).strip_prefix("run=")?.to_owned()),
        Token::Operator => None,
    })
}
