//! The flags of `enmasse launch`, which are torchrun's, and their variables `PET_NAME`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::command_line::arguments::option;
use crate::failure::{Failure, usage};

/// A flag: its name, its letter, its value's placeholder (`None` for a switch), and its help.
type Flag = (&'static str, Option<char>, Option<&'static str>, &'static str);

pub const FLAGS: &[Flag] = &[
    (
        "nproc-per-node",
        Some('n'),
        Some("N|auto|cpu|gpu"),
        "Ranks of this node: a number, its cores, or its GPUs [default: 1]",
    ),
    ("nnodes", None, Some("N|MIN:MAX"), "Number of nodes, or how few and how many there may be [default: 1]"),
    ("node-rank", None, Some("R"), "This node, from 0, where nodes are numbered by hand [default: 0]"),
    ("master-addr", None, Some("HOST"), "Node 0, where rank 0 opens the store [default: 127.0.0.1]"),
    ("master-port", None, Some("PORT"), "Its port [default: a free one; with several nodes 29500]"),
    ("rdzv-endpoint", None, Some("HOST:PORT"), "Where nodes meet and are numbered"),
    ("rdzv-id", None, Some("ID"), "The job's name, the same on all nodes"),
    ("rdzv-backend", None, Some("static|c10d"), "How nodes meet: numbered by hand, or at the endpoint"),
    (
        "rdzv-conf",
        None,
        Some("KEY=VALUE,..."),
        "join_timeout [default: 600], last_call_timeout, keep_alive_interval (seconds) and keep_alive_max_attempt",
    ),
    ("local-addr", None, Some("HOST"), "The name by which other nodes reach this one"),
    ("standalone", None, None, "One node, whatever else is said of nodes"),
    ("max-restarts", None, Some("K"), "How often all ranks are started again after a failure [default: 0]"),
    ("monitor-interval", None, Some("SECONDS"), "Taken and not needed: the end of a rank is noticed at once"),
    ("start-method", None, Some("spawn|fork|forkserver"), "Taken and not needed: ranks are programs"),
    ("role", None, Some("NAME"), "What ranks are called in marked output and ROLE_NAME [default: default]"),
    ("module", Some('m'), None, "PROGRAM is a Python module, as in python -m"),
    ("no-python", None, None, "Start a .py file itself, not under Python"),
    ("run-path", None, None, "PROGRAM is a Python script, whatever its name"),
    (
        "log-dir",
        None,
        Some("DIR"),
        "Log files go into a folder of each run there; /dev/null keeps none [default: a temporary one]",
    ),
    ("redirects", Some('r'), Some("STREAMS"), "To files: 1 standard output, 2 error, 3 both; 0:3,1:2 says so of ranks"),
    ("tee", Some('t'), Some("STREAMS"), "To files, and to the terminal with each line marked"),
    ("local-ranks-filter", None, Some("N,..."), "Show only these ranks' output"),
    ("duplicate-stdout-filters", None, Some("WORD,..."), "Copy teed lines with such a word to one file; ,, is a comma"),
    ("duplicate-stderr-filters", None, Some("WORD,..."), "The same for standard error"),
    ("numa-binding", None, Some("MODE"), "Cores: exclusive, node, socket, core-complex or none [default: exclusive]"),
    ("virtual-local-rank", None, None, "Each rank sees its own GPU alone, as LOCAL_RANK 0"),
    ("event-log-handler", None, Some("null|console"), "Taken and not needed: what happens is said on standard error"),
    ("print-env", None, None, "Print the variables of each rank, and start nothing"),
    ("dry-run", None, None, "Print what to run on each node, and what each rank would run, and start nothing"),
    (
        "signals-to-handle",
        None,
        Some("NAMES"),
        "Signals passed on that end the job [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
    ),
    ("shutdown-timeout", None, Some("SECONDS"), "Time to stop in order, before SIGKILL [default: 30]"),
];

/// `enmasse launch`, or the old `torch.distributed.launch`.
pub fn command(name: &'static str) -> Command {
    let flags = FLAGS.iter().map(|&(name, short, value, help)| {
        let arg = Arg::new(name).long(name).short(short).help(help).overrides_with(name);
        let arg = if name.contains('-') { arg.alias(name.replace('-', "_")) } else { arg };
        match value {
            Some(value) => arg.value_name(value).allow_negative_numbers(true),
            None => arg.action(ArgAction::SetTrue),
        }
    });
    Command::new(name)
        .about("Run any program as N ranks, as torchrun does: its flags, its variables, its log folders")
        // Abbreviations are allowed as with torchrun: some write --nnode, or --nproc.
        .infer_long_args(true)
        .after_help("Every flag is also a variable PET_NAME; the command line wins.")
        .args(flags)
        .arg(
            option("use-env", "true|false")
                .alias("use_env")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(["true", "false"])
                .ignore_case(true)
                .hide_possible_values(true)
                .overrides_with("use-env")
                .help("false: PROGRAM is given --local-rank=N too, as by torch.distributed.launch"),
        )
        .arg(
            Arg::new("program")
                .value_name("PROGRAM")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString))
                .help("Program and its arguments; a .py file runs under the active Python"),
        )
}

/// The given flags, from the command line or from variables.
pub struct GivenFlags<'a> {
    pub matches: &'a ArgMatches,
    pub environment: &'a dyn Fn(&str) -> Option<OsString>,
}

impl GivenFlags<'_> {
    /// The value of a flag as parsed by `read`. An error names its place and the expected form.
    pub fn value<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let Some((place, text)) = self.text(name)? else { return Ok(None) };
        let value = read(text.trim());
        // An empty value would be invisible.
        let shown = if text.trim().is_empty() { format!("{text:?}") } else { text };
        value.map(Some).ok_or_else(|| usage!("{place}{shown}: must be {expected}"))
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> Result<bool, Failure> {
        if self.matches.get_flag(name) {
            return Ok(true);
        }
        let read = |text: &str| text.parse::<i64>().ok().map(|number| number != 0);
        let variable = self.variable(name)?;
        let value =
            variable.map(|(place, text)| read(text.trim()).ok_or_else(|| usage!("{place}{text}: must be 0 or 1")));
        Ok(value.transpose()?.unwrap_or(false))
    }

    /// A value, and the name to print before it, by where it was given.
    pub fn text(&self, name: &str) -> Result<Option<(String, String)>, Failure> {
        match self.matches.get_one::<String>(name) {
            Some(text) => Ok(Some((format!("--{name} "), text.clone()))),
            None => self.variable(name),
        }
    }

    fn variable(&self, name: &str) -> Result<Option<(String, String)>, Failure> {
        let variable = format!("PET_{}", name.replace('-', "_").to_ascii_uppercase());
        match (self.environment)(&variable).map(OsString::into_string) {
            Some(Ok(text)) => Ok(Some((format!("{variable}="), text))),
            Some(Err(_)) => Err(usage!("{variable} is not valid UTF-8: set it to plain text")),
            None => Ok(None),
        }
    }
}
