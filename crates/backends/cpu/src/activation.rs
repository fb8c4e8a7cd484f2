//! The last operation of a pass: nothing, or an activation, whose gradient can be computed from its result.

use crate::element::Element;
use crate::inlined::inlined;
use crate::isa::Simd;

/// The upper limit of a ReLU6.
const SIX: f32 = 6.0;

/// An activation as a type, so that loops contain no branches on its kind. The methods have the conditions of those of
/// [`Simd`].
pub(crate) trait ActivationFunction: Copy + Sync + 'static {
    /// Whether [`ActivationFunction::gate`] reads the result.
    const GATES: bool;
    /// The result.
    unsafe fn apply<S: Simd>(x: S::V) -> S::V;
    /// `dy` where the result, once stored as `E`, lets it pass, else 0. `y` is the stored result or the input of
    /// [`ActivationFunction::apply`]: both give the same gate, because the limits are the values that round to 0 and to 6.
    unsafe fn gate<S: Simd, E: Element>(dy: S::V, y: S::V) -> S::V;
}

/// No activation.
#[derive(Clone, Copy)]
pub(crate) struct Identity;
/// `max(x, 0)`.
#[derive(Clone, Copy)]
pub(crate) struct Relu;
/// `min(max(x, 0), 6)`.
#[derive(Clone, Copy)]
pub(crate) struct Relu6;

impl ActivationFunction for Identity {
    const GATES: bool = false;
    inlined! {
        unsafe fn apply<S: Simd>(x: S::V) -> S::V { x }
        unsafe fn gate<S: Simd, E: Element>(dy: S::V, _: S::V) -> S::V { dy }
    }
}

impl ActivationFunction for Relu {
    const GATES: bool = true;
    inlined! {
        unsafe fn apply<S: Simd>(x: S::V) -> S::V { S::relu(x) }
        unsafe fn gate<S: Simd, E: Element>(dy: S::V, y: S::V) -> S::V {
            S::where_above(dy, y, S::splat(E::UP_TO_ZERO))
        }
    }
}

impl ActivationFunction for Relu6 {
    const GATES: bool = true;
    inlined! {
        unsafe fn apply<S: Simd>(x: S::V) -> S::V { S::at_most(S::relu(x), S::splat(SIX)) }
        unsafe fn gate<S: Simd, E: Element>(dy: S::V, y: S::V) -> S::V {
            S::where_above(S::where_above(dy, y, S::splat(E::UP_TO_ZERO)), S::splat(E::FROM_SIX), y)
        }
    }
}

/// Evaluates `$body` with `$name` as the type of an activation that is known only at run time.
macro_rules! with_activation {
    ($activation:expr, $name:ident => $body:expr) => {
        match $activation {
            None => {
                type $name = $crate::activation::Identity;
                $body
            }
            Some(enmasse_graph::Activation::Relu) => {
                type $name = $crate::activation::Relu;
                $body
            }
            Some(enmasse_graph::Activation::Relu6) => {
                type $name = $crate::activation::Relu6;
                $body
            }
        }
    };
}
pub(crate) use with_activation;

/// The activation's result for one value, and whether it lets the value's gradient pass: the plain twin of the types
/// above.
#[cfg(test)]
pub(crate) fn plain(activation: Option<enmasse_graph::Activation>, x: f64) -> (f64, bool) {
    use enmasse_graph::Activation;
    match activation {
        None => (x, true),
        Some(Activation::Relu) => (x.max(0.0), x > 0.0),
        Some(Activation::Relu6) => (x.clamp(0.0, 6.0), x > 0.0 && x < 6.0),
    }
}
