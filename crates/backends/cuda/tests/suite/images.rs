//! Images with channels of zeros: steps beside those without, and beside the reference.

use enmasse_device::{Hosting, Program};
use enmasse_graph::{CompileOptions, Conv, Freeze, Mode, Phase, Plans, Precision, Target, Tensor, Window};
use enmasse_reference::ReferenceProgram;

use crate::gpu;
use crate::program::{Batch, assert_agree, fill, gradients, state};

/// A first layer, and little after it that could hide an error.
fn net(stem: Conv) -> impl Fn(Tensor) -> Tensor {
    move |x: Tensor| x.conv2d("stem", stem).relu().adaptive_avg_pool([2, 2]).flatten().linear("fc", 7)
}

/// First layers with a bias or without one, of windows with unequal sides, and of one too large for the emulation's epilogues.
fn stems() -> [Conv; 5] {
    let window = Window { kernel: [3, 2], stride: [2, 1], padding: [[1, 0], [0, 2]], dilation: [1, 2] };
    [
        Conv::new(9, 3).padding(1),
        Conv::new(16, 7).stride(2).padding(3).no_bias(),
        Conv::new(6, 5).stride(2).same(),
        Conv::new(7, 1).window(window),
        Conv::new(12, 8).padding(4),
    ]
}

/// Whether the GPU is a real one, whose engines for other numbers of channels add in other orders.
fn is_real() -> bool {
    std::env::var_os("ENMASSE_TEST_GPU").is_some()
}

fn options(precision: Precision) -> CompileOptions {
    CompileOptions { size: [21, 18], precision, ..CompileOptions::new("net", 5, 21, 7) }
}

/// A step and an evaluation of a program, whose tensors then are all that it has computed.
fn run(program: &mut dyn Program, plans: &Plans) {
    fill(program);
    if plans.find("optimizer.loss_scale.scale").is_some() {
        program.load("optimizer.loss_scale.scale", &[256.0]).unwrap();
    }
    for (mode, phases) in [(Mode::Train, &Phase::ALL[..]), (Mode::Evaluate, &Phase::ALL[..2])] {
        let ticket = program.submit(mode, phases, &Batch::random(plans, 1).inputs(1)).unwrap();
        program.metrics(ticket).unwrap();
    }
}

/// The tensors of a model's first step and evaluation on the GPU, with and without channels of zeros, and the work of the first.
fn with_and_without(stem: Conv, options: &CompileOptions) -> Option<([Vec<Vec<f64>>; 2], String)> {
    let device = gpu()?;
    let padding = device.target();
    let (filters, gate_bytes) = (padding.filters, padding.gate_bytes);
    let plain = Target { filters, gate_bytes, narrow_features: padding.narrow_features, ..Target::default() };
    let tensors = [&padding, &plain].map(|target| {
        let plans = target.compile(&net(stem), options).unwrap();
        let mut program = device.compile(plans.clone(), None).unwrap();
        run(&mut *program, &plans);
        let names = [gradients(&plans), state(&plans), vec!["logits".into()]].concat();
        names.iter().map(|name| program.store(name).unwrap()).collect()
    });
    let plans = padding.compile(&net(stem), options).unwrap();
    let work = device.work(&plans, &Hosting::new(&plans, None).unwrap(), Mode::Train).unwrap().join("\n");
    Some((tensors, work))
}

#[test]
fn channels_of_zeros_change_no_bit() {
    for stem in stems() {
        for precision in [Precision::Bf16, Precision::F16] {
            let grey = CompileOptions { mean: vec![0.4], std: vec![0.3], ..options(precision) };
            for options in [options(precision), CompileOptions { shards: 2, ..options(precision) }, grey] {
                let Some(([padded, plain], work)) = with_and_without(stem, &options) else { return };
                assert!(is_real() || padded == plain, "{precision}");
                let shards = options.shards;
                let name = precision.name();
                let count = |what: &str| work.matches(what).count();
                assert_eq!(count(&format!(" normalize_padded_{name} ")), shards, "{work}");
                assert_eq!(count(&format!(" columns_f32_to_{name} ")), shards, "{work}");
                assert_eq!(count(" x[5,21,18,8] "), 2 * shards, "{work}");
            }
        }
    }
}

/// The weights of a frozen layer get their zeros, too.
#[test]
fn frozen_stems() {
    let freeze = Freeze::Patterns(vec!["stem*".into()]);
    let options = CompileOptions { freeze, ..options(Precision::Bf16) };
    let Some(([padded, plain], work)) = with_and_without(stems()[0], &options) else { return };
    assert!(is_real() || padded == plain);
    assert_eq!(work.matches(" x[5,21,18,8] ").count(), 1, "{work}");
}

#[test]
fn channels_of_zeros_agree_with_the_reference() {
    let Some(device) = gpu() else { return };
    for (precision, tolerance) in [(Precision::Bf16, 4e-2), (Precision::F16, 1e-2)] {
        for stem in stems() {
            let plans = device.target().compile(&net(stem), &options(precision)).unwrap();
            let mut gpu = device.compile(plans.clone(), None).unwrap();
            let mut reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
            run(&mut *gpu, &plans);
            run(&mut reference, &plans);
            let names = [gradients(&plans), vec!["logits".into()]].concat();
            assert_agree(&format!("{precision}"), &names, &mut *gpu, &mut reference, tolerance);
        }
    }
}

#[test]
fn layers_that_read_images_as_they_are() {
    for stem in [Conv::new(8, 4).stride(4), Conv::new(6, 3).groups(3), Conv::new(8, 1)] {
        let Some(([_, _], work)) = with_and_without(stem, &options(Precision::Bf16)) else { return };
        assert!(work.contains(" normalize_bf16 ") && !work.contains("columns_"), "{work}");
    }
}
