//! What `eval` prints where an image has labels or numbers instead of one class: their figures, as text, JSON and CSV.

use std::collections::BTreeMap;

use enmasse_data::Dataset;
use enmasse_datasets::TaskKind;
use enmasse_train::metrics::{DEFAULT_THRESHOLD, LabelFigures, LabelScores, OutputFigures, RegressionFigures};
use enmasse_train::{Evaluation, RunPaths, Scores, Task, ThresholdsRecord};
use enmasse_wording::{counted, grouped, one_line};
use serde_json::{Value, json};

use super::figures::keep;
use super::images::Found;
use super::task as evaluation;
use crate::output::Output;
use crate::output::csv::field;
use crate::report::percent;

/// The figure that a run keeps for its predictions.
const BEST_THRESHOLD: &str = "best_threshold";

/// The results of an evaluation that kept the outputs for all images.
pub struct ValuesReport<'a> {
    pub found: &'a Evaluation,
    pub images: &'a Found,
    pub kind: TaskKind,
    /// Whether the weights are averages.
    pub averaged: bool,
    /// What is said of the thresholds that the run keeps.
    pub kept: Option<String>,
    pub rows: Vec<Row>,
}

/// A row of the table: the label or number, and its figures by their names.
pub struct Row {
    pub name: String,
    pub figures: Vec<(&'static str, Value)>,
}

/// The rows of these labels or numbers, from the outputs for all images.
pub fn rows_of(scores: &Scores, data: &dyn Dataset, names: &[String], task: &dyn Task, kind: TaskKind) -> Vec<Row> {
    let (outputs, targets) = scores.with_targets(data);
    let labels = names.len();
    let decoded: Vec<f64> = outputs.chunks_exact(labels.max(1)).flat_map(|row| task.decode(row)).collect();
    let names = names.iter().cloned();
    match kind {
        TaskKind::Regression => {
            let figures = RegressionFigures::of(&decoded, &targets, labels).per_output;
            let row = |(name, found): (String, OutputFigures)| Row {
                name,
                figures: vec![("r2", json!(found.r2)), ("mae", json!(found.mae)), ("rmse", json!(found.rmse))],
            };
            names.zip(figures).map(row).collect()
        }
        TaskKind::MultiLabel | TaskKind::Classification => {
            let scores = LabelScores { scores: &decoded, targets: &targets, labels };
            let figures = scores.figures(&vec![DEFAULT_THRESHOLD; labels]).per_label;
            let row = |((name, found), best): ((String, LabelFigures), f64)| Row {
                name,
                figures: vec![
                    ("images", json!(found.support)),
                    ("average_precision", json!(found.average_precision)),
                    ("precision", json!(found.precision)),
                    ("recall", json!(found.recall)),
                    ("f1", json!(found.f1)),
                    (BEST_THRESHOLD, json!(best)),
                ],
            };
            names.zip(figures).zip(scores.best_thresholds()).map(row).collect()
        }
    }
}

impl ValuesReport<'_> {
    /// Prints all of it: for scripts as JSON or, if `csv` is asked for, as a table.
    pub fn print(&self, output: &mut Output, csv: bool) {
        let rows = &self.rows;
        if output.is_json() {
            output.json(self.event(rows));
        } else if csv {
            csv_lines(rows).into_iter().for_each(|line| output.text(line));
        } else {
            output.text(self.summary());
            self.lines(rows).into_iter().chain(self.kept.clone()).for_each(|line| output.text(line));
        }
    }

    fn event(&self, rows: &[Row]) -> Value {
        let Evaluation { loss, samples, unreadable, metrics, .. } = self.found;
        let mut event = json!({
            "event": "eval", "task": self.kind.to_string(), "loss": loss, "samples": samples, "unreadable": unreadable,
            "averaged": self.averaged, "part": self.images.part.word()
        });
        metrics.iter().for_each(|(name, value)| event[name] = (*value).into());
        let row = |row: &Row| {
            let mut object = json!({ "class": row.name });
            row.figures.iter().for_each(|(name, value)| object[*name] = value.clone());
            object
        };
        event["per_class"] = rows.iter().map(row).collect();
        event
    }

