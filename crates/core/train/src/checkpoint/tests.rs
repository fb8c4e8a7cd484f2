//! Checkpoints: written files are read back; damaged, foreign and too large files are refused.

use proptest::prelude::*;

use super::*;
use crate::{Best, TargetKind};

fn meta() -> CheckpointMeta {
    CheckpointMeta {
        model: "resnet18".to_owned(),
        classes: vec!["rose".to_owned(), "Gänse\"blümchen\n".to_owned()],
        size: 64,
        resize: 73,
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 1.0 / 3.0],
        configuration: "lr = 0.1\n".to_owned(),
        split: "abc".to_owned(),
        seed: u64::MAX,
        epoch: 3,
        samples_consumed: 64,
        epoch_sums: EpochSums { loss: 0.1 + 0.2, correct: 5, samples: 64, metrics: [("top5".into(), 0.1)].into() },
        optimizer_step: 7,
        best: Best { value: Some(2.0 / 3.0), ..Best::default() },
        callbacks: [("Best".to_owned(), "{\"epoch\": 3}\n".to_owned())].into(),
        target: TargetKind::Class,
        statistics: None,
        teacher: Some("blake3:0a".to_owned()),
    }
}

fn tensor(name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> NamedTensor {
    NamedTensor { name: name.to_owned(), shape: shape.to_vec(), values: values.into_iter().collect() }
}

fn checkpoint() -> Checkpoint {
    let tensors = vec![
        tensor("conv1.weight", &[2, 3, 1, 1], [1.0, -0.0, f32::MIN_POSITIVE / 2.0, 1e30, 5.0, 6.0]),
        tensor("bn1.running_mean", &[2], [0.5, 0.25]),
        tensor("bn1.running_var", &[2], [1.0, 2.0]),
        tensor("scalar", &[], [9.0]),
        tensor("empty", &[0, 3], []),
        tensor("optimizer.momentum_buffer.conv1.weight", &[2, 3, 1, 1], (0..6).map(|x| x as f32)),
    ];
    Checkpoint { meta: meta(), tensors }
}

/// Saves a checkpoint, lets `change` modify its bytes, and returns the file.
fn file(change: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    checkpoint().save(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// A file written by another program.
fn stranger(header: &str, data: &[u8]) -> (tempfile::TempDir, PathBuf) {
    file(|bytes| *bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat())
}

fn reason<T: std::fmt::Debug>(path: &Path, result: Result<T, CheckpointError>) -> String {
    let message = result.unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message:?}");
    message.replace(&path.display().to_string(), "FILE")
}

#[test]
fn reads_back_and_is_deterministic() {
    let (_folder, path) = file(|_| ());
    assert_eq!(Checkpoint::load(&path).unwrap(), checkpoint());
    let (_other_folder, other) = file(|_| ());
    assert_eq!(std::fs::read(path).unwrap(), std::fs::read(other).unwrap());
}

/// Those of a classification have the keys that they always had.
#[test]
fn the_best_value_and_the_target_name_themselves() {
    let check = |metric: &str, target: TargetKind, expected: &[(&str, &str)]| {
        let best = Best { metric: metric.to_owned(), value: Some(0.25) };
        let meta = CheckpointMeta { best, target, ..meta() };
        let map = meta.to_map();
        let found = map.iter().filter(|(key, _)| key.starts_with("best") || *key == "target");
        assert!(found.map(|(key, text)| (key.as_str(), text.as_str())).eq(expected.iter().copied()), "{map:?}");
        assert_eq!(CheckpointMeta::from_map(&map).unwrap(), meta);
    };
    check("val_accuracy", TargetKind::Class, &[("best_val_accuracy", "0.25")]);
    check("val_mae", TargetKind::Values(2), &[("best_val_mae", "0.25"), ("target", "2 values")]);
    let refused = |key: &str, text: Option<&str>, expected: &str| {
        let mut map = meta().to_map();
        map.remove(key);
        text.and_then(|text| map.insert(key.to_owned(), text.to_owned()));
        assert_eq!(CheckpointMeta::from_map(&map).unwrap_err(), format!("is not a checkpoint: {expected}"));
    };
    refused("best_val_accuracy", None, "it has no best_val_accuracy");
    refused("best_val_accuracy", Some("high"), "its best_val_accuracy is invalid");
    refused("target", Some("many values"), "its target is invalid");
}

/// By the reader of the `safetensors` crate, which PyTorch's module wraps.
#[test]
fn the_official_reader_agrees() {
    let (_folder, path) = file(|_| ());
    let bytes = std::fs::read(&path).unwrap();
    let official = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for expected in checkpoint().tensors {
        let found = official.tensor(&expected.name).unwrap();
        let values: Vec<u8> = expected.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!((found.dtype(), found.shape()), (safetensors::Dtype::F32, expected.shape.as_slice()));
        assert_eq!(found.data(), values, "{}", expected.name);
    }
    let counter = official.tensor("bn1.num_batches_tracked").unwrap();
    assert_eq!((counter.dtype(), counter.shape()), (safetensors::Dtype::I64, &[][..]));
    assert_eq!(counter.data(), 7i64.to_le_bytes());
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    let text = |key: &str| metadata[key].as_str();
    assert_eq!((text("format_version"), text("epoch"), text("samples_consumed")), ("1", "3", "64"));
    assert_eq!((text("seed"), text("configuration")), ("18446744073709551615", "lr = 0.1\n"));
    assert_eq!(text("classes"), "[\"rose\",\"Gänse\\\"blümchen\\n\"]");
    assert!(text("checksum").starts_with("blake3:"));
}

/// Checkpoints of before callbacks had a state, and of runs without any, are the same.
#[test]
fn states_of_callbacks_are_optional() {
    let without = CheckpointMeta { callbacks: CallbackStates::new(), ..meta() };
    let map = without.to_map();
    assert!(!map.contains_key("callbacks"), "{map:?}");
    assert_eq!(CheckpointMeta::from_map(&map).unwrap(), without);
    let with = meta().to_map();
    assert_eq!(with["callbacks"], r#"{"Best":"{\"epoch\": 3}\n"}"#);
    assert_eq!(CheckpointMeta::from_map(&with).unwrap(), meta());
    let broken = [("callbacks".to_owned(), "[]".to_owned())];
    let error = CheckpointMeta::from_map(&map.into_iter().chain(broken).collect()).unwrap_err();
    assert_eq!(error, "is not a checkpoint: its callbacks is invalid");
}

#[test]
fn damage_is_found() {
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let (_folder, path) = file(change);
        assert_eq!(reason(&path, Checkpoint::load(&path)), expected);
    };
    let beginning = "FILE: is not a safetensors file, or it is truncated";
    let checksum = "FILE: is damaged: its checksum does not match its content; use another checkpoint of the run";
    check(&|bytes| bytes.clear(), beginning);
    check(&|bytes| bytes.truncate(7), beginning);
    check(&|bytes| bytes.truncate(100), beginning);
    check(&|bytes| bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes()), beginning);
    check(&|bytes| bytes[8] = b'x', beginning);
    check(&|bytes| *bytes = b"not a checkpoint at all".to_vec(), beginning);
    let damaged = "FILE: is damaged: its tensors take 76 bytes, and 75 are there";
    check(&|bytes| bytes.truncate(bytes.len() - 1), damaged);
    check(&|bytes| bytes.push(0), "FILE: is damaged: its tensors take 76 bytes, and 77 are there");
    let last_bit = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    check(&last_bit, checksum);
    let swap = |from: &'static str, to: &'static str| {
        move |bytes: &mut Vec<u8>| {
            let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    };
    check(&swap("\"epoch\":\"3\"", "\"epoch\":\"4\""), checksum);
    check(&swap("conv1.weight", "conv2.weight"), checksum);
    let newer = "FILE: is a checkpoint of format \"9\"; this enmasse reads format 1";
    check(&swap("\"format_version\":\"1\"", "\"format_version\":\"9\""), newer);
}

#[test]
fn files_of_other_programs() {
    let check = |header: &str, data: &[u8], expected: Result<&[f32], &str>| {
        let (_folder, path) = stranger(header, data);
        match expected {
            Ok(values) => assert_eq!(load_weights(&path).unwrap(), [tensor("w", &[values.len()], values.to_vec())]),
            Err(expected) => assert_eq!(reason(&path, load_weights(&path)), expected),
        }
    };
    let one = |dtype: &str, count: usize, bytes: usize| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":[{count}],"data_offsets":[0,{bytes}]}}}}"#)
    };
    check(&one("F32", 1, 4), &1.5f32.to_le_bytes(), Ok(&[1.5]));
    check(&one("F64", 1, 8), &0.1f64.to_le_bytes(), Ok(&[0.1]));
    check(&one("F16", 2, 4), &[0, 0x3C, 0, 0xC0], Ok(&[1.0, -2.0]));
    check(&one("BF16", 2, 4), &[0x80, 0x3F, 0, 0xC0], Ok(&[1.0, -2.0]));
    check(&one("I64", 1, 8), &(-3i64).to_le_bytes(), Ok(&[-3.0]));
    check(&one("U8", 1, 1), &[200], Ok(&[200.0]));
    let eight = "FILE: tensor w holds F8_E4M3; weights are floats of 16 to 64 bits, or integers";
    check(&one("F8_E4M3", 1, 1), &[0], Err(eight));
    check("{}", &[], Err("FILE: holds no weights"));
    let nonsense = "FILE: is not a safetensors file, or it is truncated";
    // Shapes that do not match, that overflow, and gaps.
    check(&one("F32", 2, 4), &[0; 4], Err(nonsense));
    check(&one("F32", usize::MAX, 4), &[0; 4], Err(nonsense));
    check(r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, &[0; 8], Err(nonsense));
    check(
        &one("F32", 1 << 40, 4 << 40),
        &[0; 4],
        Err("FILE: is damaged: its tensors take 4398046511104 bytes, and 4 are there"),
    );
    let (_folder, path) = stranger(&one("F32", 1, 4), &[0; 4]);
    let weights_only = "FILE: holds weights, but no state of a run: it is not a checkpoint of enmasse";
    assert_eq!(reason(&path, Checkpoint::load(&path)), weights_only);
}

#[test]
fn weights_of_a_checkpoint_leave_training_state_out() {
    let (_folder, path) = file(|_| ());
    let names: Vec<_> = load_weights(&path).unwrap().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["conv1.weight", "bn1.running_mean", "bn1.running_var", "scalar", "empty"]);
}

