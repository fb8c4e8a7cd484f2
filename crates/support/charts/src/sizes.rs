//! Times by size, on logarithmic axes.

use std::fmt::Write;

use crate::page::{Label, MARGIN, Page, TOP};

/// One line of a diagram.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeLine<'a> {
    /// What was timed.
    pub name: &'a str,
    /// Bytes and seconds, both above 0, in ascending order of bytes.
    pub points: Vec<(f64, f64)>,
    /// Whether it is another program's, which is drawn dashed.
    pub is_foreign: bool,
}

/// One diagram.
#[derive(Clone, Debug, PartialEq)]
pub struct SizePanel<'a> {
    /// What all its lines have in common.
    pub title: &'a str,
    /// Its lines.
    pub lines: Vec<SizeLine<'a>>,
}

/// The inner size of a diagram, in pixels, and that of the names beside it.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 260.0;
const NAMES: f64 = 170.0;
const LEFT: f64 = MARGIN + 60.0;
/// The distance from a diagram to the next.
const PITCH: f64 = HEIGHT + 88.0;
/// Colours of the lines, and dashes of those of other programs.
const CLASSES: [&str; 5] = ["train-line", "validation-line", "third-line", "fourth-line", "fifth-line"];
const DASHES: [&str; 3] = ["6 3", "2 3", "8 3 2 3"];

/// An SVG with a diagram for each panel: the time over the size, both logarithmic and on the same axes.
pub fn times_by_size(title: &str, panels: &[SizePanel]) -> String {
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| line.points.iter().copied());
    let sizes = Decades::over(points().map(|(bytes, _)| bytes.log2()), 4);
    let times = Decades::over(points().map(|(_, seconds)| seconds.log10()), 1);
    let height = TOP + 24.0 + PITCH * panels.len() as f64;
    let mut page = Page::new(title, LEFT + WIDTH + 16.0 + NAMES, height);
    for (place, panel) in panels.iter().enumerate() {
        draw(&mut page, panel, TOP + 24.0 + PITCH * place as f64, &sizes, &times);
    }
    page.end()
}

fn draw(page: &mut Page, panel: &SizePanel, top: f64, sizes: &Decades, times: &Decades) {
    let bottom = top + HEIGHT;
    let x = |log: f64| LEFT + WIDTH * sizes.share(log);
    let y = |log: f64| bottom - HEIGHT * times.share(log);
    page.text(Label::at(LEFT, top - 10.0), panel.title);
    let mut grid = String::new();
    for exponent in times.ticks() {
        let _ = write!(grid, "M{LEFT:.1} {:.1}h{WIDTH:.1}", y(exponent.into()));
        let place = Label { anchor: "end", class: Some("minor"), ..Label::at(LEFT - 8.0, y(exponent.into()) + 4.5) };
        page.text(place, &duration(exponent));
    }
    for exponent in sizes.ticks() {
        let _ = write!(grid, "M{:.1} {top:.1}v{HEIGHT:.1}", x(exponent.into()));
        let place = Label { anchor: "middle", class: Some("minor"), ..Label::at(x(exponent.into()), bottom + 18.0) };
        page.text(place, &bytes(exponent));
    }
    page.line(&grid, "grid", "");
    let (mut own, mut foreign) = (0, 0);
    for (row, line) in panel.lines.iter().enumerate() {
        let (class, dashes) = match line.is_foreign {
            true => ("best", format!(" stroke-width=\"2\" stroke-dasharray=\"{}\"", DASHES[foreign % DASHES.len()])),
            false => (CLASSES[own % CLASSES.len()], " stroke-width=\"2\" stroke-linejoin=\"round\"".to_owned()),
        };
        *if line.is_foreign { &mut foreign } else { &mut own } += 1;
        let mut path = String::new();
        for (bytes, seconds) in &line.points {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(bytes.log2()), y(seconds.log10()));
        }
        page.line(&path, class, &dashes);
        let x = LEFT + WIDTH + 16.0;
        let y = top + 10.0 + 20.0 * row as f64;
        page.line(&format!("M{x:.1} {:.1}h22", y - 4.5), class, &dashes);
        page.text(Label { room: NAMES - 30.0 - MARGIN, ..Label::at(x + 28.0, y) }, line.name);
    }
}

/// A logarithmic axis between two exponents.
struct Decades {
    first: i32,
    last: i32,
    step: i32,
}

impl Decades {
    /// An axis that covers these exponents, from one multiple of `step` to another one.
    fn over(exponents: impl Iterator<Item = f64>, step: i32) -> Self {
        let finite = exponents.filter(|exponent| exponent.is_finite());
        let (low, high) =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| (low.min(one), high.max(one)));
        let (low, high) = if low > high { (0.0, 0.0) } else { (low, high) };
        let first = (low / f64::from(step)).floor() as i32 * step;
        let last = (high / f64::from(step)).ceil() as i32 * step;
        Decades { first, last: last.max(first + step), step }
    }

    fn ticks(&self) -> impl Iterator<Item = i32> {
        (self.first..=self.last).step_by(self.step.unsigned_abs() as usize)
    }

    fn share(&self, exponent: f64) -> f64 {
        ((exponent - f64::from(self.first)) / f64::from(self.last - self.first)).clamp(0.0, 1.0)
    }
}

/// Seconds, as a power of ten, in words.
fn duration(exponent: i32) -> String {
    let (unit, base) = match exponent {
        ..-6 => ("ns", -9),
        -6..-3 => ("us", -6),
        -3..0 => ("ms", -3),
        _ => ("s", 0),
    };
    format!("{} {unit}", 10f64.powi(exponent - base))
}

/// Bytes, as a power of two, in words.
fn bytes(exponent: i32) -> String {
    let (unit, base) = match exponent {
        ..10 => ("B", 0),
        10..20 => ("KiB", 10),
        20..30 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    format!("{} {unit}", 2f64.powi(exponent - base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_the_same_axes() {
        let line = |name, points: &[(f64, f64)], is_foreign| SizeLine { name, points: points.to_vec(), is_foreign };
        let panels = [
            SizePanel {
                title: "through memory",
                lines: vec![line("ring", &[(4096.0, 2e-6), (1e8, 0.05)], false), line("MPI", &[(4096.0, 3e-6)], true)],
            },
            SizePanel { title: "over TCP", lines: vec![line("ring", &[(4096.0, 3e-5)], false)] },
        ];
        let chart = times_by_size("sums", &panels);
        for label in [">4 KiB<", ">64 KiB<", ">256 MiB<", ">1 us<", ">100 ms<", ">through memory<", ">over TCP<"] {
            assert_eq!(
                chart.matches(label).count(),
                if label.contains(['t', 'T']) { 1 } else { 2 },
                "{label}: {chart}"
            );
        }
        assert_eq!((chart.matches(">ring<").count(), chart.matches("stroke-dasharray").count()), (2, 2), "{chart}");
    }

    #[test]
    fn nothing_was_timed() {
        let panels =
            [SizePanel { title: "nothing", lines: vec![SizeLine { name: "a", points: vec![], is_foreign: false }] }];
        for panels in [&[][..], &panels] {
            let chart = times_by_size("sums", panels);
            assert!(chart.ends_with("</svg>\n") && !chart.contains("NaN") && !chart.contains("inf"), "{chart}");
        }
    }
}
