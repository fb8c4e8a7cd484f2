//! The source of a convolution of groups, as the loops over pixels read it: rows in f32 with zeros on either side, each
//! pixel once for every input of a group.

use std::ops::Range;

use super::super::geometry::{self, ConvShape};
use super::super::source::{Load, Source, Stored, with_load};
use crate::element::Element;
use crate::gemm::panel_width;
use crate::inlined::inlined;
use crate::isa::{Isa, MAX_LANES, Simd, values_ahead};
use crate::region::Region;

/// Values of staged rows per thread, where possible: a quarter of a second-level cache of 1 MiB.
const STAGED: usize = 1 << 16;
/// Rows of the result that are computed together, so that they share weights and what they read.
const ROWS: usize = 4;
/// Channels per task, if there are as many, for which fewer rows are computed together: short pieces of pixels are slow to
/// read from memory.
const CHANNELS: usize = 256;
/// Minimum channels per task, if there are as many.
const MIN_CHANNELS: usize = 64;
/// Widths of tiles: pixels that are computed together.
const TILES: [usize; 3] = [8, 7, 4];

/// A row of the result: the kernel rows that meet the source, each with the staged row.
pub(super) struct Row {
    pub taps: Vec<(usize, usize)>,
}

/// Rows of the result, and the rows of the source that are staged for them.
pub(super) struct Step {
    pub rows: Range<usize>,
    pub sources: Range<usize>,
}

/// Pixels of a row of the result that meet the same taps, but for those that meet the zeros.
pub(super) struct Columns {
    pub points: usize,
    /// Pixels of the result between points, and the first.
    pub step: usize,
    pub offset: usize,
    /// Values of a staged row between points.
    pub source_step: usize,
    /// Points that are computed together.
    pub tile: usize,
    /// For each tap and input: the place in a staged row, and in a row of the kernel.
    pub taps: Vec<(usize, usize)>,
}

/// How the source is staged, and what is computed from it.
pub(super) struct Staging {
    pub batch: usize,
    /// Height and width.
    source: [usize; 2],
    pub result: [usize; 2],
    pub channels: usize,
    /// Channels of a group.
    pub each: usize,
    /// For each input of a group: the lane of a vector that each lane takes its input from.
    lanes: Vec<[i32; MAX_LANES]>,
    /// Channels of a vector.
    pub vector: usize,
    /// Channels of a task, in whole vectors.
    pub block: usize,
    pub rows: Vec<Row>,
    pub steps: Vec<Step>,
    pub columns: Vec<Columns>,
    /// Pixels of a staged row, of which those from `left` are the source's.
    width: usize,
    left: usize,
    /// Number of staged rows; row y of the source lies at `y % slots`.
    slots: usize,
}

