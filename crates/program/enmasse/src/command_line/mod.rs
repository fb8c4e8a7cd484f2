//! Parses a command line as one of the given commands, and reports an error in one line.

pub mod arguments;
pub mod flag_names;
pub mod launcher_flags;
pub mod settings;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
use enmasse_system::files::expand_home;
use enmasse_train::{RUNS, Recomputation, Resume, RunPaths, Setting, SettingKind, answer, is_near};

use crate::command_line::arguments::is_of_kind;
use crate::failure::Failure;
use crate::output::{Output, say_block};
use crate::pretrained::is_weights;

/// Parses the arguments of a command, whose name comes first. Help and the version have been printed: they return
/// `None`.
pub fn parse(command: Command, arguments: impl IntoIterator<Item = OsString>) -> Result<Option<ArgMatches>, Failure> {
    let error = match command.try_get_matches_from(join_switches(arguments)) {
        Ok(matches) => return Ok(Some(matches)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let mut output = Output::new(false);
            output.block(error.render().to_string().trim_end());
            output.finish().map(|()| None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            // A user who names no command wants to see the commands.
            say_block(error.render().to_string().trim_end());
            Err(Failure::Told(2))
        }
        _ => Err(Failure::Usage(usage_line(&error))),
    }
}

/// Switches stand alone or have a value after `=`. A `True` or `False` that follows as a separate word, as in Python's
/// scripts, is joined to the switch. Any other word that follows is not its value: in `--sync-bn photos`, the word
/// names the data. `--no-` in front of a switch's name turns it off. After `--resume` a word that names a checkpoint or a run is its value,
/// after `--pretrained` one that names weights, and after `--recompute` one that says how much.
fn join_switches(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut joined = Vec::new();
    while let Some(mut argument) = arguments.next() {
        // Another program's arguments are left alone, and the 1 after --json is a job.
        let others =
            argument == "--" || (joined.len() == 1 && ["launch", "slurm"].iter().any(|name| argument == *name));
        if let Some(switch) = turned_off(&argument) {
            argument = format!("--{switch}=false").into();
        }
        let is_value = |word: &OsString| match word.to_str() {
            Some(word) if is_flag(&argument, SettingKind::Switch) => is_truth(word),
            Some(word) if argument == "--pretrained" => is_weights(word),
            Some(word) if is_recompute(&argument) => Recomputation::is_word(word),
            Some(word) if is_flag(&argument, SettingKind::Optional) => is_checkpoint(word),
            _ => false,
        };
        if let Some(value) = arguments.next_if(is_value) {
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

fn is_flag(argument: &OsStr, kind: SettingKind) -> bool {
    argument.to_str().and_then(|text| text.strip_prefix("--")).is_some_and(|flag| is_of_kind(flag, kind))
}

/// The switch that a flag such as `--no-convert-rgb` turns off.
fn turned_off(argument: &OsStr) -> Option<&str> {
    let flag = argument.to_str()?.strip_prefix("--no")?;
    let is_switch =
        |flag: &str| is_of_kind(flag, SettingKind::Switch) || is_recompute(OsStr::new(&format!("--{flag}")));
    flag.strip_prefix(['-', '_']).filter(|flag| is_switch(flag))
}

/// Whether a flag is `--recompute`, or another word for it.
fn is_recompute(argument: &OsStr) -> bool {
    let flag = argument.to_str().and_then(|text| text.strip_prefix("--"));
    flag.and_then(Setting::spelled).is_some_and(|setting| setting.name == "recompute")
}

/// Whether a word after `--resume` says from where to go on: `best`, or a run folder. What exists and is no run is DATA, except
/// in the folder of runs; so is an address or a pattern of names. A name of nothing is taken for a run that is missing.
fn is_checkpoint(word: &str) -> bool {
    if word.starts_with('-') {
        return false;
    }
    let Ok(path) = expand_home(Path::new(word)) else { return false };
    let is_pattern = word.contains("://") || word.contains(['*', '{']);
    let is_other = path.exists() && !path.strip_prefix(".").unwrap_or(&path).starts_with(RUNS);
    Resume::is_word(word) || RunPaths::new(&path).holds_run() || !(is_pattern || is_other)
}

fn is_truth(word: &str) -> bool {
    ["true", "false", "1", "0"].contains(&word.to_ascii_lowercase().as_str())
}

/// Names of commands in other tools, which look like none here.
const OTHER_NAMES: [(&str, &str); 3] = [("fit", "train"), ("info", "doctor"), ("validate", "eval")];

/// The parser's message spans lines (error, tips, usage). The first ones state the error and any suggestion.
fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said: Vec<&str> = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim).collect();
    let mut line =
        said.iter().filter(|part| !part.is_empty() && !part.starts_with("tip:")).copied().collect::<Vec<_>>().join(" ");
    line = line.trim_start_matches("error: ").trim_end_matches('.').to_owned();
    line = line.replace(" For more information, try '--help'", "");
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => flag.strip_prefix('-'),
        _ => None,
    };
    let word = unknown.map(|flag| flag.trim_start_matches('-'));
    if let (Some(flag), Some(answer)) = (unknown, word.and_then(answer)) {
        return format!("-{flag}: {answer}");
    }
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((_, command)) = OTHER_NAMES.iter().find(|(known, _)| known == name)
    {
        return format!("{line}: did you mean {command}?");
    }
    let is_far = |name: &str| word.is_some_and(|word| !is_near(word, name.trim_start_matches('-')));
    match error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand)) {
        // The parser suggests rather distant flags too.
        Some(ContextValue::String(name)) if is_far(name) => format!("{line}; see --help"),
        Some(ContextValue::String(name)) => format!("{line}: did you mean {name}?"),
        Some(ContextValue::Strings(names)) => format!("{line}: did you mean {}?", names.join(" or ")),
        _ => format!("{line}; see --help"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_turned_off_by_no() {
        let check = |argument: &str, expected: &str| {
            assert_eq!(join_switches(["enmasse", "train", argument].map(OsString::from))[2], expected);
        };
        check("--no-convert-rgb", "--convert-rgb=false");
        check("--no_convert_rgb", "--convert_rgb=false");
        check("--no-sync-bn", "--sync-bn=false");
        // A switch of its own, and what is no switch.
        check("--no-decay-norm-bias", "--no-decay-norm-bias");
        check("--no-epochs", "--no-epochs");
        check("--no", "--no");
        assert_eq!(join_switches(["enmasse", "launch", "a", "--no-json"].map(OsString::from))[3], "--no-json");
    }

    #[test]
    fn another_programs_arguments_are_its_own() {
        let launched = "launch -n 2 python3 train.py --json True";
        for line in [launched, "slurm status a b c --json 1"] {
            assert_eq!(join_switches(["enmasse"].into_iter().chain(line.split(' ')).map(OsString::from)).len(), 8);
        }
    }
}
