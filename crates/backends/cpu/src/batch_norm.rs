//! Batch norm: statistics, normalisation with residual and activation, and its gradients.

use std::marker::PhantomData;

use enmasse_graph::Activation;

use crate::activation::{ActivationFunction, with_activation, with_relu};
use crate::conv::Epilogue;
use crate::element::Element;
use crate::inlined::inlined;
use crate::isa::{Four, Simd, four, values_ahead};
use crate::region::Region;
use crate::statistics::Moments;
use crate::sweep::{self, Pass, Rows, Sum, Terms};
use crate::workspace::{Context, Workspace};

impl Rows {
    /// Workspace for every function of this module.
    pub(crate) fn workspace(self) -> Workspace {
        let sums = sweep::sum_workspace(self.rows, self.channels, 2);
        Workspace { shared: sums.max(3 * self.channels) + self.channels, private: self.channels }
    }
}

/// Sums `x` over rows: the gradient of a bias.
///
/// # Safety
/// Regions are valid, of `size`; `sums` is written.
pub(crate) unsafe fn bias_backward<E: Element>(context: &mut Context, size: Rows, dy: Region<E>, sums: Region<f32>) {
    // SAFETY: the caller's promise; each channel is written once.
    unsafe {
        sweep::sum(context, size.rows, size.channels, &Sum { x: dy }, |channel, [sum]| {
            *sums.at(channel, 1) = sum as f32;
        });
    }
}

/// The forward pass up to the residual. Gradients recompute the activation's input with it, and get the same bits: the
/// operations and operands are the same, and in every pass a channel is either in a vector or in the tail after the
/// vectors.
#[derive(Clone, Copy)]
pub(crate) struct Affine<E> {
    pub x: Region<E>,
    pub mean: Region<f32>,
    pub scale: Region<f32>,
    pub bias: Region<f32>,
}

impl<E: Element> Affine<E> {
    inlined! {
        pub(crate) unsafe fn at<S: Simd>(&self, index: usize, channel: usize) -> S::V {
            let n = S::LANES;
            let centred = S::sub(E::load::<S>(self.x.at(index, n)), S::load(self.mean.at(channel, n)));
            S::mul_add(centred, S::load(self.scale.at(channel, n)), S::load(self.bias.at(channel, n)))
        }
    }
}

struct Normalize<E, R, const RESIDUAL: bool> {
    activation: PhantomData<R>,
    affine: Affine<E>,
    residual: Region<E>,
    y: Region<E>,
    /// Whether y is written by [`Simd::stream`].
    streams: bool,
}

impl<E: Element, R: ActivationFunction, const RESIDUAL: bool> Normalize<E, R, RESIDUAL> {
    inlined! {
        /// What the activation is applied to.
        unsafe fn operand<S: Simd>(&self, index: usize, channel: usize) -> S::V {
            let x = self.affine.at::<S>(index, channel);
            if RESIDUAL { S::add(x, E::load::<S>(self.residual.at(index, S::LANES))) } else { x }
        }
        unsafe fn write<S: Simd>(&self, index: usize, y: S::V) {
            let to = self.y.at(index, S::LANES);
            if self.streams { E::stream::<S>(to, y) } else { E::store::<S>(to, y) }
        }
    }
}

impl<E: Element, R: ActivationFunction, const RESIDUAL: bool> Pass for Normalize<E, R, RESIDUAL> {
    const BF16: bool = E::BF16;
    const FOUR: bool = R::CHAINS;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            self.write::<S>(index, R::apply::<S>(self.operand::<S>(index, channel)))
        }
        unsafe fn at_four<S: Simd>(&self, index: usize, channel: usize) {
            let x = four!(I => self.operand::<S>(index + I * S::LANES, channel + I * S::LANES));
            let y = R::apply::<Four<S>>(x);
            four!(I => self.write::<S>(index + I * S::LANES, y[I]));
        }
    }
}

