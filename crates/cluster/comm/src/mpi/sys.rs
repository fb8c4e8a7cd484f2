//! MPI's functions and constants, as the `mpi.h` of Open MPI and that of MPICH's family declare them.
//!
//! The families differ in what an object is: a pointer in Open MPI, a number in MPICH's. [`Handle`] is either.

use std::ffi::{c_char, c_int, c_void};

use super::error::MpiError;
use super::library::Loaded;

/// Declares a struct with a field for each function, and `load`, which looks all of them up. The declarations are the
/// promise: each must match the library's header.
macro_rules! functions {
    ($(#[$attribute:meta])* struct $Table:ident<$H:ident> {
        $(fn $function:ident($($argument:ident: $Argument:ty),* $(,)?) -> c_int;)*
    }) => {
        $(#[$attribute])*
        #[allow(non_snake_case)]
        pub(super) struct $Table<$H> {
            $(pub $function: unsafe extern "C" fn($($argument: $Argument),*) -> c_int,)*
        }

        impl<$H: Handle> $Table<$H> {
            /// Looks all functions up, in a library of the family with such handles.
            pub fn load(library: &Loaded) -> Result<Self, MpiError> {
                Ok($Table {
                    $(
                        $function: {
                            let address = library.address(stringify!($function))?;
                            // SAFETY: the function is declared as in the library's header, and stays loaded.
                            unsafe {
                                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument: $Argument),*) -> c_int>(
                                    address,
                                )
                            }
                        },
                    )*
                })
            }
        }
    };
}

functions! {
    /// What is called of MPI.
    struct Functions<H> {
        fn MPI_Init_thread(count: *mut c_int, words: *mut *mut *mut c_char, wanted: c_int, provided: *mut c_int) -> c_int;
        fn MPI_Finalize() -> c_int;
        fn MPI_Comm_rank(communicator: H, rank: *mut c_int) -> c_int;
        fn MPI_Comm_size(communicator: H, size: *mut c_int) -> c_int;
        fn MPI_Comm_set_errhandler(communicator: H, handler: H) -> c_int;
        fn MPI_Error_string(code: c_int, text: *mut c_char, length: *mut c_int) -> c_int;
        fn MPI_Isend(
            from: *const c_void,
            count: c_int,
            datatype: H,
            rank: c_int,
            tag: c_int,
            communicator: H,
            request: *mut H,
        ) -> c_int;
        fn MPI_Irecv(
            to: *mut c_void,
            count: c_int,
            datatype: H,
            rank: c_int,
            tag: c_int,
            communicator: H,
            request: *mut H,
        ) -> c_int;
        fn MPI_Allreduce(
            from: *const c_void,
            to: *mut c_void,
            count: c_int,
            datatype: H,
            operation: H,
            communicator: H,
        ) -> c_int;
        fn MPI_Barrier(communicator: H) -> c_int;
        fn MPI_Test(request: *mut H, done: *mut c_int, status: *mut Status) -> c_int;
        fn MPI_Get_count(status: *const Status, datatype: H, count: *mut c_int) -> c_int;
    }
}

/// `MPI_SUCCESS`.
pub(super) const SUCCESS: c_int = 0;
/// `MPI_THREAD_SERIALIZED`.
pub(super) const THREAD_SERIALIZED: c_int = 2;
/// `MPI_MAX_ERROR_STRING`, of MPICH; Open MPI's is smaller.
pub(super) const MAX_ERROR: usize = 512;
/// The least that `MPI_TAG_UB` may be.
pub(super) const MAX_TAG: c_int = 32767;

/// An object of MPI.
pub(super) trait Handle: Copy + Send + Sync + 'static {
    /// The predefined objects.
    fn objects(library: &Loaded) -> Result<Objects<Self>, MpiError>;
}

/// Predefined objects.
pub(super) struct Objects<H> {
    /// `MPI_COMM_WORLD`
    pub world: H,
    /// `MPI_BYTE`
    pub byte: H,
    /// `MPI_FLOAT`
    pub float: H,
    /// `MPI_SUM`
    pub sum: H,
    /// `MPI_IN_PLACE`, which is an address.
    pub in_place: isize,
    /// `MPI_REQUEST_NULL`
    pub no_request: H,
    /// `MPI_ERRORS_RETURN`
    pub errors_return: H,
}

/// Room for an `MPI_Status`, which has 24 bytes in Open MPI, and 20 in MPICH.
#[derive(Default)]
#[repr(C)]
pub(super) struct Status([u64; 4]);

/// Open MPI's handles.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pointer(*mut c_void);

// SAFETY: MPI's objects may be used by any thread, by one at a time, which `Mpi` ensures.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Handle for Pointer {
    fn objects(library: &Loaded) -> Result<Objects<Self>, MpiError> {
        let object = |name| library.address(name).map(Pointer);
        Ok(Objects {
            world: object("ompi_mpi_comm_world")?,
            byte: object("ompi_mpi_byte")?,
            float: object("ompi_mpi_float")?,
            sum: object("ompi_mpi_op_sum")?,
            in_place: 1,
            no_request: object("ompi_request_null")?,
            errors_return: object("ompi_mpi_errors_return")?,
        })
    }
}

/// The handles of MPICH's family.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Number(c_int);

impl Handle for Number {
    fn objects(_: &Loaded) -> Result<Objects<Self>, MpiError> {
        Ok(Objects {
            world: Number(0x4400_0000),
            byte: Number(0x4c00_010d),
            float: Number(0x4c00_040a),
            sum: Number(0x5800_0003),
            in_place: -1,
            no_request: Number(0x2c00_0000),
            errors_return: Number(0x5400_0001),
        })
    }
}
