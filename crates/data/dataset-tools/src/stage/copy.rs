//! Copies the files of a tree on several threads: a file server answers many requests at a time, each slowly.

use std::fs::{File, FileTimes, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

use enmasse_data::DataError;
use enmasse_system::files::open_regular;

use super::StageError;
use super::tree::{Entry, Tree};

/// Files that are copied at a time.
const THREADS: usize = 8;

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// The longest piece in which time without a byte is counted, so that time in which the process is stopped does not count.
const SLICE: Duration = Duration::from_millis(500);

/// What the threads share.
struct Work {
    from: PathBuf,
    to: PathBuf,
    files: Vec<(PathBuf, u64, Option<SystemTime>)>,
    next: AtomicUsize,
    ended: AtomicBool,
}

/// Copies the files of `tree`, which lies in `from`, below `to`, where its folders are. `tell` gets the number of bytes so far, at
/// least every half second. Fails if no byte comes for `timeout`.
pub(super) fn copy(
    tree: &Tree,
    (from, to): (&Path, &Path),
    timeout: Duration,
    tell: &mut dyn FnMut(u64),
) -> Result<(), StageError> {
    let files = tree.entries.iter().filter_map(|(path, entry)| match *entry {
        Entry::Folder => None,
        Entry::File { bytes, modified } => Some((path.clone(), bytes, modified)),
    });
    let files: Vec<_> = files.collect();
    let count = files.len();
    let threads = THREADS.min(files.len());
    let (from, to) = (from.to_owned(), to.to_owned());
    let work = Arc::new(Work { from, to, files, next: AtomicUsize::new(0), ended: AtomicBool::new(false) });
    let _end = End(work.clone());
    let (send, events) = channel();
    for _ in 0..threads {
        let (work, send) = (work.clone(), send.clone());
        let thread = std::thread::Builder::new().name("stage".to_owned());
        thread.spawn(move || work.run(&send)).map_err(StageError::Threads)?;
    }
    drop(send);
    let (mut bytes, mut done) = (0, 0);
    while done < count {
        match receive(&events, timeout, &mut || tell(bytes)) {
            Some(Event::Bytes(more)) => bytes += more,
            Some(Event::Done) => done += 1,
            Some(Event::Failed(error)) => return Err(error),
            None => {
                let at = work.next.load(Ordering::Relaxed).saturating_sub(threads).min(count - 1);
                let name = work.from.join(&work.files[at].0).display().to_string();
                return Err(StageError::Stalled {
                    what: format!("{name}: no more bytes of this file or others came"),
                    timeout,
                });
            }
        }
        tell(bytes);
    }
    Ok(())
}

/// Ends the threads after their current piece.
struct End(Arc<Work>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

enum Event {
    Bytes(u64),
    Done,
    Failed(StageError),
}

impl Work {
    fn run(&self, send: &Sender<Event>) {
        let mut buffer = vec![0; PIECE];
        while let Some((path, bytes, modified)) = self.files.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let event = match self.file(path, *bytes, *modified, &mut buffer, send) {
                Ok(()) => Event::Done,
                Err(error) => Event::Failed(error),
            };
            // Without a receiver another thread has failed.
            if send.send(event).is_err() || self.ended.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn file(
        &self,
        path: &Path,
        bytes: u64,
        modified: Option<SystemTime>,
        buffer: &mut [u8],
        send: &Sender<Event>,
    ) -> Result<(), StageError> {
        let (from, to) = (self.from.join(path), self.to.join(path));
        let read = |source| StageError::Data(DataError::read(&from, source));
        let write = |source| StageError::Data(DataError::write(&to, source));
        let mut source = open_regular(&from).map_err(read)?;
        let mut target: File = OpenOptions::new().write(true).create_new(true).open(&to).map_err(write)?;
        let mut total = 0;
        while !self.ended.load(Ordering::Relaxed) {
            let piece = match source.read(buffer) {
                Ok(0) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                piece => piece.map_err(read)?,
            };
            target.write_all(&buffer[..piece]).map_err(write)?;
            total += piece as u64;
            let _ = send.send(Event::Bytes(piece as u64));
        }
        if total != bytes {
            return Err(StageError::Data(DataError::layout(from, "it changed while it was copied")));
        }
        let times = modified.map_or(FileTimes::new(), |modified| FileTimes::new().set_modified(modified));
        target.set_times(times).map_err(write)
    }
}

/// The next event; `None` if there is none for `timeout`. Calls `tell` while it waits.
fn receive(events: &Receiver<Event>, timeout: Duration, tell: &mut dyn FnMut()) -> Option<Event> {
    let mut waited = Duration::ZERO;
    while waited < timeout {
        let slice = SLICE.min(timeout - waited);
        match events.recv_timeout(slice) {
            Ok(event) => return Some(event),
            Err(RecvTimeoutError::Timeout) => waited += slice,
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        tell();
    }
    None
}