/// Operands of [`normalize`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward<E> {
    pub size: Rows,
    pub x: Region<E>,
    pub moments: Moments,
    pub weight: Region<f32>,
    pub bias: Region<f32>,
    pub residual: Option<Region<E>>,
    pub y: Region<E>,
    pub epsilon: f32,
    pub activation: Option<Activation>,
}

/// Evaluates `$body` with `$pass` as the pass of a forward, whose scales are known and which may write past the caches.
macro_rules! with_pass {
    ($forward:expr, $scale:expr, $streams:expr, $pass:ident => $body:expr) => {{
        let (forward, streams) = ($forward, $streams);
        let affine = Affine { x: forward.x, mean: forward.moments.mean, scale: $scale, bias: forward.bias };
        let y = forward.y;
        with_activation!(forward.activation, R => match forward.residual {
            None => {
                let (activation, residual) = (PhantomData, forward.x);
                let $pass = Normalize::<E, R, false> { activation, affine, residual, y, streams };
                $body
            }
            Some(residual) => {
                let activation = PhantomData;
                let $pass = Normalize::<E, R, true> { activation, affine, residual, y, streams };
                $body
            }
        })
    }};
}

/// `y = (x - mean) / sqrt(variance + epsilon) * weight + bias`, plus the residual, then the activation.
///
/// # Safety
/// Regions are valid, of `size`; `y` is written, and overlaps no operand, or exactly coincides with one.
pub(crate) unsafe fn normalize<E: Element>(context: &mut Context, f: &Forward<E>) {
    let Rows { rows, channels } = f.size;
    let scale = context.shared.part(0, channels);
    // SAFETY: the workspace is this instruction's; operands as promised.
    unsafe { scales(f.moments.variance, f.weight, f.epsilon, scale) };
    with_pass!(f, scale, f.y.streams(channels), pass => {
        // SAFETY: the caller's promise.
        unsafe { sweep::by_channel(context, rows, channels, &pass) }
    });
}

/// Calls `job` with what does the same as [`normalize`] for pieces of `x`, such as a convolution's result. `scale` is workspace for a
/// value per channel.
///
/// # Safety
/// As for [`normalize`]; no other code uses `scale`.
pub(crate) unsafe fn normalize_pieces<E: Element>(f: &Forward<E>, scale: Region<f32>, job: impl FnOnce(&dyn Epilogue)) {
    // SAFETY: the caller's promise.
    unsafe {
        scales(f.moments.variance, f.weight, f.epsilon, scale);
        scaled_pieces(f, scale, job);
    }
}

/// As [`normalize_pieces`], with the [`scales`].
///
/// # Safety
/// As for [`normalize`].
pub(crate) unsafe fn scaled_pieces<E: Element>(f: &Forward<E>, scale: Region<f32>, job: impl FnOnce(&dyn Epilogue)) {
    // The pieces are in cache.
    with_pass!(f, scale, false, pass => job(&pass));
}

/// `weight / sqrt(variance + epsilon)` per channel.
///
/// # Safety
/// The regions are valid; `scale` is written.
pub(crate) unsafe fn scales(variance: Region<f32>, weight: Region<f32>, epsilon: f32, scale: Region<f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        let variance = variance.slice(0, scale.len());
        let weight = weight.slice(0, scale.len());
        for ((scale, variance), weight) in scale.slice_mut(0, scale.len()).iter_mut().zip(variance).zip(weight) {
            *scale = weight * inverse_std(*variance, epsilon);
        }
    }
}

fn inverse_std(variance: f32, epsilon: f32) -> f32 {
    (1.0 / (f64::from(variance) + f64::from(epsilon)).sqrt()) as f32
}

/// How a gradient finds out the derivative of the forward's activation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gate<E> {
    /// From the stored result of a ReLU.
    Stored(Region<E>),
    /// From `x`, which is read anyway, if there was no residual.
    Recomputed { weight: Region<f32>, bias: Region<f32> },
}

