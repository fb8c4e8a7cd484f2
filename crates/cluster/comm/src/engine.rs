//! The queue of a group's operations, and the communication thread that carries them out in order.
//!
//! Queueing and waiting allocate nothing: operations lie in a ring made with the group, and a handle is a number. If
//! the queue is empty, the caller of a blocking operation carries it out itself, which saves two thread switches.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::buffers::BufferBytes;
use crate::cause::{Cause, CauseKind};
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::locks::{lock, wait};
use crate::memory::RegisteredMemory;
use crate::operation::Operation;
use crate::options::GroupOptions;
use crate::traffic::Traffic;
use crate::transport::{RunningOperation, Stop, Transport};

/// Limit of queued operations, beyond which starting another one waits; far above the buckets of any plan.
const CAPACITY: usize = 256;

/// Owns the communication thread.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is an operation to carry out, or the engine closes.
    work: Condvar,
    /// An operation is done.
    done: Condvar,
    /// Operations done so far, including failed ones.
    completed: AtomicU64,
    /// The first operation that failed; all later ones fail too.
    failed_from: AtomicU64,
    /// Nanoseconds that callers have waited for operations of this group and of those split from the same job.
    waited: Arc<AtomicU64>,
    /// Not used after a panic: the group has failed then.
    transport: Mutex<Box<dyn Transport>>,
    failure: Arc<Failure>,
    recorder: FlightRecorder,
    options: GroupOptions,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Operation>,
    /// Operations queued so far; the number of the last one.
    queued: u64,
    /// A thread is carrying out an operation.
    running: bool,
    /// Threads that wait until an operation is done.
    waiting: usize,
    closing: bool,
}

impl Engine {
    /// Starts the thread.
    pub(crate) fn start(
        transport: Box<dyn Transport>,
        failure: Arc<Failure>,
        recorder: FlightRecorder,
        options: GroupOptions,
        waited: Arc<AtomicU64>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { pending: VecDeque::with_capacity(CAPACITY), ..Queue::default() }),
            work: Condvar::new(),
            done: Condvar::new(),
            completed: AtomicU64::new(0),
            failed_from: AtomicU64::new(u64::MAX),
            waited,
            transport: Mutex::new(transport),
            failure,
            recorder,
            options,
        });
        let thread = std::thread::Builder::new().name("enmasse-comm".into()).spawn({
            let shared = shared.clone();
            move || shared.serve()
        })?;
        Ok(Engine { shared, thread: Some(thread) })
    }

    /// Queues an operation, whose memory stays valid and untouched until the handle has been waited for. In the background its
    /// caller goes on meanwhile.
    pub(crate) fn queue(&self, operation: Operation, in_background: bool) -> Handle {
        let mut queue = lock(&self.shared.queue);
        while queue.pending.len() == CAPACITY {
            queue = self.shared.wait_for_end(queue);
        }
        let operation = self.shared.number(&mut queue, operation, in_background);
        queue.pending.push_back(operation);
        self.shared.work.notify_one();
        let (ticket, flight) = (operation.sequence, operation.flight);
        Handle { state: State::Queued { shared: self.shared.clone(), ticket, flight } }
    }

    /// Carries out an operation, after those queued before it.
    pub(crate) fn run(&self, operation: Operation) -> Result<(), Arc<Cause>> {
        let mut queue = lock(&self.shared.queue);
        if queue.running || !queue.pending.is_empty() {
            drop(queue);
            return self.queue(operation, false).wait();
        }
        queue.running = true;
        let operation = self.shared.number(&mut queue, operation, false);
        drop(queue);
        self.shared.timed(|| self.shared.carry_out(&operation));
        self.shared.outcome(operation.sequence)
    }

    /// See [`Transport::buffer_bytes`].
    pub(crate) fn buffer_bytes(&self) -> BufferBytes {
        lock(&self.shared.transport).buffer_bytes()
    }

    /// See [`Transport::traffic`].
    pub(crate) fn traffic(&self) -> Traffic {
        lock(&self.shared.transport).traffic()
    }

    /// See [`Transport::register_memory`].
    pub(crate) fn register_memory(&self, memory: RegisteredMemory) {
        lock(&self.shared.transport).register_memory(memory);
    }

    /// Total time that callers have waited for operations of this rank's groups.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.shared.waited.load(Ordering::Relaxed))
    }

    /// Carries out the queued operations, then tells the other ranks that this one leaves.
    pub(crate) fn close(&mut self) {
        lock(&self.shared.queue).closing = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of its operations. Each ends by its deadline, and the first that fails ends all.
            let _ = thread.join();
        }
        lock(&self.shared.transport).close(&self.shared.failure, self.shared.options.timeout);
    }
}

