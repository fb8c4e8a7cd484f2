//! The visible GPUs, looked at without being opened: no memory of theirs is taken.

use enmasse_device::{DeviceError, Seen};

use crate::CudaError;
use crate::driver::Found;
use crate::gpu::{Loaded, check_capability};
use crate::libraries::Libraries;
use crate::management::Management;
use crate::tune::file_name;

/// All GPUs that this process may use, by number.
///
/// # Errors
/// A library is missing or too old, or no GPU is visible.
pub fn seen() -> Result<Vec<Seen>, DeviceError> {
    let libraries = Libraries::gather();
    let Loaded { driver, cudnn, cublas_lt } = Loaded::of(&libraries)?;
    let cuda = driver.version()?;
    // The driver's error, if there is none to see.
    let count = driver.gpus().max(1);
    let look = |number: usize| -> Result<Seen, CudaError> {
        let gpu = Found::look(driver.clone(), number)?.properties;
        let management = Management::of(&libraries, &gpu);
        let others = management.as_ref().and_then(Management::others).map(|others| format!("{others} computes on it"));
        let heat = || management.as_ref().and_then(Management::overheating).map(str::to_owned);
        let version = management.as_ref().and_then(Management::driver_version).unwrap_or_default();
        let (cudnn, cublas_lt) = (cudnn.version(), cublas_lt.version());
        let title = format!("GPU-{} driver {version} CUDA {cuda} cuDNN {cudnn} cuBLASLt {cublas_lt}", gpu.digits());
        Ok(Seen {
            number,
            name: format!("gpu {number} ({}, {})", gpu.name, gpu.address),
            unit: gpu.unit(),
            key: file_name(&title),
            unusable: check_capability(&gpu).err().map(|error| error.to_string()),
            busy: others.or_else(heat),
        })
    };
    Ok((0..count).map(look).collect::<Result<_, _>>()?)
}
