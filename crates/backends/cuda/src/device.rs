//! The device: a GPU that programs are compiled for.
//!
//! A rank opens the GPU with its number on the machine, or the only visible one. A process opens a
//! GPU once, and keeps it open. Ranks compare the UUIDs of their GPUs before the first step. The
//! process that starts the ranks opens none.

use std::sync::{Arc, Mutex, PoisonError};

use enmasse_comm::Group;
use enmasse_device::{
    Device, DeviceError, DeviceRequest, DeviceUsage, Hosting, Memory, Program, Roofline, ShardSchedule, Summation,
    Tuned,
};
use enmasse_graph::{Choices, FilterOrder, Mode, Plan, Plans};
use enmasse_system::files::cache_folder;
use enmasse_tensor::HostMemory;

use crate::bus;
use crate::driver::{Found, Functions, PinnedMemory, Properties};
use crate::gpu::Gpu;
use crate::kernels::rows::PACKET_BYTES;
use crate::libraries::{Libraries, Library};
use crate::lower::engine_of;
use crate::management::Management;
use crate::nccl;
use crate::ops::normalize::IMAGE_CHANNELS;
use crate::program::{CudaProgram, Sequences};
use crate::roofline;
use crate::sequence::Sequence;
use crate::tune::tune;
use crate::way::Way;

/// The GPUs that this process has opened, by number and `exact`. They stay open until it ends: opening one takes seconds, and a
/// program first checks its settings on the GPU that it computes on later.
static GPUS: Mutex<Vec<(usize, bool, Arc<Gpu>)>> = Mutex::new(Vec::new());

/// Bytes that the first steps may take on the GPU beside the program's regions: kernels of cuDNN and cuBLASLt, which the driver
/// loads when they first run, and graphs. An estimate, until it is measured.
const ALLOWANCE: usize = 256 << 20;

/// Whether this machine has a GPU of NVIDIA's, even one that cannot be used.
pub fn is_there() -> bool {
    let on_bus = || bus::vendors().iter().any(|vendor| vendor == bus::NVIDIA);
    on_bus() || count().is_some_and(|gpus| gpus > 0)
}

/// Opens the GPU of a rank: the one with the requested number, the only one, or the one with the rank's own number among the
/// machine's ranks. A process that has opened it before gets the same.
///
/// # Errors
/// A library is missing or too old, there is no such GPU, or the request names an instruction-set level.
pub fn open(request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    let libraries = Libraries::gather();
    let ordinal = number(&libraries, request)?;
    let exact = request.exact;
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., gpu)) = gpus.iter().find(|(number, kind, _)| (*number, *kind) == (ordinal, exact)) {
        return Ok(Box::new(Cuda::new(gpu.clone(), request)));
    }
    let gpu = Gpu::open(&libraries, ordinal, exact)?;
    gpus.push((ordinal, exact, gpu.clone()));
    Ok(Box::new(Cuda::new(gpu, request)))
}

/// As [`open`], anew, with libraries from certain places.
///
/// # Errors
/// As [`open`].
pub fn open_with(libraries: &Libraries, request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(Cuda::new(Gpu::open(libraries, number(libraries, request)?, request.exact)?, request)))
}

/// The number of the GPU that a request is for. A rank whose launcher leaves it one GPU takes that GPU.
fn number(libraries: &Libraries, request: &DeviceRequest) -> Result<usize, DeviceError> {
    if let Some(isa) = &request.isa {
        let reason = format!("`isa = {}`: a GPU has no instruction-set levels; leave it out", isa.escape_default());
        return Err(DeviceError::Unsupported(reason));
    }
    if request.summation == Summation::F16 {
        let reason = "`reduce_precision = f16`: GPUs sum f32, or bf16 by NCCL; use one of them";
        return Err(DeviceError::Unsupported(reason.to_owned()));
    }
    let only = || gpus(libraries).filter(|gpus| *gpus == 1).map(|_| 0);
    Ok(request.ordinal.or_else(only).unwrap_or(request.local_rank))
}

/// The number of GPUs that this process may use; `None` without a driver.
pub fn count() -> Option<usize> {
    gpus(&Libraries::gather())
}

/// The numbers of the GPUs on which no process computes; `None` if the driver does not tell.
pub fn idle() -> Option<Vec<usize>> {
    let libraries = Libraries::gather();
    let driver = libraries.load(Library::Driver).and_then(Functions::load).map(Arc::new).ok()?;
    let is_idle = |ordinal: usize| {
        let found = Found::look(driver.clone(), ordinal).ok()?;
        Management::of(&libraries, &found.properties)?.is_idle()
    };
    let all: Vec<bool> = (0..driver.gpus()).map(is_idle).collect::<Option<_>>()?;
    Some((0..all.len()).filter(|ordinal| all[*ordinal]).collect())
}

fn gpus(libraries: &Libraries) -> Option<usize> {
    libraries.load(Library::Driver).and_then(Functions::load).map(|driver| driver.gpus()).ok()
}

