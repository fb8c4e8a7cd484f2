//! The reliability diagram: how often a model is right, over how sure it is.

use crate::page::{LEGEND, Label, MARGIN, Page, TEXT, TOP};
use crate::text::width;
use crate::unit::{BELOW, NAME, TICKS, UnitSquare};

/// Images that a model is about equally sure of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReliabilityBin {
    /// How many they are.
    pub samples: u64,
    /// The mean probability of their predicted classes.
    pub confidence: f64,
    /// The share of them that are right.
    pub accuracy: f64,
}

/// The side of the diagram, in pixels.
const SIDE: f64 = 380.0;
/// The height of the bars of images.
const COUNTS: f64 = 70.0;
/// Where the diagram begins, below the legend.
const HEAD: f64 = TOP + 30.0 + NAME;
/// The gap between two bars.
const GAP: f64 = 2.0;

/// An SVG of the accuracy in each bin of probabilities from 0 to 1, all of equal width, with the mean probability in it: equal where
/// probabilities are what they say. Below, how many images each bin has.
pub fn reliability(title: &str, bins: &[ReliabilityBin]) -> String {
    let square = UnitSquare { left: MARGIN + TICKS, top: HEAD, side: SIDE };
    let counts_top = HEAD + SIDE + BELOW + NAME;
    let bottom = counts_top + COUNTS;
    let mut page = Page::new(title, square.left + SIDE + 2.0 * MARGIN, bottom + MARGIN);
    legend(&mut page);
    square.frame(&mut page, "accuracy", "probability of the predicted class");
    let bar = SIDE / bins.len().max(1) as f64;
    let most = bins.iter().map(|bin| bin.samples).max().unwrap_or(0).max(1) as f64;
    let lefts = || (0..bins.len()).map(|number| square.left + number as f64 * bar);
    let filled = || bins.iter().zip(lefts()).filter(|(bin, _)| bin.samples > 0);
    for (bin, left) in filled() {
        let (_, y) = square.place(0.0, bin.accuracy);
        page.bar(left + GAP / 2.0, y, bar - GAP, HEAD + SIDE - y, "train");
        let height = COUNTS * bin.samples as f64 / most;
        page.bar(left + GAP / 2.0, bottom - height, bar - GAP, height, "train");
    }
    square.diagonal(&mut page);
    for (bin, left) in filled() {
        let (_, y) = square.place(0.0, bin.confidence);
        page.line(&format!("M{left:.1} {y:.1}h{bar:.1}"), "validation-line", " stroke-width=\"3\"");
    }
    let images = bins.iter().map(|bin| bin.samples).sum::<u64>();
    page.text(
        Label::at(square.left, counts_top - 8.0),
        &format!("images, {images} in all; the highest bar has {most}"),
    );
    page.line(&format!("M{:.1} {bottom:.1}h{SIDE:.1}", square.left), "grid", "");
    page.end()
}

/// The meaning of the marks.
fn legend(page: &mut Page) {
    let mut x = MARGIN;
    for (class, text) in [("train", "accuracy"), ("validation", "mean probability")] {
        page.bar(x, TOP + LEGEND - 6.0, 18.0, 3.0, class);
        page.text(Label::at(x + 24.0, TOP + LEGEND), text);
        x += 24.0 + width(text, TEXT) + 16.0;
    }
    page.line(&format!("M{x:.1} {:.1}h18", TOP + LEGEND - 4.5), "best", " stroke-dasharray=\"4 3\"");
    page.text(Label::at(x + 24.0, TOP + LEGEND), "equal");
}
