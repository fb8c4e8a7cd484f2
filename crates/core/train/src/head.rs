//! The head of a model, trained alone on features that are computed once: multinomial logistic regression, by L-BFGS, as scikit-learn's
//! `LogisticRegression`. How strongly weights are held small is chosen by the loss on the validation part.
//!
//! It is a function of the features alone, and sums have one order, so it gives the same bits at any number of ranks, of which the first
//! computes it for all.

use std::collections::VecDeque;
use std::ops::Range;

use crate::Features;
use crate::features::dot;

/// Factors of the squared weights in the loss, the largest first: each begins with the weights of the one before.
const PENALTIES: [f64; 6] = [1.0, 0.3, 0.1, 0.03, 0.01, 0.003];

/// Most steps of the solver for a penalty, and the products of a row and the weights of a class that they may take in all, within limits:
/// for many classes of many images the head need not be the best, which could take days.
const STEPS: usize = 200;
const MIN_STEPS: usize = 10;
const PRODUCTS: usize = 400_000_000_000;

/// Earlier steps from which the solver estimates curvature.
const MEMORY: usize = 10;

/// The largest slope at which the solver has arrived.
const FLAT: f64 = 1e-4;

/// A linear layer from features to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// `[classes, width]`.
    pub weight: Vec<f32>,
    /// One number a class.
    pub bias: Vec<f32>,
    /// The penalty that was chosen.
    pub penalty: f64,
    /// The weighted loss on the training part.
    pub loss: f64,
    /// The hits on the training part.
    pub correct: u64,
}

impl Head {
    /// The head of the lowest validation loss for these features of the training and of the validation part. In both losses the images of
    /// a class count as much as its weight says.
    pub fn fit(train: &Features, validation: &Features, weights: &[f32]) -> Self {
        let scale = Scale::of(train);
        let classes = weights.len();
        let [train, validation] = [train, validation].map(|features| Problem::new(features, &scale, weights));
        let mut best: Option<(f64, f64, Vec<f64>)> = None;
        let mut weights = vec![0.0; classes * (train.width + 1)];
        let steps = (PRODUCTS / (train.rows.len() * classes).max(1)).clamp(MIN_STEPS, STEPS);
        for penalty in PENALTIES {
            minimize(&mut weights, steps, &mut |weights, gradient| train.loss(weights, penalty, gradient).0);
            // Without a validation part a penalty of the middle is as good as any.
            let found = match validation.labels.len() {
                0 => (penalty / PENALTIES[PENALTIES.len() / 2]).ln().abs(),
                _ => validation.loss(&weights, 0.0, &mut []).0,
            };
            match &best {
                // Weaker ones fit the training part alone.
                Some((least, ..)) if found > *least => break,
                _ => best = Some((found, penalty, weights.clone())),
            }
        }
        let (_, penalty, weights) = best.unwrap_or((0.0, 0.0, weights));
        let (loss, correct) = train.loss(&weights, 0.0, &mut []);
        let (weight, bias) = scale.undo(&weights, train.width);
        Head { weight, bias, penalty, loss, correct }
    }
}

/// The mean of each feature, and the reciprocal std of all together: features that vary little say little, so they keep their
/// proportions (0.922 instead of 0.910 on a thousand flowers, 5 splits).
struct Scale {
    mean: Vec<f64>,
    factor: f64,
}

impl Scale {
    fn of(features: &Features) -> Self {
        let mut mean = vec![0.0; features.width];
        let count = features.rows().count().max(1) as f64;
        for (row, _) in features.rows() {
            row.iter().zip(&mut mean).for_each(|(value, mean)| *mean += f64::from(*value) / count);
        }
        let squared = |(value, mean): (&f32, &f64)| (f64::from(*value) - mean).powi(2);
        let squares: f64 = features.rows().flat_map(|(row, _)| row.iter().zip(&mean).map(squared)).sum();
        let std = (squares / (count * features.width as f64)).sqrt();
        // Features that are always the same say nothing.
        Scale { mean, factor: if std > 0.0 { 1.0 / std } else { 0.0 } }
    }

    /// The weights and biases for features that are not scaled.
    fn undo(&self, weights: &[f64], width: usize) -> (Vec<f32>, Vec<f32>) {
        let mut weight = Vec::with_capacity(weights.len());
        let mut bias = Vec::new();
        for row in weights.chunks_exact(width + 1) {
            let unscaled: Vec<f64> = row[..width].iter().map(|weight| weight * self.factor).collect();
            let shift: f64 = unscaled.iter().zip(&self.mean).map(|(weight, mean)| weight * mean).sum();
            bias.push((row[width] - shift) as f32);
            weight.extend(unscaled.into_iter().map(|weight| weight as f32));
        }
        (weight, bias)
    }
}

