//! The source of a convolution: as it is stored, or normalised as it is loaded.

use std::marker::PhantomData;

use enmasse_graph::Activation;

use crate::activation::{ActivationFunction, with_activation};
use crate::batch_norm::{Affine, scales};
use crate::element::{Element, copy};
use crate::inlined::inlined;
use crate::isa::{MAX_LANES, Scalar, Simd};
use crate::region::Region;
use crate::statistics::Moments;
use crate::workspace::{Context, Workspace};

/// Operands of a batch norm, without a residual, whose result a convolution reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceNorm {
    pub moments: Moments,
    pub weight: Region<f32>,
    pub bias: Region<f32>,
    pub epsilon: f32,
    pub activation: Option<Activation>,
}

impl SourceNorm {
    /// The workspace of a convolution with that of its source's norm.
    pub(crate) fn add(norm: Option<SourceNorm>, Workspace { shared, private }: Workspace) -> Workspace {
        Workspace { shared: shared + norm.map_or(0, |norm| norm.bias.len()), private }
    }
}

/// What a convolution reads.
#[derive(Clone, Copy)]
pub(crate) struct Source<E> {
    pub data: Region<E>,
    /// What is done with values as they are loaded.
    pub norm: Option<Normalizer>,
}

impl<E> From<Region<E>> for Source<E> {
    fn from(data: Region<E>) -> Self {
        Source { data, norm: None }
    }
}

impl<E> Source<E> {
    /// The source that a norm makes of `data`, for a convolution with this workspace, to which [`SourceNorm::add`] has added.
    ///
    /// # Safety
    /// The operands are valid.
    pub(crate) unsafe fn new(
        context: &Context,
        convolution: Workspace,
        data: Region<E>,
        norm: Option<SourceNorm>,
    ) -> Self {
        let norm = norm.map(|norm| {
            let scale = context.shared.part(convolution.shared, norm.bias.len());
            // SAFETY: the caller's promise; the workspace is this instruction's.
            unsafe { scales(norm.moments.variance, norm.weight, norm.epsilon, scale) };
            Normalizer { mean: norm.moments.mean, scale, bias: norm.bias, activation: norm.activation }
        });
        Source { data, norm }
    }
}

/// A batch norm that computes the same bits as [`batch_norm::normalize`](crate::batch_norm::normalize), and rounds them as if they
/// were stored: also a channel that is in a vector there is in one here.
#[derive(Clone, Copy)]
pub(crate) struct Normalizer {
    mean: Region<f32>,
    scale: Region<f32>,
    bias: Region<f32>,
    pub activation: Option<Activation>,
}

impl Normalizer {
    inlined! {
        /// Copies values of a pixel, from a channel.
        unsafe fn copy_pixel<S: Simd, X: Element, Y: Element, R: ActivationFunction>(
            &self,
            x: Region<X>,
            channel: usize,
            to: *mut Y,
        ) {
            // Channels up to this one are in vectors.
            let whole = self.mean.len() / S::LANES * S::LANES;
            let len = x.len();
            let vectors = whole.saturating_sub(channel).min(x.len());
            let mut i = 0;
            while i + S::LANES <= vectors {
                Y::store::<S>(to.add(i), self.of::<S, X, Y, R>(x.at(i, S::LANES), channel + i));
                i += S::LANES;
            }
            if i < vectors && vectors >= S::LANES {
                // The last vector overlaps the one before.
                let last = vectors - S::LANES;
                Y::store::<S>(to.add(last), self.of::<S, X, Y, R>(x.at(last, S::LANES), channel + last));
            } else if i < vectors {
                // Part of a vector, of channels that there are.
                let first = channel.min(whole - S::LANES);
                let mut from = [X::ZERO; MAX_LANES];
                let mut y = [Y::ZERO; MAX_LANES];
                let skipped = channel - first;
                from.as_mut_ptr().add(skipped).copy_from_nonoverlapping(x.at(0, vectors), vectors);
                Y::store::<S>(y.as_mut_ptr(), self.of::<S, X, Y, R>(from.as_ptr(), first));
                to.copy_from_nonoverlapping(y.as_ptr().add(skipped), vectors);
            }
            for i in vectors..len {
                Y::store::<Scalar>(to.add(i), self.of::<Scalar, X, Y, R>(x.at(i, 1), channel + i));
            }
        }
        /// A vector of a pixel, before it is stored as `Y`.
        unsafe fn of<S: Simd, X: Element, Y: Element, R: ActivationFunction>(
            &self,
            x: *const X,
            channel: usize,
        ) -> S::V {
            let Normalizer { mean, scale, bias, .. } = *self;
            let x = Region::new(x.cast_mut(), S::LANES);
            let channels = [mean, scale, bias].map(|values| values.part(channel, S::LANES));
            let y = R::apply::<S>(Affine { x, mean: channels[0], scale: channels[1], bias: channels[2] }.at::<S>(0, 0));
            if Y::BF16 { y } else { X::rounded::<S>(y) }
        }
        /// The vector of a pixel's values that begin at a channel. Whole vectors precede it.
        pub(crate) unsafe fn vector<S: Simd, X: Element>(&self, x: *const X, channel: usize) -> S::V {
            with_activation!(self.activation, R => self.of::<S, X, f32, R>(x, channel))
        }
    }
}

