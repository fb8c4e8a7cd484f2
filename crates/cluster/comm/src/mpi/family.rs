//! The families of MPI libraries that a program can use as they are, and how a user names the file of one.

use std::fmt;

/// The variable that names the library's file, if the system's loader does not find it or finds another.
pub(crate) const GIVEN: &str = "ENMASSE_MPI_LIBRARY";

/// Libraries whose programs may be exchanged without compiling them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpiFamily {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH, and what has its ABI: Intel MPI, MVAPICH.
    Mpich,
}

impl MpiFamily {
    /// The names of the library's file, the best first.
    pub(super) fn files(self) -> &'static [&'static str] {
        match self {
            MpiFamily::OpenMpi => &["libmpi.so.40"],
            // That of the common ABI, and Debian's.
            MpiFamily::Mpich => &["libmpi.so.12", "libmpich.so.12"],
        }
    }

    /// Which package brings it, as a request that ends before its object.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            MpiFamily::OpenMpi => "Debian's openmpi-bin and most clusters' module openmpi bring it: install",
            MpiFamily::Mpich => "Debian's mpich and most clusters' modules mpich or intel-mpi bring it: install",
        }
    }
}

impl fmt::Display for MpiFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MpiFamily::OpenMpi => "Open MPI",
            MpiFamily::Mpich => "MPICH",
        })
    }
}
