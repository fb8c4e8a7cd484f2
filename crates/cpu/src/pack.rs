//! Copies into the orders that the matrix product reads: rows of gathered pixels, and panels of weights or gradients.

use std::ops::Range;

use crate::isa::{Kernel, Simd};
use crate::region::Region;

/// A tensor `[batch, height, width, channels]`, of which the channels from `first` on are used (a group).
#[derive(Clone, Copy)]
pub(crate) struct Map {
    pub data: Region<f32>,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub first: usize,
}

/// The pixels of a regular lattice over every image of a batch, in row-major order. Lattice point (y, x) stands for the
/// pixel `(y * step + offset)` of a map; which step and offset depends on whose pixel is meant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lattice {
    /// Lattice rows.
    pub y: Range<usize>,
    /// Lattice columns.
    pub x: Range<usize>,
}

/// A point of a lattice, advanced row by row without divisions.
#[derive(Clone, Copy)]
struct Point {
    image: usize,
    y: usize,
    x: usize,
}

impl Lattice {
    /// Points per image.
    pub(crate) fn len(&self) -> usize {
        self.y.len() * self.x.len()
    }

    fn point(&self, index: usize) -> Point {
        let (image, rest) = (index / self.len(), index % self.len());
        Point { image, y: self.y.start + rest / self.x.len(), x: self.x.start + rest % self.x.len() }
    }

    #[inline(always)]
    fn advance(&self, point: &mut Point) {
        point.x += 1;
        if point.x == self.x.end {
            (point.x, point.y) = (self.x.start, point.y + 1);
            if point.y == self.y.end {
                (point.y, point.image) = (self.y.start, point.image + 1);
            }
        }
    }

    /// Writes where each point of `points` lies in a tensor of `size` `[height, width, channels]`, in values, for the
    /// pixel `point * step + offset`.
    pub(crate) fn locate(
        &self,
        points: Range<usize>,
        step: [usize; 2],
        offset: [usize; 2],
        size: [usize; 3],
        out: &mut [usize],
    ) {
        let mut point = self.point(points.start);
        for out in &mut out[..points.len()] {
            let (y, x) = (point.y * step[0] + offset[0], point.x * step[1] + offset[1]);
            *out = ((point.image * size[0] + y) * size[1] + x) * size[2];
            self.advance(&mut point);
        }
    }
}

/// A stretch of a packed row: neighbouring pixels of one row of the source, from the lattice point's own pixel plus an
/// offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Offset of the pixel row.
    pub dy: isize,
    /// Offset of the first pixel.
    pub dx: isize,
    /// Number of pixels; more than one only where all channels of the source are used.
    pub pixels: usize,
    /// Channels left out at the front of the first pixel.
    pub skip: usize,
    /// Values.
    pub len: usize,
}

/// Packs one row per lattice point: the runs one after another, zeros where they leave the map.
pub(crate) struct PackRows<'a> {
    pub source: Map,
    pub lattice: &'a Lattice,
    pub points: Range<usize>,
    /// Pixels of the source between lattice points.
    pub step: [usize; 2],
    pub runs: &'a [Run],
    pub out: Region<f32>,
    /// Values between packed rows.
    pub stride: usize,
}

impl Kernel for PackRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Map { data, height, width, channels, first } = self.source;
        let mut point = self.lattice.point(self.points.start);
        for row in 0..self.points.len() {
            let mut at = row * self.stride;
            for run in self.runs {
                let y = (point.y * self.step[0]) as isize + run.dy;
                let x = (point.x * self.step[1]) as isize + run.dx;
                let out = self.out.at(at, run.len);
                at += run.len;
                // Values left of the map and values up to its right edge, by whole pixels.
                let limit = |pixels: isize| (pixels.max(0) as usize * channels).saturating_sub(run.skip).min(run.len);
                let outside = y < 0 || y >= height as isize;
                let (low, high) = if outside { (0, 0) } else { (limit(-x), limit(width as isize - x)) };
                // SAFETY: values low..high of the run lie inside the map, and `out` holds the run.
                unsafe {
                    if low > 0 || high < run.len {
                        std::ptr::write_bytes(out, 0, low);
                        let high = high.max(low);
                        std::ptr::write_bytes(out.add(high), 0, run.len - high);
                    }
                    if high > low {
                        let pixel = (point.image * height + y as usize) * width;
                        let from = (pixel as isize + x) * channels as isize + (first + run.skip + low) as isize;
                        copy::<S>(data.at(from as usize, high - low), out.add(low), high - low);
                    }
                }
            }
            self.lattice.advance(&mut point);
        }
    }
}

/// Copies `len` values by vectors.
#[inline(always)]
unsafe fn copy<S: Simd>(from: *const f32, to: *mut f32, len: usize) {
    // SAFETY: both are valid for `len` values, which the last, overlapping vector does not leave.
    unsafe {
        if len < S::LANES {
            for i in 0..len {
                *to.add(i) = *from.add(i);
            }
            return;
        }
        let mut i = 0;
        while i + S::LANES <= len {
            S::store(to.add(i), S::load(from.add(i)));
            i += S::LANES;
        }
        if i < len {
            S::store(to.add(len - S::LANES), S::load(from.add(len - S::LANES)));
        }
    }
}

