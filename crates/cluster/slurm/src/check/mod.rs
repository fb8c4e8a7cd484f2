//! Checks sbatch scripts for the usual mistakes; each finding has its line and a correction.

mod addresses;
mod commands;
mod directives;
mod layout;
mod source;

use commands::Body;
use directives::Directives;
pub use layout::gpus_of;
use source::Source;

/// Limit of a script's size, in bytes. Slurm's own default limit is 4 MiB.
pub const MAX_SCRIPT_BYTES: usize = 1 << 20;
/// Further findings are left out.
const MAX_FINDINGS: usize = 100;
/// Limit of the characters of the script that a finding quotes.
const MAX_QUOTED: usize = 60;

/// A mistake in a script.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The line, from 1.
    pub line: usize,
    /// The fault and its consequence, in one line.
    pub problem: String,
    /// The correction, in one line.
    pub mend: String,
}

/// The mistakes in the text of a script, by line. Statements about Slurm's reactions were verified with 22.05.
pub fn check(text: &str) -> Vec<Finding> {
    let source = Source::read(text);
    let directives = Directives::of(&source);
    let body = Body::of(&source);
    let mut findings = Vec::new();
    source.check(&mut findings);
    directives.check(&mut findings);
    layout::check(&directives, &body, &mut findings);
    addresses::check(&source, &directives, &mut findings);
    findings.sort();
    findings.dedup();
    findings.truncate(MAX_FINDINGS);
    findings
}

/// Adds a finding.
fn find(findings: &mut Vec<Finding>, line: usize, problem: impl Into<String>, mend: impl Into<String>) {
    findings.push(Finding { line, problem: problem.into(), mend: mend.into() });
}

/// A piece of the script for a message: shortened, and without control characters.
fn quoted(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.trim().chars().map(shown).take(MAX_QUOTED).collect();
    if text.trim().chars().nth(MAX_QUOTED).is_some() {
        short.push_str("...");
    }
    short
}
