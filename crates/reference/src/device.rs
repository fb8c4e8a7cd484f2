//! The device itself: nothing but the way to a program.

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, Memory, Program};
use enmasse_graph::{Mode, Plan, Plans};

use crate::ReferenceProgram;

/// Makes programs that run in f64 and host all shards of their plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// The same by [`ReferenceProgram::rounding`]: how much of an error is the storage of a plan's maps, and none of a device's.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundingReference;

impl Device for Reference {
    fn name(&self) -> String {
        "reference (f64)".into()
    }

    fn memory(&self, plans: &Plans) -> Memory {
        memory(plans)
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        alone(group)?;
        Ok(Box::new(ReferenceProgram::new(plans)))
    }
}

impl Device for RoundingReference {
    fn name(&self) -> String {
        "reference (f64, maps as stored)".into()
    }

    fn memory(&self, plans: &Plans) -> Memory {
        memory(plans)
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        alone(group)?;
        Ok(Box::new(ReferenceProgram::rounding(plans)))
    }
}

fn memory(plans: &Plans) -> Memory {
    let bytes = |plan: &Plan| {
        let elements: usize = plan.values.iter().map(|value| value.shape.elements()).sum();
        elements * plan.shards * size_of::<f64>()
    };
    let values = [Mode::Train, Mode::Evaluate].into_iter().filter_map(|mode| plans.plan(mode)).map(bytes).sum();
    Memory { arenas: values, scratch: 0 }
}

fn alone(group: Option<Group>) -> Result<(), DeviceError> {
    match group {
        None => Ok(()),
        Some(_) => {
            let reason = "the reference device hosts all shards in one process: run it without a group";
            Err(DeviceError::Unsupported(reason.into()))
        }
    }
}
