//! The last operation of a pass: nothing, or a rectifier, whose gradient can be computed from its result.

use crate::element::Element;
use crate::isa::Simd;

/// The upper limit of a ReLU6.
const SIX: f32 = 6.0;

/// A rectifier as a type, so that loops contain no branches on its kind. The methods have the conditions of those of
/// [`Simd`].
pub(crate) trait Rectify: Copy + Sync + 'static {
    /// Whether [`Rectify::gate`] reads the result.
    const GATES: bool;
    /// The result.
    unsafe fn apply<S: Simd>(x: S::V) -> S::V;
    /// `dy` where the result, once stored as `E`, lets it pass, else 0. `y` is the stored result or the input of
    /// [`Rectify::apply`]: both give the same gate, because the limits are the values that round to 0 and to 6.
    unsafe fn gate<S: Simd, E: Element>(dy: S::V, y: S::V) -> S::V;
}

/// No rectifier.
#[derive(Clone, Copy)]
pub(crate) struct Identity;
/// `max(x, 0)`.
#[derive(Clone, Copy)]
pub(crate) struct Relu;
/// `min(max(x, 0), 6)`.
#[derive(Clone, Copy)]
pub(crate) struct Relu6;

impl Rectify for Identity {
    const GATES: bool = false;
    #[inline(always)]
    unsafe fn apply<S: Simd>(x: S::V) -> S::V {
        x
    }
    #[inline(always)]
    unsafe fn gate<S: Simd, E: Element>(dy: S::V, _: S::V) -> S::V {
        dy
    }
}

impl Rectify for Relu {
    const GATES: bool = true;
    #[inline(always)]
    unsafe fn apply<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::relu(x) }
    }
    #[inline(always)]
    unsafe fn gate<S: Simd, E: Element>(dy: S::V, y: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::where_above(dy, y, S::splat(E::UP_TO_ZERO)) }
    }
}

impl Rectify for Relu6 {
    const GATES: bool = true;
    #[inline(always)]
    unsafe fn apply<S: Simd>(x: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::at_most(S::relu(x), S::splat(SIX)) }
    }
    #[inline(always)]
    unsafe fn gate<S: Simd, E: Element>(dy: S::V, y: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::where_above(S::where_above(dy, y, S::splat(E::UP_TO_ZERO)), S::splat(E::FROM_SIX), y) }
    }
}

/// Evaluates `$body` with `$name` as the type of a rectifier that is known only at run time.
macro_rules! with_rectifier {
    ($rectifier:expr, $name:ident => $body:expr) => {
        match $rectifier {
            None => {
                type $name = $crate::rectify::Identity;
                $body
            }
            Some(enmasse_graph::Rectifier::Relu) => {
                type $name = $crate::rectify::Relu;
                $body
            }
            Some(enmasse_graph::Rectifier::Relu6) => {
                type $name = $crate::rectify::Relu6;
                $body
            }
        }
    };
}
pub(crate) use with_rectifier;

/// The rectifier's result for one value, and whether it lets the value's gradient pass: the plain twin of the types
/// above.
#[cfg(test)]
pub(crate) fn plain(rectifier: Option<enmasse_graph::Rectifier>, x: f64) -> (f64, bool) {
    use enmasse_graph::Rectifier;
    match rectifier {
        None => (x, true),
        Some(Rectifier::Relu) => (x.max(0.0), x > 0.0),
        Some(Rectifier::Relu6) => (x.clamp(0.0, 6.0), x > 0.0 && x < 6.0),
    }
}
