//! What a model is to predict of images: one class each, several labels, or numbers.
//!
//! Labels are kept as lists of those that an image has, since most of many are absent; a vector of zeros and ones is made when
//! a batch needs it.

use std::fmt;
use std::str::FromStr;

use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};

/// What a model is to predict of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// One class.
    #[default]
    Classification,
    /// Any number of labels, none among them.
    MultiLabel,
    /// One number, or several.
    Regression,
}

impl TaskKind {
    /// All tasks.
    pub const ALL: [TaskKind; 3] = [TaskKind::Classification, TaskKind::MultiLabel, TaskKind::Regression];

    /// The name of the task.
    pub const fn name(self) -> &'static str {
        match self {
            TaskKind::Classification => "classification",
            TaskKind::MultiLabel => "multi-label",
            TaskKind::Regression => "regression",
        }
    }

    pub(crate) fn is_classification(&self) -> bool {
        *self == TaskKind::Classification
    }

    /// What is known of an image.
    pub(crate) const fn known(self) -> &'static str {
        match self {
            TaskKind::Classification => "one class",
            TaskKind::MultiLabel => "labels",
            TaskKind::Regression => "numbers",
        }
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = TaskKind::ALL.into_iter().find(|task| task.name() == text);
        named.ok_or_else(|| format!("must be {}", TaskKind::ALL.map(TaskKind::name).join(" or ")))
    }
}

/// The labels or the numbers of samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Targets {
    /// Of so many labels those that each sample has, in increasing order.
    Labels {
        count: usize,
        /// The end of each sample's labels in `labels`.
        ends: Vec<usize>,
        labels: Vec<u32>,
    },
    /// So many numbers of each sample.
    Numbers { count: usize, numbers: Vec<f32> },
}

impl Targets {
    /// No sample yet, each of which will have some of `count` labels.
    pub fn labels(count: usize) -> Self {
        Targets::Labels { count, ends: Vec::new(), labels: Vec::new() }
    }

    /// No sample yet, each of which will have `count` numbers.
    pub fn numbers(count: usize) -> Self {
        Targets::Numbers { count, numbers: Vec::new() }
    }

    /// No sample yet, of a task with so many outputs; `None` for classes.
    pub fn of_task(task: TaskKind, count: usize) -> Option<Self> {
        match task {
            TaskKind::Classification => None,
            TaskKind::MultiLabel => Some(Targets::labels(count)),
            TaskKind::Regression => Some(Targets::numbers(count)),
        }
    }

    pub fn task(&self) -> TaskKind {
        match self {
            Targets::Labels { .. } => TaskKind::MultiLabel,
            Targets::Numbers { .. } => TaskKind::Regression,
        }
    }

    /// Adds a sample: its labels in increasing order. Of numbers nothing is added.
    pub fn push_labels(&mut self, own: impl IntoIterator<Item = u32>) {
        if let Targets::Labels { ends, labels, .. } = self {
            labels.extend(own);
            ends.push(labels.len());
        }
    }

    /// Adds a sample: its numbers. Of labels nothing is added.
    pub fn push_numbers(&mut self, own: &[f32]) {
        if let Targets::Numbers { numbers, .. } = self {
            numbers.extend(own);
        }
    }

    /// Adds a sample by its vector, as [`vector`](Self::vector) gives it. The problem is the end of a sentence about it.
    pub fn push(&mut self, vector: &[f32]) -> Result<(), String> {
        let count = self.count();
        if vector.len() != count {
            return Err(format!("it has {} values to predict instead of {count}", vector.len()));
        }
        match self {
            Targets::Labels { .. } => {
                if let Some(value) = vector.iter().find(|value| ![0.0, 1.0].contains(*value)) {
                    return Err(format!("one of its labels is {value} instead of 0 or 1"));
                }
                self.push_labels((0..).zip(vector).filter(|(_, value)| **value == 1.0).map(|(label, _)| label));
            }
            Targets::Numbers { numbers, .. } => {
                if let Some(value) = vector.iter().find(|value| !value.is_finite()) {
                    return Err(format!("one of its numbers is {value}"));
                }
                numbers.extend(vector);
            }
        }
        Ok(())
    }

    /// The number of labels that there are, or of a sample's numbers.
    pub fn count(&self) -> usize {
        match self {
            Targets::Labels { count, .. } | Targets::Numbers { count, .. } => *count,
        }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        match self {
            Targets::Labels { ends, .. } => ends.len(),
            Targets::Numbers { count, numbers } => numbers.len() / (*count).max(1),
        }
    }

