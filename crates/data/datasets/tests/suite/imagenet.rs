//! ImageNet in torchvision's and in Kaggle's layout.

use std::fs;
use std::path::Path;

use enmasse_data::Locality;
use enmasse_datasets::{Folder, OpenOptions, folder_of, open_whole};

use crate::kaggle::{NUMBERS, kaggle, labels, opened, write};

#[test]
fn kaggle_s_layout_is_read_in_place() {
    let root = kaggle();
    let below = root.path().join("ILSVRC/Data/CLS-LOC");
    for given in ["", "ILSVRC", "ILSVRC/Data/CLS-LOC"].map(|given| root.path().join(given)) {
        let data = opened(&given).unwrap();
        assert_eq!(data.classes, ["n01440764 tench", "n01443537 goldfish", "n01484850 great white shark"]);
        assert_eq!(
            (data.folder.as_path(), data.has_parts, data.layout.name()),
            (below.as_path(), true, "ImageNet in Kaggle's layout")
        );
        assert_eq!(
            (labels(data.train.as_ref()), labels(data.validation.as_ref())),
            (vec![0, 0, 1, 1, 2, 2], vec![2, 0, 1])
        );
        assert!(data.validation.name(0).ends_with("CLS-LOC/val/ILSVRC2012_val_00000001.JPEG"));
        assert_eq!(folder_of(&given, &OpenOptions::default()), below);
        // A resumed run reads its lists instead.
        let split = data.split.unwrap();
        let record = serde_json::to_value(&split).unwrap();
        assert_eq!(record["validation_labels"], serde_json::json!([2, 0, 1]));
        let files = split.val.files().map(str::to_owned).collect();
        let again = Folder::from_lists(&below, data.classes, files, Some(split.val.labels().to_vec())).unwrap();
        assert_eq!((again.name(2), labels(&again)), (data.validation.name(2), vec![2, 0, 1]));
        // Other data than a run's own are evaluated on the validation part.
        let whole = open_whole(&given, &OpenOptions::default()).unwrap();
        assert_eq!((whole.dataset.len(), whole.is_held_out), (3, true));
    }
    // Many sort the validation images into folders.
    for (i, number) in [(1, 2), (2, 0), (3, 1)].map(|(i, class)| (i, NUMBERS[class])) {
        let name = format!("ILSVRC2012_val_{i:08}.JPEG");
        fs::create_dir(below.join("val").join(number)).unwrap();
        fs::rename(below.join("val").join(&name), below.join("val").join(number).join(&name)).unwrap();
    }
    let data = opened(root.path()).unwrap();
    assert_eq!((labels(data.validation.as_ref()), data.classes[0].as_str()), (vec![0, 1, 2], "n01440764 tench"));
}

#[test]
fn an_incomplete_copy_of_kaggle_s_is_refused() {
    let check = |spoil: &dyn Fn(&Path), expected: &str| {
        let root = kaggle();
        spoil(root.path());
        let error = opened(root.path()).err().expect("an error");
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    let remove = |name: &'static str| move |root: &Path| fs::remove_file(root.join(name)).unwrap();
    check(&remove("LOC_val_solution.csv"), "CLS-LOC: LOC_val_solution.csv is not in a folder above it");
    check(
        &|root| fs::remove_dir_all(root.join("ILSVRC/Data/CLS-LOC/train/n01443537")).unwrap(),
        "train: this copy is not complete: 1 of the 3 classes in ",
    );
    check(&|root| fs::remove_dir_all(root.join("ILSVRC/Data/CLS-LOC/val")).unwrap(), "cannot read ");
    check(&|root| write(root, "ILSVRC/Data/CLS-LOC/val/another.JPEG", ""), "another.JPEG: ");
    check(&|root| write(root, "LOC_val_solution.csv", "a"), "LOC_val_solution.csv: line 1 has no comma");
    check(
        &|root| write(root, "LOC_val_solution.csv", "a,b\nc,n00000001 1 2"),
        "line 2 has the class \"n00000001\", which is not in ",
    );
    check(
        &|root| write(root, "LOC_synset_mapping.txt", "\ntench"),
        "line 2 does not begin with a class such as n01440764",
    );
    check(&|root| fs::write(root.join("LOC_synset_mapping.txt"), b"n01440764 \xFF").unwrap(), "it is not valid UTF-8");
}

/// A thousand classes named by WordNet's numbers are ImageNet, whose images are counted; fewer are a part of it.
#[test]
fn torchvision_s_layout() {
    let root = tempfile::tempdir().unwrap();
    let make = |classes: std::ops::Range<usize>| {
        for class in classes {
            ["train", "val"].iter().for_each(|part| write(root.path(), &format!("{part}/n{class:08}/1.JPEG"), ""));
        }
    };
    make(0..999);
    assert_eq!(opened(root.path()).unwrap().warnings, []);
    make(999..1000);
    write(root.path(), "LOC_synset_mapping.txt", "n00000999 tench\n");
    let data = opened(root.path()).unwrap();
    let name = root.path().display();
    let expected = [
        format!("{name}: ImageNet has 1,281,167 training images, and this copy has 1,000"),
        format!("{name}: ImageNet has 50,000 validation images, and this copy has 1,000"),
    ];
    assert_eq!(data.warnings.iter().map(|warning| &warning.problem).collect::<Vec<_>>(), expected.each_ref());
    assert_eq!((data.classes[0].as_str(), data.classes[999].as_str()), ("n00000000", "n00000999 tench"));
    let error = open_whole(root.path(), &OpenOptions::default()).err().unwrap().to_string();
    assert!(error.contains("holds train/ and val/; name the one to evaluate, such as "), "{error}");
}
