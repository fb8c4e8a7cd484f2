//! A library of MPI, found at run time, and what is called of it: messages that never block, and
//! the process's start and end in MPI, which do.
//!
//! MPI takes the place of TCP between nodes (`hierarchical::Links`). It carries messages by
//! `MPI_Isend` and `MPI_Irecv`, and adds nothing up: sums keep their order, which MPI's own
//! reductions do not have, and late ranks are known. The rendezvous, heartbeats and causes are
//! those of every group.
//!
//! A message costs MPI several exchanges, so rounds take longer than over TCP, and chunks and the
//! sums that go directly are larger (`hierarchical::SegmentSizes`).
//!
//! MPI starts and ends once in a process. Both happen on a thread of its own ([`process`]), so that
//! a rank that waits for others there still hears of a failure.

mod error;
mod family;
mod library;
mod messages;
mod process;
mod sums;
mod sys;

use std::ffi::{c_char, c_int};
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use crate::locks::lock;
use crate::transport::hierarchical::Links;
pub(crate) use error::MpiError;
pub use family::MpiFamily;
use library::Loaded;
pub(crate) use library::hangs_between_hosts;
use messages::Messages;
pub(crate) use process::Process;
pub use sums::MpiSums;
use sys::{Functions, Handle, MAX_ERROR, Number, Objects, Pointer, SUCCESS, Status, THREAD_SERIALIZED};

/// A library, whatever its handles are.
pub(crate) trait Runtime: Send + Sync {
    /// Its name and version.
    fn name(&self) -> &str;

    /// Joins the other processes of the job; returns this process's number and the number of processes. Blocks.
    fn start(&self) -> Result<(usize, usize), MpiError>;

    /// Leaves them. Blocks.
    fn end(&self);

    /// The library's own sum over all processes, in place. Blocks.
    fn all_reduce(&self, data: &mut [f32]) -> io::Result<()>;

    /// The library's own barrier of all processes. Blocks.
    fn barrier(&self) -> io::Result<()>;

    /// Links to the processes with these numbers, by messages with a tag of their own.
    fn links(self: Arc<Self>, peers: Vec<usize>, tag: i32) -> io::Result<Box<dyn Links>>;
}

/// Loads the library of a family, and calls nothing that would start it.
pub(super) fn load(family: MpiFamily) -> Result<Arc<dyn Runtime>, MpiError> {
    let loaded = Loaded::find(family)?;
    Ok(match family {
        MpiFamily::OpenMpi => Arc::new(Mpi::<Pointer>::new(loaded)?),
        MpiFamily::Mpich => Arc::new(Mpi::<Number>::new(loaded)?),
    })
}

/// A loaded library with handles of one kind.
struct Mpi<H> {
    functions: Functions<H>,
    objects: Objects<H>,
    name: String,
    /// Held in every call: the library takes one at a time.
    calls: Mutex<()>,
}

impl<H: Handle> Mpi<H> {
    fn new(loaded: Loaded) -> Result<Self, MpiError> {
        let (functions, objects) = (Functions::load(&loaded)?, H::objects(&loaded)?);
        Ok(Mpi { functions, objects, name: loaded.keep(), calls: Mutex::new(()) })
    }

    /// Starts to send bytes to a process.
    ///
    /// # Safety
    /// They stay valid and unchanged until the request is done, or until no call is made any more.
    unsafe fn send(&self, from: *const u8, len: usize, to: c_int, tag: c_int) -> io::Result<H> {
        let count = count(len)?;
        let mut request = self.objects.no_request;
        let _call = lock(&self.calls);
        // SAFETY: the caller's promise; the place of the request is valid.
        let code = unsafe {
            (self.functions.MPI_Isend)(from.cast(), count, self.objects.byte, to, tag, self.objects.world, &mut request)
        };
        self.check("MPI_Isend", code).map(|()| request)
    }

    /// Starts to receive bytes from a process.
    ///
    /// # Safety
    /// They stay valid, and nothing else uses them, until the request is done. If it never is, that is for ever.
    unsafe fn receive(&self, to: *mut u8, len: usize, from: c_int, tag: c_int) -> io::Result<H> {
        let count = count(len)?;
        let mut request = self.objects.no_request;
        let _call = lock(&self.calls);
        // SAFETY: as above.
        let code = unsafe {
            (self.functions.MPI_Irecv)(to.cast(), count, self.objects.byte, from, tag, self.objects.world, &mut request)
        };
        self.check("MPI_Irecv", code).map(|()| request)
    }

