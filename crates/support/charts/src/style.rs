//! The colours of every chart, each for a light and for a dark page. A viewer that ignores `prefers-color-scheme` shows the
//! light ones.

use std::fmt::Write;

/// Class, property, colour on a light page, colour on a dark page. Text has a contrast of at least 4.5 and marks one of at
/// least 3, as WCAG 2.1 asks for.
const COLOURS: [(&str, &str, &str, &str); 16] = [
    ("chart", "fill", "#222222", "#e8e8e8"),
    ("page", "fill", "#ffffff", "#15181c"),
    ("minor", "fill", "#595959", "#a9afb6"),
    ("frame", "fill", "#dddddd", "#31363c"),
    ("grid", "stroke", "#dddddd", "#31363c"),
    ("train", "fill", "#4477aa", "#6fa8dc"),
    ("train-line", "stroke", "#4477aa", "#6fa8dc"),
    ("validation", "fill", "#c8641b", "#f0a050"),
    ("validation-line", "stroke", "#c8641b", "#f0a050"),
    ("third-line", "stroke", "#228833", "#6bc47a"),
    ("fourth-line", "stroke", "#aa3377", "#df8fc5"),
    ("fifth-line", "stroke", "#7a6a00", "#cfc04f"),
    ("best", "stroke", "#595959", "#a9afb6"),
    ("heat", "fill", "#08306b", "#6aaef0"),
    ("on-weak", "fill", "#000000", "#ffffff"),
    ("on-strong", "fill", "#ffffff", "#000000"),
];

/// Text on `heat` of a greater opacity than this has the class `on-strong`, other text on it `on-weak`. At this opacity both
/// are readable, on both pages.
pub(crate) const STRONG: f64 = 0.65;

/// The `style` element.
pub(crate) fn style() -> String {
    let (mut light, mut dark) = (String::new(), String::new());
    for (class, property, on_light, on_dark) in COLOURS {
        let _ = write!(light, ".{class}{{{property}:{on_light}}}");
        let _ = write!(dark, ".{class}{{{property}:{on_dark}}}");
    }
    format!("<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>")
}
