//! The output of a command: figures for scripts on standard output, and text for people.
//!
//! # Foreign text
//!
//! Class names, file names and members of archives are other people's text. Whatever is printed for
//! people passes [`one_line`] or [`block`] here, so none of it can move the cursor or pass for a
//! line of its own. Fields of printed tables pass `csv::field`, which also defuses formulas. In
//! JSON names are as they are, escaped. The settings that libraries name become flags here too, by
//! [`with_flags`].

pub mod csv;
pub mod screen;
pub mod transfer;

use std::fmt;
use std::io::ErrorKind;

use enmasse_datasets::LeftOut;
use enmasse_system::writer::{self, Stream};
use enmasse_wording::{block, one_line};

use crate::command_line::flag_names::with_flags;
use crate::failure::{Failure, failed};

/// Lines for people and lines for scripts. With `--json` standard output carries JSON alone, and text goes to standard error.
#[derive(Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// An output with or without `--json`.
    pub fn new(json: bool) -> Self {
        Output { json }
    }

    /// Whether figures are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people. A line break in it becomes a blank.
    pub fn text(&mut self, line: impl fmt::Display) {
        if self.json {
            say(line);
        } else {
            self.write(one_line(&with_flags(&line.to_string())));
        }
    }

    /// Lines for people, of the program's own text: a foreign word in it must have passed [`one_line`].
    pub fn block(&mut self, text: impl fmt::Display) {
        if self.json {
            say_block(text);
        } else {
            self.write(block(&with_flags(&text.to_string())));
        }
    }

    /// A JSON object for scripts; ignored without `--json`.
    pub fn json(&mut self, object: impl fmt::Display) {
        if self.json {
            self.write(with_flags(&object.to_string()));
        }
    }

    fn write(&mut self, line: impl fmt::Display) {
        screen::clear();
        writer::put(Stream::Output, format!("{line}\n"));
    }

    /// Waits until everything is written; an error if something could not be. A reader that has closed the pipe (`| head`) is not an error.
    pub fn finish(self) -> Result<(), Failure> {
        match writer::finish() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(failed!("cannot write to standard output: {error}"))
            }
            _ => Ok(()),
        }
    }
}

/// Prints a line on standard error in one piece, since other ranks may write there too. A line break in it becomes a blank.
pub fn say(line: impl fmt::Display) {
    screen::say(&one_line(&with_flags(&line.to_string())));
}

/// Prints the line of a failure, if it has one, and returns its exit code.
pub fn say_failure(failure: &Failure) -> u8 {
    failure.line().iter().for_each(say);
    failure.code()
}

/// Prints lines on standard error in one piece, as [`Output::block`] does.
pub fn say_block(text: impl fmt::Display) {
    screen::say(&block(&with_flags(&text.to_string())));
}

/// Prints a warning, as [`say`] does.
pub fn warn(line: impl fmt::Display) {
    say(format_args!("warning: {line}"));
}

/// Warns of what a scan of the data left out, if anything.
pub fn warn_of_left_out(left_out: &LeftOut) {
    if !left_out.is_empty() {
        warn(left_out);
    }
}
