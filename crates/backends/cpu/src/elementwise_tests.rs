//! Element-wise passes against their definitions, in place and out of place.

use enmasse_tensor::RandomStream;
use enmasse_tensor::random::{key, unit_f32};

use super::*;
use crate::activation::plain;
use crate::guard::{Edge, Guarded};
use crate::test_support::{assert_near, available, noise};
use crate::workspace::Workspace;

#[test]
fn normalize_is_a_table() {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let bytes: Vec<u8> = (0..3 * 30_001).map(|i| (i * 31 % 256) as u8).collect();
    for (isa, channels, edge) in available().flat_map(|isa| [(isa, 1, Edge::First), (isa, 3, Edge::Last)]) {
        let bytes = Guarded::new(edge, &bytes);
        let mut y = Guarded::filled(edge, 0.0, bytes.len() / 3 * channels);
        let context = &mut Context::new(2, isa, Workspace::default()).unwrap();
        let table = NormalizeTable::new(&mean[..channels], &std[..channels]).unwrap();
        // SAFETY: live buffers with equally many pixels.
        unsafe { normalize(context, &table, Region::of(&bytes), Region::of_mut(&mut y)) };
        let channel = |i: usize, byte: u8| (f64::from(byte) / 255.0 - f64::from(mean[i % 3])) / f64::from(std[i % 3]);
        let values = bytes.iter().enumerate().filter(|(i, _)| i % 3 < channels);
        let expected: Vec<f64> = values.map(|(i, &byte)| channel(i, byte)).collect();
        assert_near("normalize", &y, &expected, 1e-6);
    }
    assert!(NormalizeTable::<f32>::new(&mean[..2], &std[..2]).is_none());
    assert!(NormalizeTable::<f32>::new(&mean[..1], &std).is_none());
}

#[test]
fn passes_in_place_of_their_operands() {
    for (isa, edge, n) in
        available().flat_map(|isa| Edge::BOTH.map(|edge| [1, 17, 40_003].map(|n| (isa, edge, n)))).flatten()
    {
        let [a, b] = [1, 2].map(|key| noise(key, n).iter().map(|value| 8.0 * value).collect::<Vec<f32>>());
        let [a, b] = [a, b].map(|values| Guarded::new(edge, &values));
        let copy = || Guarded::new(edge, &a);
        let context = &mut Context::new(3, isa, Workspace::default()).unwrap();
        let check = |over: &[f32], expected: &dyn Fn(f32, f32) -> f32| {
            let expected: Vec<f64> = a.iter().zip(&*b).map(|(&a, &b)| f64::from(expected(a, b))).collect();
            assert_near(&format!("{isa} {n}"), over, &expected, 0.0);
        };
        let (mut first, mut second, mut third) = (copy(), copy(), copy());
        let x = Region::of_mut(&mut first);
        let y = Region::of_mut(&mut second);
        let z = Region::of_mut(&mut third);
        let (mut fourth, mut fifth) = (copy(), copy());
        let (u, v) = (Region::of_mut(&mut fourth), Region::of_mut(&mut fifth));
        let mut sixth = copy();
        let w = Region::of_mut(&mut sixth);
        // SAFETY: live buffers of equal length.
        unsafe {
            activate(context, Activation::Relu, x, x);
            activate_backward(context, Activation::Relu, y, Region::of(&b), y);
            activate(context, Activation::Relu6, u, u);
            activate_backward(context, Activation::Relu6, v, Region::of(&b), v);
            add(context, z, Region::of(&b), z);
            multiply(context, w, Region::of(&b), w);
        }
        check(&first, &|a, _| a.max(0.0));
        check(&second, &|a, b| if b > 0.0 { a } else { 0.0 });
        check(&third, &|a, b| a + b);
        check(&sixth, &|a, b| a * b);
        check(&fourth, &|a, _| a.clamp(0.0, 6.0));
        check(&fifth, &|a, b| if b > 0.0 && b < 6.0 { a } else { 0.0 });
    }
}

/// Whether a result is within 4 units in the last place of what is expected, or within 2e-7 of it.
fn is_near(found: f32, expected: f64) -> bool {
    let limit = 4.0 * expected.abs() * f64::from(f32::EPSILON);
    (f64::from(found) - expected).abs() <= limit.max(2e-7)
}

