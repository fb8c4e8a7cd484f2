//! Tables as text, for spreadsheets and other programs.

use enmasse_wording::one_line;

/// A field of a CSV file, in quotes if it needs them (RFC 4180). For a file that this program reads again, such as a manifest.
pub fn exact(text: &str) -> String {
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// The same for other people's text that is printed: in one line. A spreadsheet would run a field that begins like a formula,
/// so that gets an apostrophe in front, as OWASP advises ("CSV Injection").
pub fn field(text: &str) -> String {
    let text = one_line(text);
    let is_formula = text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    exact(&if is_formula { format!("'{text}") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: names of files and classes became formulas, lines of their own, and commands to the terminal.
    #[test]
    fn foreign_fields_are_text() {
        let check = |text: &str, expected: &str| assert_eq!(field(text), expected, "{text:?}");
        check("a/b c.jpg", "a/b c.jpg");
        check("a,\"b\"", "\"a,\"\"b\"\"\"");
        check("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0");
        check("=HYPERLINK(\"http://x\",1)", "\"'=HYPERLINK(\"\"http://x\"\",1)\"");
        check("-1.jpg", "'-1.jpg");
        check("+1", "'+1");
        check("@SUM(A1)", "'@SUM(A1)");
        check("\t=1", "'=1");
        check("\r=1", "'=1");
        check(" =1", "' =1");
        check("＝1", "'＝1");
        check("a=1", "a=1");
        check("rose\nlily.jpg,tulip,1", "\"rose lily.jpg,tulip,1\"");
        check("\x1b[2Jrose", "[2Jrose");
        assert_eq!(exact("-1\n.jpg"), "\"-1\n.jpg\"");
    }
}
