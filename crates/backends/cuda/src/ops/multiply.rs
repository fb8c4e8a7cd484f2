//! The product of two tensors, element by element.

use enmasse_graph::ops::Multiply;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::elementwise::multiply;

impl OnCuda for Multiply {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([multiply(o.activations(), o.input(0), o.input(1), o.output(0))]))
    }
}
