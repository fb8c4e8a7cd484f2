//! The last lines of a stream, in bounded memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Number of lines kept: enough for a Rust backtrace or a Python traceback, with its message.
const LINES: usize = 40;
/// Number of bytes kept of each line.
const LINE_BYTES: usize = 400;

/// The last lines of the pushed bytes. Text that a progress bar has overwritten (`\r`) is dropped.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    partial: Vec<u8>,
    /// A carriage return was seen: the next byte overwrites the line, unless it ends it.
    returned: bool,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => self.returned = true,
                _ => {
                    if std::mem::take(&mut self.returned) {
                        self.partial.clear();
                    }
                    if self.partial.len() < LINE_BYTES {
                        self.partial.push(byte);
                    }
                }
            }
        }
    }

    /// The last lines of a file.
    pub(crate) fn of_file(path: &Path) -> Self {
        let mut tail = Tail::default();
        let mut end = Vec::new();
        let read = |mut file: File| {
            let length = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(length.saturating_sub((LINES * LINE_BYTES) as u64)))?;
            file.take((LINES * LINE_BYTES) as u64).read_to_end(&mut end)
        };
        // An unreadable file has no lines.
        if enmasse_system::files::open_regular(path).and_then(read).is_ok() {
            tail.push(&end);
        }
        tail
    }

    /// The lines, oldest first; an unterminated last line counts.
    pub(crate) fn into_lines(mut self) -> Vec<String> {
        if !self.partial.is_empty() {
            self.end_line();
        }
        self.lines.into()
    }

    fn end_line(&mut self) {
        self.returned = false;
        // Another program's bytes: without control characters they cannot move the terminal's cursor.
        let line = String::from_utf8_lossy(&self.partial).chars().filter(|c| !c.is_control() || *c == '\t').collect();
        self.partial.clear();
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines() {
        let check = |pieces: &[&str], expected: &[&str]| {
            let mut tail = Tail::default();
            pieces.iter().for_each(|piece| tail.push(piece.as_bytes()));
            assert_eq!(tail.into_lines(), expected, "{pieces:?}");
        };
        check(&[], &[]);
        check(&["a\nb"], &["a", "b"]);
        check(&["a", "b\n", "\nc\n"], &["ab", "", "c"]);
        check(&["10 %\r20 %\rfailed\n"], &["failed"]);
        check(&["windows\r\n"], &["windows"]);
        check(&["\x1b[31mred"], &["[31mred"]);
    }

    #[test]
    fn of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a\n".repeat(100_000) + "b\nc").unwrap();
        let lines = Tail::of_file(file.path()).into_lines();
        assert_eq!((lines.len(), &lines[LINES - 3..]), (LINES, &["a".to_owned(), "b".into(), "c".into()][..]));
        assert_eq!(Tail::of_file(Path::new("/no/such/file")).into_lines(), [""; 0]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut tail = Tail::default();
        for line in 0..1000 {
            tail.push(format!("{line} {}\n", "x".repeat(10_000)).as_bytes());
        }
        let lines = tail.into_lines();
        assert_eq!((lines.len(), lines[0].len()), (LINES, LINE_BYTES));
        assert!(lines[LINES - 1].starts_with("999 "));
    }
}
