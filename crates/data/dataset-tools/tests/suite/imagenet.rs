//! A copy of ImageNet in Kaggle's layout, with the tables above its folder.

use std::fs;
use std::path::Path;

use enmasse_data::Dataset;
use enmasse_dataset_tools::Stage;
use enmasse_datasets::{OpenData, OpenOptions, open};

const NUMBERS: [&str; 3] = ["n01440764", "n01443537", "n01484850"];
const NAMES: &str =
    "n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\nn01484850 great white shark\n";
const LABELS: &str = "ImageId,PredictionString\nILSVRC2012_val_00000002,n01440764 1 2 3 4 n01440764 5 6 7 8 \n\
                      ILSVRC2012_val_00000001,n01484850 1 2 3 4 \nILSVRC2012_val_00000003,n01443537 1 2 3 4 \n";

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Kaggle's archive, extracted, with three classes.
fn kaggle() -> tempfile::TempDir {
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

fn opened(root: &Path) -> Result<OpenData, String> {
    open(root, &OpenOptions::default()).map_err(|error| error.to_string())
}

fn labels(dataset: &dyn Dataset) -> Vec<usize> {
    (0..dataset.len()).map(|index| dataset.label(index)).collect()
}

/// The tables above the folder that was named were not copied, so the copy could not be read.
#[test]
fn tables_above_the_data_are_staged() {
    let (root, scratch) = (kaggle(), tempfile::tempdir().unwrap());
    for given in ["", "ILSVRC", "ILSVRC/Data/CLS-LOC"] {
        let given = root.path().join(given);
        let stage = Stage::new(&given, scratch.path()).unwrap();
        let copied = || stage.make(&mut |_| ()).unwrap().copied.is_some();
        let classes = || opened(&stage.root()).unwrap().classes;
        assert!(copied() && !copied());
        let (data, copy) = (opened(&given).unwrap(), opened(&stage.root()).unwrap());
        assert_eq!((copy.classes, labels(copy.validation.as_ref())), (data.classes, labels(data.validation.as_ref())));
        // A table that changes, or a copy of it that is gone, makes another copy.
        write(root.path(), "LOC_synset_mapping.txt", &NAMES.replace("tench", "Tinca"));
        assert!(copied() && !copied());
        assert_eq!(classes()[0], "n01440764 Tinca");
        let table = stage.root().parent().unwrap().join("LOC_val_solution.csv");
        if table.is_file() {
            fs::remove_file(&table).unwrap();
            assert!(copied() && table.is_file());
        }
        write(root.path(), "LOC_synset_mapping.txt", NAMES);
        assert!(copied() && classes()[0] == "n01440764 tench");
    }
}
