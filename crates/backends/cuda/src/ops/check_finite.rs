//! The check of the loss between backward and update.

use enmasse_graph::ops::CheckFinite;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::metrics::check_finite;
use crate::work::Span;

impl OnCuda for CheckFinite {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([check_finite(Span { bytes: o.plan.shards * size_of::<f32>(), ..o.input(0) })]))
    }
}
