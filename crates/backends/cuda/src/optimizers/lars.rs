//! SGD with a rate for each parameter, from the norms of its weights and its gradient.

use enmasse_graph::optimizers::{Lars, Sgd};

use super::sgd::descend;
use super::{Launch, OptimizerOnCuda};
use crate::work::Kernel;

impl OptimizerOnCuda for Lars {
    fn kernels(&self, launch: &Launch) -> Result<Vec<Kernel>, &'static str> {
        let sgd = Sgd { momentum: self.momentum, nesterov: false };
        Ok(descend(&sgd, Some([self.trust_coefficient, self.epsilon]), launch))
    }
}
