//! Activations in bf16 equal the rounded activations in f32: every kernel on elements loads f32, computes in f32 and rounds once.
//! (Matmuls differ, and are compared with f64.)

use enmasse_graph::ops::Conv2d;
use enmasse_graph::{Activation, Window};
use proptest::prelude::*;

use super::*;
use crate::batch_norm::{self, Forward, Gate, Gradient};
use crate::conv::{ConvShape, Grouped, GroupedGradient, Start};
use crate::elementwise::{self, Dropout, NormalizeTable};
use crate::guard::{Edge, Guarded, GuardedContext};
use crate::isa::{Isa, Kernel, dispatch};
use crate::pooling::{Average, Maximum, PoolShape};
use crate::region::Region;
use crate::statistics::{self, Moments};
use crate::sweep::Rows;
use crate::test_support::{available, noise};
use crate::workspace::Workspace;

/// Results of kernels: activations, which are rounded to their element type, and values that are always f32.
#[derive(Default)]
struct Results {
    activations: Vec<(&'static str, Vec<f32>)>,
    values: Vec<(&'static str, Vec<f32>)>,
}

impl Results {
    fn map<E: Element>(&mut self, name: &'static str, map: &Guarded<E>) {
        self.activations.push((name, map.iter().map(|value| value.get()).collect()));
    }

    fn value(&mut self, name: &'static str, values: &Guarded<f32>) {
        self.values.push((name, values.to_vec()));
    }
}

/// Batch, height, width and channels.
#[derive(Clone, Copy, Debug)]
struct Sizes(usize, usize, usize, usize);

/// A feature map of noise that bf16 represents exactly.
fn map<E: Element>(edge: Edge, key: u64, n: usize) -> Guarded<E> {
    let values: Vec<E> = noise(key, n).into_iter().map(|value| E::of(Bf16::from_f32(4.0 * value).to_f32())).collect();
    Guarded::new(edge, &values)
}

fn run<E: Element>(isa: Isa, edge: Edge, sizes: Sizes, activation: Option<Activation>) -> Results {
    let Sizes(batch, height, width, channels) = sizes;
    let rows = batch * height * width;
    let n = batch * height * width * channels;
    let size = Rows { rows, channels };
    let window = Window { kernel: [2; 2], stride: [1; 2], padding: [[1; 2]; 2], dilation: [1; 2] };
    let conv = ConvShape {
        batch,
        input: [height, width, channels],
        output: [height + 1, width + 1, channels],
        conv: Conv2d { window, groups: channels },
        normalized: false,
    };
    let pooled = PoolShape { batch, input: [height, width, channels], output: [height + 1, width + 1] };
    let small = batch * (height + 1) * (width + 1) * channels;
    let maximum = Maximum::new(pooled, &window);
    let average = Average::window(pooled, &window);
    let table = NormalizeTable::<E>::new(&[0.4, 0.5, 0.6], &[0.2, 0.3, 0.4]).unwrap();
    let bytes: Vec<u8> = (0..3 * rows).map(|i| (i * 37 % 256) as u8).collect();
    let samples: Vec<i64> = (0..batch as i64).collect();
    let layer = Dropout { key: [1, 2], probability: 0.3 };
    let depthwise = [false, true].map(|backward| Grouped::new(&conv, isa, backward));
    let gradient = GroupedGradient::new(&conv, isa);
    let workspace = size.workspace().max(gradient.workspace()).max(Workspace { shared: 64, private: 0 });
    let workspace = depthwise.iter().fold(workspace, |workspace, conv| workspace.max(conv.workspace()));
    let context = &mut GuardedContext::new(edge, 2, isa, workspace);

    let [a, b, residual] = [1, 2, 3].map(|key| map::<E>(edge, key, n));
    let dy = map::<E>(edge, 4, small);
    let [mean, weight, bias] = [5, 6, 7].map(|key| Guarded::new(edge, &noise(key, channels)));
    let variance = Guarded::new(edge, &noise(8, channels).iter().map(|v| v * v + 0.1).collect::<Vec<f32>>());
    let weights = Guarded::new(edge, &noise(9, 4 * channels));
    let new = |n| Guarded::filled(edge, E::of(f32::NAN), n);
    let vector = |n| Guarded::filled(edge, f32::NAN, n);
    let mut results = Results::default();
    macro_rules! out {
        (map $name:literal [$($out:ident: $n:expr),+] $call:expr) => {{
            $(let mut $out = new($n);)+
            // SAFETY: here and below, live buffers of the sizes that the kernel expects.
            unsafe { $call };
            $(results.map($name, &$out);)+
        }};
        (value $name:literal [$($out:ident: $n:expr),+] $call:expr) => {{
            $(let mut $out = vector($n);)+
            // SAFETY: as above.
            unsafe { $call };
            $(results.value($name, &$out);)+
        }};
    }
    let (x, y, res) = (Region::of(&a), Region::of(&b), Region::of(&residual));
    let moments = Moments { mean: Region::of(&mean), variance: Region::of(&variance) };
    let weight = Region::of(&weight);
    let bias = Region::of(&bias);
    let filters = Region::of(&weights);

    out!(map "normalize" [out: 3 * rows] {
        elementwise::normalize(context, &table, Region::of(&bytes), Region::of_mut(&mut out))
    });
    let chosen = activation.unwrap_or(Activation::Relu);
    out!(map "activation" [out: n] elementwise::activate(context, chosen, x, Region::of_mut(&mut out)));
    out!(map "activation backward" [out: n] {
        elementwise::activate_backward(context, chosen, x, y, Region::of_mut(&mut out))
    });
    out!(map "add" [out: n] elementwise::add(context, x, y, Region::of_mut(&mut out)));
    out!(map "dropout" [out: n] {
        elementwise::dropout(context, layer, 3, Region::of(&samples), x, Region::of_mut(&mut out))
    });
    let order = [batch, height * width, channels];
    out!(value "flatten" [out: n] elementwise::transpose(context, order, x, Region::of_mut(&mut out)));
    out!(value "bias backward" [out: channels] {
        batch_norm::bias_backward(context, size, x, Region::of_mut(&mut out))
    });
    out!(value "statistics" [mean: channels, variance: channels] {
        let moments = Moments { mean: Region::of_mut(&mut mean), variance: Region::of_mut(&mut variance) };
        statistics::statistics(context, size, x, moments)
    });
    for residual in [None, Some(res)] {
        out!(map "batch norm" [out: n] {
            let y = Region::of_mut(&mut out);
            let forward = Forward { size, x, moments, weight, bias, residual, y, epsilon: 1e-3, activation };
            batch_norm::normalize(context, &forward)
        });
    }
    let gate = activation.map(|activation| match activation.is_relu() {
        true => (activation, Gate::Stored(y)),
        false => (activation, Gate::Recomputed { weight, bias }),
    });
    let norm = Gradient { size, dy: res, x, moments, gate, epsilon: 1e-3 };
    out!(value "batch norm reduce" [dbias: channels, dweight: channels] {
        batch_norm::reduce(context, &norm, Region::of_mut(&mut dbias), Region::of_mut(&mut dweight))
    });
    out!(map "batch norm backward" [dx: n] {
        batch_norm::backward(context, &norm, weight, Some((bias, weight, rows)), Region::of_mut(&mut dx), None)
    });
    if activation.is_none_or(Activation::is_relu) {
        out!(map "batch norm backward with a residual" [dx: n, dresidual: n] {
            let dresidual = Some(Region::of_mut(&mut dresidual));
            batch_norm::backward(context, &norm, weight, Some((bias, weight, rows)), Region::of_mut(&mut dx), dresidual)
        });
    }
    let mut position = Guarded::filled(edge, 9u8, small);
    let at = Region::of_mut(&mut position);
    out!(map "max pool" [out: small] maximum.forward(context, x, Region::of_mut(&mut out), at));
    out!(map "max pool backward" [out: n] {
        maximum.backward(context, Region::of(&dy), at, Region::of_mut(&mut out))
    });
    out!(map "average pool" [out: small] average.forward(context, x, Region::of_mut(&mut out)));
    out!(map "average pool backward" [out: n] {
        average.backward(context, Region::of(&dy), Region::of_mut(&mut out))
    });
    out!(map "depthwise" [out: small] {
        depthwise[0].run(context, x, filters, Region::of_mut(&mut out), Start::Bias(bias), None)
    });
    out!(map "depthwise backward" [out: n] {
        depthwise[1].run(context, Region::of(&dy), filters, Region::of_mut(&mut out), Start::Base(y), None)
    });
    out!(value "depthwise gradient" [out: 4 * channels] {
        gradient.run(context, x, Region::of(&dy), Region::of_mut(&mut out))
    });
    results
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn maps_in_bf16_equal_rounded_maps_in_f32(
        batch in 1usize..3,
        size in [1usize..9, 1usize..9],
        channels in prop_oneof![2usize..70, Just(32), Just(64)],
        activation in prop::sample::select(vec![
            None,
            Some(Activation::Relu),
            Some(Activation::Relu6),
            Some(Activation::Silu),
            Some(Activation::HardSwish),
        ]),
    ) {
        let sizes = Sizes(batch, size[0], size[1], channels);
        for (isa, edge) in available().flat_map(|isa| Edge::BOTH.map(|edge| (isa, edge))) {
            let wide = run::<f32>(isa, edge, sizes, activation);
            let narrow = run::<Bf16>(isa, edge, sizes, activation);
            for ((name, wide), (_, narrow)) in wide.activations.iter().zip(&narrow.activations) {
                let rounded: Vec<f32> = wide.iter().map(|&value| Bf16::from_f32(value).to_f32()).collect();
                prop_assert_eq!(&rounded, narrow, "{} {}", isa, name);
            }
            prop_assert_eq!(&wide.values, &narrow.values, "{}", isa);
        }
    }
}

struct Copied<'a, X, Y> {
    from: &'a Guarded<X>,
    to: &'a mut Guarded<Y>,
}

impl<X: Element, Y: Element> Kernel for Copied<'_, X, Y> {
    const BF16: bool = X::BF16 || Y::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: both have as many values.
        unsafe { copy::<S, X, Y>(self.from.as_ptr(), self.to.as_mut_ptr(), self.from.len()) }
    }
}

#[test]
fn copies_of_every_length() {
    fn check<X: Element, Y: Element>(len: usize) {
        for (isa, edge) in available().flat_map(|isa| Edge::BOTH.map(|edge| (isa, edge))) {
            let from = map::<X>(edge, 1, len);
            let mut to = Guarded::filled(edge, Y::of(f32::NAN), len);
            // SAFETY: the level is one of this machine.
            unsafe { dispatch(isa, Copied { from: &from, to: &mut to }) }
            assert!(from.iter().map(|x| x.get()).eq(to.iter().map(|y| y.get())), "{isa} {}", X::DTYPE);
        }
    }
    for len in 0..50 {
        check::<f32, f32>(len);
        check::<f32, Bf16>(len);
        check::<Bf16, f32>(len);
        check::<Bf16, Bf16>(len);
    }
}