/// Scaled features with their classes.
struct Problem {
    width: usize,
    classes: usize,
    rows: Vec<f32>,
    labels: Vec<usize>,
    /// Of each class.
    weights: Vec<f64>,
}

impl Problem {
    fn new(features: &Features, scale: &Scale, weights: &[f32]) -> Self {
        let mut rows = Vec::with_capacity(features.values.len());
        let mut labels = Vec::new();
        for (row, label) in features.rows() {
            let scaled = row.iter().zip(&scale.mean);
            rows.extend(scaled.map(|(value, mean)| ((f64::from(*value) - mean) * scale.factor) as f32));
            labels.push(label);
        }
        let weights = weights.iter().map(|&weight| weight.into()).collect::<Vec<_>>();
        Problem { width: features.width, classes: weights.len(), rows, labels, weights }
    }

    /// The mean weighted cross-entropy of `weights`, `[classes, width + 1]` with the bias last, plus half the penalty of their squares without
    /// biases, and the number of hits. Fills `gradient` unless it is empty.
    fn loss(&self, weights: &[f64], penalty: f64, gradient: &mut [f64]) -> (f64, u64) {
        let count = self.labels.len().max(1) as f64;
        let narrow: Vec<f32> = weights.iter().map(|weight| *weight as f32).collect();
        let parts = self.parts(&narrow, gradient.len());
        gradient.fill(0.0);
        let (mut loss, mut correct) = (0.0, 0);
        for part in parts {
            loss += part.loss / count;
            correct += part.correct;
            gradient.iter_mut().zip(&part.gradient).for_each(|(sum, slope)| *sum += slope / count);
        }
        for (class, of_class) in weights.chunks_exact(self.width + 1).enumerate() {
            for (feature, weight) in of_class[..self.width].iter().enumerate() {
                loss += penalty / 2.0 * weight * weight;
                if let Some(slope) = gradient.get_mut(class * (self.width + 1) + feature) {
                    *slope += penalty * weight;
                }
            }
        }
        (loss, correct)
    }

    /// The sums of as many parts of the rows at any number of threads, so that their sum has the same bits.
    fn parts(&self, weights: &[f32], gradient: usize) -> Vec<Sums> {
        const PARTS: usize = 8;
        let rows = self.labels.len().div_ceil(PARTS).max(1);
        let part = |number: usize| {
            let range = (number * rows).min(self.labels.len())..((number + 1) * rows).min(self.labels.len());
            self.part(range, weights, gradient)
        };
        // Fewer rows take less time than a thread.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(PARTS);
        if threads < 2 || self.rows.len() * self.classes < 1 << 20 {
            return (0..PARTS).map(part).collect();
        }
        std::thread::scope(|scope| {
            let spawn =
                |first: usize| scope.spawn(move || (first..PARTS).step_by(threads).map(part).collect::<Vec<_>>());
            let running: Vec<_> = (0..threads).map(spawn).collect();
            let of_thread = running.into_iter().map(|thread| {
                let parts = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                parts.into_iter()
            });
            let mut of_thread: Vec<_> = of_thread.collect();
            (0..PARTS).filter_map(|number| of_thread[number % threads].next()).collect()
        })
    }

    /// The sums over some rows.
    fn part(&self, range: Range<usize>, weights: &[f32], gradient: usize) -> Sums {
        let &Problem { width, classes, .. } = self;
        let mut part = Sums { loss: 0.0, correct: 0, gradient: vec![0.0; gradient] };
        let mut logits = vec![0.0; classes];
        // Sums over some rows in f32, and of these in f64.
        const ROWS: usize = 64;
        let mut sums = vec![0.0_f32; gradient];
        let rows = self.rows[range.start * width..range.end * width].chunks(ROWS * width);
        for (rows, labels) in rows.zip(self.labels[range].chunks(ROWS)) {
            sums.fill(0.0);
            for (row, &label) in rows.chunks_exact(width).zip(labels) {
                for (logit, of_class) in logits.iter_mut().zip(weights.chunks_exact(width + 1)) {
                    *logit = f64::from(dot(row, &of_class[..width]) + of_class[width]);
                }
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                part.correct += u64::from(logits.iter().position(|logit| *logit == largest) == Some(label));
                let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
                let counts = self.weights[label];
                part.loss += counts * (sum.ln() + largest - logits[label]);
                for (class, of_class) in sums.chunks_exact_mut(width + 1).enumerate() {
                    let probability = (logits[class] - largest).exp() / sum;
                    let slope = (counts * (probability - f64::from(u8::from(class == label)))) as f32;
                    of_class.iter_mut().zip(row).for_each(|(sum, value)| *sum += slope * value);
                    of_class[width] += slope;
                }
            }
            part.gradient.iter_mut().zip(&sums).for_each(|(slope, sum)| *slope += f64::from(*sum));
        }
        part
    }
}

