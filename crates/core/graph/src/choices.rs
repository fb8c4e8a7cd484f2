//! Algorithms chosen by measuring (`--tune`).
//!
//! Choices are part of the plan ([`Plan::choose`](crate::Plan::choose)) and so of its text, which
//! ranks compare. Their own text form is what ranks exchange, and what a run keeps in
//! `algorithms.txt`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The chosen algorithms, by the signature of the operation ([`crate::Plan::signature`]).
///
/// Layers that compute the same thing share a signature; other layers, batches or precisions have their own. The device
/// defines the algorithms' names and refuses those that it does not know.
///
/// The text form has a line with the number of operations, then one line per operation:
///
/// ```
/// use enmasse_graph::Choices;
/// let mut choices = Choices::default();
/// choices.insert("conv2d {kernel 3x3} (f32[1,9,9,8]) -> (f32[1,7,7,8])", "winograd");
/// let text = "1 chosen by measuring\nwinograd conv2d {kernel 3x3} (f32[1,9,9,8]) -> (f32[1,7,7,8])\n";
/// assert_eq!(choices.to_string(), text);
/// assert_eq!(text.parse(), Ok(choices));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices(BTreeMap<String, Arc<str>>);

/// An error in the text form of choices.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line} {reason}")]
pub struct ChoicesError {
    /// The line's number, from 1.
    line: usize,
    reason: String,
}

/// Follows the number in the first line, and tells a reader what the file is.
const TITLE: &str = " chosen by measuring";

impl Choices {
    /// The algorithm chosen for the operation with this signature.
    pub fn get(&self, signature: &str) -> Option<&str> {
        self.0.get(signature).map(|algorithm| &**algorithm)
    }

    /// Sets the algorithm of an operation; its name must not contain spaces.
    pub fn insert(&mut self, signature: impl Into<String>, algorithm: impl Into<Arc<str>>) {
        self.0.insert(signature.into(), algorithm.into());
    }

    /// The operations, each with its algorithm.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(signature, algorithm)| (signature.as_str(), &**algorithm))
    }

    /// Adds the choices of `others`, which replace existing choices for the same operations.
    pub fn extend(&mut self, others: Choices) {
        self.0.extend(others.0);
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no choices.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{TITLE}", self.len())?;
        self.0.iter().try_for_each(|(signature, algorithm)| writeln!(f, "{algorithm} {signature}"))
    }
}

impl FromStr for Choices {
    type Err = ChoicesError;

