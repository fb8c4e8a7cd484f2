//! Files of the forms that PyTorch writes; written files, read back; and refused files with their messages.

use std::path::{Path, PathBuf};

use enmasse_weights::{Format, ModelTensors, NamedTensor, WeightsError, match_tensors, pth, read, safetensors};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn tensor(name: &str, shape: &[usize], values: &[f32]) -> NamedTensor {
    NamedTensor { name: name.to_owned(), shape: shape.to_vec(), values: values.to_vec() }
}

/// The result of `state()` in fixtures/make.py, without its counter.
fn expected() -> Vec<NamedTensor> {
    let range = |range: std::ops::Range<u8>| range.map(f32::from).collect::<Vec<_>>();
    let transposed: Vec<f32> = (0..12).map(|at| (12 + at % 3 * 4 + at / 3) as f32).collect();
    vec![
        tensor("conv.weight", &[2, 2, 3, 1], &range(2..14)),
        tensor("conv.shared", &[4, 3], &transposed),
        tensor("conv.column", &[6], &[1.0, 5.0, 9.0, 13.0, 17.0, 21.0]),
        tensor("bn.weight", &[2], &[0.5, -1.5]),
        tensor("bn.running_mean", &[2], &[1.0, 2.0]),
        tensor("half", &[3], &[1.0, -2.0, 0.333_007_8]),
        tensor("brain", &[3], &[1.0, -2.0, 3.140_625]),
        tensor("double", &[2], &[0.1, f32::INFINITY]),
        tensor("scalar", &[], &[9.0]),
        tensor("empty", &[0, 3], &[]),
        tensor("byte", &[2], &[0.0, 255.0]),
        tensor("char", &[2], &[-128.0, 127.0]),
        tensor("short", &[2], &[-300.0, 300.0]),
        tensor("int", &[2], &[-70_000.0, 70_000.0]),
        tensor("long", &[2], &[-1_099_511_627_776.0, 1_099_511_627_776.0]),
        tensor("bool", &[2], &[1.0, 0.0]),
    ]
}

#[test]
fn both_forms_of_pytorch() {
    let check = |name: &str, format: Format, expected: Vec<NamedTensor>| {
        let file = read(&fixture(name)).unwrap();
        assert_eq!((file.format, Format::of(&file.path).unwrap()), (format, format), "{name}");
        assert_eq!(file.tensors, expected, "{name}");
    };
    check("zip.pth", Format::Zip, expected());
    check("legacy.pth", Format::Legacy, expected());
    // A dictionary in a dictionary, with "module." in front of each name, next to an optimiser's tensors.
    check("wrapped.pth", Format::Legacy, expected());
    let untyped = [tensor("u16", &[2], &[1.0, 65_535.0]), tensor("u64", &[1], &[1_099_511_627_776.0])];
    check("untyped.pth", Format::Zip, untyped.to_vec());
    check("big.pth", Format::Zip, vec![tensor("w", &[2], &[1.0, -2.5])]);
    // Between other data of a run. The prefix is that of the module's attribute, which only a model can tell from a name.
    let named = expected().into_iter().map(|tensor| NamedTensor { name: format!("model.{}", tensor.name), ..tensor });
    let criterion = tensor("criterion.weight", &[3], &[1.0; 3]);
    check("lightning.ckpt", Format::Zip, named.chain([criterion]).collect());
}

/// The model of the files' tensors.
fn model() -> ModelTensors {
    let tensors = expected().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
    let (name, classifier) = ("net".to_owned(), "fc".to_owned());
    ModelTensors { name, tensors, classifier, any_classes: false, positions: None }
}

#[test]
fn a_checkpoint_of_lightning_fits_its_model() {
    let file = read(&fixture("lightning.ckpt")).unwrap();
    let (matching, tensors) = match_tensors(&model(), file, &[]).unwrap();
    assert_eq!(tensors, expected());
    let lines: Vec<String> = matching.to_string().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(lines, ["prefix model. removed from 16 names", "not used: criterion.weight"]);
}

#[test]
fn averages_of_timm_are_taken_and_told() {
    let (matching, tensors) = match_tensors(&model(), read(&fixture("averaged.pth")).unwrap(), &[]).unwrap();
    assert_eq!(tensors, expected());
    let lines: Vec<String> = matching.to_string().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(lines, ["state_dict_ema taken: averages come before other weights, as in timm"]);
}

fn refusal(path: &Path) -> String {
    let message = read(path).unwrap_err().to_string();
    assert!(!message.contains('\n') && message.len() < 600, "{message:?}");
    message.replace(&path.display().to_string(), "FILE")
}

