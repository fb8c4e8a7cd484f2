//! Hostile files: for any bytes, reading ends in weights or an error, and takes no more memory than the crate's
//! documentation says.

use std::path::Path;

use enmasse_weights::{NamedTensor, WeightsFile, pth, read, safetensors};
use proptest::prelude::*;
use test_support::heap::peak_of;

/// According to the crate's documentation.
fn bound(len: usize) -> usize {
    4 * len.max(1 << 20) + 256 * len.min(1 << 20) + 64 * len.min(1 << 26) + (1 << 20)
}

fn check(bytes: &[u8]) -> Result<WeightsFile, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, bytes).unwrap();
    let (result, peak) = peak_of(|| read(&path));
    assert!(peak <= bound(bytes.len()), "a file of {} bytes took {peak} bytes", bytes.len());
    result.map_err(|error| {
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message:?}");
        message.replace(&path.display().to_string(), "FILE")
    })
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn ours(write: impl Fn(&mut Vec<u8>, &[NamedTensor])) -> Vec<u8> {
    let tensor = |name: &str, shape: &[usize]| NamedTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        values: (0..shape.iter().product()).map(|value| value as f32).collect(),
    };
    let mut bytes = Vec::new();
    write(
        &mut bytes,
        &[tensor("conv.weight", &[2, 3]), tensor("bn.running_mean", &[2]), tensor("bn.running_var", &[2])],
    );
    bytes
}

/// A real file of every form.
fn real() -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        ["zip.pth", "legacy.pth", "wrapped.pth", "untyped.pth", "big.pth", "module.pth"].map(fixture).into();
    files.push(ours(|bytes, tensors| pth::write(bytes, tensors, 5).unwrap()));
    files.push(ours(|bytes, tensors| safetensors::write(bytes, &Default::default(), tensors, 5).unwrap()));
    files
}

#[test]
fn every_truncated_file_is_an_error() {
    for file in real() {
        let whole = check(&file).is_ok();
        for len in (0..file.len()).step_by(13) {
            let cut = check(&file[..len]);
            // The bytes after the last tensor's last byte are not needed.
            assert!(cut.is_err() || (whole && len > file.len() / 2), "{len} of {} bytes", file.len());
        }
    }
}

/// A legacy file of one object, without storages.
fn legacy(object: &[u8]) -> Vec<u8> {
    [b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.}.".as_slice(), object, b".]."].concat()
}

