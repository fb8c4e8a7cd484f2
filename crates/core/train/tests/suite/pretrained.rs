//! Weights from files: tensors that match by name and shape are loaded, and the rest is reported.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, Program, StepInputs};
use enmasse_graph::{CompileOptions, Conv, Mode, Phase, Tensor, compile};
use enmasse_train::{NamedTensor, initialize, load_pretrained, read_tensors};
use enmasse_weights::{pth, safetensors};

fn compiled(model: &dyn Fn(Tensor) -> Tensor, name: &str, size: usize, classes: usize, seed: u64) -> Box<dyn Program> {
    let plans = compile(model, &CompileOptions::new(name, 2, size, classes)).unwrap();
    let mut program =
        Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap().compile(plans, None).unwrap();
    initialize(program.as_mut(), seed).unwrap();
    program
}

fn program(classes: usize, seed: u64) -> Box<dyn Program> {
    let net = |x: Tensor| {
        let x = x.conv2d("conv", Conv::new(4, 3).no_bias()).batch_norm("bn").relu();
        x.adaptive_avg_pool([2, 2]).flatten().linear("fc", classes)
    };
    compiled(&net, "net", 8, classes, seed)
}

/// Parameters and statistics, without the optimiser's state.
fn weights(program: &mut dyn Program) -> Vec<NamedTensor> {
    let mut tensors = read_tensors(program).unwrap();
    tensors.retain(|tensor| !tensor.name.starts_with("optimizer."));
    tensors
}

fn written(tensors: &[NamedTensor], format: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let mut file = File::create(&path).unwrap();
    match format {
        "pth" => pth::write(&mut file, tensors, 1).unwrap(),
        _ => safetensors::write(&mut file, &Default::default(), tensors, 1).unwrap(),
    }
    (folder, path)
}

#[test]
fn a_file_of_the_same_model_is_loaded_whole() {
    for format in ["pth", "safetensors"] {
        let given = weights(program(3, 1).as_mut());
        let (_folder, path) = written(&given, format);
        let mut other = program(3, 2);
        assert_ne!(weights(other.as_mut()), given);
        let matching = load_pretrained(other.as_mut(), &path, &[]).unwrap();
        assert_eq!(matching.to_string(), format!("loaded 7 of 7 tensors from {}", path.display()));
        assert_eq!(weights(other.as_mut()), given);
    }
}

/// The usual case: another data set, whose classifier has other classes. The classifier keeps its initial values.
#[test]
fn another_classifier_begins_anew() {
    let given = weights(program(5, 1).as_mut());
    let (_folder, path) = written(&given, "pth");
    let mut other = program(3, 2);
    let before = weights(other.as_mut());
    let matching = load_pretrained(other.as_mut(), &path, &[]).unwrap();
    let expected =
        format!("loaded 5 of 7 tensors from {}\nfc begins anew: 5 classes in the file, 3 here", path.display());
    assert_eq!(matching.to_string(), expected);
    for ((after, before), given) in weights(other.as_mut()).iter().zip(&before).zip(&given) {
        let expected = if after.name.starts_with("fc.") { before } else { given };
        assert_eq!(after, expected);
    }
}

/// Equal numbers of elements in another shape do not match: they would be loaded in the wrong order.
#[test]
fn shapes_count_and_not_sizes() {
    let mut given = weights(program(3, 1).as_mut());
    let classifier = given.iter_mut().find(|tensor| tensor.name == "fc.weight").unwrap();
    assert_eq!(classifier.shape, [3, 16]);
    classifier.shape.reverse();
    let (_folder, path) = written(&given, "pth");
    let error = load_pretrained(program(3, 2).as_mut(), &path, &[]).unwrap_err().to_string();
    assert!(error.contains("fc.weight is [16, 3] in the file and [3, 16] in the model"), "{error}");
}

#[test]
fn a_path_or_file_that_does_not_fit_never_trains_from_scratch() {
    let check = |path: &Path, expected: &str| {
        let error = load_pretrained(program(3, 1).as_mut(), path, &[]).unwrap_err().to_string();
        assert_eq!(error.replace(&path.display().to_string(), "FILE"), expected);
    };
    check(Path::new("/nowhere/resnet34.pth"), "cannot read FILE: it does not exist");
    let stranger = NamedTensor { name: "head.weight".to_owned(), shape: vec![1], values: vec![1.0] };
    let (_folder, path) = written(&[stranger], "pth");
    check(
        &path,
        "FILE does not fit the model net: they share no names; the first there is head.weight, the first here is \
         conv.weight; is it of another model?",
    );
}

