//! An archive in WebDataset's form: a tar with images and labels.

#![no_main]

use enmasse_datasets::{OpenOptions, open};
use enmasse_fuzz::folder;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = folder().join("input.tar");
    std::fs::write(&path, bytes).expect("the folder for temporary files can be written");
    match open(&path, &OpenOptions::default()) {
        Ok(data) => {
            for part in [&data.train, &data.validation] {
                for index in 0..part.len() {
                    assert!(part.label(index) < data.classes.len());
                    if let Err(error) = part.read(index) {
                        assert!(!error.to_string().contains('\n'), "{error}");
                    }
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
