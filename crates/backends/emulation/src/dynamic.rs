//! Shared objects at run time, by the C library's own functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// All symbols are found when it is opened, and none of them by others.
const RTLD_NOW: c_int = 2;

/// A shared object, which stays open.
pub(crate) struct Object(*mut c_void);

// SAFETY: the handle is only used to look up names, which the C library does under a lock.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Opens a shared object that this crate has built.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub(crate) fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path without zeros");
        // SAFETY: the path is a C string; the object has no initialisers that could do harm.
        let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: dlopen has failed, so there is a message of this thread.
            let message = unsafe { CStr::from_ptr(dlerror()) };
            panic!("{}", message.to_string_lossy());
        }
        Object(handle)
    }

    /// The address of a symbol, if there is one.
    pub(crate) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: an open handle and a C string.
        let address = unsafe { dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}
