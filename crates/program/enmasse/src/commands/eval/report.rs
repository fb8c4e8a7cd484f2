//! What `eval` prints: the figures of each class, the pairs that are confused most, and the mistakes, as text, JSON and CSV.

use enmasse_train::{ClassCounts, Evaluation, MacroAverages, Mistake, Ranked};
use enmasse_wording::{counted, grouped, one_line};
use serde_json::{Value, json};

use super::figures::{Figures, area};
use super::images::Found;
use crate::output::csv::field;
use crate::output::{Output, say};
use crate::report::balance;
use crate::report::percent;

/// Classes in the table on the screen, at most; of more, those with the lowest F1.
const MAX_ROWS: usize = 20;
/// Confused pairs on the screen, at most.
const MAX_PAIRS: usize = 5;
/// Confused pairs in JSON, at most: there may be a million.
const MAX_JSON_PAIRS: usize = 100;
/// Characters of a class's name in the table, at most.
const MAX_WIDTH: usize = 40;

/// The results of an evaluation, with the names of classes and images.
pub struct Report<'a> {
    pub found: &'a Evaluation,
    pub figures: &'a Figures,
    /// What is said of the file that keeps the temperature.
    pub kept: Option<String>,
    pub images: &'a Found,
    /// Mistakes to list, at most.
    pub mistakes: Option<usize>,
    /// Whether the weights are averages.
    pub averaged: bool,
    /// The number of crops by which each image was evaluated.
    pub crops: usize,
}

