//! Whole steps on the emulated card: our kernels compiled for the host, under the driver's and the libraries' ABI.

#[path = "../../../cpu/tests/suite/common/program.rs"]
mod program;

mod against_reference;
mod steps;

use enmasse_cuda::libraries::Libraries;
use enmasse_device::{Device, DeviceRequest};

/// The emulated card. `None` without a compiler: the test is then in the table.
fn gpu() -> Option<Box<dyn Device>> {
    let libraries = Libraries::in_folders(&[enmasse_emulation::folder()?.to_owned()]);
    Some(enmasse_cuda::open_with(&libraries, &DeviceRequest::default()).unwrap())
}
