//! Whether the label is among the best classes.

use enmasse_graph::ops::TopKCorrect;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples::top_k_correct;

impl OnCuda for TopKCorrect {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([top_k_correct(self.k, o.input(0), o.input(1), o.output(0))]))
    }
}
