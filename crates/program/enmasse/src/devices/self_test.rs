//! The self-test of a device: one training step of a small net, and an evaluation, against the f64
//! reference.
//!
//! The net has every class of kernel. What has passed is remembered in the user's cache, by UUID,
//! driver, libraries and version of enmasse.

use std::io::Write;
use std::path::PathBuf;

use enmasse_device::{Device, DeviceError, DeviceRequest, HostBatch, Program, StepInputs};
use enmasse_graph::{Arena, Averaging, CompileOptions, Conv, Metric, Mode, Phase, Plans, Pool, Tensor};
use enmasse_system::files::{cache_folder, make_own_folder, read_regular, write_whole};
use enmasse_tensor::RandomStream;

/// The greatest distance from the reference, relative to a tensor's norm. f32 is some 1e-6 off.
const TOLERANCE: f64 = 1e-4;

/// A larger file is none of ours.
const MAX_BYTES: u64 = 4096;

/// Samples of the batch.
const BATCH: usize = 6;

/// Height and width of the images.
const SIZE: usize = 13;

/// Classes of the net.
const CLASSES: usize = 7;

/// Compares a device with the reference.
///
/// # Errors
/// What differed first in the order of computation, and how far; or the device's own error.
pub fn self_test(device: &dyn Device) -> Result<(), String> {
    compare(device).map_err(|error| error.to_string())?
}

fn compare(device: &dyn Device) -> Result<Result<(), String>, DeviceError> {
    let options = CompileOptions {
        metrics: vec![Metric::GradientNorm],
        clip_norm: Some(0.5),
        average: Some(Averaging::Ema(0.5)),
        ..CompileOptions::new("self-test", BATCH, SIZE, CLASSES)
    };
    let compiled = device.target().compile(&net, &options);
    let plans = compiled.map_err(|error| DeviceError::Unsupported(error.to_string()))?;
    let reference = enmasse_reference::open(&DeviceRequest { threads: vec![1], ..DeviceRequest::default() })?;
    let mut expected = reference.compile(plans.clone(), None)?;
    let mut found = device.compile(plans.clone(), None)?;
    let training: Vec<String> =
        ["logits".to_owned()].into_iter().chain(gradients(&plans)).chain(state(&plans)).collect();
    let evaluation = ["logits".to_owned()];
    let rounds = [(Mode::Train, 6, &training[..], "training"), (Mode::Evaluate, 2, &evaluation[..], "evaluation")];
    for program in [&mut expected, &mut found] {
        fill(program.as_mut())?;
    }
    for (mode, phases, names, what) in rounds {
        let mut losses = [0.0; 2];
        for (program, loss) in [&mut expected, &mut found].into_iter().zip(&mut losses) {
            let ticket = program.submit(mode, &Phase::ALL[..phases], &inputs(&plans))?;
            *loss = program.metrics(ticket)?.loss;
        }
        let mut pairs = vec![("loss", vec![losses[0]], vec![losses[1]])];
        for name in names {
            pairs.push((name, expected.store(name)?, found.store(name)?));
        }
        // The loss is the last of the forward pass.
        pairs.swap(0, 1);
        if let Some(difference) = first_difference(&pairs) {
            return Ok(Err(format!("in {what}, {difference}")));
        }
    }
    Ok(Ok(()))
}

/// Convolutions: dense, strided, depthwise, grouped, of one pixel and with unequal padding; batch norms; pooling of every kind; sums; two
/// activations; dropout; linear layers.
fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(16, 3).padding(1)).batch_norm("bn1").relu();
    let x = x.max_pool(Pool::new(3).stride(2).padding(1));
    let x = x.conv2d("unequal", Conv::new(16, 4).same().no_bias()).batch_norm("bn_unequal");
    let y = x.clone().conv2d("depthwise", Conv::new(16, 3).padding(1).groups(16).no_bias()).batch_norm("bn2").relu6();
    let y = y.conv2d("grouped", Conv::new(16, 3).padding(1).groups(2).no_bias()).batch_norm("bn3");
    let x = (x + y).relu().avg_pool(Pool::new(2));
    let x = x.conv2d("conv2", Conv::new(24, 1).stride(2).no_bias()).batch_norm("bn4").relu();
    let x = x.adaptive_avg_pool([1, 1]).flatten().linear("fc1", 20).relu();
    x.dropout("dropout", 0.2).linear("fc2", CLASSES)
}

