//! Confusion matrices, parsed as an SVG viewer would.

use crate::common::{Element, check_inside, parse, texts};
use enmasse_charts::{ChartError, confusion_matrix};
use proptest::prelude::*;

fn names(classes: usize) -> Vec<String> {
    (0..classes).map(|class| format!("class {class}")).collect()
}

/// Elements of a matrix of so many classes, and a check that they lie on the page.
fn draw(classes: usize, counts: &[u64]) -> Vec<Element> {
    let elements = parse(&confusion_matrix("matrix", &names(classes), counts).expect("draws"));
    check_inside(&elements);
    elements
}

/// The squares before the five of the scale, as opacity and tooltip.
fn squares(elements: &[Element]) -> Vec<(f64, &str)> {
    let is_square = |at: &usize| elements[*at].name == "rect" && elements[*at].has("fill-opacity");
    let all: Vec<_> = (0..elements.len()).filter(is_square).collect();
    let of_matrix = &all[..all.len() - 5];
    of_matrix.iter().map(|&at| (elements[at].number("fill-opacity"), elements[at + 1].text.as_str())).collect()
}

#[test]
fn squares_hold_counts_and_are_coloured_by_their_share_of_the_row() {
    let elements = draw(3, &[50, 0, 50, 1, 99, 0, 0, 0, 0]);
    let expected = ["matrix", "accuracy 74.5 %: 149 of 200 samples"];
    assert_eq!(texts(&elements)[..2], expected);
    let counts: Vec<&str> = texts(&elements).into_iter().filter(|text| text.parse::<u64>().is_ok()).collect();
    assert_eq!(counts, ["50", "50", "1", "99"], "no zeros");
    let expected = [
        (0.56, "class 0 \u{2192} class 0: 50 (50.0 %)"),
        (0.56, "class 0 \u{2192} class 2: 50 (50.0 %)"),
        (0.13, "class 1 \u{2192} class 0: 1 (1.0 %)"),
        (0.99, "class 1 \u{2192} class 1: 99 (99.0 %)"),
    ];
    assert_eq!(squares(&elements), expected);
    for class in names(3) {
        assert_eq!(texts(&elements).iter().filter(|text| **text == class).count(), 2, "{class} on both sides");
    }
}

#[test]
fn what_is_shown_follows_the_number_of_classes() {
    // Seven samples of class 1 were predicted as class 0. Each class has another one that was predicted as itself.
    let check = |classes: usize, expected_squares: usize, expected_counts: usize, is_table: bool| {
        let mut counts = vec![0; classes * classes];
        (0..classes).for_each(|class| counts[class * classes + class] = 1);
        counts[classes] = 7;
        let elements = draw(classes, &counts);
        let texts = texts(&elements);
        let found = if is_table { 0 } else { squares(&elements).len() };
        assert_eq!(found, expected_squares, "{classes}");
        let counts = texts.iter().filter(|text| text.parse::<u64>().is_ok()).count();
        assert_eq!(counts, expected_counts, "{classes}");
        assert_eq!(texts.contains(&"the pairs most often confused: 1 of 1"), is_table, "{classes}");
    };
    check(2, 3, 3, false);
    check(20, 21, 21, false);
    check(21, 22, 0, false);
    check(100, 101, 0, false);
    check(101, 0, 1, true);
}

#[test]
fn the_table_has_the_pairs_most_often_confused_first() {
    let classes = 120;
    let mut counts = vec![0; classes * classes];
    let mut set = |truth: usize, predicted: usize, count: u64| counts[truth * classes + predicted] = count;
    set(3, 3, 100);
    set(3, 5, 20);
    set(3, 6, 80);
    set(7, 1, 20);
    (8..100).for_each(|truth| set(truth, 0, 2));
    let elements = draw(classes, &counts);
    let texts = texts(&elements);
    assert_eq!(texts[2], "the pairs most often confused: 40 of 95");
    assert_eq!(texts[3..7], ["true class", "predicted class", "samples", "of the class"]);
    assert_eq!(texts[7..11], ["class 3", "class 6", "80", "40.0 %"]);
    assert_eq!(texts[11..15], ["class 3", "class 5", "20", "10.0 %"]);
    assert_eq!(texts[15..19], ["class 7", "class 1", "20", "100.0 %"]);
    assert_eq!(texts[19..23], ["class 8", "class 0", "2", "100.0 %"]);
    assert_eq!(texts.len(), 7 + 40 * 4);
    let empty = draw(101, &vec![0; 101 * 101]);
    assert_eq!(crate::common::texts(&empty)[1..3], ["no samples", "no sample was predicted as another class"]);
}

