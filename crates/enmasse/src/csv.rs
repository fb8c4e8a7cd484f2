//! Tables as text, for spreadsheets and other programs.

/// A field of a CSV file, in quotes if it needs them (RFC 4180).
pub fn field(text: &str) -> String {
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
