//! What a command says: figures for scripts on standard output, and text for people beside them.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Lines for people and lines for scripts. With `--json` standard output carries JSON alone, and text goes to standard error.
#[derive(Debug)]
pub struct Output {
    json: bool,
    /// The first line that could not be written to standard output.
    failed: Option<io::Error>,
}

impl Output {
    /// An output with or without `--json`.
    pub fn new(json: bool) -> Self {
        Output { json, failed: None }
    }

    /// Whether figures are wanted as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people about what is to come, beside the figures.
    pub fn fact(&mut self, line: impl fmt::Display) {
        say(line);
    }

    /// A line for people.
    pub fn text(&mut self, line: impl fmt::Display) {
        if self.json {
            say(line);
        } else {
            self.write(line);
        }
    }

    /// A JSON object for scripts; nothing without `--json`.
    pub fn json(&mut self, object: impl fmt::Display) {
        if self.json {
            self.write(object);
        }
    }

    fn write(&mut self, line: impl fmt::Display) {
        let mut stdout = io::stdout().lock();
        if let Err(error) = writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
            self.failed.get_or_insert(error);
        }
    }

    /// An error if something could not be written. A reader who had enough (`| head`) is no error.
    pub fn finish(self) -> Result<(), Failure> {
        match self.failed {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::Error(format!("cannot write to standard output: {error}")))
            }
            _ => Ok(()),
        }
    }
}

/// A line on standard error, in one piece, since other ranks may write there too.
pub fn say(line: impl fmt::Display) {
    // Where even this cannot be written, there is nobody to tell.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A number with its thousands apart: `11,181,642`.
pub fn grouped(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as MiB: `12.3 MiB`.
pub fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A noun with its number: `1 rank`, `3 classes`.
pub fn counted(count: usize, noun: &str) -> String {
    let plural = match noun {
        _ if count == 1 => "",
        noun if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", grouped(count as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let check = |number: u64, expected: &str| assert_eq!(grouped(number), expected);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(11_181_642, "11,181,642");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
        let check = |count, noun, expected: &str| assert_eq!(counted(count, noun), expected);
        check(1, "rank", "1 rank");
        check(1, "class", "1 class");
        check(0, "class", "0 classes");
        check(1500, "rank", "1,500 ranks");
    }
}