/// Gives parameters random values.
fn fill(program: &mut dyn Program) -> Result<(), DeviceError> {
    for tensor in program.plans().state.clone() {
        if tensor.slot.arena != Arena::Parameters {
            continue;
        }
        let elements = tensor.shape.elements();
        let inputs = (elements / tensor.shape.last().max(1)) as f64;
        let bound = 1.7 / inputs.sqrt();
        let (low, high) = match tensor.shape.len() {
            1 if tensor.name.ends_with("weight") => (0.5, 1.5),
            1 => (-0.5, 0.5),
            _ => (-bound, bound),
        };
        let mut stream = RandomStream::new(1, &tensor.name, 0, 0);
        // Every device holds them exactly.
        let values: Vec<f64> = (0..elements).map(|_| f64::from(stream.uniform(low, high) as f32)).collect();
        program.load(&tensor.name, &values)?;
    }
    Ok(())
}

fn inputs(plans: &Plans) -> StepInputs {
    let plan = &plans.evaluate;
    let mut stream = RandomStream::new(2, "self-test", 0, 0);
    let batch = HostBatch {
        images: (0..plan.shape(plan.images).elements()).map(|_| stream.next_u32() as u8).collect(),
        labels: (0..BATCH).map(|_| stream.below(CLASSES as u64) as i32).collect(),
        sample_indices: (0..BATCH as u64).collect(),
        ..HostBatch::default()
    };
    StepInputs { learning_rate: 0.1, ..StepInputs::evaluation(batch.into()) }
}

/// Names of all gradients, those of the last layers first.
fn gradients(plans: &Plans) -> impl Iterator<Item = String> {
    let values = plans.train.iter().flat_map(|plan| &plan.values).map(|value| value.name.clone());
    values.filter(|name| name.starts_with("gradient."))
}

fn state(plans: &Plans) -> impl Iterator<Item = String> {
    plans.state.iter().map(|tensor| tensor.name.clone())
}

/// The first tensor that is not as expected. A tensor whose values cancel out is compared with the norm of its neighbours.
fn first_difference(pairs: &[(&str, Vec<f64>, Vec<f64>)]) -> Option<String> {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let mut norms: Vec<f64> = pairs.iter().map(|(_, expected, _)| norm(&mut expected.iter().copied())).collect();
    norms.retain(|norm| *norm > 0.0);
    norms.sort_by(f64::total_cmp);
    let median = norms.get(norms.len() / 2).copied().unwrap_or(0.0);
    pairs.iter().find_map(|(name, expected, found)| {
        let scale = norm(&mut expected.iter().copied()).max(1e-3 * median).max(f64::MIN_POSITIVE);
        let error = norm(&mut expected.iter().zip(found).map(|(a, b)| a - b)) / scale;
        // NaN is too far, too.
        let is_near = error <= TOLERANCE;
        let distance =
            if error.is_finite() { format!("off by {error:.1e} of its norm") } else { "not finite".to_owned() };
        (!is_near).then(|| format!("{name} is {distance}"))
    })
}

/// Whether a device with this key has passed, as far as the user's cache knows.
pub fn has_passed(key: &str) -> bool {
    let read = || read_regular(&place(key)?, MAX_BYTES).ok();
    read().is_some_and(|bytes| bytes == record(key).into_bytes())
}

/// Remembers that it has. A cache that cannot be written is no error: the next process tests again.
pub fn remember(key: &str) {
    let Some(path) = place(key) else { return };
    let _ = write_whole(&path, |file| file.write_all(record(key).as_bytes()));
}

/// The file for a key, in a folder of this user alone.
fn place(key: &str) -> Option<PathBuf> {
    let cache = cache_folder()?;
    std::fs::create_dir_all(&cache).ok()?;
    let folder = cache.join("self-tests");
    make_own_folder(&folder).ok()?;
    Some(folder.join(key))
}

/// What the file holds. Another version of this program has other kernels.
fn record(key: &str) -> String {
    format!("passed the self-test of enmasse {}\n{key}\n", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_compute_right_pass() {
        for kind in ["cpu", "reference"] {
            self_test(crate::devices::with_threads(kind, 1).unwrap().as_ref()).unwrap();
        }
    }

    #[test]
    fn the_first_tensor_that_is_off_is_named() {
        let check = |found: [f64; 3], expected: Option<&str>| {
            let [loss, first, second] = found;
            let pairs = [
                ("logits", vec![3.0, 4.0], vec![3.0, first]),
                ("loss", vec![2.0], vec![loss]),
                ("gradient.fc.weight", vec![1e-9], vec![second]),
            ];
            assert_eq!(first_difference(&pairs).as_deref(), expected);
        };
        check([2.0, 4.0, 1e-9], None);
        check([2.0, 4.0004, 1e-7], None);
        check([2.0, 4.05, 1e-9], Some("logits is off by 1.0e-2 of its norm"));
        check([2.1, 4.05, 1e-9], Some("logits is off by 1.0e-2 of its norm"));
        check([2.1, 4.0, 1e-9], Some("loss is off by 5.0e-2 of its norm"));
        check([f64::NAN, 4.0, 1e-9], Some("loss is not finite"));
        check([2.0, 4.0, 0.2], Some("gradient.fc.weight is off by 1.0e2 of its norm"));
    }
}