    /// The labels of a sample; none of numbers.
    pub fn labels_of(&self, index: usize) -> &[u32] {
        match self {
            Targets::Labels { ends, labels, .. } => {
                let start = index.checked_sub(1).map_or(0, |before| ends[before]);
                &labels[start..ends[index]]
            }
            Targets::Numbers { .. } => &[],
        }
    }

    /// The numbers of a sample; none of labels.
    pub fn numbers_of(&self, index: usize) -> &[f32] {
        match self {
            Targets::Labels { .. } => &[],
            Targets::Numbers { count, numbers } => &numbers[index * count..(index + 1) * count],
        }
    }

    /// What a model is to predict of a sample: 1 for each label that it has among zeros, or its numbers.
    pub fn vector(&self, index: usize) -> Vec<f32> {
        match self {
            Targets::Labels { count, .. } => {
                let mut vector = vec![0.0; *count];
                self.labels_of(index).iter().for_each(|&label| vector[label as usize] = 1.0);
                vector
            }
            Targets::Numbers { .. } => self.numbers_of(index).to_vec(),
        }
    }

    /// The samples for which `keep` returns true, in the same order.
    pub fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        let kept = (0..self.len()).filter(|&index| keep(index));
        match self {
            Targets::Labels { count, .. } => {
                let mut part = Targets::labels(*count);
                kept.for_each(|index| part.push_labels(self.labels_of(index).iter().copied()));
                part.shrink()
            }
            Targets::Numbers { count, .. } => {
                let numbers = kept.flat_map(|index| self.numbers_of(index)).copied().collect();
                Targets::Numbers { count: *count, numbers }.shrink()
            }
        }
    }

    /// Gives back the memory that the lists have grown into and do not need.
    pub fn shrink(mut self) -> Self {
        match &mut self {
            Targets::Labels { ends, labels, .. } => {
                ends.shrink_to_fit();
                labels.shrink_to_fit();
            }
            Targets::Numbers { numbers, .. } => numbers.shrink_to_fit(),
        }
        self
    }
}

/// A list for each sample: its labels, or its numbers.
impl Serialize for Targets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.len()))?;
        for index in 0..self.len() {
            match self {
                Targets::Labels { .. } => list.serialize_element(self.labels_of(index))?,
                Targets::Numbers { .. } => list.serialize_element(self.numbers_of(index))?,
            }
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_names() {
        for task in TaskKind::ALL {
            assert_eq!((task.to_string().parse(), task.name()), (Ok(task), task.to_string().as_str()));
            assert_eq!(serde_json::to_string(&task).unwrap(), format!("\"{task}\""));
        }
        let error = "must be classification or multi-label or regression";
        assert_eq!("multilabel".parse::<TaskKind>(), Err(error.to_owned()));
    }

    #[test]
    fn vectors_come_back() {
        let check = |mut targets: Targets, vectors: &[&[f32]], json: &str| {
            vectors.iter().for_each(|vector| targets.push(vector).unwrap());
            let all = |targets: &Targets| (0..targets.len()).map(|index| targets.vector(index)).collect::<Vec<_>>();
            assert_eq!(all(&targets), vectors);
            assert_eq!(all(&targets.part(|index| index != 0)), vectors[1..]);
            assert_eq!(serde_json::to_string(&targets).unwrap(), json);
        };
        check(
            Targets::labels(3),
            &[&[0.0, 1.0, 1.0], &[0.0; 3], &[1.0, 0.0, 0.0], &[1.0, 1.0, 1.0]],
            "[[1,2],[],[0],[0,1,2]]",
        );
        check(Targets::numbers(1), &[&[0.1], &[-2.0], &[7.0]], "[[0.1],[-2.0],[7.0]]");
        check(Targets::numbers(2), &[&[0.5, 1.0], &[0.0, 0.0]], "[[0.5,1.0],[0.0,0.0]]");
    }

    #[test]
    fn other_vectors_are_refused() {
        let check = |mut targets: Targets, vector: &[f32], expected: &str| {
            assert_eq!(targets.push(vector), Err(expected.to_owned()));
            assert_eq!(targets.len(), 0);
        };
        check(Targets::labels(2), &[1.0], "it has 1 values to predict instead of 2");
        check(Targets::labels(2), &[1.0, 0.5], "one of its labels is 0.5 instead of 0 or 1");
        check(Targets::numbers(1), &[f32::NAN], "one of its numbers is NaN");
        check(Targets::numbers(1), &[], "it has 0 values to predict instead of 1");
    }
}
