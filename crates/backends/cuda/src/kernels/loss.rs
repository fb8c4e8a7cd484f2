//! Softmax cross-entropy and its gradient: `kernels/loss.cu`.

use super::operands::{Labels, SCRATCH, by_row, count, float_count, floats, one_block};
use crate::work::Argument::{F32, Read, Write};
use crate::work::{Argument, Kernel, Span};

/// The attributes of the loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossEntropy {
    /// Factor of each sample's loss.
    pub scale: f32,
    /// Label smoothing.
    pub smoothing: f32,
}

impl CrossEntropy {
    /// The target's share at every class, and that of the labels together beyond it.
    fn target(&self, classes: usize) -> [Argument; 2] {
        let smoothing = f64::from(self.smoothing);
        [smoothing / classes as f64, 1.0 - smoothing].map(|share| F32(share as f32))
    }

    /// The probabilities of `logits` `[N,K]`, the scaled sum of the losses, and the number of correct samples.
    pub fn forward(&self, logits: Span, labels: Labels, probabilities: Span, loss: Span, correct: Span) -> [Kernel; 2] {
        let samples = labels.samples();
        let classes = float_count(logits) / samples.max(1);
        let [losses, top_k_correct] = [0, samples].map(|start| floats(SCRATCH, start, samples));
        let [everywhere, extra] = self.target(classes);
        let results = [probabilities, losses, top_k_correct].map(Write);
        let numbers = [count(samples), count(classes), everywhere, extra];
        let of_samples = [&[Read(logits)], &labels.arguments()[..], &results, &numbers].concat();
        let sums =
            vec![Read(losses), Read(top_k_correct), Write(loss), Write(correct), count(samples), F32(self.scale)];
        [by_row("cross_entropy", samples, classes, of_samples), one_block("cross_entropy_sum", sums)]
    }

    /// The gradient of the logits, which may be at the place of the probabilities.
    pub fn backward(&self, probabilities: Span, labels: Labels, dlogits: Span) -> Kernel {
        let samples = labels.samples();
        let classes = float_count(probabilities) / samples.max(1);
        let [everywhere, extra] = self.target(classes);
        let numbers = [count(samples), count(classes), F32(self.scale), everywhere, extra];
        let arguments = [&[Read(probabilities)], &labels.arguments()[..], &[Write(dlogits)], &numbers].concat();
        by_row("cross_entropy_backward", samples, classes, arguments)
    }
}

#[cfg(test)]
#[path = "loss_tests.rs"]
mod tests;