/// Packs the pixels of lattice points, as the rows of a matrix, into panels of columns (`[panel][point][width]`).
pub(crate) struct PackPixelPanels<'a> {
    pub source: Map,
    pub lattice: &'a Lattice,
    pub points: Range<usize>,
    /// Columns, counted from the source's first channel.
    pub columns: Range<usize>,
    pub width: usize,
    pub out: Region<f32>,
    /// Values between panels.
    pub panel: usize,
}

impl Kernel for PackPixelPanels<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Map { data, height, width, channels, first } = self.source;
        let mut point = self.lattice.point(self.points.start);
        for row in 0..self.points.len() {
            let pixel = ((point.image * height + point.y) * width + point.x) * channels + first;
            for (panel, column) in self.columns.clone().step_by(self.width).enumerate() {
                let n = (self.columns.end - column).min(self.width);
                let out = self.out.at(panel * self.panel + row * self.width, self.width);
                // SAFETY: `n` values of the pixel, and a row of the panel.
                unsafe { pad_copy::<S>(data.at(pixel + column, n), out, n, self.width) }
            }
            self.lattice.advance(&mut point);
        }
    }
}

/// Copies `n` values and fills up to `width` with zeros.
#[inline(always)]
pub(crate) unsafe fn pad_copy<S: Simd>(from: *const f32, to: *mut f32, n: usize, width: usize) {
    // SAFETY: `from` is valid for `n` values, `to` for `width`.
    unsafe {
        copy::<S>(from, to, n);
        for i in n..width {
            *to.add(i) = 0.0;
        }
    }
}

/// How stored weights `[tap][inputs][outputs]` become panels `[panel][depth][width]` of one group's B.
#[derive(Clone, Debug)]
pub(crate) struct WeightPanels {
    /// Which stored tap is at each packed position.
    pub order: Vec<usize>,
    /// Inputs per group, as stored.
    pub inputs: usize,
    /// Outputs of all groups.
    pub outputs: usize,
    /// Number of groups.
    pub groups: usize,
    /// The depth runs over outputs and the columns over inputs: the gradient of the input.
    pub transposed: bool,
    /// Columns of a panel.
    pub width: usize,
}

impl WeightPanels {
    fn group_outputs(&self) -> usize {
        self.outputs / self.groups
    }

    /// Depth values per tap.
    pub(crate) fn depth_per_tap(&self) -> usize {
        if self.transposed { self.group_outputs() } else { self.inputs }
    }

    /// Columns of a group's B.
    pub(crate) fn columns(&self) -> usize {
        if self.transposed { self.inputs } else { self.group_outputs() }
    }

    /// Values between panels.
    pub(crate) fn panel(&self) -> usize {
        self.order.len() * self.depth_per_tap() * self.width
    }

    /// Panels per group.
    pub(crate) fn panels(&self) -> usize {
        self.columns().div_ceil(self.width)
    }

    /// Values of all panels of all groups.
    pub(crate) fn len(&self) -> usize {
        self.groups * self.panels() * self.panel()
    }

    /// Pieces that can be packed independently.
    pub(crate) fn tasks(&self) -> usize {
        self.groups * self.panels() * self.order.len()
    }
}

/// Packs one piece of [`WeightPanels`]: one tap of one panel.
pub(crate) struct PackWeights<'a> {
    pub panels: &'a WeightPanels,
    pub weights: Region<f32>,
    pub out: Region<f32>,
    pub task: usize,
}

impl Kernel for PackWeights<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.panels;
        let (position, rest) = (self.task % p.order.len(), self.task / p.order.len());
        let (group, panel) = (rest / p.panels(), rest % p.panels());
        let (depth, width) = (p.depth_per_tap(), p.width);
        let column = panel * width;
        let n = (p.columns() - column).min(width);
        let tap = p.order[position] * p.inputs * p.outputs + group * p.group_outputs();
        let out = self.out.at(rest * p.panel() + position * depth * width, depth * width);
        // SAFETY: indices stay inside the stored weights and the piece of the panel.
        unsafe {
            if !p.transposed {
                for k in 0..depth {
                    pad_copy::<S>(self.weights.at(tap + k * p.outputs + column, n), out.add(k * width), n, width);
                }
                return;
            }
            // A transposition, in blocks of 16 depths so that each stored line is read while it is in the first-level
            // cache.
            let from = self.weights.at(tap + column * p.outputs, 0).cast_const();
            for block in (0..depth).step_by(16) {
                for k in block..(block + 16).min(depth) {
                    for j in 0..n {
                        *out.add(k * width + j) = *from.add(j * p.outputs + k);
                    }
                    for j in n..width {
                        *out.add(k * width + j) = 0.0;
                    }
                }
            }
        }
    }
}