/// A GPU.
struct Cuda {
    gpu: Arc<Gpu>,
    summation: Summation,
    /// What the ranks have agreed on.
    way: Mutex<Option<Way>>,
}

impl Cuda {
    fn new(gpu: Arc<Gpu>, request: &DeviceRequest) -> Self {
        Cuda { gpu, summation: request.summation, way: Mutex::default() }
    }

    /// How a rank exchanges numbers with others, as far as is known.
    fn way(&self, hosting: &Hosting) -> Way {
        match hosting.map().ranks() {
            0 | 1 => Way::Host,
            _ => self.way_of_several(),
        }
    }

    fn way_of_several(&self) -> Way {
        let agreed = *self.way.lock().unwrap_or_else(PoisonError::into_inner);
        agreed.unwrap_or_else(|| Way::expected(&self.gpu, self.summation))
    }
}

impl Device for Cuda {
    fn name(&self) -> String {
        let properties = &self.gpu.context.properties;
        let Properties { ordinal, name, address, .. } = properties;
        format!("gpu {ordinal} ({name}, {address}, cuDNN {})", self.gpu.engines.version())
    }

    fn unit(&self) -> Option<String> {
        Some(self.gpu.context.properties.unit())
    }

    fn bus_address(&self) -> Option<String> {
        Some(self.gpu.context.properties.address.clone())
    }

    fn warnings(&self) -> Vec<String> {
        let Gpu { management, others, refused, .. } = self.gpu.as_ref();
        let ordinal = self.gpu.context.properties.ordinal;
        let shared = others.as_ref().map(|others| format!("gpu {ordinal} is shared with {others}; both are slower"));
        let slowdown = management.as_ref().and_then(Management::slowdown);
        let slowed = slowdown.map(|why| format!("gpu {ordinal} is slowed down: {why}"));
        let compiled = refused.as_ref().map(|why| {
            format!("gpu {ordinal}: the driver compiled the kernels itself, which takes longer and may give slower ones: {why}")
        });
        [shared, slowed, compiled].into_iter().flatten().collect()
    }

    fn ways(&self, group: &Group) -> Result<Vec<String>, DeviceError> {
        let (way, line) = Way::agree(&self.gpu, group, self.summation)?;
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = Some(way);
        Ok([group.ways(), &[line]].concat())
    }

    fn sums_by_group(&self) -> bool {
        self.way_of_several() == Way::Host
    }

    fn filters(&self) -> FilterOrder {
        FilterOrder::Ohwi
    }

    fn gate_bytes(&self) -> Option<usize> {
        Some(PACKET_BYTES)
    }

    fn image_channels(&self) -> Option<usize> {
        Some(IMAGE_CHANNELS)
    }

    fn narrow_features(&self) -> bool {
        true
    }

    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        self.gpu.context.enter()?;
        let indices = 0..plan.instructions.len();
        Ok(indices.map(|index| engine_of(plan, index, &self.gpu)).collect::<Result<_, _>>()?)
    }

    fn tune(&self, plans: &Plans, known: &Choices) -> Result<Tuned, DeviceError> {
        let folder = cache_folder().map(|cache| cache.join("engines"));
        Ok(tune(plans, known, &self.gpu, folder.as_deref())?)
    }

    fn roofline(&self, plan: &Plan) -> Result<Option<Roofline>, DeviceError> {
        roofline::Gpu::of_device(&self.gpu.context.properties.name).map(|gpu| gpu.roofline(plan)).transpose()
    }

    fn work(&self, plans: &Plans, hosting: &Hosting, mode: Mode) -> Result<Vec<String>, DeviceError> {
        let schedule = ShardSchedule::new(hosting, plans.train.as_ref());
        let sequences = Sequences::new(plans, hosting, &schedule, (&self.gpu, self.way(hosting)))?;
        Ok(sequences.of_mode(mode).map(Sequence::lines).unwrap_or_default())
    }

    fn host_memory(&self) -> Arc<dyn HostMemory> {
        Arc::new(PinnedMemory { context: self.gpu.context.clone() })
    }

    fn free_memory(&self) -> Result<Option<usize>, DeviceError> {
        let [free, _] = self.gpu.context.memory()?;
        Ok(Some(free))
    }

    fn usage(&self) -> Option<DeviceUsage> {
        let [free, total] = self.gpu.context.memory().ok()?;
        let utilization = self.gpu.management.as_ref().and_then(Management::utilization);
        Some(DeviceUsage { bytes: total.saturating_sub(free) as u64, utilization })
    }

    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        let schedule = ShardSchedule::new(hosting, plans.train.as_ref());
        let way = self.way(hosting);
        let sequences = Sequences::new(plans, hosting, &schedule, (&self.gpu, way))?;
        let of_ranks = match way {
            Way::Nccl(_) => nccl::allowance(self.gpu.context.properties.capability),
            Way::Host => 0,
        };
        let library = ALLOWANCE + of_ranks;
        Ok(Memory { library, ..sequences.sizes(plans, &schedule).summary() })
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(CudaProgram::new(plans, group.as_ref(), self.gpu.clone(), self.summation)?))
    }
}
