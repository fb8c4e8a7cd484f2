//! A factor for each class.

use enmasse_graph::ops::ScaleClasses;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples::scale_classes;

impl OnCuda for ScaleClasses {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        if self.factors.len() != o.rows(0)?.channels {
            return Err(o.unsupported());
        }
        let constants = &mut lowering.sequence.constants;
        Ok(computed([scale_classes(&self.factors, o.input(0), o.output(0), constants)]))
    }
}
