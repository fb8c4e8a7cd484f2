//! Files of weights: safetensors and `.pth`.

#![no_main]

use enmasse_fuzz::{file, folder};
use enmasse_weights::{NamedTensor, WeightsFile, pth, read, safetensors};
use test_support::heap::peak_of;

/// Names, shapes and bits.
fn content(tensors: &[NamedTensor]) -> Vec<(&str, &[usize], Vec<u32>)> {
    let bits = |tensor: &NamedTensor| tensor.values.iter().map(|value| value.to_bits()).collect();
    tensors.iter().map(|tensor| (&tensor.name[..], &tensor.shape[..], bits(tensor))).collect()
}

/// Written in both forms, the tensors read back.
fn check(WeightsFile { tensors, .. }: &WeightsFile) {
    let path = folder().join("again");
    let mut bytes = Vec::new();
    pth::write(&mut bytes, tensors, 1).expect("memory takes all bytes");
    std::fs::write(&path, &bytes).expect("the folder for temporary files can be written");
    assert_eq!(content(&read(&path).expect("it wrote the file itself").tensors), content(tensors));
    bytes.clear();
    safetensors::write(&mut bytes, &Default::default(), tensors, 1).expect("memory takes all bytes");
    std::fs::write(&path, &bytes).expect("the folder for temporary files can be written");
    let mut again = read(&path).expect("it wrote the file itself").tensors;
    again.sort_by(|a, b| a.name.cmp(&b.name));
    let mut tensors = tensors.clone();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(content(&again), content(&tensors));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = file(bytes);
    let (result, peak) = peak_of(|| read(&path));
    // The crate's documentation says so.
    let bound = 4 * bytes.len().max(1 << 20) + 256 * bytes.len().min(1 << 20) + 64 * bytes.len() + (1 << 20);
    assert!(peak <= bound, "it took {peak} bytes");
    match result {
        Ok(file) => check(&file),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
