//! A communicator: the ranks of a group, as NCCL knows them.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use enmasse_comm::{Cause, CauseKind, Group};
use enmasse_device::DeviceError;
use enmasse_tensor::DType;

use super::sys::{BFLOAT16, Config, FLOAT32, Functions, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SUM, UniqueId};
use super::{MAX_BLOCKS, Nccl};
use crate::CudaError;
use crate::driver::{Buffer, Context, Stream};

/// How often the guard looks. An abort is that much late at most.
const GUARD: Duration = Duration::from_millis(20);
/// How often a thread that waits for NCCL's own threads looks.
const POLL: Duration = Duration::from_millis(1);
/// After NCCL has lost another rank, the group has this long to find out by itself what became of it.
const GRACE: Duration = Duration::from_millis(500);
/// How long the other ranks may take to end a communicator that has nothing left to do.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long what comes before an abort may take. The GPU may be unable to do it: until the abort it can be full of work that waits
/// for other ranks.
const PREPARATION: Duration = Duration::from_secs(1);
/// How long a communicator may take to end. NCCL may stay in an abort for ever, and its thread is left behind then.
const END: Duration = Duration::from_secs(10);

/// An operation of all ranks on memory of their GPUs. Counts are of f32, but in one case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// The sum over all ranks of f32 or bf16, in place.
    AllReduce { at: u64, count: usize, dtype: DType },
    /// The sum over all ranks, in place of the numbers of rank 0.
    Reduce { at: u64, count: usize },
    /// The numbers of rank 0, in place of those of all others.
    Broadcast { at: u64, count: usize },
    /// The numbers of each rank, `count` of them, in the order of ranks. `from` may be this rank's part of `to`.
    AllGather { from: u64, to: u64, count: usize },
}

impl Operation {
    fn name(&self) -> &'static str {
        match self {
            Operation::AllReduce { .. } => "ncclAllReduce",
            Operation::Reduce { .. } => "ncclReduce",
            Operation::Broadcast { .. } => "ncclBroadcast",
            Operation::AllGather { .. } => "ncclAllGather",
        }
    }
}

/// All ranks of a group, each with a GPU of its own. Its operations are work of streams.
///
/// NCCL waits for graphs that have its operations before it ends, so graphs are dropped before it.
pub(crate) struct Communicator {
    shared: Arc<Shared>,
    guard: Option<JoinHandle<()>>,
    /// Closes when the guard has ended.
    over: Mutex<Receiver<()>>,
}

struct Shared {
    nccl: Arc<Nccl>,
    context: Arc<Context>,
    group: Group,
    /// `None` once it has been aborted or destroyed.
    raw: Mutex<Option<Raw>>,
    /// The handles of registered memory.
    registered: Mutex<Vec<Raw>>,
    /// Whether the guard may end.
    ended: Mutex<bool>,
    bell: Condvar,
    /// Whether the abort came before what should have preceded it.
    unready: AtomicBool,
    /// Whether nobody waits for the guard any more.
    left: AtomicBool,
}

/// A handle of NCCL's.
#[derive(Clone, Copy)]
struct Raw(*mut c_void);

// SAFETY: NCCL's communicators and registrations may be used by any thread, by one at a time.
unsafe impl Send for Raw {}

