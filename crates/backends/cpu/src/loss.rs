//! Softmax cross-entropy with label smoothing. Each sample is an independent task; the losses are added in order, in f64.

use crate::labels::{Labels, SampleLabels};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Attributes of the loss, and the sizes of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossEntropy {
    pub samples: usize,
    pub classes: usize,
    pub scale: f32,
    pub smoothing: f32,
}

/// f32 values of workspace for a sample's loss and hit, which are two f64 values.
const RECORD: usize = 4;

impl CrossEntropy {
    /// Workspace that [`forward`] needs.
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: RECORD * self.samples, private: 0 }
    }

    /// The smoothed target: the share of every class, and the additional share of the labels together.
    fn target(&self) -> (f64, f64) {
        let smoothing = f64::from(self.smoothing);
        (smoothing / self.classes as f64, 1.0 - smoothing)
    }
}

/// Writes probabilities, the scaled sum of losses, and the number of correct samples.
///
/// # Safety
/// Regions are valid: `samples * classes` logits and probabilities, labels below `classes`, one loss and one count.
pub(crate) unsafe fn forward(
    context: &mut Context,
    c: &CrossEntropy,
    logits: Region<f32>,
    labels: Labels,
    probabilities: Region<f32>,
    loss: Region<f32>,
    correct: Region<f32>,
) {
    let records: *mut [f64; 2] = context.shared.at(0, RECORD * c.samples).cast();
    let records = Region::new(records, c.samples);
    context.pool.run(c.samples, |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        unsafe {
            let at = sample * c.classes;
            let logits = logits.slice(at, c.classes);
            let probabilities = probabilities.slice_mut(at, c.classes);
            *records.at(sample, 1) = one(c, logits, labels.at(sample), probabilities);
        }
    });
    // SAFETY: all records are written; for the rest, the caller's promise.
    unsafe {
        let records = records.slice(0, c.samples);
        *loss.at(0, 1) = (records.iter().map(|r| r[0]).sum::<f64>() * f64::from(c.scale)) as f32;
        *correct.at(0, 1) = records.iter().map(|r| r[1]).sum::<f64>() as f32;
    }
}

/// Loss and hit of one sample.
fn one(c: &CrossEntropy, logits: &[f32], labels: SampleLabels, probabilities: &mut [f32]) -> [f64; 2] {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for &logit in logits {
        // Subtracting the largest logit changes only the range of the exponentials.
        sum += f64::from(logit - largest).exp();
    }
    let log_sum = f64::from(largest) + sum.ln();
    for (probability, &logit) in probabilities.iter_mut().zip(logits) {
        *probability = (f64::from(logit) - log_sum).exp() as f32;
    }
    let Ok(label) = usize::try_from(labels.own) else { return [0.0; 2] };
    let (everywhere, extra) = c.target();
    let cross = |weight: f64, logit: f32| if weight == 0.0 { 0.0 } else { weight * (log_sum - f64::from(logit)) };
    let mut loss: f64 = labels.lambdas().map(|(label, share)| cross(extra * share, logits[label])).sum();
    if everywhere != 0.0 {
        loss += logits.iter().map(|&logit| cross(everywhere, logit)).sum::<f64>();
    }
    let hit = logits.iter().position(|&logit| logit == largest) == Some(label);
    [loss, f64::from(u8::from(hit))]
}

/// `scale * (probability - target)`; 0 for a place without a sample.
///
/// # Safety
/// Regions are valid, as in [`forward`]; `dlogits` is written, and may coincide with `probabilities`.
pub(crate) unsafe fn backward(
    context: &mut Context,
    c: &CrossEntropy,
    probabilities: Region<f32>,
    labels: Labels,
    dlogits: Region<f32>,
) {
    let (everywhere, extra) = c.target();
    context.pool.run(c.samples, |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample, and values are read before they are written.
        unsafe {
            let labels = labels.at(sample);
            for class in 0..c.classes {
                let at = sample * c.classes + class;
                let target = everywhere + extra * labels.share_of(class);
                let value = f64::from(*probabilities.at(at, 1)) - target;
                *dlogits.at(at, 1) = if labels.own < 0 { 0.0 } else { (value * f64::from(c.scale)) as f32 };
            }
        }
    });
}

