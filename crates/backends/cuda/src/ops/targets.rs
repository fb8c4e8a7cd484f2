//! Labels as rows of numbers.

use enmasse_graph::ops::Targets;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples::targets;

impl OnCuda for Targets {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([targets(o.labels(0)?, o.output(0))]))
    }
}
