//! Functions of logits and labels, sample by sample. Each sample is an independent task, and sums are computed in f64,
//! in order.

use crate::inlined::inlined;
use crate::isa::Simd;
use crate::labels::Labels;
use crate::region::Region;
use crate::sweep::{self, Pass};
use crate::workspace::Context;

/// 1 at each sample's label, 0 elsewhere; of a mixture the lambdas of both labels.
///
/// # Safety
/// Regions are valid: for each label a row of `targets`, which is written.
pub(crate) unsafe fn targets(context: &mut Context, labels: Labels, targets: Region<f32>) {
    let classes = targets.len() / labels.own.len().max(1);
    context.pool.run(labels.own.len(), |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        let (labels, row) = unsafe { (labels.at(sample), targets.slice_mut(sample * classes, classes)) };
        for (class, target) in row.iter_mut().enumerate() {
            *target = labels.share_of(class) as f32;
        }
    });
}

/// 1 for each sample whose label is among the `k` largest logits, else 0.
///
/// # Safety
/// Regions are valid: for each label a row of logits and a hit. Labels are below the number of classes; the hits are
/// written.
pub(crate) unsafe fn top_k_correct(
    context: &mut Context,
    k: usize,
    logits: Region<f32>,
    labels: Region<i32>,
    top_k_correct: Region<f32>,
) {
    let classes = logits.len() / labels.len().max(1);
    context.pool.run(labels.len(), |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        unsafe {
            let row = logits.slice(sample * classes, classes);
            let label = *labels.at(sample, 1);
            let hit = usize::try_from(label).is_ok_and(|label| is_top_k_correct(row, label, k));
            *top_k_correct.at(sample, 1) = f32::from(u8::from(hit));
        }
    });
}

/// Whether fewer than `k` logits rank before the label's: larger ones, and equal ones of lower classes.
fn is_top_k_correct(row: &[f32], label: usize, k: usize) -> bool {
    let own = row[label];
    let is_before = |(class, &other): (usize, &f32)| other > own || (other == own && class < label);
    let before = row.iter().enumerate().filter(|&logit| is_before(logit)).count();
    !own.is_nan() && before < k
}

/// The sum over samples, times `scale`.
///
/// # Safety
/// Regions are valid: equally many values and labels, and one sum, which is written.
pub(crate) unsafe fn sample_sum(scale: f32, values: Region<f32>, labels: Region<i32>, sum: Region<f32>) {
    // SAFETY: the caller's promise.
    let (values, labels) = unsafe { (values.slice(0, values.len()), labels.slice(0, labels.len())) };
    // Places without a sample may hold any value.
    let samples = values.iter().zip(labels).filter(|(_, label)| **label >= 0);
    let total = samples.fold(0.0, |total, (&value, _)| total + f64::from(value));
    // SAFETY: as above.
    unsafe { *sum.at(0, 1) = (total * f64::from(scale)) as f32 };
}

/// The gradient of each value of [`sample_sum`].
///
/// # Safety
/// Regions are valid: equally many labels and gradients, which are written.
pub(crate) unsafe fn sample_sum_backward(scale: f32, labels: Region<i32>, dvalues: Region<f32>) {
    // SAFETY: the caller's promise.
    let (labels, dvalues) = unsafe { (labels.slice(0, labels.len()), dvalues.slice_mut(0, labels.len())) };
    dvalues.iter_mut().zip(labels).for_each(|(dvalue, &label)| *dvalue = if label >= 0 { scale } else { 0.0 });
}

/// `x`, with zeros in places without a sample.
///
/// # Safety
/// Regions are valid: for each label a row of `x` and of `y`, which is written and may coincide with `x`.
pub(crate) unsafe fn mask(context: &mut Context, x: Region<f32>, labels: Region<i32>, y: Region<f32>) {
    let classes = x.len() / labels.len().max(1);
    context.pool.run(labels.len(), |sample, _| {
        for at in sample * classes..(sample + 1) * classes {
            // SAFETY: the caller's promise; each task has its own sample, and values are read before they are written.
            unsafe { *y.at(at, 1) = if *labels.at(sample, 1) >= 0 { *x.at(at, 1) } else { 0.0 } };
        }
    });
}

