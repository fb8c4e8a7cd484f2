//! The sum of a number per sample.

use enmasse_graph::ops::{SampleSum, SampleSumBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples;

impl OnCuda for SampleSum {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([samples::sample_sum(self.scale, o.input(0), o.input(1), o.output(0))]))
    }
}

impl OnCuda for SampleSumBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([samples::sample_sum_backward(self.0.scale, o.input(0), o.output(0))]))
    }
}
