//! A bar chart of the number of samples in each class.

use crate::page::{Label, MARGIN, Page, TEXT, TOP};
use crate::text::width;

/// Distance from one class to the next, in pixels.
const ROW: f64 = 20.0;
const BAR: f64 = 14.0;
/// Gap between a name, its bar and its counts.
const GAP: f64 = 8.0;
/// Names wider than this many pixels are truncated.
const MAX_NAME: f64 = 240.0;
const MAX_BAR: f64 = 320.0;
/// Distance from the title to the legend's baseline, and from there to the first row.
const LEGEND: f64 = 12.0;
const HEAD: f64 = TOP + 32.0;

/// An SVG with a bar for each class, the class's name before it and its counts, "training + validation", after it. All
/// bars have one scale. `classes` are (name, training samples, validation samples), in display order. Many classes are
/// shown in several columns. Long names are truncated in the middle, with a tooltip of the full name.
pub fn class_distribution(title: &str, classes: &[(String, usize, usize)]) -> String {
    let counts: Vec<String> = classes.iter().map(|(_, train, validation)| format!("{train} + {validation}")).collect();
    let widest = |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| width(text, TEXT)).fold(0.0, f64::max);
    let names_room = widest(&mut classes.iter().map(|(name, ..)| name)).min(MAX_NAME);
    let counts_room = widest(&mut counts.iter());
    let column = names_room + GAP + MAX_BAR + GAP + counts_room;

    let (columns, rows) = grid(classes.len(), column + 2.0 * MARGIN);
    let page_width = MARGIN + columns as f64 * (column + 2.0 * MARGIN) - MARGIN;
    let mut page = Page::new(title, page_width, HEAD + rows as f64 * ROW + MARGIN);
    legend(&mut page, classes);

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

/// The meaning of the colours, with the sums over all classes.
fn legend(page: &mut Page, classes: &[(String, usize, usize)]) {
    let sum = |of: fn(&(String, usize, usize)) -> usize| classes.iter().map(of).fold(0, usize::saturating_add);
    let (train, validation) = (sum(|class| class.1), sum(|class| class.2));
    let mut x = MARGIN;
    for (class, text) in [("train", format!("training {train}")), ("validation", format!("validation {validation}"))] {
        page.bar(x, TOP + LEGEND - 11.0, 12.0, 12.0, class);
        page.text(Label::at(x + 18.0, TOP + LEGEND), &text);
        x += 18.0 + width(&text, TEXT) + 2.0 * GAP;
    }
}
