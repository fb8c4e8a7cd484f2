//! Tuning on the emulated GPU, whose cuDNN has two engines for bf16 that give the same bits each time.

use std::collections::BTreeSet;
use std::path::Path;

use enmasse_device::{Device, DeviceError, DeviceRequest, HostBatch, StepInputs};
use enmasse_graph::{CompileOptions, Conv, Mode, Phase, Precision, Tensor};

use super::*;
use crate::test_support::{EmulatedGpu, noise};

/// Layers that share problems, and one of its own.
fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("first", Conv::new(16, 3).padding(1).no_bias()).relu();
    let y = x.clone().conv2d("a", Conv::new(16, 3).padding(1).no_bias()).relu();
    let y = y.conv2d("b", Conv::new(16, 3).padding(1).no_bias()) + x;
    y.conv2d("strided", Conv::new(8, 3).stride(2)).flatten().linear("fc", 3)
}

fn plans(device: &dyn Device, precision: Precision) -> Plans {
    let options = CompileOptions { precision, ..CompileOptions::new("net", 2, 9, 3) };
    device.target().compile(&net, &options).unwrap()
}

/// A GPU of its own, so that it has no answers of other tests.
fn gpu() -> Option<(Box<dyn Device>, Arc<Gpu>)> {
    let libraries = EmulatedGpu::libraries()?;
    let device = crate::open_with(&libraries, &DeviceRequest::default()).unwrap();
    Some((device, Gpu::open(&libraries, 0, false).unwrap()))
}

#[test]
fn every_convolution_with_a_choice_gets_one_and_the_record_keeps_it() {
    let Some((device, gpu)) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("cache/engines");
    let mut plans = plans(device.as_ref(), Precision::Bf16);
    let mut signatures = BTreeSet::new();
    for plan in plans.train.iter().chain([&plans.evaluate]) {
        let engines = device.algorithms(plan).unwrap();
        // Only one of the engines writes gradients of weights as f32.
        let several = |engine: &String| engine.starts_with("eng") && !engine.ends_with("_f32");
        let nodes = plan.instructions.iter().zip(&engines).filter(|(_, engine)| several(engine));
        signatures.extend(nodes.map(|(node, _)| plan.signature(node)));
    }
    assert!(signatures.len() > 4, "{signatures:?}");
    let tune = |known: &Choices, gpu: &Gpu| tune(&plans, known, gpu, Some(&folder)).unwrap();
    let first = tune(&Choices::default(), &gpu);
    assert!(first.choices.iter().map(|(signature, _)| signature).eq(signatures.iter().map(String::as_str)));
    assert_eq!((first.reused, &first.warning), (0, &None));
    // Another process measures nothing, and takes the same.
    let again = tune(&Choices::default(), &self::gpu().unwrap().1);
    assert_eq!(again, Tuned { reused: signatures.len(), ..first.clone() });
    // What a run knows is left alone.
    assert_eq!(tune(&first.choices, &gpu), Tuned::default());

    // A damaged record is ignored, and replaced; one with an engine that is refused now loses only that.
    let path = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let damaged = tune(&Choices::default(), &gpu);
    let warning = damaged.warning.unwrap();
    assert!(warning.starts_with(&format!("{}: after its first line", path.display())), "{warning}");
    assert_eq!((damaged.reused, damaged.choices.len()), (0, signatures.len()));
    let (line, _) = whole.split_once(" gradient of a convolution's weights").unwrap();
    let engine = line.lines().last().unwrap();
    let problem = format!("{engine} gradient of a convolution's weights");
    std::fs::write(&path, whole.replacen(&problem, "eng99_bf16 gradient of a convolution's weights", 1)).unwrap();
    let partly = tune(&Choices::default(), &gpu);
    assert_eq!(
        (partly.warning, partly.choices.len(), partly.reused < signatures.len()),
        (None, signatures.len(), true)
    );
    assert!(partly.reused > 0 && !std::fs::read_to_string(&path).unwrap().contains("eng99"));

    // A folder that cannot be written is no error.
    let blocked = path.join("below a file");
    let unwritten = super::tune(&plans, &Choices::default(), &gpu, Some(&blocked)).unwrap();
    assert_eq!((unwritten.reused, unwritten.warning), (0, None));

    // The program runs what was chosen, whatever cuDNN's estimate is.
    let mut choices = Choices::default();
    signatures.iter().for_each(|signature| choices.insert(signature, "eng0"));
    let weights = signatures.iter().filter(|signature| signature.starts_with("conv2d_backward_weights"));
    weights.for_each(|signature| choices.insert(signature, "eng0_bf16"));
    plans.choose(&choices);
    for plan in plans.train.iter().chain([&plans.evaluate]) {
        let engines = device.algorithms(plan).unwrap();
        assert!(engines.iter().all(|engine| !engine.starts_with("eng1") || engine.ends_with("_f32")), "{engines:?}");
    }
    let hosting = enmasse_device::Hosting::new(&plans, None).unwrap();
    let work = device.work(&plans, &hosting, enmasse_graph::Mode::Train).unwrap().join("\n");
    assert!(work.contains(" by eng0 ") && !work.contains(" by eng1_k2=1 "), "{work}");
}