impl Communicator {
    /// Joins the other ranks. Before NCCL is aborted because the group has failed, `is_ready` is called until it is true, but for
    /// [`PREPARATION`] at most: what waits for NCCL in a stream then goes on with undefined numbers.
    pub fn new(
        nccl: &Arc<Nccl>,
        context: &Arc<Context>,
        group: &Group,
        is_ready: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self, DeviceError> {
        let id = identifier(nccl, group)?;
        let watch = group.watch("ncclCommInitRankConfig", 0)?;
        context.enter()?;
        let mut raw = null_mut();
        let (ranks, rank) = (group.world_size() as c_int, group.rank() as c_int);
        // SAFETY: the places are valid, and NCCL copies the configuration.
        let result = unsafe {
            (nccl.functions.ncclCommInitRankConfig)(
                &mut raw,
                ranks,
                id,
                rank,
                &mut Config::non_blocking(MAX_BLOCKS as c_int),
            )
        };
        if !matches!(result, SUCCESS | IN_PROGRESS) {
            return Err(fail(group, &nccl.error("ncclCommInitRankConfig", result, null_mut())));
        }
        let shared = Arc::new(Shared {
            nccl: nccl.clone(),
            context: context.clone(),
            group: group.clone(),
            raw: Mutex::new(Some(Raw(raw))),
            registered: Mutex::default(),
            ended: Mutex::new(false),
            bell: Condvar::new(),
            unready: AtomicBool::new(false),
            left: AtomicBool::new(false),
        });
        let of_guard = shared.clone();
        let (closes, over) = channel();
        let guard = thread::Builder::new().name("nccl".into()).spawn(move || {
            of_guard.guard(is_ready);
            of_guard.end();
            drop(closes);
        });
        let guard = guard.map_err(|error| {
            shared.abort();
            DeviceError::Unsupported(format!("cannot start the thread that watches NCCL: {error}"))
        })?;
        let communicator = Communicator { shared, guard: Some(guard), over: Mutex::new(over) };
        communicator.shared.settle("ncclCommInitRankConfig")?;
        watch.done()?;
        Ok(communicator)
    }

    /// Lets operations work in this memory without copies. Every rank registers its own, at the same point, from
    /// [`Nccl::allocate`]. The memory outlives the communicator.
    pub fn register(&self, buffer: &Buffer) -> Result<(), DeviceError> {
        if buffer.bytes() == 0 {
            return Ok(());
        }
        let mut handle = null_mut();
        self.shared.call("ncclCommRegister", |functions, raw| {
            // SAFETY: the communicator lives, and the range is that of the buffer.
            unsafe { (functions.ncclCommRegister)(raw, buffer.address() as *mut c_void, buffer.bytes(), &mut handle) }
        })?;
        lock(&self.shared.registered).push(Raw(handle));
        Ok(())
    }

    /// Whether NCCL was aborted before what should have preceded it.
    pub fn is_aborted_unready(&self) -> bool {
        self.shared.unready.load(Ordering::SeqCst)
    }

    /// Puts an operation into a stream.
    ///
    /// # Safety
    /// The memory is this GPU's, and valid until the stream has run this.
    pub unsafe fn run(&self, operation: &Operation, stream: &Stream) -> Result<(), DeviceError> {
        let stream = stream.raw();
        self.shared.call(operation.name(), |functions, raw| {
            // SAFETY: the caller's promise.
            unsafe {
                match *operation {
                    Operation::AllReduce { at, count, dtype } => {
                        let number = if dtype == DType::Bf16 { BFLOAT16 } else { FLOAT32 };
                        (functions.ncclAllReduce)(at as *const _, at as *mut _, count, number, SUM, raw, stream)
                    }
                    Operation::Reduce { at, count } => {
                        (functions.ncclReduce)(at as *const _, at as *mut _, count, FLOAT32, SUM, 0, raw, stream)
                    }
                    Operation::Broadcast { at, count } => {
                        (functions.ncclBroadcast)(at as *const _, at as *mut _, count, FLOAT32, 0, raw, stream)
                    }
                    Operation::AllGather { from, to, count } => {
                        (functions.ncclAllGather)(from as *const _, to as *mut _, count, FLOAT32, raw, stream)
                    }
                }
            }
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        *lock(&self.shared.ended) = true;
        self.shared.bell.notify_all();
        let Some(guard) = self.guard.take() else { return };
        if lock(&self.over).recv_timeout(END) == Err(RecvTimeoutError::Timeout) {
            self.shared.left.store(true, Ordering::SeqCst);
            return;
        }
        // A panic there has been printed.
        let _ = guard.join();
    }
}

impl Shared {
    /// Calls NCCL, and waits for its threads, which may first connect ranks.
    fn call(&self, name: &'static str, call: impl FnOnce(&Functions, *mut c_void) -> c_int) -> Result<(), DeviceError> {
        self.context.enter()?;
        let result = {
            let raw = lock(&self.raw);
            let Some(Raw(raw)) = *raw else { return Err(self.lost()) };
            call(&self.nccl.functions, raw)
        };
        match result {
            SUCCESS => Ok(()),
            IN_PROGRESS => self.settle(name),
            result => Err(fail(&self.group, &self.error(name, result))),
        }
    }

    /// Waits until NCCL's threads have ended a call. The caller watches it.
    fn settle(&self, name: &'static str) -> Result<(), DeviceError> {
        loop {
            self.group.check()?;
            match self.state() {
                None => return Err(self.lost()),
                Some(SUCCESS) => return Ok(()),
                Some(IN_PROGRESS) => thread::sleep(POLL),
                // The guard takes care of it.
                Some(REMOTE_ERROR) => thread::sleep(GUARD),
                Some(result) => return Err(fail(&self.group, &self.error(name, result))),
            }
        }
    }

    /// NCCL's state; `None` after an abort.
    fn state(&self) -> Option<c_int> {
        let raw = lock(&self.raw);
        let Raw(raw) = (*raw)?;
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and the place is valid.
        match unsafe { (self.nccl.functions.ncclCommGetAsyncError)(raw, &mut state) } {
            SUCCESS => Some(state),
            result => Some(result),
        }
    }

    fn error(&self, name: &'static str, result: c_int) -> CudaError {
        let raw = lock(&self.raw);
        self.nccl.error(name, result, raw.map_or(null_mut(), |Raw(raw)| raw))
    }

    /// Why there is no communicator any more.
    fn lost(&self) -> DeviceError {
        match self.group.check() {
            Err(cause) => cause.into(),
            Ok(()) => DeviceError::Unsupported("NCCL's communicator has ended".into()),
        }
    }

    /// Makes NCCL's later errors causes of the group, and aborts NCCL once the group has failed.
    fn guard(&self, is_ready: impl FnMut() -> bool) {
        while !self.is_ended_after(GUARD) {
            if self.group.check().is_err() {
                break;
            }
            match self.state() {
                Some(SUCCESS | IN_PROGRESS) => {}
                Some(result) => {
                    if result == REMOTE_ERROR && self.finds_out() {
                        break;
                    }
                    drop(fail(&self.group, &self.error("ncclCommGetAsyncError", result)));
                    break;
                }
                None => return,
            }
        }
        if self.group.check().is_err() {
            self.prepare(is_ready);
            self.abort();
        }
    }

    /// Waits for what comes before an abort, but not for long. The driver has no wait with a deadline.
    fn prepare(&self, mut is_ready: impl FnMut() -> bool) {
        let start = Instant::now();
        while !self.left.load(Ordering::SeqCst) && !is_ready() {
            if start.elapsed() >= PREPARATION {
                self.unready.store(true, Ordering::SeqCst);
                return;
            }
            thread::sleep(POLL);
        }
    }

    /// Whether the group fails by itself, and so knows more than NCCL.
    fn finds_out(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < GRACE {
            if self.group.check().is_err() || self.is_ended_after(POLL) {
                return true;
            }
        }
        false
    }

    fn is_ended_after(&self, pause: Duration) -> bool {
        let ended = lock(&self.ended);
        let (ended, _) =
            self.bell.wait_timeout_while(ended, pause, |ended| !*ended).unwrap_or_else(PoisonError::into_inner);
        *ended
    }

    /// Ends the communicator now. What waits for it in streams goes on.
    fn abort(&self) {
        // The lock is free while NCCL waits for graphs, which the program's thread drops.
        let Some(Raw(raw)) = lock(&self.raw).take() else { return };
        if self.context.enter().is_ok() {
            // SAFETY: nobody else has the handle any more. An error has nobody to go to.
            let _ = unsafe { (self.nccl.functions.ncclCommAbort)(raw) };
        }
    }

    /// Ends the communicator together with the other ranks, unless the group has failed or they do not come.
    fn end(&self) {
        let Some(Raw(raw)) = *lock(&self.raw) else { return };
        for Raw(handle) in lock(&self.registered).drain(..) {
            // SAFETY: the communicator lives, no operation is left, and each handle is given back once. An error has nobody to go to.
            let _ = unsafe { (self.nccl.functions.ncclCommDeregister)(raw, handle) };
        }
        // SAFETY: the communicator lives, and this is its last call but for those that end it.
        let finalize = || unsafe { (self.nccl.functions.ncclCommFinalize)(raw) };
        if self.group.check().is_err() || self.context.enter().is_err() || !matches!(finalize(), SUCCESS | IN_PROGRESS)
        {
            return self.abort();
        }
        let start = Instant::now();
        while self.state() == Some(IN_PROGRESS) && self.group.check().is_ok() && start.elapsed() < FAREWELL {
            thread::sleep(POLL);
        }
        if self.state() != Some(SUCCESS) {
            return self.abort();
        }
        lock(&self.raw).take();
        // SAFETY: it is destroyed once, after it was finalized. An error has nobody to go to.
        let _ = unsafe { (self.nccl.functions.ncclCommDestroy)(raw) };
    }
}

/// The identifier that rank 0 makes, on every rank.
pub(super) fn identifier(nccl: &Nccl, group: &Group) -> Result<UniqueId, DeviceError> {
    let mut id = UniqueId([0; 128]);
    if group.is_main() {
        id = nccl.unique_id().map_err(|error| fail(group, &error))?;
    }
    group.broadcast(&mut id.0, 0)?;
    Ok(id)
}

/// Ends the group because of an error, and returns what all ranks report.
fn fail(group: &Group, error: &CudaError) -> DeviceError {
    let cause: Cause = group.own_cause(CauseKind::Error, error.to_string());
    group.abort(cause.clone());
    group.cause().unwrap_or_else(|| cause.into()).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