impl Staging {
    pub(super) fn new(shape: &ConvShape, isa: Isa, backward: bool) -> Self {
        let [source, result] = shape.source_and_result(backward);
        let channels = shape.input[2];
        let each = shape.input[2] / shape.conv.groups;
        let vector = panel_width(isa) / 2;
        let columns = geometry::tap_runs(shape, 1, false, backward);
        let places = || columns.iter().flat_map(|run| run.taps.iter().map(|&(_, d)| d));
        let left = places().min().unwrap_or(0).min(0).unsigned_abs();
        let mut width = left;
        let mut tiles = Vec::new();
        for run in &columns {
            let points = run.points.len();
            let cost = |&tile: &usize| points.div_ceil(tile) * (tile + 2);
            let tile = TILES.into_iter().min_by_key(cost).unwrap_or(TILES[0]);
            let last = (points.div_ceil(tile) * tile - 1) * run.source_step;
            let end = run.taps.iter().map(|&(_, d)| (last + 1 + left).strict_add_signed(d)).max();
            width = width.max(end.unwrap_or(0));
            tiles.push(tile);
        }
        let rows = Self::rows(shape, result[0], backward);
        let steps = |rows_of_step: usize| Self::steps(&rows, rows_of_step);
        let slots = |steps: &[Step]| steps.iter().map(|step| step.sources.len()).max().unwrap_or(0).max(1);
        let room = |steps: &[Step]| STAGED / (slots(steps) * width.max(1) * each);
        let chosen = (1..=ROWS).rev().map(steps).find(|steps| room(steps) >= channels.min(CHANNELS));
        let steps = chosen.unwrap_or_else(|| steps(1));
        let vectors = channels.div_ceil(vector);
        let pieces = vectors.div_ceil((room(&steps).max(MIN_CHANNELS) / vector).min(vectors));
        let block = vectors.div_ceil(pieces) * vector;
        let slots = slots(&steps);
        let pixel = block * each;
        let columns = columns.iter().zip(tiles).map(|(run, tile)| {
            let tap = |&(k, d): &(usize, isize)| {
                let pixels = (d + left as isize) as usize;
                (0..each).map(move |input| (pixels * pixel + input * vector, (k * each + input) * vector))
            };
            let taps = run.taps.iter().flat_map(tap).collect();
            let source_step = run.source_step * pixel;
            Columns { points: run.points.len(), step: run.step, offset: run.offset, source_step, tile, taps }
        });
        let columns = columns.collect();
        let kernel_row = shape.conv.window.kernel[1] * each * vector;
        let place = |&(k, y): &(usize, usize)| (k * kernel_row, y % slots * width * pixel);
        let rows = rows.iter().map(|row| Row { taps: row.taps.iter().map(place).collect() }).collect();
        Staging {
            batch: shape.batch,
            source: [source[0], source[1]],
            result: [result[0], result[1]],
            channels,
            each,
            lanes: (0..each).map(|k| std::array::from_fn(|lane| (lane / each * each + k) as i32)).collect(),
            vector,
            block,
            rows,
            steps,
            columns,
            width,
            left,
            slots,
        }
    }

    /// For each row of the result, the kernel rows and the rows of the source that meet.
    fn rows(shape: &ConvShape, height: usize, backward: bool) -> Vec<Row> {
        let mut rows: Vec<Row> = (0..height).map(|_| Row { taps: Vec::new() }).collect();
        for run in geometry::tap_runs(shape, 0, true, backward) {
            for point in run.points.clone() {
                let row = |&(tap, d): &(usize, isize)| (tap, ((point * run.source_step) as isize + d) as usize);
                rows[point * run.step + run.offset].taps = run.taps.iter().map(row).collect();
            }
        }
        rows
    }

    fn steps(rows: &[Row], rows_of_step: usize) -> Vec<Step> {
        let of = |start: usize| {
            let rows_of_step = start..(start + rows_of_step).min(rows.len());
            let sources = || rows[rows_of_step.clone()].iter().flat_map(|row| row.taps.iter().map(|tap| tap.1));
            let sources = sources().min().unwrap_or(usize::MAX)..sources().max().map_or(0, |last| last + 1);
            Step { rows: rows_of_step, sources }
        };
        let mut steps: Vec<Step> = (0..rows.len()).step_by(rows_of_step).map(of).collect();
        // Rows are staged in order and once, so no step may begin before the one before it.
        let mut first = usize::MAX;
        for step in steps.iter_mut().rev() {
            first = first.min(step.sources.start);
            step.sources.start = first;
        }
        let mut end = 0;
        for step in &mut steps {
            end = end.max(step.sources.end);
            step.sources = step.sources.start.min(end)..end;
        }
        steps
    }

    /// Number of pieces into which the channels are divided.
    pub(super) fn pieces(&self) -> usize {
        self.channels.div_ceil(self.block)
    }

    /// Number of vectors of all channels.
    pub(super) fn vectors(&self) -> usize {
        self.channels.div_ceil(self.vector)
    }

    pub(super) fn channels_of(&self, piece: usize) -> Range<usize> {
        piece * self.block..((piece + 1) * self.block).min(self.channels)
    }

    /// Values of staged rows.
    pub(super) fn len(&self) -> usize {
        self.slots * self.width * self.pixel()
    }

    /// Values between staged pixels.
    fn pixel(&self) -> usize {
        self.block * self.each
    }