    /// Lets all messages go on. The request's status if it is done; it is not used afterwards then.
    fn test(&self, request: &mut H) -> io::Result<Option<Status>> {
        let mut done = 0;
        let mut status = Status::default();
        let _call = lock(&self.calls);
        // SAFETY: the request is not done yet, and all places are valid.
        let code = unsafe { (self.functions.MPI_Test)(request, &mut done, &mut status) };
        self.check("MPI_Test", code).map(|()| (done != 0).then_some(status))
    }

    /// How many bytes were received.
    fn received(&self, status: &Status) -> io::Result<usize> {
        let mut count = 0;
        let _call = lock(&self.calls);
        // SAFETY: the status of a request that is done, and a valid place.
        let code = unsafe { (self.functions.MPI_Get_count)(status, self.objects.byte, &mut count) };
        self.check("MPI_Get_count", code)?;
        usize::try_from(count).map_err(io::Error::other)
    }

    /// The caller is in a call.
    fn check(&self, function: &'static str, code: c_int) -> io::Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(io::Error::other(self.error(function, code))) }
    }

    fn error(&self, function: &'static str, code: c_int) -> MpiError {
        let mut text = [0u8; MAX_ERROR];
        let mut length = 0;
        // SAFETY: there is room for the longest text.
        let _ = unsafe { (self.functions.MPI_Error_string)(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let why = String::from_utf8_lossy(&text[..end]).trim().to_owned();
        let why = if why.is_empty() { format!("error {code}") } else { why };
        MpiError::Call { library: self.name.clone(), function, why }
    }
}

/// The transport cuts what it sends into rounds, far below the limit.
fn count(len: usize) -> io::Result<c_int> {
    c_int::try_from(len).map_err(io::Error::other)
}

impl<H: Handle> Runtime for Mpi<H> {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self) -> Result<(usize, usize), MpiError> {
        let Functions { MPI_Init_thread, MPI_Comm_set_errhandler, MPI_Comm_rank, MPI_Comm_size, .. } = &self.functions;
        let (world, mut provided, mut rank, mut size) = (self.objects.world, 0, 0, 0);
        let check = |function, code| if code == SUCCESS { Ok(()) } else { Err(self.error(function, code)) };
        let _call = lock(&self.calls);
        // SAFETY: `Process` calls this once, and all places are valid.
        unsafe {
            let code = MPI_Init_thread(null_mut(), null_mut(), THREAD_SERIALIZED, &mut provided);
            check("MPI_Init_thread", code)?;
            if provided < THREAD_SERIALIZED {
                return Err(MpiError::OneThread { library: self.name.clone() });
            }
            check("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(world, self.objects.errors_return))?;
            check("MPI_Comm_rank", MPI_Comm_rank(world, &mut rank))?;
            check("MPI_Comm_size", MPI_Comm_size(world, &mut size))?;
        }
        // Neither is negative.
        Ok((rank.unsigned_abs() as usize, size.unsigned_abs() as usize))
    }

    fn end(&self) {
        let _call = lock(&self.calls);
        // SAFETY: `Process` calls this once, after the start, when no message is under way. An error has nobody to go to.
        let _ = unsafe { (self.functions.MPI_Finalize)() };
    }

    fn all_reduce(&self, data: &mut [f32]) -> io::Result<()> {
        let Objects { world, float, sum, in_place, .. } = &self.objects;
        let count = count(data.len())?;
        let in_place = std::ptr::without_provenance(in_place.cast_unsigned());
        let _call = lock(&self.calls);
        // SAFETY: the data are valid and this call's alone; the first address says that they are the operand, too.
        let code =
            unsafe { (self.functions.MPI_Allreduce)(in_place, data.as_mut_ptr().cast(), count, *float, *sum, *world) };
        self.check("MPI_Allreduce", code)
    }

    fn barrier(&self) -> io::Result<()> {
        let _call = lock(&self.calls);
        // SAFETY: MPI has started, and the communicator is that of all processes.
        let code = unsafe { (self.functions.MPI_Barrier)(self.objects.world) };
        self.check("MPI_Barrier", code)
    }

    fn links(self: Arc<Self>, peers: Vec<usize>, tag: i32) -> io::Result<Box<dyn Links>> {
        Ok(Box::new(Messages::new(self, peers, tag)?))
    }
}
