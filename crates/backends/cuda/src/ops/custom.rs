//! Operations of a program's own, which have no kernels.

use enmasse_graph::ops::Custom;

use super::{Lowered, Lowering, OnCuda, Operands};

impl OnCuda for Custom {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Err(o.unsupported())
    }
}
