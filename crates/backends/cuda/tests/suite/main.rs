//! Whole steps on the emulated GPU, our kernels compiled for the host, under the driver's and the libraries' ABI; or on a
//! real one, as `scripts/gpu-check` runs these tests.

#[path = "../../../cpu/tests/suite/common/models.rs"]
mod models;
#[path = "../../../cpu/tests/suite/common/program.rs"]
mod program;

mod against_reference;
mod images;
mod loss_scale;
mod nccl;
mod ranks;
mod steps;
mod zoo;

use enmasse_cuda::libraries::Libraries;
use enmasse_device::{Device, DeviceRequest};

/// The emulated GPU, or the machine's own with `ENMASSE_TEST_GPU=1`. `None` without a compiler: the test is then in the
/// table. Without algorithms that round more than direct sums, since results are compared with those in f64.
fn gpu() -> Option<Box<dyn Device>> {
    gpu_with(&DeviceRequest { exact: true, ..DeviceRequest::default() })
}

fn gpu_with(request: &DeviceRequest) -> Option<Box<dyn Device>> {
    // A real GPU is opened once in a process, as programs do: opening one takes seconds.
    Some(match std::env::var_os("ENMASSE_TEST_GPU") {
        Some(_) => enmasse_cuda::open(request).unwrap(),
        None => {
            let libraries = Libraries::in_folders(&[enmasse_emulation::folder()?.to_owned()]);
            enmasse_cuda::open_with(&libraries, request).unwrap()
        }
    })
}
