//! The device itself, which only makes programs.

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, DeviceRequest, Hosting, Memory, Program};
use enmasse_graph::{Plans, Role};

use crate::ReferenceProgram;

/// Opens the reference device for one rank. It has no options.
///
/// # Errors
/// The request chooses how to compute: a number of the device, an instruction-set level, `exact`, or sums in bf16.
pub fn open(request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Unsupported(reason));
    // It computes on the rank's own thread, so the numbers of threads do not matter.
    let DeviceRequest { ordinal, local_rank: _, threads: _, sharer: _, isa, exact, summation } = request;
    if ordinal.is_some() {
        return refuse("the reference device has no numbers: use reference:N".to_owned());
    }
    if let Some(isa) = isa {
        return refuse(format!("`isa = {}`: the reference device has no levels; leave it out", isa.escape_default()));
    }
    if *exact {
        return refuse("`exact`: the reference device has no other algorithms; leave it out".to_owned());
    }
    if let Some(narrow) = summation.narrow() {
        return refuse(format!("`reduce_precision = {narrow}`: the reference device sums f64; use f32"));
    }
    Ok(Box::new(Reference))
}

/// The reference device, whose programs run in f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// The reference device with values rounded to bf16 or f16 if the plan stores them so ([`ReferenceProgram::rounding`]). It
/// shows how much of an error comes from the storage of activations rather than from a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundingReference;

/// The state and every value of both plans in f64, for each local shard. No two values share memory.
fn memory(plans: &Plans, hosting: &Hosting) -> Memory {
    let mut memory = Memory { state: 0, gradients: 0, activations: 0, scratch: 0, library: 0, staging: 0 };
    for value in plans.train.iter().chain([&plans.evaluate]).flat_map(|plan| &plan.values) {
        let bytes = value.shape.elements() * size_of::<f64>() * hosting.count();
        match value.role {
            Role::Gradient { .. } | Role::Carried => memory.gradients += bytes,
            Role::Input | Role::Activation => memory.activations += bytes,
            Role::Parameter(_) | Role::Buffer { .. } | Role::Optimizer { .. } => {}
            Role::Average { .. } | Role::LossScale { .. } | Role::Residual { .. } | Role::Teacher { .. } => {}
        }
    }
    let state = plans.state.iter().map(|tensor| tensor.shape.elements());
    memory.state = state.sum::<usize>() * size_of::<f64>() * hosting.count();
    memory
}

impl Device for Reference {
    fn name(&self) -> String {
        "reference (f64)".into()
    }

    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        Ok(memory(plans, hosting))
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(ReferenceProgram::new(plans, group)?))
    }
}

impl Device for RoundingReference {
    fn name(&self) -> String {
        "reference (f64, activations as stored)".into()
    }

    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        Ok(memory(plans, hosting))
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(ReferenceProgram::rounding(plans, group)?))
    }
}
