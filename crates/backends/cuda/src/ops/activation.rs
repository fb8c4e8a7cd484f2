//! ReLU and ReLU6.

use enmasse_graph::Activation;
use enmasse_graph::ops::ActivationBackward;

use super::conv2d::takes_relu;
use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::elementwise;

impl OnCuda for Activation {
    /// Nothing, if it came with the convolution before.
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        if takes_relu(o, &lowering.gpu.engines)? {
            return Ok(Vec::new());
        }
        Ok(computed([elementwise::activate(o.activations(), *self, o.input(0), o.output(0))]))
    }
}

impl OnCuda for ActivationBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (dy, y, dx) = (o.input(0), o.input(1), o.output(0));
        Ok(computed([elementwise::activate_backward(o.activations(), self.0, dy, y, dx)]))
    }
}
