//! Running statistics of batch norms, in as few launches as possible: a step has two instructions for each batch norm.

use std::ptr;

use enmasse_graph::{Node, Op};

use super::operand::Operands;
use crate::CudaError;
use crate::kernels::average::{self, Running};
use crate::kernels::batch_norm::{self, Share};
use crate::work::{Constants, Kernel};

/// Whether one kernel computes the statistics of an instruction and the share that the next instruction takes of them.
fn together([statistics, share]: [&Node; 2]) -> bool {
    statistics.op == Op::BatchNormStatistics
        && matches!(share.op, Op::RunningShare { .. })
        && share.inputs == statistics.outputs
}

impl Operands<'_> {
    fn share(&self) -> Result<Option<Share>, CudaError> {
        match self.node.op {
            Op::RunningShare { count, shards } => Ok(Some(Share { update: self.output(0)?, count, shards })),
            _ => Ok(None),
        }
    }

    /// This instruction and the next one, or the one before and this one.
    fn pair(&self, place: usize) -> Option<[&Node; 2]> {
        let mut pairs = self.plan.instructions.windows(2);
        pairs.find(|pair| ptr::eq(&pair[place], self.node)).map(|pair| [&pair[0], &pair[1]])
    }

    /// Statistics of a batch, with the share of them that the next instruction takes.
    pub fn statistics(&self) -> Result<Vec<Kernel>, CudaError> {
        let share = match self.pair(0).filter(|&pair| together(pair)) {
            Some([_, node]) => Operands { node, ..*self }.share()?,
            None => None,
        };
        Ok(batch_norm::statistics(self.rows(0)?, self.input(0)?, self.output(0)?, self.output(1)?, share))
    }

    /// A share, unless the statistics came with it.
    pub fn running_share(&self) -> Result<Vec<Kernel>, CudaError> {
        let share = self.share()?.filter(|_| !self.pair(1).is_some_and(together));
        share.map(|share| Ok(batch_norm::running_share(self.normalizer(0, 0.0)?, share))).into_iter().collect()
    }

    /// The updates of all running statistics, for the first instruction that has one.
    pub fn running_updates(&self, constants: &mut Constants) -> Result<Vec<Kernel>, CudaError> {
        let updates = || self.plan.instructions.iter().filter(|node| matches!(node.op, Op::RunningUpdate { .. }));
        if !updates().next().is_some_and(|first| ptr::eq(first, self.node)) {
            return Ok(Vec::new());
        }
        let running = |node| {
            let o = Operands { node, ..*self };
            match node.op {
                Op::RunningUpdate { momentum } => {
                    Ok(Running { momentum, update: o.input(0)?, mean: o.input(1)?, variance: o.input(2)? })
                }
                _ => Err(o.unsupported()),
            }
        };
        let norms = updates().map(running).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(average::running_update(&norms, constants).into_iter().collect())
    }
}
