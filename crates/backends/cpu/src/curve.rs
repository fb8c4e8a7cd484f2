//! Functions of one number, and their gradients, in vectors.
//!
//! Smooth activations are computed in f32 from an exponential of our own, which every level has. Their errors are below 4 ulp
//! of the result, or below 2e-7. All other functions are computed in f64, lane by lane, and rounded once, so
//! their bits do not depend on the level.

use crate::inlined::inlined;
use crate::isa::{Lanes, MAX_LANES};

/// A function of one number, in vectors. Implementations are `#[inline(always)]`.
pub(crate) trait Curve: Sync {
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V;

    /// `dy` times the derivative at `x`.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V;
}

/// Runs code with the [`Curve`] of a [`enmasse_graph::ops::Function`].
macro_rules! with_curve {
    ($function:expr, $curve:ident => $run:expr) => {
        match $function {
            ::enmasse_graph::ops::Function::Affine { scale, shift } => {
                let (scale, shift) = (f64::from(scale), f64::from(shift));
                let $curve = $crate::curve::Exact { value: move |x| scale * x + shift, derivative: move |_| scale };
                $run
            }
            ::enmasse_graph::ops::Function::Exp => {
                let $curve = $crate::curve::Exact { value: f64::exp, derivative: f64::exp };
                $run
            }
            ::enmasse_graph::ops::Function::Log => {
                let $curve = $crate::curve::Exact { value: f64::ln, derivative: f64::recip };
                $run
            }
            ::enmasse_graph::ops::Function::Power(exponent) => {
                let power = f64::from(exponent);
                // Of the power 0 it is not NaN at 0.
                let derivative = move |x: f64| if power == 0.0 { 0.0 } else { power * x.powf(power - 1.0) };
                let $curve = $crate::curve::Exact { value: move |x: f64| x.powf(power), derivative };
                $run
            }
            ::enmasse_graph::ops::Function::ClampMin(minimum) => {
                let minimum = f64::from(minimum);
                // NaN stays NaN.
                let value = move |x| if x < minimum { minimum } else { x };
                let $curve = $crate::curve::Exact { value, derivative: move |x| f64::from(u8::from(x >= minimum)) };
                $run
            }
            ::enmasse_graph::ops::Function::Sigmoid => {
                let $curve = $crate::curve::Sigmoid;
                $run
            }
            ::enmasse_graph::ops::Function::Silu => {
                let $curve = $crate::curve::Silu;
                $run
            }
            ::enmasse_graph::ops::Function::Gelu => {
                let $curve = $crate::curve::Gelu;
                $run
            }
            ::enmasse_graph::ops::Function::HardSwish => {
                let $curve = $crate::curve::HardSwish;
                $run
            }
        }
    };
}
pub(crate) use with_curve;

/// A function and its derivative in f64.
pub(crate) struct Exact<V, D> {
    pub value: V,
    pub derivative: D,
}

impl<V: Fn(f64) -> f64 + Sync, D: Fn(f64) -> f64 + Sync> Curve for Exact<V, D> {
    inlined! {
        unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V {
            let mut lanes = [0.0; 4 * MAX_LANES];
            S::store(lanes.as_mut_ptr(), x);
            lanes[..S::LANES].iter_mut().for_each(|lane| *lane = (self.value)((*lane).into()) as f32);
            S::load(lanes.as_ptr())
        }
        unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V {
            let (mut lanes, mut gradients) = ([0.0; 4 * MAX_LANES], [0.0; 4 * MAX_LANES]);
            S::store(lanes.as_mut_ptr(), x);
            S::store(gradients.as_mut_ptr(), dy);
            for (gradient, &lane) in gradients.iter_mut().zip(&lanes[..S::LANES]) {
                *gradient = (f64::from(*gradient) * (self.derivative)(lane.into())) as f32;
            }
            S::load(gradients.as_ptr())
        }
    }
}

