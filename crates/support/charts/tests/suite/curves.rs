//! Training curves, parsed as an SVG viewer would.

use crate::common::{check_inside, of, parse, places, texts};
use enmasse_charts::{EpochPoint, training_curves};
use proptest::prelude::*;

/// An epoch of a run that learns, at one learning rate.
fn point(epoch: u64) -> EpochPoint {
    let left = 0.8_f64.powi(epoch as i32);
    EpochPoint {
        epoch,
        train_loss: 0.1 + left,
        val_loss: 0.2 + left,
        train_accuracy: 1.0 - 0.5 * left,
        val_accuracy: 0.9 - 0.5 * left,
        learning_rate: 0.01,
    }
}

fn run(epochs: u64) -> Vec<EpochPoint> {
    (0..epochs).map(point).collect()
}

/// The lines of a class, in the order of the panels: each as its pieces, each piece as the number of its places.
fn pieces(svg: &str, class: &str) -> Vec<Vec<usize>> {
    let elements = parse(svg);
    check_inside(&elements);
    let lines = of(&elements, "path").into_iter().filter(|path| path.attribute("class") == class);
    let of_line = |path: &str| path.split('M').skip(1).map(|piece| piece.split('L').count()).collect();
    lines.map(|line| of_line(line.attribute("d"))).collect()
}

/// Dots of a class.
fn dots(svg: &str, class: &str) -> usize {
    of(&parse(svg), "circle").iter().filter(|dot| dot.attribute("class") == class).count()
}

#[test]
fn each_panel_has_a_line_for_training_and_one_for_validation() {
    let svg = training_curves("curves", &run(30), None);
    assert_eq!(pieces(&svg, "train-line"), [[30], [30]]);
    assert_eq!(pieces(&svg, "validation-line"), [[30], [30]]);
    let elements = parse(&svg);
    let texts = texts(&elements);
    for expected in ["loss", "accuracy", "training", "validation", "epoch", "25", "0.6", "60 %", "100 %"] {
        assert!(texts.contains(&expected), "{expected} in {texts:?}");
    }
    // Loss falls, so its line goes down the page, and accuracy up.
    let lines = of(&elements, "path").into_iter().filter(|path| path.attribute("class") == "train-line");
    let rises: Vec<bool> = lines
        .map(|line| {
            let places = places(line.attribute("d"));
            assert!(places.windows(2).all(|pair| pair[0].0 < pair[1].0), "epochs go to the right");
            places[0].1 > places[places.len() - 1].1
        })
        .collect();
    assert_eq!(rises, [false, true]);
}

#[test]
fn the_best_epoch_is_marked() {
    let check = |best: Option<(u64, &str)>, expected: Option<&str>, lines: usize| {
        let svg = training_curves("curves", &run(12), best);
        let elements = parse(&svg);
        let found = texts(&elements).into_iter().find(|text| text.starts_with("best")).map(str::to_string);
        assert_eq!(found.as_deref(), expected);
        assert_eq!(pieces(&svg, "best").len(), lines);
    };
    // One line in the legend, and one in each panel.
    let words = "validation accuracy 62.5 %";
    check(Some((11, words)), Some("best epoch 11, validation accuracy 62.5 %"), 3);
    check(None, None, 0);
    // An epoch that is not among them.
    check(Some((99, words)), Some("best epoch 99, validation accuracy 62.5 %"), 1);
}

#[test]
fn epochs_without_an_accuracy_have_no_panel_of_it() {
    let bare = |point: EpochPoint| EpochPoint { train_accuracy: f64::NAN, val_accuracy: f64::NAN, ..point };
    let check = |points: Vec<EpochPoint>, expected: bool| {
        let svg = training_curves("curves", &points, Some((2, "val_loss 0.8400")));
        assert_eq!(texts(&parse(&svg)).contains(&"accuracy"), expected);
        assert_eq!(pieces(&svg, "train-line").len(), if expected { 2 } else { 1 });
    };
    check(run(5).into_iter().map(bare).collect(), false);
    check(run(5), true);
}

#[test]
fn one_epoch_shows_as_dots() {
    let svg = training_curves("curves", &run(1), Some((0, "validation accuracy 40.0 %")));
    assert!(pieces(&svg, "train-line").is_empty() && pieces(&svg, "validation-line").is_empty());
    // The best epoch has a second, larger one of validation.
    assert_eq!((dots(&svg, "train"), dots(&svg, "validation")), (2, 4));
}

#[test]
fn values_that_are_not_known_leave_gaps() {
    let check = |gaps: &[usize], lines: &[Vec<usize>], expected_dots: usize| {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e39] {
            let mut points = run(10);
            gaps.iter().for_each(|&gap| points[gap].train_loss = value);
            let svg = training_curves("curves", &points, None);
            assert_eq!(pieces(&svg, "train-line"), [lines, &[vec![10]]].concat(), "{gaps:?}");
            assert_eq!(dots(&svg, "train"), expected_dots, "{gaps:?}");
        }
    };
    check(&[], &[vec![10]], 0);
    check(&[4], &[vec![4, 5]], 0);
    check(&[0, 1, 9], &[vec![7]], 0);
    check(&[1, 5, 7], &[vec![3, 2]], 2);
    check(&[0, 1, 2, 3, 4, 5, 6, 7, 8], &[], 1);
    check(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &[], 0);
}

#[test]
fn a_learning_rate_that_changes_has_a_panel() {
    let check = |rates: &[f64], expected: bool| {
        let points = rates.iter().zip(0..).map(|(&learning_rate, epoch)| EpochPoint { learning_rate, ..point(epoch) });
        let elements = parse(&training_curves("curves", &points.collect::<Vec<_>>(), None));
        check_inside(&elements);
        assert_eq!(texts(&elements).contains(&"learning rate"), expected, "{rates:?}");
    };
    check(&[], false);
    check(&[0.1], false);
    check(&[0.1, 0.1], false);
    check(&[0.1, f64::NAN, 0.1], false);
    check(&[0.1, 0.1, 0.01], true);
    check(&[f64::NAN, 0.0, 1e-9], true);
}

#[test]
fn hundreds_of_epochs_are_a_small_file() {
    let bytes = training_curves("curves", &run(500), None).len();
    assert!(bytes < 40_000, "{bytes}");
}

proptest! {
    #[test]
    fn any_values_give_a_well_formed_page(
        title in ".*",
        values in prop::collection::vec((any::<u64>(), any::<[f64; 5]>()), 0..20),
    ) {
        let points: Vec<EpochPoint> = values
            .into_iter()
            .map(|(epoch, [train_loss, val_loss, train_accuracy, val_accuracy, learning_rate])| {
                EpochPoint { epoch, train_loss, val_loss, train_accuracy, val_accuracy, learning_rate }
            })
            .collect();
        let best = points.first().map(|point| (point.epoch, title.as_str()));
        let svg = training_curves(&title, &points, best);
        check_inside(&parse(&svg));
        prop_assert_eq!(training_curves(&title, &points, best), svg, "equal inputs give equal bytes");
    }
}
