//! Passes on the ranks' output without ever waiting for the reader of the launcher's own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tail::Tail;

/// Bytes moved at once. A pipe that reports room takes at least this much (`PIPE_BUF`) without blocking.
const PIECE: usize = 4096;
/// Longest marked line, in bytes; longer ones are split.
const LINE: usize = 64 << 10;

/// The launcher's standard output or standard error. While it has no room, the ranks' pipes fill up and hold the ranks
/// back, as a terminal would. The launcher itself keeps watching.
pub(crate) struct Console {
    descriptor: BorrowedFd<'static>,
    pending: Vec<u8>,
    /// The reader is gone.
    closed: bool,
}

impl Console {
    pub(crate) fn stdout() -> Self {
        Console { descriptor: rustix::stdio::stdout(), pending: Vec::new(), closed: false }
    }

    pub(crate) fn stderr() -> Self {
        Console { descriptor: rustix::stdio::stderr(), pending: Vec::new(), closed: false }
    }

    /// Whether another piece can be accepted.
    pub(crate) fn is_ready(&self) -> bool {
        self.pending.is_empty()
    }

    /// Accepts a piece; only while ready.
    pub(crate) fn pass_on(&mut self, piece: &[u8]) {
        if !self.closed {
            self.pending.extend_from_slice(piece);
            self.write_if_room();
        }
    }

    /// Writes pending output, if that does not block.
    pub(crate) fn write_if_room(&mut self) {
        let mut room = [PollFd::from_borrowed_fd(self.descriptor, PollFlags::OUT)];
        while !self.pending.is_empty()
            && poll(&mut room, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
        {
            let piece = self.pending.get(..PIECE).unwrap_or(&self.pending);
            match rustix::io::write(self.descriptor, piece) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return,
                Err(_) => self.give_up(),
            }
        }
    }

    /// Drops pending output, and accepts no more.
    pub(crate) fn give_up(&mut self) {
        self.closed = true;
        self.pending.clear();
    }
}

impl AsFd for Console {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor
    }
}

/// How much of a stream is shown.
pub(crate) enum Show {
    Nothing,
    /// Unchanged.
    Raw,
    /// Line by line, with this prefix.
    Marked(String, Option<Filter>),
}

/// A file of matching lines, which all ranks share.
#[derive(Clone)]
pub(crate) struct Filter {
    pub(crate) words: Vec<String>,
    pub(crate) file: Arc<File>,
}

/// One stream of a rank that passes through the launcher.
pub(crate) struct Passage {
    /// Non-blocking.
    source: Box<dyn Source>,
    show: Show,
    file: Option<File>,
    pub(crate) tail: Tail,
    /// The start of a line that is to be marked.
    line: Vec<u8>,
    /// Whether the last line ended with a carriage return.
    returned: bool,
}

/// The stream that a rank writes to.
pub(crate) trait Source: Read + AsFd {}
impl<T: Read + AsFd> Source for T {}

impl Passage {
    pub(crate) fn new(source: impl Source + 'static, show: Show, file: Option<File>) -> Self {
        Passage { source: Box::new(source), show, file, tail: Tail::default(), line: Vec::new(), returned: false }
    }

    /// Moves a piece, if there is one; the console must be ready. `None` at the end of the stream, otherwise whether
    /// there may be more.
    pub(crate) fn move_piece(&mut self, console: &mut Console) -> Option<bool> {
        let mut piece = [0; PIECE];
        let read = match self.source.read(&mut piece) {
            Ok(0) => {
                if !self.line.is_empty() {
                    self.line.push(b'\n');
                    self.end_line(console);
                }
                return None;
            }
            Ok(read) => read,
            Err(error) => return Some(error.kind() == io::ErrorKind::Interrupted),
        };
        let piece = piece.get(..read).unwrap_or_default();
        self.tail.push(piece);
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(piece)
        {
            console.pass_on(format!("warning: cannot write to a log file any more: {error}\n").as_bytes());
            self.file = None;
        }
        match self.show {
            Show::Nothing => {}
            Show::Raw => console.pass_on(piece),
            Show::Marked(..) => piece.iter().for_each(|&byte| self.push_marked(byte, console)),
        }
        Some(true)
    }

    fn push_marked(&mut self, byte: u8, console: &mut Console) {
        let was_returned = std::mem::replace(&mut self.returned, byte == b'\r');
        if byte == b'\n' && was_returned {
            return console.pass_on(b"\n");
        }
        self.line.push(byte);
        // A progress bar ends its lines with a carriage return.
        if byte == b'\n' || byte == b'\r' {
            self.end_line(console);
        } else if self.line.len() >= LINE {
            self.line.push(b'\n');
            self.end_line(console);
        }
    }

    fn end_line(&mut self, console: &mut Console) {
        let line = std::mem::take(&mut self.line);
        let Show::Marked(mark, filter) = &self.show else { return };
        let marked = [mark.as_bytes(), &line].concat();
        if let Some(Filter { words, file }) = filter
            && words.iter().any(|word| contains(&line, word.as_bytes()))
        {
            // The log contains the same lines.
            let _ = (&**file).write_all(&marked);
        }
        console.pass_on(&marked);
    }
}

impl AsFd for Passage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

fn contains(line: &[u8], word: &[u8]) -> bool {
    !word.is_empty() && line.windows(word.len()).any(|window| window == word)
}