    fn summary(&self) -> String {
        let Evaluation { loss, samples, unreadable, metrics, .. } = self.found;
        let skipped = if *unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() };
        let images = counted(*samples as usize, "image") + &skipped;
        let averaged = if self.averaged { ", with the averages of --ema or --lookahead" } else { "" };
        let figures: String = metrics.iter().map(|(name, value)| format!("{name} {value:.4}, ")).collect();
        format!("{}, {images}: {figures}loss {loss:.4}{averaged}", self.images.part.describe())
    }

    fn lines(&self, rows: &[Row]) -> Vec<String> {
        let widest = rows.iter().map(|row| one_line(&row.name).chars().count()).max().unwrap_or(0).max("number".len());
        let line = |name: &str, cells: Vec<String>| {
            let cells: String = cells.into_iter().map(|cell| format!("  {cell:>17}")).collect();
            format!("{name:<widest$}{cells}")
        };
        let names = rows.first().into_iter().flat_map(|row| &row.figures).map(|(name, _)| name.replace('_', " "));
        let head = if self.kind == TaskKind::Regression { "number" } else { "label" };
        let mut lines = vec![line(head, names.collect())];
        lines.extend(rows.iter().map(|row| {
            line(&one_line(&row.name), row.figures.iter().map(|(name, value)| shown(name, value)).collect())
        }));
        if self.kind == TaskKind::MultiLabel {
            lines.push(format!("a label is predicted from a probability of {DEFAULT_THRESHOLD} on; the best threshold is that of the highest F1 on these images"));
        }
        lines
    }
}

impl evaluation::Task {
    /// Keeps the best thresholds of labels in the folder of the run whose validation part this is. A folder that cannot be written is a
    /// warning.
    pub fn keep_thresholds(&self, rows: &[Row], samples: u64) -> Option<String> {
        let classifier = &self.weights.classifier;
        if !self.validates_run || classifier.kind() != TaskKind::MultiLabel {
            return None;
        }
        let best = |row: &Row| {
            let (_, threshold) = row.figures.iter().find(|(name, _)| *name == BEST_THRESHOLD)?;
            Some((row.name.clone(), threshold.as_f64()?))
        };
        let thresholds: BTreeMap<String, f64> = rows.iter().filter_map(best).collect();
        let optimizer_step = classifier.optimizer_step.filter(|_| !thresholds.is_empty())?;
        let record = ThresholdsRecord { thresholds, samples, optimizer_step };
        let path = RunPaths::new(&self.weights.path).thresholds();
        keep(&path, "the thresholds are", &record)?;
        Some(format!("{} keeps the best thresholds, and predict uses them", path.display()))
    }
}

/// A figure for people.
pub fn shown(name: &str, value: &Value) -> String {
    match (name, value.as_f64()) {
        (_, None) => "–".to_owned(),
        ("images", _) => grouped(value.as_u64().unwrap_or(0)),
        ("mae" | "rmse" | "r2" | BEST_THRESHOLD, Some(value)) => format!("{value:.4}"),
        (_, Some(value)) => percent(value),
    }
}

fn csv_lines(rows: &[Row]) -> Vec<String> {
    let names = rows.first().into_iter().flat_map(|row| &row.figures).map(|(name, _)| *name);
    let mut lines = vec![std::iter::once("class").chain(names).collect::<Vec<_>>().join(",")];
    lines.extend(rows.iter().map(|row| {
        let cell = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
        let cells = row.figures.iter().map(|(_, value)| cell(value));
        std::iter::once(field(&row.name)).chain(cells).collect::<Vec<_>>().join(",")
    }));
    lines
}
