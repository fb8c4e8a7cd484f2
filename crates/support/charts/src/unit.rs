//! A diagram whose axes both go from 0 to 1.

use std::fmt::Write;

use crate::page::{Label, Page};

/// Space left of a diagram, for the labels of its ticks.
pub(crate) const TICKS: f64 = 40.0;
/// Space below a diagram, for its ticks and what its axis means.
pub(crate) const BELOW: f64 = 44.0;
/// Space above a diagram, for its name.
pub(crate) const NAME: f64 = 22.0;

/// Where a diagram is, in pixels.
#[derive(Clone, Copy)]
pub(crate) struct UnitSquare {
    pub left: f64,
    pub top: f64,
    pub side: f64,
}

impl UnitSquare {
    /// The position of a point. One outside of the diagram is on its border.
    pub fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.side * x.clamp(0.0, 1.0), self.top + self.side * (1.0 - y.clamp(0.0, 1.0)))
    }

    /// The name, which says what the upright axis means, the ticks, the lines at them, and what the other axis means.
    pub fn frame(&self, page: &mut Page, name: &str, below: &str) {
        let bottom = self.top + self.side;
        page.text(Label::at(self.left, self.top - 10.0), name);
        let mut grid = String::new();
        for fifth in 0..=5 {
            let value = f64::from(fifth) / 5.0;
            let (x, y) = self.place(value, value);
            let _ = write!(grid, "M{:.1} {y:.1}h{:.1}", self.left, self.side);
            let minor = Label { class: Some("minor"), ..Label::at(x, bottom + 18.0) };
            page.text(Label { anchor: "end", x: self.left - 8.0, y: y + 4.5, ..minor }, &format!("{value:.1}"));
            page.text(Label { anchor: "middle", ..minor }, &format!("{value:.1}"));
        }
        page.line(&grid, "grid", "");
        let minor = Label { anchor: "middle", class: Some("minor"), ..Label::at(0.0, bottom + 36.0) };
        page.text(Label { x: self.left + self.side / 2.0, ..minor }, below);
    }

    /// The diagonal from (0, 0) to (1, 1).
    pub fn diagonal(&self, page: &mut Page) {
        let ((x, y), (to_x, to_y)) = (self.place(0.0, 0.0), self.place(1.0, 1.0));
        page.line(&format!("M{x:.1} {y:.1}L{to_x:.1} {to_y:.1}"), "best", " stroke-dasharray=\"4 3\"");
    }
}
