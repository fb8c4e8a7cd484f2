//! The sum over classes.

use enmasse_graph::ops::{SumClasses, SumClassesBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples;

impl OnCuda for SumClasses {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([samples::sum_classes(o.input(0), o.output(0))]))
    }
}

impl OnCuda for SumClassesBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([samples::sum_classes_backward(o.input(0), o.output(0))]))
    }
}
