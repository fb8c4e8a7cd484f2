//! One training step on given weights and images, including all gradients, from file to file.
//!
//!     one_step MODEL DEVICE INPUTS.safetensors OUTPUTS.safetensors
//!
//! The inputs are `images` (u8, `[batch, height, width, 3]`), `labels` (i32) and every parameter and buffer of the model;
//! the outputs `logits`, `loss` and `gradient.NAME` of every parameter. `benchmarks/compare_torch.py` calls it.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, StepInputs};
use enmasse_graph::{CompileOptions, Mode, Phase, Role, compile};
use enmasse_reference::Reference;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};

fn device(name: &str) -> Result<Box<dyn Device>> {
    match name {
        "reference" => Ok(Box::new(Reference)),
        "cpu" => Ok(Box::new(Cpu::new(CpuOptions::default())?)),
        _ => bail!("no device {name:?}; use cpu or reference"),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, device_name, inputs, outputs] = &arguments[..] else {
        bail!("usage: one_step MODEL DEVICE INPUTS.safetensors OUTPUTS.safetensors");
    };
    let bytes = std::fs::read(inputs).with_context(|| inputs.clone())?;
    let given = SafeTensors::deserialize(&bytes)?;
    let f32s = |name: &str| -> Result<Vec<f64>> {
        let tensor = given.tensor(name)?;
        ensure!(tensor.dtype() == Dtype::F32, "{name} must be f32");
        Ok(tensor.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect())
    };

    let images = given.tensor("images")?;
    let &[batch, height, width, 3] = images.shape() else { bail!("images must be [batch, height, width, 3]") };
    let labels: Vec<i32> = (given.tensor("labels")?.data().chunks_exact(4))
        .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let classes = f32s("fc.bias")?.len();

    let model = enmasse_models::find(model)?;
    let options = CompileOptions { size: [height, width], ..CompileOptions::new(model.name(), batch, 1, classes) };
    let plans = compile(&|x| model.forward(x, classes), &options)?;
    let mut program = device(device_name)?.compile(plans.clone(), None)?;
    for tensor in plans.state.iter().filter(|tensor| !tensor.name.starts_with("optimizer.")) {
        program.load(&tensor.name, &f32s(&tensor.name)?)?;
    }

    let sample_indices = (0..batch as u64).collect();
    let batch = HostBatch { images: images.data().to_vec(), labels, sample_indices, ..HostBatch::default() };
    let step = StepInputs::evaluation(batch.into());
    let phases = [Phase::Forward, Phase::Loss, Phase::Backward, Phase::Reduce, Phase::Check];
    let ticket = program.submit(Mode::Train, &phases, &step)?;
    let mut results = HashMap::from([
        ("loss".to_string(), vec![program.metrics(ticket)?.loss]),
        ("logits".to_string(), program.store("logits")?),
    ]);
    for value in plans.train.iter().flat_map(|plan| &plan.values) {
        if let Role::Gradient { .. } = value.role {
            results.insert(value.name.clone(), program.store(&value.name)?);
        }
    }

    let bytes: HashMap<&String, Vec<u8>> = (results.iter())
        .map(|(name, values)| (name, values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect()))
        .collect();
    let views: Vec<(&String, TensorView)> = (bytes.iter())
        .map(|(name, bytes)| Ok((*name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)?)))
        .collect::<Result<_>>()?;
    serialize_to_file(views, None, outputs.as_ref()).with_context(|| outputs.clone())
}
