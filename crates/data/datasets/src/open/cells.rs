//! What the cells of a table say of its images: their classes, their labels, or numbers.
//!
//! A table is read once, and keeps the distinct texts of its cells. What they mean is decided when all are known, since one cell
//! may tell that the others are no classes: a cell with several labels, or one with a fraction.

use std::collections::BTreeSet;

use super::classes::{Distinct, is_fraction, sorted};
use super::manifest::plain;
use crate::TaskKind;
use crate::targets::Targets;

/// Between the items of a list in one text: the unit separator of ASCII, which no label has.
pub(super) const JOIN: char = '\u{1F}';
/// Before the values of several columns that are not all zeros and ones.
const VALUES: char = '=';
/// Labels, or numbers of an image, that there may be.
const MOST: usize = 1 << 16;
/// What separates labels in one cell. The first of them that occurs in a column does.
const SEPARATORS: [char; 3] = ['|', ';', ','];
/// Names of columns in which a separator separates labels.
const SEVERAL: [&str; 2] = ["labels", "tags"];
/// Names under which people keep labels, besides those of classes.
pub(super) const TAGS: [&str; 1] = ["tags"];
/// Names under which people keep numbers, besides those of classes.
pub(super) const NUMBERS: [&str; 6] = ["targets", "value", "values", "score", "age", "y"];

/// One text of the items of a list.
pub(super) fn joined<'a>(items: impl Iterator<Item = &'a str>) -> String {
    items.enumerate().fold(String::new(), |mut text, (place, item)| {
        if place > 0 {
            text.push(JOIN);
        }
        text + item
    })
}

/// One text of the values in several columns: the places of the ones, if all are ones and zeros.
pub(super) fn joined_values(values: &[&str]) -> String {
    let ones: Option<Vec<bool>> = values.iter().map(|value| truth(value)).collect();
    match ones {
        Some(ones) => {
            let places: Vec<String> =
                (0..).zip(ones).filter(|(_, one)| *one).map(|(place, _): (u32, _)| place.to_string()).collect();
            joined(places.iter().map(String::as_str))
        }
        None => format!("{VALUES}{}", joined(values.iter().copied())),
    }
}

/// A value of a column for one label.
pub(super) fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "1.0" | "true" => Some(true),
        "0" | "0.0" | "false" => Some(false),
        _ => None,
    }
}

/// What the cells of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One text.
    Text,
    /// In some rows a list, by [`joined`].
    Lists,
    /// The values of several columns, by [`joined_values`].
    Columns,
}

/// The distinct cells of a table.
pub(super) struct Cells<'a> {
    /// The columns that they are from.
    pub columns: &'a [String],
    pub form: Form,
    pub texts: &'a [String],
    /// If lists are of numbers of texts, these texts.
    pub items: Option<&'a [String]>,
}

/// What cells mean, for each of them.
#[derive(Debug, PartialEq)]
pub(super) enum Meaning {
    /// The class of each.
    Classes { names: Vec<String>, labels: Vec<u32> },
    /// The labels of each, in increasing order.
    Labels { names: Vec<String>, labels: Vec<Vec<u32>> },
    /// The numbers of each.
    Numbers { names: Vec<String>, numbers: Vec<Vec<f32>> },
}

impl Meaning {
    /// Names of the classes, of the labels, or of the numbers.
    pub fn names(&self) -> &[String] {
        match self {
            Meaning::Classes { names, .. } | Meaning::Labels { names, .. } | Meaning::Numbers { names, .. } => names,
        }
    }

    /// The class of a cell; 0 if it has none.
    pub fn class(&self, cell: usize) -> u32 {
        match self {
            Meaning::Classes { labels, .. } => labels[cell],
            Meaning::Labels { .. } | Meaning::Numbers { .. } => 0,
        }
    }

    /// Where what cells mean can be added, unless it is classes.
    pub fn no_targets(&self) -> Option<Targets> {
        match self {
            Meaning::Classes { .. } => None,
            Meaning::Labels { names, .. } => Some(Targets::labels(names.len())),
            Meaning::Numbers { names, .. } => Some(Targets::numbers(names.len())),
        }
    }

    /// Adds a sample with a cell, or with these labels instead of the cell's.
    pub fn add(&self, cell: usize, other: Option<&[u32]>, targets: &mut Targets) {
        match self {
            Meaning::Classes { .. } => {}
            Meaning::Labels { labels, .. } => targets.push_labels(other.unwrap_or(&labels[cell]).iter().copied()),
            Meaning::Numbers { numbers, .. } => targets.push_numbers(&numbers[cell]),
        }
    }
}

/// A cell that cannot be used, by its place, and the problem: the end of a sentence about it.
type Fault = (usize, String);

