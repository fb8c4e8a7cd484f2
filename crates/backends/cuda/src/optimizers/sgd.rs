//! Stochastic gradient descent.

use enmasse_graph::optimizers::Sgd;

use super::{Launch, OptimizerOnCuda, RATE};
use crate::kernels::THREADS;
use crate::kernels::operands::{SCRATCH, STEP, floats};
use crate::work::Argument::{F32, Null, Read, U32, Write};
use crate::work::{Argument, Kernel};

impl OptimizerOnCuda for Sgd {
    fn kernels(&self, launch: &Launch) -> Result<Vec<Kernel>, &'static str> {
        Ok(descend(self, None, launch))
    }
}

/// SGD, for LARS with its trust coefficient and epsilon.
pub(super) fn descend(sgd: &Sgd, trust: Option<[f32; 2]>, launch: &Launch) -> Vec<Kernel> {
    let table = &launch.table;
    let rates = launch.rates();
    let [unscale, skipped_steps] = launch.scaling;
    let mut kernels = Vec::new();
    let sums = trust.map(|_| floats(SCRATCH, RATE * table.ranges, 2 * table.pieces));
    if let Some(sums) = sums {
        let squared = [Read(launch.weights()), launch.gradients(), unscale, skipped_steps, Write(sums)];
        kernels.push(table.kernel("range_squares", table.pieces, THREADS, &squared));
    }
    let [coefficient, epsilon] = trust.unwrap_or([1.0, 0.0]).map(F32);
    let sums = Argument::optional(sums);
    let rates = Write(rates);
    let [norm, limit] = launch.clip;
    let of_ranges = [sums, norm, unscale, skipped_steps, STEP, rates, limit, coefficient, epsilon];
    // Only LARS has sums to add for a range.
    let threads = if trust.is_some() { THREADS } else { 32 };
    kernels.push(table.kernel("descent_rates", table.ranges, threads, &of_ranges));
    let buffer = launch.state(0).unwrap_or(Null);
    let of_optimizer = [buffer, F32(sgd.momentum), U32(sgd.nesterov.into())];
    kernels.push(table.kernel("descent", table.pieces, THREADS, &[&launch.of_elements()[..], &of_optimizer].concat()));
    kernels
}
