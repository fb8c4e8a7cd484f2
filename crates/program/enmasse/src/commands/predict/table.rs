//! `--out FILE`: predictions as a table, which appears whole. While the command runs they lie in FILE.part as JSON lines, after one that says
//! what they follow from. `--resume` goes on with them.

use std::collections::HashMap;
use std::fs::{File, remove_file};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches};
use enmasse_datasets::TaskKind;
use enmasse_parquet::{TableColumn, TableWriter};
use enmasse_system::files::{Lock, write_whole};
use enmasse_train::Prediction;
use serde_json::{Value, json};

use super::rows::{header, row, with_cells};
use crate::command_line::arguments;
use crate::failure::{Failure, failed, usage};

/// Bytes of a line of FILE.part, at most.
const MAX_LINE: u64 = 1 << 26;

/// The key of the first line of FILE.part.
const ORIGIN: &str = "predictions_of";

/// The flags.
pub fn flags() -> [Arg; 2] {
    [
        arguments::file(
            "out",
            "Write a table to this file, whose name ends with .csv, .jsonl or .parquet, instead of printing. Until it is whole its rows are in FILE.part",
        ),
        arguments::switch(
            "resume",
            "Go on with what an earlier command left in FILE.part: the images in it are not predicted again",
        )
        .requires("out"),
    ]
}

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableForm {
    Csv,
    JsonLines,
    Parquet,
}

/// Where a table is written.
pub struct TablePlace {
    out: PathBuf,
    pub form: TableForm,
    resumes: bool,
}

impl TablePlace {
    /// What the flags say.
    pub fn of(matches: &ArgMatches) -> Result<Option<Self>, Failure> {
        let Some(out) = matches.get_one::<PathBuf>("out").cloned() else { return Ok(None) };
        let form = match out.extension().and_then(|ending| ending.to_str()) {
            Some("csv") => TableForm::Csv,
            Some("jsonl") => TableForm::JsonLines,
            Some("parquet") => TableForm::Parquet,
            _ => {
                let out = out.display();
                return Err(usage!(
                    "--out {out}: the name ends with .csv, .jsonl or .parquet, which says the form of the table"
                ));
            }
        };
        Ok(Some(TablePlace { out, form, resumes: matches.get_flag("resume") }))
    }

    /// The file, if it is whole, and nothing is left for `--resume`.
    pub fn finished(&self) -> Option<&Path> {
        let is_whole = self.resumes && self.out.exists() && !self.part().exists();
        is_whole.then_some(&self.out)
    }

    fn part(&self) -> PathBuf {
        let mut part = self.out.clone().into_os_string();
        part.push(".part");
        part.into()
    }

    /// Begins a table, or goes on with one. `origin` says what its rows follow from.
    pub fn begin(self, origin: &str) -> Result<Table, Failure> {
        let part = self.part();
        let named = part.display().to_string();
        let lock = Lock::take(&part).map_err(|error| failed!("cannot write {named}: {error}"))?;
        let lock = lock.ok_or_else(|| failed!("{named}: another command is writing it"))?;
        let mut done = HashMap::new();
        let mut resumed = 0;
        let mut end = 0;
        let mut is_same = false;
        each_line(lock.file(), &named, |number, line, bytes| {
            match number {
                1 => is_same = serde_json::from_str(line).is_ok_and(|found: Value| found[ORIGIN] == origin),
                _ => {
                    *done.entry(parse(line, number, &named)?.image).or_default() += 1;
                    resumed += 1;
                }
            }
            end += bytes;
            Ok(())
        })?;
        if resumed == 0 {
            end = 0;
        } else if !self.resumes {
            return Err(usage!("{named}: an earlier command left it: give --resume to go on with it, or remove it"));
        } else if !is_same {
            let problem = "its predictions are of other weights or settings: give those again, or remove it";
            return Err(usage!("{named}: {problem}"));
        }
        let begin = || -> io::Result<BufWriter<File>> {
            let mut file = lock.file().try_clone()?;
            // A line that was cut off is written again.
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
            let mut lines = BufWriter::new(file);
            if end == 0 {
                writeln!(lines, "{}", json!({ ORIGIN: origin }))?;
            }
            Ok(lines)
        };
        let lines = begin().map_err(|error| failed!("cannot write {named}: {error}"))?;
        Ok(Table { place: self, part, lock, lines, done, resumed, rows: resumed })
    }
}

