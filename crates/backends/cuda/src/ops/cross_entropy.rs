//! The cross-entropy over classes: `kernels/loss.cu`.

use enmasse_graph::ops::{CrossEntropy, CrossEntropyBackward};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::operands::{Labels, SCRATCH, by_row, count, float_count, floats, one_block};
use crate::work::Argument::{F32, Read, Write};
use crate::work::{Argument, Kernel, Span};

impl OnCuda for CrossEntropy {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let [probabilities, loss, correct] = [0, 1, 2].map(|index| o.output(index));
        Ok(computed(cross_entropy(self, o.input(0), o.labels(1)?, probabilities, loss, correct)))
    }
}

impl OnCuda for CrossEntropyBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([cross_entropy_backward(&self.0, o.input(0), o.labels(1)?, o.output(0))]))
    }
}

/// The target's share at every class, and that of the labels together beyond it.
fn target(entropy: &CrossEntropy, classes: usize) -> [Argument; 2] {
    let smoothing = f64::from(entropy.smoothing);
    [smoothing / classes as f64, 1.0 - smoothing].map(|share| F32(share as f32))
}

/// The probabilities of `logits` `[N,K]`, the scaled sum of the losses, and the number of correct samples.
fn cross_entropy(
    entropy: &CrossEntropy,
    logits: Span,
    labels: Labels,
    probabilities: Span,
    loss: Span,
    correct: Span,
) -> [Kernel; 2] {
    let samples = labels.samples();
    let classes = float_count(logits) / samples.max(1);
    let [losses, top_k_correct] = [0, samples].map(|start| floats(SCRATCH, start, samples));
    let [everywhere, extra] = target(entropy, classes);
    let results = [probabilities, losses, top_k_correct].map(Write);
    let numbers = [count(samples), count(classes), everywhere, extra];
    let of_samples = [&[Read(logits)], &labels.arguments()[..], &results, &numbers].concat();
    let sums = vec![Read(losses), Read(top_k_correct), Write(loss), Write(correct), count(samples), F32(entropy.scale)];
    [by_row("cross_entropy", samples, classes, of_samples), one_block("cross_entropy_sum", sums)]
}

/// The gradient of the logits, which may be at the place of the probabilities.
fn cross_entropy_backward(entropy: &CrossEntropy, probabilities: Span, labels: Labels, dlogits: Span) -> Kernel {
    let samples = labels.samples();
    let classes = float_count(probabilities) / samples.max(1);
    let [everywhere, extra] = target(entropy, classes);
    let numbers = [count(samples), count(classes), F32(entropy.scale), everywhere, extra];
    let arguments = [&[Read(probabilities)], &labels.arguments()[..], &[Write(dlogits)], &numbers].concat();
    by_row("cross_entropy_backward", samples, classes, arguments)
}

#[cfg(test)]
#[path = "cross_entropy_tests.rs"]
mod tests;
