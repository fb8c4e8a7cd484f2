//! Packed files: header, metadata, labels, index and records.

#![no_main]

use std::ops::Range;

use enmasse_datasets::{OpenOptions, open};
use enmasse_fuzz::folder;
use test_support::heap::peak_of;

/// The number at an offset.
fn number(file: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_le_bytes(file.get(at..)?.first_chunk().copied()?) as usize)
}

/// Writes the hash of some bytes to an offset, if both are in the file.
fn hash(file: &mut [u8], bytes: Range<usize>, at: usize) -> Option<()> {
    let hash = blake3::hash(file.get(bytes)?);
    file.get_mut(at..at + 32)?.copy_from_slice(hash.as_bytes());
    Some(())
}

/// Writes the hash of a sample's record.
fn hash_record(file: &mut [u8], header: usize, part: usize, sample: usize) -> Option<()> {
    let (labels, index) = (number(file, header + 8)?, number(file, header + 16)?);
    let label = file.get(labels.checked_add(4 * sample)?..)?.first_chunk::<4>().copied()?;
    let begin = number(file, index.checked_add(8 * sample)?)?;
    let lengths = number(file, begin.checked_add(32)?)? as u64;
    let end = (begin + 40).checked_add(lengths as u32 as usize)?.checked_add((lengths >> 32) as usize)?;
    let mut hasher = blake3::Hasher::new();
    for number in [part as u64, sample as u64, u32::from_le_bytes(label).into()] {
        hasher.update(&number.to_le_bytes());
    }
    let hash = hasher.update(file.get(begin + 32..end)?).finalize();
    file[begin..begin + 32].copy_from_slice(hash.as_bytes());
    Some(())
}

/// Writes the file's length and its hashes, which no fuzzer finds, as far as its numbers make sense.
fn complete(file: &mut [u8]) -> Option<()> {
    let length = file.len() as u64;
    file.get_mut(16..24)?.copy_from_slice(&length.to_le_bytes());
    for (part, header) in [72, 160].into_iter().enumerate() {
        for sample in 0..number(file, header)?.min(4) {
            let _ = hash_record(file, header, part, sample);
        }
        let samples = number(file, header)?;
        let labels = number(file, header + 8)?;
        let end = samples.checked_mul(4).and_then(|bytes| bytes.checked_add(labels));
        let _ = end.and_then(|end| hash(file, labels..end, header + 24));
    }
    for header in [336, 384] {
        let targets = number(file, header)?;
        let bytes = number(file, header + 8)?;
        let _ = targets.checked_add(bytes).and_then(|end| hash(file, targets..end, header + 16));
    }
    let (metadata, bytes) = (number(file, 24)?, number(file, 32)?);
    let _ = metadata.checked_add(bytes).and_then(|end| hash(file, metadata..end, 40));
    hash(file, 0..480, 480)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    let _ = complete(&mut file);
    let path = folder().join("packed");
    std::fs::write(&path, &file).expect("the folder for temporary files can be written");
    let (opened, peak) = peak_of(|| open(&path, &OpenOptions::default()));
    assert!(peak <= 32 * file.len() + (1 << 20), "it took {peak} bytes");
    match opened {
        Ok(data) => {
            for part in [&data.train, &data.validation] {
                for index in 0..part.len().min(100) {
                    assert!(part.label(index) < data.classes.len());
                    assert!([0, data.classes.len()].contains(&part.targets(index).len()));
                    // Whole, and once more as it was found.
                    for _ in 0..2 {
                        if let Ok(image) = part.read(index) {
                            assert!(!image.pixels().is_empty());
                        }
                    }
                    let _ = part.name(index);
                    let _ = part.locality().map(|locality| locality.read_file(index, &mut Vec::new()));
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