impl Shared {
    /// The communication thread.
    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            match queue.pending.pop_front() {
                Some(operation) if !queue.running => {
                    queue.running = true;
                    drop(queue);
                    self.carry_out(&operation);
                    queue = lock(&self.queue);
                }
                Some(operation) => {
                    queue.pending.push_front(operation);
                    queue = wait(&self.work, queue);
                }
                None if queue.closing && !queue.running => return,
                None => queue = wait(&self.work, queue),
            }
        }
    }

    /// Assigns the next operation its numbers.
    fn number(&self, queue: &mut Queue, operation: Operation, in_background: bool) -> Operation {
        queue.queued += 1;
        let operation = Operation { sequence: queue.queued, ..operation };
        Operation { flight: self.recorder.queued(&operation, in_background), ..operation }
    }

    /// Carries out the operation whose turn it is. The caller has set `running`.
    fn carry_out(&self, operation: &Operation) {
        self.recorder.started(operation.flight);
        let delay = self.options.delay_per_operation;
        let result = catch_unwind(AssertUnwindSafe(|| {
            if !delay.is_zero() {
                self.failure.fails_within(delay);
            }
            if self.failure.is_stopping() {
                return Err(Stop::Failed);
            }
            lock(&self.transport).execute(&RunningOperation::new(operation, &self.failure, self.options))
        }));
        let result = result.unwrap_or_else(|_| {
            let cause = Cause::new(CauseKind::Error, "the communication thread panicked; see its message above");
            Err(Stop::Raise(Box::new(cause.during(operation.describe(), operation.sequence))))
        });
        match result {
            Ok(()) => self.recorder.ended(operation.flight),
            Err(stop) => {
                if let Stop::Raise(cause) = stop {
                    self.failure.raise(*cause);
                }
                self.failed_from.fetch_min(operation.sequence, Ordering::Relaxed);
            }
        }
        let mut queue = lock(&self.queue);
        queue.running = false;
        self.completed.store(operation.sequence, Ordering::Release);
        // The thread may be waiting for its turn after a caller that carried out its own operation. Waking for nothing costs a
        // short operation a part of its time, and may take the core from the caller.
        if queue.closing || !queue.pending.is_empty() {
            self.work.notify_one();
        }
        if queue.waiting > 0 {
            self.done.notify_all();
        }
    }

    fn is_done(&self, ticket: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// The outcome of an operation that is done.
    fn outcome(&self, ticket: u64) -> Result<(), Arc<Cause>> {
        if ticket < self.failed_from.load(Ordering::Relaxed) { Ok(()) } else { self.failure.check() }
    }

    fn wait(&self, ticket: u64, flight: u64) {
        if self.is_done(ticket) {
            return;
        }
        let began = Instant::now();
        self.timed(|| {
            let mut queue = lock(&self.queue);
            while !self.is_done(ticket) {
                queue = self.wait_for_end(queue);
            }
        });
        self.recorder.awaited(flight, began);
    }

    /// Waits until an operation has ended.
    fn wait_for_end<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.waiting += 1;
        queue = wait(&self.done, queue);
        queue.waiting -= 1;
        queue
    }

    /// Adds the time of `work` to that in which callers waited.
    fn timed(&self, work: impl FnOnce()) {
        let began = Instant::now();
        work();
        self.waited.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// An operation in progress. Dropping the handle waits for the end, since the operation owns its memory until then. It
/// ends by its deadline, [`crate::GroupOptions::timeout`].
#[must_use = "the operation owns its memory until it has been waited for"]
pub struct Handle {
    state: State,
}

enum State {
    Queued {
        shared: Arc<Shared>,
        ticket: u64,
        /// Its number in the recorder.
        flight: u64,
    },
    /// The operation was empty or invalid.
    Ended(Result<(), Arc<Cause>>),
}

impl Handle {
    /// A handle of an operation that ended before it was queued.
    pub(crate) fn ended(outcome: Result<(), Arc<Cause>>) -> Self {
        Handle { state: State::Ended(outcome) }
    }

    /// Waits until the operation has ended; an error is the cause of the group's failure. Afterwards the memory is the
    /// caller's again; after an error its contents are undefined.
    ///
    /// # Errors
    /// The group's [`Cause`], as of the operation that has been started.
    pub fn wait(self) -> Result<(), Arc<Cause>> {
        match &self.state {
            State::Queued { shared, ticket, flight } => {
                shared.wait(*ticket, *flight);
                shared.outcome(*ticket)
            }
            State::Ended(outcome) => outcome.clone(),
        }
    }

    /// Whether the operation has ended, successfully or not.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Queued { shared, ticket, .. } => shared.is_done(*ticket),
            State::Ended(_) => true,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match &self.state {
            State::Queued { shared, ticket, flight } => shared.wait(*ticket, *flight),
            State::Ended(_) => {}
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let operation = match &self.state {
            State::Queued { ticket, .. } => *ticket,
            State::Ended(_) => 0,
        };
        f.debug_struct("Handle").field("operation", &operation).field("done", &self.is_done()).finish()
    }
}
