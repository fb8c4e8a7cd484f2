//! The device itself: nothing but the way to a program.

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, DeviceRequest, Program};
use enmasse_graph::Plans;

use crate::ReferenceProgram;

/// The reference device for one rank. It computes in one way, so that any choice of another is refused.
pub fn open(request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Unsupported(reason));
    // It computes on the thread of the rank, wherever that runs.
    let DeviceRequest { ordinal, threads: _, local_rank: _, isa, exact } = request;
    if ordinal.is_some() {
        return refuse("the reference device has no numbers: use reference:N".to_owned());
    }
    if let Some(isa) = isa {
        return refuse(format!("--isa {}: the reference device has no levels; leave it out", isa.escape_default()));
    }
    if *exact {
        return refuse("--exact: the reference device has no other algorithms; leave it out".to_owned());
    }
    Ok(Box::new(Reference))
}

/// Makes programs that run in f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// The same, but what a plan stores in bf16 is rounded to it: how much of an error is the storage of a plan's maps, and none
/// of a device's.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundingReference;

impl Device for Reference {
    fn name(&self) -> String {
        "reference (f64)".into()
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(ReferenceProgram::new(plans, group)?))
    }
}

impl Device for RoundingReference {
    fn name(&self) -> String {
        "reference (f64, maps as stored)".into()
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(ReferenceProgram::rounding(plans, group)?))
    }
}