/// dy times the derivative of the forward's activation.
#[derive(Clone, Copy)]
struct Gated<E, R, const STORED: bool> {
    activation: PhantomData<R>,
    dy: Region<E>,
    y: Region<E>,
    affine: Affine<E>,
}

impl<E: Element, R: ActivationFunction, const STORED: bool> Gated<E, R, STORED> {
    /// The gate that `g` describes; `scale` is workspace for one value per channel.
    ///
    /// # Safety
    /// Regions are valid.
    unsafe fn new(g: &Gradient<E>, scale: Region<f32>) -> Self {
        let (x, mean) = (g.x, g.moments.mean);
        let (y, bias) = match g.gate {
            Some((_, Gate::Stored(y))) => (y, mean),
            Some((_, Gate::Recomputed { weight, bias })) => {
                // SAFETY: the caller's promise.
                unsafe { scales(g.moments.variance, weight, g.epsilon, scale) };
                (x, bias)
            }
            None => (x, mean),
        };
        Gated { activation: PhantomData, dy: g.dy, y, affine: Affine { x, mean, scale, bias } }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.dy.prefetch(index, values_ahead::<E>(), count);
        if R::GATES && STORED {
            self.y.prefetch(index, values_ahead::<E>(), count);
        }
    }

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) -> S::V {
            let dy = E::load::<S>(self.dy.at(index, S::LANES));
            match () {
                () if !R::GATES => dy,
                () if STORED => R::gradient::<S, E>(dy, E::load::<S>(self.y.at(index, S::LANES))),
                () => R::gradient::<S, E>(dy, self.affine.at::<S>(index, channel)),
            }
        }
        /// Four vectors from indices, with their channels, of an activation that is recomputed.
        unsafe fn four<S: Simd>(&self, places: [(usize, usize); 4]) -> [S::V; 4] {
            let dy = four!(I => E::load::<S>(self.dy.at(places[I].0, S::LANES)));
            let x = four!(I => self.affine.at::<S>(places[I].0, places[I].1));
            R::gradient::<Four<S>, E>(dy, x)
        }
    }
}

#[derive(Clone, Copy)]
struct ReduceTerms<E, R, const STORED: bool> {
    dy: Gated<E, R, STORED>,
    x: Region<E>,
    mean: Region<f32>,
}

impl<E: Element, R: ActivationFunction, const STORED: bool> ReduceTerms<E, R, STORED> {
    inlined! {
        unsafe fn of<S: Simd>(&self, dy: S::V, index: usize, channel: usize) -> [S::V; 2] {
            let n = S::LANES;
            let centred = S::sub(E::load::<S>(self.x.at(index, n)), S::load(self.mean.at(channel, n)));
            [dy, S::mul(dy, centred)]
        }
    }
}

impl<E: Element, R: ActivationFunction, const STORED: bool> Terms<2> for ReduceTerms<E, R, STORED> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) -> [S::V; 2] {
            self.of::<S>(self.dy.at::<S>(index, channel), index, channel)
        }
        unsafe fn at_four<S: Simd>(&self, rows: [usize; 4], channel: usize) -> [[S::V; 2]; 4] {
            if !R::CHAINS {
                return four!(I => self.at::<S>(rows[I], channel));
            }
            let dy = self.dy.four::<S>(rows.map(|index| (index, channel)));
            four!(I => self.of::<S>(dy[I], rows[I], channel))
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.dy.prefetch(index, count);
        self.x.prefetch(index, values_ahead::<E>(), count);
    }
}

/// Operands of [`reduce`] and [`backward`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gradient<E> {
    pub size: Rows,
    pub dy: Region<E>,
    pub x: Region<E>,
    pub moments: Moments,
    /// The forward's activation, if it had one.
    pub gate: Option<(Activation, Gate<E>)>,
    pub epsilon: f32,
}

