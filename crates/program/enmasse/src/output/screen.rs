//! The terminal at standard error: its width, and a last line that shows progress and is replaced again and again.
//!
//! After the line the cursor returns to its start, and whatever is printed next erases from there to the end of the screen. So
//! nothing of it remains, even where the terminal was made narrower and has broken the line.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};

use enmasse_system::writer::{self, Stream};
use rustix::termios::tcgetwinsize;

/// To the start of the line, and erase everything from there.
const ERASE: &str = "\r\x1b[J";

/// The width of a terminal that does not know it.
const DEFAULT_WIDTH: usize = 80;

/// Whether the last line shows progress.
static SHOWN: Mutex<bool> = Mutex::new(false);

fn shown() -> MutexGuard<'static, bool> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Characters in a line of the terminal at standard error, now; `None` where it is no terminal that can replace a line.
pub fn width() -> Option<usize> {
    let stderr = io::stderr();
    if !stderr.is_terminal() || std::env::var_os("TERM").is_some_and(|name| name == "dumb") {
        return None;
    }
    let size = tcgetwinsize(stderr).ok()?;
    Some(if size.ws_col == 0 { DEFAULT_WIDTH } else { size.ws_col.into() })
}

/// Replaces the last line, unless the terminal is not being read. `text` must be narrower than the terminal.
pub fn show(text: &str) {
    let mut shown = shown();
    *shown |= writer::offer(format!("{ERASE}{text}\r"));
}

/// Whether the last line shows progress.
pub fn is_shown() -> bool {
    *shown()
}

/// Prints a line on standard error in one piece, since other ranks may write there too. It replaces a line of progress.
pub fn say(line: &str) {
    let mut shown = shown();
    let erase = if std::mem::take(&mut *shown) { ERASE } else { "" };
    put(format!("{erase}{line}\n"));
}

/// Takes the line of progress away.
pub fn clear() {
    if std::mem::take(&mut *shown()) {
        put(ERASE.to_owned());
    }
}

/// Takes away a line of progress that another process has left on this terminal.
pub fn clear_after_others() {
    if width().is_some() {
        put(ERASE.to_owned());
    }
}

fn put(text: String) {
    writer::put(Stream::Error, text);
}

/// Breaks a text between words, so that no line is longer than `width` unless one word is. Lines after the first begin with so many
/// blanks as the text has before its first value, if that has a label of one word: `data:     ` aligns what follows.
pub fn wrap(text: &str, width: usize) -> String {
    let own = text.len() - text.trim_start().len();
    let label = match text.split_once(": ") {
        Some((word, rest)) if !word.contains(' ') => text.len() - rest.trim_start().len(),
        _ => 0,
    };
    // A label that takes half of the line leaves too little beside it.
    let indent = if (1..=width / 2).contains(&label) { label } else { own };
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if line.chars().count() + length > width && !line.trim().is_empty() {
            let fits = indent + length <= width;
            lines.push(std::mem::replace(&mut line, " ".repeat(if fits { indent } else { own })));
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_whole() {
        let check =
            |text: &str, width: usize, expected: &str| assert_eq!(wrap(text, width), expected, "{text} {width}");
        check("", 10, "");
        check("short", 10, "short");
        check("a b c d", 3, "a b\nc d");
        check("data:  one two three", 14, "data:  one two\n       three");
        check("data:  one two three", 10, "data:  one\ntwo three");
        check("data:  one two three", 12, "data:  one\ntwo three");
        check("data:  one thirteenchars two", 15, "data:  one\nthirteenchars\n       two");
        check("done in 9 s: all well", 16, "done in 9 s: all\nwell");
        check("    top5 0.5  top1 0.25", 14, "    top5 0.5\n    top1 0.25");
        check("incomprehensibilities", 10, "incomprehensibilities");
        check("é é é", 3, "é é\né");
    }
}
