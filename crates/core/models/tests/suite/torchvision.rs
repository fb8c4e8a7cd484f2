//! The zoo's models equal torchvision's or timm's: names, shapes, order and initial values of everything in a weights file.

use std::collections::BTreeMap;
use std::path::Path;

use enmasse_graph::{Arena, CompileOptions, Init, Plans, StateTensor, compile};
use enmasse_models::{find, models};

use crate::common::{near, patch};

fn plans(name: &str) -> Plans {
    let model = find(name).unwrap();
    // Position embeddings have the size of the images.
    let size = if patch(&model) == 1 { 64 } else { model.size() };
    compile(&|x| model.forward(x, 1000), &CompileOptions::new(name, 2, size, 1000)).unwrap()
}

/// The lines of `fixtures/torchvision_state.txt` and `timm_state.txt` by model: `NAME HxWx... DISTRIBUTION VALUE`.
fn published() -> BTreeMap<String, Vec<[String; 4]>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures");
    let [torchvision, timm] = ["torchvision", "timm"]
        .map(|whose| std::fs::read_to_string(folder.join(format!("{whose}_state.txt"))).unwrap());
    let mut list: BTreeMap<String, Vec<[String; 4]>> = BTreeMap::new();
    let mut model = String::new();
    for line in torchvision.lines().chain(timm.lines()) {
        match line.strip_prefix(' ') {
            None => model = line.into(),
            Some(tensor) => {
                let fields: Vec<String> = tensor.split(' ').map(str::to_string).collect();
                list.entry(model.clone()).or_default().push(fields.try_into().unwrap());
            }
        }
    }
    list
}

/// Whether a tensor of `elements` is initialised like torchvision's: with the same distribution, and a std equal
/// to that of torchvision's values, up to chance.
fn starts_alike(init: Init, elements: usize, distribution: &str, found: f64) -> bool {
    let (ours, expected) = match init {
        Init::Constant(value) => ("constant", f64::from(value)),
        Init::Normal { std } => ("normal", f64::from(std)),
        Init::Uniform { bound } => ("uniform", f64::from(bound) / 3f64.sqrt()),
        // No published model starts so.
        Init::Dirac { .. } | Init::Whitening { .. } => return false,
    };
    // Five standard errors of the sample deviation, and the file's rounding to three digits.
    // A constant is rounded to f32.
    let tolerance = if ours == "constant" { 1e-7 } else { 5.0 / (2.0 * elements as f64).sqrt() + 0.005 };
    // Uniform values may look like normal ones if there are not many.
    let same = ours == distribution || elements < 512 && ours == "uniform" && distribution == "normal";
    same && (found - expected).abs() <= tolerance * expected
}

fn check(tensor: &StateTensor, [name, shape, distribution, value]: &[String; 4], model: &str) {
    let torch_shape = tensor.layout.torch_shape(&tensor.shape);
    let dims: Vec<String> = torch_shape.iter().map(usize::to_string).collect();
    assert_eq!((&tensor.name, &dims.join("x")), (name, shape), "{model}");
    let alike = starts_alike(tensor.init, tensor.shape.elements(), distribution, value.parse().unwrap());
    assert!(alike, "{model} {name}: {:?} is not {distribution} {value}", tensor.init);
}

#[test]
fn names_shapes_order_and_first_values() {
    for (model, theirs) in published() {
        let plans = plans(&model);
        // PyTorch has a module's own tensors before those of its layers, and the zoo where they are used.
        let is_own = |name: &str| !name.contains('.') || name.ends_with("layer_scale");
        let own = |name: &str| is_own(name).then(|| name.to_owned());
        let (mut buffers, mut parameters): (Vec<_>, Vec<_>) =
            theirs.iter().partition(|line| line[0].contains(".running_"));
        for (arena, lines) in [(Arena::Parameters, &mut parameters), (Arena::Buffers, &mut buffers)] {
            let of_arena = plans.state.iter().filter(|tensor| tensor.slot.arena == arena);
            let mut ours: Vec<&StateTensor> = of_arena.collect();
            ours.sort_by_key(|tensor| own(&tensor.name));
            lines.sort_by_key(|line| own(&line[0]));
            assert_eq!(ours.len(), lines.len(), "{model} {arena}");
            ours.iter().zip(lines).for_each(|(tensor, line)| check(tensor, line, &model));
        }
    }
}