#[test]
fn counts_too_long_for_a_square_are_shares() {
    let elements = draw(2, &[30_000_000, 10_000_000, 0, 5]);
    let texts = texts(&elements);
    assert!(texts.contains(&"75.0 %") && texts.contains(&"25.0 %") && !texts.contains(&"30000000"), "{texts:?}");
}

#[test]
fn counts_that_are_not_those_of_the_classes_are_refused() {
    let check = |classes: usize, counts: usize| {
        let error = confusion_matrix("matrix", &names(classes), &vec![0; counts]).expect_err("refused");
        assert!(matches!(error, ChartError::Counts { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&classes.to_string()) && text.contains(&counts.to_string()), "{text}");
    };
    check(3, 8);
    check(3, 10);
    check(0, 1);
    check(2, 0);
    assert!(confusion_matrix("matrix", &[], &[]).is_ok());
}

/// The colours of the classes: on a light page, and on a dark one.
fn colours(style: &str) -> [Vec<(String, [f64; 3])>; 2] {
    let (light, dark) = style.split_once("@media (prefers-color-scheme:dark){").expect("a dark part");
    [light, dark].map(|part| {
        let rules = part.split('.').skip(1).map(|rule| rule.split_once('{').expect("a rule"));
        let colour = |rule: &str| {
            let digits = rule.split_once('#').expect("a colour").1;
            [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal")))
        };
        rules.map(|(class, rule)| (class.to_string(), colour(rule))).collect()
    })
}

/// The contrast of WCAG 2.1, 1 to 21.
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let linear = |value: f64| {
        let value = value / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    let luminance =
        |[red, green, blue]: [f64; 3]| 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn everything_is_readable_on_a_light_page_and_on_a_dark_one() {
    // Squares of every opacity that occurs.
    let all: Vec<Element> = (1..=100).flat_map(|percent| draw(2, &[percent, 100 - percent, 0, 1])).collect();
    let style = all.iter().find(|element| element.name == "style").expect("a style");
    for colours in colours(&style.text) {
        let colour = |class: &str| colours.iter().find(|(own, _)| own == class).expect(class).1;
        let page = colour("page");
        for (class, least) in [
            ("chart", 4.5),
            ("minor", 4.5),
            ("train", 3.0),
            ("train-line", 3.0),
            ("validation", 3.0),
            ("validation-line", 3.0),
            ("best", 3.0),
        ] {
            let found = contrast(colour(class), page);
            assert!(found >= least, "{class}: {found}");
        }
        let mut opacity = 0.0;
        for element in &all {
            if element.has("fill-opacity") {
                opacity = element.number("fill-opacity");
            } else if element.name == "text" && element.has("class") && element.attribute("class").starts_with("on-") {
                let heat = colour("heat");
                let under: [f64; 3] = std::array::from_fn(|at| page[at] + (heat[at] - page[at]) * opacity);
                let found = contrast(colour(element.attribute("class")), under);
                assert!(found >= 4.5, "{opacity}: {found}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_names_and_counts_give_a_well_formed_page(
        title in ".*",
        classes in prop::collection::vec(".*", 0..30),
        counts in prop::collection::vec(prop_oneof![Just(0), 0u64..1000, any::<u64>()], 900),
    ) {
        let counts = &counts[..classes.len() * classes.len()];
        let svg = confusion_matrix(&title, &classes, counts).expect("draws");
        check_inside(&parse(&svg));
        prop_assert_eq!(confusion_matrix(&title, &classes, counts).expect("draws"), svg, "equal inputs give equal bytes");
    }
}
