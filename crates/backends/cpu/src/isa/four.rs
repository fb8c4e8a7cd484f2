//! Four vectors as one, for functions whose operations each wait for the one before.

use std::marker::PhantomData;

use super::{Lanes, Simd};
use crate::inlined::inlined;

/// Four vectors of a level, side by side: while one waits for its last operation, the processor works on the others.
#[derive(Clone, Copy)]
pub(crate) struct Four<S>(PhantomData<S>);

/// The four values of an expression of `i`, which no closure computes, for it would not be inlined everywhere.
macro_rules! four {
    ($i:ident => $value:expr) => {
        [
            {
                const $i: usize = 0;
                $value
            },
            {
                const $i: usize = 1;
                $value
            },
            {
                const $i: usize = 2;
                $value
            },
            {
                const $i: usize = 3;
                $value
            },
        ]
    };
}

pub(crate) use four;

impl<S: Simd> Lanes for Four<S> {
    const LANES: usize = 4 * S::LANES;
    type V = [S::V; 4];
    inlined! {
        unsafe fn splat(x: f32) -> Self::V { [S::splat(x); 4] }
        unsafe fn load(p: *const f32) -> Self::V { four!(I => S::load(p.add(I * S::LANES))) }
        unsafe fn store(p: *mut f32, v: Self::V) { four!(I => S::store(p.add(I * S::LANES), v[I])); }
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V { four!(I => S::add(a[I], b[I])) }
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V { four!(I => S::sub(a[I], b[I])) }
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V { four!(I => S::mul(a[I], b[I])) }
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V { four!(I => S::div(a[I], b[I])) }
        unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            four!(I => S::mul_add(a[I], b[I], c[I]))
        }
        unsafe fn mul_sub(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            four!(I => S::mul_sub(a[I], b[I], c[I]))
        }
        unsafe fn times_power_of_two(a: Self::V, power: Self::V) -> Self::V {
            four!(I => S::times_power_of_two(a[I], power[I]))
        }
        unsafe fn abs(a: Self::V) -> Self::V { four!(I => S::abs(a[I])) }
        unsafe fn relu(a: Self::V) -> Self::V { four!(I => S::relu(a[I])) }
        unsafe fn at_most(a: Self::V, limit: Self::V) -> Self::V { four!(I => S::at_most(a[I], limit[I])) }
        unsafe fn at_least(a: Self::V, limit: Self::V) -> Self::V { four!(I => S::at_least(a[I], limit[I])) }
        unsafe fn where_above(a: Self::V, gate: Self::V, limit: Self::V) -> Self::V {
            four!(I => S::where_above(a[I], gate[I], limit[I]))
        }
    }
}
