//! Predictions as lines, as JSON objects, and as the rows of a table.

use std::borrow::Cow;
use std::path::Path;

use enmasse_datasets::TaskKind;
use enmasse_parquet::{Cell, TableColumn};
use enmasse_train::{Guess, PredictedValue, Prediction};
use serde_json::{Value, json};

use crate::output::csv::field;
use crate::report::percent;

/// The image, one line per class, and where its heatmap is.
pub fn lines(prediction: &Prediction, heatmap: Option<&Path>) -> Vec<String> {
    let line = |guess: &Guess| format!("  {:>8}  {} ({})", percent(guess.probability), guess.class, guess.index);
    let number = |found: &PredictedValue| format!("  {:>8.4}  {}", found.value, found.name);
    let lines = prediction.top.iter().map(line).chain(prediction.values.iter().map(number));
    let labels = (!prediction.labels.is_empty()).then(|| format!("  labels: {}", prediction.labels.join(", ")));
    let heatmap = heatmap.map(|path| format!("  heatmap: {}", path.display()));
    std::iter::once(prediction.image.clone()).chain(lines).chain(labels).chain(heatmap).collect()
}

/// The object of an image.
pub fn object(prediction: &Prediction, heatmap: Option<&Path>) -> Value {
    let mut object = json!(prediction);
    if let Some(path) = heatmap {
        object["heatmap"] = json!(path);
    }
    object
}

/// The columns of a table of predictions: `top` classes or labels of each image, or the numbers with these `names`.
pub fn columns(kind: TaskKind, top: usize, names: &[String]) -> Vec<TableColumn> {
    let mut columns = vec![TableColumn::Text("path".to_owned())];
    if kind == TaskKind::Regression {
        columns.extend(names.iter().cloned().map(TableColumn::Number));
        return columns;
    }
    for place in 1..=top {
        let suffix = if place == 1 { String::new() } else { format!("_{place}") };
        columns.push(TableColumn::Text(format!("class{suffix}")));
        columns.push(TableColumn::Number(format!("probability{suffix}")));
    }
    if kind == TaskKind::MultiLabel {
        columns.push(TableColumn::Text("labels".to_owned()));
    }
    columns
}

/// The values of a prediction in these columns. Labels are between `|`, as tables for training may have them.
fn values(prediction: &Prediction, kind: TaskKind) -> Vec<RowValue<'_>> {
    let mut values = vec![RowValue::Text(Cow::Borrowed(prediction.image.as_str()))];
    for Guess { class, probability, .. } in &prediction.top {
        values.extend([RowValue::Text(Cow::Borrowed(class.as_str())), RowValue::Number(*probability)]);
    }
    if kind == TaskKind::MultiLabel {
        values.push(RowValue::Text(Cow::Owned(prediction.labels.join("|"))));
    }
    values.extend(prediction.values.iter().map(|found| RowValue::Number(found.value)));
    values
}

/// A value of a row.
enum RowValue<'a> {
    Text(Cow<'a, str>),
    Number(f64),
}

/// The first line of a CSV file.
pub fn header(columns: &[TableColumn]) -> String {
    columns.iter().map(|column| field(column.name())).collect::<Vec<_>>().join(",")
}

/// A line of a CSV file.
pub fn row(prediction: &Prediction, kind: TaskKind) -> String {
    let value = |value: &RowValue| match value {
        RowValue::Text(text) => field(text),
        RowValue::Number(number) => number.to_string(),
    };
    values(prediction, kind).iter().map(value).collect::<Vec<_>>().join(",")
}

/// Calls `write` with the values of a row of a Parquet file.
pub fn with_cells<T>(prediction: &Prediction, kind: TaskKind, write: impl FnOnce(&[Cell]) -> T) -> T {
    let values = values(prediction, kind);
    let cells = values.iter().map(|value| match value {
        RowValue::Text(text) => Cell::Text(text),
        RowValue::Number(number) => Cell::Number(*number),
    });
    write(&cells.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_table() {
        let check = |image: &str, classes: &[&str], expected: &str| {
            let guess = |(index, class): (usize, &&str)| Guess { index, class: (*class).to_owned(), probability: 0.25 };
            let top = classes.iter().enumerate().map(guess).collect();
            let prediction = Prediction { image: image.to_owned(), top, ..Prediction::default() };
            assert_eq!(row(&prediction, TaskKind::Classification), expected);
        };
        check("a/b.jpg", &["rose"], "a/b.jpg,rose,0.25");
        check("a b.jpg", &["rose", "lily"], "a b.jpg,rose,0.25,lily,0.25");
        check("a,b.jpg", &["red, white"], "\"a,b.jpg\",\"red, white\",0.25");
        check("a\"b\".jpg", &["rose\nlily"], "\"a\"\"b\"\".jpg\",rose lily,0.25");
        let header = |kind, top| header(&columns(kind, top, &["age".to_owned(), "a,b".to_owned()]));
        assert_eq!(header(TaskKind::Classification, 1), "path,class,probability");
        let three = "path,class,probability,class_2,probability_2,class_3,probability_3";
        assert_eq!(header(TaskKind::Classification, 3), three);
        assert_eq!(header(TaskKind::MultiLabel, 1), "path,class,probability,labels");
        assert_eq!(header(TaskKind::Regression, 1), "path,age,\"a,b\"");
    }
}
