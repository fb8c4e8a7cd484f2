//! Functions of logits and labels, sample by sample: `kernels/samples.cu`. Matrices are `[N,K]`, labels `i32 [N]`.

use super::operands::{Labels, by_row, count, float_count, one_block};
use crate::work::Argument::{F32, Read, Write};
use crate::work::{Argument, Constants, Kernel, Span};

/// A kernel whose blocks take one of `samples` rows of `classes` at a time. Both numbers follow the operands.
fn by_sample(name: &str, operands: &[Argument], samples: usize, classes: usize) -> Kernel {
    by_row(name, samples, classes, [operands, &[count(samples), count(classes)]].concat())
}

/// The logarithm of the softmax over `classes`.
pub(crate) fn log_softmax(classes: usize, x: Span, y: Span) -> Kernel {
    by_sample("log_softmax", &[Read(x), Write(y)], float_count(x) / classes.max(1), classes)
}

/// `dy - exp(y) * sum of dy over classes`.
pub(crate) fn log_softmax_backward(classes: usize, dy: Span, y: Span, dx: Span) -> Kernel {
    by_sample("log_softmax_backward", &[Read(dy), Read(y), Write(dx)], float_count(dy) / classes.max(1), classes)
}

/// Each class times its factor.
pub(crate) fn scale_classes(factors: &[f32], x: Span, y: Span, constants: &mut Constants) -> Kernel {
    let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_ne_bytes()).collect();
    let operands = [Read(x), Read(constants.add(&bytes)), Write(y)];
    by_sample("scale_classes", &operands, float_count(x) / factors.len().max(1), factors.len())
}

/// The sum over classes of each sample, `[N]`.
pub(crate) fn sum_classes(x: Span, y: Span) -> Kernel {
    let samples = float_count(y);
    by_sample("sum_classes", &[Read(x), Write(y)], samples, float_count(x) / samples.max(1))
}

/// `dy` `[N]` at every class.
pub(crate) fn sum_classes_backward(dy: Span, dx: Span) -> Kernel {
    let samples = float_count(dy);
    by_sample("sum_classes_backward", &[Read(dy), Write(dx)], samples, float_count(dx) / samples.max(1))
}

/// 1 at each sample's label, 0 elsewhere; of mixtures the lambdas of both labels.
pub(crate) fn targets(labels: Labels, targets: Span) -> Kernel {
    let samples = labels.samples();
    let operands = [&labels.arguments()[..], &[Write(targets)]].concat();
    by_sample("targets", &operands, samples, float_count(targets) / samples.max(1))
}

/// 1 for each sample whose label is among its `k` largest logits, else 0.
pub(crate) fn top_k_correct(k: usize, logits: Span, labels: Span, top_k_correct: Span) -> Kernel {
    let samples = float_count(labels);
    let operands = [Read(logits), Read(labels), Write(top_k_correct)];
    let mut kernel = by_sample("hits", &operands, samples, float_count(logits) / samples.max(1));
    kernel.arguments.push(count(k));
    kernel
}

/// The sum over samples, times `scale`.
pub(crate) fn sample_sum(scale: f32, values: Span, labels: Span, sum: Span) -> Kernel {
    one_block("sample_sum", vec![Read(values), Read(labels), Write(sum), count(float_count(labels)), F32(scale)])
}

/// The gradient of each value of [`sample_sum`].
pub(crate) fn sample_sum_backward(scale: f32, labels: Span, dvalues: Span) -> Kernel {
    one_block("sample_sum_backward", vec![Read(labels), Write(dvalues), count(float_count(labels)), F32(scale)])
}

/// `x`, with zeros where there is no sample. `y` may be at the place of `x`.
pub(crate) fn mask_samples(x: Span, labels: Span, y: Span) -> Kernel {
    let samples = float_count(labels);
    by_sample("mask_samples", &[Read(x), Read(labels), Write(y)], samples, float_count(x) / samples.max(1))
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
