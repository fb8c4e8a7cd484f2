//! Loss and accuracy over the epochs of a run, as lines.

use std::fmt::Write;

use crate::axis::{Axis, whole_ticks};
use crate::page::{LEGEND, Label, MARGIN, Page, TEXT, TOP};
use crate::text::width;

/// The measures of an epoch. A value that is not known is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochPoint {
    /// The epoch, from 1, as people count them.
    pub epoch: u64,
    /// Mean loss over the samples trained on.
    pub train_loss: f64,
    /// Mean loss over the validation set.
    pub val_loss: f64,
    /// Hits among the samples trained on, 0 to 1.
    pub train_accuracy: f64,
    /// Hits in the validation set, 0 to 1.
    pub val_accuracy: f64,
    /// The learning rate at the end of the epoch.
    pub learning_rate: f64,
}

/// The inner size of a panel, in pixels.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 240.0;
/// The learning rate's panel is as wide as the two others together.
const LOW_HEIGHT: f64 = 70.0;
/// Space left of a panel, for the labels of its ticks.
const TICKS: f64 = 56.0;
/// Space below a panel, for its epochs.
const EPOCHS: f64 = 40.0;
/// Space above a panel, for its name.
const NAME: f64 = 22.0;
/// Where the first panels begin, below the legend.
const HEAD: f64 = TOP + 30.0;

