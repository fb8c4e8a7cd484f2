//! The sum of two tensors.

use enmasse_graph::ops::Add;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::elementwise::add;

impl OnCuda for Add {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([add(o.activations(), o.input(0), o.input(1), o.output(0))]))
    }
}
