//! A fixed pool of threads for sections of numbered tasks.
//!
//! A training step holds hundreds of short sections, so a waiting thread spins for some ten microseconds. Then it
//! sleeps in the kernel, because ranks may share cores. Threads that were given cores stay on them. Threads claim tasks
//! one by one, so a thread that is slow, or wakes late, delays the others by at most one task. The result of a task
//! must not depend on the thread that runs it. A section allocates nothing.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::futex;

use crate::affinity::{Cores, Pinned};

/// `(task, thread)`.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Rounds of `spin_loop` before a waiting thread sleeps: about 10 to 50 microseconds, in which another rank's thread
/// may be waiting for the core.
const SPINS: u32 = 1000;
/// The same on cores that belong to the pool: longer than waking up takes.
const OWN_CORE_SPINS: u32 = 6000;

/// The state word: the number of threads inside the section in the low bits, then whether it is open, then its number.
const OPEN: u32 = 1 << 12;
const MEMBERS: u32 = OPEN - 1;
const SECTION: u32 = OPEN << 1;

/// Has its own cache lines, so that a write to it does not disturb threads that wait for, or work on, other data.
/// Aligned to two lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Apart<T>(T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Data that waiting threads watch, that working threads write, and that working threads only read are on separate
/// cache lines.
struct State {
    signal: Apart<Signal>,
    /// The next task to claim.
    next: Apart<AtomicUsize>,
    section: Apart<Section>,
    spins: u32,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Written at the start and the end of sections.
struct Signal {
    word: AtomicU32,
    sleepers: AtomicU32,
    stop: AtomicU32,
}

/// Written between sections.
struct Section {
    tasks: AtomicUsize,
    /// Written by the caller while the section is closed and empty; read by members while it is open or they are
    /// inside.
    job: UnsafeCell<Option<Job<'static>>>,
}

// SAFETY: `job` is guarded by the protocol of `word` described at the field.
unsafe impl Sync for State {}
// SAFETY: the job is `Sync`, and everything else is sendable.
unsafe impl Send for State {}

impl State {
    /// Waits until the word satisfies `ready`: spins, then sleeps.
    fn wait(&self, ready: impl Fn(u32) -> bool) -> u32 {
        let mut spins = 0;
        loop {
            let word = self.signal.word.load(Ordering::SeqCst);
            if ready(word) {
                return word;
            }
            if spins < self.spins {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            // The kernel compares the word again after `sleepers` is visible, so no wake-up is lost.
            self.signal.sleepers.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wait(&self.signal.word, futex::Flags::PRIVATE, word, None);
            self.signal.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wake(&self) {
        if self.signal.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.signal.word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Claims and runs tasks until none is left. A panic ends the section's remaining tasks and is kept for the caller.
    fn work(&self, job: Job<'_>, thread: usize) {
        let tasks = self.section.tasks.load(Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                job(task, thread);
            }
        }));
        if let Err(payload) = outcome {
            self.next.store(tasks, Ordering::Relaxed);
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
    }

    fn serve(&self, thread: usize) {
        let mut last = 0;
        loop {
            let word = self.wait(|word| {
                self.signal.stop.load(Ordering::SeqCst) != 0 || (word & OPEN != 0 && word / SECTION != last)
            });
            if self.signal.stop.load(Ordering::SeqCst) != 0 {
                return;
            }
            // Join only if the section is still open; the caller waits for members before it discards the job.
            if self.signal.word.compare_exchange(word, word + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                continue;
            }
            last = word / SECTION;
            // SAFETY: as a member of an open section, the job is set and outlives the membership.
            if let Some(job) = unsafe { *self.section.job.get() } {
                self.work(job, thread);
            }
            let left = self.signal.word.fetch_sub(1, Ordering::SeqCst) - 1;
            if left & (MEMBERS | OPEN) == 0 {
                self.wake();
            }
        }
    }
}

/// The number of computing threads, and their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threads {
    pub count: usize,
    /// A core for each thread. If `None`, or if the number of cores differs from that of threads, the kernel places the
    /// threads.
    pub cores: Option<Cores>,
}

impl From<usize> for Threads {
    fn from(count: usize) -> Self {
        Threads { count, cores: None }
    }
}

/// The threads of one program; the thread that calls [`Pool::run`] is one of them.
pub(crate) struct Pool {
    threads: usize,
    cores: Option<Cores>,
    state: Arc<State>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// The most threads a pool can have.
    pub(crate) const MAX_THREADS: usize = 1024;

