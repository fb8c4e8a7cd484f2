//! Passes on the ranks' output without ever waiting for the reader of the launcher's own.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use crate::tail::Tail;

/// Bytes moved at once.
const PIECE: usize = 4096;
/// Longest marked line, in bytes; longer ones are split.
const LINE: usize = 64 << 10;

/// The launcher's standard output or standard error. While a piece is being written, the ranks' pipes fill up and hold
/// the ranks back, as a terminal would. The launcher itself keeps watching.
///
/// A thread writes: a terminal that reports room may still block in the middle of a piece, for as long as nobody reads it.
pub(crate) struct Console {
    descriptor: BorrowedFd<'static>,
    /// What follows the piece that is being written.
    pending: Vec<u8>,
    /// The thread, once there was something to write.
    writer: Option<Writer>,
    /// Whether a piece is being written.
    is_writing: bool,
    /// The reader is gone, or the launcher no longer waits for it.
    closed: bool,
}

/// The writing thread. It ends when this is dropped, or with the process if it hangs.
struct Writer {
    pieces: Sender<Vec<u8>>,
    /// Has a byte for each piece that was written; ends when nothing more can be.
    written: PipeReader,
}

impl Console {
    pub(crate) fn new(descriptor: BorrowedFd<'static>) -> Self {
        Console { descriptor, pending: Vec::new(), writer: None, is_writing: false, closed: false }
    }

    /// Whether another piece can be accepted.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_writing
    }

    /// The descriptor that is readable once the console may be ready again.
    pub(crate) fn written(&self) -> Option<BorrowedFd<'_>> {
        self.writer.as_ref().filter(|_| self.is_writing).map(|writer| writer.written.as_fd())
    }

    /// Accepts a piece; only while ready, or as the rest of a piece that was accepted then.
    pub(crate) fn pass_on(&mut self, piece: &[u8]) {
        if !self.closed {
            self.pending.extend_from_slice(piece);
            self.write_next();
        }
    }

    /// Notices that a piece was written, if [`Console::written`] is readable.
    pub(crate) fn proceed(&mut self) {
        let Some(written) = self.written() else { return };
        match rustix::io::read(written, &mut [0]) {
            Ok(1) => {
                self.is_writing = false;
                self.write_next();
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            _ => self.give_up(),
        }
    }

    fn write_next(&mut self) {
        if self.is_writing || self.pending.is_empty() {
            return;
        }
        if self.writer.is_none() {
            self.writer = Writer::start(self.descriptor).ok();
        }
        let piece = std::mem::take(&mut self.pending);
        match &self.writer {
            Some(writer) if writer.pieces.send(piece).is_ok() => self.is_writing = true,
            _ => self.give_up(),
        }
    }

    /// Drops pending output, and accepts no more.
    pub(crate) fn give_up(&mut self) {
        self.closed = true;
        self.is_writing = false;
        self.pending.clear();
    }
}

impl Writer {
    fn start(descriptor: BorrowedFd<'static>) -> io::Result<Self> {
        let (written, mut tell) = io::pipe()?;
        rustix::fs::fcntl_setfl(&written, OFlags::NONBLOCK)?;
        let (pieces, inbox) = channel::<Vec<u8>>();
        let write = move || {
            for piece in inbox {
                // One piece at a time is on its way, so the pipe has room.
                if write_all(descriptor, &piece).and_then(|()| tell.write_all(&[0])).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("enmasse-console".into()).spawn(write)?;
        Ok(Writer { pieces, written })
    }
}

fn write_all(descriptor: BorrowedFd<'_>, mut piece: &[u8]) -> io::Result<()> {
    while !piece.is_empty() {
        match rustix::io::write(descriptor, piece) {
            Ok(written) => piece = piece.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            // Another process has made the stream non-blocking.
            Err(rustix::io::Errno::AGAIN) => {
                poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::IntoRawFd;

    use super::*;

    /// The test's end of a pipe, and a console at the other end.
    fn console() -> (File, Console) {
        let (reader, writer) = io::pipe().unwrap();
        // SAFETY: the descriptor is open, and stays so until the process ends.
        let descriptor = unsafe { BorrowedFd::borrow_raw(writer.into_raw_fd()) };
        (File::from(std::os::fd::OwnedFd::from(reader)), Console::new(descriptor))
    }

    fn settle(console: &mut Console) {
        while !console.is_ready() {
            poll(&mut [PollFd::from_borrowed_fd(console.written().unwrap(), PollFlags::IN)], None).unwrap();
            console.proceed();
        }
    }

    #[test]
    fn pieces_are_written_in_order_and_never_waited_for() {
        let (mut reader, mut console) = console();
        // More than a pipe holds, so that the writer blocks until it is read.
        let piece = vec![b'a'; 1 << 20];
        console.pass_on(&piece);
        console.pass_on(b"rest of the piece");
        assert!(!console.is_ready());
        console.proceed();
        assert!(!console.is_ready());
        let mut read = vec![0; piece.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(read == piece);
        settle(&mut console);
        let mut rest = [0; 17];
        reader.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"rest of the piece");
    }

    #[test]
    fn output_without_a_reader_is_dropped() {
        let (reader, mut console) = console();
        drop(reader);
        console.pass_on(b"unheard");
        settle(&mut console);
        assert!(console.closed);
        console.pass_on(b"unheard");
        assert!(console.is_ready());
    }
}
