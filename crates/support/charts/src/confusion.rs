//! Which classes a model confuses: a heat map, and for many classes a table of the pairs most often confused.

use std::cmp::Reverse;
use std::fmt::Write;

use crate::ChartError;
use crate::page::{Label, MARGIN, Page, TEXT, TOP};
use crate::style::STRONG;
use crate::text::width;

/// Up to this number of classes, squares hold numbers.
const MAX_WITH_NUMBERS: usize = 20;
/// Up to this number of classes, there is a heat map.
const MAX_WITH_SQUARES: usize = 100;
/// Pairs in the table for more classes.
const PAIRS: usize = 40;

/// Names wider than this many pixels are truncated.
const MAX_NAME: f64 = 160.0;
const MAX_NAME_OF_PAIR: f64 = 280.0;
/// Squares with numbers are this wide, and wider for long counts, up to `MAX_WIDTH`.
const NARROWEST: f64 = 34.0;
const MAX_WIDTH: f64 = 60.0;
/// Gap between a name and its squares.
const GAP: f64 = 8.0;
/// Height of a line of text.
const LINE: f64 = 20.0;
/// No square of any samples is fainter than this.
const FAINTEST: f64 = 0.12;

/// An SVG of how many samples of each class were predicted as each class. Up to 20 classes it is a heat map with counts, or with
/// shares where counts are too long. Up to 100 it is a heat map of colours alone, and for more a table of the 40 pairs most often
/// confused. `counts` are `[true class][predicted class]`, row by row. The colour of a square is its share of the
/// samples of its true class.
///
/// # Errors
/// There is another number of counts.
pub fn confusion_matrix(title: &str, classes: &[String], counts: &[u64]) -> Result<String, ChartError> {
    if classes.len().checked_mul(classes.len()) != Some(counts.len()) {
        return Err(ChartError::Counts { classes: classes.len(), counts: counts.len() });
    }
    let matrix = Matrix { classes, counts };
    Ok(if classes.len() <= MAX_WITH_SQUARES { matrix.map(title) } else { matrix.table(title) })
}

#[derive(Clone, Copy)]
struct Matrix<'a> {
    classes: &'a [String],
    counts: &'a [u64],
}

/// The layout of a heat map, in pixels.
struct Grid {
    left: f64,
    top: f64,
    /// The side of a square.
    square: f64,
    /// The size of names.
    text: f64,
    names_room: f64,
    /// The height of the names above the squares.
    head: f64,
    /// Whether they run upwards.
    is_upright: bool,
    numbers: Numbers,
}

/// The content of squares.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    Nothing,
    Counts,
    /// Shares of the samples of the true class, where counts are too long.
    Shares,
}

