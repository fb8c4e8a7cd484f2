//! Convolutions by cuDNN 9's backend API: operation graphs in NHWC with filters in KRSC, planned for the GPU of a handle, or
//! for a GPU that is only described.
//!
//! [`Cudnn::plans`] asks cuDNN's heuristics for engines, leaves out those whose arithmetic was not asked for, and returns those
//! that cuDNN finalizes. An engine's name makes its plan again ([`Cudnn::plan`]), so that choices can be printed and stored.

mod descriptor;
mod engine;
mod graph;
mod plan;
mod problem;
mod sys;

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use crate::error::CudaError;
use crate::libraries::{Libraries, Library, Version};

pub use crate::operands::Operands;
pub use engine::Engine;
pub use plan::{ConvolutionPlan, Options};
pub use problem::{Direction, Epilogue, Problem};

use descriptor::Descriptor;
use sys::{Attribute, Functions, Kind};

/// The first version whose backend API has every attribute that convolutions use.
const OLDEST: Version = Version([9, 0, 0]);

/// The first version that plans for a described device.
const DESCRIBES: Version = Version([9, 8, 0]);

/// cuDNN's number of its first version with two digits for the minor version: before it, 8907 was 8.9.7.
const FIVE_DIGITS: usize = 90_000;

/// The major version of CUDA: 12090 is 12.9.
fn cuda_major(runtime: usize) -> u32 {
    u32::try_from(runtime / 1000).unwrap_or(u32::MAX)
}

/// Why a version of cuDNN, with the CUDA that it is built for, cannot be used under a driver that supports CUDA up to
/// `newest`.
fn unusable(version: Version, runtime: usize, newest: u32) -> Option<String> {
    let major = cuda_major(runtime);
    if version < OLDEST {
        return Some(format!("which is older than {OLDEST}"));
    }
    (major > newest).then(|| format!("built for CUDA {major}, but the driver supports CUDA {newest} at most"))
}

/// cuDNN, loaded.
#[derive(Clone, Debug)]
pub struct Cudnn {
    functions: Arc<Functions>,
    version: Version,
}

impl Cudnn {
    /// Loads cuDNN, for a driver that supports CUDA up to this major version. The libraries that cuDNN loads by name when it
    /// first needs them, NVRTC and cuBLASLt, are loaded here where they are found, since cuDNN knows fewer places.
    ///
    /// # Errors
    /// cuDNN is missing, too old, or built for a later CUDA than the driver's.
    pub fn load(libraries: &Libraries, newest: u32) -> Result<Self, CudaError> {
        let loaded = libraries.load(Library::Cudnn)?;
        loaded.load_part("libcudnn_graph.so.9")?;
        let functions = Functions::load(loaded)?;
        // SAFETY: neither has a precondition.
        let (version, runtime) = unsafe { ((functions.cudnnGetVersion)(), (functions.cudnnGetCudartVersion)()) };
        let version = Version::new(version, FIVE_DIGITS);
        if let Some(why) = unusable(version, runtime, newest) {
            let (library, path) = (Library::Cudnn, functions.path);
            return Err(CudaError::Version { library, path, version: version.to_string(), why });
        }
        let major = cuda_major(runtime);
        for library in [Library::CublasLt { newest: major }, Library::Nvrtc { major }] {
            // Some engines do without them: a lack shows where an engine is refused.
            if let Ok(loaded) = libraries.load(library) {
                loaded.keep();
            }
        }
        Ok(Cudnn { functions: Arc::new(functions), version })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// A handle for the current context, whose GPU and driver must be there.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn handle(&self) -> Result<Handle, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the address.
        unsafe { self.functions.cudnnCreate(&mut raw) }?;
        Ok(Handle { functions: self.functions.clone(), raw })
    }

    /// A GPU by its properties, as a JSON text in cuDNN's own form.
    ///
    /// # Errors
    /// cuDNN is older than 9.8, or misses a property.
    pub fn device(&self, json: &str) -> Result<Device, CudaError> {
        if self.version < DESCRIBES {
            let why = format!("which is older than {DESCRIBES}, the first that plans for a described GPU");
            let library = Library::Cudnn;
            let path = self.functions.path.clone();
            return Err(CudaError::Version { library, path, version: self.version.to_string(), why });
        }
        let descriptor = Descriptor::new(&self.functions, Kind::DeviceProperties)?;
        let descriptor = descriptor.set(Attribute::DeviceJson, json.as_bytes())?.finalize()?;
        Ok(Device { descriptor })
    }
}

/// A handle: cuDNN on one GPU, with the stream that it submits to.
#[derive(Debug)]
pub struct Handle {
    functions: Arc<Functions>,
    raw: *mut c_void,
}

// SAFETY: a handle may be used from any thread, one at a time.
unsafe impl Send for Handle {}

impl Handle {
    fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Submits to this stream (a `CUstream`) from now on.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// The stream belongs to the handle's context, and lives as long as the handle or until another is set.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<(), CudaError> {
        // SAFETY: as the caller promises.
        unsafe { self.functions.cudnnSetStream(self.raw, stream) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and nothing uses it any more.
        unsafe { (self.functions.cudnnDestroy)(self.raw) };
    }
}

/// A GPU that need not be there.
#[derive(Debug)]
pub struct Device {
    descriptor: Descriptor,
}

/// What a plan is made for.
#[derive(Debug)]
pub enum Target<'a> {
    /// The GPU of a handle. Such a plan can be run.
    Handle(&'a Handle),
    /// A described GPU. Such a plan says that there is one.
    Device(&'a Device),
}

#[cfg(test)]
mod tests;
