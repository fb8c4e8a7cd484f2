//! Figures against fixtures of scikit-learn, netcal and SciPy, and what is at their limits.

use serde_json::Value;

use super::*;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn scores_of(labels: &[i32], logits: &[f64]) -> Scores {
    let mut scores = Scores::new(labels.len() as u64, logits.len() / labels.len()).unwrap();
    let indices: Vec<u64> = (0..labels.len() as u64).collect();
    scores.add(labels, &indices, logits);
    scores
}

fn fixture() -> (Value, Scores) {
    let fixture: Value = serde_json::from_str(include_str!("../../../../../fixtures/calibration.json")).unwrap();
    let labels: Vec<i32> = numbers(&fixture["true"]).into_iter().map(|label| label as i32).collect();
    let scores = scores_of(&labels, &numbers(&fixture["logits"]));
    (fixture, scores)
}

fn check(what: &str, own: &[f64], expected: &[f64]) {
    assert_eq!(own.len(), expected.len(), "{what}");
    assert!(own.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{what}: {own:?} {expected:?}");
}

type Figure = fn(&Ranked) -> Option<f64>;

#[test]
fn curves_and_areas_are_those_of_scikit_learn() {
    let (fixture, scores) = fixture();
    let probabilities = Probabilities::new(&scores);
    let ranked = probabilities.ranked();
    let figures: [(&str, Figure); 2] =
        [("roc_auc", |class| class.roc_auc), ("average_precision", |class| class.average_precision)];
    for (name, figure) in figures {
        let own: Option<Vec<f64>> = ranked.iter().map(figure).collect();
        check(name, &own.unwrap(), &numbers(&fixture[name]));
        let average = figure(&Ranked::macro_average(&ranked)).unwrap();
        check(name, &[average], &[fixture["macro"][name].as_f64().unwrap()]);
    }
    let curve = &fixture["curve"];
    let ranking = probabilities.ranking(curve["class"].as_u64().unwrap() as usize);
    for (name, own) in [("roc", ranking.roc()), ("precision_recall", ranking.precision_recall())] {
        let expected: Vec<f64> = curve[name].as_array().unwrap().iter().flat_map(numbers).collect();
        check(name, &own.into_iter().flat_map(|(x, y)| [x, y]).collect::<Vec<_>>(), &expected);
    }
}

#[test]
fn calibration_is_that_of_netcal() {
    let (fixture, scores) = fixture();
    let probabilities = Probabilities::new(&scores);
    let own = probabilities.calibration(1.0);
    let expected = |name: &str| fixture[name].as_f64().unwrap();
    check("ece, brier", &[own.ece, own.brier], &[expected("ece"), expected("brier")]);
    assert_eq!((own.bins.len(), own.bins.iter().map(|bin| bin.samples).sum::<u64>()), (15, 150));
    let temperature = probabilities.fit_temperature().unwrap();
    // SciPy minimises the loss by its values alone, which change by 1e-16 where the temperature changes by 1e-8.
    assert!((temperature - expected("temperature")).abs() < 1e-6, "{temperature}");
    let calibrated = probabilities.calibration(temperature);
    assert!((calibrated.ece - expected("ece_at_temperature")).abs() < 1e-6 && calibrated.ece < own.ece);
}

#[test]
fn a_ranking_of_one_kind_has_no_area() {
    let ranking = |scores: &[(f64, bool)]| Ranking::new(scores.iter().copied());
    let check = |scores: &[(f64, bool)], area: Option<f64>, precision: Option<f64>| {
        let found = ranking(scores);
        assert_eq!((found.roc_auc(), found.average_precision()), (area, precision), "{scores:?}");
        assert_eq!(
            (found.roc().is_empty(), found.precision_recall().is_empty()),
            (area.is_none(), precision.is_none())
        );
    };
    check(&[], None, None);
    check(&[(0.5, true), (0.25, true)], None, Some(1.0));
    check(&[(0.5, false)], None, None);
    check(&[(0.5, true), (0.25, false)], Some(1.0), Some(1.0));
    check(&[(0.5, false), (0.25, true)], Some(0.0), Some(0.5));
    // Equal scores, in any order.
    check(&[(0.5, false), (0.5, true)], Some(0.5), Some(0.5));
    check(&[(0.5, true), (0.5, false)], Some(0.5), Some(0.5));
    // What is not a number comes last.
    check(&[(f64::NAN, true), (0.0, false)], Some(0.0), Some(0.5));
}

#[test]
fn probabilities_that_are_none_do_not_count() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let scores = scores_of(&[0, 1, 0, 2, 1, 0], &[1.0, 0.0, nan, 0.0, inf, 0.0, 1.0, 0.0, -inf, -inf, 0.0, -inf]);
    let probabilities = Probabilities::new(&scores);
    let found = probabilities.calibration(1.0);
    // The first sample and the last: the others have no number, an infinite one, a label that the model lacks, and none at all.
    assert_eq!(found.bins.iter().map(|bin| bin.samples).sum::<u64>(), 2);
    let wrong = 1.0 - 1.0 / (1.0 + (-1.0f64).exp());
    check("ece", &[found.ece, found.brier], &[wrong / 2.0, wrong * wrong]);
    assert!(Probabilities::new(&scores_of(&[-1], &[0.0, 0.0])).calibration(1.0).ece.is_nan());
}

