//! Blends groups of few channels: neighbouring groups become one, with zero weights between different original groups.
//!
//! A panel of weights has as many columns as fit in registers, whether or not a group has enough outputs to fill it.
//! Blended groups fill it: the number of multiplications stays the same, but the matmuls are fewer and longer. An
//! infinite or NaN input of a group then also reaches the outputs of the blended neighbours, as NaN.

use super::geometry::ConvShape;
use crate::gemm::panel_width;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::region::Region;

/// How the groups of a convolution are blended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blend {
    /// Number of groups that become one.
    count: usize,
    groups: usize,
    taps: usize,
    /// Inputs of one group.
    inputs: usize,
    /// Outputs of all groups.
    outputs: usize,
}

impl Blend {
    /// Blends the number of groups that fills a panel; `columns` is the number of columns of one group in the matmul.
    pub(super) fn new(shape: &ConvShape, columns: usize, isa: Isa) -> Self {
        let groups = shape.conv.groups;
        let fits = |count: &usize| groups.is_multiple_of(*count) && count * columns <= panel_width(isa);
        let [height, width] = shape.conv.window.kernel;
        Blend {
            count: (1..=groups).rev().find(fits).unwrap_or(1),
            groups,
            taps: height * width,
            inputs: shape.input[2] / groups,
            outputs: shape.output[2],
        }
    }

    /// The convolution with blended groups.
    pub(super) fn shape(&self, shape: &ConvShape) -> ConvShape {
        let mut blended = *shape;
        blended.conv.groups = self.groups / self.count;
        blended
    }

    /// Values of the blended weights; 0 if the weights are used as they are.
    pub(super) fn len(&self) -> usize {
        if self.count == 1 { 0 } else { self.taps * self.count * self.inputs * self.outputs }
    }

    /// Returns the weights `[tap][inputs][outputs]`, or the blended ones, which it writes to `blended`.
    ///
    /// # Safety
    /// The regions are valid, and no other code uses `blended`.
    pub(super) unsafe fn spread(&self, pool: &mut Pool, weights: Region<f32>, blended: Region<f32>) -> Region<f32> {
        if self.count == 1 {
            return weights;
        }
        let rows = self.count * self.inputs;
        pool.run(self.taps * rows, |row, _| {
            let tap = row / rows;
            let member = row % rows / self.inputs;
            let input = row % self.inputs;
            // SAFETY: this task's row of the blended weights, and a row of the weights.
            unsafe {
                let to = blended.slice_mut(row * self.outputs, self.outputs);
                let from = weights.slice((tap * self.inputs + input) * self.outputs, self.outputs);
                to.fill(0.0);
                for columns in self.columns(member) {
                    to[columns.clone()].copy_from_slice(&from[columns]);
                }
            }
        });
        blended
    }

    /// Extracts the gradient of the weights from that of the blended ones.
    ///
    /// # Safety
    /// The regions are valid, and no other code uses `gradient`.
    pub(super) unsafe fn collect(&self, pool: &mut Pool, blended: Region<f32>, gradient: Region<f32>) {
        let rows = self.count * self.inputs;
        pool.run(self.taps * self.inputs, |row, _| {
            let tap = row / self.inputs;
            let input = row % self.inputs;
            // SAFETY: this task's row of the gradient, and the rows of the blended gradient that it consists of.
            unsafe {
                let to = gradient.slice_mut(row * self.outputs, self.outputs);
                for member in 0..self.count {
                    let from = tap * rows + member * self.inputs + input;
                    let from = blended.slice(from * self.outputs, self.outputs);
                    for columns in self.columns(member) {
                        to[columns.clone()].copy_from_slice(&from[columns]);
                    }
                }
            }
        });
    }

    /// The outputs of the groups at position `member` within their blended groups.
    fn columns(&self, member: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let each = self.outputs / self.groups;
        let count = self.count;
        (member..self.groups).step_by(count).map(move |group| group * each..(group + 1) * each)
    }
}
