//! Copies into the layouts that the matmul reads: rows of gathered pixels, and panels of weights or gradients.

mod weights;

use std::ops::Range;

pub(crate) use weights::{WeightPanels, pack_weights};

use crate::conv::{Load, Normalizer, with_load};
use crate::element::{Element, copy};
use crate::gemm::MAX_PANEL_WIDTH;
use crate::isa::{Kernel, Simd, values_ahead};
use crate::region::Region;

/// A tensor `[batch, height, width, channels]`, of which the channels from `first` are used (a group).
#[derive(Clone, Copy)]
pub(crate) struct FeatureMap<E> {
    pub data: Region<E>,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub first: usize,
}

impl<E> FeatureMap<E> {
    /// The distance in values to prefetch ahead, for pixels that are `step` apart.
    #[inline(always)]
    fn ahead(&self, step: usize) -> usize {
        let values = step * self.channels;
        values_ahead::<E>().div_ceil(values) * values
    }
}

/// The pixels of a regular lattice over every image of a batch, in row-major order. Lattice point (y, x) represents the
/// pixel `(y * step + offset)` of a feature map; step and offset depend on the feature map.
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
        let image = index / self.len();
        let rest = index % self.len();
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

    /// Writes the position, in values, of each point of `points` in a tensor of `size` `[height, width, channels]`, for
    /// the pixel `point * step + offset`.
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

/// A run of a packed row: adjacent pixels of one row of the source, starting at the lattice point's own pixel plus an
/// offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Offset of the pixel row.
    pub dy: isize,
    /// Offset of the first pixel.
    pub dx: isize,
    /// Number of pixels; more than one only if all channels of the source are used.
    pub pixels: usize,
    /// Channels to skip at the start of the first pixel.
    pub skip: usize,
    /// Number of values.
    pub len: usize,
}

/// Packs one row per lattice point: the runs one after another, with zeros outside the feature map.
pub(crate) struct PackRows<'a, E, P> {
    pub source: FeatureMap<E>,
    pub norm: Option<Normalizer>,
    pub lattice: &'a Lattice,
    pub points: Range<usize>,
    /// Pixels of the source between lattice points.
    pub step: [usize; 2],
    pub runs: &'a [Run],
    /// Rows of words. The last word of a row is filled up with zeros.
    pub out: Region<P>,
    /// Values between packed rows.
    pub stride: usize,
}

impl<E: Element, P: Element> Kernel for PackRows<'_, E, P> {
    const BF16: bool = E::BF16 || P::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { with_load!(self.norm, load => self.rows::<S, _>(load)) }
    }
}

