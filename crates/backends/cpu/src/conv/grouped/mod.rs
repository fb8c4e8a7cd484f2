//! Convolution of groups of few channels, as loops over pixels. Depthwise convolution is the case of one channel per group.
//!
//! A vector of channels holds whole groups. An input of a group meets all outputs of the group, so a vector of inputs is
//! staged once for each channel of a group, each time with another input in every lane of its group ([`Staging`]), and from
//! there on, each of these is a tap of its own. Staged rows have zeros on either side, so all pixels of a row meet the same taps.
//!
//! The forward direction and the gradient of the input are one loop nest ([`Grouped`]): tiles of neighbouring pixels, which
//! keep their sums in registers over all taps. The gradient of the weights ([`GroupedGradient`]) keeps a tile of dy there
//! instead, and adds to the sums of each tap.

mod gradient;
mod staging;

use std::ops::Range;

pub(crate) use gradient::GroupedGradient;
use staging::{Columns, Staging, part, store_part};

use super::epilogue::Epilogue;
use super::gather::Start;
use super::geometry::ConvShape;
use super::source::Source;
use super::strips::Packed;
use crate::element::Element;
use crate::gemm::panel_width;
use crate::isa::{Isa, Kernel, Simd, dispatch, fence};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Number of tasks of a layer, where rows are enough: for that many threads.
const TASKS: usize = 64;
/// Pixels that an epilogue is given at a time.
const PIXELS: usize = 32;
/// Pixels of a place, about.
const PLACE: usize = 1024;
/// Minimum steps of a task. The first one stages rows that the task before it has, too.
const STEPS: usize = 4;

/// Whether vectors of this level hold whole groups of the layer, each with as many outputs as inputs.
pub(crate) fn applies(shape: &ConvShape, isa: Isa) -> bool {
    let each = shape.input[2] / shape.conv.groups;
    let lanes = panel_width(isa) / 2;
    shape.conv.groups > 1
        && shape.input[2] == shape.output[2]
        && (each == 1 || (lanes.is_multiple_of(each) && shape.input[2].is_multiple_of(lanes)))
}

/// A prepared convolution, forward or to the gradient of its input.
pub(crate) struct Grouped {
    staging: Staging,
    /// Number of taps.
    taps: usize,
    /// Whether each group's inputs and outputs exchange their places in the weights.
    backward: bool,
    isa: Isa,
    /// Bands of steps into which an image is divided.
    bands: usize,
    /// Steps of a place.
    steps_of_place: usize,
}

