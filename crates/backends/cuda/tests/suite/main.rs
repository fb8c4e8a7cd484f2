//! Whole steps on the emulated GPU, our kernels compiled for the host, under the driver's and the libraries' ABI; or on a
//! real one, as `scripts/gpu-check` runs these tests.

#[path = "../../../cpu/tests/suite/common/models.rs"]
mod models;
#[path = "../../../cpu/tests/suite/common/program.rs"]
mod program;

mod against_reference;
mod loss_scale;
mod nccl;
mod ranks;
mod steps;
mod zoo;

use enmasse_cuda::libraries::Libraries;
use enmasse_device::{Device, DeviceRequest};

/// The emulated GPU, or the machine's own with `ENMASSE_TEST_GPU=1`. `None` without a compiler: the test is then in the
/// table.
fn gpu() -> Option<Box<dyn Device>> {
    gpu_with(&DeviceRequest::default())
}

fn gpu_with(request: &DeviceRequest) -> Option<Box<dyn Device>> {
    let libraries = match std::env::var_os("ENMASSE_TEST_GPU") {
        Some(_) => Libraries::gather(),
        None => Libraries::in_folders(&[enmasse_emulation::folder()?.to_owned()]),
    };
    Some(enmasse_cuda::open_with(&libraries, request).unwrap())
}
