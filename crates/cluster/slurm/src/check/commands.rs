//! The commands of a script's body.

use super::source::{Kind, Source};
use crate::shell::{Token, expand, tokens};
use crate::value::number;

/// Programs that start others on all nodes.
const STARTERS: &str = "srun mpirun mpiexec mpiexec.hydra prun prterun orterun ibrun jsrun aprun pdsh ssh clush parallel \
                        xargs deepspeed ray horovodrun";
/// Words that may precede a command's name.
const BEFORE: &[&str] =
    &["!", "{", "do", "else", "elif", "env", "exec", "if", "nice", "nohup", "then", "time", "until", "while"];
/// Launchers of a node's processes: torchrun and similar programs, to be started once per node.
const NODE_LAUNCHERS: &[&str] = &["torchrun", "accelerate", "deepspeed"];
const NODE_LAUNCHER_MODULES: &[&str] =
    &["torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch"];
/// Modules run by `python -m` while an environment is prepared.
const PREPARING_MODULES: &[&str] = &["pip", "venv", "virtualenv", "ensurepip", "conda", "site"];
/// Options of srun that take no value, or only one after `=`.
const SRUN_SWITCHES: &str = "contiguous disable-status exact exclusive hold kill-on-bad-exit label multi-prog no-allocate \
                             no-kill overcommit overlap oversubscribe preserve-env pty quiet unbuffered verbose whole";
const SRUN_SHORT_SWITCHES: &[&str] = &["-E", "-H", "-K", "-O", "-Q", "-X", "-Z", "-k", "-l", "-s", "-u", "-v"];

/// A simple command: a program's name and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Command {
    /// The line on which it begins, from 1.
    pub(super) line: usize,
    /// Its words; the first is the program.
    pub(super) words: Vec<String>,
}

impl Command {
    /// The program's name without its folder.
    pub(super) fn program(&self) -> &str {
        base_name(self.words.first().map_or("", String::as_str))
    }

    /// Whether srun has one of these options.
    pub(super) fn has_option(&self, names: &[&str]) -> bool {
        self.option(names).is_some()
    }

    /// The value of one of srun's options, long or short; empty if it has none. Options after the program that srun
    /// starts belong to that program.
    pub(super) fn option(&self, names: &[&str]) -> Option<&str> {
        let mut words = self.words.iter().skip(1).map(String::as_str);
        while let Some(word) = words.next().filter(|word| word.starts_with('-')) {
            let next = if takes_next_word(word) { words.next() } else { None };
            let given = names.iter().find_map(|name| Some((name, word.strip_prefix(name)?)));
            match given.map(|(name, rest)| (name.starts_with("--"), rest.strip_prefix('=').unwrap_or(rest), rest)) {
                Some((_, _, "")) => return Some(next.unwrap_or_default()),
                Some((true, value, rest)) if value.len() < rest.len() => return Some(value),
                Some((false, value, _)) => return Some(value),
                // A longer name, such as --ntasks-per-node.
                _ => {}
            }
        }
        None
    }

    /// Whether srun starts only one task, as scripts do for queries and preparation.
    pub(super) fn is_single(&self) -> bool {
        self.option(&["--ntasks", "-n"]) == Some("1")
    }

    /// Whether it starts training itself: Python with a script or module, enmasse, torchrun, a program in this folder.
    fn trains(&self) -> bool {
        let first = self.words.get(1).map_or("", String::as_str);
        let program = self.program();
        match program {
            "enmasse" => ["train", "launch"].contains(&first),
            _ if is_python(program) => match first {
                "" | "-c" | "-" | "-V" | "--version" | "-h" => false,
                "-m" => !self.words.get(2).is_some_and(|module| PREPARING_MODULES.contains(&module.as_str())),
                _ => true,
            },
            _ if NODE_LAUNCHERS.contains(&program) => true,
            _ => self.words.first().is_some_and(|word| word.starts_with("./") && !word.ends_with(".sh")),
        }
    }

    /// The launcher of a node's processes among its words: `torchrun`, `python -m torch.distributed.run`, ...
    pub(super) fn node_launcher(&self) -> Option<&str> {
        self.words.iter().enumerate().find_map(|(place, word)| {
            let behind = self.words.get(place + 1).map(String::as_str);
            let name = base_name(word);
            match (name, behind) {
                ("enmasse", Some("launch")) => Some("enmasse launch"),
                _ if NODE_LAUNCHERS.contains(&name) => Some(name),
                ("-m", Some(module)) if NODE_LAUNCHER_MODULES.contains(&module) => Some(module),
                _ => None,
            }
        })
    }
}

impl Command {
    /// The number of ranks that a launcher of a node's processes starts there, if it is given one.
    pub(super) fn launched_ranks(&self) -> Option<u64> {
        self.node_launcher()?;
        let names = ["-n", "--nproc-per-node", "--nproc_per_node"];
        let is_program = |word: &String| base_name(word) == "enmasse" || word.ends_with(".py");
        let start = self.words.iter().position(|word| ["enmasse", "torchrun"].contains(&base_name(word)))?;
        let mut words = self.words[start + 1..].iter().take_while(|word| !is_program(word));
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if names.contains(&name) {
                return number(value.or_else(|| words.next().map(String::as_str))?);
            }
        }
        None
    }
}