/// The emulation's best engine for tf32 rounds operands; the other one does not. A program once ran the best one, whatever was
/// chosen, in the workspace of the chosen one.
#[test]
fn the_chosen_engine_runs() {
    let Some((device, _)) = gpu() else { return };
    let loss = |chosen: Option<&str>| {
        let mut plans = plans(device.as_ref(), Precision::Tf32);
        let mut choices = Choices::default();
        for node in plans.evaluate.instructions.iter().filter(|node| node.op.name() == "conv2d") {
            chosen.into_iter().for_each(|engine| choices.insert(plans.evaluate.signature(node), engine));
        }
        plans.choose(&choices);
        let state: Vec<(String, usize)> =
            plans.state.iter().map(|tensor| (tensor.name.clone(), tensor.shape.elements())).collect();
        let mut program = device.compile(plans, None).unwrap();
        for (key, (name, elements)) in state.iter().enumerate() {
            let values: Vec<f64> = noise::<f32>(key as u64, *elements, 0.5).into_iter().map(f64::from).collect();
            program.load(name, &values).unwrap();
        }
        let images = (0..2 * 9 * 9 * 3).map(|index| (index * 37 % 256) as u8).collect();
        let batch = HostBatch { images, labels: vec![0, 2], sample_indices: vec![0, 1], ..HostBatch::default() };
        let inputs = StepInputs::evaluation(Arc::new(batch));
        let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
        program.metrics(ticket).unwrap().loss
    };
    let best = loss(None);
    let exact = loss(Some("eng0"));
    assert!(best.is_finite() && (best - exact).abs() < 1e-2 * exact.abs(), "{best} {exact}");
    assert_ne!(best.to_bits(), exact.to_bits());
}

/// In f32 the emulation has one engine that gives the same bits each time.
#[test]
fn one_engine_is_no_choice() {
    let Some((device, gpu)) = gpu() else { return };
    let plans = plans(device.as_ref(), Precision::F32);
    assert_eq!(tune(&plans, &Choices::default(), &gpu, None).unwrap(), Tuned::default());
}

#[test]
fn choices_that_cannot_be_obeyed_are_one_line() {
    let Some((device, gpu)) = gpu() else { return };
    let refused = |result: Result<Vec<String>, DeviceError>, expected: &[&str]| {
        let error = result.unwrap_err().to_string();
        assert!(!error.contains('\n') && expected.iter().all(|part| error.contains(part)), "{error}");
    };
    let check = |operation: &str, name: &str, expected: &[&str]| {
        let mut plans = plans(device.as_ref(), Precision::Bf16);
        let train = plans.train.as_ref().unwrap();
        let node = train.instructions.iter().find(|node| node.op.name() == operation).unwrap();
        let mut choices = Choices::default();
        choices.insert(train.signature(node), name);
        plans.choose(&choices);
        refused(device.algorithms(plans.train.as_ref().unwrap()), expected);
        let compiled = device.compile(plans, None);
        refused(compiled.map(|_| Vec::new()), expected);
    };
    let remedy = "continue with `tune = false`, or start a new run";
    check(
        "conv2d",
        "eng9",
        &["layer first: the engine eng9 was chosen on another GPU", "there is no engine 9", remedy],
    );
    check("conv2d", "eng2", &["layer first: the engine eng2 was", "it computes otherwise than asked", remedy]);
    check("conv2d", "winograd", &["layer first: the engine winograd was", "names no engine", remedy]);
    check("linear", "eng0", &["layer fc: the gpu has no algorithm eng0 for linear"]);
    let mut foreign = Choices::default();
    foreign.insert("conv2d of another batch", "winograd");
    let plans = plans(device.as_ref(), Precision::Bf16);
    let error = tune(&plans, &foreign, &gpu, None::<&Path>).unwrap_err().to_string();
    let expected = "the gpu has no engine \"winograd\" for conv2d of another batch: the run was tuned on another device; \
                    continue with `tune = false`";
    assert_eq!(error, expected);
}