impl<E: Element, P: Element> PackRows<'_, E, P> {
    #[inline(always)]
    unsafe fn rows<S: Simd, L: Load>(&self, load: L) {
        let mut point = self.lattice.point(self.points.start);
        let inside = self.inside();
        let values: usize = self.runs.iter().map(|run| run.len).sum();
        let words = values.next_multiple_of(P::PER_WORD);
        for row in 0..self.points.len() {
            let out = self.out.at(row * self.stride, words);
            // SAFETY: the caller's promise; rows are whole words.
            unsafe {
                self.row::<S, L>(load, &inside, point, out);
                (values..words).for_each(|i| *out.add(i) = P::ZERO);
            }
            self.lattice.advance(&mut point);
        }
    }

    /// Rows and columns of the pixels whose runs all stay inside the feature map.
    fn inside(&self) -> [Range<isize>; 2] {
        let [mut y, mut x] = [self.source.height, self.source.width].map(|size| 0..size as isize);
        for run in self.runs {
            (y.start, y.end) = (y.start.max(-run.dy), y.end.min(self.source.height as isize - run.dy));
            (x.start, x.end) =
                (x.start.max(-run.dx), x.end.min(self.source.width as isize - run.dx - run.pixels as isize + 1));
        }
        [y, x]
    }

    /// How far ahead to prefetch, in values. `None` if there are several runs, since most of the values that they read
    /// were read before.
    #[inline(always)]
    fn ahead(&self) -> Option<usize> {
        (self.runs.len() == 1).then(|| self.source.ahead(self.step[1]))
    }

    /// The pixel of the source that a point represents.
    #[inline(always)]
    fn pixel(&self, point: Point) -> [isize; 2] {
        [(point.y * self.step[0]) as isize, (point.x * self.step[1]) as isize]
    }

    /// Whether all runs of a point stay inside the feature map; `inside` comes from [`PackRows::inside`].
    #[inline(always)]
    fn is_inside(&self, inside: &[Range<isize>; 2], point: Point) -> bool {
        let [y, x] = self.pixel(point);
        inside[0].contains(&y) && inside[1].contains(&x)
    }

    /// The position of a channel of a pixel inside the feature map.
    #[inline(always)]
    fn value(&self, image: usize, [y, x]: [isize; 2], channel: usize) -> usize {
        let FeatureMap { height, width, channels, first, .. } = self.source;
        let pixel = ((image * height) as isize + y) * width as isize + x;
        (pixel * channels as isize + (first + channel) as isize) as usize
    }

    /// Where a point's run begins. The run must stay inside the feature map.
    #[inline(always)]
    fn start(&self, point: Point, run: &Run) -> usize {
        let [y, x] = self.pixel(point);
        self.value(point.image, [y + run.dy, x + run.dx], run.skip)
    }

    /// Packs the row of a point; `inside` comes from [`PackRows::inside`].
    #[inline(always)]
    unsafe fn row<S: Simd, L: Load>(&self, load: L, inside: &[Range<isize>; 2], point: Point, mut out: *mut P) {
        let FeatureMap { data, height, width, channels, first } = self.source;
        // Most pixels need no border checks; if runs are short, the checks cost as much as the copy.
        if self.is_inside(inside, point) {
            let ahead = self.ahead();
            for run in self.runs {
                if let Some(ahead) = ahead {
                    data.prefetch(self.start(point, run), ahead, run.len);
                }
                // SAFETY: the run lies inside the feature map, and `out` holds it.
                unsafe {
                    load.copy::<S, E, P>(data, self.start(point, run), first + run.skip, run.len, out);
                    out = out.add(run.len);
                }
            }
            return;
        }
        let [y, x] = self.pixel(point);
        for run in self.runs {
            let (y, x) = (y + run.dy, x + run.dx);
            // The number of values left of the feature map, and of values up to its right edge, in whole pixels.
            let limit = |pixels: isize| (pixels.max(0) as usize * channels).saturating_sub(run.skip).min(run.len);
            let outside = y < 0 || y >= height as isize;
            let (low, high) = if outside { (0, 0) } else { (limit(-x), limit(width as isize - x)) };
            // SAFETY: values low..high of the run lie inside the feature map, and `out` holds the run.
            unsafe {
                if low > 0 || high < run.len {
                    std::ptr::write_bytes(out, 0, low);
                    let high = high.max(low);
                    std::ptr::write_bytes(out.add(high), 0, run.len - high);
                }
                if high > low {
                    let from = self.value(point.image, [y, x], run.skip + low);
                    load.copy::<S, E, P>(data, from, (first + run.skip + low) % channels, high - low, out.add(low));
                }
                out = out.add(run.len);
            }
        }
    }
}

/// Packs the rows of lattice points into words along the points: one row of words per point in f32, one per two points
/// in bf16. The last of these may be filled up with zeros.
pub(crate) struct PackRowWords<'a, E> {
    /// Describes a point's row. Its output, of two rows, is where rows are gathered.
    pub rows: PackRows<'a, E, E>,
    pub out: Region<f32>,
    /// Words between rows of words.
    pub stride: usize,
    /// Values of a point's row.
    pub columns: usize,
}

impl<E: Element> Kernel for PackRowWords<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { with_load!(self.rows.norm, load => self.words::<S, _>(load)) }
    }
}