/// How vectors of a pixel are loaded.
pub(crate) trait Load: Copy {
    /// The vector from `index`, which is of a channel.
    ///
    /// # Safety
    /// The values are valid, and so are the operands of a norm. The level is available.
    unsafe fn vector<S: Simd, X: Element>(&self, x: Region<X>, index: usize, channel: usize) -> S::V;

    /// Copies `len` values of neighbouring pixels from `index`, of which the first is of a channel.
    ///
    /// # Safety
    /// As for [`Load::vector`] and [`crate::element::copy`].
    unsafe fn copy<S: Simd, X: Element, Y: Element>(
        &self,
        x: Region<X>,
        index: usize,
        channel: usize,
        len: usize,
        to: *mut Y,
    );
}

/// Evaluates `$body` with `$load` as what loads a source with a norm, or without one, that is known only at run time.
macro_rules! with_load {
    ($norm:expr, $load:ident => $body:expr) => {
        match $norm {
            None => {
                let $load = $crate::conv::Stored;
                $body
            }
            Some(norm) => $crate::activation::with_activation!(norm.activation, R => {
                let $load = $crate::conv::Normalized::<R>::new(norm);
                $body
            }),
        }
    };
}
pub(crate) use with_load;

/// As they are stored.
#[derive(Clone, Copy)]
pub(crate) struct Stored;

impl Load for Stored {
    inlined! {
        unsafe fn vector<S: Simd, X: Element>(&self, x: Region<X>, index: usize, _: usize) -> S::V {
            X::load::<S>(x.at(index, S::LANES))
        }
        unsafe fn copy<S: Simd, X: Element, Y: Element>(
            &self,
            x: Region<X>,
            index: usize,
            _: usize,
            len: usize,
            to: *mut Y,
        ) {
            copy::<S, X, Y>(x.at(index, len), to, len)
        }
    }
}

/// Normalised, by a norm with this activation.
#[derive(Clone, Copy)]
pub(crate) struct Normalized<R> {
    norm: Normalizer,
    activation: PhantomData<R>,
}

impl<R> Normalized<R> {
    pub(crate) fn new(norm: Normalizer) -> Self {
        Normalized { norm, activation: PhantomData }
    }
}

impl<R: ActivationFunction> Load for Normalized<R> {
    inlined! {
        unsafe fn vector<S: Simd, X: Element>(&self, x: Region<X>, index: usize, channel: usize) -> S::V {
            self.norm.of::<S, X, f32, R>(x.at(index, S::LANES), channel)
        }
        unsafe fn copy<S: Simd, X: Element, Y: Element>(
            &self,
            x: Region<X>,
            index: usize,
            channel: usize,
            len: usize,
            to: *mut Y,
        ) {
            let mut first = channel;
            let mut done = 0;
            while done < len {
                let count = (self.norm.mean.len() - first).min(len - done);
                self.norm.copy_pixel::<S, X, Y, R>(x.part(index + done, count), first, to.add(done));
                done += count;
                first = 0;
            }
        }
    }
}
