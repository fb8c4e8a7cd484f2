//! Labels that are probably wrong, as cleanlab finds and ranks them.

/// A sample whose label is probably wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelIssue {
    /// Its number.
    pub index: usize,
    /// The class that it rather is of.
    pub rather: usize,
    /// The probability of its own label.
    pub probability: f64,
}

/// The samples whose most probable class is another one than their label; the least probable labels first. `probabilities` has a row of
/// `classes` for each sample, from a model that has not learned the sample's label. These are cleanlab's
/// `find_label_issues(filter_by="predicted_neq_given", return_indices_ranked_by="self_confidence")`.
pub fn label_issues(probabilities: &[f64], labels: &[usize], classes: usize) -> Vec<LabelIssue> {
    let rows = probabilities.chunks_exact(classes.max(1)).zip(labels.iter().copied()).enumerate();
    let mut found: Vec<LabelIssue> = rows
        .filter_map(|(index, (row, label))| {
            let rather = (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)))?;
            (row[rather] > row[label]).then_some(LabelIssue { index, rather, probability: row[label] })
        })
        .collect();
    // Stable, so that equals keep the order of the samples.
    found.sort_by(|a, b| a.probability.total_cmp(&b.probability));
    found
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn issues_are_cleanlabs() {
        let fixture: Value = serde_json::from_str(include_str!("../../../../../fixtures/label_issues.json")).unwrap();
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
        };
        for case in fixture.as_array().unwrap() {
            let labels: Vec<usize> = numbers(&case["labels"]).into_iter().map(|label| label as usize).collect();
            let classes = case["classes"].as_u64().unwrap() as usize;
            let found = label_issues(&numbers(&case["probabilities"]), &labels, classes);
            let expected: Vec<usize> = numbers(&case["issues"]).into_iter().map(|index| index as usize).collect();
            assert!(expected.len() > 5);
            assert_eq!(found.iter().map(|issue| issue.index).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert_eq!(label_issues(&[], &[], 3), []);
        assert_eq!(label_issues(&[0.9, 0.1, 0.5, 0.5, 0.0, 0.0], &[0, 1, 1], 2), []);
        let issue = LabelIssue { index: 2, rather: 1, probability: 0.1 };
        assert_eq!(label_issues(&[0.9, 0.1, 0.2, 0.8, 0.1, 0.9], &[0, 1, 0], 2), [issue]);
    }
}
