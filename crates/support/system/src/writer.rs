//! The thread that writes to standard output and standard error, so that no other thread waits for
//! their reader.
//!
//! A terminal may take nothing for hours (Ctrl-S, a frozen ssh), and that must hold up no thread
//! that keeps the job alive. Training goes on meanwhile: results wait in a queue of 4 MiB, and
//! lines of progress, which are replaced anyway, are left out. Only a full queue holds its callers
//! back. The launcher's copies of its ranks' output have such a thread each.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes in the queue, unless a single text is longer.
const ROOM: usize = 4 << 20;
/// The same for texts that may be left out: a few lines, which a terminal that is read takes at once.
const ROOM_TO_OFFER: usize = 4 << 10;
/// How long a process that ends at once waits for its last lines.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where a text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// The queue of texts, which are written in order.
struct Writer<W> {
    write: W,
    state: Mutex<WriterState>,
    /// There is a text to write.
    filled: Condvar,
    /// A text was written.
    written: Condvar,
}

#[derive(Default)]
struct WriterState {
    /// The first one is being written.
    texts: VecDeque<(Stream, String)>,
    bytes: usize,
    /// The error of the first text that could not be written to standard output.
    failed: Option<io::Error>,
}

/// Writes a text to a stream.
type ToStream = fn(Stream, &[u8]) -> io::Result<()>;

/// The writer of this process; `None` if it can have no further thread.
fn writer() -> Option<&'static Writer<ToStream>> {
    static WRITER: OnceLock<Option<&'static Writer<ToStream>>> = OnceLock::new();
    *WRITER.get_or_init(|| {
        let writer: &'static Writer<ToStream> = Box::leak(Box::new(Writer::new(write as ToStream)));
        let serve = || writer.serve();
        std::thread::Builder::new().name("writer".to_owned()).spawn(serve).ok().map(|_| writer)
    })
}

/// Each text in one piece, since other ranks may write there too.
fn write(stream: Stream, text: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Output => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(text).and_then(|()| stdout.flush())
        }
        Stream::Error => io::stderr().write_all(text),
    }
}

/// Queues a text. Waits only if the queue is full.
pub fn put(stream: Stream, text: String) {
    match writer() {
        Some(writer) => writer.put(stream, text),
        // Nothing is left to do about an error.
        None => drop(write(stream, text.as_bytes())),
    }
}

/// Queues a text for standard error, or leaves it out if that is not being read. Never waits.
pub fn offer(text: String) -> bool {
    writer().is_some_and(|writer| writer.offer(text))
}

/// Waits until everything is written. Returns the first error of standard output since the last call.
pub fn finish() -> Option<io::Error> {
    writer().and_then(|writer| writer.finish(None))
}

/// Ends the process. Lines that a reader has not taken a second later are lost.
pub fn exit(code: u8) -> ! {
    let _ = writer().and_then(|writer| writer.finish(Some(Instant::now() + LAST_WORDS)));
    std::process::exit(code.into())
}

impl<W: Fn(Stream, &[u8]) -> io::Result<()>> Writer<W> {
    fn new(write: W) -> Self {
        Writer { write, state: Mutex::default(), filled: Condvar::new(), written: Condvar::new() }
    }

    /// The writing thread; it ends with the process.
    fn serve(&self) {
        let mut state = self.state();
        loop {
            let Some((stream, text)) = state.texts.front_mut() else {
                state = wait(&self.filled, state);
                continue;
            };
            // It keeps its place and its bytes until it is written.
            let stream = *stream;
            let text = std::mem::take(text);
            drop(state);
            let result = (self.write)(stream, text.as_bytes());
            state = self.state();
            state.texts.pop_front();
            state.bytes -= text.len();
            if let (Stream::Output, Err(error)) = (stream, result) {
                state.failed.get_or_insert(error);
            }
            self.written.notify_all();
        }
    }

    fn put(&self, stream: Stream, text: String) {
        let mut state = self.state();
        while state.bytes > 0 && state.bytes + text.len() > ROOM {
            state = wait(&self.written, state);
        }
        self.push(state, stream, text);
    }

