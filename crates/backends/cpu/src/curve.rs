//! Functions of one number, and their gradients, in vectors.
//!
//! Smooth activations are computed in f32 from an exponential of our own, which every level has. Their errors are below 4 ulp
//! of the result, or below 2e-7. All other functions of a plan's `function` are computed in f64, lane by lane, and rounded once, so
//! their bits do not depend on the level. What expressions consist of ([`exp`], [`log`], [`tanh`], [`erf`]) is computed in f32, with
//! errors below 1, 1, 2 and 3 ulp.

use std::f32::consts::FRAC_2_SQRT_PI;

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
            ::enmasse_graph::ops::Function::Gelu => {
                let $curve = $crate::curve::Gelu;
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
        let mut sum = S::splat(coefficients[0]);
        // A loop, for a closure would not be inlined everywhere.
        for &coefficient in &coefficients[1..] {
            sum = S::mul_add(sum, x, S::splat(coefficient));
        }
        sum
    }

    unsafe fn negative<S: Lanes>(x: S::V) -> S::V {
        S::sub(S::splat(0.0), x)
    }

    /// `exp(-x)` for `x` of at least 0; NaN stays. What would be below 2^-126 is 0.
    ///
    /// Source of the polynomial: S. Moshier, Cephes mathematical library (`expf`).
    unsafe fn exp_negative<S: Lanes>(x: S::V) -> S::V {
        let limit = S::splat(MAX_EXPONENT);
        let full = x;
        let x = negative::<S>(S::at_most(full, limit));
        let [fraction, power] = exp_parts::<S>(x);
        let exp = S::times_power_of_two(fraction, power);
        // The difference is 0, or NaN.
        S::add(S::where_above(exp, limit, full), S::sub(x, x))
    }

    /// `exp(x)` as a number between the roots of 1/2 and 2, and the whole power of two of which it is a multiple.
    unsafe fn exp_parts<S: Lanes>(x: S::V) -> [S::V; 2] {
        let round = S::splat(ROUND);
        let power = S::sub(S::mul_add(x, S::splat(std::f32::consts::LOG2_E), round), round);
        let rest = S::sub(x, S::mul(power, S::splat(LN_2[0])));
        let rest = S::sub(rest, S::mul(power, S::splat(LN_2[1])));
        let tail = S::mul(polynomial::<S>(rest, &EXP), S::mul(rest, rest));
        [S::add(S::add(tail, rest), S::splat(1.0)), power]
    }

    /// e to the power of x; NaN stays.
    pub(crate) unsafe fn exp<S: Lanes>(x: S::V) -> S::V {
        // Beyond these limits it is 0 or infinite.
        let x = negative::<S>(S::at_most(negative::<S>(x), S::splat(104.0)));
        let [fraction, power] = exp_parts::<S>(S::at_most(x, S::splat(89.0)));
        // In two steps, so that neither factor leaves the normal numbers.
        let round = S::splat(ROUND);
        let half = S::sub(S::mul_add(power, S::splat(0.5), round), round);
        S::times_power_of_two(S::times_power_of_two(fraction, half), S::sub(power, half))
    }

    /// The natural logarithm: -infinity of 0, NaN below; NaN stays.
    pub(crate) unsafe fn log<S: Lanes>(x: S::V) -> S::V {
        let [fraction, power, special] = log_parts::<S>(x);
        let x = S::sub(fraction, S::splat(1.0));
        let square = S::mul(x, x);
        let tail = S::mul(S::mul(polynomial::<S>(x, &LOG), x), square);
        let tail = S::mul_add(power, S::splat(LN_2[1]), tail);
        let sum = S::add(x, S::mul_add(square, S::splat(-0.5), tail));
        S::add(S::mul_add(power, S::splat(LN_2[0]), sum), special)
    }

    /// A number as one between the roots of 1/2 and 2, times a power of two; and what to add to the logarithm: 0, or the logarithm
    /// itself where it is not finite.
    unsafe fn log_parts<S: Lanes>(x: S::V) -> [S::V; 3] {
        const ROOT_OF_HALF: u32 = std::f32::consts::FRAC_1_SQRT_2.to_bits();
        let mut fractions = [0.0; 4 * MAX_LANES];
        let mut powers = [0.0; 4 * MAX_LANES];
        let mut specials = [0.0; 4 * MAX_LANES];
        S::store(fractions.as_mut_ptr(), x);
        // Plain loops, of which the compiler makes vectors of the level.
        for i in 0..S::LANES {
            let x = fractions[i];
            let is_finite = x > 0.0 && x < f32::INFINITY;
            let outside = if x == 0.0 { f32::NEG_INFINITY } else if x > 0.0 { x } else { f32::NAN };
            specials[i] = if is_finite { 0.0 } else { outside };
            // A denormal number has fewer digits in front.
            let (x, shift) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, 23.0) } else { (x, 0.0) };
            let bits = if is_finite { x.to_bits().wrapping_sub(ROOT_OF_HALF) } else { 1.0_f32.to_bits() - ROOT_OF_HALF };
            powers[i] = (bits.cast_signed() >> 23) as f32 - if is_finite { shift } else { 0.0 };
            fractions[i] = f32::from_bits((bits & 0x007f_ffff) + ROOT_OF_HALF);
        }
        [S::load(fractions.as_ptr()), S::load(powers.as_ptr()), S::load(specials.as_ptr())]
    }

    /// A function of `|x|` with the sign of x.
    unsafe fn signed<S: Lanes>(value: S::V, x: S::V) -> S::V {
        S::sub(S::where_above(S::add(value, value), x, S::splat(0.0)), value)
    }

    /// The hyperbolic tangent; NaN stays.
    pub(crate) unsafe fn tanh<S: Lanes>(x: S::V) -> S::V {
        let (size, one) = (S::abs(x), S::splat(1.0));
        let small = S::at_most(size, S::splat(TANH_LIMIT));
        let square = S::mul(small, small);
        let near = S::mul_add(S::mul(small, square), polynomial::<S>(square, &TANH), small);
        let exp = exp_negative::<S>(S::add(size, size));
        let far = S::div(S::sub(one, exp), S::add(one, exp));
        signed::<S>(S::add(near, S::where_above(S::sub(far, near), size, S::splat(TANH_LIMIT))), x)
    }

    /// The error function; NaN stays.
    pub(crate) unsafe fn erf<S: Lanes>(x: S::V) -> S::V {
        let (size, one) = (S::abs(x), S::splat(1.0));
        let small = S::at_most(size, one);
        let near = S::mul(small, polynomial::<S>(S::mul(small, small), &ERF));
        let [upper, _] = normal_tail::<S>(size, S::mul(x, x), 0.4);
        let far = S::sub(one, S::add(upper, upper));
        signed::<S>(S::add(near, S::where_above(S::sub(far, near), size, one)), x)
    }

    /// `exp(-|x|)`, and `1 / (1 + exp(-|x|))`.
    unsafe fn logistic<S: Lanes>(x: S::V) -> [S::V; 2] {
        let exp = exp_negative::<S>(S::abs(x));
        [exp, S::div(S::splat(1.0), S::add(S::splat(1.0), exp))]
    }

    /// `1 / (1 + exp(-x))`, and its derivative.
    pub(crate) unsafe fn sigmoid<S: Lanes>(x: S::V) -> [S::V; 2] {
        let [exp, upper] = logistic::<S>(x);
        let lower = S::mul(exp, upper);
        let value = S::add(lower, S::where_above(S::sub(upper, lower), x, S::splat(0.0)));
        [value, S::mul(lower, upper)]
    }

    /// `exp(-x)` for an `x` between the limits, with a relative error below `1e-7 * (2 + |x|)`.
    unsafe fn exp_within<S: Lanes>(x: S::V) -> S::V {
        let round = S::splat(ROUND);
        let factor = S::splat(-std::f32::consts::LOG2_E);
        let power = S::sub(S::mul_add(x, factor, round), round);
        S::times_power_of_two(polynomial::<S>(S::mul_sub(x, factor, power), &EXP_2), power)
    }

    /// `x * sigmoid(x)`; NaN stays.
    pub(crate) unsafe fn silu<S: Lanes>(x: S::V) -> S::V {
        // Below the limit the result is 0, as far as an absolute error tells, and that of the limit is used.
        let x = S::at_least(x, S::splat(-MAX_EXPONENT));
        S::div(x, S::add(S::splat(1.0), exp_within::<S>(S::at_most(x, S::splat(MAX_EXPONENT)))))
    }

    /// The derivative of `x * sigmoid(x)`; NaN stays.
    pub(crate) unsafe fn silu_derivative<S: Lanes>(x: S::V) -> S::V {
        // Beyond the limits it is 0 or 1.
        let x = S::at_most(S::at_least(x, S::splat(-MAX_EXPONENT)), S::splat(MAX_EXPONENT));
        let exp = exp_within::<S>(x);
        let sigmoid = S::div(S::splat(1.0), S::add(S::splat(1.0), exp));
        // `exp * sigmoid` is `1 - sigmoid` without its cancellation.
        S::mul(sigmoid, S::mul_add(x, S::mul(exp, sigmoid), S::splat(1.0)))
    }

    /// `exp(-x)` for `x` of at least 0, with a relative error below `1e-7 * (2 + x)`; NaN stays. It never gets below 1.2e-38, the value
    /// at [`MAX_EXPONENT`].
    pub(crate) unsafe fn decay<S: Lanes>(x: S::V) -> S::V {
        exp_within::<S>(S::at_most(x, S::splat(MAX_EXPONENT)))
    }

    /// `P(X > x)` for a standard normal X and an `x` of at least 0, of which `size * scale` is [`NORMAL_SCALE`] times, and `exp(-half)` of
    /// half its square.
    unsafe fn normal_tail<S: Lanes>(size: S::V, half: S::V, scale: f32) -> [S::V; 2] {
        let exp = decay::<S>(half);
        let t = S::div(S::splat(1.0), S::mul_add(size, S::splat(scale), S::splat(1.0)));
        [S::mul(S::mul(t, exp), polynomial::<S>(t, &NORMAL)), exp]
    }

    /// `P(X <= x)` for a standard normal X, and `exp(-x^2 / 2)`.
    unsafe fn normal_distribution<S: Lanes>(x: S::V) -> [S::V; 2] {
        let [lower, exp] = normal_tail::<S>(S::abs(x), S::mul(S::mul(x, x), S::splat(0.5)), NORMAL_SCALE);
        let middle = S::mul_add(lower, S::splat(-2.0), S::splat(1.0));
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
/// `2^x`, between -1/2 and 1/2, with a relative error below 1.1e-7. The fit minimises the greatest one.
const EXP_2: [f32; 6] = [0.001_330_109_1, 0.009_669_736, 0.055_505_574, 0.240_222_81, std::f32::consts::LN_2, 1.0];
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
/// Beyond it the normal distribution is 0 or 1, as far as an absolute error tells. Half its square is below [`MAX_EXPONENT`].
const NORMAL_LIMIT: f32 = 13.2;
/// `(log(1 + x) - x + x^2 / 2) / x^3`, where `1 + x` is between the roots of 1/2 and 2. This and the next two fits minimise the greatest
/// relative error, which is below 6e-9.
const LOG: [f32; 8] =
    [-0.076_344_3, 0.127_615_5, -0.131_601_95, 0.142_017_62, -0.166_233_57, 0.200_012_27, -0.250_008_23, 0.333_333_3];
/// `(tanh(x) / x - 1) / x^2` of `x^2`, up to the limit.
const TANH: [f32; 5] = [-0.005_704_978_5, 0.020_639_08, -0.053_739_71, 0.133_314_42, -0.333_332_8];
const TANH_LIMIT: f32 = 0.625;
/// `erf(x) / x` of `x^2`, up to 1.
const ERF: [f32; 7] =
    [7.853_858e-5, -8.010_192_5e-4, 0.005_188_327_7, -0.026_853_811, 0.112_835_854, -0.376_126_26, FRAC_2_SQRT_PI];
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

/// `x * P(X <= x)` for a standard normal X.
pub(crate) struct Gelu;

impl Curve for Gelu {
    inlined! {
        unsafe fn value<S: Lanes>(&self, x: S::V) -> S::V {
            let x = S::at_least(x, S::splat(-NORMAL_LIMIT));
            S::mul(x, normal_distribution::<S>(x)[0])
        }
        unsafe fn gradient<S: Lanes>(&self, dy: S::V, x: S::V) -> S::V {
            let x = S::at_most(S::at_least(x, S::splat(-NORMAL_LIMIT)), S::splat(NORMAL_LIMIT));
            let [distribution, exp] = normal_distribution::<S>(x);
            S::mul(dy, S::mul_add(S::mul(x, S::splat(DENSITY)), exp, distribution))
        }
    }
}
