//! Text in an SVG: escaping, and estimated widths, since the layout is fixed before the viewer chooses a font.

use crate::page::TEXT;

/// `text` as the content of an element or a quoted attribute. Characters that XML 1.0 forbids even when escaped become
/// U+FFFD; line breaks and tabs become spaces.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\r' | '\t' => out.push(' '),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
    out
}

/// Approximate width of `text` at `size` pixels per em in the usual sans-serif fonts.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(ems).sum::<f64>() * size
}

/// The width of the widest text, at the size of most text; 0 without texts.
pub(crate) fn widest<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> f64 {
    texts.into_iter().map(|text| width(text.as_ref(), TEXT)).fold(0.0, f64::max)
}

/// Approximately the widths of DejaVu Sans, the widest of the usual fonts.
fn ems(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | '|' | '\'' => 0.34,
        ' ' | '.' | ',' | ':' | ';' | '!' | 'I' | '(' | ')' | '-' | 'f' | 't' | 'r' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '+' | '=' | '<' | '>' | '\u{2026}' => 1.0,
        'A'..='Z' | '&' => 0.79,
        '\0'..='\u{10ff}' => 0.64,
        // Hangul, CJK, full-width forms, emoji: a full em, which is also assumed for unknown characters.
        _ => 1.05,
    }
}

/// `text` if it fits into `room` pixels; otherwise its beginning and its end with an ellipsis between them, since names of
/// classes often differ only at the end.
pub(crate) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_string();
    }
    let half = (room - width("\u{2026}", size)) / 2.0;
    let end: Vec<char> = beginning(text.chars().rev(), size, half).collect();
    let rest = half + half - end.iter().map(|&character| ems(character) * size).sum::<f64>();
    beginning(text.chars(), size, rest).chain(['\u{2026}']).chain(end.into_iter().rev()).collect()
}

/// The longest prefix of `characters` that fits into `room` pixels.
fn beginning(characters: impl Iterator<Item = char>, size: f64, room: f64) -> impl Iterator<Item = char> {
    let mut left = room;
    characters.take_while(move |&character| {
        left -= ems(character) * size;
        left >= 0.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_truncated_to_the_room_they_have() {
        let check = |text: &str, room: f64, expected: &str| assert_eq!(fit(text, 10.0, room), expected);
        check("", 0.0, "");
        check("daisy", 100.0, "daisy");
        check("very_long_class_name_17", 80.0, "very_lo\u{2026}e_17");
        check("very_long_class_name_18", 80.0, "very_lo\u{2026}e_18");
        check("iiiiiiiiiiWWWWWWWWWW", 50.0, "iiiii\u{2026}WW");
        check("向日葵向日葵", 45.0, "向日\u{2026}葵");
        check("向日葵", 0.0, "\u{2026}");
    }

    #[test]
    fn characters_forbidden_in_xml_are_replaced() {
        let check = |text: &str, expected: &str| assert_eq!(escape(text), expected);
        check("a<b>&\"c\"", "a&lt;b&gt;&amp;&quot;c&quot;");
        check("a\0b\u{1b}[31m\u{ffff}", "a\u{fffd}b\u{fffd}[31m\u{fffd}");
        check("two\nlines\t", "two lines ");
        check("向日葵 🌻 'x'", "向日葵 🌻 'x'");
    }
}
