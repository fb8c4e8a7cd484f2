//! A bar chart of the number of samples in each class.

use crate::page::{Label, MARGIN, Page, TOP};
use crate::text::widest;

/// Distance from one class to the next, in pixels.
const ROW: f64 = 20.0;
const BAR: f64 = 14.0;
/// Gap between a name, its bar and its counts.
const GAP: f64 = 8.0;
/// Names wider than this many pixels are truncated.
const MAX_NAME: f64 = 240.0;
const MAX_BAR: f64 = 320.0;
/// Where the first row begins, below the legend.
const HEAD: f64 = TOP + 32.0;

/// An SVG with a bar for each class, the class's name before it and its counts, "training + validation", after it. All
/// bars have one scale. `classes` are (name, training samples, validation samples), in display order. Many classes are
/// shown in several columns. Long names are truncated in the middle, with a tooltip of the full name.
pub fn class_distribution(title: &str, classes: &[(String, usize, usize)]) -> String {
    let counts: Vec<String> = classes.iter().map(|(_, train, validation)| format!("{train} + {validation}")).collect();
    let names_room = widest(classes.iter().map(|(name, ..)| name)).min(MAX_NAME);
    let column = names_room + GAP + MAX_BAR + GAP + widest(&counts);

    let (columns, rows) = grid(classes.len(), column + 2.0 * MARGIN);
    let page_width = MARGIN + columns as f64 * (column + 2.0 * MARGIN) - MARGIN;
    let mut page = Page::new(title, page_width, HEAD + rows as f64 * ROW + MARGIN);
    let sum = |of: fn(&(String, usize, usize)) -> usize| classes.iter().map(of).fold(0, usize::saturating_add);
    let (train, validation) = (sum(|class| class.1), sum(|class| class.2));
    page.legend(&[("train", &format!("training {train}")), ("validation", &format!("validation {validation}"))]);

    let largest = classes.iter().map(|(_, train, validation)| *train as f64 + *validation as f64).fold(0.0, f64::max);
    let scale = if largest > 0.0 { MAX_BAR / largest } else { 0.0 };
    for (index, ((name, train, validation), counts)) in classes.iter().zip(&counts).enumerate() {
        let left = MARGIN + (index / rows) as f64 * (column + 2.0 * MARGIN);
        let top = HEAD + (index % rows) as f64 * ROW;
        let baseline = top + BAR - 3.0;
        let start = left + names_room + GAP;
        let (train, validation) = (*train as f64 * scale, *validation as f64 * scale);
        page.text(Label { anchor: "end", room: names_room, ..Label::at(start - GAP, baseline) }, name);
        page.bar(start, top, train, BAR, "train");
        page.bar(start + train, top, validation, BAR, "validation");
        page.text(Label::at(start + train + validation + GAP, baseline), counts);
    }
    page.end()
}

/// Columns and rows for `classes` of `width` pixels each, so that the page has about the proportions of a screen.
fn grid(classes: usize, width: f64) -> (usize, usize) {
    let columns = (classes as f64 * ROW * 4.0 / 3.0 / width).sqrt().round().max(1.0) as usize;
    (columns, classes.div_ceil(columns).max(1))
}
