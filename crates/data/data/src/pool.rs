//! The threads that read, decode and transform images. They are started once, and end when the last
//! loader that uses them is dropped.
//!
//! Where a file system does not answer one rank, the deadline of the group ends the run, and the
//! cause says that the rank was reading a batch. Where no rank waits for another, the pool's own
//! limit does ([`DecodePool::timeout`]), and the error names an image. Listing the folders of a
//! data set has no limit.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use enmasse_image::{Canvas, Image, ImageRegion};

use crate::{DataError, Dataset};

/// Decode threads, shared by any number of loaders. Clones are the same pool.
#[derive(Clone)]
pub struct DecodePool {
    threads: Arc<Threads>,
    timeout: Duration,
}

impl DecodePool {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// The system refuses a thread. Those that have been started end then.
    pub fn new(threads: usize) -> Result<Self, DataError> {
        let mut pool = Threads { shared: Arc::default(), handles: Vec::new() };
        for number in 0..threads.max(1) {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name(format!("decode-{number}"));
            let handle = thread.spawn(move || shared.serve()).map_err(|error| {
                DataError::Setting(format!("cannot start decode thread {number} of {threads}: {error}; ask for fewer"))
            })?;
            pool.handles.push(handle);
        }
        Ok(DecodePool { threads: Arc::new(pool), timeout: Self::TIMEOUT })
    }

    /// How long a batch waits for an image unless [`timeout`](Self::timeout) says otherwise: ten minutes, as ranks wait
    /// for each other.
    pub const TIMEOUT: Duration = Duration::from_secs(600);

    /// Sets how long a batch waits while none of its images is finished. After that the loader ends with an error that names
    /// one: the file system does not answer. Time in which the whole process is stopped does not count.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads.handles.len()
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.timeout
    }

    /// [`Locality::reading_bytes`](crate::Locality::reading_bytes), which may open files, on a thread of the pool.
    ///
    /// # Errors
    /// There is no answer for the longest time that a batch waits for an image, or the data set panics.
    pub fn reading_bytes(&self, dataset: &Arc<dyn Dataset>) -> Result<usize, DataError> {
        let asked = dataset.clone();
        self.ask(dataset, move |_| asked.locality().map_or(0, |locality| locality.reading_bytes()))
    }

    /// The answer to a question about a data set, which may open files, from a thread of the pool.
    ///
    /// # Errors
    /// Those of [`reading_bytes`](Self::reading_bytes).
    pub fn ask<T: Send + 'static>(
        &self,
        dataset: &Arc<dyn Dataset>,
        question: impl Fn(&mut ImageRegion) -> T + Send + Sync + 'static,
    ) -> Result<T, DataError> {
        let (send, answer) = channel();
        let run = Arc::new(move |_: usize, scratch: &mut ThreadBuffers| {
            // Nobody waits any more after an earlier error.
            let _ = send.send(catch_unwind(AssertUnwindSafe(|| question(&mut scratch.view))));
        });
        self.submit(Job { tasks: 1, cancelled: Arc::default(), run });
        match answer.recv_timeout(self.timeout) {
            Ok(result) => result.map_err(|panic| DataError::panicked("the data set", &*panic)),
            Err(_) => Err(DataError::stalled(dataset.as_ref(), 0, self.timeout)),
        }
    }

    /// Queues a job after the earlier ones.
    pub(crate) fn submit(&self, job: Job) {
        if job.tasks > 0 {
            lock(&self.threads.shared.queue).jobs.push_back((job, 0));
            self.threads.shared.wake.notify_all();
        }
    }
}

/// Tasks 0 to `tasks` of one batch.
pub(crate) struct Job {
    pub tasks: usize,
    /// Set by an owner that no longer wants the result.
    pub cancelled: Arc<AtomicBool>,
    /// Runs one task. Must not panic.
    pub run: Run,
}

/// A task, given its number.
type Run = Arc<dyn Fn(usize, &mut ThreadBuffers) + Send + Sync>;

/// Memory that a thread reuses for every image.
#[derive(Default)]
pub(crate) struct ThreadBuffers {
    /// What is read of an image.
    pub view: ImageRegion,
    pub canvas: Canvas,
    /// The images of a pair that is mixed.
    pub pair: [Image; 2],
}

/// How long the end of a pool waits for its threads: far longer than an image takes, unless a file server hangs.
const FAREWELL: Duration = Duration::from_secs(10);

struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Jobs in the order of their use, with the next task of each.
    jobs: VecDeque<(Job, usize)>,
    ended: bool,
    /// Threads that have noticed the end.
    left: usize,
}

impl Shared {
    fn serve(&self) {
        let mut scratch = ThreadBuffers::default();
        while let Some((run, task)) = self.claim() {
            run(task, &mut scratch);
        }
        lock(&self.queue).left += 1;
        self.wake.notify_all();
    }

    /// The next task, as soon as there is one; `None` when the pool ends.
    fn claim(&self) -> Option<(Run, usize)> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.ended {
                return None;
            }
            queue.jobs.retain(|(job, _)| !job.cancelled.load(Ordering::Relaxed));
            if let Some((job, next)) = queue.jobs.front_mut() {
                let claimed = (job.run.clone(), *next);
                *next += 1;
                if *next == job.tasks {
                    queue.jobs.pop_front();
                }
                return Some(claimed);
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Threads {
    /// Ends the threads, each after its current image. One that hangs in a read is left behind after `limit`: it owns
    /// everything that it uses.
    fn end(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut queue = lock(&self.shared.queue);
        queue.ended = true;
        self.shared.wake.notify_all();
        while queue.left < self.handles.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.shared.wake.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        for handle in self.handles.drain(..) {
            // It has nothing left to do. It cannot have panicked, since tasks do not.
            let _ = handle.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end(FAREWELL);
    }
}

/// Locks even if a holder panicked: the guarded state is consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a pool waited for ever for an image whose file server was gone.
    #[test]
    fn a_read_that_hangs_does_not_hold_up_the_end() {
        let pool = DecodePool::new(2).unwrap();
        let (release, held) = channel::<()>();
        let (begun, begins) = channel();
        let (held, begun) = (Mutex::new(held), Mutex::new(begun));
        let run: Run = Arc::new(move |_, _| {
            lock(&begun).send(()).unwrap();
            // Until the test lets it go.
            let _ = lock(&held).recv();
        });
        pool.submit(Job { tasks: 1, cancelled: Arc::default(), run });
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        let mut threads = Arc::into_inner(pool.threads).unwrap();
        threads.end(Duration::from_millis(10));
        assert_eq!(threads.handles.len(), 2);
        drop(release);
        threads.end(Duration::from_secs(60));
        assert!(threads.handles.is_empty());
    }
}
