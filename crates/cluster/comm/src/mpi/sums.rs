//! The sums and barriers of an MPI library itself, to compare ours with. Groups do not use them.

use std::io;
use std::sync::Arc;

use super::{MpiFamily, Runtime, load};
use crate::error::JoinError;

/// A process that mpirun has started, in MPI. Its calls block for as long as the library likes.
///
/// It is for programs that measure: MPI can start once in a process, so there is no group with messages by MPI beside it.
pub struct MpiSums {
    runtime: Arc<dyn Runtime>,
    rank: usize,
    ranks: usize,
}

impl MpiSums {
    /// Loads the library of a family, and joins the other processes.
    ///
    /// # Errors
    /// There is no such library, or it does not start.
    pub fn start(family: MpiFamily) -> Result<Self, JoinError> {
        let runtime = load(family)?;
        let (rank, ranks) = runtime.start()?;
        Ok(MpiSums { runtime, rank, ranks })
    }

    /// The library's name and version.
    pub fn library(&self) -> &str {
        self.runtime.name()
    }

    /// This process's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// `MPI_Allreduce` of the sum, in place.
    ///
    /// # Errors
    /// The library's own.
    pub fn all_reduce(&self, data: &mut [f32]) -> io::Result<()> {
        self.runtime.all_reduce(data)
    }

    /// `MPI_Barrier`.
    ///
    /// # Errors
    /// The library's own.
    pub fn barrier(&self) -> io::Result<()> {
        self.runtime.barrier()
    }
}

impl Drop for MpiSums {
    fn drop(&mut self) {
        self.runtime.end();
    }
}
