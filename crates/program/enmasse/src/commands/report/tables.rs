//! The tables of a report, which its three forms share: runs side by side, and the classes of a run.

use enmasse_train::{ClassCounts, MacroAverages};
use enmasse_wording::{clock, grouped, one_line};

use super::record::{RunRecord, UsedSetting};
use super::{Evaluated, Reported};
use crate::commands::eval::values::{Row, shown};
use crate::output::csv::field;
use crate::report::percent;

/// A value: as people read it, and as programs do.
pub struct Cell {
    pub shown: String,
    exact: String,
}

impl Cell {
    fn text(text: impl ToString) -> Self {
        let text = text.to_string();
        Cell { exact: text.clone(), shown: text }
    }

    fn number(value: Option<f64>, shown: impl Fn(f64) -> String) -> Self {
        match value.filter(|value| value.is_finite()) {
            Some(value) => Cell { shown: shown(value), exact: value.to_string() },
            None => Cell { shown: "–".to_owned(), exact: String::new() },
        }
    }
}

/// Rows below the names of their columns, each with the name of its number in a CSV file.
pub struct Table {
    pub columns: Vec<(&'static str, &'static str)>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Lines of CSV.
    pub fn csv(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(_, name)| *name).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(|cell| field(&cell.exact)).collect::<Vec<_>>().join(","));
        std::iter::once(names.join(",")).chain(rows).map(|line| line + "\n").collect()
    }

    /// Lines of Markdown. The first column has names, the others figures.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let names = line(self.columns.iter().map(|(name, _)| (*name).to_owned()).collect());
        let rule = format!("|---{}|\n", "|--:".repeat(self.columns.len().saturating_sub(1)));
        let rows = self.rows.iter().map(|row| line(row.iter().map(|cell| markdown_text(&cell.shown)).collect()));
        [names, rule].into_iter().chain(rows).collect()
    }
}

/// Other people's text in Markdown: none of it is markup.
pub fn markdown_text(text: &str) -> String {
    let mut escaped = String::new();
    for character in one_line(text).chars() {
        if "\\`*_{}[]<>()#|!&~$".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Runs side by side, as the tutorials compare them: what they reached, and how fast.
pub fn comparison(runs: &[Reported]) -> Table {
    let columns = vec![
        ("run", "run"),
        ("model", "model"),
        ("best", "best"),
        ("epoch", "best_epoch"),
        ("accuracy", "accuracy"),
        ("test", "test_accuracy"),
        ("images/s", "images_per_second"),
        ("speed-up", "speed_up"),
        ("time an epoch", "epoch_seconds"),
        ("in all", "seconds"),
        ("ranks", "ranks"),
        ("precision", "precision"),
        ("SyncBN", "sync_bn"),
    ];
    let first = runs.first().and_then(|run| run.record.images_per_second());
    let rows = runs.iter().map(|run| {
        let (record, train) = (&run.record, &run.record.config.train);
        let speed = record.images_per_second();
        let times = |value: f64| format!("{value:.2} ×");
        vec![
            Cell::text(&record.name),
            Cell::text(&train.model),
            Cell::text(&record.best),
            Cell::number(record.best_epoch.as_ref().map(|epoch| epoch.number() as f64), |epoch| epoch.to_string()),
            Cell::number(run.evaluated.as_ref().ok().and_then(|evaluated| evaluated.found.accuracy), percent),
            Cell::number(record.test.as_ref().and_then(|test| test.accuracy), percent),
            Cell::number(speed, |speed| format!("{speed:.1}")),
            Cell::number(speed.zip(first).map(|(speed, first)| speed / first), times),
            Cell::number(record.epoch_seconds(), clock),
            Cell::number(Some(record.seconds()), clock),
            Cell::text(record.ranks()),
            Cell::text(train.precision),
            Cell::text(if train.sync_bn { "yes" } else { "no" }),
        ]
    });
    Table { rows: rows.collect(), columns }
}

/// The figures of each class and their means, or those of each label or number.
pub fn classes(run: &Evaluated) -> Table {
    if !run.values.is_empty() {
        return values(&run.values);
    }
    let columns = vec![
        ("class", "class"),
        ("images", "images"),
        ("predicted", "predicted"),
        ("precision", "precision"),
        ("recall", "recall"),
        ("F1", "f1"),
    ];
    let share = |value: f64| Cell::number(Some(value), percent);
    let count = |count: u64| Cell { shown: grouped(count), exact: count.to_string() };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (label, class) in run.found.per_class.classes().enumerate() {
        let ClassCounts { images, predicted, .. } = class;
        let name = run.classes.get(label).cloned().unwrap_or_else(|| label.to_string());
        let figures = [class.precision(), class.recall(), class.f1()].map(share);
        rows.push([Cell::text(name), count(images), count(predicted)].into_iter().chain(figures).collect());
    }
    let MacroAverages { precision, recall, f1 } = run.found.per_class.macro_averages();
    let all = [Cell::text("macro average"), count(run.found.samples), Cell::text("")];
    rows.push(all.into_iter().chain([precision, recall, f1].map(share)).collect());
    Table { columns, rows }
}

/// The settings that were given or differ from their defaults.
pub fn settings(record: &RunRecord) -> Table {
    let columns = vec![("setting", "setting"), ("value", "value"), ("from", "origin")];
    let row = |used: UsedSetting| vec![Cell::text(used.setting.name), Cell::text(used.value), Cell::text(used.origin)];
    Table {
        columns,
        rows: UsedSetting::of(&record.config, record.origins.as_ref(), true).into_iter().map(row).collect(),
    }
}

fn values(rows: &[Row]) -> Table {
    let names = rows.first().into_iter().flat_map(|row| &row.figures).map(|(name, _)| (*name, *name));
    let cells = |row: &Row| {
        let figures =
            row.figures.iter().map(|(name, value)| Cell { shown: shown(name, value), exact: value.to_string() });
        std::iter::once(Cell::text(&row.name)).chain(figures).collect()
    };
    Table { columns: std::iter::once(("name", "name")).chain(names).collect(), rows: rows.iter().map(cells).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = vec![("run", "run"), ("images/s", "images_per_second")];
        let speed = |value| Cell::number(value, |value| format!("{value:.1}"));
        Table {
            columns,
            rows: vec![
                vec![Cell::text("=a|b\n<script>"), speed(Some(12.345))],
                vec![Cell::text("c"), speed(Some(f64::NAN))],
            ],
        }
    }

    #[test]
    fn names_of_runs_are_text_in_every_form() {
        assert_eq!(table().csv(), "run,images_per_second\n'=a|b <script>,12.345\nc,\n");
        assert_eq!(table().markdown(), "| run | images/s |\n|---|--:|\n| =a\\|b \\<script\\> | 12.3 |\n| c | – |\n");
    }
}