/// Sums over some rows.
struct Sums {
    loss: f64,
    correct: u64,
    gradient: Vec<f64>,
}

/// Moves `point` to a minimum of `function`, which fills the gradient: L-BFGS, each of whose steps is halved until the loss falls as
/// much as a tenth of a thousandth of the slope promises (Nocedal and Wright, algorithms 7.4 and 3.1).
fn minimize(point: &mut Vec<f64>, steps: usize, function: &mut dyn FnMut(&[f64], &mut [f64]) -> f64) {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut gradient = vec![0.0; point.len()];
    let mut value = function(point, &mut gradient);
    // Differences of points and of gradients, the latest last, with the reciprocal of their product.
    let mut history: VecDeque<(Vec<f64>, Vec<f64>, f64)> = VecDeque::new();
    for _ in 0..steps {
        if gradient.iter().all(|slope| slope.abs() <= FLAT) {
            return;
        }
        let mut direction: Vec<f64> = gradient.iter().map(|slope| -slope).collect();
        let mut shares = Vec::with_capacity(history.len());
        for (moved, turned, scale) in history.iter().rev() {
            let share = scale * product(moved, &direction);
            direction.iter_mut().zip(turned).for_each(|(direction, turned)| *direction -= share * turned);
            shares.push(share);
        }
        // Without a history the first step has length 1.
        let length = match history.back() {
            Some((_, turned, scale)) => 1.0 / (scale * product(turned, turned)),
            None => 1.0 / product(&gradient, &gradient).sqrt(),
        };
        direction.iter_mut().for_each(|direction| *direction *= length);
        for ((moved, turned, scale), share) in history.iter().zip(shares.iter().rev()) {
            let share = share - scale * product(turned, &direction);
            direction.iter_mut().zip(moved).for_each(|(direction, moved)| *direction += share * moved);
        }
        let slope = product(&gradient, &direction);
        let mut step = 1.0;
        let mut slopes = vec![0.0; point.len()];
        let (next, found) = loop {
            let next: Vec<f64> = point.iter().zip(&direction).map(|(at, direction)| at + step * direction).collect();
            let found = function(&next, &mut slopes);
            if found <= value + 1e-4 * step * slope {
                break (next, found);
            }
            step /= 2.0;
            if step < 1e-10 {
                // Rounding hides what is left.
                return;
            }
        };
        let moved: Vec<f64> = next.iter().zip(&*point).map(|(next, point)| next - point).collect();
        let turned: Vec<f64> = slopes.iter().zip(&gradient).map(|(next, slope)| next - slope).collect();
        let curvature = product(&moved, &turned);
        // The loss is convex, so only rounding makes it less.
        if curvature > 0.0 {
            history.push_back((moved, turned, 1.0 / curvature));
        }
        if history.len() > MEMORY {
            history.pop_front();
        }
        (*point, gradient, value) = (next, slopes, found);
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::RandomStream;

    use super::*;

    /// Two classes around centres of their own, in features of which one is always the same.
    fn clouds(seed: u64, images: usize) -> Features {
        let mut random = RandomStream::new(seed, "clouds", 0, 0);
        let mut features = Features { width: 3, values: Vec::new(), labels: Vec::new() };
        for image in 0..images {
            let class = image % 2;
            let mut near = |centre: f32| centre + random.uniform(0.0, 1.0) as f32;
            features.values.extend([near(3.0 * class as f32), near(100.0), 7.0]);
            features.labels.push(class as i64);
        }
        features
    }

    #[test]
    fn a_head_of_features() {
        let (mut train, validation) = (clouds(1, 40), clouds(2, 10));
        // What cannot be read has no influence.
        train.labels.push(-1);
        train.values.extend([f32::NAN; 3]);
        let head = Head::fit(&train, &validation, &[1.0; 2]);
        assert_eq!((head.weight.len(), head.bias.len(), head.correct), (6, 2, 40));
        assert!(head.loss < 0.1, "{head:?}");
        let least = PENALTIES[PENALTIES.len() - 1];
        assert_eq!(head.penalty, least, "classes that lie apart");
        for (row, label) in validation.rows() {
            let logit = |class: usize| dot(row, &head.weight[class * 3..][..3]) + head.bias[class];
            assert!(logit(label) > logit(1 - label), "{row:?}");
        }
        assert_eq!(Head::fit(&train, &validation, &[1.0; 2]), head, "the same bits");
        let none = Features { width: 3, values: Vec::new(), labels: Vec::new() };
        assert_eq!(Head::fit(&train, &none, &[1.0; 2]).penalty, PENALTIES[3]);
        assert_eq!(Head::fit(&none, &none, &[1.0; 2]).weight, [0.0; 6]);
    }

    /// At the minimum no gradient is left, and that of the loss is its difference quotient.
    #[test]
    fn gradients_of_the_loss() {
        let features = clouds(3, 10);
        let problem = Problem::new(&features, &Scale::of(&features), &[0.5, 2.0]);
        let weights: Vec<f64> = (0..8).map(|i| f64::from(i) * 0.25 - 1.0).collect();
        let mut gradient = vec![0.0; 8];
        problem.loss(&weights, 0.5, &mut gradient);
        for (index, slope) in gradient.iter().enumerate() {
            let at = |step: f64| {
                let mut weights = weights.clone();
                weights[index] += step;
                problem.loss(&weights, 0.5, &mut []).0
            };
            let quotient = (at(0.0625) - at(-0.0625)) / 0.125;
            assert!((quotient - slope).abs() < 1e-2 * (1.0 + slope.abs()), "{index}: {quotient} {slope}");
        }
    }

    /// An image of weight 3 is three of weight 1. Half as many images are then as many in all.
    #[test]
    fn weights_count_like_copies() {
        let features = clouds(4, 10);
        let mut copies = features.clone();
        for (row, label) in features.rows().filter(|(_, label)| *label == 1) {
            (0..2).for_each(|_| copies.values.extend(row));
            copies.labels.extend([label as i64; 2]);
        }
        let scale = Scale::of(&features);
        let weights: Vec<f64> = (0..8).map(|i| f64::from(i) * 0.25 - 1.0).collect();
        let found = |features: &Features, of_classes: &[f32]| {
            let mut gradient = vec![0.0; 8];
            let (loss, correct) = Problem::new(features, &scale, of_classes).loss(&weights, 0.5, &mut gradient);
            gradient.push(loss);
            (gradient, correct)
        };
        let (weighted, correct) = found(&features, &[0.5, 1.5]);
        let (copied, _) = found(&copies, &[1.0; 2]);
        // Sums over rows are f32.
        weighted.iter().zip(copied).for_each(|(a, b)| assert!((a - b).abs() < 1e-5 * (1.0 + b.abs()), "{a} {b}"));
        assert_eq!(correct, found(&features, &[1.0; 2]).1, "hits have no weights");
    }

    /// Enough rows for several threads.
    #[test]
    fn threads_do_not_change_the_bits() {
        let features = Features { width: 256, values: vec![0.5; 256 * 2100], labels: vec![1; 2100] };
        let scale = Scale { mean: vec![0.25; 256], factor: 3.0 };
        let problem = Problem::new(&features, &scale, &[1.0; 2]);
        let weights: Vec<f32> = (0..514).map(|i| (i % 7) as f32 * 0.125).collect();
        let found = problem.parts(&weights, 514);
        assert_eq!(found.len(), 8);
        for (number, part) in found.iter().enumerate() {
            let range = number * 263..((number + 1) * 263).min(2100);
            let expected = problem.part(range, &weights, 514);
            assert_eq!(
                (part.loss, part.correct, &part.gradient),
                (expected.loss, expected.correct, &expected.gradient)
            );
        }
    }

    #[test]
    fn the_solver_finds_the_bottom_of_a_narrow_valley() {
        let mut point = vec![5.0, -3.0, 1.0];
        let centre = [1.0, 2.0, -1.0];
        let stretch = [1.0, 100.0, 10.0];
        minimize(&mut point, STEPS, &mut |point, gradient| {
            let mut value = 0.0;
            for axis in 0..3 {
                let offset = point[axis] - centre[axis];
                value += stretch[axis] * offset * offset / 2.0;
                gradient[axis] = stretch[axis] * offset;
            }
            value
        });
        point.iter().zip(centre).for_each(|(found, expected)| assert!((found - expected).abs() < 2e-4, "{point:?}"));
    }
}