inlined! {
    /// `(first * x + ..) * x + last`.
    unsafe fn polynomial<S: Lanes>(x: S::V, coefficients: &[f32]) -> S::V {
        let first = S::splat(coefficients[0]);
        coefficients[1..].iter().fold(first, |sum, &coefficient| S::mul_add(sum, x, S::splat(coefficient)))
    }

    unsafe fn negative<S: Lanes>(x: S::V) -> S::V {
        S::sub(S::splat(0.0), x)
    }

    /// `exp(-x)` for `x` of at least 0; NaN stays. What would be below 2^-126 is 0.
    ///
    /// Source of the polynomial: S. Moshier, Cephes mathematical library (`expf`).
    pub(crate) unsafe fn exp_negative<S: Lanes>(x: S::V) -> S::V {
        let (limit, full) = (S::splat(MAX_EXPONENT), x);
        let x = negative::<S>(S::at_most(full, limit));
        let round = S::splat(ROUND);
        let power = S::sub(S::mul_add(x, S::splat(std::f32::consts::LOG2_E), round), round);
        let rest = LN_2.iter().fold(x, |rest, &part| S::sub(rest, S::mul(power, S::splat(part))));
        let tail = S::mul(polynomial::<S>(rest, &EXP), S::mul(rest, rest));
        let exp = S::times_power_of_two(S::add(S::add(tail, rest), S::splat(1.0)), power);
        // The difference is 0, or NaN.
        S::add(S::where_above(exp, limit, full), S::sub(x, x))
    }

    /// `exp(-|x|)`, and `1 / (1 + exp(-|x|))`.
    unsafe fn logistic<S: Lanes>(x: S::V) -> [S::V; 2] {
        let exp = exp_negative::<S>(S::abs(x));
        [exp, S::div(S::splat(1.0), S::add(S::splat(1.0), exp))]
    }

    /// `1 / (1 + exp(-x))`, and its derivative.
    unsafe fn sigmoid<S: Lanes>(x: S::V) -> [S::V; 2] {
        let [exp, upper] = logistic::<S>(x);
        let lower = S::mul(exp, upper);
        let value = S::add(lower, S::where_above(S::sub(upper, lower), x, S::splat(0.0)));
        [value, S::mul(lower, upper)]
    }

    /// `P(X <= x)` for a standard normal X, and `exp(-x^2 / 2)`.
    unsafe fn normal_distribution<S: Lanes>(x: S::V) -> [S::V; 2] {
        let exp = exp_negative::<S>(S::mul(S::mul(x, x), S::splat(0.5)));
        let t = S::div(S::splat(1.0), S::mul_add(S::abs(x), S::splat(NORMAL_SCALE), S::splat(1.0)));
        let lower = S::mul(S::mul(t, exp), polynomial::<S>(t, &NORMAL));
        let middle = S::sub(S::splat(1.0), S::add(lower, lower));
        [S::add(lower, S::where_above(middle, x, S::splat(0.0))), exp]
    }
}

/// Beyond it `exp(-x)` leaves the normal numbers.
const MAX_EXPONENT: f32 = 87.3;
/// `1.5 * 2^23`: added and subtracted, it rounds to a whole number.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, of which the first times a whole number is exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `(exp(x) - 1 - x) / x^2`, between halves of ln 2.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_58e-2, 0.166_666_65, 0.5];
/// `P(X > x) * exp(x^2 / 2) / t` of `t = 1 / (1 + NORMAL_SCALE * x)`, with a relative error below 1.3e-7 for all `x` of at least 0.
/// The scale is the one with the least error for this degree; the fit minimises the greatest error over t.
const NORMAL: [f32; 9] = [
    0.025_130_289,
    -0.091_447_75,
    0.084_538_06,
    -0.002_800_005_3,
    0.070_714_05,
    0.084_271_389,
    0.103_921_3,
    0.112_834_801,
    0.112_837_93,
];
const NORMAL_SCALE: f32 = 0.4 * std::f32::consts::FRAC_1_SQRT_2;
/// `1 / sqrt(2 * pi)`.
const DENSITY: f32 = 0.398_942_3;

/// `1 / (1 + exp(-x))`.
pub(crate) struct Sigmoid;

impl Curve for Sigmoid {
    inlined! {
        unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V {
            sigmoid::<S>(x)[0]
        }
        unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V {
            S::mul(dy, sigmoid::<S>(x)[1])
        }
    }
}

/// `x * sigmoid(x)`.
pub(crate) struct Silu;

impl Curve for Silu {
    inlined! {
        unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V {
            S::mul(x, sigmoid::<S>(x)[0])
        }
        unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V {
            let [value, derivative] = sigmoid::<S>(x);
            S::mul(dy, S::mul_add(x, derivative, value))
        }
    }
}

/// `x * P(X <= x)` for a standard normal X.
pub(crate) struct Gelu;

impl Curve for Gelu {
    inlined! {
        unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V {
            S::mul(x, normal_distribution::<S>(x)[0])
        }
        unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V {
            let [distribution, exp] = normal_distribution::<S>(x);
            S::mul(dy, S::mul_add(S::mul(x, S::splat(DENSITY)), exp, distribution))
        }
    }
}

/// `x * min(max(x + 3, 0), 6) / 6`.
pub(crate) struct HardSwish;

impl Curve for HardSwish {
    inlined! {
        unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V {
            let gate = S::at_most(S::relu(S::add(x, S::splat(3.0))), S::splat(6.0));
            S::mul(x, S::mul(gate, S::splat(1.0 / 6.0)))
        }
        unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V {
            let slope = S::mul_add(x, S::splat(1.0 / 3.0), S::splat(0.5));
            let inside = S::where_above(slope, x, S::splat(-3.0));
            // From 3 the slope is 1.
            let beyond = S::where_above(S::sub(S::splat(1.0), slope), x, S::splat(3.0_f32.next_down()));
            S::mul(dy, S::add(inside, beyond))
        }
    }
}
