//! The command line: every command and flag, made from the settings' own definitions.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use enmasse_train::{Kind, SETTINGS, Setting, expand_home};

use crate::commands::{FORMATS, SELF_TEST, launch, slurm};
use crate::failure::Failure;
use crate::launcher_flags;

/// Spellings of other programs for our flags.
const ALIASES: &[(&str, &[&str])] =
    &[("batch", &["batch-size", "batch_size"]), ("sync_bn", &["syncBN", "syncbn"]), ("data", &["data_path", "data"])];

/// PyTorch's launcher before torchrun, as in `python -m torch.distributed.launch`: ours, and ranks are told `--local-rank=N`.
pub const OLD_LAUNCH: &str = "torch.distributed.launch";

/// The flag of the same meaning as DATA.
const DATA_PATH: &str = "data-path";

/// Largest number that is taken where things are counted.
const MOST_COUNT: usize = 1_000_000;

/// Settings that `eval` knows.
pub const EVALUATION: &[&str] = &[
    "model",
    "size",
    "mean",
    "std",
    "batch",
    "devices",
    "ranks",
    "threads",
    "loader_threads",
    "precision",
    "isa",
    "convert_rgb",
    "timeout",
    "json",
];

/// The whole command line.
pub fn command() -> Command {
    Command::new("enmasse")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Data-parallel training of image classifiers.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(train())
        .subcommand(eval())
        .subcommand(predict())
        .subcommand(export())
        .subcommand(plan())
        .subcommand(bench())
        .subcommand(launch::command("launch"))
        .subcommand(launch::command(OLD_LAUNCH).hide(true))
        .subcommand(slurm::command())
        .subcommand(doctor())
}

/// `enmasse train`.
pub fn train() -> Command {
    let flags = SETTINGS.iter().filter(|setting| setting.name != "data").map(flag);
    Command::new("train")
        .about("Train a model on pictures: a folder of class folders, CIFAR, MNIST")
        .after_help(
            "Every flag is also a key of --config FILE and a variable ENMASSE_NAME. Later ones win: defaults, the saved run,\n\
             --config, the environment, the command line.",
        )
        .arg(positional("data"))
        .arg(
            Arg::new(DATA_PATH)
                .long(DATA_PATH)
                .aliases(aliases("data"))
                .value_name("DIR")
                .conflicts_with("data")
                .overrides_with(DATA_PATH)
                .help("The same as DATA"),
        )
        .args(flags)
        .args(launcher_flags::arguments())
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(path)
                .help("Read settings from this TOML file"),
        )
}

fn eval() -> Command {
    Command::new("eval")
        .about("Loss and accuracy of a run's best checkpoint, or of a weights file")
        .arg(source())
        .arg(
            Arg::new("data")
                .value_name("DATA")
                .help("Folder of class folders, evaluated whole; of CIFAR and MNIST the test part"),
        )
        .arg(
            Arg::new("part")
                .long("split")
                .value_name("PART")
                .value_parser(["all", "val"])
                .default_value("all")
                .help("\"val\" takes the run's own validation part of DATA"),
        )
        .args(settings(EVALUATION))
}

fn predict() -> Command {
    Command::new("predict")
        .about("The most probable classes of pictures")
        .arg(source())
        .arg(
            Arg::new("images")
                .value_name("IMAGE")
                .required(true)
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("JPEG or PNG files"),
        )
        .arg(count("top", "K", "Classes to tell of each picture").default_value("5"))
        .args(settings(&[
            "model",
            "size",
            "mean",
            "std",
            "batch",
            "threads",
            "precision",
            "isa",
            "convert_rgb",
            "json",
        ]))
}

