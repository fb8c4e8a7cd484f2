//! What can be wrong with MPI.

use std::ffi::OsStr;
use std::path::PathBuf;

use thiserror::Error;

use super::family::{GIVEN, MpiFamily};

/// Why MPI cannot carry messages.
#[derive(Error, Debug)]
pub(crate) enum MpiError {
    #[error(
        "{family} is missing: there is no {file} in {GIVEN}, LD_LIBRARY_PATH or the system's folders; {} {family}, or load \
         the cluster's module", family.remedy()
    )]
    Missing { family: MpiFamily, file: String },
    #[error("{family} cannot be loaded: {why}")]
    Unusable { family: MpiFamily, why: String },
    #[error("{GIVEN} is {0:?}, which is not an absolute path: give that of the library's file")]
    Given(Box<OsStr>),
    #[error("{} calls itself {version:?}, which is not {family}: let {GIVEN} name the library of the mpirun in use", path.display())]
    Unknown { path: PathBuf, family: MpiFamily, version: String },
    #[error("{} has no {name}, which every {family} of a known version has: is the file whole?", path.display())]
    Symbol { path: PathBuf, family: MpiFamily, name: &'static str },
    #[error("{function} of {library} failed: {why}")]
    Call { library: String, function: &'static str, why: String },
    #[error(
        "{library} lets only one thread of a process call it (MPI_THREAD_SERIALIZED is needed): use another build of it"
    )]
    OneThread { library: String },
    #[error("cannot start a thread for MPI: {0}; is a limit reached (ulimit -u)?")]
    Thread(std::io::Error),
    #[error("MPI has ended in this process, and can start only once")]
    Over,
    #[error("the ranks have formed more than 32767 groups: form fewer")]
    Tags,
}