impl Grouped {
    /// `(x, w) -> y`, or `(dy, w) -> dx`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa, backward: bool) -> Self {
        let staging = Staging::new(shape, isa, backward);
        let bands = TASKS.div_ceil(staging.batch * staging.pieces()).min(staging.steps.len() / STEPS).max(1);
        let pixels_of_step = staging.steps.first().map_or(1, |step| step.rows.len()) * staging.result[1];
        let steps_of_place = (PLACE / pixels_of_step.max(1)).max(1);
        Grouped { taps: shape.conv.window.kernel.iter().product(), staging, backward, isa, bands, steps_of_place }
    }

    /// A forward convolution that one thread computes.
    pub(super) fn undivided(shape: &ConvShape, isa: Isa) -> Self {
        Grouped { bands: 1, ..Grouped::new(shape, isa, false) }
    }

    /// Workspace for [`Grouped::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: self.staging.vectors() * self.kernel(), private: self.staging.len() }
    }

    /// Number of places that [`Grouped::run`] gives an epilogue.
    pub(crate) fn places(&self) -> usize {
        self.staging.batch * self.bands * self.places_of_band()
    }

    fn places_of_band(&self) -> usize {
        self.staging.steps.len().div_ceil(self.bands).div_ceil(self.steps_of_place)
    }

    /// Values of the weights of a vector of channels.
    fn kernel(&self) -> usize {
        self.taps * self.staging.each * self.staging.vector
    }

    /// Packs the weights as `[vector][tap][input][lane]`.
    ///
    /// # Safety
    /// The regions are valid, and no other code uses `packed`.
    unsafe fn pack(&self, context: &mut Context, weights: Region<f32>, packed: Region<f32>) {
        let Staging { channels, each, vector, .. } = self.staging;
        context.pool.run(self.staging.vectors(), |task, _| {
            for row in 0..self.taps * each {
                let tap = row / each;
                let input = row % each;
                // SAFETY: this task's vector of the packed weights.
                let lanes = unsafe { packed.slice_mut(task * self.kernel() + row * vector, vector) };
                let first = task * vector;
                let count = vector.min(channels - first);
                if self.backward && each > 1 {
                    for (lane, value) in lanes.iter_mut().enumerate() {
                        let group = (first + lane) / each * each;
                        let output = lane % each;
                        // SAFETY: a value of the weights.
                        *value = unsafe { *weights.at((tap * each + output) * channels + group + input, 1) };
                    }
                    continue;
                }
                // SAFETY: values of the weights.
                lanes[..count].copy_from_slice(unsafe { weights.slice(row * channels + first, count) });
                lanes[count..].fill(0.0);
            }
        });
    }

    /// Computes the convolution, and does something with each row of the result as soon as it is complete.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the convolution was prepared for, and not written by other code; `result`
    /// overlaps no operand except the base. The epilogue is valid for each element of the result.
    pub(crate) unsafe fn run<E: Element>(
        &self,
        context: &mut Context,
        source: impl Into<Source<E>>,
        weights: Region<f32>,
        result: Region<E>,
        start: Start<E>,
        epilogue: Option<&dyn Epilogue>,
    ) {
        let packed = context.shared.part(0, self.workspace().shared);
        // SAFETY: the weights are valid, and the workspace is this instruction's.
        unsafe { self.pack(context, weights, packed) };
        let streams =
            epilogue.is_none() && result.streams(self.staging.channels) && self.staging.vector * size_of::<E>() == 64;
        let private = &context.private;
        let operands = Operands { source: source.into(), weights: packed, result, streams, start, epilogue };
        context.pool.run(self.tasks(), |task, thread| {
            // SAFETY: the caller's promise; each task writes its own part of the result, and each thread its workspace.
            unsafe { self.task(task, private[thread], operands) }
        });
    }

    fn tasks(&self) -> usize {
        self.staging.batch * self.bands * self.staging.pieces()
    }

    /// # Safety
    /// As for [`Grouped::run`]; no other code uses the workspace.
    unsafe fn task<E: Element>(&self, task: usize, workspace: Region<f32>, operands: Operands<E>) {
        let steps = self.staging.steps.len();
        let pieces = self.staging.pieces();
        let band = task / pieces % self.bands;
        let piece = task % pieces;
        let task = Task {
            conv: self,
            operands,
            image: task / pieces / self.bands,
            place: task / pieces * self.places_of_band(),
            steps: steps * band / self.bands..steps * (band + 1) / self.bands,
            channels: self.staging.channels_of(piece),
            staged: workspace.part(0, self.staging.len()),
        };
        // SAFETY: the caller's promise.
        unsafe { dispatch(self.isa, task) }
    }
}

impl<E: Element> Packed<E> for Grouped {
    fn workspace(&self) -> Workspace {
        Grouped::workspace(self)
    }

    unsafe fn pack(&self, context: &mut Context, weights: Region<f32>, shared: Region<f32>) {
        // SAFETY: the caller's promise.
        unsafe { Grouped::pack(self, context, weights, shared) }
    }

    unsafe fn run_packed(
        &self,
        private: Region<f32>,
        source: Region<E>,
        packed: Region<f32>,
        result: Region<E>,
        epilogue: &dyn Epilogue,
    ) {
        let streams = false;
        let start = Start::Zero;
        let epilogue = Some(epilogue);
        let operands = Operands { source: source.into(), weights: packed, result, streams, start, epilogue };
        // SAFETY: the caller's promise.
        (0..self.tasks()).for_each(|task| unsafe { self.task(task, private, operands) });
    }
}

/// What the tasks of a run share.
#[derive(Clone, Copy)]
struct Operands<'a, E> {
    source: Source<E>,
    /// Packed.
    weights: Region<f32>,
    result: Region<E>,
    /// Whether vectors are written by [`Simd::stream`]: those that are whole cache lines of a large result.
    streams: bool,
    start: Start<E>,
    epilogue: Option<&'a dyn Epilogue>,
}

struct Task<'a, E> {
    conv: &'a Grouped,
    operands: Operands<'a, E>,
    image: usize,
    /// The first one.
    place: usize,
    steps: Range<usize>,
    channels: Range<usize>,
    staged: Region<f32>,
}