#[test]
fn smooth_activations_in_place_equal_the_reference() {
    let special =
        vec![-f32::MAX, -100.0, -90.0, -20.0, -3.0, -1e-39, -0.0, 0.0, 0.75, 3.0, 20.0, 90.0, 100.0, f32::MAX];
    for (isa, activation) in available().flat_map(|isa| [(isa, Activation::Silu), (isa, Activation::HardSwish)]) {
        let noise = |n| noise(1, n).into_iter().map(|value| 6.0 * value).collect();
        for (edge, x) in [(Edge::First, special.clone()), (Edge::Last, noise(17)), (Edge::First, noise(20_011))] {
            let context = &mut Context::new(3, isa, Workspace::default()).unwrap();
            let (x, dy) = (Guarded::new(edge, &x), Guarded::filled(edge, 0.5, x.len()));
            let (mut y, mut dx) = (Guarded::new(edge, &x), Guarded::new(edge, &dy));
            let (over_x, over_dy) = (Region::of_mut(&mut y), Region::of_mut(&mut dx));
            // SAFETY: live buffers of equal length.
            unsafe {
                activate(context, activation, over_x, over_x);
                activate_backward(context, activation, over_dy, Region::of(&x), over_dy);
            }
            for (i, &x) in x.iter().enumerate() {
                let (value, derivative) = plain(Some(activation), x.into());
                assert!(is_near(y[i], value), "{activation:?} {isa}: {x} gives {}, not {value}", y[i]);
                assert!(is_near(dx[i], derivative / 2.0), "{activation:?} {isa}: at {x} {} not {derivative}", dx[i]);
            }
        }
        let context = &mut Context::new(1, isa, Workspace::default()).unwrap();
        let mut y = [f32::NAN; 100];
        let over = Region::of_mut(&mut y);
        // SAFETY: a live buffer.
        unsafe { activate(context, activation, over, over) };
        assert!(y.iter().all(|y| y.is_nan()), "{activation:?} {isa}: {y:?}");
    }
}

#[test]
fn dropout_reads_the_samples_stream() {
    let (seed, probability, epoch) = (9, 0.3, 5);
    let samples = [4i64, 7_000_000_000, 1];
    for (elements, per_sample) in [(1, false), (7, false), (1024, false), (7, true), (1024, true), (20_011, true)] {
        let x = noise(1, 3 * elements);
        let mut y = Guarded::new(Edge::Last, &x);
        let layer = Dropout { key: key(seed, "dropout fc.1"), probability };
        let pieces = Piece::cut((0..3).map(|sample| sample * elements..(sample + 1) * elements));
        for isa in available() {
            y.copy_from_slice(&x);
            let context = &mut Context::new(2, isa, Workspace::default()).unwrap();
            let over = Region::of_mut(&mut y);
            // SAFETY: live buffers of the right sizes.
            unsafe {
                match per_sample {
                    true => drop_path(context, layer, epoch, Region::of(&samples), &pieces, [over; 2]),
                    false => dropout(context, layer, epoch, Region::of(&samples), over, over),
                }
            }
        }
        let mut expected = Vec::new();
        for (x, &sample) in x.chunks(elements).zip(&samples) {
            let mut stream = RandomStream::new(seed, "dropout fc.1", epoch, sample as u64);
            let first = stream.next_u32();
            expected.extend(x.iter().enumerate().map(|(element, &x)| {
                let word = if element == 0 || per_sample { first } else { stream.next_u32() };
                let kept = unit_f32(word) >= probability;
                if kept { f64::from(x) / (1.0 - f64::from(probability)) } else { 0.0 }
            }));
        }
        assert_near("dropout", &y, &expected, 1e-6);
    }
}

#[test]
fn transpose_there_and_back() {
    for [samples, pixels, channels] in [[2, 6, 5], [3, 1, 4], [1, 4, 1]] {
        let x = Guarded::new(Edge::Last, &noise(1, samples * pixels * channels));
        let [mut y, mut back] = [0, 1].map(|_| Guarded::filled(Edge::Last, 0.0, x.len()));
        let context = &mut Context::new(2, available().next().unwrap(), Workspace::default()).unwrap();
        // SAFETY: live buffers of equal length.
        unsafe {
            transpose(context, [samples, pixels, channels], Region::of(&x), Region::of_mut(&mut y));
            transpose(context, [samples, channels, pixels], Region::of(&y), Region::of_mut(&mut back));
        }
        assert_eq!(*x, *back);
        assert_eq!(y[pixels * channels - 1], x[pixels * channels - 1]);
        for (p, c) in (0..pixels).flat_map(|p| (0..channels).map(move |c| (p, c))) {
            assert_eq!(y[c * pixels + p], x[p * channels + c]);
        }
    }
}