#[test]
fn every_model_is_torchvisions_or_timms_or_listed_as_our_own() {
    let list = published();
    let own: Vec<&str> = models().iter().map(|model| model.name()).filter(|name| !list.contains_key(*name)).collect();
    let cifar = ["resnet18-cifar", "resnet34-cifar", "resnet50-cifar", "resnet101-cifar", "resnet152-cifar"];
    // Of timm's shapes, with torchvision's names.
    let convnext = ["convnext_atto", "convnext_femto", "convnext_pico", "convnext_nano"];
    assert_eq!(own, [&cifar[..], &["airbench94", "airbench95"], &convnext, &["lenet", "mlp"]].concat());
    assert!(list.keys().all(|name| find(name).unwrap().name() == name));
}

#[test]
fn parameter_counts() {
    let check = |name: &str, expected: usize| {
        let plans = plans(name);
        let parameters = plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters);
        assert_eq!(parameters.map(|tensor| tensor.shape.elements()).sum::<usize>(), expected, "{name}");
    };
    // According to torchvision's documentation.
    check("resnet18", 11_689_512);
    check("resnet34", 21_797_672);
    check("resnet50", 25_557_032);
    check("resnet101", 44_549_160);
    check("resnet152", 60_192_808);
    check("resnext50_32x4d", 25_028_904);
    check("resnext101_32x8d", 88_791_336);
    check("resnext101_64x4d", 83_455_272);
    check("wide_resnet50_2", 68_883_240);
    check("wide_resnet101_2", 126_886_696);
    check("alexnet", 61_100_840);
    check("vgg11", 132_863_336);
    check("vgg16", 138_357_544);
    check("vgg16_bn", 138_365_992);
    check("vgg19_bn", 143_678_248);
    check("mobilenet_v2", 3_504_872);
    check("mobilenet_v3_small", 2_542_856);
    check("mobilenet_v3_large", 5_483_032);
    check("efficientnet_b0", 5_288_548);
    check("efficientnet_b4", 19_341_616);
    check("regnet_y_400mf", 4_344_144);
    check("regnet_y_1_6gf", 11_202_430);
    check("regnet_y_8gf", 39_381_472);
    check("convnext_tiny", 28_589_128);
    check("convnext_base", 88_591_464);
    // According to timm's.
    check("convnext_atto", 3_695_520);
    check("convnext_nano", 15_593_560);
    // According to TensorFlow's list, in millions: 4.7, 5.4, 6.1, 8.2 and 13.0.
    check("efficientnet_lite0", 4_652_008);
    check("efficientnet_lite4", 13_006_568);
    // According to timm.
    check("vit_tiny_patch16_224", 5_717_416);
    check("deit_base_patch16_224", 86_567_656);
    // Its head sees 2 x 2 pixels of images of this size.
    check("airbench94", 1_970_232 + 4 * 256 * 1000);
    // The stem has 3 x 3 instead of 7 x 7 taps, of 3 x 64 weights.
    check("resnet18-cifar", 11_689_512 - 40 * 3 * 64);
}

#[test]
fn the_classifier_is_the_last_module() {
    let check = |name: &str, expected: &str| assert_eq!(plans(name).classifier(), Some(expected), "{name}");
    check("resnet34", "fc");
    check("resnet18-cifar", "fc");
    check("airbench94", "head");
    check("alexnet", "classifier");
    check("vgg11_bn", "classifier");
    check("mobilenet_v2", "classifier");
    check("mobilenet_v3_large", "classifier");
    check("efficientnet_lite0", "classifier");
    check("regnet_y_400mf", "fc");
    check("convnext_atto", "classifier");
    check("vit_tiny_patch16_224", "head");
    check("lenet", "fc3");
}

#[test]
fn dropout_is_where_the_model_says() {
    for model in models() {
        let plans =
            compile(&|x| model.forward(x, 10), &CompileOptions::new(model.name(), 2, near(64, model), 10)).unwrap();
        let text = plans.train.unwrap().to_string();
        let stated = format!("{{probability {} ", model.dropout());
        assert_eq!(text.contains("= dropout"), model.dropout() > 0.0, "{}", model.name());
        assert!(model.dropout() == 0.0 || text.contains(&stated), "{}", model.name());
    }
}