    inlined! {
        /// Writes the zeros on either side of every staged row. Rows leave them.
        pub(super) unsafe fn clear<S: Simd>(&self, staged: Region<f32>) {
            let pixel = self.pixel();
            let end = (self.left + self.source[1]).min(self.width);
            for slot in 0..self.slots {
                for x in (0..self.left).chain(end..self.width) {
                    for i in (0..pixel).step_by(S::LANES) {
                        S::store(staged.at((slot * self.width + x) * pixel + i, S::LANES), S::splat(0.0));
                    }
                }
            }
        }
        /// Stages rows of an image. A vector that the channels do not fill has zeros.
        pub(super) unsafe fn stage<S: Simd, E: Element>(
            &self,
            Source { data, norm }: Source<E>,
            image: usize,
            rows: Range<usize>,
            channels: Range<usize>,
            staged: Region<f32>,
        ) {
            let pixels = self.source[1].min(self.width - self.left);
            // Neighbouring pixels are one piece, if their channels fill their vectors.
            if norm.is_none() && self.pixel() == self.channels {
                let piece = 0..pixels * self.channels;
                return self.pieces_of::<S, E, Stored>(Stored, data, image, rows, (1, piece), staged);
            }
            with_load!(norm, load => self.pieces_of::<S, E, _>(load, data, image, rows, (pixels, channels), staged))
        }
        /// Stages the channels of some pixels of each row.
        unsafe fn pieces_of<S: Simd, E: Element, L: Load>(
            &self,
            load: L,
            source: Region<E>,
            image: usize,
            rows: Range<usize>,
            (pixels, channels): (usize, Range<usize>),
            staged: Region<f32>,
        ) {
            let ahead = values_ahead::<E>().next_multiple_of(self.channels);
            let whole = channels.len() / S::LANES * S::LANES;
            let rest = channels.len() - whole;
            // A copy, because a store might change what a reference refers to, as far as the compiler knows.
            let each = self.each;
            for y in rows {
                for x in 0..pixels {
                    let from = ((image * self.source[0] + y) * self.source[1] + x) * self.channels + channels.start;
                    let to = (y % self.slots * self.width + self.left + x) * self.pixel();
                    for i in (0..whole).step_by(S::LANES) {
                        let values = load.vector::<S, E>(source, from + i, channels.start + i);
                        source.prefetch(from + i, ahead, S::LANES);
                        self.put::<S>(values, each, staged, to + i * each);
                    }
                    if rest > 0 {
                        let mut lanes = [0f32; MAX_LANES];
                        load.copy::<S, E, f32>(source, from + whole, channels.start + whole, rest, lanes.as_mut_ptr());
                        source.prefetch(from + whole, ahead, rest);
                        self.put::<S>(S::load(lanes.as_ptr()), each, staged, to + whole * each);
                    }
                }
            }
        }
        /// Stages a vector once for each input of a group.
        unsafe fn put<S: Simd>(&self, values: S::V, each: usize, staged: Region<f32>, to: usize) {
            if each == 1 {
                return S::store(staged.at(to, S::LANES), values);
            }
            for (input, lanes) in self.lanes.iter().enumerate() {
                S::store(staged.at(to + input * S::LANES, S::LANES), S::permute(values, lanes.as_ptr()));
            }
        }
    }
}

inlined! {
    /// The first `count` values of a vector from `index`, or all of them, if there are more; the others are zeros.
    pub(super) unsafe fn part<S: Simd, E: Element>(values: Region<E>, index: usize, count: usize) -> S::V {
        if count >= S::LANES {
            return E::load::<S>(values.at(index, S::LANES));
        }
        let mut lanes = [E::ZERO; MAX_LANES];
        lanes.as_mut_ptr().copy_from_nonoverlapping(values.at(index, count), count);
        E::load::<S>(lanes.as_ptr())
    }
    /// Writes the first `count` values of a vector, or all of them.
    pub(super) unsafe fn store_part<S: Simd, E: Element>(values: Region<E>, index: usize, count: usize, v: S::V) {
        if count >= S::LANES {
            return E::store::<S>(values.at(index, S::LANES), v);
        }
        let mut lanes = [E::ZERO; MAX_LANES];
        E::store::<S>(lanes.as_mut_ptr(), v);
        values.at(index, count).copy_from_nonoverlapping(lanes.as_ptr(), count);
    }
}
