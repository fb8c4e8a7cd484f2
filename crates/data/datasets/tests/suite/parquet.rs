//! Images in Parquet files: those that pyarrow writes in every form that is read, parts, labels, and files that are damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::Dataset;
use enmasse_datasets::{DataLayout, OpenData, OpenOptions, TaskKind, WholeData, open, open_whole};
use enmasse_image::Image;
use tempfile::{TempDir, tempdir};

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from("tests/fixtures").join(format!("parquet.{name}.parquet"))
}

/// Image `i` of the fixtures.
fn image(i: usize) -> Image {
    Image::new(8, 8, (0..8 * 8 * 3).map(|j| ((31 * i + 7 * j) % 251) as u8).collect()).unwrap()
}

fn whole(path: &Path, options: &OpenOptions) -> Result<WholeData, String> {
    open_whole(path, options).map_err(|error| error.to_string())
}

/// A folder with fixtures under these names.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = tempdir().unwrap();
    for (name, from) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(fixture(from), path).unwrap();
    }
    root
}

/// The classes in their order: those of the file's metadata, or sorted ones.
#[test]
fn every_form_of_file() {
    let check = |name: &str, options: OpenOptions, classes: &[&str], label: fn(usize) -> usize| {
        let WholeData { dataset: data, classes: found, .. } = whole(&fixture(name), &options).unwrap();
        let classes: Vec<String> = classes.iter().map(|&class| class.to_owned()).collect();
        assert_eq!((data.len(), found), (20, classes), "{name}");
        let mut bytes = Vec::new();
        // The last rows first: no page was read before.
        for i in (0..20).rev().chain(0..20) {
            assert_eq!((data.read(i).unwrap(), data.label(i)), (image(i), label(i)), "{name} {i}");
            assert!(data.locality().unwrap().read_file(i, &mut bytes).unwrap() && bytes.starts_with(b"\x89PNG"));
            assert_eq!(data.name(i), format!("{}/{i}", fixture(name).display()));
        }
        assert!(data.locality().unwrap().reading_bytes() > 8 * 8 * 3 && data.locality().unwrap().kept_bytes() > 1000);
        assert_eq!(data.locality().unwrap().blocks().unwrap().iter().sum::<usize>(), 20);
    };
    let default = OpenOptions::default;
    let named = ["cat", "bird", "dog"];
    check("snappy", default(), &named, |i| i % 3);
    check("gzip", default(), &named, |i| i % 3);
    check("version-2", default(), &named, |i| i % 3);
    check("none", default(), &["0", "1", "2"], |i| i % 3);
    check("zstd", default(), &["bird", "cat", "dog"], |i| [1, 0, 2][i % 3]);
    let coarse =
        OpenOptions { path_column: Some("img".to_owned()), label_column: Some("coarse_label".to_owned()), ..default() };
    check("none", coarse, &["0", "1", "2"], |i| i % 3);
    let caption = OpenOptions { label_column: Some("Caption".to_owned()), ..default() };
    check("zstd", caption, &["bird", "cat", "dog"], |i| [1, 0, 2][i % 3]);
}

