//! The loss over a growing learning rate.

use std::fmt::Write;

use crate::axis::Axis;
use crate::page::{LEGEND, Label, MARGIN, Page, TEXT, TOP};
use crate::text::width;

/// A step of a search for a learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// Its rate, above 0.
    pub learning_rate: f64,
    /// Its loss.
    pub loss: f64,
    /// The average of the losses so far.
    pub smoothed: f64,
}

/// The inner size of the diagram, in pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = MARGIN + 56.0;
const HEAD: f64 = TOP + 40.0;
/// How far above the smoothed losses single ones are drawn, as a share of their range.
const ABOVE: f64 = 0.25;

/// An SVG of the loss over the rate, on a logarithmic axis: a dot for each step, and the line of the averages. `suggestion` is the rate to
/// mark. Losses far above the averages are not drawn.
pub fn learning_rates(title: &str, points: &[RatePoint], suggestion: Option<f64>) -> String {
    let bottom = HEAD + HEIGHT;
    let mut page = Page::new(title, LEFT + WIDTH + 2.0 * MARGIN, bottom + 50.0);
    legend(&mut page, suggestion);
    let averages = || points.iter().map(|point| point.smoothed).filter(|value| value.is_finite());
    let (low, high) =
        averages().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    let is_shown = |loss: f64| loss <= high + ABOVE * (high - low);
    let losses = points.iter().map(|point| point.loss).filter(|loss| is_shown(*loss));
    let axis = Axis::over(averages().chain(losses), 6);
    let decades = (exponent(points.first()), exponent(points.last()).max(exponent(points.first()) + 1.0));
    let x = |rate: f64| LEFT + WIDTH * ((rate.log10() - decades.0) / (decades.1 - decades.0)).clamp(0.0, 1.0);
    let y = |loss: f64| bottom - HEIGHT * axis.share(loss);

    let mut grid = String::new();
    for (value, label) in &axis.ticks {
        let _ = write!(grid, "M{LEFT:.1} {:.1}h{WIDTH:.1}", y(*value));
        let place = Label { anchor: "end", class: Some("minor"), ..Label::at(LEFT - 8.0, y(*value) + 4.5) };
        page.text(place, label);
    }
    page.line(&grid, "grid", "");
    let minor = Label { anchor: "middle", class: Some("minor"), ..Label::at(0.0, bottom + 18.0) };
    for exponent in decades.0.ceil() as i32..=decades.1.floor() as i32 {
        page.text(Label { x: x(10f64.powi(exponent)), ..minor }, &format!("1e{exponent}"));
    }
    page.text(Label { x: LEFT + WIDTH / 2.0, y: bottom + 34.0, ..minor }, "learning rate");
    if let Some(rate) = suggestion {
        page.line(&format!("M{:.1} {HEAD:.1}v{HEIGHT:.1}", x(rate)), "best", " stroke-dasharray=\"4 3\"");
    }
    for point in points.iter().filter(|point| is_shown(point.loss)) {
        page.dot(x(point.learning_rate), y(point.loss), 2.0, "train");
    }
    let mut path = String::new();
    for point in points.iter().filter(|point| point.smoothed.is_finite()) {
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{:.1} {:.1}", x(point.learning_rate), y(point.smoothed));
    }
    if points.len() > 1 {
        page.line(&path, "validation-line", " stroke-width=\"2\" stroke-linejoin=\"round\"");
    }
    page.end()
}

/// The power of ten of a point's rate.
fn exponent(point: Option<&RatePoint>) -> f64 {
    point.map_or(0.0, |point| point.learning_rate.log10())
}

/// The meaning of the marks.
fn legend(page: &mut Page, suggestion: Option<f64>) {
    let mut x = MARGIN;
    for (class, text) in [("train", "loss of a step"), ("validation", "average")] {
        page.bar(x, TOP + LEGEND - 6.0, 18.0, 3.0, class);
        page.text(Label::at(x + 24.0, TOP + LEGEND), text);
        x += 24.0 + width(text, TEXT) + 16.0;
    }
    if let Some(rate) = suggestion {
        page.line(&format!("M{x:.1} {:.1}h18", TOP + LEGEND - 4.5), "best", " stroke-dasharray=\"4 3\"");
        page.text(Label::at(x + 24.0, TOP + LEGEND), &format!("steepest at {rate:.1e}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(learning_rate: f64, loss: f64, smoothed: f64) -> RatePoint {
        RatePoint { learning_rate, loss, smoothed }
    }

    #[test]
    fn a_diagram_of_decades() {
        let points =
            [point(1e-7, 2.0, 2.0), point(1e-3, 1.5, 1.8), point(1e-1, 90.0, 2.5), point(10.0, f64::NAN, f64::NAN)];
        let chart = learning_rates("rates", &points, Some(1e-3));
        for label in [">1e-7<", ">1e1<", ">learning rate<", ">steepest at 1.0e-3<"] {
            assert!(chart.contains(label), "{label}: {chart}");
        }
        // A loss far above the average, and one that is none, have no dot.
        assert_eq!(chart.matches("<circle").count(), 2, "{chart}");
        assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
    }

    #[test]
    fn few_points() {
        for points in [&[][..], &[point(1e-7, 2.0, 2.0)]] {
            let chart = learning_rates("rates", points, None);
            assert!(chart.ends_with("</svg>\n") && !chart.contains("NaN") && !chart.contains("inf"), "{chart}");
        }
    }
}
