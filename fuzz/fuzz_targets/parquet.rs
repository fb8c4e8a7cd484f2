//! Parquet files: their end, the heads of pages, levels, dictionaries, compressed values, labels and images.

#![no_main]

use enmasse_datasets::{OpenOptions, open_whole};
use enmasse_fuzz::folder;
use test_support::heap::peak_of;

/// How many times as large a page may become.
const EXPANSION: usize = 1000;
/// The window of a compressed page, and what does not depend on the file.
const BESIDE: usize = 12 << 20;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = folder().join("a.parquet");
    std::fs::write(&path, bytes).expect("the folder for temporary files can be written");
    let (opened, peak) = peak_of(|| open_whole(&path, &OpenOptions::default()));
    assert!(peak <= 2 * EXPANSION * bytes.len() + BESIDE, "it took {peak} bytes");
    match opened {
        Ok(data) => {
            let classes = data.classes.len();
            let (data, locality) = (&data.dataset, data.dataset.locality().expect("files"));
            for index in 0..data.len().min(100) {
                assert!(data.label(index) < classes);
                assert!([0, classes].contains(&data.targets(index).len()));
                let (read, peak) = peak_of(|| locality.read_file(index, &mut Vec::new()));
                assert!(peak <= 2 * EXPANSION * bytes.len() + BESIDE, "it took {peak} bytes");
                if let Err(error) = read {
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
                let _ = data.name(index);
            }
            assert_eq!(locality.blocks().map(|blocks| blocks.iter().sum()), Some(data.len()));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