impl Matrix<'_> {
    /// The samples of a class, by their predicted classes.
    fn row(&self, truth: usize) -> &[u64] {
        &self.counts[truth * self.classes.len()..][..self.classes.len()]
    }

    fn share(&self, truth: usize, predicted: usize) -> f64 {
        let row = self.row(truth);
        row[predicted] as f64 / row.iter().map(|&count| count as f64).sum::<f64>().max(1.0)
    }

    /// "accuracy 83.0 %: 607 of 731 samples".
    fn summary(&self) -> String {
        let hits = (0..self.classes.len()).map(|class| self.row(class)[class]).fold(0, u64::saturating_add);
        let samples = self.counts.iter().copied().fold(0, u64::saturating_add);
        match samples {
            0 => "no samples".to_string(),
            _ => format!("accuracy {}: {hits} of {samples} samples", percent(hits as f64 / samples as f64)),
        }
    }

    fn map(&self, title: &str) -> String {
        let grid = self.grid();
        let side = grid.square * self.classes.len() as f64;
        let page_height = grid.top + side + LINE + MARGIN;
        let mut page = Page::new(title, (grid.left + side + MARGIN).max(scale_width() + 2.0 * MARGIN), page_height);
        page.text(Label::at(MARGIN, TOP + 12.0), &self.summary());
        if self.classes.is_empty() {
            return page.end();
        }
        self.names(&mut page, &grid);
        for truth in 0..self.classes.len() {
            for predicted in 0..self.classes.len() {
                self.square(&mut page, &grid, truth, predicted);
            }
        }
        let lines = if grid.numbers == Numbers::Nothing { 1 } else { self.classes.len() };
        let mut path = String::new();
        for line in 0..=lines {
            let at = side * line as f64 / lines as f64;
            let (left, top) = (grid.left, grid.top);
            let _ = write!(path, "M{left:.1} {:.1}h{side:.1}M{:.1} {top:.1}v{side:.1}", top + at, left + at);
        }
        page.line(&path, "grid", "");
        scale(&mut page, grid.top + side + LINE);
        page.end()
    }

    fn grid(&self) -> Grid {
        let largest = self.counts.iter().max().map_or(0.0, |count| width(&count.to_string(), TEXT) + 10.0);
        let (square, text, numbers) = match self.classes.len() {
            0..=MAX_WITH_NUMBERS if largest > MAX_WIDTH => (MAX_WIDTH, TEXT, Numbers::Shares),
            0..=MAX_WITH_NUMBERS => (largest.max(NARROWEST), TEXT, Numbers::Counts),
            21..=50 => (18.0, TEXT, Numbers::Nothing),
            _ => (12.0, 10.0, Numbers::Nothing),
        };
        let widest = self.classes.iter().map(|name| width(name, text)).fold(0.0, f64::max);
        let names_room = widest.min(MAX_NAME);
        let is_upright = widest > square - 4.0;
        let head = if is_upright { names_room } else { text };
        Grid {
            left: MARGIN + LINE + names_room + GAP,
            top: TOP + 12.0 + 2.0 * LINE + head + GAP,
            square,
            text,
            names_room,
            head,
            is_upright,
            numbers,
        }
    }

    /// The names of the classes on both sides, and the names of the sides.
    fn names(&self, page: &mut Page, grid: &Grid) {
        let &Grid { left, top, square, text: size, names_room, head, is_upright, .. } = grid;
        let side = square * self.classes.len() as f64;
        // The middle of a line of capitals is about a third of their size above the baseline.
        let middle = (square + 0.7 * size) / 2.0;
        for (class, name) in self.classes.iter().enumerate() {
            let at = class as f64 * square;
            let name_of_row =
                Label { anchor: "end", room: names_room, size, ..Label::at(left - GAP, top + at + middle) };
            page.text(name_of_row, name);
            let name_of_column = match is_upright {
                true => Label { room: names_room, size, is_upright, ..Label::at(left + at + middle, top - GAP) },
                false => Label { anchor: "middle", size, ..Label::at(left + at + square / 2.0, top - GAP) },
            };
            page.text(name_of_column, name);
        }
        let minor = Label { anchor: "middle", class: Some("minor"), ..Label::at(0.0, 0.0) };
        let above = top - head - 2.0 * GAP;
        page.text(Label { x: left + side / 2.0, y: above, ..minor }, "predicted class");
        let before = MARGIN + TEXT;
        page.text(Label { x: before, y: top + side / 2.0, is_upright: true, ..minor }, "true class");
    }

    fn square(&self, page: &mut Page, grid: &Grid, truth: usize, predicted: usize) {
        let count = self.row(truth)[predicted];
        if count == 0 {
            return;
        }
        let share = self.share(truth, predicted);
        let heat = heat(share);
        let x = grid.left + predicted as f64 * grid.square;
        let y = grid.top + truth as f64 * grid.square;
        let true_name = &self.classes[truth];
        let predicted_name = &self.classes[predicted];
        let note = format!("{true_name} \u{2192} {predicted_name}: {count} ({})", percent(share));
        page.heat(x, y, grid.square, heat, &note);
        let text = match grid.numbers {
            Numbers::Nothing => return,
            Numbers::Counts => count.to_string(),
            Numbers::Shares => percent(share),
        };
        let class = Some(if heat > STRONG { "on-strong" } else { "on-weak" });
        let middle = Label::at(x + grid.square / 2.0, y + (grid.square + 0.7 * TEXT) / 2.0);
        page.text(Label { anchor: "middle", class, ..middle }, &text);
    }

    /// The pairs of classes most often confused, the most frequent first.
    fn table(&self, title: &str) -> String {
        let classes = self.classes.len();
        let confused = self.counts.iter().enumerate().filter(|(at, count)| at / classes != at % classes && **count > 0);
        let mut pairs: Vec<(u64, usize)> = confused.map(|(at, &count)| (count, at)).collect();
        pairs.sort_by_key(|&(count, at)| (Reverse(count), at));
        let found = pairs.len();
        pairs.truncate(PAIRS);

        let rows: Vec<[String; 4]> = pairs
            .iter()
            .map(|&(count, at)| {
                let truth = at / classes;
                let predicted = at % classes;
                let share = percent(self.share(truth, predicted));
                [self.classes[truth].clone(), self.classes[predicted].clone(), count.to_string(), share]
            })
            .collect();
        let heads = ["true class", "predicted class", "samples", "of the class"].map(str::to_string);
        let longest = [MAX_NAME_OF_PAIR, MAX_NAME_OF_PAIR, f64::INFINITY, f64::INFINITY];
        let rooms: [f64; 4] = std::array::from_fn(|column| {
            let texts = rows.iter().chain([&heads]).map(|row| width(&row[column], TEXT));
            texts.fold(0.0, f64::max).min(longest[column])
        });
        let head = TOP + 12.0 + 2.0 * LINE;
        let page_width = rooms.iter().sum::<f64>() + 3.0 * 3.0 * GAP + 2.0 * MARGIN;
        let mut page = Page::new(title, page_width, head + (rows.len() as f64 + 1.0) * LINE + MARGIN);
        page.text(Label::at(MARGIN, TOP + 12.0), &self.summary());
        let what = match found {
            0 => "no sample was predicted as another class".to_string(),
            _ => format!("the pairs most often confused: {} of {found}", rows.len()),
        };
        page.text(Label::at(MARGIN, TOP + 12.0 + LINE), &what);
        for (number, row) in [&heads].into_iter().chain(&rows).enumerate() {
            let class = (number == 0).then_some("minor");
            let mut x = MARGIN;
            for (column, (text, room)) in row.iter().zip(rooms).enumerate() {
                let (anchor, at) = if column < 2 { ("start", x) } else { ("end", x + room) };
                let y = head + LINE * (number as f64 + 0.5);
                page.text(Label { anchor, room, class, ..Label::at(at, y) }, text);
                x += room + 3.0 * GAP;
            }
        }
        page.end()
    }
}