#[test]
fn some_models_have_no_temperature() {
    let temperature = |labels: &[i32], logits: &[f64]| Probabilities::new(&scores_of(labels, logits)).fit_temperature();
    let inf = f64::INFINITY;
    // All right, all wrong, nothing, and a class that no temperature makes possible.
    assert_eq!(temperature(&[0, 1], &[3.0, 0.0, 0.0, 1.0]), None);
    assert_eq!(temperature(&[1, 0], &[3.0, 0.0, 0.0, 1.0]), None);
    assert_eq!(temperature(&[-1], &[3.0, 0.0]), None);
    assert_eq!(temperature(&[1], &[3.0, -inf]), None);
    // Of four equal samples three are right: the probability becomes 3/4, whatever the logits are.
    for scale in [1e-2, 1.0, 40.0, 900.0] {
        let found = temperature(&[0, 0, 0, 1], &[scale, 0.0].repeat(4)).unwrap();
        let expected = f64::from(scale as f32) / 3f64.ln();
        assert!((found / expected - 1.0).abs() < 1e-9, "{scale}: {found} instead of {expected}");
    }
}

#[test]
fn intervals_are_those_of_the_bootstrap() {
    let (fixture, _) = fixture();
    for interval in fixture["intervals"].as_array().unwrap() {
        let interval = numbers(interval);
        let own = accuracy_interval(interval[0] as u64, interval[1] as u64).unwrap();
        // Of 50000 resamples, a quantile may be the next image.
        let one = 1.0 / interval[1] + 1e-9;
        assert!((own[0] - interval[2]).abs() <= one && (own[1] - interval[3]).abs() <= one, "{interval:?}: {own:?}");
    }
    let check = |correct: u64, samples: u64, expected: Option<[f64; 2]>| {
        let found = accuracy_interval(correct, samples);
        let rounded = found.map(|ends| ends.map(|end| (end * 1e4).round() / 1e4));
        assert_eq!(rounded, expected, "{correct} of {samples}");
    };
    check(0, 0, None);
    // SciPy's binom.ppf.
    check(175, 200, Some([0.83, 0.92]));
    check(200, 200, Some([0.9817, 1.0]));
    check(0, 200, Some([0.0, 0.0183]));
    check(1, 1, Some([0.025, 1.0]));
    check(1, 2, Some([0.0, 1.0]));
    check(500_000, 1_000_000, Some([0.499, 0.501]));
    check(999_999, 1_000_000, Some([1.0, 1.0]));
}
