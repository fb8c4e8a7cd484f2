//! The table of a number of scenarios: a row for each kind of fault.

use std::collections::BTreeMap;
use std::fmt;

use crate::fault::Kind;
use crate::outcome::Outcome;

/// Counts of outcomes.
#[derive(Default)]
struct Row {
    runs: usize,
    hit: usize,
    completed: usize,
    named: usize,
    resumed: usize,
    failed: usize,
}

/// Rows by kind. It prints as Markdown.
#[derive(Default)]
pub struct Table(BTreeMap<Kind, Row>);

impl Table {
    /// Adds a scenario.
    pub fn add(&mut self, kind: Kind, outcome: &Result<Outcome, String>) {
        let row = self.0.entry(kind).or_default();
        row.runs += 1;
        match outcome {
            Ok(outcome) => {
                row.hit += usize::from(outcome.hit);
                row.completed += usize::from(outcome.completed);
                row.named += usize::from(outcome.named);
                row.resumed += usize::from(outcome.resumed);
            }
            Err(_) => row.failed += 1,
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| fault | runs | fault came | run complete | cause named | resumed bit for bit | found wrong |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        let rows = self.0.iter().map(|(kind, row)| (kind.to_string(), row));
        let sum = self.0.values().fold(Row::default(), |a, b| Row {
            runs: a.runs + b.runs,
            hit: a.hit + b.hit,
            completed: a.completed + b.completed,
            named: a.named + b.named,
            resumed: a.resumed + b.resumed,
            failed: a.failed + b.failed,
        });
        for (name, row) in rows.chain([("all".to_owned(), &sum)]) {
            let Row { runs, hit, completed, named, resumed, failed } = row;
            writeln!(f, "| {name} | {runs} | {hit} | {completed} | {named} | {resumed} | {failed} |")?;
        }
        Ok(())
    }
}