impl Report<'_> {
    /// Prints all of it: for scripts as JSON or, if `csv` is asked for, as a table of the mistakes if these are to be listed,
    /// otherwise of the classes.
    pub fn print(&self, output: &mut Output, csv: bool) {
        if output.is_json() {
            output.json(self.event());
        } else if csv {
            say(self.summary());
            let table = self.mistakes.map_or_else(|| self.csv_of_classes(), |limit| self.csv_of_mistakes(limit));
            table.into_iter().for_each(|line| output.text(line));
        } else {
            output.text(self.summary());
            self.lines().into_iter().for_each(|line| output.text(line));
        }
    }

    fn event(&self) -> Value {
        let Evaluation { loss, accuracy, balanced_accuracy, samples, unreadable, metrics, .. } = self.found;
        let mut event = json!({
            "event": "eval", "loss": loss, "accuracy": accuracy, "balanced_accuracy": balanced_accuracy,
            "samples": samples, "unreadable": unreadable,
            "averaged": self.averaged, "part": self.images.part.word(), "crops": self.crops
        });
        metrics.iter().for_each(|(name, mean)| event[name] = (*mean).into());
        self.figures.add_to(&mut event);
        self.add_to(&mut event);
        event
    }

    fn summary(&self) -> String {
        let Evaluation { loss, accuracy, samples, unreadable, metrics, per_class, .. } = self.found;
        let skipped = if *unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() };
        let images = counted(*samples as usize, "image") + &skipped;
        let averaged = if self.averaged { ", with the averages of --ema or --lookahead" } else { "" };
        let crops = if self.crops > 1 { format!(", by {} crops of each", self.crops) } else { String::new() };
        let metrics = metrics.iter().map(|(name, mean)| format!(", {name} {mean:.4}")).collect::<String>();
        format!(
            "{}, {images}{crops}: accuracy {}{}{}, loss {loss:.4}{metrics}{averaged}",
            self.images.part.describe(),
            percent(accuracy.unwrap_or(f64::NAN)),
            self.figures.interval_text(),
            balance::beside(per_class, false)
        )
    }

    fn class(&self, label: usize) -> String {
        self.images.classes.get(label).cloned().unwrap_or_else(|| label.to_string())
    }

    /// The class that most images of this one were predicted as instead, with their number.
    fn confused_with(&self, pairs: &[(usize, usize, u64)], label: usize) -> Option<(String, u64)> {
        let pair = pairs.iter().find(|&&(truth, ..)| truth == label);
        pair.map(|&(_, predicted, images)| (self.class(predicted), images))
    }

    fn pairs(&self) -> Vec<(usize, usize, u64)> {
        self.found.confusion.as_ref().map(|confusion| confusion.most_confused()).unwrap_or_default()
    }

    /// The mistakes to list, and how many there are.
    fn listed(&self, limit: usize) -> (&[Mistake], usize) {
        let all = self.found.mistakes.as_deref().unwrap_or_default();
        (&all[..all.len().min(limit)], all.len())
    }

    /// The table of classes, the averages, the confused pairs and the mistakes, for the screen.
    fn lines(&self) -> Vec<String> {
        let per_class = &self.found.per_class;
        let mut rows: Vec<(usize, ClassCounts)> = per_class.classes().enumerate().collect();
        let is_cut = rows.len() > MAX_ROWS;
        if is_cut {
            rows.sort_by(|(_, a), (_, b)| a.f1().total_cmp(&b.f1()));
            rows.truncate(MAX_ROWS);
        }
        let name = |label| one_line(&self.class(label)).chars().take(MAX_WIDTH).collect::<String>();
        let average = "macro average";
        let widest = rows.iter().map(|&(label, _)| name(label).chars().count()).chain([average.len()]).max();
        let widest = widest.unwrap_or_default();
        let has_areas = self.figures.of_scores.is_some();
        let row = |name: &str, images: &str, figures: [String; 3], areas: [String; 2]| {
            let [precision, recall, f1] = figures;
            let [roc_auc, average_precision] = areas;
            let areas = if has_areas { format!("  {roc_auc:>7}  {average_precision:>5}") } else { String::new() };
            format!("{name:<widest$}  {images:>9}  {precision:>9}  {recall:>9}  {f1:>9}{areas}")
        };
        let areas = |ranked: Ranked| [ranked.roc_auc, ranked.average_precision].map(area);
        let heads = (["precision", "recall", "F1"].map(str::to_owned), ["ROC AUC", "AP"].map(str::to_owned));
        let mut lines = vec![row("class", "images", heads.0, heads.1)];
        lines.extend(rows.iter().map(|&(label, class)| {
            let figures = [class.precision(), class.recall(), class.f1()].map(percent);
            row(&name(label), &grouped(class.images), figures, areas(self.figures.ranked(label)))
        }));
        let MacroAverages { precision, recall, f1 } = per_class.macro_averages();
        let figures = [precision, recall, f1].map(percent);
        let areas = areas(self.figures.macro_average());
        lines.push(row(average, &grouped(self.found.samples), figures, areas));
        if is_cut {
            let all = counted(per_class.classes().len(), "class");
            lines.push(format!("these are the {MAX_ROWS} with the lowest F1 of {all}; --csv and --json have all"));
        }
        lines.extend(balance::never_predicted(per_class, &self.images.classes));
        lines.extend(balance::never_evaluated(per_class, &self.images.classes));
        lines.extend(self.confused_line());
        lines.extend(self.figures.calibration_line());
        lines.extend(self.kept.clone());
        lines.extend(self.mistakes.into_iter().flat_map(|limit| self.mistake_lines(limit)));
        lines
    }

    fn confused_line(&self) -> Option<String> {
        if self.found.confusion.is_none() {
            return Some("most confused: not counted, since there are more than 1024 classes".to_owned());
        }
        let pairs = self.pairs();
        let pair = |&(truth, predicted, images): &(usize, usize, u64)| {
            format!("{} predicted as {} ({})", self.class(truth), self.class(predicted), grouped(images))
        };
        let shown = enmasse_wording::listed(pairs.iter().map(pair), MAX_PAIRS);
        (!pairs.is_empty()).then(|| format!("most confused: {shown}"))
    }

    fn mistake_lines(&self, limit: usize) -> Vec<String> {
        let (listed, all) = self.listed(limit);
        let of = counted(self.found.samples as usize, "image");
        let mut lines = vec![format!("mistakes: {} of {of}, the most certain first", grouped(all as u64))];
        lines.extend(listed.iter().map(|mistake| {
            let predicted = mistake.predicted.map_or("nothing".to_owned(), |label| self.class(label));
            let probability = percent(mistake.probability);
            let of_truth = percent(mistake.probability_of_truth);
            let file = self.images.data.name(mistake.index);
            let truth = self.class(mistake.truth);
            format!("  {file}: {truth} ({of_truth}) predicted as {predicted} ({probability})")
        }));
        if all > listed.len() {
            let more = grouped((all - listed.len()) as u64);
            lines.push(format!("  and {more} more; --mistakes {all} lists all, as do --csv and --json"));
        }
        lines
    }

    /// Adds the keys of classes, averages, pairs and mistakes.
    fn add_to(&self, event: &mut Value) {
        let per_class = self.found.per_class.classes().enumerate().map(|(label, class)| {
            let Ranked { roc_auc, average_precision } = self.figures.ranked(label);
            json!({
                "class": self.class(label), "images": class.images, "predicted": class.predicted,
                "precision": class.precision(), "recall": class.recall(), "f1": class.f1(),
                "roc_auc": roc_auc, "average_precision": average_precision
            })
        });
        event["per_class"] = per_class.collect();
        let MacroAverages { precision, recall, f1 } = self.found.per_class.macro_averages();
        event["macro"] = json!({ "precision": precision, "recall": recall, "f1": f1 });
        for (name, mean) in [("macro_precision", precision), ("macro_recall", recall), ("macro_f1", f1)] {
            event[name] = mean.into();
        }
        let pairs = self.pairs();
        let pairs = pairs.iter().take(MAX_JSON_PAIRS).map(|&(truth, predicted, images)| {
            json!({ "class": self.class(truth), "predicted": self.class(predicted), "images": images })
        });
        event["confused"] = if self.found.confusion.is_some() { pairs.collect() } else { Value::Null };
        if let Some(limit) = self.mistakes {
            let mistakes = self.listed(limit).0.iter().map(|mistake| {
                json!({
                    "image": self.images.data.name(mistake.index), "class": self.class(mistake.truth),
                    "predicted": mistake.predicted.map(|label| self.class(label)),
                    "probability": mistake.probability, "class_probability": mistake.probability_of_truth
                })
            });
            event["mistakes"] = mistakes.collect();
        }
    }

    /// The last row has the averages, and no label.
    fn csv_of_classes(&self) -> Vec<String> {
        let pairs = self.pairs();
        let areas = |Ranked { roc_auc, average_precision }: Ranked| {
            let [roc_auc, average_precision] =
                [roc_auc, average_precision].map(|area| area.map(|area| area.to_string()).unwrap_or_default());
            format!("{roc_auc},{average_precision}")
        };
        let heads = "label,class,images,predicted,precision,recall,f1,confused_with,confused,roc_auc,average_precision";
        let mut lines = vec![heads.to_owned()];
        lines.extend(self.found.per_class.classes().enumerate().map(|(label, class)| {
            let ClassCounts { images, predicted, .. } = class;
            let name = field(&self.class(label));
            let figures = format!("{},{},{}", class.precision(), class.recall(), class.f1());
            let (other, confused) = self.confused_with(&pairs, label).unwrap_or_default();
            let other = field(&other);
            let areas = areas(self.figures.ranked(label));
            format!("{label},{name},{images},{predicted},{figures},{other},{confused},{areas}")
        }));
        let MacroAverages { precision, recall, f1 } = self.found.per_class.macro_averages();
        let areas = areas(self.figures.macro_average());
        lines.push(format!(",macro average,{},,{precision},{recall},{f1},,,{areas}", self.found.samples));
        lines
    }

    fn csv_of_mistakes(&self, limit: usize) -> Vec<String> {
        let mut lines = vec!["path,class,predicted,probability,class_probability".to_owned()];
        lines.extend(self.listed(limit).0.iter().map(|mistake| {
            let predicted = mistake.predicted.map(|label| self.class(label)).unwrap_or_default();
            let path = field(&self.images.data.name(mistake.index));
            let class = field(&self.class(mistake.truth));
            let Mistake { probability, probability_of_truth, .. } = mistake;
            format!("{path},{class},{},{probability},{probability_of_truth}", field(&predicted))
        }));
        lines
    }
}
