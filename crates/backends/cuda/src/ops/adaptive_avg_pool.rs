//! Average pooling to a fixed size.

use enmasse_graph::ops::{AdaptiveAvgPool, AdaptiveAvgPoolBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::pooling;

impl OnCuda for AdaptiveAvgPool {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([pooling::adaptive_average(o.activations(), o.shapes()?, o.input(0), o.output(0))]))
    }
}

impl OnCuda for AdaptiveAvgPoolBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (dy, dx) = (o.input(0), o.output(0));
        Ok(computed([pooling::adaptive_average_backward(o.activations(), o.shapes_backward()?, dy, dx)]))
    }
}
