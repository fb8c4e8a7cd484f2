//! The options of `#SBATCH` lines, interpreted as by sbatch.

use super::source::{Kind, Source, options};
use super::{Finding, find, quoted};
use crate::shell::{Token, expand, tokens};
use crate::value::{TimeLimit, number};

/// Short options with a value, and their long names.
const SHORT: &[(char, &str)] = &[
    ('A', "account"),
    ('a', "array"),
    ('C', "constraint"),
    ('c', "cpus-per-task"),
    ('D', "chdir"),
    ('d', "dependency"),
    ('e', "error"),
    ('G', "gpus"),
    ('J', "job-name"),
    ('m', "distribution"),
    ('N', "nodes"),
    ('n', "ntasks"),
    ('o', "output"),
    ('p', "partition"),
    ('q', "qos"),
    ('t', "time"),
    ('w', "nodelist"),
    ('x', "exclude"),
];

/// Long options without a value, or with a value only after `=`.
const SWITCHES: &[&str] =
    &["contiguous", "exclusive", "hold", "no-requeue", "nice", "overcommit", "oversubscribe", "requeue", "wait"];

/// An option of the script.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    /// Its line, from 1.
    pub(super) line: usize,
    /// Its long name.
    pub(super) name: String,
    /// Its value; empty if it has none.
    pub(super) value: String,
    /// A likely mistake in how the value is given.
    slip: Option<Slip>,
}

#[derive(Clone, Debug)]
enum Slip {
    /// Blanks around the `=` of a long option, with the intended value.
    Blank(String),
    /// `-n=4`.
    ShortEquals(char),
}

/// All options of a script, in their order.
pub(super) struct Directives {
    all: Vec<Directive>,
}

impl Directives {
    pub(super) fn of(source: &Source) -> Self {
        let lines = source.lines.iter().filter(|line| line.kind == Kind::Directive);
        let all = lines.flat_map(|line| read_line(line.number, options(line.text).unwrap_or_default())).collect();
        Directives { all }
    }

    /// The effective option: the last one wins.
    pub(super) fn get(&self, name: &str) -> Option<&Directive> {
        self.all.iter().rev().find(|directive| directive.name == name)
    }

    /// The number given by an option; `None` for a range of numbers.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        number(&self.get(name)?.value).filter(|&count| count > 0)
    }

    /// The line of the last directive, or the script's first line.
    pub(super) fn last_line(&self) -> usize {
        self.all.last().map_or(1, |directive| directive.line)
    }

    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        for directive in &self.all {
            let Directive { line, name, value, slip } = directive;
            match slip {
                Some(Slip::Blank(meant)) if meant.is_empty() => {
                    let problem = format!("--{name}= has no value");
                    find(findings, *line, problem, format!("#SBATCH --{name}=VALUE, or leave the line out"));
                }
                Some(Slip::Blank(meant)) => {
                    let problem = format!("there is a blank beside the = of --{name}; sbatch refuses the script");
                    find(findings, *line, problem, format!("#SBATCH --{name}={}", quoted(meant)));
                }
                Some(Slip::ShortEquals(short)) => {
                    let problem = format!("-{short}={}: sbatch takes the = as a part of the value", quoted(value));
                    find(findings, *line, problem, format!("#SBATCH --{name}={}", quoted(value)));
                }
                None if value.contains('$') => {
                    let problem = format!("--{name}={}: Slurm expands no variables here", quoted(value));
                    let mend = match name.as_str() {
                        "output" | "error" => "use %j (job), %A and %a (array), %x (job's name), %u (user), %N (node)",
                        _ => "write the value out, or give the option on sbatch's command line",
                    };
                    find(findings, *line, problem, mend);
                }
                None => {}
            }
        }
        self.check_requeue(findings);
        self.check_signal(findings);
    }

    fn check_requeue(&self, findings: &mut Vec<Finding>) {
        let appends = self.get("open-mode").is_some_and(|mode| mode.value == "append");
        if let Some(requeue) = self.get("requeue").filter(|_| !appends) {
            let problem = "--requeue without --open-mode=append: the second start overwrites the first one's output";
            find(findings, requeue.line, problem, "#SBATCH --open-mode=append");
        }
    }

    fn check_signal(&self, findings: &mut Vec<Finding>) {
        let Some(signal) = self.get("signal") else { return };
        let ahead = signal.value.split_once('@').and_then(|(_, seconds)| number(seconds));
        let limit = self.get("time").and_then(|time| time.value.parse::<TimeLimit>().ok()?.seconds);
        if let (Some(ahead), Some(limit)) = (ahead, limit)
            && limit <= ahead
        {
            let problem = format!("--signal={} comes at once: the time limit is {limit} s", quoted(&signal.value));
            find(findings, signal.line, problem, "ask for more --time, or for fewer seconds");
        }
    }
}

fn read_line(line: usize, options: &str) -> Vec<Directive> {
    // Variables stay unexpanded, since sbatch knows none.
    let word = |token: Token| match token {
        Token::Word(pieces) => Some(expand(&pieces, |name| format!("${name}"))),
        Token::Operator => None,
    };
    let mut words = tokens(options).into_iter().filter_map(word).peekable();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let directive =
            |name: &str, value: &str, slip| Directive { line, name: name.to_owned(), value: value.to_owned(), slip };
        let mut value_behind = || words.next_if(|next| !next.starts_with('-')).unwrap_or_default();
        if let Some(long) = word.strip_prefix("--") {
            found.push(match long.split_once('=') {
                Some((name, "")) => {
                    let meant = value_behind();
                    directive(name, &meant, Some(Slip::Blank(meant.clone())))
                }
                Some((name, value)) => directive(name, value, None),
                None if SWITCHES.contains(&long) => directive(long, "", None),
                None => {
                    let value = value_behind();
                    match value.strip_prefix('=') {
                        Some(rest) => {
                            let meant = if rest.is_empty() { value_behind() } else { rest.to_owned() };
                            directive(long, &meant, Some(Slip::Blank(meant.clone())))
                        }
                        None => directive(long, &value, None),
                    }
                }
            });
        } else if let Some(short) = word.strip_prefix('-').and_then(|rest| rest.chars().next()) {
            let Some((_, name)) = SHORT.iter().find(|(letter, _)| *letter == short) else { continue };
            let attached = &word[1 + short.len_utf8()..];
            found.push(match attached.strip_prefix('=') {
                Some(value) => directive(name, value, Some(Slip::ShortEquals(short))),
                None if attached.is_empty() => directive(name, &value_behind(), None),
                None => directive(name, attached, None),
            });
        }
    }
    found
}
