//! The gradient of the weights of groups of few channels.

use std::ops::Range;

use super::staging::{Columns, Staging, part};
use super::{ConvShape, STEPS, Source};
use crate::element::Element;
use crate::isa::{Isa, Kernel, MAX_LANES, Simd, dispatch};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Maximum number of pixels that are summed in f32, where rows are short enough.
const BLOCK_PIXELS: usize = 2048;
/// Minimum number of tasks of a layer, where blocks of whole images are enough: for that many threads.
const TASKS: usize = 32;

/// A prepared gradient of the weights. The pixels are divided into blocks: some images, or a band of one.
pub(crate) struct GroupedGradient {
    staging: Staging,
    /// Number of taps.
    taps: usize,
    isa: Isa,
    /// Images of a block, or bands of steps into which an image is divided.
    images: usize,
    bands: usize,
}

impl GroupedGradient {
    /// `(x, dy) -> dw`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa) -> Self {
        let staging = Staging::new(shape, isa, false);
        let pixels = shape.output[0] * shape.output[1];
        let bands = pixels.div_ceil(BLOCK_PIXELS).min(staging.steps.len() / STEPS).max(1);
        let most = (shape.batch * staging.pieces() / TASKS).max(1);
        let images = (BLOCK_PIXELS / pixels.max(1)).clamp(1, most);
        GroupedGradient { taps: shape.conv.window.kernel.iter().product(), staging, isa, images, bands }
    }

    fn blocks(&self) -> usize {
        self.staging.batch.div_ceil(self.images) * self.bands
    }

    /// Values of the sums of a vector of channels.
    fn kernel(&self) -> usize {
        self.taps * self.staging.each * self.staging.vector
    }

    /// Values of the sums of a block: `[vector][tap][input][lane]`.
    fn len(&self) -> usize {
        self.staging.vectors() * self.kernel()
    }

    /// Workspace for [`GroupedGradient::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: self.blocks() * self.len(), private: self.staging.len() }
    }

    /// Computes the gradient.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the gradient was prepared for, and `dw` overlaps no other region.
    pub(crate) unsafe fn run<E: Element>(
        &self,
        context: &mut Context,
        x: impl Into<Source<E>>,
        dy: Region<E>,
        dw: Region<f32>,
    ) {
        let partial = context.shared;
        let private = &context.private;
        let x = x.into();
        let staging = &self.staging;
        let blocks = self.blocks();
        let steps = staging.steps.len();
        let pieces = staging.pieces();
        context.pool.run(blocks * pieces, |task, thread| {
            let block = task / pieces;
            let piece = task % pieces;
            let band = block % self.bands;
            let first = block / self.bands * self.images;
            let task = Block {
                gradient: self,
                x,
                dy,
                sums: partial.part(block * self.len(), self.len()),
                images: first..(first + self.images).min(staging.batch),
                steps: steps * band / self.bands..steps * (band + 1) / self.bands,
                channels: staging.channels_of(piece),
                staged: private[thread].part(0, staging.len()),
            };
            // SAFETY: the caller's promise; tasks have disjoint sums, and each thread its own workspace.
            unsafe { dispatch(self.isa, task) }
        });
        let Staging { channels, vector, each, .. } = *staging;
        context.pool.run(staging.vectors(), |task, _| {
            let channel = task * vector;
            for row in 0..self.taps * each {
                let mut sums = [0f64; MAX_LANES];
                for block in 0..blocks {
                    let at = block * self.len() + task * self.kernel() + row * vector;
                    // SAFETY: the blocks' sums are complete.
                    let values = unsafe { partial.slice(at, vector) };
                    sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
                }
                let count = vector.min(channels - channel);
                // SAFETY: each value of the gradient is written once.
                let gradient = unsafe { dw.slice_mut(row * channels + channel, count) };
                gradient.iter_mut().zip(sums).for_each(|(gradient, sum)| *gradient = sum as f32);
            }
        });
    }
}