impl<E> Gradient<E> {
    fn activation(&self) -> Option<Activation> {
        self.gate.as_ref().map(|(activation, _)| *activation)
    }

    fn is_stored(&self) -> bool {
        !matches!(self.gate, Some((_, Gate::Recomputed { .. })))
    }
}

/// Sums of dy and of `dy * (x - mean) / sqrt(variance + epsilon)`, where dy is first multiplied by the activation's derivative.
///
/// # Safety
/// Regions are valid, of `size`; the sums are written.
pub(crate) unsafe fn reduce<E: Element>(
    context: &mut Context,
    g: &Gradient<E>,
    dbias: Region<f32>,
    dweight: Region<f32>,
) {
    let Rows { rows, channels } = g.size;
    let variance = g.moments.variance;
    // SAFETY: the caller's promise; each channel is written once.
    let finish = |channel: usize, [sum, product]: [f64; 2]| unsafe {
        let inverse = 1.0 / (f64::from(*variance.at(channel, 1)) + f64::from(g.epsilon)).sqrt();
        *dbias.at(channel, 1) = sum as f32;
        *dweight.at(channel, 1) = (product * inverse) as f32;
    };
    let (x, mean) = (g.x, g.moments.mean);
    let scale = context.shared.part(sweep::sum_workspace(rows, channels, 2), channels);
    macro_rules! run {
        ($with:ident, $stored:literal) => {
            // SAFETY: the caller's promise; the workspace is this instruction's.
            $with!(g.activation(), R => unsafe {
                let terms = ReduceTerms::<E, R, $stored> { dy: Gated::new(g, scale), x, mean };
                sweep::sum(context, rows, channels, &terms, finish)
            })
        };
    }
    if g.is_stored() { run!(with_relu, true) } else { run!(with_activation, false) }
}

struct Backward<E, R, const RESIDUAL: bool, const SUMS: bool, const STORED: bool> {
    dy: Gated<E, R, STORED>,
    x: Region<E>,
    dx: Region<E>,
    dresidual: Region<E>,
    mean: Region<f32>,
    scale: Region<f32>,
    /// The mean of dy, and the factor of `x - mean`.
    shift: Region<f32>,
    slope: Region<f32>,
}

impl<E: Element, R: ActivationFunction, const RESIDUAL: bool, const SUMS: bool, const STORED: bool> Pass
    for Backward<E, R, RESIDUAL, SUMS, STORED>
{
    const BF16: bool = E::BF16;
    const FOUR: bool = R::CHAINS;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            self.write::<S>(self.dy.at::<S>(index, channel), index, channel)
        }
        unsafe fn at_four<S: Simd>(&self, index: usize, channel: usize) {
            let places = [0, 1, 2, 3].map(|i| (index + i * S::LANES, channel + i * S::LANES));
            let dy = self.dy.four::<S>(places);
            four!(I => self.write::<S>(dy[I], places[I].0, places[I].1));
        }
    }
}

impl<E: Element, R: ActivationFunction, const RESIDUAL: bool, const SUMS: bool, const STORED: bool>
    Backward<E, R, RESIDUAL, SUMS, STORED>
{
    inlined! {
        unsafe fn write<S: Simd>(&self, dy: S::V, index: usize, channel: usize) {
            let (n, mut inner) = (S::LANES, dy);
            if SUMS {
                let centred = S::sub(E::load::<S>(self.x.at(index, n)), S::load(self.mean.at(channel, n)));
                inner = S::sub(inner, S::load(self.shift.at(channel, n)));
                inner = S::sub(inner, S::mul(centred, S::load(self.slope.at(channel, n))));
            }
            if RESIDUAL {
                E::store::<S>(self.dresidual.at(index, n), dy);
            }
            E::store::<S>(self.dx.at(index, n), S::mul(inner, S::load(self.scale.at(channel, n))));
        }
    }
}

