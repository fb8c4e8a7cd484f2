//! The slow weights of Lookahead.

use enmasse_graph::ops::Lookahead;

use super::average::ranges;
use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::average;

impl OnCuda for Lookahead {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let ranges = ranges(o, o.node.inputs.len() / 2);
        Ok(computed(ranges.into_iter().map(|(values, slow)| average::lookahead(values, slow))))
    }
}
