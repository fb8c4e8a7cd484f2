//! Small models of timm and torchvision with other names of tensors give the same logits here: `fixtures/translated.py`.

use std::path::Path;

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, StepInputs};
use enmasse_graph::{CompileOptions, Mode, Phase, Tensor, compile_evaluation};
use enmasse_models::{EfficientNet, RegNetY, ViT};
use enmasse_train::{NamedTensor, load_pretrained};
use enmasse_weights::safetensors;
use serde_json::Value;

const CLASSES: usize = 5;
const SIZE: usize = 32;

/// The tensor at a place of the list.
fn values(place: usize, name: &str, shape: &[usize]) -> Vec<f32> {
    let count: usize = shape.iter().product();
    let share = |index: usize| ((index * 7919 + 104_729 * place) % 997) as f64 / 997.0;
    let value = |share: f64| match shape {
        [_] if name.ends_with("running_var") => 0.5 + share,
        [_] if name.ends_with("weight") => 0.75 + share / 2.0,
        [_] => 0.2 * (share - 0.5),
        _ => (share - 0.5) * (12.0 / (count / shape[0]) as f64).sqrt(),
    };
    (0..count).map(|index| value(share(index)) as f32).collect()
}

fn check(case: &str, model: &dyn Fn(Tensor) -> Tensor, report: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/translated.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let list = fixture[case]["tensors"].as_array().unwrap().iter().enumerate();
    let tensors: Vec<NamedTensor> = list
        .map(|(place, tensor)| {
            let name = tensor[0].as_str().unwrap().to_owned();
            let shape: Vec<usize> = serde_json::from_value(tensor[1].clone()).unwrap();
            let values = values(place, &name, &shape);
            NamedTensor { name, shape, values }
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    safetensors::write(&mut std::fs::File::create(&file).unwrap(), &Default::default(), &tensors, 1).unwrap();

    let plans = compile_evaluation(model, &CompileOptions::new(case, 2, SIZE, CLASSES)).unwrap();
    let mut program =
        Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap().compile(plans, None).unwrap();
    let matching = load_pretrained(program.as_mut(), &file, &[]).unwrap();
    let expected =
        format!("loaded {0} of {0} tensors from {1}\n{report} in {0} tensors", tensors.len(), file.display());
    assert_eq!(matching.to_string(), expected);

    let images = (0..2 * SIZE * SIZE * 3).map(|index| (index * 7919 % 251) as u8).collect();
    let batch = HostBatch { images, labels: vec![0, 0], sample_indices: vec![0, 1], ..HostBatch::default() };
    let inputs = StepInputs::evaluation(batch.into());
    let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
    program.metrics(ticket).unwrap();
    let ours = program.store("logits").unwrap();
    let theirs = fixture[case]["logits"].as_array().unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs.iter().map(|logit| logit.as_f64().unwrap())) {
        assert!((ours - theirs).abs() <= 1e-4, "{case}: {ours} beside {theirs}");
    }
}

#[test]
fn models_with_other_names_give_their_logits() {
    let torchvisions = "timm's names replaced by torchvision's";
    let small = EfficientNet::b0().width(0.25).depth(0.25);
    check("timm's efficientnet_b0", &|x| small.forward(x, CLASSES), torchvisions);
    let narrow = RegNetY::new([1, 1, 2, 1], [16, 24, 32, 56], 8);
    check("timm's regnety", &|x| narrow.forward(x, CLASSES), torchvisions);
    let vit = ViT::new(8, 48, 3).depth(2);
    check("torchvision's vit", &|x| vit.forward(x, CLASSES), "torchvision's names replaced by timm's");
}
