//! Operations of a program's own, which compute in f32.

use enmasse_graph::ops::Custom;

use super::{OnReference, StepContext};

impl OnReference for Custom {
    fn run(&self, step: &mut StepContext) -> Result<(), enmasse_device::DeviceError> {
        step.each_shard(|call, []| {
            let operands: Vec<Vec<f32>> =
                call.rest.iter().map(|operand| operand.iter().map(|&value| value as f32).collect()).collect();
            let operands: Vec<&[f32]> = operands.iter().map(Vec::as_slice).collect();
            let mut result = vec![0.0; call.result_elements(0)];
            self.compute(&operands, &mut result, &|jobs, job| (0..jobs).for_each(job));
            Ok(vec![result.into_iter().map(f64::from).collect()])
        })
    }
}
