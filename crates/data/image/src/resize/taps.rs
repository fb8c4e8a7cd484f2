//! Weights of a filter along one axis, as Pillow's `precompute_coeffs` and `normalize_coeffs_8bpc` compute them.

use super::BITS;
use crate::Resampling;

/// What is resized along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Where it begins, in source positions.
    pub from: f64,
    /// Its length, in source positions.
    pub length: f64,
    /// Number of the source positions, counted from 0. There are no others.
    pub limit: usize,
    /// The length that it gets.
    pub full: usize,
    pub resampling: Resampling,
}

impl Axis {
    /// For all of `source` positions.
    pub fn whole(source: usize, full: usize, resampling: Resampling) -> Self {
        Axis { from: 0.0, length: source as f64, limit: source, full, resampling }
    }

    /// Whether it keeps its length and its positions.
    fn is_kept(&self) -> bool {
        self.from == 0.0 && self.limit == self.full && self.length == self.full as f64
    }

    /// Source positions for each output position, and for each unit of the filter.
    fn scale(&self) -> (f64, f64) {
        let scale = self.length / self.full as f64;
        (scale, scale.max(1.0))
    }

    /// The centre of an output position, and the source positions that it reads.
    fn window(&self, position: usize) -> (f64, usize, usize) {
        let (scale, unit) = self.scale();
        let support = self.resampling.support() * unit;
        let center = self.from + (position as f64 + 0.5) * scale;
        // `as` truncates and saturates, as the C code's casts and comparisons do together.
        let first = (center - support + 0.5) as usize;
        (center, first, ((center + support + 0.5) as usize).min(self.limit))
    }
}

/// The range of positions that the outputs `start..start + count` read in a resize from `source` to `full`.
pub(crate) fn span(
    (source, full): (usize, usize),
    resampling: Resampling,
    start: usize,
    count: usize,
) -> (usize, usize) {
    let axis = Axis::whole(source, full, resampling);
    if axis.is_kept() {
        return (start, start + count);
    }
    // Both ends increase with the outputs.
    (axis.window(start).1, axis.window(start + count - 1).2)
}

/// For each output position, the source positions that it reads, and their weights.
#[derive(Default)]
pub(super) struct Taps {
    /// First source position, and end of the weights in `weights`.
    pub outputs: Vec<(usize, usize)>,
    pub weights: Vec<i32>,
    /// Whether the axis keeps its length.
    pub copies: bool,
    /// The weights of an output before their sum is known.
    values: Vec<f64>,
}

impl Taps {
    /// Taps of outputs `start..start + count`.
    pub fn compute(&mut self, axis: &Axis, start: usize, count: usize) {
        self.outputs.clear();
        self.weights.clear();
        self.copies = axis.is_kept();
        if self.copies {
            self.weights.resize(count, 1 << BITS);
            self.outputs.extend((start..start + count).enumerate().map(|(i, at)| (at, i + 1)));
            return;
        }
        let (_, unit) = axis.scale();
        for position in start..start + count {
            let (center, first, end) = axis.window(position);
            let value = |at: usize| axis.resampling.value((at as f64 - center + 0.5) * (1.0 / unit));
            self.values.clear();
            self.values.extend((first..end).map(value));
            let sum: f64 = self.values.iter().sum();
            let fixed = |value: &f64| (0.5_f64.copysign(*value) + value / sum * f64::from(1 << BITS)) as i32;
            self.weights.extend(self.values.iter().map(fixed));
            self.outputs.push((first, self.weights.len()));
        }
    }

    /// First source position, and weights, of output `i`.
    pub fn of(&self, i: usize) -> (usize, &[i32]) {
        let begin = if i == 0 { 0 } else { self.outputs[i - 1].1 };
        (self.outputs[i].0, &self.weights[begin..self.outputs[i].1])
    }

    /// The range of source positions that all outputs read: both ends increase with the outputs.
    pub fn span(&self) -> (usize, usize) {
        let (last, weights) = self.of(self.outputs.len() - 1);
        (self.outputs[0].0, last + weights.len())
    }
}
