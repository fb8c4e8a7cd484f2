//! The frame that both charts share: a white page, a title, text in one font, and numbers without needless digits.

use std::fmt::Write;

use crate::text::{self, escape, fit};

/// Margin on all sides, in pixels.
pub(crate) const MARGIN: f64 = 16.0;
/// Size of all text except the title, in pixels.
pub(crate) const TEXT: f64 = 13.0;
/// Where the content below the title begins.
pub(crate) const TOP: f64 = 48.0;

const TITLE: f64 = 17.0;
/// Width up to which a page grows to fit its title, in pixels.
const WIDEST_FOR_TITLE: f64 = 720.0;

/// An SVG document being written.
pub(crate) struct Page {
    body: String,
    width: f64,
}

impl Page {
    pub(crate) fn new(title: &str, width: f64, height: f64) -> Self {
        // Bold letters are wider than those that `text::width` assumes.
        let title_size = TITLE * 1.12;
        let width = width.max((text::width(title, title_size) + 2.0 * MARGIN).ceil().min(WIDEST_FOR_TITLE));
        let mut body = String::new();
        let _ = write!(
            body,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" \
             font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"{TEXT}\">\n\
             <title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n\
             <text x=\"{MARGIN}\" y=\"30\" font-size=\"{TITLE}\" font-weight=\"bold\" fill=\"#222222\">{3}</text>\n",
            short(width),
            short(height),
            escape(title),
            escape(&fit(title, title_size, width - 2.0 * MARGIN)),
        );
        Page { body, width }
    }

    /// The width, in pixels.
    pub(crate) fn width(&self) -> f64 {
        self.width
    }

    pub(crate) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        if width > 0.0 {
            let (x, y, width, height) = (short(x), short(y), short(width), short(height));
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
            );
        }
    }

    /// Text with baseline `y`; `anchor` is SVG's start, middle or end. If `room` pixels are not enough, a tooltip shows
    /// the whole text.
    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: &str, room: f64, text: &str) {
        let (x, y, shown) = (short(x), short(y), fit(text, TEXT, room));
        let _ = write!(self.body, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"#222222\">");
        if shown != text {
            let _ = write!(self.body, "<title>{}</title>", escape(text));
        }
        let _ = writeln!(self.body, "{}</text>", escape(&shown));
    }

    /// A PNG file. Pixels of an enlarged picture stay squares.
    pub(crate) fn picture(&mut self, x: f64, y: f64, width: f64, height: f64, png: &[u8]) {
        let (x, y, width, height) = (short(x), short(y), short(width), short(height));
        let data = crate::base64::encode(png);
        let _ = writeln!(
            self.body,
            "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" image-rendering=\"pixelated\" \
             href=\"data:image/png;base64,{data}\"/>"
        );
    }

    pub(crate) fn end(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }
}

/// A length with at most two decimals.
fn short(length: f64) -> String {
    let text = format!("{length:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