    /// A pool of threads (at least 1), one of which is the caller.
    pub(crate) fn new(threads: impl Into<Threads>) -> std::io::Result<Self> {
        let Threads { count, cores } = threads.into();
        let threads = count.clamp(1, Self::MAX_THREADS);
        // A single thread waits for no others, and does better on a core where no loader runs at the moment.
        let cores = cores.filter(|cores| threads > 1 && cores.count() == threads);
        let state = Arc::new(State {
            signal: Apart(Signal { word: AtomicU32::new(0), sleepers: AtomicU32::new(0), stop: AtomicU32::new(0) }),
            next: Apart(AtomicUsize::new(0)),
            section: Apart(Section { tasks: AtomicUsize::new(0), job: UnsafeCell::new(None) }),
            spins: if cores.is_some() { OWN_CORE_SPINS } else { SPINS },
            panic: Mutex::new(None),
        });
        let mut pool = Pool { threads, cores, state, workers: Vec::with_capacity(threads - 1) };
        for thread in 1..threads {
            let state = pool.state.clone();
            let worker = std::thread::Builder::new().name(format!("enmasse-cpu-{thread}"));
            let core = cores.and_then(|cores| cores.part(thread, 1));
            let serve = move || {
                core.inspect(Cores::pin);
                state.serve(thread);
            };
            pool.workers.push(worker.spawn(serve)?);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Keeps the calling thread on its core of the pool, if the pool has cores, until the returned value is dropped.
    pub(crate) fn pin_caller(&self) -> Option<Pinned> {
        Pinned::to(self.cores.and_then(|cores| cores.part(0, 1)))
    }

    /// Runs `job(task, thread)` for every task below `tasks`, each once, on any threads (numbered below
    /// [`Pool::threads`]), and returns when all are done. A panic in a task is passed on. `&mut self`, because sections
    /// do not nest.
    pub(crate) fn run(&mut self, tasks: usize, job: impl Fn(usize, usize) + Sync) {
        if self.threads == 1 || tasks < 2 {
            return (0..tasks).for_each(|task| job(task, 0));
        }
        let state = &*self.state;
        let short: Job<'_> = &job;
        // SAFETY: only the lifetime changes, and below the section is closed and empty before `job` goes out of scope.
        let long: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(short) };
        // SAFETY: the section is closed and empty, so no thread reads.
        unsafe { *state.section.job.get() = Some(long) };
        state.next.store(0, Ordering::Relaxed);
        state.section.tasks.store(tasks, Ordering::Relaxed);
        let section = (state.signal.word.load(Ordering::Relaxed) / SECTION).wrapping_add(1);
        state.signal.word.store(section.wrapping_mul(SECTION) | OPEN, Ordering::SeqCst);
        state.wake();
        state.work(short, 0);
        state.signal.word.fetch_and(!OPEN, Ordering::SeqCst);
        state.wait(|word| word & MEMBERS == 0);
        let panic = state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.signal.stop.store(1, Ordering::SeqCst);
        self.state.signal.word.fetch_add(SECTION, Ordering::SeqCst);
        self.state.wake();
        for worker in self.workers.drain(..) {
            // No section is open, since [`Pool::run`] borrows the pool, so it only has to notice this.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 7] {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 5, 64, 1000] {
                let counts: Vec<AtomicU64> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
                pool.run(tasks, |task, thread| {
                    assert!(thread < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn each_thread_has_its_core() {
        let available = Cores::available().unwrap();
        for count in 2..=available.count() {
            let mut pool = Pool::new(Threads { count, cores: available.part(0, count) }).unwrap();
            let seen = Mutex::new(vec![None; count]);
            let pinned = pool.pin_caller();
            // Every thread has a task, because each waits until all have begun.
            let begun = std::sync::Barrier::new(count);
            pool.run(count, |_, thread| {
                seen.lock().unwrap()[thread] = Cores::available();
                begun.wait();
            });
            drop(pinned);
            let expected: Vec<_> = (0..count).map(|thread| available.part(thread, 1)).collect();
            assert_eq!(seen.into_inner().unwrap(), expected);
            assert_eq!(Cores::available(), Some(available));
        }
        // If the number of cores differs from that of threads, no thread is pinned.
        for count in [1, 3] {
            assert!(Pool::new(Threads { count, cores: available.part(0, 1) }).unwrap().pin_caller().is_none());
        }
    }

    #[test]
    fn many_short_sections_from_changing_threads() {
        let mut pool = Pool::new(3).unwrap();
        let total = AtomicU64::new(0);
        for _ in 0..4 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        pool.run(3, |task, _| _ = total.fetch_add(task as u64, Ordering::Relaxed));
                    }
                });
            });
        }
        assert_eq!(total.into_inner(), 4 * 2000 * 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
        let mut pool = Pool::new(3).unwrap();
        for bad in [0, 17, 99] {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| pool.run(100, |task, _| assert!(task != bad, "task {task}"))));
            let payload = outcome.expect_err("the panic is passed on");
            assert!(payload.downcast_ref::<String>().is_some_and(|text| text.contains(&format!("task {bad}"))));
            let count = AtomicU64::new(0);
            pool.run(10, |_, _| _ = count.fetch_add(1, Ordering::Relaxed));
            assert_eq!(count.into_inner(), 10);
        }
    }
}
