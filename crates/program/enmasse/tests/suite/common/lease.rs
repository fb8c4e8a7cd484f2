//! A file that cannot be opened for a while, as if its disk did not answer.

use std::ffi::c_int;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A lease on a file: a program that opens the file waits until the lease is dropped, or for the seconds in
/// `/proc/sys/fs/lease-break-time`, which are 45 if nobody has changed them.
pub struct Lease(File);

impl Lease {
    const F_SETSIG: c_int = 10;
    const F_SETLEASE: c_int = 1024;
    const F_GETLEASE: c_int = 1025;
    const F_WRLCK: c_int = 1;
    /// A signal that a process ignores unless it asks for it. The kernel tells the holder of a reader by it.
    const SIGURG: c_int = 23;

    /// Puts a leased file with the same content in the place of a file that others may have open.
    pub fn replace(path: &Path) -> Self {
        let leased = path.with_extension("leased");
        fs::copy(path, &leased).unwrap();
        let lease = Lease(File::options().read(true).write(true).open(&leased).unwrap());
        lease.control(Self::F_SETSIG, Self::SIGURG);
        lease.control(Self::F_SETLEASE, Self::F_WRLCK);
        fs::rename(&leased, path).unwrap();
        lease
    }

    /// Whether somebody waits to open the file.
    pub fn is_awaited(&self) -> bool {
        self.control(Self::F_GETLEASE, 0) != Self::F_WRLCK
    }

    fn control(&self, command: c_int, argument: c_int) -> c_int {
        unsafe extern "C" {
            /// POSIX; the commands are those of Linux.
            fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
        }
        // SAFETY: the descriptor is open, and the commands take an integer or nothing.
        let result = unsafe { fcntl(self.0.as_raw_fd(), command, argument) };
        assert!(result >= 0, "fcntl {command}: {}", io::Error::last_os_error());
        result
    }
}
