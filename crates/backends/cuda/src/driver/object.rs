//! Objects that the driver creates in a context, each destroyed by its owner.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::{Context, Functions};
use crate::CudaError;

/// An object of the driver, which is destroyed with this.
pub(super) struct Object {
    pub context: Arc<Context>,
    pub raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the driver's objects may be used by any thread.
unsafe impl Send for Object {}

impl Object {
    /// What `create` writes to the place that it gets.
    pub fn new(
        context: &Arc<Context>,
        destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
        create: impl FnOnce(&Functions, &mut *mut c_void) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let mut raw = null_mut();
        create(context.enter()?, &mut raw)?;
        Ok(Object { context: context.clone(), raw, destroy })
    }

    /// The driver's functions, in the object's context.
    pub fn enter(&self) -> Result<&Functions, CudaError> {
        self.context.enter()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is destroyed once; the driver lets its work end. An error has nobody to go to.
            let _ = unsafe { (self.destroy)(self.raw) };
        }
    }
}
