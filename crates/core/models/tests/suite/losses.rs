//! Losses and their gradients against PyTorch, torchvision and timm, among them of logits of 100 and 0.
//!
//! `fixtures/losses.py` made their side. Each sample is an image with one white pixel, so that a row of the weights is its logits.

use std::path::Path;

use enmasse_cpu::{Cpu, CpuOptions, Isa};
use enmasse_device::{Device, HostBatch, StepInputs};
use enmasse_graph::losses::{self, Asymmetric};
use enmasse_graph::{CompileOptions, Loss, Mode, PerSample, Phase, TargetKind, Tensor, compile};
use enmasse_reference::Reference;
use safetensors::SafeTensors;
use test_support::Need;

const SAMPLES: usize = 24;
const CLASSES: usize = 5;
const SIZE: usize = 8;
const PIXELS: usize = SIZE * SIZE * 3;

const WEIGHTS: [f32; CLASSES] = [0.5, 1.0, 2.0, 0.25, 4.0];
const MEAN: [f32; CLASSES] = [0.0, 10.0, 2000.0, -3.0, 0.5];
const STD: [f32; CLASSES] = [1.0, 2.0, 8.0, 0.25, 64.0];

/// What the logits are compared with.
#[derive(Clone, Copy, PartialEq)]
enum Targets {
    Labels,
    Mixtures,
    /// Of this name.
    Values(&'static str),
}
use Targets::{Labels, Mixtures, Values};

fn weighted(smoothing: f32) -> Loss {
    Loss::CrossEntropy { smoothing, weights: WEIGHTS.into() }
}

fn own(function: fn(Tensor, Tensor) -> Tensor) -> Loss {
    Loss::Custom(PerSample::new(function))
}

fn cases() -> Vec<(&'static str, Targets, Loss)> {
    vec![
        ("weighted", Labels, weighted(0.0)),
        ("weighted_smoothed", Labels, weighted(0.1)),
        ("weighted_mixed", Mixtures, weighted(0.1)),
        ("softmax_focal", Labels, own(|x, y| losses::softmax_focal(x, y, 2.0))),
        ("softmax_focal_mixed", Mixtures, own(|x, y| losses::softmax_focal(x, y, 1.5))),
        ("binary", Values("present"), own(|x, y| losses::binary_cross_entropy(x, y, None))),
        ("binary_shares", Values("shares"), own(|x, y| losses::binary_cross_entropy(x, y, None))),
        ("binary_weighted", Values("present"), own(|x, y| losses::binary_cross_entropy(x, y, Some(&WEIGHTS)))),
        ("sigmoid_focal", Values("present"), own(|x, y| losses::sigmoid_focal(x, y, Some(0.25), 2.0))),
        ("sigmoid_focal_plain", Values("present"), own(|x, y| losses::sigmoid_focal(x, y, None, 1.5))),
        ("sigmoid_focal_shares", Values("shares"), own(|x, y| losses::sigmoid_focal(x, y, Some(0.75), 1.0))),
        ("asymmetric", Values("present"), own(|x, y| losses::asymmetric(x, y, Asymmetric::default()))),
        ("asymmetric_unclipped", Values("present"), own(|x, y| losses::asymmetric(x, y, UNCLIPPED))),
        ("squared", Values("values"), own(|x, y| losses::squared_error(x, standard(y)))),
        ("absolute", Values("values"), own(|x, y| losses::absolute_error(x, standard(y)))),
        ("huber", Values("values"), own(|x, y| losses::huber(x, standard(y), 1.5))),
        ("distilled", Values("teacher"), own(|x, y| losses::distillation(x, y, 4.0))),
        ("distilled_cold", Values("teacher"), own(|x, y| losses::distillation(x, y, 1.0))),
        ("distilled_labels", Values("teacher"), own(|x, y| losses::sigmoid_distillation(x, y, 2.0))),
    ]
}

const UNCLIPPED: Asymmetric = Asymmetric { gamma_positive: 0.0, gamma_negative: 2.0, clip: 0.0 };

fn standard(values: Tensor) -> Tensor {
    losses::standardize(values, &MEAN, &STD)
}

/// A tensor of the fixture.
fn read(name: &str) -> Vec<f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/losses.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = file.tensor(name).unwrap().data().chunks_exact(8);
    numbers.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The mean loss of training, and the gradient of each logit.
fn run(device: &dyn Device, targets: Targets, loss: Loss, logits: &[f64]) -> (f64, Vec<f64>) {
    let target = if let Values(_) = targets { TargetKind::Values(CLASSES) } else { TargetKind::Class };
    let options = CompileOptions {
        loss,
        target,
        mixed: targets == Mixtures,
        mean: vec![0.0; 3],
        std: vec![1.0; 3],
        ..CompileOptions::new("logits", SAMPLES, SIZE, CLASSES)
    };
    let plans = compile(&|x: Tensor| x.flatten().linear("fc", CLASSES), &options).unwrap();
    let mut program = device.compile(plans, None).unwrap();
    let mut images = vec![0; SAMPLES * PIXELS];
    let mut weights = vec![0.0; CLASSES * PIXELS];
    for sample in 0..SAMPLES {
        images[sample * PIXELS + 3 * sample] = 255;
        (0..CLASSES).for_each(|class| weights[class * PIXELS + sample] = logits[sample * CLASSES + class]);
    }
    program.load("fc.weight", &weights).unwrap();
    program.load("fc.bias", &[0.0; CLASSES]).unwrap();
    let integers = |name: &str| read(name).into_iter().map(|label| label as i32).collect();
    let floats = |name: &str| read(name).into_iter().map(|value| value as f32).collect();
    let plain =
        HostBatch { images, labels: integers("labels"), sample_indices: vec![0; SAMPLES], ..HostBatch::default() };
    let batch = match targets {
        Labels => plain,
        Mixtures => HostBatch { other_labels: integers("others"), lambdas: floats("lambdas"), ..plain },
        Values(name) => HostBatch { targets: floats(name), ..plain },
    };
    let inputs = StepInputs { optimizer_step: 1, ..StepInputs::evaluation(batch.into()) };
    let (_, phases) = Phase::ALL.split_last().unwrap();
    let ticket = program.submit(Mode::Train, phases, &inputs).unwrap();
    let loss = program.metrics(ticket).unwrap().loss;
    let gradient = program.store("gradient.fc.weight").unwrap();
    let of_logit = |at: usize| gradient[at % CLASSES * PIXELS + at / CLASSES];
    (loss, (0..SAMPLES * CLASSES).map(of_logit).collect())
}

/// Compares all losses, whose errors may be `limit` times the largest number of the same kind.
fn check(device: &dyn Device, limit: f64) {
    let logits = read("logits");
    for (name, targets, loss) in cases() {
        let (loss, gradient) = run(device, targets, loss, &logits);
        let [expected_loss, expected] = ["loss", "gradient"].map(|kind| read(&format!("{name}.{kind}")));
        let error = |found: &[f64], expected: &[f64]| {
            let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            differences.fold(0.0, |most: f64, next| if next > most || next.is_nan() { next } else { most }) / largest
        };
        let errors = [error(&[loss], &expected_loss), error(&gradient, &expected)];
        println!("{name} on {}: loss {:.1e}, gradient {:.1e}", device.name(), errors[0], errors[1]);
        assert!(errors.iter().all(|error| *error <= limit), "{name} on {}: {errors:?}", device.name());
    }
}

#[test]
fn reference() {
    // The plan has the share of a sample in f32.
    check(&Reference, 1e-7);
}

#[test]
fn cpu_at_every_level() {
    for isa in Isa::ALL {
        if !isa.available() {
            test_support::skip(Need::Level, format_args!("the processor has no {isa}"));
            continue;
        }
        check(&Cpu::new(CpuOptions { threads: 2, isa: Some(isa), ..CpuOptions::default() }).unwrap(), 1e-6);
    }
}

/// An exponent below 1 has an infinite derivative where nothing is wrong.
#[test]
fn small_exponents_keep_gradients_finite() {
    let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    let small = |clip| Asymmetric { gamma_positive: 0.5, gamma_negative: 0.5, clip };
    let (some, none) = (small(0.25), small(0.0));
    let losses: [(Targets, PerSample); 4] = [
        (Labels, PerSample::new(|x, y| losses::softmax_focal(x, y, 0.5))),
        (Values("present"), PerSample::new(|x, y| losses::sigmoid_focal(x, y, None, 0.5))),
        (Values("present"), PerSample::new(move |x, y| losses::asymmetric(x, y, some))),
        (Values("present"), PerSample::new(move |x, y| losses::asymmetric(x, y, none))),
    ];
    let logits = read("logits");
    for device in [&Reference as &dyn Device, &cpu] {
        for (targets, function) in losses.clone() {
            let (loss, gradient) = run(device, targets, Loss::Custom(function), &logits);
            assert!(loss.is_finite() && gradient.iter().all(|value| value.is_finite()), "{loss} {gradient:?}");
        }
    }
}
