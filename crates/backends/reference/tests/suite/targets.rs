//! A device's decisions about plans change no result: the order of filters, the operations to fuse, and what gradients read.

use crate::common::{Batch, TO_GRADIENTS, program_for, state, submit, train};
use enmasse_device::Program;
use enmasse_graph::{CompileOptions, Conv, FilterOrder, Init, Mode, Phase, Precision, Target, Tensor};

/// Convolutions with different numbers of inputs and outputs per group, and one that adds another gradient to its own.
fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(6, 3).stride(2).padding(1).no_bias()).batch_norm("bn").relu();
    let y = x.clone().conv2d("grouped", Conv::new(6, 3).padding(1).groups(3)).batch_norm("bn_grouped");
    (y + x).relu().conv2d("point", Conv::new(4, 1)).flatten().linear("fc", 3)
}

/// Losses, state and tensors of a few steps, in PyTorch's order.
#[derive(Debug, PartialEq)]
struct Results {
    losses: Vec<f64>,
    state: Vec<(String, Vec<f64>)>,
    /// Logits and gradients.
    tensors: Vec<Vec<f64>>,
}

fn options() -> CompileOptions {
    CompileOptions { shards: 2, ..CompileOptions::new("net", 2, 7, 3) }
}

fn results(target: &Target, options: &CompileOptions) -> Results {
    let mut program = program_for(target, &net, options);
    let losses = (1..=3).map(|step| {
        let batch = Batch::random(&program, step);
        train(&mut program, &batch, step, 0.1).loss
    });
    let losses = losses.collect();
    let state = state(&mut program);
    let batch = Batch::random(&program, 4);
    submit(&mut program, Mode::Train, &TO_GRADIENTS, &batch, 4, 0.0);
    let mut tensors = vec![program.store("logits").unwrap()];
    tensors.extend(["stem", "grouped", "point"].map(|name| program.store(&format!("gradient.{name}.weight")).unwrap()));
    submit(&mut program, Mode::Evaluate, &[Phase::Forward, Phase::Loss], &batch, 1, 0.0);
    tensors.push(program.store("logits").unwrap());
    Results { losses, state, tensors }
}

#[test]
fn the_order_of_filters_changes_no_bit() {
    let [usual, other] = [FilterOrder::Hwio, FilterOrder::Ohwi]
        .map(|filters| results(&Target { filters, ..Target::default() }, &options()));
    assert_eq!(usual, other);
}

#[test]
fn the_order_of_filters_is_in_shapes_texts_and_first_values() {
    let check = |filters: FilterOrder, shape: [usize; 4]| {
        let target = Target { filters, ..Target::default() };
        let plans = target.compile(&net, &CompileOptions::new("net", 2, 7, 3)).unwrap();
        let tensor = plans.find("grouped.weight").unwrap();
        assert_eq!(*tensor.shape, shape);
        assert_eq!(*tensor.layout.torch_shape(&tensor.shape), [6, 2, 3, 3]);
        let text = plans.evaluate.to_string();
        assert!(text.lines().next().is_some_and(|line| line.ends_with(&format!("filters {filters}"))), "{text}");
        assert!(matches!(tensor.init, Init::Uniform { .. }));
        let (mut stored, mut torch) = (vec![0.0; 108], vec![0.0; 108]);
        tensor.init.fill(1, &tensor.name, tensor.layout, &tensor.shape, 0, &mut stored);
        tensor.layout.for_each(&tensor.shape, |from, to| torch[to] = stored[from]);
        assert_eq!(torch, tensor.init.values(1, &tensor.name, 0..108));
    };
    check(FilterOrder::Hwio, [3, 3, 2, 6]);
    check(FilterOrder::Ohwi, [6, 3, 3, 2]);
}

#[test]
fn bits_of_what_activations_passed_change_no_bit() {
    let usual = results(&Target::default(), &options());
    // Eight elements do not divide six channels, so a byte is for one; two do.
    for bytes in [32, 8] {
        let target = Target { gate_bytes: Some(bytes), ..Target::default() };
        let text = target.compile(&net, &CompileOptions::new("net", 2, 7, 3)).unwrap().train.unwrap().to_string();
        assert!(text.contains("u8[2,4,4,"), "{text}");
        assert_eq!(usual, results(&target, &options()));
    }
}

/// In f64 all results are those of images without zeros. Plans of 16 bits alone have them.
#[test]
fn channels_of_zeros_change_no_bit() {
    for filters in [FilterOrder::Hwio, FilterOrder::Ohwi] {
        let [usual, padded] = [None, Some(8)].map(|image_channels| {
            let target = Target { filters, image_channels, ..Target::default() };
            let options = CompileOptions { precision: Precision::Bf16, ..options() };
            let text = target.compile(&net, &options).unwrap().train.unwrap().to_string();
            assert_eq!(text.contains("bf16[2,7,7,8]"), image_channels.is_some(), "{text}");
            results(&target, &options)
        });
        assert_eq!(usual, padded);
    }
}

#[test]
fn a_device_that_fuses_nothing_computes_the_same() {
    let apart = Target { fuse: Box::new(|_, _, _| {}), ..Target::default() };
    let names = |target: &Target| {
        let plans = target.compile(&net, &CompileOptions::new("net", 2, 7, 3)).unwrap();
        plans.evaluate.instructions.iter().map(|node| node.op.name()).collect::<Vec<_>>()
    };
    assert_eq!(names(&Target::default()).iter().filter(|name| **name == "relu").count(), 0);
    assert_eq!(names(&apart).iter().filter(|name| **name == "relu").count(), 2);
    let fused = results(&Target::default(), &options());
    let apart = results(&apart, &options());
    for (a, b) in fused.tensors.iter().flatten().zip(apart.tensors.iter().flatten()) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{a} {b}");
    }
}