impl<E: Element> PackRowWords<'_, E> {
    #[inline(always)]
    unsafe fn words<S: Simd, L: Load>(&self, load: L) {
        let rows = &self.rows;
        let mut point = rows.lattice.point(rows.points.start);
        let inside = rows.inside();
        if E::PER_WORD == 1 {
            for row in 0..rows.points.len() {
                // SAFETY: the output is the caller's; words are values here.
                unsafe { rows.row::<S, L>(load, &inside, point, self.out.at(row * self.stride, self.columns).cast()) };
                rows.lattice.advance(&mut point);
            }
            return;
        }
        let gathered = [0, rows.stride].map(|start| rows.out.at(start, self.columns));
        for (word, first) in (0..rows.points.len()).step_by(E::PER_WORD).enumerate() {
            let mut pair = [point; 2];
            rows.lattice.advance(&mut pair[1]);
            let is_inside = pair.iter().all(|point| rows.is_inside(&inside, *point));
            if first + 1 < rows.points.len() && is_inside && rows.norm.is_none() {
                let mut out = self.out.at(word * self.stride, self.columns);
                let ahead = rows.ahead();
                for run in rows.runs {
                    if let Some(ahead) = ahead {
                        pair.iter().for_each(|&p| rows.source.data.prefetch(rows.start(p, run), ahead, run.len));
                    }
                    let from = pair.map(|point| rows.source.data.at(rows.start(point, run), run.len).cast_const());
                    // SAFETY: the run lies inside the feature map for both points, and the output holds it.
                    unsafe {
                        E::words::<S>(from, run.len, out);
                        out = out.add(run.len);
                    }
                }
                point = pair[1];
                rows.lattice.advance(&mut point);
                continue;
            }
            for (half, at) in (first..first + E::PER_WORD).enumerate() {
                // SAFETY: the gathered rows and the output are the caller's, and have equally many columns.
                unsafe {
                    if at < rows.points.len() {
                        rows.row::<S, L>(load, &inside, point, gathered[half]);
                        rows.lattice.advance(&mut point);
                    } else {
                        std::ptr::write_bytes(gathered[half], 0, self.columns);
                    }
                }
            }
            let out = self.out.at(word * self.stride, self.columns);
            // SAFETY: as above.
            unsafe { E::words::<S>(gathered.map(|row| row.cast_const()), self.columns, out) }
        }
    }
}

/// Packs the pixels of lattice points, as the rows of a matrix, into panels of columns `[panel][words of points][width]`.
pub(crate) struct PackPixelPanels<'a, E> {
    pub source: FeatureMap<E>,
    pub lattice: &'a Lattice,
    pub points: Range<usize>,
    /// Columns, counted from the source's first channel.
    pub columns: Range<usize>,
    pub width: usize,
    pub out: Region<f32>,
    /// Words between panels.
    pub panel: usize,
}

impl<E: Element> Kernel for PackPixelPanels<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let FeatureMap { data, height, width, channels, first } = self.source;
        let zeros = [E::ZERO; MAX_PANEL_WIDTH];
        let ahead = self.source.ahead(1);
        let mut point = self.lattice.point(self.points.start);
        let mut left = self.points.len();
        for row in 0..left.div_ceil(E::PER_WORD) {
            let pixels: [Option<usize>; 2] = std::array::from_fn(|half| {
                if half == E::PER_WORD || left == 0 {
                    return None;
                }
                let pixel = ((point.image * height + point.y) * width + point.x) * channels + first;
                self.lattice.advance(&mut point);
                left -= 1;
                Some(pixel)
            });
            for (panel, column) in self.columns.clone().step_by(self.width).enumerate() {
                let n = (self.columns.end - column).min(self.width);
                let out = self.out.at(panel * self.panel + row * self.width, self.width);
                let values = |pixel: Option<usize>| match pixel {
                    Some(pixel) => {
                        data.prefetch(pixel + column, ahead, n);
                        data.at(pixel + column, n).cast_const()
                    }
                    None => zeros.as_ptr(),
                };
                // SAFETY: `n` values of the pixels, and a row of the panel.
                unsafe {
                    E::words::<S>(pixels.map(values), n, out);
                    fill(out, n, self.width);
                }
            }
        }
    }
}

/// Writes zeros from value `n` up to `width`.
#[inline(always)]
unsafe fn fill(to: *mut f32, n: usize, width: usize) {
    for i in n..width {
        // SAFETY: the caller's promise: `to` is valid for `width` values.
        unsafe { *to.add(i) = 0.0 };
    }
}

/// Copies `n` values and fills up to `width` with zeros.
#[inline(always)]
pub(crate) unsafe fn pad_copy<S: Simd>(from: *const f32, to: *mut f32, n: usize, width: usize) {
    // SAFETY: `from` is valid for `n` values, `to` for `width`.
    unsafe {
        copy::<S, f32, f32>(from, to, n);
        fill(to, n, width);
    }
}
