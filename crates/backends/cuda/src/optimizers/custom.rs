//! Optimisers of a program's own, which have no kernels.

use enmasse_graph::optimizers::Custom;

use super::{Launch, OptimizerOnCuda};
use crate::work::Kernel;

impl OptimizerOnCuda for Custom {
    fn kernels(&self, _: &Launch) -> Result<Vec<Kernel>, &'static str> {
        Err("it is an optimiser of this program's own, which runs on CPUs alone")
    }
}
