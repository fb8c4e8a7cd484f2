//! Errors in a launcher's variables.

use thiserror::Error;

use super::node_list::NodeListError;

/// An error in the variables.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// One variable of a pair is missing.
    #[error("{missing} is not set although {present} is: set both or neither")]
    HalfSet {
        /// The variable that is set.
        present: &'static str,
        /// The variable that should be.
        missing: &'static str,
    },
    /// Several ranks have no place to meet.
    #[error("WORLD_SIZE is {world_size} but MASTER_ADDR and MASTER_PORT are not set: set them to where rank 0 runs")]
    NoMaster {
        /// The number of ranks.
        world_size: usize,
    },
    /// The launcher does not say where rank 0 runs.
    #[error(
        "{launcher} does not say where rank 0 runs, and there is more than one node: set MASTER_ADDR to the name of its \
         node ({how})"
    )]
    NoHost {
        /// The launcher's name.
        launcher: &'static str,
        /// How to pass a variable to its ranks.
        how: &'static str,
    },
    /// Not a number in the expected range.
    #[error("{name} is {value:?}: expected a whole number from {least} to {most}")]
    Number {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// Smallest number accepted.
        least: usize,
        /// Largest number accepted.
        most: usize,
    },
    /// Two variables contradict each other.
    #[error("{name} is {value} but {bound_name} is {bound}: {name} must be {relation} {bound_name}")]
    Contradiction {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The variable that bounds it.
        bound_name: &'static str,
        /// That variable's value.
        bound: usize,
        /// How they should compare.
        relation: &'static str,
    },
    /// The variable is not valid text.
    #[error("{0} is not valid UTF-8: set it to plain text")]
    NotText(&'static str),
    /// Slurm would not write such a list of nodes.
    #[error("{name}: {source}")]
    NodeList {
        /// The variable.
        name: &'static str,
        /// The error in it.
        source: NodeListError,
    },
    /// Slurm would not write such a count of tasks per node.
    #[error("SLURM_STEP_TASKS_PER_NODE is {value:?}: expected counts such as 2(x3),1 with one for node {node}")]
    TasksPerNode {
        /// The value.
        value: String,
        /// The node whose count was needed, from 0.
        node: usize,
    },
    /// Rank 0 does not run on the node where the other ranks look for it.
    #[error(
        "rank 0 runs on {own}, but the others look for it on {first}, the first node of the step: start the step without \
         --distribution=arbitrary, or export MASTER_ADDR={own}"
    )]
    RankZeroElsewhere {
        /// The node of rank 0.
        own: String,
        /// The first node of the list.
        first: String,
    },
    /// There is one process where several were requested.
    #[error("{variable} is {value}, but no launcher started this process, which would wait or train alone: {mend}")]
    NotLaunched {
        /// The variable that requests several processes.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What to do.
        mend: &'static str,
    },
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for EnvironmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