    fn offer(&self, text: String) -> bool {
        let state = self.state();
        let has_room = state.bytes + text.len() <= ROOM_TO_OFFER;
        if has_room {
            self.push(state, Stream::Error, text);
        }
        has_room
    }

    fn push(&self, mut state: MutexGuard<'_, WriterState>, stream: Stream, text: String) {
        state.bytes += text.len();
        state.texts.push_back((stream, text));
        self.filled.notify_one();
    }

    fn finish(&self, deadline: Option<Instant>) -> Option<io::Error> {
        let mut state = self.state();
        while !state.texts.is_empty() {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => wait(&self.written, state),
                Some(Duration::ZERO) => break,
                Some(left) => self.written.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        state.failed.take()
    }

    /// Every change is complete when the lock is released, even by a panic.
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait<'a>(condition: &Condvar, guard: MutexGuard<'a, WriterState>) -> MutexGuard<'a, WriterState> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    type Write = Box<dyn Fn(Stream, &[u8]) -> io::Result<()> + Send + Sync>;

    /// A writer to a terminal that takes a text when it is told to, and the texts that it has taken.
    fn terminal() -> (Arc<Writer<Write>>, Sender<()>, Receiver<String>) {
        let (take, taken) = channel::<()>();
        let (sender, shown) = channel();
        let (taken, sender) = (Mutex::new(taken), Mutex::new(sender));
        let write = move |_: Stream, text: &[u8]| {
            taken.lock().unwrap().recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            sender.lock().unwrap().send(String::from_utf8_lossy(text).into_owned()).unwrap();
            Ok(())
        };
        let writer = Arc::new(Writer::new(Box::new(write) as Write));
        std::thread::spawn({
            let writer = writer.clone();
            move || writer.serve()
        });
        (writer, take, shown)
    }

    #[test]
    fn results_wait_for_the_reader_and_progress_does_not() {
        let (writer, take, shown) = terminal();
        let bar = "=".repeat(80);
        for step in 0..1000 {
            if step % 100 == 0 {
                writer.put(Stream::Output, format!("epoch {step}"));
            }
            writer.offer(bar.clone());
        }
        assert!(!writer.offer(bar.clone()));
        let queued = writer.state().texts.len();
        for _ in 0..queued {
            take.send(()).unwrap();
        }
        assert!(writer.finish(None).is_none());
        let (epochs, bars): (Vec<_>, Vec<_>) = shown.try_iter().partition(|text| text.starts_with("epoch"));
        assert_eq!(epochs, (0..10).map(|epoch| format!("epoch {}", epoch * 100)).collect::<Vec<_>>());
        assert!(bars.len() <= ROOM_TO_OFFER / bar.len(), "{} bars", bars.len());
        assert!(writer.offer(bar));
    }

    #[test]
    fn a_full_queue_holds_its_callers_back() {
        let (writer, take, shown) = terminal();
        writer.put(Stream::Output, "a".repeat(ROOM));
        let caller = std::thread::spawn({
            let writer = writer.clone();
            move || writer.put(Stream::Output, "b".to_owned())
        });
        take.send(()).unwrap();
        caller.join().unwrap();
        take.send(()).unwrap();
        assert!(writer.finish(None).is_none());
        assert_eq!(shown.try_iter().map(|text| text.len()).collect::<Vec<_>>(), [ROOM, 1]);
    }

    #[test]
    fn errors_are_those_of_standard_output() {
        for (stream, fails) in [(Stream::Output, true), (Stream::Error, false)] {
            let (writer, take, _shown) = terminal();
            drop(take);
            writer.put(stream, "lost".to_owned());
            assert_eq!(writer.finish(None).is_some(), fails, "{stream:?}");
        }
    }

    #[test]
    fn a_process_that_ends_at_once_waits_no_longer_than_the_deadline() {
        let (writer, take, _shown) = terminal();
        writer.put(Stream::Error, "unread".to_owned());
        assert!(writer.finish(Some(Instant::now())).is_none());
        assert_eq!(writer.state().texts.len(), 1);
        drop(take);
    }
}