/// `(dbias, dweight, number of pixels in the statistics)`; `None` if the statistics are constants.
pub(crate) type Sums = Option<(Region<f32>, Region<f32>, usize)>;

/// The gradient of the input, and with `dresidual` also that of the residual (which may coincide with dy).
///
/// # Safety
/// Regions are valid, of `size`; `dx` and `dresidual` are written, and overlap no operand, or exactly coincide with dy.
pub(crate) unsafe fn backward<E: Element>(
    context: &mut Context,
    g: &Gradient<E>,
    weight: Region<f32>,
    sums: Sums,
    dx: Region<E>,
    dresidual: Option<Region<E>>,
) {
    let Rows { rows, channels } = g.size;
    let coefficients = |i: usize| context.shared.part(i * channels, channels);
    let scale = coefficients(0);
    let shift = coefficients(1);
    let slope = coefficients(2);
    let gate = coefficients(3);
    // SAFETY: the workspace is this instruction's; operands as promised.
    unsafe {
        scales(g.moments.variance, weight, g.epsilon, scale);
        if let Some((dbias, dweight, count)) = sums {
            for channel in 0..channels {
                let inverse = inverse_std(*g.moments.variance.at(channel, 1), g.epsilon);
                *shift.at(channel, 1) = *dbias.at(channel, 1) / count as f32;
                *slope.at(channel, 1) = *dweight.at(channel, 1) * inverse / count as f32;
            }
        }
    }
    let (x, mean, dresidual, residual) = (g.x, g.moments.mean, dresidual.unwrap_or(dx), dresidual.is_some());
    macro_rules! run {
        ($with:ident, $residual:literal, $sums:literal, $stored:literal) => {
            // SAFETY: the caller's promise; the workspace is this instruction's.
            $with!(g.activation(), R => unsafe {
                let dy = Gated::new(g, gate);
                let pass =
                    Backward::<E, R, $residual, $sums, $stored> { dy, x, dx, dresidual, mean, scale, shift, slope };
                sweep::by_channel(context, rows, channels, &pass)
            })
        };
    }
    match (residual, sums.is_some(), g.is_stored()) {
        (false, false, false) => run!(with_activation, false, false, false),
        (false, false, true) => run!(with_relu, false, false, true),
        (false, true, false) => run!(with_activation, false, true, false),
        (false, true, true) => run!(with_relu, false, true, true),
        (true, false, false) => run!(with_relu, true, false, false),
        (true, false, true) => run!(with_relu, true, false, true),
        (true, true, false) => run!(with_relu, true, true, false),
        (true, true, true) => run!(with_relu, true, true, true),
    }
}

/// `(mean, variance) -> [mean, variance * count / (count - 1)] / shards`.
///
/// # Safety
/// Regions are valid: C values each, 2C in `share`, which is written.
pub(crate) unsafe fn running_share(moments: Moments, count: usize, shards: usize, share: Region<f32>) {
    let channels = moments.mean.len();
    let unbiased = count as f32 / (count.max(2) - 1) as f32;
    for channel in 0..channels {
        // SAFETY: the caller's promise.
        unsafe {
            *share.at(channel, 1) = *moments.mean.at(channel, 1) / shards as f32;
            *share.at(channels + channel, 1) = *moments.variance.at(channel, 1) * unbiased / shards as f32;
        }
    }
}

/// `running = (1 - momentum) * running + momentum * update`.
///
/// # Safety
/// Regions are valid and equally long; `running` is written.
pub(crate) unsafe fn running_update(update: Region<f32>, running: Region<f32>, momentum: f32) {
    for i in 0..running.len() {
        // SAFETY: the caller's promise.
        unsafe { *running.at(i, 1) = (1.0 - momentum) * *running.at(i, 1) + momentum * *update.at(i, 1) };
    }
}

#[cfg(test)]
#[path = "batch_norm_tests.rs"]
mod tests;
