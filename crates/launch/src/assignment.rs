//! The part of a job that one launcher runs, for one attempt.

use crate::environment::LaunchedRank;

/// Which ranks of a job run on this node, and where all meet. One run of these ranks is an *attempt*; the launcher that starts them
/// again makes a new assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// This node among all nodes, from 0.
    pub node_rank: usize,
    /// The number of nodes.
    pub node_count: usize,
    /// The rank of this node's first rank; the others follow it.
    pub first_rank: usize,
    /// The number of ranks of all nodes.
    pub world_size: usize,
    /// The number of ranks of this node.
    pub local_world_size: usize,
    /// Where rank 0 opens the store: host and port. Port 0 is a free one, for jobs of one node.
    pub master: (String, u16),
    /// How often ranks of this job were started before.
    pub attempt: usize,
    /// How often they may be started again.
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
