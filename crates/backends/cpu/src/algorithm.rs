//! The algorithms of this device for convolutions, by the names used in plans and files.

use enmasse_device::DeviceError;
use enmasse_graph::Plan;

/// How to compute an operation for which there are several algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    /// Matmuls over gathered pixels.
    Direct,
    /// Loops over pixels, for layers in which every channel has its own kernel.
    Depthwise,
    /// The same, for groups with few channels.
    Grouped,
    /// Matmuls between transformed tiles.
    Winograd,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 4] = [Algorithm::Direct, Algorithm::Depthwise, Algorithm::Grouped, Algorithm::Winograd];

    /// The name in plans and files.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Depthwise => "depthwise",
            Algorithm::Grouped => "grouped",
            Algorithm::Winograd => "winograd",
        }
    }

    /// The algorithm with this name, chosen for an operation with this signature. Whether it suits the operation is not
    /// checked.
    pub fn named(name: &str, signature: &str) -> Result<Self, DeviceError> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
            let names = Algorithm::ALL.map(Algorithm::name).join(", ");
            DeviceError::Unsupported(format!(
                "the cpu has no algorithm {name:?} for {signature}: it has {names}; a run that was tuned on another device \
                 continues with `tune = false`"
            ))
        })
    }

    /// The algorithm that a plan chose for the instruction at `index`, if any.
    pub fn chosen(plan: &Plan, index: usize) -> Result<Option<Self>, DeviceError> {
        let name = plan.algorithms.get(&index);
        name.map(|name| Algorithm::named(name, &plan.signature(&plan.instructions[index]))).transpose()
    }
}
