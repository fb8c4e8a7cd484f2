//! A model with random weights, on the CPU and in ONNX Runtime.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, Program, StepInputs};
use enmasse_export::{ImageInput, Outputs, Weights, to_onnx, to_onnx_int8};
use enmasse_graph::ops::RunningUpdate;
use enmasse_graph::{Builder, CompileOptions, Forward, Mode, Op, Phase, Plan, Tensor};
use enmasse_onnx::Model;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Classes of every model.
pub const CLASSES: usize = 7;
/// Images at once.
pub const BATCH: usize = 3;
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

/// A Python that runs one model after another.
pub struct Runtime {
    python: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Runtime {
    /// None if there is no such Python; then the test is in the table of those that did not run.
    pub fn start() -> Option<Self> {
        let python = test_support::pytorch()?;
        let mut command = Command::new(python);
        command.args(["-c", include_str!("run.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = command.spawn().unwrap();
        let stdin = python.stdin.take().unwrap();
        let stdout = BufReader::new(python.stdout.take().unwrap());
        Some(Runtime { python, stdin, stdout, folder: tempfile::tempdir().unwrap() })
    }

    /// The output of a model for these images. That of an image alone may be so far from that in a batch.
    fn run(&mut self, model: &Model, images: &[u8], atol: f64) -> Value {
        let [file, raw] = ["model.onnx", "images.bin"].map(|name| self.folder.path().join(name));
        model.write(&file).unwrap();
        std::fs::write(&raw, images).unwrap();
        writeln!(self.stdin, "{}", json!({"model": file, "images": raw, "atol": atol})).unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        std::fs::remove_file(&file).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{}: {error}: {line}", model.graph.name()))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // It ends by itself once its input does, unless a test has failed.
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

/// Numbers between -1 and 1.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Weights by which signals neither vanish nor explode.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut random = Random::new(name.bytes().fold(7, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte)));
    let (factor, shift) = match shape.len() {
        // With small factors and positive shifts of norms most signals pass each ReLU. Otherwise a deep random network multiplies
        // rounding errors.
        1 if name.ends_with("weight") => (0.1, 0.3),
        1 => (0.2, 0.3),
        3 => (0.5, 0.0),
        // He's initialisation.
        _ => ((6.0 / shape[1..].iter().product::<usize>() as f32).sqrt(), 0.0),
    };
    (0..shape.iter().product()).map(|_: usize| random.next() * factor + shift).collect()
}

/// Images with a colour of their own each, and patches of other colours, since noise is the same to a network everywhere.
fn pixels(random: &mut Random, size: usize, channels: usize) -> Vec<u8> {
    const PATCHES: usize = 5;
    let mut pixels = Vec::new();
    for _ in 0..BATCH {
        let mut colors = || [0; 3].map(|_| random.next());
        let base = colors();
        let patches: Vec<[f32; 3]> = (0..PATCHES * PATCHES).map(|_| colors()).collect();
        for place in 0..size * size {
            let [row, column] = [place / size, place % size].map(|at| at * PATCHES / size);
            let noise = colors();
            let patch = patches[row * PATCHES + column];
            let color = [0, 1, 2].map(|channel| {
                let channel = if channels == 1 { 0 } else { channel };
                let value = (base[channel] * 4.0 + patch[channel] * 2.0 + noise[channel]) / 7.0;
                (value * 127.0 + 128.0) as u8
            });
            pixels.extend(color);
        }
    }
    pixels
}

/// One model with its weights, as a program of the CPU.
struct Tested<'a> {
    name: &'a str,
    options: CompileOptions,
    model: &'a dyn Fn(Tensor) -> Tensor,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl Tested<'_> {
    fn record(&self, mode: Mode) -> Forward {
        let builder = Builder::new(1, self.options.size, mode, 0);
        let logits = (self.model)(builder.pixels(&self.options.mean, &self.options.std));
        builder.finish(&logits, CLASSES).unwrap()
    }

    fn weights(&self) -> Vec<Weights<'_>> {
        self.tensors.iter().map(|(name, shape, values)| Weights { name, shape, values }).collect()
    }

    /// Sets the running statistics to those of a step of training, as without them a deep network saturates.
    fn measure_statistics(&mut self, device: &Cpu, pixels: &[u8]) {
        let graph = self.record(Mode::Train).graph;
        let mut shares = HashMap::new();
        for node in &graph.nodes {
            if let Op::RunningUpdate(RunningUpdate { momentum }) = node.op {
                shares.extend(node.inputs[1..].iter().map(|&id| (graph.value(id).name.as_str(), momentum)));
            }
        }
        if shares.is_empty() {
            return;
        }
        let plans = device.target().compile(self.model, &self.options).unwrap();
        let mut program = device.compile(plans, None).unwrap();
        for (name, _, values) in &mut self.tensors {
            if shares.contains_key(name.as_str()) {
                values.fill(0.0);
            }
            load(program.as_mut(), name, values);
        }
        step(program.as_mut(), Mode::Train, &[Phase::Forward, Phase::Loss, Phase::Update], pixels);
        for (name, _, values) in &mut self.tensors {
            if let Some(share) = shares.get(name.as_str()) {
                let found = program.store(name).unwrap();
                *values = found.iter().map(|value| *value as f32 / share).collect();
            }
        }
    }

    /// Scales the last linear layer such that its logits have a mean of 0 and a std of 1 over the images, and returns them.
    fn spread_logits(&mut self, program: &mut dyn Program, pixels: &[u8]) -> Vec<f64> {
        let found = logits(program, pixels);
        let means: Vec<f64> = (0..CLASSES).map(|class| of_class(&found, class).sum::<f64>() / BATCH as f64).collect();
        let squares = (0..CLASSES).flat_map(|class| {
            let mean = means[class];
            of_class(&found, class).map(move |logit| (logit - mean).powi(2))
        });
        let std = (squares.sum::<f64>() / (CLASSES * BATCH) as f64).sqrt();
        let largest = found.iter().fold(0.0, |largest: f64, logit| largest.max(logit.abs()));
        assert!(std > 1e-3 * largest, "{}: logits hardly depend on the images: {found:?}", self.name);
        let is_last = |(_, shape, _): &&mut (String, Vec<usize>, Vec<f32>)| shape.len() == 2 && shape[0] == CLASSES;
        let (weight, _, values) = self.tensors.iter_mut().rfind(is_last).unwrap();
        values.iter_mut().for_each(|value| *value /= std as f32);
        load(program, weight, values);
        let bias = weight.replace("weight", "bias");
        if let Some((bias, _, values)) = self.tensors.iter_mut().find(|(name, ..)| *name == bias) {
            // The logits without it are those with it less what it was.
            values.iter_mut().zip(&means).for_each(|(value, mean)| {
                let without = mean - f64::from(*value);
                *value = (-without / std) as f32;
            });
            load(program, bias, values);
        }
        logits(program, pixels)
    }
}

fn of_class(logits: &[f64], class: usize) -> impl Iterator<Item = f64> {
    logits.iter().skip(class).step_by(CLASSES).copied()
}

/// A model with random weights, images, and the CPU's probabilities for them.
struct Prepared<'a> {
    tested: Tested<'a>,
    pixels: Vec<u8>,
    expected: Vec<Vec<f64>>,
}

fn prepare<'a>(name: &'a str, size: usize, channels: usize, model: &'a dyn Fn(Tensor) -> Tensor) -> Prepared<'a> {
    let (mean, std) = (MEAN[..channels].into(), STD[..channels].into());
    let options = CompileOptions { mean, std, ..CompileOptions::new(name, BATCH, size, CLASSES) };
    let device = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let plans = device.target().compile_evaluation(model, &options).unwrap();
    let mut random = Random::new(size as u64);
    let tensors = (plans.state.iter())
        .map(|state| {
            let shape = state.layout.torch_shape(&state.shape).to_vec();
            let values = values(&state.name, &shape);
            (state.name.clone(), shape, values)
        })
        .collect();
    let pixels = pixels(&mut random, size, channels);
    let mut tested = Tested { name, options, model, tensors };
    tested.measure_statistics(&device, &pixels);
    let mut program = device.compile(plans, None).unwrap();
    tested.tensors.iter().for_each(|(name, _, values)| load(program.as_mut(), name, values));
    let logits = tested.spread_logits(program.as_mut(), &pixels);
    let expected: Vec<Vec<f64>> = logits.chunks_exact(CLASSES).map(softmax).collect();
    // What is compared says something: no row is nearly one class alone, and images differ.
    let is_open = |row: &&Vec<f64>| row.iter().all(|probability| *probability < 0.9);
    assert!(expected.iter().filter(is_open).count() * 2 > BATCH, "{name}: {expected:?}");
    assert!(expected.iter().skip(1).all(|row| farthest(row, &expected[0]) > 0.01), "{name}: {expected:?}");
    Prepared { tested, pixels, expected }
}

/// Compares a model's probabilities of the same images, on the CPU and in ONNX Runtime, with images as bytes and as numbers.
pub fn compare(
    runtime: &mut Runtime,
    name: &str,
    size: usize,
    inputs: &[ImageInput],
    channels: usize,
    model: &dyn Fn(Tensor) -> Tensor,
) {
    let Prepared { tested, pixels, expected } = prepare(name, size, channels, model);
    let forward = tested.record(Mode::Evaluate);
    let weights = tested.weights();
    for &input in inputs {
        let graph = to_onnx(name, &forward, &weights, input, &Outputs::Softmax { temperature: 1.0 }).unwrap();
        let exported = Model { graph, producer: "test", version: "1", metadata: vec![("a".into(), "b".into())] };
        let images = of_input(&pixels, input, size, channels);
        let found = runtime.run(&exported, &images, 1e-5);
        assert_eq!((&found["name"], &found["shape"]), (&json!("probabilities"), &json!([BATCH, CLASSES])), "{name}");
        let found: Vec<f64> = serde_json::from_value(found["output"].clone()).unwrap();
        for (expected, found) in expected.iter().zip(found.chunks_exact(CLASSES)) {
            let logs = |row: &[f64]| row.iter().map(|probability| probability.ln()).collect::<Vec<_>>();
            let errors = [farthest(expected, found), farthest(&logs(expected), &logs(found))];
            // The logits' std is 1.
            assert!(errors[0] <= 1e-4 && errors[1] <= 1e-3, "{name}, {}: {found:?}, not {expected:?}", input.name());
        }
    }
}

/// Compares the probabilities of a model of integers in ONNX Runtime with those of the CPU in f32. They differ by some hundredths; a wrong
/// scale, bias or zero makes other predictions.
pub fn compare_int8(runtime: &mut Runtime, name: &str, size: usize, model: &dyn Fn(Tensor) -> Tensor, most: f64) {
    let Prepared { tested, pixels, expected } = prepare(name, size, 3, model);
    let weights = tested.weights();
    let device = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let plans = device.target().compile_calibration(model, &tested.options).unwrap();
    let kept = plans.evaluate.kept.len();
    let mut program = device.compile(plans, None).unwrap();
    tested.tensors.iter().for_each(|(name, _, values)| load(program.as_mut(), name, values));
    step(program.as_mut(), Mode::Evaluate, &[Phase::Forward, Phase::Loss], &pixels);
    let ranges: Vec<[f32; 2]> = (0..kept)
        .map(|index| program.store(&format!("{}{index}", Plan::KEPT)).unwrap())
        .map(|values| [values.iter().copied().fold(0.0, f64::min), values.iter().copied().fold(0.0, f64::max)])
        .map(|range| range.map(|limit| limit as f32))
        .collect();
    let forward = tested.record(Mode::Evaluate);
    let input = ImageInput::Uint8Nhwc;
    let outputs = Outputs::Softmax { temperature: 1.0 };
    let graph = to_onnx_int8(name, &forward, &weights, input, &outputs, &ranges).unwrap();
    let exported = Model { graph, producer: "test", version: "1", metadata: Vec::new() };
    // The sums that decide how an activation is rounded may be in another order.
    let found = runtime.run(&exported, &pixels, 0.05);
    let found: Vec<f64> = serde_json::from_value(found["output"].clone()).unwrap();
    let error = expected.iter().zip(found.chunks_exact(CLASSES)).map(|(a, b)| farthest(a, b)).fold(0.0, f64::max);
    eprintln!("{name}: {error}");
    assert!(error < most, "{name}: {found:?}, not {expected:?}");
    let fewer = to_onnx_int8(name, &forward, &weights, input, &outputs, &ranges[1..]).unwrap_err().to_string();
    let expected = format!("the model has {kept} activations to round, and there are ranges of {}", kept - 1);
    assert_eq!(fewer, expected, "{name}");
}

fn farthest(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn load(program: &mut dyn Program, name: &str, values: &[f32]) {
    let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    program.load(name, &values).unwrap();
}

fn step(program: &mut dyn Program, mode: Mode, phases: &[Phase], pixels: &[u8]) {
    let label = if mode == Mode::Train { 0 } else { -1 };
    let (labels, sample_indices) = (vec![label; BATCH], vec![0; BATCH]);
    let batch = HostBatch { images: pixels.to_vec(), labels, sample_indices, ..HostBatch::default() };
    program.submit(mode, phases, &StepInputs::evaluation(batch.into())).unwrap();
}

fn logits(program: &mut dyn Program, pixels: &[u8]) -> Vec<f64> {
    step(program, Mode::Evaluate, &[Phase::Forward, Phase::Loss], pixels);
    program.store("logits").unwrap()
}

/// The bytes of an input with these pixels, of which grey models take one channel.
fn of_input(pixels: &[u8], input: ImageInput, size: usize, channels: usize) -> Vec<u8> {
    let at = |image: usize, place: usize, channel: usize| pixels[(image * size * size + place) * 3 + channel];
    let places = size * size;
    let images = 0..BATCH;
    match input {
        ImageInput::Uint8Nhwc => images
            .flat_map(|image| {
                (0..places).flat_map(move |place| (0..channels).map(move |channel| at(image, place, channel)))
            })
            .collect(),
        ImageInput::FloatNchw => images
            .flat_map(|image| {
                (0..channels).flat_map(move |channel| (0..places).map(move |place| at(image, place, channel)))
            })
            .flat_map(|pixel| (f32::from(pixel) / 255.0).to_le_bytes())
            .collect(),
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}
