//! Max pooling.

use enmasse_graph::ops::{MaxPool, MaxPoolBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::pooling;

impl OnCuda for MaxPool {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (x, y, position) = (o.input(0), o.output(0), o.output(1));
        Ok(computed([pooling::max(o.activations(), o.shapes()?, &self.0, x, y, position)]))
    }
}

impl OnCuda for MaxPoolBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (dy, position, dx) = (o.input(0), o.input(1), o.output(0));
        Ok(computed([pooling::max_backward(o.activations(), o.shapes_backward()?, &self.0, dy, position, dx)]))
    }
}
