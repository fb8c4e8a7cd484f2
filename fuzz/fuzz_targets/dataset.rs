//! The files of CIFAR and MNIST: pickles, records, names of classes, and idx files, also compressed.

#![no_main]

use enmasse_datasets::{OpenOptions, open};
use enmasse_fuzz::folder;

const CIFAR_10: [&str; 7] =
    ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch", "batches.meta"];
const CIFAR_10_BINARY: [&str; 7] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
    "batches.meta.txt",
];
const CIFAR_100: [&str; 3] = ["train", "test", "meta"];
const CIFAR_100_BINARY: [&str; 3] = ["train.bin", "test.bin", "fine_label_names.txt"];
const MNIST: [&str; 4] =
    ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"];
const COMPRESSED: [&str; 4] = [
    "train-images-idx3-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
];
const LAYOUTS: [&[&str]; 6] = [&CIFAR_10, &CIFAR_10_BINARY, &CIFAR_100, &CIFAR_100_BINARY, &MNIST, &COMPRESSED];

// The first byte names the layout, and two more say where the files of images end, and those of labels or names begin.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&[layout, s0, s1], content)) = bytes.split_first_chunk() else { return };
    let files = LAYOUTS[usize::from(layout) % LAYOUTS.len()];
    let (images, labels) = content.split_at(usize::from(u16::from_le_bytes([s0, s1])).min(content.len()));
    let root = folder().join(files[0]);
    std::fs::create_dir_all(&root).expect("the folder for temporary files can be written");
    for name in files {
        let describes = ["label", "meta"].iter().any(|word| name.contains(word));
        let part = if describes { labels } else { images };
        std::fs::write(root.join(name), part).expect("the folder for temporary files can be written");
    }
    match open(&root, &OpenOptions::default()) {
        Ok(data) => {
            for part in [&data.train, &data.validation] {
                for index in 0..part.len() {
                    assert!(part.label(index) < data.classes.len());
                    assert!(!part.read(index).expect("its bytes are there").pixels().is_empty());
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