#[test]
fn bombs() {
    let refuse = |bytes: &[u8], expected: &str| assert_eq!(check(bytes).unwrap_err(), format!("FILE: {expected}"));
    let laughs = [b"]".to_vec(), b"q\0](h\0h\0h\0h\0h\0h\0h\0h\0h\0h\0e".repeat(20)].concat();
    refuse(&legacy(&laughs), "the pickle holds more than 1048576 values");
    let deep = [&b"]".repeat(1000)[..], &b"a".repeat(999)].concat();
    refuse(&legacy(&deep), "the pickle holds values more than 128 levels deep");
    refuse(&legacy(b"]q\0h\0a"), "the pickle holds a value that contains itself");
    let many = b"N".repeat(3 << 20);
    refuse(&legacy(&many), "the pickle holds more than 1048576 values");
    let long = "is damaged: its pickle is cut short; fetch or save it again";
    refuse(&legacy(b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"), long);
    refuse(&legacy(b"X\xff\xff\xff\xff"), long);
    // A safetensors header with a length beyond the file, and a nested one.
    refuse(&[&(1u64 << 23).to_le_bytes()[..], b"{"].concat(), "is not a safetensors file, or it is truncated");
    let nested = [b"{\"a\":".as_slice(), &b"[".repeat(100_000)].concat();
    let nested = [&(nested.len() as u64).to_le_bytes()[..], &nested].concat();
    refuse(&nested, "is not a safetensors file, or it is truncated");
}

/// The files that take the most memory for their size: small values in a pickle, parts of a zip file, tensors and
/// dimensions in a header.
#[test]
fn the_most_expensive_files() {
    for piece in [&b"]"[..], b")\x85", b"}", b"N)R", b"N\x94", b"U\0"] {
        for len in [1000, 300_000, 1 << 20] {
            let _ = check(&legacy(&[b"(", &piece.repeat(len / piece.len())[..], b"l"].concat()));
        }
    }
    let header = |entry: &dyn Fn(usize) -> String, count: usize| {
        let entries: Vec<_> = (0..count).map(entry).collect();
        let header = format!("{{{}}}", entries.join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    };
    let empty = |index| format!(r#""{index}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    assert_eq!(check(&header(&empty, 20_000)).unwrap().tensors.len(), 20_000);
    let many = format!("0{}", ",0".repeat(500_000));
    let dimensions = |_| format!(r#""w":{{"dtype":"U8","shape":[{many}],"data_offsets":[0,0]}}"#);
    assert_eq!(check(&header(&dimensions, 1)).unwrap().tensors[0].shape.len(), 500_001);

    let mut directory = Vec::new();
    for index in 0..60_000 {
        let name = format!("a/data/{index}");
        directory.extend(b"PK\x01\x02");
        directory.extend([0; 24]);
        directory.extend((name.len() as u16).to_le_bytes());
        directory.extend([0; 16]);
        directory.extend(name.as_bytes());
    }
    let end =
        [b"PK\x05\x06\0\0\0\0".as_slice(), &60_000u16.to_le_bytes().repeat(2), &(directory.len() as u32).to_le_bytes()];
    let zip = [b"PK\x03\x04", &directory[..], &end.concat(), &4u32.to_le_bytes(), &[0, 0]].concat();
    assert_eq!(check(&zip).unwrap_err(), "FILE: is a zip file, but not one of PyTorch's: it has no data.pkl");
}

/// One storage of four values, seen through a tensor of any shape, stride and offset.
fn view(shape: &[i32], stride: &[i32], repeated: usize) -> Vec<u8> {
    let numbers = |numbers: &[i32]| {
        let each: Vec<u8> = numbers.iter().flat_map(|number| [&b"J"[..], &number.to_le_bytes()].concat()).collect();
        [&b"("[..], &each, b"t"].concat()
    };
    let tensor = [
        &b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04NtQK\0"[..],
        &numbers(shape),
        &numbers(stride),
        b"\x89NtRq\0",
    ];
    let mut object = [&b"}X\x02\0\0\0w0"[..], &tensor.concat(), b"s"].concat();
    for index in 1..repeated {
        let name = format!("w{index}");
        object.extend([&b"X"[..], &(name.len() as u32).to_le_bytes(), name.as_bytes(), b"h\0s"].concat());
    }
    let head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.}.\x80\x02";
    let tail = b".](X\x01\0\0\x000e.\x04\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@";
    [&head[..], &object, tail].concat()
}

/// Few bytes may not claim many elements, neither by a stride of zero nor by many names for one tensor.
#[test]
fn views_multiply_nothing() {
    let values = |bytes: &[u8]| check(bytes).map(|file| file.tensors[0].values.clone());
    assert_eq!(values(&view(&[2, 2], &[1, 2], 1)).unwrap(), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(check(&view(&[4], &[1], 1000)).unwrap().tensors.len(), 1000);
    let far_more = |result: Result<_, String>| assert!(result.unwrap_err().contains("far more elements"));
    far_more(values(&view(&[i32::MAX], &[0], 1)));
    far_more(values(&view(&[i32::MAX, i32::MAX], &[0, 0], 1)));
    far_more(values(&view(&[1 << 18], &[0], 5)));
}

#[test]
fn a_directory_of_many_parts_is_refused_before_it_is_read() {
    let mut zip = fixture("zip.pth");
    let wide = zip.windows(4).rposition(|window| window == b"PK\x06\x06").unwrap();
    zip[wide + 32..wide + 40].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let problem = check(&zip).unwrap_err();
    assert!(problem.contains("its zip directory lists 1152921504606846976 parts"), "{problem}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(768))]

    #[test]
    fn mutations_of_real_files(
        which in 0..8usize, changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..5),
        wide in any::<Option<(usize, u64)>>(), cut in proptest::option::weighted(0.2, any::<usize>()),
        moved in any::<Option<(usize, usize, usize)>>(),
    ) {
        let mut file = real().swap_remove(which);
        // Half of the changes go to the ends, which have directories and pickles, rather than padding.
        for (at, byte) in changes {
            let len = file.len();
            let at = match at % 4 {
                0 => at / 4 % len.min(700),
                1 => len - 1 - at / 4 % len.min(700),
                _ => at / 4 % len,
            };
            file[at] = byte;
        }
        if let Some((at, number)) = wide {
            let at = at % (file.len() - 8);
            file[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        if let Some((from, len, to)) = moved {
            let (from, to) = (from % file.len(), to % file.len());
            let piece = file[from..from + len % (file.len() - from).min(64)].to_vec();
            file.splice(to..to, piece);
        }
        if let Some(cut) = cut {
            file.truncate(cut % file.len());
        }
        let _ = check(&file);
    }

    #[test]
    fn any_bytes_after_any_beginning(start in 0..5usize, bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let starts: [&[u8]; 5] = [b"", b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"\x40\0\0\0\0\0\0\0{", b"\x80\x02"];
        let _ = check(&[starts[start], &bytes].concat());
    }
}
