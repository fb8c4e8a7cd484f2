//! The transforms of weights: from stored taps to 36 planes, and from the gradient of 36 planes to that of the taps.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::tiles::Planes;
use super::transform;
use super::{PLANES, odd_lines};
use crate::element::Element;
use crate::gemm::MAX_PANEL_WIDTH;
use crate::inlined::{each_vector, inlined};
use crate::isa::{Kernel, Simd};
use crate::pack::pad_copy;
use crate::region::Region;

/// Maximum number of depths that are transformed at a time: each stored line of the weights is read while it is in the
/// first-level cache.
pub(super) const DEPTHS: usize = 16;
/// Taps of the filter.
pub(super) const TAPS: usize = 9;

/// Stored weights, `[tap][inputs][outputs]`, and how they are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filters {
    pub inputs: usize,
    pub outputs: usize,
    /// For the gradient of the input: taps in reverse order, and the depth runs over outputs.
    pub flipped: bool,
}

impl Filters {
    pub(super) fn depth(&self) -> usize {
        if self.flipped { self.outputs } else { self.inputs }
    }

    pub(super) fn columns(&self) -> usize {
        if self.flipped { self.inputs } else { self.outputs }
    }
}

/// Positions of the words of 36 matrices of transformed weights: `[plane][panel][words of the depth][width]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightLayout {
    /// Columns of a panel.
    pub width: usize,
    /// Words from panel to panel.
    pub panel: usize,
    /// Words from plane to plane: an odd number of cache lines.
    pub plane: usize,
}

impl WeightLayout {
    /// The layout for a depth of `depth` words.
    pub(super) fn new(depth: usize, columns: usize, width: usize) -> Self {
        let panel = depth * width;
        WeightLayout { width, panel, plane: odd_lines(columns.div_ceil(width) * panel) }
    }

    /// Words of all matrices.
    pub(super) fn len(&self) -> usize {
        PLANES * self.plane
    }
}

/// Transforms some depths of the weights, at most [`DEPTHS`], for one panel of columns.
pub(super) struct TransformWeights<P> {
    pub filters: Filters,
    pub weights: Region<f32>,
    /// Starts at a whole word.
    pub depths: Range<usize>,
    /// First column of the panel.
    pub column: usize,
    /// Memory for the transformed weights, starting at the first depth in plane 0.
    pub out: Region<f32>,
    pub layout: WeightLayout,
    pub element: PhantomData<P>,
}

impl<P: Element> Kernel for TransformWeights<P> {
    const BF16: bool = P::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let WeightLayout { width, plane, .. } = self.layout;
        let words = self.depths.len().div_ceil(P::PER_WORD);
        let values = words * P::PER_WORD * width;
        let mut taps = [MaybeUninit::<f32>::uninit(); TAPS * DEPTHS * MAX_PANEL_WIDTH];
        let taps: *mut f32 = taps.as_mut_ptr().cast();
        // SAFETY: indices stay inside the stored weights, the rows of each plane, and the block of taps.
        unsafe {
            for tap in 0..TAPS {
                let to = taps.add(tap * values);
                self.gather::<S>(tap, to);
                let gathered = self.depths.len() * width;
                std::ptr::write_bytes(to.add(gathered), 0, values - gathered);
            }
            let out = self.out.at(0, (PLANES - 1) * plane + words * width);
            for at in (0..words * width).step_by(S::LANES) {
                // The first depth of the word, and the next.
                let first = at / width * P::PER_WORD * width + at % width;
                let second = first + (P::PER_WORD - 1) * width;
                let first = columns::<S>(taps.add(first), values);
                let second = if P::PER_WORD > 1 { columns::<S>(taps.add(second), values) } else { first };
                for i in 0..6 {
                    let values = transform::filter::<S>(first[i]);
                    let others = if P::PER_WORD > 1 { transform::filter::<S>(second[i]) } else { values };
                    for j in 0..6 {
                        S::store(out.add((i * 6 + j) * plane + at), P::word::<S>(values[j], others[j]));
                    }
                }
            }
        }
    }
}

/// The transform of a filter's columns, for a vector of filters whose taps are `tap` values apart.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices of a known range are what the compiler unrolls")]
unsafe fn columns<S: Simd>(taps: *const f32, tap: usize) -> [[S::V; 3]; 6] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut half = [[S::splat(0.0); 3]; 6];
        for x in 0..3 {
            let mut column = [S::splat(0.0); 3];
            for y in 0..3 {
                column[y] = S::load(taps.add((y * 3 + x) * tap));
            }
            let column = transform::filter::<S>(column);
            for i in 0..6 {
                half[i][x] = column[i];
            }
        }
        half
    }
}

impl<P: Element> TransformWeights<P> {
    inlined! {
        /// Copies a tap's weights to `[depth][width]`, with zeros for columns that do not exist.
        unsafe fn gather<S: Simd>(&self, tap: usize, to: *mut f32) {
            let Filters { inputs, outputs, flipped } = self.filters;
            let (width, column) = (self.layout.width, self.column);
            let columns = width.min(self.filters.columns() - column);
            if !flipped {
                for (row, depth) in self.depths.clone().enumerate() {
                    let from = self.weights.at((tap * inputs + depth) * outputs + column, columns);
                    pad_copy::<S>(from, to.add(row * width), columns, width);
                }
                return;
            }
            for j in 0..columns {
                let from = ((TAPS - 1 - tap) * inputs + column + j) * outputs + self.depths.start;
                let from = self.weights.at(from, self.depths.len());
                for row in 0..self.depths.len() {
                    *to.add(row * width + j) = *from.add(row);
                }
            }
            for row in 0..self.depths.len() {
                for j in columns..width {
                    *to.add(row * width + j) = 0.0;
                }
            }
        }
    }
}

/// Transforms 36 matrices of products, `[plane][input][output]`, back to the gradient of the taps of
/// some inputs and outputs.
pub(super) struct TransformGradient {
    pub matmuls: Planes,
    /// The gradient, `[tap][inputs][outputs]`.
    pub gradient: Region<f32>,
    pub size: [usize; 2],
    pub inputs: Range<usize>,
    pub outputs: Range<usize>,
    /// Whether to add to the existing gradient.
    pub add: bool,
}

impl Kernel for TransformGradient {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for input in self.inputs.clone() {
            // SAFETY: the caller's promise, for every weight once.
            unsafe { each_vector!(S, output in self.outputs.clone() => self, transform(input, output)) }
        }
    }
}

impl TransformGradient {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "indices of a known range are what the compiler unrolls")]
    unsafe fn transform<S: Simd>(&self, input: usize, output: usize) {
        let [inputs, outputs] = self.size;
        // SAFETY: the caller's promise.
        unsafe {
            let (row, column) = (input - self.inputs.start, output - self.outputs.start);
            let from = self.matmuls.at(row, column, S::LANES).cast_const();
            let mut half = [[S::splat(0.0); 6]; 3];
            for j in 0..6 {
                let mut column = [S::splat(0.0); 6];
                for i in 0..6 {
                    column[i] = S::load(from.add((i * 6 + j) * self.matmuls.layout.plane));
                }
                let column = transform::filter_gradient::<S>(column);
                for y in 0..3 {
                    half[y][j] = column[y];
                }
            }
            for y in 0..3 {
                let values = transform::filter_gradient::<S>(half[y]);
                for x in 0..3 {
                    let to = self.gradient.at(((y * 3 + x) * inputs + input) * outputs + output, S::LANES);
                    let value = if self.add { S::add(S::load(to), values[x]) } else { values[x] };
                    S::store(to, value);
                }
            }
        }
    }
}
