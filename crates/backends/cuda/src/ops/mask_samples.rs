//! Zeros in place of what is computed for places without a sample.

use enmasse_graph::ops::MaskSamples;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples::mask_samples;

impl OnCuda for MaskSamples {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([mask_samples(o.input(0), o.input(1), o.output(0))]))
    }
}
