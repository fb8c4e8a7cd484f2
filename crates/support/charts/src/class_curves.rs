//! How well a model tells the images of each class from all others: the receiver operating characteristic, and precision over
//! recall.

use std::fmt::Write;

use crate::page::{Label, MARGIN, Page, TOP};
use crate::text::widest;
use crate::unit::{BELOW, NAME, TICKS, UnitSquare};

/// More curves cannot be told apart.
pub const MAX_CURVES: usize = 10;

/// The curves of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassCurves {
    /// The name of the class.
    pub name: String,
    /// What follows the name, such as the areas.
    pub figures: String,
    /// The shares of others and of the class with at least each score, from (0, 0) to (1, 1).
    pub roc: Vec<(f64, f64)>,
    /// Recall and precision at each score, by growing recall.
    pub precision_recall: Vec<(f64, f64)>,
}

/// The side of a diagram, in pixels.
const SIDE: f64 = 320.0;
/// Points nearer than this to the one before are not drawn, in pixels.
const NEAR: f64 = 0.5;
/// Names wider than this many pixels are truncated.
const MAX_NAME: f64 = 200.0;
/// Distance between two rows of the legend.
const ROW: f64 = 22.0;
/// The length of a line in the legend, with the gap after it.
const SAMPLE: f64 = 30.0;
const GAP: f64 = 14.0;
/// The colours of lines; from the second time on they are dashed.
const LINES: [&str; 5] = ["train-line", "validation-line", "third-line", "fourth-line", "fifth-line"];

/// An SVG of two diagrams with a line for each class, and their names and figures beside. Classes after the first ten are left
/// out.
pub fn class_curves(title: &str, classes: &[ClassCurves]) -> String {
    let classes = &classes[..classes.len().min(MAX_CURVES)];
    let top = TOP + NAME;
    let roc = UnitSquare { left: MARGIN + TICKS, top, side: SIDE };
    let precision_recall = UnitSquare { left: roc.left + SIDE + MARGIN + TICKS, ..roc };
    let legend = precision_recall.left + SIDE + 2.0 * MARGIN;
    let names = widest(classes.iter().map(|class| &class.name)).min(MAX_NAME);
    let figures = widest(classes.iter().map(|class| &class.figures));
    let mut page = Page::new(title, legend + SAMPLE + names + GAP + figures + MARGIN, top + SIDE + BELOW);
    roc.frame(&mut page, "true positive rate", "false positive rate");
    roc.diagonal(&mut page);
    precision_recall.frame(&mut page, "precision", "recall");
    for (number, class) in classes.iter().enumerate() {
        let dashes = if number < LINES.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let line = LINES[number % LINES.len()];
        let attributes = format!(" stroke-width=\"2\"{dashes}");
        for (square, points) in [(roc, &class.roc), (precision_recall, &class.precision_recall)] {
            page.line(&path(square, points), line, &format!("{attributes} stroke-linejoin=\"round\""));
        }
        let baseline = top + 12.0 + number as f64 * ROW;
        page.line(&format!("M{legend:.1} {:.1}h22", baseline - 4.5), line, &attributes);
        page.text(Label { room: names, ..Label::at(legend + SAMPLE, baseline) }, &class.name);
        let place = Label { class: Some("minor"), ..Label::at(legend + SAMPLE + names + GAP, baseline) };
        page.text(place, &class.figures);
    }
    page.end()
}

/// A line through the points. There may be one for each image, so those that nobody could see are left out.
fn path(square: UnitSquare, points: &[(f64, f64)]) -> String {
    let mut path = String::from("M");
    let mut last: Option<(f64, f64)> = None;
    for (number, &(x, y)) in points.iter().enumerate() {
        let (x, y) = square.place(x, y);
        let is_near = last.is_some_and(|(x0, y0): (f64, f64)| (x - x0).abs() < NEAR && (y - y0).abs() < NEAR);
        if !is_near || number + 1 == points.len() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if last.is_some() { "L" } else { "" });
            last = Some((x, y));
        }
    }
    // A class without such a curve.
    if last.is_none() { String::new() } else { path }
}
