//! What all kernels write alike: methods that are inlined into the code of a level, and loops over vectors.

/// Methods that are always inlined, or else they would be compiled without the level's features. Each body is unsafe as a
/// whole, if anything in it is: its safety is the caller's promise, as the trait or the type states it.
macro_rules! inlined {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis unsafe fn $name:ident $(<$($Parameter:ident: $Bound:ident),+>)? ($($arguments:tt)*) $(-> $Result:ty)? {
            $($body:tt)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            #[inline(always)]
            #[allow(unused_unsafe, reason = "some bodies are safe")]
            $visibility unsafe fn $name $(<$($Parameter: $Bound),+>)? ($($arguments)*) $(-> $Result)? {
                // SAFETY: the caller's promise.
                unsafe { $($body)* }
            }
        )*
    };
}
pub(crate) use inlined;

/// Calls a method for every vector of a range: `each_vector!(S, at in range => object, method(arguments))`. Its type
/// parameter is `S` for whole vectors, and [`Scalar`](crate::isa::Scalar) for each value that is left. Unsafe as the method.
macro_rules! each_vector {
    ($S:ident, $at:ident in $range:expr => $object:expr, $method:ident($($argument:expr),* $(,)?)) => {{
        let range = $range;
        let mut $at = range.start;
        while $at + $S::LANES <= range.end {
            $object.$method::<$S>($($argument),*);
            $at += $S::LANES;
        }
        while $at < range.end {
            $object.$method::<$crate::isa::Scalar>($($argument),*);
            $at += 1;
        }
    }};
}
pub(crate) use each_vector;
