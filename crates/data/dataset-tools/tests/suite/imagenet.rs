//! A copy of ImageNet in Kaggle's layout, with the tables above its folder.

use std::fs;

use enmasse_dataset_tools::Stage;

use crate::kaggle::{NAMES, kaggle, labels, opened, write};

/// The tables above the folder that was named were not copied, so the copy could not be read.
#[test]
fn tables_above_the_data_are_staged() {
    let root = kaggle();
    let scratch = tempfile::tempdir().unwrap();
    for given in ["", "ILSVRC", "ILSVRC/Data/CLS-LOC"] {
        let given = root.path().join(given);
        let stage = Stage::new(&given, scratch.path()).unwrap();
        let copied = || stage.make(&mut |_| ()).unwrap().copied.is_some();
        let classes = || opened(&stage.root()).unwrap().classes;
        assert!(copied() && !copied());
        let data = opened(&given).unwrap();
        let copy = opened(&stage.root()).unwrap();
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