impl Cells<'_> {
    /// An item of a list as it is written.
    fn item<'b>(&'b self, item: &'b str) -> &'b str {
        let texts = self.items.zip(item.parse::<usize>().ok());
        texts.and_then(|(texts, number)| texts.get(number)).map_or(item, String::as_str)
    }

    /// What the cells mean for a task, or for the one that they are plainly of.
    pub fn meaning(&self, task: Option<TaskKind>) -> Result<Meaning, Fault> {
        match (self.form, task) {
            (Form::Columns, task) => self.of_columns(task),
            (Form::Lists, Some(TaskKind::Classification)) => {
                let list =
                    self.texts.iter().position(|text| text.is_empty() || text.contains(JOIN)).unwrap_or_default();
                Err((list, "it has a list of labels, not one class; `task = multi-label` takes all of them".to_owned()))
            }
            (Form::Lists, Some(TaskKind::Regression)) => {
                self.numbers(|text| text.split(JOIN).map(|item| self.item(item).to_owned()).collect())
            }
            (Form::Lists, Some(TaskKind::MultiLabel) | None) => self.labels(Some(JOIN), task),
            (Form::Text, Some(TaskKind::Classification)) => self.classes(task),
            (Form::Text, Some(TaskKind::MultiLabel)) => self.labels(self.separator().or_else(|| self.blank()), task),
            (Form::Text, Some(TaskKind::Regression)) => self.numbers(|text| vec![text.to_owned()]),
            (Form::Text, None) => self.of_text(),
        }
    }

    /// One column whose name and cells tell the task.
    fn of_text(&self) -> Result<Meaning, Fault> {
        let name = self.columns.first().map(|name| plain(name)).unwrap_or_default();
        let filled = || self.texts.iter().filter(|text| !text.is_empty());
        let is_number = |text: &String| text.parse::<f64>().is_ok();
        if filled().any(|text| is_fraction(text)) && filled().all(is_number) {
            // Tables with gaps are written with whole numbers as 1.0.
            return match filled().all(|text| text.parse::<f64>().is_ok_and(|number| number.fract() == 0.0)) {
                false => self.numbers(|text| vec![text.to_owned()]),
                true => {
                    Err((0, self.undecided("classes or numbers", [TaskKind::Classification, TaskKind::Regression])))
                }
            };
        }
        match self.separator() {
            Some(separator) if SEVERAL.contains(&name.as_str()) => self.labels(Some(separator), None),
            None if TAGS.contains(&name.as_str()) => Err((
                0,
                self.undecided(
                    "classes or labels separated by blanks",
                    [TaskKind::Classification, TaskKind::MultiLabel],
                ),
            )),
            _ if NUMBERS.contains(&name.as_str()) && filled().all(is_number) => {
                Err((0, self.undecided("classes or numbers", [TaskKind::Classification, TaskKind::Regression])))
            }
            _ => self.classes(None),
        }
    }

    /// The problem of a column that may be of two tasks.
    fn undecided(&self, what: &str, [one, other]: [TaskKind; 2]) -> String {
        format!("its column {} may have {what}; say it by `task = {one}` or `task = {other}`", self.columns.join(", "))
    }

    /// The first of the usual separators that is in any cell.
    fn separator(&self) -> Option<char> {
        SEPARATORS.into_iter().find(|separator| self.texts.iter().any(|text| text.contains(*separator)))
    }

    /// A blank, if it is in any cell.
    fn blank(&self) -> Option<char> {
        self.texts.iter().any(|text| text.contains(' ')).then_some(' ')
    }

    fn classes(&self, task: Option<TaskKind>) -> Result<Meaning, Fault> {
        let fault = |place: usize| match self.texts[place].is_empty() {
            true => Some((place, "it has no label".to_owned())),
            false if task.is_none() && is_fraction(&self.texts[place]) => Some((place, fraction(&self.texts[place]))),
            false => None,
        };
        if let Some(fault) = (0..self.texts.len()).find_map(fault) {
            return Err(fault);
        }
        let (names, labels) = sorted(self.texts);
        Ok(Meaning::Classes { names, labels })
    }

    /// Labels between separators, or one in each cell. An empty cell has none.
    fn labels(&self, separator: Option<char>, task: Option<TaskKind>) -> Result<Meaning, Fault> {
        let mut distinct = Distinct::default();
        let mut cells = Vec::with_capacity(self.texts.len());
        for (place, text) in self.texts.iter().enumerate() {
            let items = text.split(|letter| Some(letter) == separator).map(str::trim).filter(|item| !item.is_empty());
            let mut own = BTreeSet::new();
            for item in items.map(|item| self.item(item)) {
                if task.is_none() && is_fraction(item) {
                    let what = self.undecided("labels or numbers", [TaskKind::MultiLabel, TaskKind::Regression]);
                    return Err((place, what));
                }
                own.insert(distinct.number(item));
            }
            cells.push(own);
        }
        if distinct.texts.is_empty() {
            return Err((0, format!("there is no label in the column {}", self.columns.join(", "))));
        }
        within_limit("labels", distinct.texts.len()).map_err(|problem| (0, problem))?;
        let (names, numbers) = sorted(&distinct.texts);
        let renumbered = |own: BTreeSet<u32>| {
            let own: BTreeSet<u32> = own.into_iter().map(|label| numbers[label as usize]).collect();
            own.into_iter().collect()
        };
        Ok(Meaning::Labels { names, labels: cells.into_iter().map(renumbered).collect() })
    }

    /// As many numbers in each cell, which `split` gives as they are written.
    fn numbers(&self, split: impl Fn(&str) -> Vec<String>) -> Result<Meaning, Fault> {
        let mut numbers = Vec::with_capacity(self.texts.len());
        let mut count = None;
        for (place, text) in self.texts.iter().enumerate() {
            let own = split(text).iter().map(|text| number(text)).collect::<Result<Vec<f32>, String>>();
            let own = own.map_err(|problem| (place, problem))?;
            let expected = *count.get_or_insert(own.len());
            if own.len() != expected {
                return Err((place, format!("it has {} numbers, and others have {expected}", own.len())));
            }
            numbers.push(own);
        }
        let count = count.unwrap_or_default();
        within_limit("numbers", count).map_err(|problem| (0, problem))?;
        let names = match self.columns {
            [one] if count > 1 => (0..count).map(|place| format!("{one}[{place}]")).collect(),
            columns => columns.to_vec(),
        };
        Ok(Meaning::Numbers { names, numbers })
    }

    /// Several columns: zeros and ones are classes if each row has a single one, and labels otherwise; others are numbers.
    fn of_columns(&self, task: Option<TaskKind>) -> Result<Meaning, Fault> {
        let names = self.columns.to_vec();
        let values = self.texts.iter().position(|text| text.starts_with(VALUES));
        if task == Some(TaskKind::Regression) || (task.is_none() && values.is_some()) {
            return self.numbers(|text| self.values(text));
        }
        if let Some(place) = values {
            let other = self.values(&self.texts[place]).into_iter().find(|value| truth(value).is_none());
            let problem =
                format!("it has {:?} in a column for one label, which takes 0 or 1", other.unwrap_or_default());
            return Err((place, problem));
        }
        within_limit("labels", names.len()).map_err(|problem| (0, problem))?;
        let labels: Vec<Vec<u32>> = self.texts.iter().map(|text| ones(text)).collect();
        let several = labels.iter().position(|own| own.len() != 1);
        match (task, several) {
            (Some(TaskKind::Classification), Some(place)) => {
                let problem = format!(
                    "it has a 1 in {} of its columns for classes, not in one; `task = multi-label` takes all of them",
                    labels[place].len()
                );
                Err((place, problem))
            }
            (None | Some(TaskKind::Classification), None) => {
                Ok(Meaning::Classes { names, labels: labels.into_iter().flatten().collect() })
            }
            _ => Ok(Meaning::Labels { names, labels }),
        }
    }

    /// The values of all columns, as they are written.
    fn values(&self, text: &str) -> Vec<String> {
        match text.strip_prefix(VALUES) {
            Some(values) => values.split(JOIN).map(str::to_owned).collect(),
            None => {
                let mut values = vec!["0".to_owned(); self.columns.len()];
                ones(text).into_iter().for_each(|place| values[place as usize] = "1".to_owned());
                values
            }
        }
    }
}

/// The places of ones in [`joined_values`].
fn ones(text: &str) -> Vec<u32> {
    text.split(JOIN).filter_map(|place| place.parse().ok()).collect()
}

/// The problem of a fraction among classes.
fn fraction(class: &str) -> String {
    format!(
        "its label is {class}, a number, and others are classes; `task = regression` takes numbers as targets, and \
         `task = classification` as names"
    )
}

fn number(text: &str) -> Result<f32, String> {
    if text.is_empty() {
        return Err("it has no number".to_owned());
    }
    match text.parse::<f64>() {
        Ok(number) if (number as f32).is_finite() => Ok(number as f32),
        Ok(_) => Err(format!("its number is {text}, which no f32 has")),
        Err(_) => Err(format!("it has {text:?} instead of a number")),
    }
}

fn within_limit(what: &str, count: usize) -> Result<(), String> {
    match count <= MOST {
        true => Ok(()),
        false => Err(format!("there are {count} {what}, and {MOST} at most are predicted")),
    }
}

#[cfg(test)]
#[path = "cells_tests.rs"]
mod tests;
