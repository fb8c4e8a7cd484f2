//! What is known of images, in words: their classes, their labels, or numbers.

use enmasse_data::Dataset;
use enmasse_datasets::TaskKind;
use enmasse_train::TrainingData;
use enmasse_wording::{counted, one_line};
use serde_json::{Value, json};

/// One of the data's classes, labels or numbers.
pub fn noun(task: TaskKind) -> &'static str {
    match task {
        TaskKind::Classification => "class",
        TaskKind::MultiLabel => "label",
        TaskKind::Regression => "number",
    }
}

/// `in 3 classes`, `with 17 labels` or `with 1 number`.
pub fn among(data: &TrainingData) -> String {
    let preposition = if data.task == TaskKind::Classification { "in" } else { "with" };
    let several = if data.task == TaskKind::Regression && data.classes.len() > 1 { " each" } else { "" };
    format!("{preposition} {}{several}", counted(data.classes.len(), noun(data.task)))
}

/// The class of an image, its labels, or its numbers.
pub fn of_image(data: &TrainingData, part: &dyn Dataset, index: usize) -> String {
    match data.task {
        TaskKind::Classification => data.classes[part.label(index)].clone(),
        task => in_words(task, &data.classes, &part.targets(index)),
    }
}

/// Labels with a target above 0, or numbers.
pub fn in_words(task: TaskKind, names: &[String], targets: &[f32]) -> String {
    if task == TaskKind::Regression {
        return targets.iter().map(f32::to_string).collect::<Vec<_>>().join(", ");
    }
    let own = names.iter().zip(targets).filter(|(_, target)| **target > 0.0);
    let own: Vec<&str> = own.map(|(label, _)| label.as_str()).collect();
    if own.is_empty() { "no label".to_owned() } else { own.join(", ") }
}

/// The same as a key and its value in JSON.
pub fn json_of_image(data: &TrainingData, part: &dyn Dataset, index: usize) -> (&'static str, Value) {
    let targets = part.targets(index);
    match data.task {
        TaskKind::Classification => ("class", json!(data.classes[part.label(index)])),
        TaskKind::MultiLabel => {
            let own = data.classes.iter().zip(targets).filter(|(_, target)| *target > 0.0);
            ("labels", json!(own.map(|(label, _)| label).collect::<Vec<_>>()))
        }
        TaskKind::Regression => ("numbers", json!(targets)),
    }
}

/// Labels and numbers of a part together.
#[derive(Debug, PartialEq)]
pub enum Summary {
    /// There are classes alone.
    Classes,
    Labels {
        /// Of all images.
        labels: usize,
        images: usize,
        without: usize,
    },
    /// Of each number its name, and the least, the mean and the largest.
    Numbers(Vec<(String, [f64; 3])>),
}

impl Summary {
    pub fn of(data: &TrainingData, part: &dyn Dataset) -> Self {
        match data.task {
            TaskKind::Classification => Summary::Classes,
            TaskKind::MultiLabel => {
                let (mut labels, mut without) = (0, 0);
                for index in 0..part.len() {
                    let own = part.targets(index).iter().filter(|target| **target > 0.0).count();
                    labels += own;
                    without += usize::from(own == 0);
                }
                Summary::Labels { labels, images: part.len(), without }
            }
            TaskKind::Regression => {
                let mut found = vec![[f64::INFINITY, 0.0, f64::NEG_INFINITY]; data.classes.len()];
                for index in 0..part.len() {
                    for ([least, sum, most], number) in found.iter_mut().zip(part.targets(index)) {
                        let number = f64::from(number);
                        (*least, *sum, *most) = (least.min(number), *sum + number, most.max(number));
                    }
                }
                let mean = |[least, sum, most]: [f64; 3]| [least, sum / part.len().max(1) as f64, most];
                Summary::Numbers(data.classes.iter().cloned().zip(found.into_iter().map(mean)).collect())
            }
        }
    }

    /// A line for labels or for each number, without the name of the part.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Summary::Classes => Vec::new(),
            Summary::Labels { labels, images, without } => {
                let mean = *labels as f64 / (*images).max(1) as f64;
                vec![format!("{mean:.2} labels an image, {} without any", counted(*without, "image"))]
            }
            Summary::Numbers(numbers) => {
                let line = |(name, [least, mean, most]): &(String, [f64; 3])| {
                    format!("{}: {least:.6} to {most:.6}, mean {mean:.6}", one_line(name))
                };
                numbers.iter().map(line).collect()
            }
        }
    }

    pub fn to_json(&self) -> Value {
        match self {
            Summary::Classes => Value::Null,
            Summary::Labels { labels, images, without } => {
                json!({ "mean": *labels as f64 / (*images).max(1) as f64, "without": without })
            }
            Summary::Numbers(numbers) => numbers
                .iter()
                .map(|(name, [least, mean, most])| json!({ "name": name, "min": least, "mean": mean, "max": most }))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_numbers_in_words() {
        let labels = Summary::Labels { labels: 7, images: 4, without: 1 };
        assert_eq!(labels.lines(), ["1.75 labels an image, 1 image without any"]);
        assert_eq!(labels.to_json(), json!({ "mean": 1.75, "without": 1 }));
        let numbers = Summary::Numbers(vec![("age".to_owned(), [-1.0, 2.5, 4.0])]);
        assert_eq!(numbers.lines(), ["age: -1.000000 to 4.000000, mean 2.500000"]);
        assert_eq!(numbers.to_json(), json!([{ "name": "age", "min": -1.0, "mean": 2.5, "max": 4.0 }]));
        assert_eq!((Summary::Classes.lines(), Summary::Classes.to_json()), (Vec::new(), Value::Null));
    }
}
