//! ImageNet as Kaggle packs it, with three classes, for tests of several crates.

use std::fs;
use std::path::Path;

use enmasse_data::Dataset;
use enmasse_datasets::{OpenData, OpenOptions, open};

pub const NUMBERS: [&str; 3] = ["n01440764", "n01443537", "n01484850"];
pub const NAMES: &str =
    "n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\nn01484850 great white shark\n";
pub const LABELS: &str = "ImageId,PredictionString\nILSVRC2012_val_00000002,n01440764 1 2 3 4 n01440764 5 6 7 8 \n\
                      ILSVRC2012_val_00000001,n01484850 1 2 3 4 \nILSVRC2012_val_00000003,n01443537 1 2 3 4 \n";

pub fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Kaggle's archive, extracted, with three classes.
pub fn kaggle() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for number in NUMBERS {
        (0..2).for_each(|i| write(root.path(), &format!("ILSVRC/Data/CLS-LOC/train/{number}/{number}_{i}.JPEG"), ""));
    }
    (1..4).for_each(|i| write(root.path(), &format!("ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_{i:08}.JPEG"), ""));
    write(root.path(), "ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG", "");
    write(root.path(), "ILSVRC/ImageSets/CLS-LOC/val.txt", "");
    write(root.path(), "LOC_synset_mapping.txt", NAMES);
    write(root.path(), "LOC_val_solution.csv", LABELS);
    root
}

pub fn opened(root: &Path) -> Result<OpenData, String> {
    open(root, &OpenOptions::default()).map_err(|error| error.to_string())
}

pub fn labels(dataset: &dyn Dataset) -> Vec<usize> {
    (0..dataset.len()).map(|index| dataset.label(index)).collect()
}