#[test]
fn refused_kinds_are_named() {
    let check = |name: &str, expected: &str| assert_eq!(refusal(&fixture(name)), expected);
    let save =
        "which only its own program can open; in PyTorch, save its state instead: torch.save(model.state_dict(), FILE)";
    let module = format!("FILE: holds a whole module (torch.nn.modules.linear.Linear), {save}");
    check("module.pth", &module);
    check("module-legacy.pth", &module);
    check(
        "script.pth",
        "FILE: holds a TorchScript program; in PyTorch, save its state instead: \
         torch.save(torch.jit.load(FILE).state_dict(), OTHER)",
    );
    check("quantized.pth", "FILE: tensor \"q\" is quantized, which is not supported; save it as a plain tensor");
}

/// A file with these bytes.
fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn files_that_are_not_weights() {
    let check = |bytes: &[u8], expected: &str| {
        let (_folder, path) = file(bytes);
        assert_eq!(refusal(&path), expected, "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
    };
    let neither = "FILE: is not a safetensors file nor one of PyTorch, or it is truncated";
    check(b"", neither);
    check(b"<html>Not found</html>", neither);
    check(b"\x80\x02K\x01.", "FILE: is a pickle, but not one written by torch.save");
    check(b"\x80\x02cos\nsystem\n", "FILE: is damaged: its pickle is cut short; fetch or save it again");
    let magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02".as_slice();
    check(&[magic, b"M\xe8\x03."].concat(), "FILE: is of an unknown version of torch.save's legacy form (not 1001)");
    let legacy = |object: &[u8]| [magic, b"M\xe9\x03.}.", object, b"]."].concat();
    check(&legacy(b"K\x01."), "FILE: holds no dictionary of tensors");
    check(&legacy(b"}U\x05epochK\x01s."), {
        "FILE: holds no weights at the top or under [\"state_dict\", \"model_state_dict\", \"model\"]; the first keys are [\"epoch\"]"
    });
    check(&legacy(b"cargparse\nNamespace\n)\x81."), {
        "FILE: holds an object of argparse.Namespace instead of a dictionary of tensors"
    });
    // A name that would end the error's line, or move the cursor.
    check(
        &legacy(b"cos\x1b\r\nsystem\n)\x81."),
        "FILE: holds an object of os??.system instead of a dictionary of tensors",
    );
    check(&legacy(b"]q\0h\0a."), "FILE: the pickle holds a value that contains itself");
    let cut = "FILE: is a truncated zip file: its directory is missing; fetch or save it again";
    check(b"PK\x03\x04", cut);
    let zip = std::fs::read(fixture("zip.pth")).unwrap();
    check(&zip[..zip.len() - 1], cut);
    let legacy = std::fs::read(fixture("legacy.pth")).unwrap();
    check(
        &legacy[..legacy.len() - 1],
        "FILE: is damaged: a storage lies beyond its end; it may be cut short; fetch or save it again",
    );
    let tar = [b"sys_info".as_slice(), &[0; 249], b"ustar\x0000", &[0; 247]].concat();
    check(
        &tar,
        "FILE: is a tar file, as torch.save wrote before PyTorch 0.2; \
         load it and save it again with PyTorch 0.4 or later",
    );
}

/// Changes of single bytes in a zip file of weights, `at` bytes after each `mark`.
#[test]
fn other_zip_files() {
    let check = |mark: &[u8], at: usize, byte: u8, expected: &str| {
        let mut bytes = std::fs::read(fixture("big.pth")).unwrap();
        let marks: Vec<_> = (0..bytes.len() - at).filter(|&start| bytes[start..].starts_with(mark)).collect();
        assert!(!marks.is_empty());
        marks.iter().for_each(|start| bytes[start + at] = byte);
        let (_folder, path) = file(&bytes);
        let problem = refusal(&path);
        assert!(problem.starts_with(expected), "{problem}");
    };
    check(b"data.pkl", 0, b'c', "FILE: is a zip file, but not one of PyTorch's: it has no data.pkl");
    check(b"big", 0, b'p', "FILE: is damaged: its byte order is neither little nor big");
    check(b"data/0", 5, b'1', "FILE: is damaged: the storage of tensor \"w\" is missing");
    check(b"data/0", 5, 0xFF, "FILE: is damaged: its zip directory is malformed");
    // Directory entries: the method; the flags; the offset. Then the end record's fields.
    check(b"PK\x01\x02", 10, 8, "FILE: its part \"byteorder\" is compressed or encrypted, as torch.save never does");
    check(b"PK\x01\x02", 8, 1, "FILE: its part \"byteorder\" is compressed or encrypted, as torch.save never does");
    check(b"PK\x01\x02", 42, 1, "FILE: is damaged: its directory points to nothing");
    check(b"PK\x01\x02", 45, 0x70, "FILE: is damaged: it refers to data beyond its end");
    check(b"PK\x05\x06", 10, 0, "FILE: is a zip file, but not one of PyTorch's: it has no data.pkl");
    check(b"PK\x05\x06", 11, 1, "FILE: is damaged: its zip directory is malformed");
    check(b"PK\x05\x06", 19, 1, "FILE: is damaged: it refers to data beyond its end");
}

#[test]
fn missing_files() {
    let check = |path: &str, expected: &str| assert_eq!(refusal(Path::new(path)), expected);
    check("/nowhere/x", "cannot read FILE: it does not exist");
    check("/proc", "FILE: it is a folder, not a file");
    check("/dev/zero", "FILE: it is a device, not a file");
}

fn sample() -> Vec<NamedTensor> {
    vec![
        tensor("conv1.weight", &[2, 3, 1, 1], &[1.0, -0.0, f32::MIN_POSITIVE / 2.0, 1e30, f32::NEG_INFINITY, 6.0]),
        tensor("bn1.weight", &[2], &[1.0, 1.0]),
        tensor("bn1.running_mean", &[2], &[0.5, 0.25]),
        tensor("bn1.running_var", &[2], &[1.0, 2.0]),
        tensor("scalar", &[], &[9.0]),
        tensor("empty", &[0, 3], &[]),
        tensor("large", &[5000], &vec![0.125; 5000]),
    ]
}

#[test]
fn written_files_round_trip() {
    let mut zip = Vec::new();
    pth::write(&mut zip, &sample(), 42).unwrap();
    let (_folder, path) = file(&zip);
    let found = read(&path).unwrap();
    assert_eq!((found.format, found.tensors), (Format::Zip, sample()));
    // Each storage begins at a multiple of 64 bytes, so that PyTorch can map the file.
    let large = 0.125f32.to_le_bytes().repeat(5000);
    assert_eq!(zip.windows(large.len()).position(|window| window == large).unwrap() % 64, 0);

    let mut bytes = Vec::new();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::write(&mut bytes, &metadata, &sample(), 42).unwrap();
    let (_folder, path) = file(&bytes);
    let found = read(&path).unwrap();
    assert_eq!((found.format, found.tensors), (Format::Safetensors, sample()));
    let opened = safetensors::TensorFile::open(&path).unwrap();
    let counter = opened.entries.iter().find(|entry| entry.name == "bn1.num_batches_tracked").unwrap();
    assert_eq!((opened.read(counter).unwrap(), opened.metadata), (vec![42.0], metadata));
}

#[test]
fn invalid_tensors_are_not_written() {
    let check = |tensors: &[NamedTensor], expected: &str| {
        let mut out = Vec::new();
        let errors = [
            pth::write(&mut out, tensors, 0).unwrap_err(),
            safetensors::write(&mut out, &Default::default(), tensors, 0).unwrap_err(),
        ];
        assert_eq!((errors.map(|error| error.to_string()), out.len()), ([expected, expected].map(str::to_owned), 0));
    };
    check(&[tensor("w", &[2], &[1.0])], "tensor w of shape [2] cannot have 1 values");
    let twice = "the tensor name w is a duplicate or reserved";
    check(&[tensor("w", &[1], &[1.0]), tensor("w", &[1], &[1.0])], twice);
    let counter = "the tensor name bn.num_batches_tracked is a duplicate or reserved";
    check(&[tensor("bn.num_batches_tracked", &[], &[1.0])], counter);
}

#[test]
fn prefixes_of_wrappers() {
    let check = |names: &[&str], expected: Result<&[&str], &str>| {
        let tensors: Vec<_> = names.iter().map(|name| tensor(name, &[1], &[0.0])).collect();
        let mut bytes = Vec::new();
        pth::write(&mut bytes, &tensors, 0).unwrap();
        let (_folder, path) = file(&bytes);
        let found = read(&path).map(|file| file.tensors.into_iter().map(|tensor| tensor.name).collect::<Vec<_>>());
        let found = found.map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"));
        assert_eq!(
            found,
            expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect()).map_err(str::to_owned)
        );
    };
    check(&["module.a", "module.b"], Ok(&["a", "b"]));
    check(&["module._orig_mod.a", "module._orig_mod.b"], Ok(&["a", "b"]));
    // A model may have a part with that name.
    check(&["module.a", "b"], Ok(&["module.a", "b"]));
    check(&["a\nb"], Err("FILE: \"a\\nb\" is not a valid tensor name"));
    let none = "FILE: holds no weights at the top or under [\"state_dict\", \"model_state_dict\", \"model\"]";
    check(&[], Err(&format!("{none}; the first keys are []")));
}

#[test]
fn errors_tell_the_file_from_the_system() {
    assert!(matches!(read(Path::new("/nowhere")), Err(WeightsError::Io { .. })));
    assert!(matches!(read(Path::new("/dev/null")), Err(WeightsError::Content { .. })));
}
