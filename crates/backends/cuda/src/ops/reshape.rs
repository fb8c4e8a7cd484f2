//! The same elements in another shape: nothing, or a copy.

use enmasse_graph::ops::Reshape;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::sequence::Call;

impl OnCuda for Reshape {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (from, to) = (o.input(0), o.output(0));
        Ok(computed((from.place != to.place).then_some(Call::Copy { from, to })))
    }
}
