//! Groups of few channels, blended: neighbouring groups become one, whose weights from one of them to another are zero.
//!
//! A panel of weights has as many columns as registers hold, whether or not a group has outputs enough to fill it. Blended
//! groups fill it: as many multiplications, in fewer and longer products. An input that is infinite or NaN then reaches the outputs of
//! its neighbours too, as NaN.

use super::geometry::ConvShape;
use crate::gemm::panel_width;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::region::Region;

/// How the groups of a convolution are blended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blend {
    /// Groups that become one.
    count: usize,
    groups: usize,
    taps: usize,
    /// Inputs of a group.
    inputs: usize,
    /// Outputs of all groups.
    outputs: usize,
}

impl Blend {
    /// As many groups as fill a panel; `columns` are those that each has in the product.
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

    /// Values of the blended weights; 0 where they are the weights themselves.
    pub(super) fn len(&self) -> usize {
        if self.count == 1 { 0 } else { self.taps * self.count * self.inputs * self.outputs }
    }

    /// The weights `[tap][inputs][outputs]`, or the blended ones, written to `blended`.
    ///
    /// # Safety
    /// The regions are valid, and `blended` is used by nobody else.
    pub(super) unsafe fn spread(&self, pool: &mut Pool, weights: Region<f32>, blended: Region<f32>) -> Region<f32> {
        if self.count == 1 {
            return weights;
        }
        let rows = self.count * self.inputs;
        pool.run(self.taps * rows, |row, _| {
            let (tap, member, input) = (row / rows, row % rows / self.inputs, row % self.inputs);
            // SAFETY: a row of the blended weights that is this task's, and one of the weights.
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

    /// Takes the gradient of the weights out of that of the blended ones.
    ///
    /// # Safety
    /// The regions are valid, and `gradient` is used by nobody else.
    pub(super) unsafe fn collect(&self, pool: &mut Pool, blended: Region<f32>, gradient: Region<f32>) {
        let rows = self.count * self.inputs;
        pool.run(self.taps * self.inputs, |row, _| {
            let (tap, input) = (row / self.inputs, row % self.inputs);
            // SAFETY: a row of the gradient that is this task's, and those of the blended one that it is made of.
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

    /// The outputs of the groups that are the one of this number within the blended ones.
    fn columns(&self, member: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (each, count) = (self.outputs / self.groups, self.count);
        (member..self.groups).step_by(count).map(move |group| group * each..(group + 1) * each)
    }
}
