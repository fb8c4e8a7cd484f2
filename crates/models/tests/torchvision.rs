//! The residual networks are torchvision's: names, shapes and order of everything in a weights file.

use std::path::Path;

use enmasse_graph::{Arena, Init, Options, Plans, compile};
use enmasse_models::find;

fn plans(name: &str) -> Plans {
    let model = find(name).unwrap();
    compile(&|x| model.forward(x, 1000), &Options::new(name, 2, 64, 1000)).unwrap()
}

/// `NAME HxWx...` of parameters or buffers, in the order of the model.
fn ours(plans: &Plans, arena: Arena) -> Vec<String> {
    let dims = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    (plans.state.iter().filter(|tensor| tensor.slot.arena == arena))
        .map(|tensor| format!("{} {}", tensor.name, dims(&tensor.layout.torch_shape(&tensor.shape))))
        .collect()
}

#[test]
fn names_shapes_and_order() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torchvision_state.txt");
    let list = std::fs::read_to_string(path).unwrap();
    for name in ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] {
        let plans = plans(name);
        let theirs = list.lines().filter_map(|line| line.strip_prefix(&format!("{name} ")));
        let (buffers, parameters): (Vec<&str>, Vec<&str>) = theirs.partition(|line| line.contains(".running_"));
        assert_eq!(ours(&plans, Arena::Parameters), parameters, "{name}");
        assert_eq!(ours(&plans, Arena::Buffers), buffers, "{name}");
    }
}

#[test]
fn parameter_counts() {
    let check = |name: &str, expected: usize| {
        let plans = plans(name);
        let parameters = plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters);
        assert_eq!(parameters.map(|tensor| tensor.shape.elements()).sum::<usize>(), expected, "{name}");
    };
    check("resnet18", 11_689_512);
    check("resnet34", 21_797_672);
    check("resnet50", 25_557_032);
    check("resnet101", 44_549_160);
    check("resnet152", 60_192_808);
}

#[test]
fn initial_distributions() {
    let plans = plans("resnet50");
    let check = |name: &str, expected: Init| assert_eq!(plans.find(name).unwrap().init, expected, "{name}");
    let fan_out = |fan: f32| Init::Normal { deviation: (2.0 / fan).sqrt() };
    check("conv1.weight", fan_out(64.0 * 49.0));
    check("layer3.0.conv2.weight", fan_out(256.0 * 9.0));
    check("layer3.0.downsample.0.weight", fan_out(1024.0));
    check("layer3.0.bn3.weight", Init::Constant(1.0));
    check("layer3.0.bn3.bias", Init::Constant(0.0));
    check("layer3.0.bn3.running_mean", Init::Constant(0.0));
    check("layer3.0.bn3.running_var", Init::Constant(1.0));
    check("fc.weight", Init::Uniform { bound: 1.0 / 2048f32.sqrt() });
    check("fc.bias", Init::Uniform { bound: 1.0 / 2048f32.sqrt() });
}
