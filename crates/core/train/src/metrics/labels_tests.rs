//! Figures of several labels against scikit-learn and torchmetrics, and the borders between them.

use serde_json::Value;

use super::*;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn near(found: &[f64], expected: &[f64]) {
    let same = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12;
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(same), "{found:?} {expected:?}");
}

/// Many scores are equal. The last but one label is never there, the last one neither that nor predicted.
#[test]
fn figures_are_those_of_scikit_learn_and_torchmetrics() {
    let fixture: Value = serde_json::from_str(include_str!("../../../../../fixtures/task_scores.json")).unwrap();
    let fixture = &fixture["labels"];
    let scores = numbers(&fixture["scores"]);
    let targets = numbers(&fixture["targets"]);
    let targets: Vec<f32> = targets.into_iter().map(|value| value as f32).collect();
    let scores = LabelScores { scores: &scores, targets: &targets, labels: 6 };
    let figures = scores.figures(&numbers(&fixture["thresholds"]));
    let each = |function: fn(&LabelFigures) -> f64| -> Vec<f64> { figures.per_label.iter().map(function).collect() };
    // Both say 0 for a label that no sample has, and torchmetrics computes in f32.
    let average_precision = each(|label| label.average_precision.unwrap_or_default());
    near(&average_precision, &numbers(&fixture["average_precision"]));
    let torchmetrics = numbers(&fixture["torchmetrics"]["average_precision"]);
    assert!(average_precision.iter().zip(&torchmetrics).all(|(a, b)| (a - b).abs() < 1e-6), "{torchmetrics:?}");
    near(&each(|label| label.precision), &numbers(&fixture["precision"]));
    near(&each(|label| label.recall), &numbers(&fixture["recall"]));
    near(&each(|label| label.f1), &numbers(&fixture["f1"]));
    near(&each(|label| label.support as f64), &numbers(&fixture["support"]));
    near(&[figures.micro_f1], &[fixture["micro_f1"].as_f64().unwrap()]);
    near(&scores.best_thresholds(), &numbers(&fixture["best_thresholds"]));
    // Their means are over all six labels.
    assert_eq!((figures.per_label[4].average_precision, figures.labels_without_samples), (None, 2));
    let means = [figures.map.unwrap() * 4.0 / 6.0, figures.macro_f1.unwrap() * 5.0 / 6.0, figures.micro_f1];
    for (name, found) in ["map", "macro_f1", "micro_f1"].into_iter().zip(means) {
        let expected = fixture["torchmetrics"][name].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-6, "{name}: {found} {expected}");
    }
}

fn one_label(scores: &[f64], targets: &[f32], thresholds: &[f64]) -> MultiLabelFigures {
    LabelScores { scores, targets, labels: 1 }.figures(thresholds)
}

#[test]
fn samples_of_equal_score_are_found_together() {
    let found = one_label(&[0.5; 4], &[1.0, 0.0, 0.0, 0.0], &[0.5]);
    assert_eq!((found.map, found.micro_f1), (Some(0.25), 0.4));
    assert_eq!(one_label(&[0.0, -0.0], &[0.0, 1.0], &[0.5]).map, Some(0.5));
}

#[test]
fn what_is_not_a_number_is_found_last() {
    assert_eq!(one_label(&[f64::NAN, 0.1], &[0.0, 1.0], &[0.5]).map, Some(1.0));
    assert_eq!(one_label(&[f64::NAN, 0.1], &[1.0, 0.0], &[0.5]).map, Some(0.5));
}

#[test]
fn of_equally_good_thresholds_the_highest_is_taken() {
    let best = |scores: &[f64], targets: &[f32]| LabelScores { scores, targets, labels: 1 }.best_thresholds()[0];
    // F1 is 2/3 from 0.9 on, 1/2 from 0.8, 2/5 from 0.7, and 2/3 with all four.
    assert_eq!(best(&[0.9, 0.8, 0.7, 0.6], &[1.0, 0.0, 0.0, 1.0]), 0.9);
    assert_eq!(best(&[0.9, 0.8, 0.7], &[0.0, 1.0, 1.0]), 0.7);
    assert_eq!(best(&[0.9], &[0.0]), DEFAULT_THRESHOLD);
}

#[test]
fn nothing_has_no_figures() {
    let found = one_label(&[], &[], &[0.5]);
    assert_eq!((found.map, found.macro_f1, found.micro_f1, found.labels_without_samples), (None, None, 0.0, 1));
    let found = LabelScores { scores: &[], targets: &[], labels: 0 }.figures(&[]);
    assert_eq!((found.map, found.per_label.len()), (None, 0));
}