/// A training with enmasse itself.
pub(super) struct Training<'a> {
    /// The devices that its flags name.
    pub(super) devices: Option<&'a str>,
}

impl Command {
    /// The training with enmasse among its words.
    fn training(&self) -> Option<Training<'_>> {
        let begins = |pair: &[String]| base_name(&pair[0]) == "enmasse" && pair[1] == "train";
        let start = self.words.windows(2).position(begins)?;
        let mut words = self.words[start..].iter().map(String::as_str);
        let mut devices = None;
        while let Some(word) = words.next() {
            devices = match word {
                "--" => break,
                "--devices" | "--device" => words.next(),
                _ => word.strip_prefix("--devices=").or_else(|| word.strip_prefix("--device=")).or(devices),
            };
        }
        Some(Training { devices })
    }
}

/// All commands of a body.
pub(super) struct Body {
    commands: Vec<Command>,
    /// Names of the variables that the body sets.
    variables: Vec<String>,
}

impl Body {
    pub(super) fn of(source: &Source) -> Self {
        let mut body = Body { commands: Vec::new(), variables: Vec::new() };
        let mut pending: Option<(usize, String)> = None;
        for line in source.lines.iter().filter(|line| line.kind == Kind::Command) {
            let (start, mut text) = pending.take().unwrap_or((line.number, String::new()));
            match line.text.strip_suffix('\\') {
                Some(begun) => {
                    text.push_str(begun);
                    pending = Some((start, text));
                }
                None => {
                    text.push_str(line.text);
                    body.read(start, &text);
                }
            }
        }
        if let Some((start, text)) = pending {
            body.read(start, &text);
        }
        body
    }

    fn read(&mut self, line: usize, text: &str) {
        let mut words = Vec::new();
        for token in tokens(text).into_iter().map(Some).chain([None]) {
            match token {
                Some(Token::Word(pieces)) => words.push(expand(&pieces, |name| format!("${name}"))),
                Some(Token::Operator) | None => self.add(line, std::mem::take(&mut words)),
            }
        }
    }

    fn add(&mut self, line: usize, words: Vec<String>) {
        let mut before = |word: &String| match assigned(word) {
            Some(name) => {
                self.variables.push(name.to_owned());
                true
            }
            None => BEFORE.contains(&word.as_str()) || word == "export",
        };
        let skipped = words.iter().take_while(|word| before(word)).count();
        let words: Vec<String> = words.into_iter().skip(skipped).collect();
        if !words.is_empty() {
            self.commands.push(Command { line, words });
        }
    }

    /// Whether the script sets one of these variables.
    pub(super) fn sets(&self, names: &[&str]) -> bool {
        self.variables.iter().any(|name| names.contains(&name.as_str()))
    }

    /// The commands started with srun.
    pub(super) fn sruns(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().filter(|command| command.program() == "srun")
    }

    /// Whether srun starts a launcher of a node's processes.
    pub(super) fn is_launched(&self) -> bool {
        self.sruns().any(|srun| srun.node_launcher().is_some())
    }

    /// The commands that train with enmasse.
    pub(super) fn trainings(&self) -> impl Iterator<Item = (&Command, Training<'_>)> {
        self.commands.iter().filter_map(|command| Some((command, command.training()?)))
    }

    /// Whether the script creates this folder.
    pub(super) fn makes_folder(&self, folder: &str) -> bool {
        let mut made = self.commands.iter().filter(|command| command.program() == "mkdir");
        made.any(|command| command.words.iter().any(|word| word.trim_end_matches('/') == folder))
    }

    /// Whether the shell itself waits for background processes.
    pub(super) fn waits(&self) -> bool {
        self.commands.iter().any(|command| command.program() == "wait")
    }

    /// The training command, in a script that starts nothing on other nodes. Commands before it are preparation.
    pub(super) fn alone(&self) -> Option<&Command> {
        match self.commands.iter().any(|command| is_in(STARTERS, command.program())) {
            true => None,
            false => self.commands.iter().rev().find(|command| command.trains()),
        }
    }
}

fn is_python(program: &str) -> bool {
    let version = program.strip_prefix("python").or_else(|| program.strip_prefix("pypy"));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Whether the value of srun's option is the next word.
fn takes_next_word(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => !long.contains('=') && !is_in(SRUN_SWITCHES, long),
        None => option.len() == 2 && !SRUN_SHORT_SWITCHES.contains(&option),
    }
}

/// Whether a word is in a list of words.
fn is_in(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The variable that `NAME=VALUE` sets.
fn assigned(word: &str) -> Option<&str> {
    let (name, _) = word.split_once('=')?;
    let is_name = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    is_name.then_some(name)
}
