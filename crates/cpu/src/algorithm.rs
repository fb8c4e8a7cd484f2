//! The algorithms that this device has for convolutions, by the names that plans and files know.

use enmasse_device::DeviceError;
use enmasse_graph::Plan;

/// How an operation that can be computed in several ways is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    /// Products over gathered pixels.
    Direct,
    /// Loops over pixels, for layers where every channel has a kernel of its own.
    Depthwise,
    /// The same, for groups of few channels.
    Grouped,
    /// Products between transforms of tiles.
    Winograd,
}

impl Algorithm {
    /// All of them.
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

    /// The algorithm of a name, chosen for an operation of this signature. Whether it suits the operation is another question.
    pub fn named(name: &str, signature: &str) -> Result<Self, DeviceError> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
            let names = Algorithm::ALL.map(Algorithm::name).join(", ");
            DeviceError::Unsupported(format!("the cpu has no algorithm {name:?} for {signature}: it has {names}"))
        })
    }

    /// What a plan chose for the instruction at a place, if anything.
    pub fn chosen(plan: &Plan, index: usize) -> Result<Option<Self>, DeviceError> {
        let name = plan.algorithms.get(&index);
        name.map(|name| Algorithm::named(name, &plan.signature(&plan.instructions[index]))).transpose()
    }
}
