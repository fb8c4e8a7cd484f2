//! The device: a card that programs are compiled for.

use std::sync::Arc;

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, DeviceRequest, Hosting, Memory, Program, Schedule};
use enmasse_graph::{FilterOrder, Mode, Plan, Plans};
use enmasse_tensor::HostMemory;

use crate::card::Card;
use crate::driver::PinnedMemory;
use crate::libraries::Libraries;
use crate::lower::engine_of;
use crate::program::{CudaProgram, Sequences};
use crate::sequence::Sequence;

/// Opens the GPU of a rank: the one with the requested number, or with the rank's own among the machine's ranks.
///
/// # Errors
/// A library is missing or too old, there is no such GPU, or the request is for several ranks or names an instruction-set
/// level.
pub fn open(request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    open_with(&Libraries::gather(), request)
}

/// The same with libraries from certain places.
///
/// # Errors
/// As [`open`].
pub fn open_with(libraries: &Libraries, request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    // The card computes, so only the number of ranks matters.
    let DeviceRequest { ordinal, threads, local_rank, isa, exact } = request;
    if threads.len() > 1 {
        let reason = format!("{} GPUs: several are not supported yet; use --devices gpu:1", threads.len());
        return Err(DeviceError::Unsupported(reason));
    }
    if let Some(isa) = isa {
        let reason = format!("--isa {}: a GPU has no instruction-set levels; leave it out", isa.escape_default());
        return Err(DeviceError::Unsupported(reason));
    }
    Ok(Box::new(Cuda { card: Card::open(libraries, ordinal.unwrap_or(*local_rank), *exact)? }))
}

/// A card.
struct Cuda {
    card: Arc<Card>,
}

impl Device for Cuda {
    fn name(&self) -> String {
        let properties = &self.card.context.properties;
        format!("gpu {} ({}, cuDNN {})", properties.ordinal, properties.name, self.card.engines.version())
    }

    fn filters(&self) -> FilterOrder {
        FilterOrder::Ohwi
    }

    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        if let Some((index, chosen)) = plan.algorithms.iter().next() {
            let layer = &plan.instructions[*index].layer;
            let reason = format!("layer {layer}: the gpu has no algorithm {}", chosen.escape_default());
            return Err(DeviceError::Unsupported(reason));
        }
        self.card.context.enter()?;
        Ok(plan.instructions.iter().map(|node| engine_of(plan, node, &self.card)).collect::<Result<_, _>>()?)
    }

    fn work(&self, plans: &Plans, hosting: &Hosting, mode: Mode) -> Result<Vec<String>, DeviceError> {
        let schedule = Schedule::new(hosting, plans.train.as_ref());
        let sequences = Sequences::new(plans, hosting, &schedule, &self.card)?;
        Ok(sequences.of_mode(mode).map(Sequence::lines).unwrap_or_default())
    }

    fn host_memory(&self) -> Arc<dyn HostMemory> {
        Arc::new(PinnedMemory { context: self.card.context.clone() })
    }

    fn free_memory(&self) -> Result<Option<usize>, DeviceError> {
        let [free, _] = self.card.context.memory()?;
        Ok(Some(free))
    }

    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        let schedule = Schedule::new(hosting, plans.train.as_ref());
        let sequences = Sequences::new(plans, hosting, &schedule, &self.card)?;
        Ok(sequences.sizes(plans, &schedule).summary())
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(CudaProgram::new(plans, group.as_ref(), self.card.clone())?))
    }
}
