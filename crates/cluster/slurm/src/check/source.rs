//! A script in lines: the directives at its head, and the body that the shell runs. In a tutorial's Markdown text the
//! script is the first fenced block with directives; other blocks are programs that it may run.

use std::ops::Range;

use super::{Finding, MAX_SCRIPT_BYTES, find, quoted};

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `#SBATCH` before the first command.
    Directive,
    /// `#SBATCH` after the first command, which Slurm no longer reads.
    LateDirective,
    /// A shell command.
    Command,
    /// Text or input of a program: in a here-document, or in another block of a tutorial.
    Document,
    /// A tutorial's text outside its blocks.
    Prose,
    /// A comment, or an empty line.
    Comment,
}

/// A line of the script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// Its number, from 1.
    pub(super) number: usize,
    pub(super) kind: Kind,
    /// Its text, without the line ending.
    pub(super) text: &'a str,
}

/// A script's lines.
pub(super) struct Source<'a> {
    pub(super) lines: Vec<Line<'a>>,
    /// The index of the line at which the script begins.
    start: usize,
    /// The first line that ends in a carriage return.
    dos: Option<usize>,
}

const PREFIX: &str = "#SBATCH";

impl<'a> Source<'a> {
    pub(super) fn read(text: &'a str) -> Self {
        let mut end = text.len().min(MAX_SCRIPT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text[..end];
        let blocks = blocks(text);
        let script = blocks.iter().find(|(_, directives)| *directives).map(|(lines, _)| lines.clone());
        let mut source = Source { lines: Vec::new(), start: script.as_ref().map_or(0, |lines| lines.start), dos: None };
        let mut commands_begun = false;
        let mut document: Option<&str> = None;
        for (index, line) in text.split('\n').enumerate() {
            let number = index + 1;
            let text = line.strip_suffix('\r').unwrap_or(line);
            if text.len() < line.len() {
                source.dos.get_or_insert(number);
            }
            let trimmed = text.trim();
            let outside = script.as_ref().is_some_and(|lines| !lines.contains(&index));
            let kind = match document {
                _ if outside && blocks.iter().any(|(lines, _)| lines.contains(&index)) => Kind::Document,
                _ if outside => Kind::Prose,
                Some(end) if trimmed == end => {
                    document = None;
                    Kind::Comment
                }
                Some(_) => Kind::Document,
                None if is_directive(text) && commands_begun => Kind::LateDirective,
                None if is_directive(text) => Kind::Directive,
                None if trimmed.is_empty() || trimmed.starts_with('#') => Kind::Comment,
                None => {
                    commands_begun = true;
                    document = here_document(text);
                    Kind::Command
                }
            };
            source.lines.push(Line { number, kind, text });
        }
        source
    }

    /// Mistakes in the lines themselves.
    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        if !self.lines.get(self.start).is_some_and(|line| line.text.starts_with("#!")) {
            let problem = "the first line does not name an interpreter; sbatch refuses the script";
            find(findings, self.start + 1, problem, "begin with a line #!/bin/bash");
        }
        if let Some(line) = self.dos {
            let problem = "the line ends in a carriage return, as on Windows; sbatch refuses the script";
            find(findings, line, problem, "convert it: sed -i 's/\\r$//' FILE");
        }
        for line in &self.lines {
            match line.kind {
                Kind::LateDirective => {
                    let problem = format!("{} comes after the first command; Slurm ignores it", quoted(line.text));
                    find(findings, line.number, problem, "move it up, below #!/bin/bash");
                }
                Kind::Comment => {
                    if let Some(options) = nearly_directive(line.text) {
                        let problem = format!("{} is a comment to Slurm, not a directive", quoted(line.text));
                        find(findings, line.number, problem, format!("{PREFIX} {}", quoted(options)));
                    }
                }
                _ => {}
            }
        }
    }
}

/// The fenced blocks of a Markdown text, without the fences, and whether they hold directives. A plain script has none.
fn blocks(text: &str) -> Vec<(Range<usize>, bool)> {
    let mut blocks = Vec::new();
    if text.starts_with("#!") {
        return blocks;
    }
    let mut open: Option<(usize, bool)> = None;
    for (index, line) in text.split('\n').enumerate() {
        let fence = line.trim_start().starts_with("```");
        open = match open {
            None => fence.then_some((index + 1, false)),
            Some((start, directives)) if fence => {
                blocks.push((start..index, directives));
                None
            }
            Some((start, directives)) => Some((start, directives || is_directive(line))),
        };
    }
    blocks
}

/// The options on a directive's line.
pub(super) fn options(line: &str) -> Option<&str> {
    line.strip_prefix(PREFIX).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

fn is_directive(line: &str) -> bool {
    options(line).is_some()
}

/// The options of a comment that was probably meant as a directive: `# SBATCH --x`, `#sbatch --x`. A line with two
/// signs was commented out on purpose.
fn nearly_directive(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let (word, options) = rest.split_once([' ', '\t'])?;
    (word.eq_ignore_ascii_case("SBATCH") && options.trim_start().starts_with('-')).then_some(options.trim())
}

/// The word that ends the here-document beginning on this line.
fn here_document(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("<<")?;
    let word = after.strip_prefix('-').unwrap_or(after).trim_start().trim_start_matches(['\'', '"', '\\']);
    let length = word.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(word.len());
    Some(&word[..length]).filter(|word| !word.is_empty() && !after.starts_with('<'))
}
