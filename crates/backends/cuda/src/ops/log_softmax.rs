//! The logarithm of the softmax over classes.

use enmasse_graph::ops::{LogSoftmax, LogSoftmaxBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::samples;

impl OnCuda for LogSoftmax {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([samples::log_softmax(o.rows(0)?.channels, o.input(0), o.output(0))]))
    }
}

impl OnCuda for LogSoftmaxBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([samples::log_softmax_backward(o.rows(0)?.channels, o.input(0), o.input(1), o.output(0))]))
    }
}