#[test]
fn files_by_folders_patterns_and_parts() {
    let check = |files: &[(&str, &str)], given: &str, expected: [usize; 3], has_parts: bool| {
        let root = folder(files);
        let data = open(&root.path().join(given), &OpenOptions::default()).map_err(|error| error.to_string()).unwrap();
        let OpenData { train, validation, test, layout, .. } = &data;
        assert_eq!(
            ([train.len(), validation.len(), test.as_ref().map_or(0, |test| test.len())], data.has_parts, *layout),
            (expected, has_parts, DataLayout::Parquet),
            "{given}"
        );
        let read = |part: &Arc<dyn Dataset>| {
            (0..part.len()).map(|i| (part.label(i), part.read(i).unwrap())).collect::<Vec<_>>()
        };
        let all = read(train).into_iter().chain(read(validation)).chain(test.iter().flat_map(read));
        assert!(all.into_iter().all(|(label, own)| (0..20).any(|i| i % 3 == label && image(i) == own)));
    };
    let parts = [
        ("data/train-00000-of-00002.parquet", "snappy"),
        ("data/train-00001-of-00002.parquet", "gzip"),
        ("data/validation-00000-of-00001.parquet", "version-2"),
        ("data/test-00000-of-00001.parquet", "unlabelled"),
    ];
    check(&parts, "", [40, 20, 0], true);
    check(&parts, "data", [40, 20, 0], true);
    check(&parts, "data/train-*.parquet", [34, 6, 0], false);
    check(&parts, "data/{train,validation}-*.parquet", [40, 20, 0], true);
    check(&parts, "data/train-00000-of-00002.parquet", [17, 3, 0], false);
    // A test part without labels is left alone, one with labels validates.
    check(&[parts[0], parts[3]], "", [17, 3, 0], false);
    check(&[parts[0], ("data/test-0.parquet", "gzip")], "", [20, 20, 0], true);
    check(&[("default/train/0000.parquet", "gzip"), ("default/val/0000.parquet", "gzip")], "", [20, 20, 0], true);
    // Regression test: files for tests beside those for validation were not opened.
    let test = ("data/test-00000-of-00001.parquet", "gzip");
    check(&[parts[0], parts[2], test], "", [20, 20, 20], true);
    check(&[parts[0], parts[2], test], "data/*.parquet", [20, 20, 20], true);
}

#[test]
fn problems_are_named() {
    let check = |name: &str, options: OpenOptions, expected: &str| {
        let error = whole(&fixture(name), &options).err().unwrap();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    let column = |label: &str| OpenOptions { label_column: Some(label.to_owned()), ..OpenOptions::default() };
    let images = |path: &str| OpenOptions { path_column: Some(path.to_owned()), ..OpenOptions::default() };
    check("unlabelled", OpenOptions::default(), "parquet.unlabelled.parquet/0: the row has no label");
    check("null-label", OpenOptions::default(), "parquet.null-label.parquet/2: the row has no label");
    check("brotli", OpenOptions::default(), "it is compressed by Brotli; write it again with Snappy");
    check("snappy", column("class"), "it has no column \"class\"; its columns are label");
    check(
        "snappy",
        images("label"),
        "it has no column \"label\" with images' bytes; its columns are image.bytes, image.path, label",
    );
    let mixed = folder(&[("a.parquet", "snappy"), ("b.parquet", "zstd")]);
    let error = whole(mixed.path(), &OpenOptions::default()).err().unwrap();
    assert!(error.ends_with("b.parquet: its classes have other names than those of the files before it"), "{error}");
}

/// A row without an image, or a page that is not read, is an unreadable sample, and others are read.
#[test]
fn rows_that_cannot_be_read() {
    let data = whole(&fixture("nulls"), &OpenOptions::default()).unwrap().dataset;
    for (i, expected) in [Err(()), Err(()), Ok(image(2)), Ok(image(3))].into_iter().enumerate() {
        let found = data.read(i).map_err(|error| {
            assert!(error.is_unreadable());
            assert_eq!(error.to_string(), format!("{}/{i}: the row has no image's bytes", fixture("nulls").display()));
        });
        assert_eq!(found, expected);
    }
    let data = whole(&fixture("delta"), &OpenOptions::default()).unwrap().dataset;
    let error = data.read(0).unwrap_err();
    assert!(error.is_unreadable() && error.to_string().contains("in an encoding that is not read"), "{error}");
}

/// A file that ends anywhere, and one of which a byte is another: errors of one line, or images.
#[test]
fn damaged_files() {
    let root = tempdir().unwrap();
    let path = root.path().join("a.parquet");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        match whole(&path, &OpenOptions::default()) {
            Ok(WholeData { dataset: data, classes, .. }) => {
                for i in 0..data.len() {
                    assert!(data.label(i) < classes.len());
                    if let Err(error) = data.read(i) {
                        assert!(error.is_unreadable() && !error.to_string().contains('\n'), "{error}");
                    }
                }
                None
            }
            Err(error) => {
                assert!(!error.contains('\n'), "{error}");
                Some(error)
            }
        }
    };
    for name in ["snappy", "none", "zstd", "version-2"] {
        let good = fs::read(fixture(name)).unwrap();
        assert_eq!(read(&good), None);
        for end in (0..good.len()).step_by(29) {
            let error = read(&good[..end]).unwrap();
            let known =
                ["is too short", "it lacks its end: truncated, or still being written", "it is no Parquet file"];
            assert!(known.iter().any(|known| error.contains(known)), "{error}");
        }
        let mut bytes = good.clone();
        for (place, &byte) in good.iter().enumerate().step_by(5) {
            bytes[place] = [byte ^ 1, byte ^ 0x80, !byte][place % 3];
            read(&bytes);
            bytes[place] = byte;
        }
    }
    let mut encrypted = fs::read(fixture("none")).unwrap();
    encrypted[3] = b'E';
    assert!(read(&encrypted).unwrap().ends_with("it is encrypted"));
    // Cut short after it was opened.
    fs::copy(fixture("none"), &path).unwrap();
    let data = whole(&path, &OpenOptions::default()).unwrap().dataset;
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(data.read(0).unwrap_err().is_unreadable());
}