/// The opacity of a square with this share of the samples of its true class, to two decimals, as the file has it.
fn heat(share: f64) -> f64 {
    if share == 0.0 {
        return 0.0;
    }
    ((FAINTEST + (1.0 - FAINTEST) * share) * 100.0).round() / 100.0
}

/// A share in percent.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

const SCALE: &str = "of the samples of the true class";
const SHARES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Side of a square of the scale.
const SHADE: f64 = 12.0;

/// Width of the scale.
fn scale_width() -> f64 {
    width("0 %", TEXT) + SHARES.len() as f64 * SHADE + width(&format!("100 % {SCALE}"), TEXT) + 2.0 * GAP
}

/// The meaning of the colours, with baseline `y`.
fn scale(page: &mut Page, y: f64) {
    let mut x = MARGIN;
    page.text(Label::at(x, y), "0 %");
    x += width("0 %", TEXT) + GAP;
    let width = SHARES.len() as f64 * SHADE;
    page.line(&format!("M{x:.1} {:.1}h{width:.1}v{SHADE:.1}h-{width:.1}z", y - 11.0), "grid", "");
    for share in SHARES {
        page.heat(x, y - 11.0, SHADE, heat(share), &percent(share));
        x += SHADE;
    }
    page.text(Label::at(x + GAP, y), &format!("100 % {SCALE}"));
}