struct Block<'a, E> {
    gradient: &'a GroupedGradient,
    x: Source<E>,
    dy: Region<E>,
    sums: Region<f32>,
    images: Range<usize>,
    steps: Range<usize>,
    channels: Range<usize>,
    staged: Region<f32>,
}

impl<E: Element> Kernel for Block<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let staging = &self.gradient.staging;
        let kernel = self.gradient.kernel();
        // SAFETY: the caller's promise; every step finds its rows staged.
        unsafe {
            staging.clear::<S>(self.staged);
            for channel in self.channels.clone().step_by(S::LANES) {
                self.sums.slice_mut(channel / S::LANES * kernel, kernel).fill(0.0);
            }
            for image in self.images.clone() {
                let mut next = 0;
                for step in &staging.steps[self.steps.clone()] {
                    let sources = step.sources.start.max(next)..step.sources.end;
                    next = step.sources.end;
                    staging.stage::<S, E>(self.x, image, sources, self.channels.clone(), self.staged);
                    for columns in &staging.columns {
                        match columns.tile {
                            8 => self.tiles::<S, 8>(columns, image, step.rows.clone()),
                            7 => self.tiles::<S, 7>(columns, image, step.rows.clone()),
                            _ => self.tiles::<S, 4>(columns, image, step.rows.clone()),
                        }
                    }
                }
            }
        }
    }
}

impl<E: Element> Block<'_, E> {
    /// Adds the products of columns of some rows, `N` points at a time.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const N: usize>(&self, columns: &Columns, image: usize, rows: Range<usize>) {
        for point in (0..columns.points).step_by(N) {
            for channel in self.channels.clone().step_by(S::LANES) {
                for row in rows.clone() {
                    // SAFETY: the caller's promise.
                    unsafe { self.tile::<S, N>(columns, image, row, point, channel) }
                }
            }
        }
    }

    /// Adds the products of `N` points of a row from `point`, or those that are left: each tap's in two chains.
    #[inline(always)]
    unsafe fn tile<S: Simd, const N: usize>(
        &self,
        columns: &Columns,
        image: usize,
        row: usize,
        point: usize,
        channel: usize,
    ) {
        let staging = &self.gradient.staging;
        let kernel = self.gradient.kernel();
        let [height, width] = staging.result;
        let count = N.min(columns.points - point);
        let lanes = self.channels.end - channel;
        let (apart, source_apart) = (staging.channels, columns.source_step);
        // SAFETY: staged rows hold whole tiles; the sums belong to this task.
        unsafe {
            let mut gradients = [S::splat(0.0); N];
            let at = ((image * height + row) * width + point) * apart + channel;
            for (i, gradient) in gradients.iter_mut().enumerate() {
                self.dy.prefetch(at, (N + i) * apart, S::LANES);
                if i < count {
                    *gradient = part::<S, E>(self.dy, at + i * apart, lanes);
                }
            }
            let from = self.staged.at(0, staging.len()).cast_const();
            let from = from.add(point * source_apart + (channel - self.channels.start) * staging.each);
            let sums = self.sums.at(channel / S::LANES * kernel, kernel);
            for &(kernel_row, staged_row) in &staging.rows[row].taps {
                let (from, sums) = (from.add(staged_row), sums.add(kernel_row));
                for &(place, tap) in &columns.taps {
                    let (from, sum) = (from.add(place), sums.add(tap));
                    let x = |i: usize| S::load(from.add(i * source_apart));
                    let mut chains = [S::load(sum), S::mul(x(1), gradients[1])];
                    chains[0] = S::mul_add(x(0), gradients[0], chains[0]);
                    for i in 2..N {
                        chains[i % 2] = S::mul_add(x(i), gradients[i], chains[i % 2]);
                    }
                    S::store(sum, S::add(chains[0], chains[1]));
                }
            }
        }
    }
}