/// A table that is being written.
pub struct Table {
    place: TablePlace,
    part: PathBuf,
    lock: Lock,
    lines: BufWriter<File>,
    /// Names of images with the number of their rows that earlier commands left.
    done: HashMap<String, u64>,
    /// Rows that earlier commands left, and all rows.
    pub resumed: u64,
    pub rows: u64,
}

impl Table {
    /// Whether an image needs no row; it is asked once for each row.
    pub fn is_done(&mut self, image: &str) -> bool {
        let left = self.done.get_mut(image).filter(|rows| **rows > 0);
        left.map(|rows| *rows -= 1).is_some()
    }

    /// Appends a row.
    pub fn push(&mut self, object: &Value) -> Result<(), Failure> {
        self.rows += 1;
        writeln!(self.lines, "{object}").map_err(|error| self.not_written(&error))
    }

    /// Writes all rows so far to the disk's cache, from where another command can go on with them.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.lines.flush().map_err(|error| self.not_written(&error))
    }

    fn not_written(&self, error: &io::Error) -> Failure {
        failed!("cannot write {}: {error}; --resume goes on with what is in it", self.part.display())
    }

    /// Writes the table, and returns its path.
    pub fn finish(mut self, columns: Vec<TableColumn>, kind: TaskKind) -> Result<PathBuf, Failure> {
        self.flush()?;
        let out = self.place.out.clone();
        let named = self.part.display().to_string();
        let mut file = self.lock.file();
        file.seek(SeekFrom::Start(0)).map_err(|error| failed!("cannot read {named}: {error}"))?;
        // What is read is no matter of the table's file.
        let mut unread = None;
        let mut each_row = |each: &mut dyn FnMut(&str, Prediction) -> io::Result<()>| -> io::Result<()> {
            let mut unwritten = None;
            let read = each_line(self.lock.file(), &named, |number, line, _| {
                if number == 1 || unwritten.is_some() {
                    return Ok(());
                }
                unwritten = each(line, parse(line, number, &named)?).err();
                Ok(())
            });
            unread = read.err();
            match (&unread, unwritten) {
                (_, Some(error)) => Err(error),
                (Some(_), None) => Err(io::Error::other("its rows cannot be read")),
                (None, None) => Ok(()),
            }
        };
        let written = write_whole(&out, |file| match self.place.form {
            TableForm::JsonLines => each_row(&mut |line, _| writeln!(file, "{line}")),
            TableForm::Csv => {
                writeln!(file, "{}", header(&columns))?;
                each_row(&mut |_, prediction| writeln!(file, "{}", row(&prediction, kind)))
            }
            TableForm::Parquet => {
                let mut table = TableWriter::new(file, columns)?;
                each_row(&mut |_, prediction| with_cells(&prediction, kind, |cells| table.row(cells)))?;
                table.finish().map(drop)
            }
        });
        match (unread, written) {
            (Some(failure), _) => return Err(failure),
            (None, written) => written.map_err(Failure::error)?,
        }
        remove_file(&self.part).map_err(|error| failed!("cannot remove {named}: {error}"))?;
        Ok(out)
    }
}

impl Drop for Table {
    /// A file without a row is of no use to another command.
    fn drop(&mut self) {
        if self.rows == 0 {
            let _ = remove_file(&self.part);
        }
    }
}

/// A row of FILE.part.
fn parse(line: &str, number: usize, named: &str) -> Result<Prediction, Failure> {
    serde_json::from_str(line).map_err(|_| failed!("{named}: line {number} is no prediction; remove the file"))
}

/// Calls `each` with the number of each line, from 1, its text, and its length in bytes. A last line without an end is no line.
fn each_line(
    file: &File,
    named: &str,
    mut each: impl FnMut(usize, &str, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let bytes = read.map_err(|error| failed!("cannot read {named}: {error}"))?;
        let Some(text) = line.strip_suffix(b"\n") else { break };
        let text = str::from_utf8(text).map_err(|_| failed!("{named}: line {number} is no text; remove the file"))?;
        each(number, text, bytes as u64)?;
    }
    Ok(())
}
