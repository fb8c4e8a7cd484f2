//! Average pooling over a window.

use enmasse_graph::ops::{AvgPool, AvgPoolBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::pooling;

impl OnCuda for AvgPool {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([pooling::average(o.activations(), o.shapes()?, &self.0, o.input(0), o.output(0))]))
    }
}

impl OnCuda for AvgPoolBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (dy, dx) = (o.input(0), o.output(0));
        Ok(computed([pooling::average_backward(o.activations(), o.shapes_backward()?, &self.0, dy, dx)]))
    }
}