#[test]
fn paths_that_are_not_files() {
    let check =
        |path: &str, expected: &str| assert_eq!(reason(Path::new(path), Checkpoint::load(Path::new(path))), expected);
    check("/nowhere/x", "cannot read FILE: it does not exist");
    check("/proc", "FILE: it is a folder, not a file");
    check("/dev/zero", "FILE: it is a device, not a file");
}

#[test]
fn nonsense_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let check = |tensors, expected: &str| {
        assert_eq!(reason(&path, Checkpoint { meta: meta(), tensors }.save(&path)), expected);
        assert!(!path.exists());
    };
    check(vec![tensor("w", &[2], [1.0])], "FILE: tensor w of shape [2] cannot have 1 values");
    let twice = "FILE: the tensor name w is a duplicate or reserved";
    check(vec![tensor("w", &[1], [1.0]), tensor("w", &[1], [1.0])], twice);
    let counter = "FILE: the tensor name bn.num_batches_tracked is a duplicate or reserved";
    check(vec![tensor("bn.num_batches_tracked", &[], [1.0])], counter);
}

/// A folder with the file's name is found last, when everything is written and only the rename remains.
#[test]
fn failed_saves_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::create_dir(&path).unwrap();
    let expected = "cannot write FILE: Is a directory (os error 21)";
    assert_eq!(reason(&path, checkpoint().save(&path)), expected);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bits_read_back(
        bits in proptest::collection::vec(any::<u32>(), 0..3000), loss: f64, best: Option<f64>,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let best = Best { value: best.filter(|value| !value.is_nan()), ..Best::default() };
        let loss = if loss.is_nan() { 0.0 } else { loss };
        let metrics = [("a".to_owned(), loss), ("b".to_owned(), 0.0)].into();
        let sums = EpochSums { loss, correct: 1, samples: 2, metrics };
        let meta = CheckpointMeta { best, epoch_sums: sums, ..meta() };
        let values = bits.iter().map(|&bits| f32::from_bits(bits));
        Checkpoint { meta: meta.clone(), tensors: vec![tensor("w", &[bits.len()], values)] }.save(&path).unwrap();
        let loaded = Checkpoint::load(&path).unwrap();
        prop_assert_eq!(loaded.meta, meta);
        let found: Vec<u32> = loaded.tensors[0].values.iter().map(|value| value.to_bits()).collect();
        prop_assert_eq!(found, bits);
    }

    /// For any bytes, reading ends in a value or an error.
    #[test]
    fn garbage_never_panics(mut header in proptest::collection::vec(any::<u8>(), 0..200), at in 0..400usize, byte: u8) {
        let (_folder, path) = file(|bytes| {
            let at = at % bytes.len();
            bytes[at] = byte;
        });
        let _ = (Checkpoint::load(&path), load_weights(&path));
        let len = (header.len() as u64).to_le_bytes();
        header.splice(..0, len);
        std::fs::write(&path, &header).unwrap();
        prop_assert!(load_weights(&path).is_err());
    }
}

/// Regression test: a reader took the length of the file that was there before the one that it opened.
#[test]
fn a_checkpoint_read_while_it_is_replaced_is_one_or_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("last.safetensors");
    let mut longer = checkpoint();
    longer.meta.configuration = "x".repeat(1000);
    let versions = [checkpoint(), longer];
    versions[0].save(&path).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..100).for_each(|turn| versions[turn % 2].save(&path).unwrap()));
        while !writer.is_finished() {
            assert!(versions.contains(&Checkpoint::load(&path).unwrap()));
        }
    });
}
