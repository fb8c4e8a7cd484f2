//! The last operation of a pass: nothing, or an activation.

use crate::curve;
use crate::element::Element;
use crate::inlined::inlined;
use crate::isa::Lanes;

/// The upper limit of a ReLU6.
const SIX: f32 = 6.0;

/// An activation as a type, so that loops contain no branches on its kind. The methods have the conditions of those of
/// [`Lanes`].
pub(crate) trait ActivationFunction: Copy + Sync + 'static {
    /// Whether [`ActivationFunction::gradient`] is more than `dy`.
    const GATES: bool = true;
    /// Whether it is a chain of operations, so that four vectors at once take less time.
    const CHAINS: bool = false;
    /// The result.
    unsafe fn apply<S: Lanes>(x: S::V) -> S::V;
    /// `dy` times the derivative at the operand of [`ActivationFunction::apply`]. Of a ReLU whose result is stored as `E` it is `dy`
    /// or 0, and its stored result serves as well: both give the same, because the limits are the values that round to 0 and to 6.
    unsafe fn gradient<S: Lanes, E: Element>(dy: S::V, x: S::V) -> S::V;
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
/// `x * sigmoid(x)`.
#[derive(Clone, Copy)]
pub(crate) struct Silu;
/// `x * min(max(x + 3, 0), 6) / 6`.
#[derive(Clone, Copy)]
pub(crate) struct HardSwish;

impl ActivationFunction for Identity {
    const GATES: bool = false;
    inlined! {
        unsafe fn apply<S: Lanes>(x: S::V) -> S::V { x }
        unsafe fn gradient<S: Lanes, E: Element>(dy: S::V, _: S::V) -> S::V { dy }
    }
}

impl ActivationFunction for Relu {
    inlined! {
        unsafe fn apply<S: Lanes>(x: S::V) -> S::V { S::relu(x) }
        unsafe fn gradient<S: Lanes, E: Element>(dy: S::V, x: S::V) -> S::V {
            S::where_above(dy, x, S::splat(E::UP_TO_ZERO))
        }
    }
}

impl ActivationFunction for Relu6 {
    inlined! {
        unsafe fn apply<S: Lanes>(x: S::V) -> S::V { S::at_most(S::relu(x), S::splat(SIX)) }
        unsafe fn gradient<S: Lanes, E: Element>(dy: S::V, x: S::V) -> S::V {
            S::where_above(S::where_above(dy, x, S::splat(E::UP_TO_ZERO)), S::splat(E::FROM_SIX), x)
        }
    }
}

impl ActivationFunction for Silu {
    const CHAINS: bool = true;
    inlined! {
        unsafe fn apply<S: Lanes>(x: S::V) -> S::V { curve::silu::<S>(x) }
        unsafe fn gradient<S: Lanes, E: Element>(dy: S::V, x: S::V) -> S::V { S::mul(dy, curve::silu_derivative::<S>(x)) }
    }
}

impl ActivationFunction for HardSwish {
    inlined! {
        unsafe fn apply<S: Lanes>(x: S::V) -> S::V {
            let gate = S::at_most(S::relu(S::add(x, S::splat(3.0))), S::splat(SIX));
            S::mul(x, S::mul(gate, S::splat(1.0 / SIX)))
        }
        unsafe fn gradient<S: Lanes, E: Element>(dy: S::V, x: S::V) -> S::V {
            // The greatest slope below 3 is 1.5.
            let slope = S::at_most(S::mul_add(x, S::splat(1.0 / 3.0), S::splat(0.5)), S::splat(1.5));
            let inside = S::where_above(slope, x, S::splat(-3.0));
            // From 3 the slope is 1.
            let beyond = S::where_above(S::sub(S::splat(1.0), slope), x, S::splat(3.0_f32.next_down()));
            S::mul(dy, S::add(inside, beyond))
        }
    }
}

/// Evaluates `$body` with `$name` as the type of an activation that is known only at run time.
macro_rules! with_activation {
    ($activation:expr, $name:ident => $body:expr) => {
        match $activation {
            Some(enmasse_graph::Activation::Silu) => {
                type $name = $crate::activation::Silu;
                $body
            }
            Some(enmasse_graph::Activation::HardSwish) => {
                type $name = $crate::activation::HardSwish;
                $body
            }
            other => $crate::activation::with_relu!(other, $name => $body),
        }
    };
}
pub(crate) use with_activation;

/// As [`with_activation`], where there is a ReLU or no activation.
macro_rules! with_relu {
    ($activation:expr, $name:ident => $body:expr) => {
        match $activation {
            Some(enmasse_graph::Activation::Relu) => {
                type $name = $crate::activation::Relu;
                $body
            }
            Some(enmasse_graph::Activation::Relu6) => {
                type $name = $crate::activation::Relu6;
                $body
            }
            _ => {
                type $name = $crate::activation::Identity;
                $body
            }
        }
    };
}
pub(crate) use with_relu;

/// The activation's result for one value, and its derivative there: the plain twin of the types above.
#[cfg(test)]
pub(crate) fn plain(activation: Option<enmasse_graph::Activation>, x: f64) -> (f64, f64) {
    use enmasse_reference::ops::activation::{activate, activate_backward};
    activation.map_or((x, 1.0), |by| (activate(&[x], by)[0], activate_backward(&[1.0], &[x], by)[0]))
}
