//! The one-dimensional transforms of F(4, 3) and its gradient; each two-dimensional transform applies one of them twice.
//!
//! Four results of a three-tap filter are the product of two polynomials, evaluated at the points 0, ±3/4, ±3/2 and
//! infinity. The textbook's ±1 and ±2 need fewer multiplications but have five times the rounding error. The powers of
//! ±3/4 and ±3/2 are exact in f32 too. Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks",
//! 2016; B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
//! Networks", 2020.

use crate::isa::Simd;

/// The smaller point.
const P: f32 = 0.75;
/// The larger point.
const Q: f32 = 1.5;
const P2: f32 = P * P;
const Q2: f32 = Q * Q;

// A filter's value at a point is divided by the product of the point's differences from all others.
const AT_ZERO: f32 = 1.0 / (P2 * Q2);
const AT_P: f32 = 1.0 / (2.0 * P2 * (P2 - Q2));
const AT_Q: f32 = 1.0 / (2.0 * Q2 * (Q2 - P2));

/// `Bᵀ d`: transforms six values of the source. The powers of x in `(x² - P²)(x² - Q²)`, `x (x ± P)(x² - Q²)`,
/// `x (x ± Q)(x² - P²)` and `x (x² - P²)(x² - Q²)`, with `d[i]` for `x^i`.
#[inline(always)]
pub(super) unsafe fn source<S: Simd>(d: [S::V; 6]) -> [S::V; 6] {
    // SAFETY: the caller's promise that the level is available.
    unsafe {
        let (p2, q2) = (S::splat(-P2), S::splat(-Q2));
        let (even_p, odd_p) = (S::mul_add(q2, d[2], d[4]), S::mul_add(q2, d[1], d[3]));
        let (even_q, odd_q) = (S::mul_add(p2, d[2], d[4]), S::mul_add(p2, d[1], d[3]));
        let (odd_p, odd_q) = (S::mul(S::splat(P), odd_p), S::mul(S::splat(Q), odd_q));
        let low = S::splat(P2 * Q2);
        let middle = S::splat(-P2 - Q2);
        [
            S::mul_add(low, d[0], S::mul_add(middle, d[2], d[4])),
            S::add(even_p, odd_p),
            S::sub(even_p, odd_p),
            S::add(even_q, odd_q),
            S::sub(even_q, odd_q),
            S::mul_add(low, d[1], S::mul_add(middle, d[3], d[5])),
        ]
    }
}

/// `Aᵀ m`: four results from the products at the six points.
#[inline(always)]
pub(super) unsafe fn result<S: Simd>(m: [S::V; 6]) -> [S::V; 4] {
    // SAFETY: as above.
    unsafe {
        let (sum_p, difference_p) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        let (sum_q, difference_q) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
        let cubes = S::mul_add(S::splat(Q2 * Q), difference_q, m[5]);
        [
            S::add(m[0], S::add(sum_p, sum_q)),
            S::mul_add(S::splat(P), difference_p, S::mul(S::splat(Q), difference_q)),
            S::mul_add(S::splat(P2), sum_p, S::mul(S::splat(Q2), sum_q)),
            S::mul_add(S::splat(P2 * P), difference_p, cubes),
        ]
    }
}

/// `A e`: transforms four values of the result's gradient; the transpose of [`result`]. Only the first four of `e` are used.
#[inline(always)]
pub(super) unsafe fn result_gradient<S: Simd>(e: [S::V; 6]) -> [S::V; 6] {
    // SAFETY: as above.
    unsafe {
        let (p2, q2) = (S::splat(P2), S::splat(Q2));
        let (even_p, odd_p) = (S::mul_add(p2, e[2], e[0]), S::mul_add(p2, e[3], e[1]));
        let (even_q, odd_q) = (S::mul_add(q2, e[2], e[0]), S::mul_add(q2, e[3], e[1]));
        let (odd_p, odd_q) = (S::mul(S::splat(P), odd_p), S::mul(S::splat(Q), odd_q));
        [e[0], S::add(even_p, odd_p), S::sub(even_p, odd_p), S::add(even_q, odd_q), S::sub(even_q, odd_q), e[3]]
    }
}

/// `G g`: transforms three taps.
#[inline(always)]
pub(super) unsafe fn filter<S: Simd>(g: [S::V; 3]) -> [S::V; 6] {
    // SAFETY: as above.
    unsafe {
        let even_p = S::mul(S::splat(AT_P), S::mul_add(S::splat(P2), g[2], g[0]));
        let even_q = S::mul(S::splat(AT_Q), S::mul_add(S::splat(Q2), g[2], g[0]));
        let odd_p = S::mul(S::splat(P * AT_P), g[1]);
        let odd_q = S::mul(S::splat(Q * AT_Q), g[1]);
        [
            S::mul(S::splat(AT_ZERO), g[0]),
            S::add(even_p, odd_p),
            S::sub(even_p, odd_p),
            S::add(even_q, odd_q),
            S::sub(even_q, odd_q),
            g[2],
        ]
    }
}

/// `Gᵀ u`: the gradient of three taps; the transpose of [`filter`].
#[inline(always)]
pub(super) unsafe fn filter_gradient<S: Simd>(u: [S::V; 6]) -> [S::V; 3] {
    // SAFETY: as above.
    unsafe {
        let sum_p = S::mul(S::splat(AT_P), S::add(u[1], u[2]));
        let difference_p = S::sub(u[1], u[2]);
        let sum_q = S::mul(S::splat(AT_Q), S::add(u[3], u[4]));
        let difference_q = S::sub(u[3], u[4]);
        [
            S::mul_add(S::splat(AT_ZERO), u[0], S::add(sum_p, sum_q)),
            S::mul_add(S::splat(P * AT_P), difference_p, S::mul(S::splat(Q * AT_Q), difference_q)),
            S::mul_add(S::splat(P2), sum_p, S::mul_add(S::splat(Q2), sum_q, u[5])),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Scalar;
    use crate::test_support::{assert_near, noise};

    fn arrays<const N: usize>(values: &[f32]) -> [[f32; 1]; N] {
        std::array::from_fn(|i| [values[i]])
    }

    #[test]
    fn four_results_of_three_taps() {
        for key in 0..20 {
            let d = noise(2 * key, 6);
            let g = noise(2 * key + 1, 3);
            let direct: Vec<f64> =
                (0..4).map(|t| (0..3).map(|r| f64::from(d[t + r]) * f64::from(g[r])).sum()).collect();
            // SAFETY: every machine has scalars.
            let found = unsafe {
                let (v, u) = (source::<Scalar>(arrays(&d)), filter::<Scalar>(arrays(&g)));
                result::<Scalar>(std::array::from_fn(|i| [v[i][0] * u[i][0]]))
            };
            assert_near("results", &found.map(|y| y[0]), &direct, 2e-6);
        }
    }

    #[test]
    fn gradients_of_three_taps() {
        for key in 0..20 {
            let d = noise(2 * key, 6);
            let e = noise(2 * key + 1, 6);
            let direct: Vec<f64> =
                (0..3).map(|r| (0..4).map(|t| f64::from(d[t + r]) * f64::from(e[t])).sum()).collect();
            // SAFETY: as above.
            let found = unsafe {
                let v = source::<Scalar>(arrays(&d));
                let w = result_gradient::<Scalar>(arrays(&e));
                filter_gradient::<Scalar>(std::array::from_fn(|i| [v[i][0] * w[i][0]]))
            };
            assert_near("gradients", &found.map(|dg| dg[0]), &direct, 2e-6);
        }
    }
}
