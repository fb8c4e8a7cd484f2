//! The frame that all charts share: a page, a title, text in one font, and numbers without needless digits.

use std::fmt::Write;

use crate::style::style;
use crate::text::{self, escape, fit};

/// Margin on all sides, in pixels.
pub(crate) const MARGIN: f64 = 16.0;
/// Size of text, in pixels, unless the label or the title sets another.
pub(crate) const TEXT: f64 = 13.0;
/// Where the content below the title begins.
pub(crate) const TOP: f64 = 48.0;

/// Distance from the title to the legend's baseline.
pub(crate) const LEGEND: f64 = 12.0;

const TITLE: f64 = 17.0;
/// Width up to which a page grows to fit its title, in pixels.
const MAX_WIDTH_FOR_TITLE: f64 = 720.0;

/// Position and appearance of a text.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    pub x: f64,
    /// The baseline.
    pub y: f64,
    /// SVG's start, middle or end.
    pub anchor: &'static str,
    /// Texts wider than this many pixels are truncated.
    pub room: f64,
    pub size: f64,
    /// A class of `style` for another colour than that of most text.
    pub class: Option<&'static str>,
    /// Whether it runs upwards from (`x`, `y`).
    pub is_upright: bool,
}

impl Label {
    /// Text of any length that begins at `x`, with baseline `y`.
    pub fn at(x: f64, y: f64) -> Self {
        Label { x, y, anchor: "start", room: f64::INFINITY, size: TEXT, class: None, is_upright: false }
    }
}

/// An SVG document being written.
pub(crate) struct Page {
    body: String,
    width: f64,
}

impl Page {
    pub(crate) fn new(title: &str, width: f64, height: f64) -> Self {
        // Bold letters are wider than those that `text::width` assumes.
        let title_size = TITLE * 1.12;
        let width = width.max((text::width(title, title_size) + 2.0 * MARGIN).ceil().min(MAX_WIDTH_FOR_TITLE));
        let mut body = String::new();
        let _ = write!(
            body,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" class=\"chart\" \
             font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"{TEXT}\">\n\
             <title>{2}</title>\n{3}\n<rect width=\"{0}\" height=\"{1}\" class=\"page\"/>\n\
             <text x=\"{MARGIN}\" y=\"30\" font-size=\"{TITLE}\" font-weight=\"bold\">{4}</text>\n",
            short(width),
            short(height),
            escape(title),
            style(),
            escape(&fit(title, title_size, width - 2.0 * MARGIN)),
        );
        Page { body, width }
    }

    /// The width, in pixels.
    pub(crate) fn width(&self) -> f64 {
        self.width
    }

    pub(crate) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        if width > 0.0 {
            let (x, y, width, height) = (short(x), short(y), short(width), short(height));
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\"/>"
            );
        }
    }

    /// The meaning of the colours of bars: a class and a text for each.
    pub(crate) fn legend(&mut self, entries: &[(&str, &str)]) {
        let mut x = MARGIN;
        for (class, text) in entries {
            self.bar(x, TOP + LEGEND - 11.0, 12.0, 12.0, class);
            self.text(Label::at(x + 18.0, TOP + LEGEND), text);
            x += 18.0 + text::width(text, TEXT) + 16.0;
        }
    }

    /// A square of a heat map with a tooltip. `opacity` is 0 to 1.
    pub(crate) fn heat(&mut self, x: f64, y: f64, side: f64, opacity: f64, tooltip: &str) {
        let x = short(x);
        let y = short(y);
        let side = short(side);
        let opacity = short(opacity);
        let tooltip = escape(tooltip);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" class=\"heat\" fill-opacity=\"{opacity}\">\
             <title>{tooltip}</title></rect>"
        );
    }

    /// A line along a path in SVG's notation. `attributes` are empty, or begin with a space.
    pub(crate) fn line(&mut self, path: &str, class: &str, attributes: &str) {
        let _ = writeln!(self.body, "<path d=\"{path}\" fill=\"none\" class=\"{class}\"{attributes}/>");
    }

    pub(crate) fn dot(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        let (x, y, radius) = (short(x), short(y), short(radius));
        let _ = writeln!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" class=\"{class}\"/>");
    }

    /// Text. If its room is not enough, a tooltip shows the whole text.
    pub(crate) fn text(&mut self, label: Label, text: &str) {
        let x = short(label.x);
        let y = short(label.y);
        let shown = fit(text, label.size, label.room);
        let _ = write!(self.body, "<text x=\"{x}\" y=\"{y}\"");
        if label.anchor != "start" {
            let _ = write!(self.body, " text-anchor=\"{}\"", label.anchor);
        }
        if label.size != TEXT {
            let _ = write!(self.body, " font-size=\"{}\"", short(label.size));
        }
        if let Some(class) = label.class {
            let _ = write!(self.body, " class=\"{class}\"");
        }
        if label.is_upright {
            let _ = write!(self.body, " transform=\"rotate(-90 {x} {y})\"");
        }
        self.body.push('>');
        if shown != text {
            let _ = write!(self.body, "<title>{}</title>", escape(text));
        }
        let _ = writeln!(self.body, "{}</text>", escape(&shown));
    }

    /// A PNG file. Pixels of an enlarged image stay squares.
    pub(crate) fn image(&mut self, x: f64, y: f64, width: f64, height: f64, png: &[u8]) {
        let (x, y, width, height) = (short(x), short(y), short(width), short(height));
        let address = crate::base64::data_address("image/png", png);
        let _ = writeln!(
            self.body,
            "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" image-rendering=\"pixelated\" \
             href=\"{address}\"/>"
        );
    }

    pub(crate) fn end(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }
}

/// A number with at most two decimals.
pub(crate) fn short(length: f64) -> String {
    let text = format!("{length:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
