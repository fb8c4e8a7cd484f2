//! Files exchanged with PyTorch in both directions: values bit for bit, and torchvision's models open them. They need
//! PyTorch.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use enmasse_weights::{Format, NamedTensor, pth, read, safetensors};

/// Runs a script with the folder as its argument, and returns its output; `None` without an interpreter.
fn python(script: &str, folder: &Path) -> Option<String> {
    let output =
        Command::new(test_support::pytorch()?).args(["-W", "ignore", "-c", script]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn bits(tensors: &[NamedTensor]) -> Vec<(&str, &[usize], Vec<u32>)> {
    let bits = |tensor: &NamedTensor| tensor.values.iter().map(|value| value.to_bits()).collect();
    tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice(), bits(tensor))).collect()
}

/// PyTorch writes a ResNet in every form. Each is read like the raw file that it wrote next to them. The files written
/// from these are the same to PyTorch, and complete to torchvision.
#[test]
fn torchvision_models_go_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let write = "
import struct, sys, torch, torchvision
torch.manual_seed(1)
model = torchvision.models.resnet18(num_classes=10)
model.train()
for _ in range(3):
    model(torch.randn(2, 3, 32, 32))
state = model.state_dict()
folder = sys.argv[1]
torch.save(state, f'{folder}/zip')
torch.save(state, f'{folder}/legacy', _use_new_zipfile_serialization=False)
torch.save({'epoch': 1, 'state_dict': torch.nn.DataParallel(model).state_dict()}, f'{folder}/wrapped')
torch.save({'model': {name: value.half() for name, value in state.items()}}, f'{folder}/half')
with open(f'{folder}/raw', 'wb') as raw:
    for name, value in state.items():
        if not name.endswith('num_batches_tracked'):
            raw.write(value.numpy().tobytes())
";
    if python(write, folder.path()).is_none() {
        return;
    }
    let path = |name: &str| folder.path().join(name);
    let zip = read(&path("zip")).unwrap();
    assert_eq!((zip.format, zip.tensors.len()), (Format::Zip, 102));
    let raw: Vec<u8> =
        zip.tensors.iter().flat_map(|tensor| &tensor.values).flat_map(|value| value.to_le_bytes()).collect();
    assert!(raw == std::fs::read(path("raw")).unwrap());
    for (name, format) in [("legacy", Format::Legacy), ("wrapped", Format::Zip)] {
        let file = read(&path(name)).unwrap();
        assert_eq!(file.format, format);
        assert!(bits(&file.tensors) == bits(&zip.tensors), "{name}");
    }
    let half = read(&path("half")).unwrap();
    for (half, whole) in half.tensors.iter().zip(&zip.tensors) {
        assert_eq!((&half.name, &half.shape), (&whole.name, &whole.shape));
        let near = |(half, whole): (&f32, &f32)| (half - whole).abs() <= whole.abs() / 1024.0 + 1e-7;
        assert!(half.values.iter().zip(&whole.values).all(near), "{}", half.name);
    }

    pth::write(&mut File::create(path("ours.pth")).unwrap(), &zip.tensors, 3).unwrap();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::write(&mut File::create(path("ours.safetensors")).unwrap(), &metadata, &zip.tensors, 3).unwrap();
    let read_back = "
import sys, torch, torchvision
folder = sys.argv[1]
theirs = torch.load(f'{folder}/zip', weights_only=True)
for mapped in (False, True):
    ours = torch.load(f'{folder}/ours.pth', weights_only=True, mmap=mapped)
    assert list(ours) == list(theirs), 'names or their order differ'
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and ours[name].shape == value.shape, name
        assert ours[name].stride() == value.stride() and torch.equal(ours[name], value), name
    assert len({value.untyped_storage().data_ptr() for value in ours.values()}) == len(ours), 'storages are shared'
model = torchvision.models.resnet18(num_classes=10)
print(model.load_state_dict(ours, strict=True))
try:
    import safetensors.torch
except ImportError:
    pass
else:
    ours = safetensors.torch.load_file(f'{folder}/ours.safetensors')
    print(model.load_state_dict(ours, strict=True))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
";
    let printed = python(read_back, folder.path()).unwrap();
    assert!(
        printed.lines().count() > 0 && printed.lines().all(|line| line == "<All keys matched successfully>"),
        "{printed}"
    );
}

/// The checked-in fixtures hold the values that PyTorch itself finds in them.
#[test]
fn pytorch_reads_the_same_from_the_fixtures() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let script = format!(
        "
import sys, torch
for name in ('zip', 'legacy', 'wrapped', 'untyped'):
    state = torch.load({:?} + f'/{{name}}.pth', weights_only=False)
    state = state['model']['state_dict'] if 'model' in state else state
    floats = {{key: value.detach().float().contiguous() for key, value in state.items()}}
    torch.save(floats, sys.argv[1] + f'/{{name}}')
",
        fixtures.display().to_string()
    );
    if python(&script, folder.path()).is_none() {
        return;
    }
    for name in ["zip", "legacy", "wrapped", "untyped"] {
        let ours = read(&fixtures.join(format!("{name}.pth"))).unwrap();
        let theirs = read(&folder.path().join(name)).unwrap();
        assert!(bits(&ours.tensors) == bits(&theirs.tensors), "{name}");
    }
}
