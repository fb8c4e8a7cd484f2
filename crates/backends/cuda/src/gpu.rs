//! A GPU, opened for programs: its context, our kernels, and the libraries with their handles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::CudaError;
use crate::cublas_lt::CublasLt;
use crate::cudnn::Cudnn;
use crate::driver::{Binary, Context, Found, Function, Functions, Module, Properties};
use crate::engines::{Engines, Matmuls};
use crate::kernels::binaries::{cubin, ptx};
use crate::libraries::{Libraries, Library};
use crate::management::Management;
use crate::nccl::Nccl;

/// The oldest driver: that of CUDA 12.0.
const OLDEST_DRIVER: i32 = 12_000;

/// The oldest compute capability: that of our kernels' PTX.
pub(crate) const OLDEST_CAPABILITY: [u32; 2] = [7, 5];

/// The libraries without which no GPU computes.
pub(crate) struct Loaded {
    pub driver: Arc<Functions>,
    pub cudnn: Cudnn,
    pub cublas_lt: CublasLt,
}

impl Loaded {
    /// Loads them. No GPU is opened.
    pub fn of(libraries: &Libraries) -> Result<Self, CudaError> {
        let driver = Arc::new(Functions::load(libraries.load(Library::Driver)?)?);
        let version = driver.version()?;
        if version < OLDEST_DRIVER {
            let path = driver.path.clone();
            let version = format!("{}.{}", version / 1000, version % 1000 / 10);
            let why = "and 12.0 is the oldest that works".to_owned();
            return Err(CudaError::Version { library: Library::Driver, path, version, why });
        }
        let newest = u32::try_from(version / 1000).unwrap_or(0);
        Ok(Loaded { driver, cudnn: Cudnn::load(libraries, newest)?, cublas_lt: CublasLt::load(libraries, newest)? })
    }
}

/// Refuses a GPU that our kernels cannot run on.
pub(crate) fn check_capability(gpu: &Properties) -> Result<(), CudaError> {
    if gpu.capability >= OLDEST_CAPABILITY {
        return Ok(());
    }
    let [[major, minor], [oldest, of]] = [gpu.capability, OLDEST_CAPABILITY];
    let name = &gpu.name;
    Err(CudaError::Unsupported(format!(
        "{name} (compute capability {major}.{minor}): {oldest}.{of} (Turing, 2018) is the oldest that works; use `devices = cpu:N`"
    )))
}

/// Our kernels from the cubin, if there is one and the driver takes it, else from PTX. With why it was refused.
fn load(context: &Arc<Context>, cubin: Option<Binary>) -> Result<(Arc<Module>, Option<CudaError>), CudaError> {
    let refused = match cubin.map(|cubin| Module::new(context, cubin)) {
        Some(Ok(module)) => return Ok((module, None)),
        Some(Err(error)) => Some(error),
        None => None,
    };
    Ok((Module::new(context, ptx())?, refused))
}

/// A GPU that programs compute on.
pub(crate) struct Gpu {
    pub context: Arc<Context>,
    pub engines: Engines,
    pub matmuls: Matmuls,
    pub management: Option<Management>,
    /// Who else computed on the GPU when it was opened, in words.
    pub others: Option<String>,
    /// Why the driver did not take the machine code of our kernels for this GPU, and compiled them from PTX.
    pub refused: Option<CudaError>,
    module: Arc<Module>,
    functions: Mutex<HashMap<String, Function>>,
    libraries: Libraries,
    nccl: OnceLock<Result<Arc<Nccl>, CudaError>>,
}

impl Gpu {
    /// Opens the GPU with this number. `exact` leaves out the algorithms of convolutions that round more than direct sums.
    pub fn open(libraries: &Libraries, ordinal: usize, exact: bool) -> Result<Arc<Self>, CudaError> {
        let Loaded { driver, cudnn, cublas_lt } = Loaded::of(libraries)?;
        let found = Found::look(driver, ordinal)?;
        check_capability(&found.properties)?;
        let management = Management::of(libraries, &found.properties);
        let others = management.as_ref().and_then(Management::others);
        let context = Context::open(found)?;
        let (module, refused) = load(&context, cubin(context.properties.capability))?;
        context.enter()?;
        let engines = Engines::new(cudnn, exact)?;
        let matmuls = Matmuls::new(cublas_lt)?;
        let functions = Mutex::default();
        let libraries = libraries.clone();
        let nccl = OnceLock::new();
        Ok(Arc::new(Gpu { context, engines, matmuls, management, others, refused, module, functions, libraries, nccl }))
    }

    /// NCCL, or why it cannot be used. It is loaded when it is first asked for: a single rank does without.
    pub fn nccl(&self) -> Result<Arc<Nccl>, CudaError> {
        self.nccl.get_or_init(|| Nccl::load(&self.libraries).map(Arc::new)).clone()
    }

    /// The kernel with this name.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(function.clone());
        }
        let function = self.module.function(name)?;
        functions.insert(name.to_owned(), function.clone());
        Ok(function)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The handles of libraries are destroyed in their context. An error has nobody to go to.
        let _ = self.context.enter();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::EmulatedGpu;

    #[test]
    fn a_cubin_that_the_driver_refuses_gives_way_to_ptx() {
        let Some(libraries) = EmulatedGpu::libraries() else { return };
        let context = Context::open(Found::look(EmulatedGpu::driver(&libraries), 0).unwrap()).unwrap();
        let check = |cubin: Option<Binary>, expected: Option<&str>| {
            let (module, refused) = load(&context, cubin).unwrap();
            assert!(module.function("set_step").is_ok());
            let refused = refused.map(|error| error.to_string());
            let is_expected = match (&refused, expected) {
                (Some(refused), Some(expected)) => refused.contains(expected),
                (refused, expected) => refused.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{refused:?}");
        };
        check(cubin(context.properties.capability), None);
        check(None, None);
        let other = if context.properties.capability[0] == 9 { [8, 0] } else { [9, 0] };
        check(cubin(other), Some("CUDA_ERROR_NO_BINARY_FOR_GPU"));
    }
}
