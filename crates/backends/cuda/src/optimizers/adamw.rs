//! Adam with decoupled weight decay.

use enmasse_graph::optimizers::AdamW;

use super::{Launch, OptimizerOnCuda};
use crate::kernels::THREADS;
use crate::kernels::operands::STEP;
use crate::work::Argument::{F32, Null, Write};
use crate::work::Kernel;

impl OptimizerOnCuda for AdamW {
    fn kernels(&self, launch: &Launch) -> Result<Vec<Kernel>, &'static str> {
        let table = &launch.table;
        let [beta1, beta2] = self.betas.map(F32);
        let ([norm, limit], [unscale, skipped_steps]) = (launch.clip, launch.scaling);
        let of_ranges = [norm, unscale, skipped_steps, STEP, Write(launch.rates()), limit, beta1, beta2];
        let [first, second] = [0, 1].map(|slot| launch.state(slot).unwrap_or(Null));
        let of_optimizer = [first, second, beta1, beta2, F32(self.epsilon)];
        Ok(vec![
            table.kernel("adamw_rates", table.ranges.div_ceil(THREADS as usize), THREADS, &of_ranges),
            table.kernel("adamw", table.pieces, THREADS, &[&launch.of_elements()[..], &of_optimizer].concat()),
        ])
    }
}