fn export() -> Command {
    Command::new("export")
        .about("A run's best weights as a file for PyTorch and others")
        .arg(source())
        .arg(
            Arg::new("to")
                .long("to")
                .value_name("FORMAT")
                .required(true)
                .value_parser(FORMATS)
                .help("What torch.load opens, or safetensors"),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("FILE")
                .value_parser(path)
                .help("File to write [default: RUN/weights/best.FORMAT, or beside the weights file]"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print a JSON object"))
}

fn plan() -> Command {
    let names = ["model", "size", "batch", "devices", "sync_bn", "optimizer", "momentum", "weight_decay", "nesterov"];
    let print = Command::new("print")
        .about("Print what every rank runs: instructions, buckets, memory")
        .args(settings(&names))
        .args(settings(&["label_smoothing", "freeze", "unused_parameters", "precision", "threads", "isa", "tune"]))
        .arg(count("classes", "N", "Classes of the model [default: 10 up to 64 pixels, else 1000]"))
        .arg(Arg::new("eval").long("eval").action(ArgAction::SetTrue).help("The plan of evaluation"));
    Command::new("plan")
        .about("Look at plans")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(print)
}

fn bench() -> Command {
    let step = Command::new("step")
        .about("Time steps on synthetic pictures: forward, loss, backward, SGD with momentum and weight decay")
        .args(settings(&["model", "size", "batch", "precision", "threads", "isa", "tune", "json"]))
        .arg(count("classes", "N", "Classes of the model [default: 10 up to 64 pixels, else 1000]"))
        .arg(count("steps", "N", "Steps to time, after three to warm up").default_value("10"))
        .arg(Arg::new("eval").long("eval").action(ArgAction::SetTrue).help("Forward only"))
        .arg(
            Arg::new("profile")
                .long("profile")
                .action(ArgAction::SetTrue)
                .help("What each instruction takes: milliseconds, % of the step, GFLOP/s, GB/s"),
        );
    let peak = Command::new("peak")
        .about("What this machine can do at most: multiply-adds of each instruction-set level, memory bandwidth")
        .args(settings(&["threads", "json"]));
    Command::new("bench")
        .about("Measure this machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(step)
        .subcommand(peak)
}

fn doctor() -> Command {
    Command::new("doctor")
        .about("One page for a bug report: this machine, a test of 2 ranks, and why a run failed")
        .after_help("Exit code 0: no problems; 1: some. No secret is shown: look it over, and publish it.")
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .value_parser(path)
                .help("Folder of a run that failed, or of a launcher's logs (--log-dir)"),
        )
        .arg(Arg::new("data").long("data").value_name("DIR").value_parser(path).help("Look at this data set too"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print a JSON object"))
        .arg(Arg::new(SELF_TEST).long(SELF_TEST).hide(true))
}

/// A run folder or a weights file.
fn source() -> Arg {
    Arg::new("source")
        .value_name("RUN|WEIGHTS")
        .required(true)
        .value_parser(path)
        .help("Run folder, or weights file (.pth or .safetensors) with torchvision's names")
}

/// A path, where the shell has left `~` alone.
pub fn path(text: &str) -> Result<PathBuf, String> {
    expand_home(Path::new(text)).ok_or_else(|| "~ has no meaning here, as HOME is not set".to_owned())
}

/// A flag that counts something.
pub fn count(name: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(placeholder).value_parser(count_value).help(help)
}

fn count_value(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST_COUNT).contains(count));
    count.ok_or_else(|| format!("must be a whole number from 1 to {MOST_COUNT}"))
}

fn settings(names: &[&str]) -> Vec<Arg> {
    names.iter().filter_map(|name| Setting::find(name)).map(flag).collect()
}

fn positional(name: &'static str) -> Arg {
    let arg = Arg::new(name).value_name("DATA");
    match Setting::find(name) {
        Some(setting) => arg.help(setting.help),
        None => arg,
    }
}

/// The flag of a setting. Values stay text: the setting's own parser reads them, with the same messages as for a file.
fn flag(setting: &'static Setting) -> Arg {
    let long = setting.name.replace('_', "-");
    let mut help = setting.help.to_owned();
    if let Kind::Choice(words) = setting.kind {
        help.push_str(&format!(" [one of: {}]", words.join(", ")));
    }
    let underscored = (long != setting.name).then_some(setting.name);
    let arg = Arg::new(setting.name).long(long).aliases(aliases(setting.name).chain(underscored));
    match setting.kind {
        Kind::Switch => arg
            .overrides_with(setting.name)
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .hide_possible_values(true)
            .help(help),
        kind => {
            if let Some(default) = setting.default_text().filter(|text| !text.is_empty()) {
                help.push_str(&format!(" [default: {default}]"));
            }
            // Of several the last one counts, so that a script can add to what it was given.
            let arg = match kind {
                Kind::List => arg.action(ArgAction::Append),
                _ => arg.overrides_with(setting.name),
            };
            arg.value_name(setting.placeholder).allow_negative_numbers(true).help(help)
        }
    }
}

/// Other spellings of a setting's flag.
fn aliases(name: &'static str) -> impl Iterator<Item = &'static str> {
    ALIASES.iter().filter(move |(of, _)| *of == name).flat_map(|(_, aliases)| *aliases).copied()
}

/// What the user gave for each setting on the command line; a repeatable flag's occurrences are joined by commas.
pub fn given(matches: &ArgMatches) -> impl Iterator<Item = (&'static str, String)> {
    SETTINGS.iter().filter_map(|setting| {
        let flag = if setting.name == "data" { matches.try_get_many::<String>(DATA_PATH).ok().flatten() } else { None };
        let values: Vec<&String> = flag.or_else(|| matches.try_get_many(setting.name).ok().flatten())?.collect();
        Some((setting.name, values.into_iter().map(String::as_str).collect::<Vec<_>>().join(",")))
    })
}

/// Reads the command line. Help and the version are no failure, and already printed: `None`.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<ArgMatches>, Failure> {
    let error = match command().try_get_matches_from(join_switches(arguments)) {
        Ok(matches) => return Ok(Some(matches)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().map_err(|error| Failure::Error(format!("cannot write to standard output: {error}")))?;
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            // Whoever names no command wants to see which there are.
            eprint!("{}", error.render());
            Err(Failure::Told(2))
        }
        _ => Err(Failure::Usage(usage_line(&error))),
    }
}

/// Switches stand alone or have a value behind `=`; where `True` or `False` follows as a word of its own, as Python's scripts
/// have it, it is joined. Any other word that follows is no value: `--sync-bn photos` names the data.
fn join_switches(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut joined = Vec::new();
    while let Some(mut argument) = arguments.next() {
        // Another program's arguments are its own, and the 1 behind --json is a job.
        let others =
            argument == "--" || (joined.len() == 1 && ["launch", "slurm"].iter().any(|name| argument == *name));
        if is_switch(&argument)
            && let Some(value) = arguments.next_if(|word| word.to_str().is_some_and(is_truth))
        {
            argument.push("=");
            argument.push(value);
        }
        joined.push(argument);
        if others {
            joined.extend(arguments.by_ref());
        }
    }
    joined
}

/// Whether this is the flag of a switch, in any of its spellings.
fn is_switch(argument: &OsStr) -> bool {
    let Some(name) = argument.to_str().and_then(|text| text.strip_prefix("--")) else { return false };
    let mut switches = SETTINGS.iter().filter(|setting| setting.kind == Kind::Switch);
    switches.any(|setting| setting.name == name.replace('-', "_") || aliases(setting.name).any(|alias| alias == name))
}

fn is_truth(word: &str) -> bool {
    ["true", "false", "1", "0"].contains(&word.to_ascii_lowercase().as_str())
}

/// The parser's message spans lines (what, tips, usage); the first ones say what is wrong and what was perhaps meant.
fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said: Vec<&str> = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim).collect();
    let mut line =
        said.iter().filter(|part| !part.is_empty() && !part.starts_with("tip:")).copied().collect::<Vec<_>>().join(" ");
    line = line.trim_start_matches("error: ").trim_end_matches('.').to_owned();
    line = line.replace(" For more information, try '--help'", "");
    match error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand)) {
        Some(ContextValue::String(name)) => format!("{line}: did you mean {name}?"),
        Some(ContextValue::Strings(names)) => format!("{line}: did you mean {}?", names.join(" or ")),
        _ => format!("{line}; see --help"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<ArgMatches, Failure> {
        let arguments = std::iter::once("enmasse").chain(line.split_whitespace()).map(OsString::from);
        parse(arguments).map(|matches| matches.unwrap())
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_setting_has_its_flag() {
        let check = |line: &str, expected: &[(&str, &str)]| {
            let matches = read(&format!("train {line}")).unwrap_or_else(|failure| panic!("{line}: {failure:?}"));
            let found: Vec<_> = given(matches.subcommand().unwrap().1).collect();
            assert_eq!(
                found.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>(),
                expected,
                "{line}"
            );
        };
        for setting in SETTINGS.iter().filter(|setting| setting.name != "data") {
            match setting.kind {
                Kind::Switch => check(&setting.flag(), &[(setting.name, "true")]),
                _ => check(&format!("{} 7", setting.flag()), &[(setting.name, "7")]),
            }
        }
        check("", &[]);
        check("photos --lr -1", &[("data", "photos"), ("lr", "-1")]);
        check("--sync-bn=false --json x", &[("data", "x"), ("sync_bn", "false"), ("json", "true")]);
        check("--lr 1 --sync-bn --lr 2 --sync-bn=false", &[("lr", "2"), ("sync_bn", "false")]);
        check("--freeze a --freeze b,c", &[("freeze", "a,b,c")]);
        check(
            "--batch-size 4 --weight_decay 0 --syncBN",
            &[("batch", "4"), ("sync_bn", "true"), ("weight_decay", "0")],
        );
    }

    /// As a tutorial's reader types them.
    #[test]
    fn the_tutorials_spellings() {
        let check = |line: &str, expected: &[(&str, &str)]| {
            let matches = read(&format!("train {line}")).unwrap_or_else(|failure| panic!("{line}: {failure:?}"));
            let found: Vec<_> = given(matches.subcommand().unwrap().1).collect();
            let found: Vec<_> = found.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!(found, expected, "{line}");
        };
        check("--data-path D --num_classes 5", &[("data", "D"), ("num_classes", "5")]);
        check("--data_path D --num-classes=5", &[("data", "D"), ("num_classes", "5")]);
        check("--data C --data-path D", &[("data", "D")]);
        check("--syncBN True D", &[("data", "D"), ("sync_bn", "True")]);
        check("--syncBN D", &[("data", "D"), ("sync_bn", "true")]);
        check("--sync_bn=False D --json", &[("data", "D"), ("sync_bn", "False"), ("json", "true")]);
        check("--freeze-layers False --syncBN true", &[("sync_bn", "true"), ("freeze_layers", "False")]);
        check("--freeze_layers --weights F", &[("weights", "F"), ("freeze_layers", "true")]);
        check("--freeze-layers true --freeze-layers 0", &[("freeze_layers", "0")]);
        check("--sync-bn -- True", &[("data", "True"), ("sync_bn", "true")]);
        check("--device cuda --world-size 4 --dist-url env:// --local_rank 1", &[]);
        let both = "the argument '[DATA]' cannot be used with '--data-path <DIR>'; see --help";
        assert_eq!(read("train C --data-path D").unwrap_err(), Failure::Usage(both.into()));
        let launched = "launch -n 2 python3 train.py --json True";
        for line in [launched, "slurm status a b c --json 1"] {
            assert_eq!(join_switches(["enmasse"].into_iter().chain(line.split(' ')).map(OsString::from)).len(), 8);
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        let check =
            |line: &str, expected: &str| assert_eq!(read(line).unwrap_err(), Failure::Usage(expected.into()), "{line}");
        check("train --epoch 3", "unexpected argument '--epoch' found: did you mean --epochs?");
        check("trian", "unrecognized subcommand 'trian': did you mean train?");
        check("train a b", "unexpected argument 'b' found; see --help");
        check("eval", "the following required arguments were not provided: <RUN|WEIGHTS>; see --help");
        check(
            "predict run a.jpg --top 0",
            "invalid value '0' for '--top <K>': must be a whole number from 1 to 1000000; see --help",
        );
        check("train --lr", "a value is required for '--lr <RATE>' but none was supplied; see --help");
    }
}