/// Writes the numbers that a shard shares with the others to where the sum over shards expects them: its loss at its
/// own place among all shards' losses, then its other numbers, and at the end 1 for each request that it makes.
///
/// # Safety
/// Regions are valid, of one value each except `metrics`. `metrics` is written, and ends in a place for each number and
/// request.
pub(crate) unsafe fn share(
    shard: usize,
    loss: Region<f32>,
    numbers: &[Region<f32>],
    requests: [bool; 2],
    metrics: Region<f32>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let shared = metrics.slice_mut(0, metrics.len());
        shared.fill(0.0);
        shared[shard] = *loss.at(0, 1);
        let rest = numbers.iter().map(|number| *number.at(0, 1));
        let rest = rest.chain(requests.map(|request| f32::from(u8::from(request))));
        let shards = shared.len() - numbers.len() - requests.len();
        shared[shards..].iter_mut().zip(rest).for_each(|(place, number)| *place = number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Edge, Guarded, GuardedContext};
    use crate::isa::Isa;
    use crate::test_support::{assert_near, noise};

    /// Samples, classes, smoothing, and whether they are mixtures.
    const SIZES: [(usize, usize, f32, bool); 6] = [
        (1, 2, 0.0, false),
        (5, 10, 0.1, false),
        (7, 33, 0.0, false),
        (1, 2, 0.0, true),
        (11, 5, 0.1, true),
        (23, 7, 0.0, true),
    ];

    #[test]
    fn equals_the_definition() {
        for (samples, classes, smoothing, mixed) in SIZES {
            let logits: Vec<f32> = noise(1, samples * classes).iter().map(|v| v * 9.0 + 500.0).collect();
            let labels: Vec<i32> = (0..samples).map(|i| (i * 5 % (classes + 1)) as i32 - 1).collect();
            let others: Vec<i32> = (0..samples).map(|i| (i * 3 % classes) as i32).collect();
            // Exact lambdas: all, none, and parts.
            let lambdas: Vec<f32> = (0..samples).map(|i| (i * 5 % 9) as f32 / 8.0).collect();
            let c = CrossEntropy { samples, classes, scale: 0.25, smoothing };
            let mut expected = 0.0;
            let mut gradient = Vec::new();
            let mut top_k_correct = 0.0;
            let mut softmax = Vec::new();
            for (sample, (row, &label)) in logits.chunks(classes).zip(&labels).enumerate() {
                let share = if mixed { f64::from(lambdas[sample]) } else { 1.0 };
                let e: Vec<f64> = row.iter().map(|&v| (f64::from(v) - 500.0).exp()).collect();
                let sum: f64 = e.iter().sum();
                let best = (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
                top_k_correct += f64::from(u8::from(best as i32 == label));
                for (class, e) in e.iter().enumerate() {
                    let smoothing = f64::from(smoothing);
                    let at = |label: i32| f64::from(u8::from(class as i32 == label));
                    let hot = at(label) * share + at(others[sample]) * (1.0 - share);
                    let target = hot * (1.0 - smoothing) + smoothing / classes as f64;
                    softmax.push(e / sum);
                    expected -= if label < 0 { 0.0 } else { 0.25 * target * (e / sum).ln() };
                    gradient.push(if label < 0 { 0.0 } else { 0.25 * (e / sum - target) });
                }
            }
            for (threads, edge) in [(1, Edge::First), (3, Edge::Last)] {
                let context = &mut GuardedContext::new(edge, threads, Isa::Portable, c.workspace());
                let logits = Guarded::new(edge, &logits);
                let labels = Guarded::new(edge, &labels);
                let others = Guarded::new(edge, &others);
                let lambdas = Guarded::new(edge, &lambdas);
                let mixture = mixed.then(|| (Region::of(&others), Region::of(&lambdas)));
                let y = Labels { own: Region::of(&labels), mixture };
                let mut p = Guarded::filled(edge, 0.0, logits.len());
                let mut loss = [0.0];
                let mut correct = [0.0];
                // SAFETY: live buffers of the right sizes.
                unsafe {
                    let x = Region::of(&logits);
                    let (loss, correct) = (Region::of_mut(&mut loss), Region::of_mut(&mut correct));
                    forward(context, &c, x, y, Region::of_mut(&mut p), loss, correct);
                }
                assert_near("probabilities", &p, &softmax, 1e-6);
                assert_near("loss", &loss, &[expected], 1e-6);
                assert_near("correct", &correct, &[top_k_correct], 0.0);
                let over = Region::of_mut(&mut p);
                // SAFETY: as above; the gradient coincides with the probabilities.
                unsafe { backward(context, &c, over, y, over) };
                assert_near("gradient", &p, &gradient, 1e-6);
            }
        }
    }

    #[test]
    fn shared_numbers_have_fixed_places() {
        let check = |shard, loss: f32, numbers: &[f32], requests, expected: &[f32]| {
            let mut metrics = vec![9.0; expected.len()];
            let numbers: Vec<_> = numbers.iter().map(|number| Region::of(std::slice::from_ref(number))).collect();
            // SAFETY: live buffers of the right sizes.
            unsafe { share(shard, Region::of(&[loss]), &numbers, requests, Region::of_mut(&mut metrics)) };
            assert_eq!(metrics, expected);
        };
        check(1, 0.5, &[3.0], [false, true], &[0.0, 0.5, 0.0, 3.0, 0.0, 1.0]);
        check(0, 0.5, &[3.0, 7.0], [true, false], &[0.5, 3.0, 7.0, 1.0, 0.0]);
    }

    #[test]
    fn ties_go_to_the_first_and_nan_is_seen() {
        let c = CrossEntropy { samples: 1, classes: 3, scale: 1.0, smoothing: 0.0 };
        let check = |logits: [f32; 3], label, loss: f64, hit: f64| {
            let labels = SampleLabels { own: label, other: label, share: 1.0 };
            let [found, correct] = one(&c, &logits, labels, &mut [0.0; 3]);
            assert!((found - loss).abs() < 1e-6 || (found.is_nan() && loss.is_nan()), "{found} {loss}");
            assert_eq!(correct, hit);
        };
        check([1.0, 1.0, f32::NEG_INFINITY], 0, 2f64.ln(), 1.0);
        check([1.0, 1.0, f32::NEG_INFINITY], 1, 2f64.ln(), 0.0);
        check([f32::NAN, 0.0, 0.0], 2, f64::NAN, 0.0);
        check([5.0, 1.0, 2.0], -1, 0.0, 0.0);
    }
}
