//! Attention and its gradient against the reference, at every level and with any number of threads.

use enmasse_reference::ops::attention as reference;
use enmasse_tensor::Bf16;
use proptest::prelude::*;

use super::*;
use crate::guard::{Edge, Guarded, GuardedContext};
use crate::test_support::{assert_near, available, noise};

fn wide<E: Element>(values: &[E]) -> Vec<f64> {
    values.iter().map(|value| value.get().into()).collect()
}

/// The results and gradients, and what the reference gives from the same values.
fn check<E: Element + Default>(size: Size, isa: Isa, threads: usize) -> Vec<f32> {
    let Size { batch, tokens, heads, head } = size;
    let edge = Edge::BOTH[threads % 2];
    let context = &mut GuardedContext::new(edge, threads, isa, size.workspace(isa).max(size.backward_workspace(isa)));
    let rows = batch * tokens * heads * head;
    let values = |key, n, scale: f32| -> Vec<E> { noise(key, n).iter().map(|&v| E::of(scale * v)).collect() };
    let qkv = Guarded::new(edge, &values(1, 3 * rows, 3.0));
    let dy = Guarded::new(edge, &values(2, rows, 1.0));
    let mut y = Guarded::filled(edge, E::of(f32::NAN), rows);
    let mut dqkv = Guarded::filled(edge, E::of(f32::NAN), 3 * rows);
    let mut log_sum_exp = Guarded::filled(edge, f32::NAN, batch * heads * tokens);
    // SAFETY: every region is a live buffer of the right size.
    unsafe {
        let qkv = Region::of(&qkv);
        let y = Region::of_mut(&mut y);
        let log_sum_exp = Region::of_mut(&mut log_sum_exp);
        forward(context, &Forward { size, qkv, y, log_sum_exp });
        let dqkv = Region::of_mut(&mut dqkv);
        backward(context, &Backward { size, dy: Region::of(&dy), qkv, y, log_sum_exp, dqkv });
    }
    let of_reference = reference::Size { batch, tokens, heads, head };
    let [expected, sums] = reference::forward(&wide(&qkv), of_reference);
    let what = format!("{isa} {size:?} {}", E::DTYPE.name());
    // Of the result, and of probabilities and their gradients before they are multiplied.
    let rounding = if E::BF16 { 8e-3 } else { 0.0 };
    let found = |values: &[E]| -> Vec<f32> { values.iter().map(|value| value.get()).collect() };
    assert_near(&format!("y {what}"), &found(&y), &expected, 1e-5 + rounding);
    assert_near(&format!("log_sum_exp {what}"), &log_sum_exp, &sums, 1e-5);
    let expected = reference::backward(&wide(&dy), &wide(&qkv), &wide(&y), &sums, of_reference);
    assert_near(&format!("dqkv {what}"), &found(&dqkv), &expected, 1e-4 + rounding);
    [found(&y), found(&dqkv), log_sum_exp.to_vec()].concat()
}

fn check_all(size: Size) {
    for isa in available() {
        let (single, half) = (check::<f32>(size, isa, 1), check::<Bf16>(size, isa, 1));
        assert_eq!(check::<f32>(size, isa, 3), single, "{isa} {size:?}");
        assert_eq!(check::<Bf16>(size, isa, 3), half, "{isa} {size:?}");
    }
}

#[test]
fn usual_sizes_equal_the_reference_with_any_number_of_threads() {
    for [batch, tokens, heads, head] in
        [[1, 197, 3, 64], [2, 50, 2, 80], [1, 1, 1, 16], [3, 48, 1, 32], [1, 49, 2, 24], [1, 300, 1, 16]]
    {
        check_all(Size { batch, tokens, heads, head });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_size_equals_the_reference(batch in 1usize..3, tokens in 1usize..240, heads in 1usize..4, head in 1usize..81) {
        check_all(Size { batch, tokens, heads, head });
    }
}

/// What diverged stays visible.
#[test]
fn nan_reaches_the_result() {
    let size = Size { batch: 1, tokens: 5, heads: 1, head: 3 };
    for isa in available() {
        let context = &mut Context::new(1, isa, size.workspace(isa)).unwrap();
        let mut qkv = noise(1, 45);
        let mut y = [0.0; 15];
        let mut log_sum_exp = [0.0; 5];
        // The key of the second token.
        qkv[9 + 3] = f32::NAN;
        let qkv = Region::of(&qkv);
        let y_of = Region::of_mut(&mut y);
        let log_sum_exp = Region::of_mut(&mut log_sum_exp);
        // SAFETY: live buffers.
        unsafe { forward(context, &Forward { size, qkv, y: y_of, log_sum_exp }) };
        assert!(y.iter().all(|y| y.is_nan()), "{isa}: {y:?}");
    }
}