/// The names and shapes of timm's mobilenetv2_100, from the stages of its definition: blocks, widening, channels.
fn timm_mobilenet(classes: usize) -> Vec<(String, Vec<usize>)> {
    const STAGES: [(usize, usize, usize); 7] =
        [(1, 1, 16), (2, 6, 24), (3, 6, 32), (4, 6, 64), (3, 6, 96), (3, 6, 160), (1, 6, 320)];
    let mut tensors = Vec::new();
    let mut conv_norm = |conv: &str, norm: &str, shape: [usize; 4]| {
        tensors.push((format!("{conv}.weight"), shape.to_vec()));
        for part in ["weight", "bias", "running_mean", "running_var"] {
            tensors.push((format!("{norm}.{part}"), vec![shape[0]]));
        }
    };
    conv_norm("conv_stem", "bn1", [32, 3, 3, 3]);
    let mut inputs = 32;
    for (stage, (blocks, widening, outputs)) in STAGES.into_iter().enumerate() {
        for block in 0..blocks {
            let name = |part: &str| format!("blocks.{stage}.{block}.{part}");
            let hidden = inputs * widening;
            if widening == 1 {
                conv_norm(&name("conv_dw"), &name("bn1"), [hidden, 1, 3, 3]);
                conv_norm(&name("conv_pw"), &name("bn2"), [outputs, hidden, 1, 1]);
            } else {
                conv_norm(&name("conv_pw"), &name("bn1"), [hidden, inputs, 1, 1]);
                conv_norm(&name("conv_dw"), &name("bn2"), [hidden, 1, 3, 3]);
                conv_norm(&name("conv_pwl"), &name("bn3"), [outputs, hidden, 1, 1]);
            }
            inputs = outputs;
        }
    }
    conv_norm("conv_head", "bn2", [1280, 320, 1, 1]);
    tensors.push(("classifier.weight".to_owned(), vec![classes, 1280]));
    tensors.push(("classifier.bias".to_owned(), vec![classes]));
    tensors
}

#[test]
fn all_of_timms_mobilenet_is_loaded() {
    let named = timm_mobilenet(5).into_iter().enumerate();
    let tensors: Vec<NamedTensor> = named
        .map(|(number, (name, shape))| {
            let values = vec![number as f32; shape.iter().product()];
            NamedTensor { name: format!("model.{name}"), shape, values }
        })
        .collect();
    let (_folder, path) = written(&tensors, "pth");
    let model = enmasse_models::find("mobilenet_v2").unwrap();
    let mut program = compiled(&|x| model.forward(x, 5), "mobilenet_v2", 32, 5, 1);
    let matching = load_pretrained(program.as_mut(), &path, &[]).unwrap();
    let expected = format!(
        "loaded 262 of 262 tensors from {}\nprefix model. removed from 262 names\n\
         timm's names replaced by torchvision's in 262 tensors",
        path.display()
    );
    assert_eq!(matching.to_string(), expected);
    // Both name their layers in the order of the computation.
    let is_statistic = |tensor: &&NamedTensor| tensor.name.contains("running_");
    let found: Vec<f32> = weights(program.as_mut()).iter().filter(|t| !is_statistic(t)).map(|t| t.values[0]).collect();
    let expected: Vec<f32> = tensors.iter().filter(|t| !is_statistic(t)).map(|t| t.values[0]).collect();
    assert_eq!(found, expected);
}

/// torchvision's ResNet-18, with statistics from a few batches, gives the same logits here, and is written back bit by bit.
#[test]
fn torchvision_weights_give_its_logits() {
    let Some(interpreter) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let python = |script: &str| {
        let output =
            Command::new(&interpreter).args(["-W", "ignore", "-c", script]).arg(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    python(
        "
import sys, torch, torchvision
torch.manual_seed(3)
model = torchvision.models.resnet18(num_classes=7).train()
for _ in range(20):
    model(torch.randn(4, 3, 64, 64))
torch.save({'state_dict': torch.nn.DataParallel(model).state_dict()}, sys.argv[1] + '/theirs.pth')
pixels = (torch.arange(2 * 64 * 64 * 3) * 7919 % 251).reshape(2, 64, 64, 3)
mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
with torch.no_grad():
    logits = model.eval()(((pixels / 255 - mean) / std).permute(0, 3, 1, 2))
torch.save({'logits': logits}, sys.argv[1] + '/logits.pth')
",
    );
    let model = enmasse_models::find("resnet18").unwrap();
    let mut program = compiled(&|x| model.forward(x, 7), "resnet18", 64, 7, 1);
    let matching = load_pretrained(program.as_mut(), &folder.path().join("theirs.pth"), &[]).unwrap();
    assert_eq!((matching.loaded, matching.total), (102, 102), "{matching}");
    let images: Vec<u8> = (0..2 * 64 * 64 * 3).map(|index| (index * 7919 % 251) as u8).collect();
    let batch = HostBatch { images, labels: vec![0, 0], sample_indices: vec![0, 1], ..HostBatch::default() };
    let inputs = StepInputs::evaluation(batch.into());
    let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
    program.metrics(ticket).unwrap();
    let ours = program.store("logits").unwrap();
    let theirs = &enmasse_weights::read(&folder.path().join("logits.pth")).unwrap().tensors[0].values;
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((*ours as f32 - theirs).abs() <= 1e-4 * theirs.abs().max(1.0), "{ours} beside {theirs}");
    }
    let mut file = File::create(folder.path().join("ours.pth")).unwrap();
    pth::write(&mut file, &weights(program.as_mut()), 20).unwrap();
    python(
        "
import sys, torch, torchvision
theirs = torch.load(sys.argv[1] + '/theirs.pth', weights_only=True)['state_dict']
ours = torch.load(sys.argv[1] + '/ours.pth', weights_only=True)
torchvision.models.resnet18(num_classes=7).load_state_dict(ours, strict=True)
assert len(ours) == len(theirs) and all(torch.equal(ours[name], theirs['module.' + name]) for name in ours)
",
    );
}
