//! Charts of an evaluation, parsed as an SVG viewer would.

use crate::common::{check_inside, of, parse, texts};
use enmasse_charts::{ClassCurves, ReliabilityBin, class_curves, reliability};

fn curves(name: &str, points: usize) -> ClassCurves {
    let share = |number: usize| number as f64 / points.max(1) as f64;
    ClassCurves {
        name: name.to_owned(),
        figures: "AUC 0.912, AP 0.853".to_owned(),
        roc: (0..=points).map(|number| (share(number), share(number).sqrt())).collect(),
        precision_recall: (0..=points).map(|number| (share(number), 1.0 - share(number) / 2.0)).collect(),
    }
}

#[test]
fn each_class_has_two_curves_and_a_name() {
    let classes = [curves("daisy", 30), curves("a <script> of a name that is far too long for the legend", 30)];
    let elements = parse(&class_curves("validation part", &classes));
    check_inside(&elements);
    let lines = |class: &str| of(&elements, "path").iter().filter(|path| path.attribute("class") == class).count();
    assert_eq!([lines("train-line"), lines("validation-line"), lines("third-line")], [3, 3, 0]);
    let texts = texts(&elements);
    for text in ["validation part", "daisy", "AUC 0.912, AP 0.853", "false positive rate", "recall", "precision"] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
}

#[test]
fn many_classes_and_many_images_are_bounded() {
    let many: Vec<_> = (0..12).map(|class| curves(&format!("class {class}"), 100_000)).collect();
    let chart = class_curves("many", &many);
    assert!(chart.len() < 400_000, "{}", chart.len());
    let elements = parse(&chart);
    check_inside(&elements);
    let dashed = of(&elements, "path").iter().filter(|path| path.has("stroke-dasharray")).count();
    // Five of ten classes, with three lines each, and the diagonal.
    assert_eq!(dashed, 16);
    assert!(!texts(&elements).contains(&"class 10"));
}

#[test]
fn classes_without_curves_are_named() {
    let none = ClassCurves { roc: vec![], precision_recall: vec![], ..curves("none", 1) };
    for classes in [&[][..], &[none], &[curves("one", 1)]] {
        let chart = class_curves("few", classes);
        check_inside(&parse(&chart));
        assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
    }
}

#[test]
fn a_bin_has_its_accuracy_and_its_confidence() {
    let bin = |samples, confidence, accuracy| ReliabilityBin { samples, confidence, accuracy };
    let bins = [bin(0, 0.0, 0.0), bin(10, 0.4, 0.5), bin(5, 0.6, 0.0), bin(20, 1.0, 1.0)];
    let elements = parse(&reliability("reliability", &bins));
    check_inside(&elements);
    let bars: Vec<_> =
        of(&elements, "rect").into_iter().filter(|bar| bar.has("x") && bar.number("height") != 3.0).collect();
    let heights: Vec<f64> = bars.iter().map(|bar| bar.number("height")).collect();
    // Accuracy and images of each bin that has any. A bar of height 0 is there, but not seen.
    assert_eq!(heights, [190.0, 35.0, 0.0, 17.5, 380.0, 70.0]);
    let confidences = of(&elements, "path").iter().filter(|path| path.attribute("class") == "validation-line").count();
    assert_eq!(confidences, 3);
    assert!(texts(&elements).contains(&"images, 35 in all; the highest bar has 20"));
    for bins in [&[][..], &[bin(0, 0.0, 0.0); 15]] {
        let chart = reliability("nothing", bins);
        check_inside(&parse(&chart));
        assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
    }
}
