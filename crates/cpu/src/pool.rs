//! A fixed pool of threads for sections of numbered tasks.
//!
//! A training step holds hundreds of short sections, so a waiting thread spins for some ten microseconds; then it
//! sleeps in the kernel, because ranks may share cores. Threads claim tasks one by one: a thread that is slow, or wakes
//! late, delays nobody for more than a task. Which thread runs a task must not matter to its result. A section
//! allocates nothing.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::futex;

/// `(task, thread)`.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Rounds of `spin_loop` before a waiting thread sleeps: about 10 to 50 microseconds.
const SPINS: u32 = 1000;

/// The state word: threads inside the section in the low bits, then whether it is open, then its number.
const OPEN: u32 = 1 << 12;
const MEMBERS: u32 = OPEN - 1;
const SECTION: u32 = OPEN << 1;

struct State {
    word: AtomicU32,
    sleepers: AtomicU32,
    stop: AtomicU32,
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// Written by the caller while the section is closed and empty; read by members while it is open or they are
    /// inside.
    job: UnsafeCell<Option<Job<'static>>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is guarded by the protocol of `word` described at the field.
unsafe impl Sync for State {}
// SAFETY: the job is `Sync`, and everything else is sendable.
unsafe impl Send for State {}

impl State {
    /// Waits until the word differs from `seen` in a way that satisfies `ready`: spins, then sleeps.
    fn wait(&self, ready: impl Fn(u32) -> bool) -> u32 {
        let mut spins = 0;
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if ready(word) {
                return word;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            // The kernel compares the word again after `sleepers` is visible, so no wake-up is lost.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, word, None);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Claims and runs tasks until none is left. A panic ends the section's remaining tasks and is kept for the caller.
    fn work(&self, job: Job<'_>, thread: usize) {
        let tasks = self.tasks.load(Ordering::Relaxed);
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
            let word =
                self.wait(|word| self.stop.load(Ordering::SeqCst) != 0 || (word & OPEN != 0 && word / SECTION != last));
            if self.stop.load(Ordering::SeqCst) != 0 {
                return;
            }
            // Join only if the section is still open; the caller waits for members before it forgets the job.
            if self.word.compare_exchange(word, word + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                continue;
            }
            last = word / SECTION;
            // SAFETY: as a member of an open section, the job is set and outlives the membership.
            if let Some(job) = unsafe { *self.job.get() } {
                self.work(job, thread);
            }
            let left = self.word.fetch_sub(1, Ordering::SeqCst) - 1;
            if left & (MEMBERS | OPEN) == 0 {
                self.wake();
            }
        }
    }
}

/// The threads of one program; the thread that calls [`Pool::run`] is one of them.
pub(crate) struct Pool {
    threads: usize,
    state: Arc<State>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// The most threads a pool can have.
    pub(crate) const MAX_THREADS: usize = 1024;

    /// A pool of `threads` (at least 1), one of which will be the caller.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.clamp(1, Self::MAX_THREADS);
        let state = Arc::new(State {
            word: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { threads, state, workers: Vec::with_capacity(threads - 1) };
        for thread in 1..threads {
            let state = pool.state.clone();
            let worker = std::thread::Builder::new().name(format!("enmasse-cpu-{thread}"));
            pool.workers.push(worker.spawn(move || state.serve(thread))?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `job(task, thread)` for every task below `tasks`, each once, on any threads (numbered below
    /// [`Pool::threads`]), and returns when all are done. A panic in a task is passed on here. `&mut self`: sections do
    /// not nest.
    pub(crate) fn run(&mut self, tasks: usize, job: impl Fn(usize, usize) + Sync) {
        if self.threads == 1 || tasks < 2 {
            return (0..tasks).for_each(|task| job(task, 0));
        }
        let state = &*self.state;
        let short: Job<'_> = &job;
        // SAFETY: only the lifetime changes, and below the section is closed and empty before `job` goes.
        let long: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(short) };
        // SAFETY: the section is closed and empty, so nobody reads.
        unsafe { *state.job.get() = Some(long) };
        state.next.store(0, Ordering::Relaxed);
        state.tasks.store(tasks, Ordering::Relaxed);
        let section = (state.word.load(Ordering::Relaxed) / SECTION).wrapping_add(1);
        state.word.store(section.wrapping_mul(SECTION) | OPEN, Ordering::SeqCst);
        state.wake();
        state.work(short, 0);
        state.word.fetch_and(!OPEN, Ordering::SeqCst);
        state.wait(|word| word & MEMBERS == 0);
        let panic = state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(1, Ordering::SeqCst);
        self.state.word.fetch_add(SECTION, Ordering::SeqCst);
        self.state.wake();
        for worker in self.workers.drain(..) {
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
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
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
