//! A table of images, with commas, tabs or a JSON object in each line. The first byte chooses, and the task that is asked for.

#![no_main]

use enmasse_datasets::{OpenOptions, TaskKind, open};
use enmasse_fuzz::folder;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((which, content)) = bytes.split_first() else { return };
    let path = folder().join(["input.csv", "input.tsv", "input.jsonl"][usize::from(*which) % 3]);
    for (path, content) in [(&path, content), (&folder().join("a.png"), b"")] {
        std::fs::write(path, content).expect("the folder for temporary files can be written");
    }
    let task = TaskKind::ALL.get(usize::from(*which) / 3 % 4).copied();
    match open(&path, &OpenOptions { task, ..OpenOptions::default() }) {
        Ok(data) => {
            for part in [&data.train, &data.validation] {
                assert!((0..part.len()).all(|index| part.label(index) < data.classes.len()));
                let values = if data.task == TaskKind::Classification { 0 } else { data.classes.len() };
                assert!((0..part.len()).all(|index| part.targets(index).len() == values));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