/// What is known of the images, which are read as those of classes.
#[test]
fn lists_and_numbers() {
    let asked = |task| OpenOptions { task, ..OpenOptions::default() };
    let check = |name: &str, task: Option<TaskKind>, classes: &[&str], targets: &dyn Fn(usize) -> Vec<f32>| {
        let data = whole(&fixture(name), &asked(task)).unwrap();
        assert_eq!(data.classes, classes, "{name}");
        assert_eq!(
            data.task,
            if name == "score" || name == "age" { TaskKind::Regression } else { TaskKind::MultiLabel }
        );
        for index in 0..data.dataset.len() {
            assert_eq!((data.dataset.targets(index), data.dataset.label(index)), (targets(index), 0), "{name} {index}");
        }
        assert_eq!(data.dataset.read(1).unwrap(), image(1));
    };
    let bits = |order: [usize; 3]| move |index: usize| order.map(|bit| (index >> bit & 1) as f32).to_vec();
    check("labels", None, &["cat", "bird", "dog"], &bits([0, 1, 2]));
    check("tags", None, &["bird", "cat", "dog"], &bits([1, 0, 2]));
    check("plain-tags", Some(TaskKind::MultiLabel), &["bird", "cat", "dog"], &bits([1, 0, 2]));
    let one = |index: usize| (0..3).map(|label| f32::from(u8::from(index % 3 == label))).collect();
    check("snappy", Some(TaskKind::MultiLabel), &["cat", "bird", "dog"], &one);
    check("score", None, &["score"], &|index| vec![index as f32 / 4.0 - 1.0]);
    check("age", Some(TaskKind::Regression), &["age"], &|index| vec![[0.1, 2.0, 3.0, 4.5][index]]);
    let refused = |name: &str, options: &OpenOptions, expected: &str| {
        let error = whole(&fixture(name), options).err().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    refused("null-tags", &asked(None), "null-tags.parquet/1: the row has no label");
    refused("null-tag", &asked(None), "row 1 of a group has a null in its list of labels");
    let boxes = OpenOptions { label_column: Some("boxes.list.element.list.element".to_owned()), ..asked(None) };
    refused("boxes", &boxes, "has lists of lists, and images have one list of labels");
    refused("null-score", &asked(None), "null-score.parquet/1: the row has no label");
    refused(
        "labels",
        &asked(Some(TaskKind::Classification)),
        "it has labels of each image, not one class as `task = c",
    );
    refused("tags", &asked(Some(TaskKind::Classification)), "it has a list of labels, not one class");
    let data = open(&fixture("labels"), &asked(None)).unwrap();
    assert_eq!((data.train.len(), data.validation.len(), data.classes.len()), (16, 4, 3));
}