/// The logarithm of the softmax of each row of classes.
///
/// # Safety
/// Regions are valid and equally long, of whole rows; `y` is written.
pub(crate) unsafe fn log_softmax(context: &mut Context, classes: usize, x: Region<f32>, y: Region<f32>) {
    context.pool.run(x.len() / classes.max(1), |sample, _| {
        let first = sample * classes;
        // SAFETY: the caller's promise; each task has its own sample.
        let (x, y) = unsafe { (x.slice(first, classes), y.slice_mut(first, classes)) };
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Subtracting the largest logit changes only the range of the exponentials.
        let sum: f64 = x.iter().map(|&x| f64::from(x - largest).exp()).sum();
        let log_sum = f64::from(largest) + sum.ln();
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = (f64::from(x) - log_sum) as f32);
    });
}

/// `dy - exp(y) * sum of dy` of each row of classes.
///
/// # Safety
/// Regions are valid and equally long, of whole rows; `dx` is written.
pub(crate) unsafe fn log_softmax_backward(
    context: &mut Context,
    classes: usize,
    dy: Region<f32>,
    y: Region<f32>,
    dx: Region<f32>,
) {
    context.pool.run(dy.len() / classes.max(1), |sample, _| {
        let first = sample * classes;
        // SAFETY: the caller's promise; each task has its own sample.
        let (dy, y, dx) = unsafe { (dy.slice(first, classes), y.slice(first, classes), dx.slice_mut(first, classes)) };
        let sum: f64 = dy.iter().map(|&dy| f64::from(dy)).sum();
        for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
            *dx = (f64::from(dy) - f64::from(y).exp() * sum) as f32;
        }
    });
}

/// Each class times its factor.
///
/// # Safety
/// Regions are valid and equally long, of whole rows with one class per factor; `y` is written.
pub(crate) unsafe fn scale_classes(context: &mut Context, factors: &[f32], x: Region<f32>, y: Region<f32>) {
    let classes = factors.len();
    context.pool.run(x.len() / classes.max(1), |sample, _| {
        let first = sample * classes;
        // SAFETY: the caller's promise; each task has its own sample.
        let (x, y) = unsafe { (x.slice(first, classes), y.slice_mut(first, classes)) };
        y.iter_mut().zip(x).zip(factors).for_each(|((y, x), factor)| *y = x * factor);
    });
}

struct Scaled {
    factor: f32,
    x: Region<f32>,
    y: Region<f32>,
}

impl Pass for Scaled {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) {
            let x = S::load(self.x.at(index, S::LANES));
            S::store(self.y.at(index, S::LANES), S::mul(x, S::splat(self.factor)))
        }
    }
}

/// Every element times the factor.
///
/// # Safety
/// Regions are valid and equally long; `y` is written, and may coincide with `x`.
pub(crate) unsafe fn scale(context: &mut Context, factor: f32, x: Region<f32>, y: Region<f32>) {
    // SAFETY: the caller's promise.
    unsafe { sweep::flat(context, x.len(), &Scaled { factor, x, y }) }
}

/// The sum over the classes of each sample.
///
/// # Safety
/// Regions are valid: a row of `x` for each of the sums `y`, which are written.
pub(crate) unsafe fn sum_classes(context: &mut Context, x: Region<f32>, y: Region<f32>) {
    let classes = x.len() / y.len().max(1);
    context.pool.run(y.len(), |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        unsafe {
            let row = x.slice(sample * classes, classes);
            *y.at(sample, 1) = row.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
        }
    });
}

/// The gradient of a sum over classes, at each class.
///
/// # Safety
/// Regions are valid: a row of `dx`, which is written, for each of `dy`.
pub(crate) unsafe fn sum_classes_backward(context: &mut Context, dy: Region<f32>, dx: Region<f32>) {
    let classes = dx.len() / dy.len().max(1);
    context.pool.run(dy.len(), |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        unsafe { dx.slice_mut(sample * classes, classes).fill(*dy.at(sample, 1)) };
    });
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