/// A line: the class of its dots, and its values. The class of the line itself ends in "-line".
type Series = (&'static str, fn(&EpochPoint) -> f64);

/// A diagram of some series over the epochs.
#[derive(Clone)]
struct Panel {
    name: &'static str,
    /// Follows the labels of its ticks.
    unit: &'static str,
    /// A value that its axis includes in any case.
    includes: Option<f64>,
    series: Vec<Series>,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    /// The first epoch and the last.
    epochs: (u64, u64),
}

/// An SVG of two panels, loss and accuracy, each with a line for training and one for validation. A third panel shows the learning
/// rate if it changes, and there is none of accuracy if no epoch has one. `points` are in the order of their epochs. `best` is the
/// epoch to mark, with what makes it the best, such as `validation accuracy 81.2 %`. Values that are not finite, or too large for
/// an f32, leave gaps.
pub fn training_curves(title: &str, points: &[EpochPoint], best: Option<(u64, &str)>) -> String {
    let second = MARGIN + TICKS + WIDTH + MARGIN + TICKS;
    let has_accuracy =
        points.is_empty() || points.iter().any(|point| is_shown(point.train_accuracy) || is_shown(point.val_accuracy));
    let right = if has_accuracy { second + WIDTH } else { MARGIN + TICKS + WIDTH };
    let top = HEAD + NAME;
    let below = HEAD + NAME + HEIGHT + EPOCHS + NAME;
    let epochs = ends(points);
    let loss = Panel {
        name: "loss",
        unit: "",
        includes: None,
        series: vec![("train", |point| point.train_loss), ("validation", |point| point.val_loss)],
        left: MARGIN + TICKS,
        top,
        width: WIDTH,
        height: HEIGHT,
        epochs,
    };
    let accuracy = Panel {
        name: "accuracy",
        unit: " %",
        series: vec![
            ("train", |point| point.train_accuracy * 100.0),
            ("validation", |point| point.val_accuracy * 100.0),
        ],
        left: second,
        ..loss.clone()
    };
    let mut panels = vec![loss.clone()];
    panels.extend(has_accuracy.then_some(accuracy));
    let mut bottom = top + HEIGHT + EPOCHS;
    let mut rates = points.iter().map(|point| point.learning_rate).filter(|rate| is_shown(*rate));
    if rates.next().is_some_and(|first| rates.any(|rate| rate != first)) {
        panels.push(Panel {
            name: "learning rate",
            includes: Some(0.0),
            series: vec![("train", |point| point.learning_rate)],
            top: below,
            width: right - MARGIN - TICKS,
            height: LOW_HEIGHT,
            ..loss
        });
        bottom = below + LOW_HEIGHT + EPOCHS;
    }
    let mut page = Page::new(title, right + 2.0 * MARGIN, bottom);
    legend(&mut page, best);
    let best = best.and_then(|(epoch, _)| points.iter().find(|point| point.epoch == epoch));
    for panel in &panels {
        panel.draw(&mut page, points, best);
    }
    page.end()
}

/// Whether a value is drawn.
fn is_shown(value: f64) -> bool {
    value.abs() <= f64::from(f32::MAX)
}

/// The meaning of the colours.
fn legend(page: &mut Page, best: Option<(u64, &str)>) {
    let mut x = MARGIN;
    for (class, text) in [("train", "training"), ("validation", "validation")] {
        page.bar(x, TOP + LEGEND - 6.0, 18.0, 3.0, class);
        page.text(Label::at(x + 24.0, TOP + LEGEND), text);
        x += 24.0 + width(text, TEXT) + 16.0;
    }
    if let Some((epoch, words)) = best {
        page.line(&format!("M{x:.1} {:.1}h18", TOP + LEGEND - 4.5), "best", " stroke-dasharray=\"4 3\"");
        page.text(Label::at(x + 24.0, TOP + LEGEND), &format!("best epoch {epoch}, {words}"));
    }
}

impl Panel {
    fn draw(&self, page: &mut Page, points: &[EpochPoint], best: Option<&EpochPoint>) {
        let values =
            self.series.iter().flat_map(|(_, value)| points.iter().map(value)).filter(|value| is_shown(*value));
        let axis = Axis::over(values.chain(self.includes), (self.height / 40.0).max(2.0) as u32);
        let y = |value: f64| self.top + self.height * (1.0 - axis.share(value));
        self.frame(page, &axis);
        if let Some(best) = best {
            let path = format!("M{:.1} {:.1}v{:.1}", self.x(best.epoch), self.top, self.height);
            page.line(&path, "best", " stroke-dasharray=\"4 3\"");
        }
        for &(class, value) in &self.series {
            let places = points.iter().map(|point| {
                let value = value(point);
                is_shown(value).then(|| (self.x(point.epoch), y(value)))
            });
            Self::curve(page, class, &places.collect::<Vec<_>>());
        }
        let validation = self.series.iter().find(|(class, _)| *class == "validation");
        if let (Some(best), Some((class, value))) = (best, validation)
            && is_shown(value(best))
        {
            page.dot(self.x(best.epoch), y(value(best)), 4.0, class);
        }
    }

    /// The position of an epoch. A single epoch is in the middle.
    fn x(&self, epoch: u64) -> f64 {
        let (first, last) = self.epochs;
        let share = if first == last { 0.5 } else { (epoch - first) as f64 / (last - first) as f64 };
        self.left + self.width * share
    }

    /// The name, the ticks of both axes, and lines at those of the values.
    fn frame(&self, page: &mut Page, axis: &Axis) {
        let bottom = self.top + self.height;
        page.text(Label::at(self.left, self.top - 10.0), self.name);
        let mut grid = String::new();
        for (value, label) in &axis.ticks {
            let y = bottom - self.height * axis.share(*value);
            let _ = write!(grid, "M{:.1} {y:.1}h{:.1}", self.left, self.width);
            let place = Label { anchor: "end", class: Some("minor"), ..Label::at(self.left - 8.0, y + 4.5) };
            page.text(Label { room: TICKS + MARGIN - 10.0, ..place }, &format!("{label}{}", self.unit));
        }
        page.line(&grid, "grid", "");
        let (first, last) = self.epochs;
        let minor = Label { anchor: "middle", class: Some("minor"), ..Label::at(0.0, bottom + 18.0) };
        for epoch in whole_ticks(first, last, (self.width / 60.0) as u64) {
            page.text(Label { x: self.x(epoch), ..minor }, &epoch.to_string());
        }
        page.text(Label { x: self.left + self.width / 2.0, y: bottom + 34.0, ..minor }, "epoch");
    }

    /// Draws a line through adjacent places. A place between two gaps is a dot.
    fn curve(page: &mut Page, class: &str, places: &[Option<(f64, f64)>]) {
        let mut path = String::new();
        for piece in places.split(|place| place.is_none()) {
            let mut command = 'M';
            for &(x, y) in piece.iter().flatten() {
                if piece.len() == 1 {
                    page.dot(x, y, 3.0, class);
                } else {
                    let _ = write!(path, "{command}{x:.1} {y:.1}");
                    command = 'L';
                }
            }
        }
        if !path.is_empty() {
            page.line(&path, &format!("{class}-line"), " stroke-width=\"2\" stroke-linejoin=\"round\"");
        }
    }
}

/// The first and the last epoch; 0 without epochs.
fn ends(points: &[EpochPoint]) -> (u64, u64) {
    let epochs = || points.iter().map(|point| point.epoch);
    (epochs().min().unwrap_or(0), epochs().max().unwrap_or(0))
}