impl<E: Element> Kernel for Task<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let staging = &self.conv.staging;
        let mut next = 0;
        // SAFETY: the caller's promise; every step finds its rows staged.
        unsafe {
            staging.clear::<S>(self.staged);
            for (index, step) in staging.steps[self.steps.clone()].iter().enumerate() {
                let sources = step.sources.start.max(next)..step.sources.end;
                next = step.sources.end;
                staging.stage::<S, E>(self.operands.source, self.image, sources, self.channels.clone(), self.staged);
                for columns in &staging.columns {
                    match columns.tile {
                        8 => self.tiles::<S, 8>(columns, step.rows.clone()),
                        7 => self.tiles::<S, 7>(columns, step.rows.clone()),
                        _ => self.tiles::<S, 4>(columns, step.rows.clone()),
                    }
                }
                if let Some(epilogue) = self.operands.epilogue {
                    let place = self.place + index / self.conv.steps_of_place;
                    step.rows.clone().for_each(|row| self.finish(epilogue, place, row));
                }
            }
        }
        fence();
    }
}

impl<E: Element> Task<'_, E> {
    /// Does what is to be done with a row, some pixels at a time.
    unsafe fn finish(&self, epilogue: &dyn Epilogue, place: usize, row: usize) {
        let Staging { result: [height, width], channels, .. } = self.conv.staging;
        let first = (self.image * height + row) * width;
        for start in (0..width).step_by(PIXELS) {
            let pixels: [usize; PIXELS] = std::array::from_fn(|i| (first + start + i) * channels);
            let pixels = &pixels[..PIXELS.min(width - start)];
            // SAFETY: the caller's promise; the row is complete.
            unsafe { epilogue.run(self.conv.isa, place, pixels, self.channels.clone()) }
        }
    }

    /// Computes columns of some rows, `N` points at a time.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const N: usize>(&self, columns: &Columns, rows: Range<usize>) {
        for point in (0..columns.points).step_by(N) {
            for channel in self.channels.clone().step_by(S::LANES) {
                for row in rows.clone() {
                    // SAFETY: the caller's promise.
                    unsafe { self.tile::<S, N>(columns, row, point, channel) }
                }
            }
        }
    }

    /// Computes `N` points of a row from `point`, or those that are left. A result is one chain over the taps.
    #[inline(always)]
    unsafe fn tile<S: Simd, const N: usize>(&self, columns: &Columns, row: usize, point: usize, channel: usize) {
        let staging = &self.conv.staging;
        let [height, width] = staging.result;
        let count = N.min(columns.points - point);
        let lanes = self.channels.end - channel;
        let column = point * columns.step + columns.offset;
        let first = ((self.image * height + row) * width + column) * staging.channels + channel;
        // Copies, because a store might change what a reference refers to, as far as the compiler knows.
        let apart = columns.step * staging.channels;
        let source_apart = columns.source_step;
        let target = |i: usize| first + i * apart;
        if !self.operands.streams {
            (0..N).for_each(|i| self.operands.result.prefetch(target(N + i), 0, S::LANES));
        }
        // SAFETY: staged rows hold whole tiles; the results belong to this task.
        unsafe {
            let mut sums = [S::splat(0.0); N];
            match self.operands.start {
                Start::Zero => {}
                Start::Bias(bias) => sums = [part::<S, f32>(bias, channel, lanes); N],
                Start::Base(base) => {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        if i < count {
                            *sum = part::<S, E>(base, target(i), lanes);
                        }
                    }
                }
            }
            let from = self.staged.at(0, staging.len()).cast_const();
            let from = from.add(point * source_apart + (channel - self.channels.start) * staging.each);
            let weights =
                self.operands.weights.at(channel / S::LANES * self.conv.kernel(), self.conv.kernel()).cast_const();
            for &(kernel_row, staged_row) in &staging.rows[row].taps {
                let (from, weights) = (from.add(staged_row), weights.add(kernel_row));
                for &(place, tap) in &columns.taps {
                    let from = from.add(place);
                    let weight = S::load(weights.add(tap));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = S::mul_add(S::load(from.add(i * source_apart)), weight, *sum);
                    }
                }
            }
            if count == N && lanes >= S::LANES {
                let to = self.operands.result.at(first, (N - 1) * apart + S::LANES);
                for (i, sum) in sums.into_iter().enumerate() {
                    let to = to.add(i * apart);
                    if self.operands.streams { E::stream::<S>(to, sum) } else { E::store::<S>(to, sum) }
                }
                return;
            }
            for (i, sum) in sums.into_iter().enumerate() {
                if i < count {
                    store_part::<S, E>(self.operands.result, target(i), lanes, sum);
                }
            }
        }
    }
}
