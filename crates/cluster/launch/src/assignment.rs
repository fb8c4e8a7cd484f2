//! The part of a job that one launcher runs, for one attempt.

use crate::environment::LaunchedRank;

/// The ranks of a job that run on this node, and where all ranks meet. One run of these ranks is an *attempt*; a
/// launcher that restarts them makes a new assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// This node among all nodes, from 0.
    pub node_rank: usize,
    /// The number of nodes.
    pub node_count: usize,
    /// The rank of this node's first rank; the node's other ranks follow.
    pub first_rank: usize,
    /// The number of ranks on all nodes.
    pub world_size: usize,
    /// The number of ranks on this node.
    pub local_world_size: usize,
    /// Where rank 0 opens the store: host and port. Port 0 picks a free port, for jobs of one node.
    pub master: (String, u16),
    /// How many times the job's ranks have been restarted.
    pub attempt: usize,
    /// Restart limit.
    pub max_restarts: usize,
    /// The name of the job, the same on all nodes.
    pub run_id: String,
}

impl Assignment {
    /// The place of one of this node's ranks.
    pub(crate) fn place(&self, local_rank: usize) -> LaunchedRank {
        LaunchedRank {
            rank: self.first_rank + local_rank,
            world_size: self.world_size,
            local_rank,
            local_world_size: self.local_world_size,
            node: self.node_rank,
            node_count: self.node_count,
            master: Some(self.master.clone()),
            restart_count: self.attempt,
            max_restarts: self.max_restarts,
            run_id: self.run_id.clone(),
        }
    }
}
