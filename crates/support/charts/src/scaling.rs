//! A bar chart of the speed of several numbers of devices.

use crate::page::{Label, MARGIN, Page, TOP, short};
use crate::text::widest;

/// Distance from one row to the next, in pixels.
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
/// Gap between a name, its bar and its figures.
const GAP: f64 = 8.0;
/// Names wider than this many pixels are truncated.
const MAX_NAME: f64 = 300.0;
const MAX_BAR: f64 = 320.0;
/// Where the first row begins, below the legend.
const HEAD: f64 = TOP + 32.0;

/// A way to train, and its speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalingRow<'a> {
    /// Its name.
    pub name: &'a str,
    /// Number of devices.
    pub devices: usize,
    /// Over all devices.
    pub images_per_second: f64,
    /// How many times the speed of one device.
    pub speed_up: f64,
}

/// An SVG with a bar for the speed of each row, before a paler one for as many times the speed of one device. The figures
/// follow: images per second, speed-up, efficiency. All bars have one scale.
pub fn scaling(title: &str, rows: &[ScalingRow]) -> String {
    let ideal = |row: &ScalingRow| match row.speed_up > 0.0 {
        true => row.images_per_second / row.speed_up * row.devices as f64,
        false => 0.0,
    };
    let figures: Vec<String> = rows.iter().map(figures).collect();
    let names_room = widest(rows.iter().map(|row| row.name)).min(MAX_NAME);
    let start = MARGIN + names_room + GAP;
    let page_width = start + MAX_BAR + GAP + widest(&figures) + MARGIN;
    let mut page = Page::new(title, page_width, HEAD + rows.len() as f64 * ROW + MARGIN);
    page.legend(&[("train", "measured"), ("frame", "as many times the speed of one device")]);
    let longest = rows.iter().map(|row| ideal(row).max(row.images_per_second)).fold(0.0, f64::max);
    let scale = if longest > 0.0 { MAX_BAR / longest } else { 0.0 };
    for (number, (row, figures)) in rows.iter().zip(&figures).enumerate() {
        let top = HEAD + number as f64 * ROW;
        let baseline = top + BAR - 3.5;
        let speed = row.images_per_second * scale;
        let ideal = ideal(row) * scale;
        page.text(Label { anchor: "end", room: names_room, ..Label::at(start - GAP, baseline) }, row.name);
        page.bar(start, top, ideal, BAR, "frame");
        page.bar(start, top, speed, BAR, "train");
        page.text(Label::at(start + speed.max(ideal) + GAP, baseline), figures);
    }
    page.end()
}

fn figures(row: &ScalingRow) -> String {
    let speed = format!("{} images/s", short((row.images_per_second * 10.0).round() / 10.0));
    match row.devices {
        1 => speed,
        devices => {
            let efficiency = 100.0 * row.speed_up / devices as f64;
            format!("{speed}, {:.2} times one device, {efficiency:.0} %", row.speed_up)
        }
    }
}
