//! The algorithm of the gradients' sums: it is the group's, and where the configuration leaves it to the model of costs, chosen here.

use std::fmt;

use enmasse_comm::{Algorithm, AlgorithmChoice, Group};
use enmasse_device::Device;
use enmasse_graph::Plans;
use enmasse_wording::{counted, mebibytes};

use crate::{AllReduceAlgorithm, ConfigError, RunConfig};

impl From<AllReduceAlgorithm> for AlgorithmChoice {
    fn from(algorithm: AllReduceAlgorithm) -> Self {
        AlgorithmChoice::Named(match algorithm {
            AllReduceAlgorithm::Tree => Algorithm::Tree,
            AllReduceAlgorithm::Ring => Algorithm::Ring,
            AllReduceAlgorithm::HalvingDoubling => Algorithm::HalvingDoubling,
            AllReduceAlgorithm::Direct => Algorithm::Direct,
            AllReduceAlgorithm::Hierarchical => Algorithm::Hierarchical,
            AllReduceAlgorithm::Auto => return AlgorithmChoice::Auto,
        })
    }
}

/// Refuses a group that was made for other sums than the configuration asks for: the plan would name an algorithm that no rank uses.
pub(crate) fn check_group(group: &Group, config: &RunConfig) -> Result<(), ConfigError> {
    let asked = AlgorithmChoice::from(config.train.all_reduce);
    let made_for = group.algorithm_choice();
    if asked == made_for || group.world_size() == 1 {
        return Ok(());
    }
    let reason = format!("the group was made for {made_for}: make it with this `all_reduce`, too");
    Err(ConfigError::setting(config, "all_reduce", reason))
}

/// The algorithm that the model of costs has chosen, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenAlgorithm {
    /// That of all buckets, and of every other all-reduce of the run.
    pub algorithm: Algorithm,
    /// Bytes of the largest bucket.
    pub bytes: usize,
    /// The ranks.
    pub ranks: usize,
    /// The nodes that they are on.
    pub nodes: usize,
}

impl ChosenAlgorithm {
    /// Chooses if the configuration asks for it, and names the algorithm in the plan. `None` if there is nothing to choose: one
    /// rank, or a device whose library has algorithms of its own. The plan is then as by the default.
    ///
    /// Ranks with the same plan on the same nodes choose the same; the comparison of plans finds any other.
    pub(crate) fn choose(
        asked: AllReduceAlgorithm,
        device: &dyn Device,
        group: Option<&Group>,
        plans: &mut Plans,
    ) -> Option<Self> {
        let plan = plans.train.as_mut().filter(|_| asked == AllReduceAlgorithm::Auto)?;
        plan.all_reduce = Algorithm::default().name();
        let group = group.filter(|_| device.sums_by_group())?;
        let bytes = plan.buckets.iter().map(|bucket| bucket.len * size_of::<f32>()).max().unwrap_or(0);
        let algorithm = group.choose_algorithm(bytes);
        plan.all_reduce = algorithm.name();
        Some(ChosenAlgorithm { algorithm, bytes, ranks: group.world_size(), nodes: group.nodes() })
    }
}

impl fmt::Display for ChosenAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChosenAlgorithm { algorithm, bytes, ranks, nodes } = *self;
        let (ranks, nodes) = (counted(ranks, "rank"), counted(nodes, "node"));
        write!(f, "all-reduce {algorithm} (auto: {} over {ranks} on {nodes})", mebibytes(bytes))
    }
}