    fn from_str(text: &str) -> Result<Self, ChoicesError> {
        let refuse = |line: usize, reason: String| Err(ChoicesError { line, reason });
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let Some(count) = first.strip_suffix(TITLE).and_then(|number| number.parse::<usize>().ok()) else {
            return refuse(1, format!("must be a number and \"{}\"", TITLE.trim_start()));
        };
        let mut choices = Choices::default();
        for (index, line) in rest.lines().enumerate() {
            let Some((name, signature)) = line.split_once(' ').filter(|(name, _)| !name.is_empty()) else {
                return refuse(index + 2, format!("must be an algorithm's name and an operation, not {line:?}"));
            };
            if choices.0.insert(signature.to_owned(), name.into()).is_some() {
                return refuse(index + 2, "repeats the operation of an earlier line".to_owned());
            }
        }
        match choices.len() {
            // A truncated line lacks its newline.
            found if found == count && text.ends_with('\n') => Ok(choices),
            found => refuse(1, format!("counts {count} operations, but there are {found} whole lines after it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, Conv, Mode, Plan, Plans, Precision, Tensor, compile};

    #[test]
    fn malformed_texts_are_refused() {
        let check = |text: &str, expected: &str| {
            assert_eq!(text.parse::<Choices>().unwrap_err().to_string(), expected, "{text:?}");
        };
        let title = "line 1 must be a number and \"chosen by measuring\"";
        check("", title);
        check("{}\n", title);
        check("-1 chosen by measuring\n", title);
        let cut = |count: usize, found: usize| {
            format!("line 1 counts {count} operations, but there are {found} whole lines after it")
        };
        check("2 chosen by measuring\ndirect a\n", &cut(2, 1));
        check("0 chosen by measuring\ndirect a\n", &cut(0, 1));
        check("1 chosen by measuring\n", &cut(1, 0));
        let parts = "must be an algorithm's name and an operation, not";
        check("1 chosen by measuring\ndirect\n", &format!("line 2 {parts} \"direct\""));
        check("1 chosen by measuring\n a\n", &format!("line 2 {parts} \" a\""));
        check("2 chosen by measuring\ndirect a\n\n", &format!("line 3 {parts} \"\""));
        check("2 chosen by measuring\ndirect a\nwinograd a\n", "line 3 repeats the operation of an earlier line");
        let mut whole = Choices::default();
        whole.insert("conv2d", "direct");
        whole.insert("conv2d_backward_data", "winograd");
        let text = whole.to_string();
        assert_eq!(text.parse(), Ok(whole));
        for end in 0..text.len() {
            assert!(text[..end].parse::<Choices>().is_err(), "cut after {end} bytes");
        }
    }

    /// Layers `a` and `b` compute the same, `c` does not.
    fn net(x: Tensor) -> Tensor {
        let x = x.conv2d("first", Conv::new(4, 3).padding(1));
        let x = x.conv2d("a", Conv::new(4, 3).padding(1)).conv2d("b", Conv::new(4, 3).padding(1));
        x.conv2d("c", Conv::new(4, 3)).flatten().linear("fc", 3)
    }

    #[test]
    fn a_choice_for_f32_was_taken_for_tf32() {
        let plans =
            |precision| compile(&net, &CompileOptions { precision, ..CompileOptions::new("net", 2, 8, 3) }).unwrap();
        let signatures = |plans: &Plans| -> Vec<String> {
            let plan = plans.train.as_ref().unwrap();
            plan.instructions.iter().map(|node| plan.signature(node)).collect()
        };
        let (single, rounding) = (plans(Precision::F32), plans(Precision::Tf32));
        let mut choices = Choices::default();
        for (single, rounding) in signatures(&single).into_iter().zip(signatures(&rounding)) {
            if single.starts_with("conv2d") || single.starts_with("linear") {
                assert_eq!(rounding, format!("{single} in tf32"));
                choices.insert(single, "winograd");
            } else {
                assert_eq!(rounding, single);
            }
        }
        // The layers `a` and `b` share theirs, and the images have no gradient.
        assert_eq!(choices.len(), 4 * 3 - 1);

        let mut tuned = rounding.clone();
        tuned.choose(&choices);
        assert_eq!(tuned, rounding);
    }

    #[test]
    fn a_plan_takes_the_choices_of_its_operations_and_prints_them() {
        let plans = compile(&net, &CompileOptions::new("net", 2, 8, 3)).unwrap();
        let signature = |plan: &Plan, layer: &str| {
            let node = plan.instructions.iter().find(|node| node.layer == layer && node.op.name() == "conv2d");
            plan.signature(node.unwrap())
        };
        let of_a = signature(&plans.evaluate, "a");
        assert_eq!(of_a, "conv2d {kernel 3x3 padding 1x1} (f32[2,8,8,4], f32[3,3,4,4], f32[4]) -> (f32[2,8,8,4])");
        assert_eq!(of_a, signature(plans.train.as_ref().unwrap(), "b"));
        assert_ne!(of_a, signature(&plans.evaluate, "c"));

        let mut choices = Choices::default();
        choices.insert(of_a, "winograd");
        choices.insert("conv2d of another batch", "direct");
        let mut tuned = plans.clone();
        tuned.choose(&choices);
        for mode in [Mode::Train, Mode::Evaluate] {
            let text = tuned.plan(mode).unwrap().to_string();
            let lines: Vec<&str> = text.lines().filter(|line| line.ends_with(" by winograd, measured")).collect();
            assert!(matches!(lines[..], [a, b] if a.contains("# a by") && b.contains("# b by")), "{lines:?}");
            let plain = text.replace(" by winograd, measured", "");
            assert_eq!(plain, plans.plan(mode).unwrap().to_string());
        }
        // A measured choice takes precedence over the device's annotation.
        let words = vec!["direct".to_owned(); tuned.evaluate.instructions.len()];
        let text = tuned.evaluate.annotated(&words).to_string();
        assert_eq!(text.matches(" by winograd, measured\n").count(), 2);
        assert_eq!(text.matches(" by direct\n").count(), words.len() - 2);
        tuned.choose(&Choices::default());
        assert_eq!(tuned, plans);
    }
}
