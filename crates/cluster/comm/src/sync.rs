//! How threads and ranks of one machine meet: atomics, locks, the kernel's futex, and memory that one writes and another
//! reads.
//!
//! Ordinarily these are the standard library's and the kernel's, and the account of who uses shared memory compiles to nothing.
//! In tests with `--cfg loom` they are loom's. Its checker then runs the transport's own code
//! ([`crate::transport::shared`] has the models). Other tests do not work in that build.

#[cfg(all(loom, test))]
mod model;
#[cfg(not(all(loom, test)))]
mod native;

#[cfg(all(loom, test))]
pub(crate) use model::{Accesses, AtomicBool, AtomicU32, AtomicU64, Words, futex, locks};
#[cfg(not(all(loom, test)))]
pub(crate) use native::{Accesses, AtomicBool, AtomicU32, AtomicU64, Words, futex, locks};

/// Whether this build is for models, whose messages are short and whose time stands still.
pub(crate) const IS_MODEL: bool = cfg!(all(loom, test));
