//! The output of a command: figures for scripts on standard output, and text for people.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;
use crate::screen;

/// Lines for people and lines for scripts. With `--json` standard output carries JSON alone, and text goes to standard error.
#[derive(Debug)]
pub struct Output {
    json: bool,
    /// The error of the first line that could not be written to standard output.
    failed: Option<io::Error>,
}

impl Output {
    /// An output with or without `--json`.
    pub fn new(json: bool) -> Self {
        Output { json, failed: None }
    }

    /// Whether figures are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people about what follows, besides the figures.
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

    /// A JSON object for scripts; ignored without `--json`.
    pub fn json(&mut self, object: impl fmt::Display) {
        if self.json {
            self.write(object);
        }
    }

    fn write(&mut self, line: impl fmt::Display) {
        screen::clear();
        let mut stdout = io::stdout().lock();
        if let Err(error) = writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
            self.failed.get_or_insert(error);
        }
    }

    /// An error if something could not be written. A reader that has closed the pipe (`| head`) is not an error.
    pub fn finish(self) -> Result<(), Failure> {
        match self.failed {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::Error(format!("cannot write to standard output: {error}")))
            }
            _ => Ok(()),
        }
    }
}

/// Prints a line on standard error in one piece, since other ranks may write there too.
pub fn say(line: impl fmt::Display) {
    screen::say(&line.to_string());
}
