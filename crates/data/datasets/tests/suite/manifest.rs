//! Manifests: which columns count, classes, parts, and errors that name the line.

use std::fs;
use std::path::Path;

use enmasse_data::Dataset;
use enmasse_datasets::{DataLayout, OpenData, OpenOptions, folder_of, open, open_whole};
use tempfile::{TempDir, tempdir};

/// A folder with the manifest `name` and the image `a.jpg`.
fn folder(name: &str, text: &[u8]) -> TempDir {
    let root = tempdir().unwrap();
    fs::write(root.path().join(name), text).unwrap();
    fs::write(root.path().join("a.jpg"), b"").unwrap();
    root
}

fn opened(path: &Path, options: OpenOptions) -> Result<OpenData, String> {
    open(path, &options).map_err(|error| error.to_string())
}

fn samples(root: &Path, dataset: &dyn Dataset) -> Vec<(String, usize)> {
    let relative = |index| dataset.name(index).strip_prefix(&format!("{}/", root.display())).unwrap().to_owned();
    (0..dataset.len()).map(|index| (relative(index), dataset.label(index))).collect()
}

/// All samples, training part first, and the classes.
fn check(
    name: &str,
    text: &str,
    options: OpenOptions,
    classes: &[&str],
    train: &[(&str, usize)],
    val: &[(&str, usize)],
) {
    let root = folder(name, text.as_bytes());
    let data = opened(&root.path().join(name), options).unwrap();
    let own =
        |part: &[(&str, usize)]| part.iter().map(|(path, label)| ((*path).to_owned(), *label)).collect::<Vec<_>>();
    assert_eq!(data.classes, classes, "{text}");
    assert_eq!(samples(root.path(), data.train.as_ref()), own(train), "{text}");
    assert_eq!(samples(root.path(), data.validation.as_ref()), own(val), "{text}");
    assert_eq!((data.layout, data.has_parts), (DataLayout::Manifest, true));
}

#[test]
fn columns_under_their_usual_names() {
    let default = OpenOptions::default;
    let train = [("a.jpg", 1), ("b/c.png", 0)];
    let val = [("d.jpg", 0), ("e, f.jpg", 1)];
    let all =
        |text: &str| text.to_owned() + "a.jpg,dog,train\nb/c.png,cat,train\nd.jpg,cat,val\n\"e, f.jpg\",dog,val\n";
    for header in ["path,label,split", "File Name,Class,SET", "image_path,category,subset", "\u{FEFF}img,target,part"] {
        check("m.csv", &all(&format!("{header}\n")), default(), &["cat", "dog"], &train, &val);
    }
    let other = |character: &str| {
        all("path,label,split\n").replace("e, f", "e; f").replace(',', character).replace("e; f", "e, f")
    };
    check("m.csv", &other(";"), default(), &["cat", "dog"], &train, &val);
    check("m.tsv", &other("\t"), default(), &["cat", "dog"], &train, &val);
    let lines = r#"{"file_name": "a.jpg", "label": "dog", "split": "Training", "more": [1]}
{"file_name": "b/c.png", "label": "cat", "split": "train"}

{"file_name": "d.jpg", "label": "cat", "split": "dev"}
{"label": "dog", "split": "valid", "file_name": "e, f.jpg"}"#;
    check("m.jsonl", lines, default(), &["cat", "dog"], &train, &val);
    // Test rows validate only if no others do.
    let with_test = all("path,label,split\n") + "g.jpg,dog,test\n";
    check("m.csv", &with_test, default(), &["cat", "dog"], &train, &val);
    check(
        "m.csv",
        &with_test.replace(",val", ",test"),
        default(),
        &["cat", "dog"],
        &train,
        &[val[0], val[1], ("g.jpg", 1)],
    );
    // The user's choice, of which letters' case and blanks do not matter.
    let chosen = OpenOptions { path_column: Some("Photo".into()), label_column: Some("kind".into()), ..default() };
    let text = "photo,label,kind,split\na.jpg,1,x,train\nd.jpg,2,y,test\n";
    check("m.csv", text, chosen, &["x", "y"], &[("a.jpg", 0)], &[("d.jpg", 1)]);
}

/// Regression test: rows for tests beside those for validation were not opened.
#[test]
fn a_test_part_beside_validation_was_ignored() {
    let rows = "path,label,split\na.jpg,x,train\nb.jpg,y,train\nc.jpg,x,val\nd.jpg,y,test\ne.jpg,x,testing\n";
    let root = folder("m.csv", rows.as_bytes());
    let data = opened(&root.path().join("m.csv"), OpenOptions::default()).unwrap();
    let test = data.test.unwrap();
    assert_eq!(samples(root.path(), test.as_ref()), [("d.jpg".to_owned(), 1), ("e.jpg".to_owned(), 0)]);
    assert_eq!((data.validation.len(), data.warnings), (1, Vec::new()));
    let record = serde_json::to_value(data.split.unwrap()).unwrap();
    assert_eq!(
        [&record["test"], &record["test_labels"]],
        [&serde_json::json!(["d.jpg", "e.jpg"]), &serde_json::json!([1, 0])]
    );
    let other = folder("m.csv", rows.replace("y,test", "z,test").as_bytes());
    let error = opened(&other.path().join("m.csv"), OpenOptions::default()).err().unwrap();
    assert!(error.ends_with("d.jpg: the class \"z\" is in the test part but not in the training part"), "{error}");
}

/// Labels that are numbers are sorted as numbers.
#[test]
fn classes_are_sorted() {
    let numbers = "path,label,split\na.jpg,10,train\nb.jpg,9,train\nc.jpg,10,val\n";
    check("m.csv", numbers, OpenOptions::default(), &["9", "10"], &[("a.jpg", 1), ("b.jpg", 0)], &[("c.jpg", 1)]);
    let lines = "{\"path\": \"a.jpg\", \"label\": 10, \"split\": \"train\"}\n{\"path\": \"b.jpg\", \"label\": -1, \"split\": \"val\"}";
    check("m.jsonl", lines, OpenOptions::default(), &["-1", "10"], &[("a.jpg", 1)], &[("b.jpg", 0)]);
    let mixed = "path,label,split\na.jpg,10,train\nb.jpg,9a,val\n";
    check("m.csv", mixed, OpenOptions::default(), &["10", "9a"], &[("a.jpg", 0)], &[("b.jpg", 1)]);
}

#[test]
fn a_part_is_drawn_where_none_is_named() {
    let rows: String = (0..10).map(|i| format!("{i}.jpg,{}\n", ["x", "y"][i % 2])).collect();
    let root = folder("m.csv", format!("path,label\n{rows}").as_bytes());
    let manifest = root.path().join("m.csv");
    let elsewhere = tempdir().unwrap();
    let options = OpenOptions { manifest_root: Some(elsewhere.path().to_owned()), ..OpenOptions::default() };
    let error = opened(&manifest, options.clone()).err().unwrap();
    assert!(error.contains("m.csv: line 2: there is no ") && error.contains("or from `manifest_root`"), "{error}");
    fs::write(elsewhere.path().join("0.jpg"), b"").unwrap();
    let data = opened(&manifest, options.clone()).unwrap();
    assert_eq!((data.train.len(), data.validation.len(), data.has_parts), (8, 2, false));
    assert_eq!(folder_of(&manifest, &options), elsewhere.path());
    assert_eq!(folder_of(&manifest, &OpenOptions::default()), root.path());
    let whole = open_whole(&manifest, &options).unwrap();
    assert_eq!((whole.dataset.len(), whole.is_held_out), (10, false));
    let record = serde_json::to_value(data.split.unwrap()).unwrap();
    assert_eq!(record["validation_labels"], serde_json::json!([0, 1]));
}

#[test]
fn problems_name_file_and_line() {
    let check = |name: &str, text: &[u8], expected: &str| {
        let root = folder(name, text);
        let error = opened(&root.path().join(name), OpenOptions::default()).err().expect("an error");
        assert!(error.contains(&format!("{name}: {expected}")) && !error.contains('\n'), "{error}");
    };
    check("m.csv", b"", "none of its columns () is called path, file, filename, file_name or alike");
    check("m.csv", b"a.jpg,dog\nb.jpg,cat\n", "none of its columns (a.jpg, dog) is called path, ");
    check(
        "m.csv",
        b"image,MEL,NV\na.jpg,1,0\n",
        "none of its columns (image, MEL, NV) is called label, class, target, ",
    );
    check("m.csv", b"path,label,class\na.jpg,1,2\n", "it has several columns for the label of an image (label, class)");
    check("m.csv", b"path,label\n", "it has no rows below");
    check("m.csv", b"path,label\na.jpg,x\nb.jpg\n", "line 3: it has 1 fields, and the first line names 2 columns");
    check("m.csv", b"path,label\na.jpg,x\nb.jpg,\xFF\n", "line 3: it is not valid UTF-8");
    check("m.csv", b"path,label\na.jpg,x\nb.jpg,\n", "line 3: b.jpg has no label");
    check("m.csv", b"path,label\n,x\n", "line 2: it names no image");
    check("m.csv", b"path,label\nz.jpg,x\n", "line 2: there is no ");
    check("m.csv", b"path,label,split\na.jpg,x,fold0\n", "line 2: its split is \"fold0\", which is none of train, val");
    check("m.csv", b"path,label,split\na.jpg,x,val\n", "its column \"split\" has no rows for training");
    check(
        "m.csv",
        b"path,label\na.jpg,0\nb.jpg,0.5\n",
        "line 3: its label is 0.5: numbers as targets are not supported",
    );
    let twice = b"path,label\na.jpg,x\nb.jpg,x\na.jpg,y\n";
    check("m.csv", twice, "line 4: a.jpg is of the class \"y\", and of \"x\" in line 2: several labels of an image");
    check("m.jsonl", b"", "line 1: it is not JSON: EOF");
    check("m.jsonl", b"[1]", "line 1: it is not a JSON object");
    check("m.jsonl", b"{\"path\": \"a.jpg\", \"label\": 1}\n{", "line 2: it is not JSON");
    let list = b"{\"path\": \"a.jpg\", \"label\": [1, 2]}";
    check("m.jsonl", list, "line 1: a.jpg has a list of labels: several labels of an image are not supported");
    check("m.jsonl", b"{\"path\": \"a.jpg\", \"label\": null}", "line 1: a.jpg has no label");
    let column = OpenOptions { label_column: Some("kind".into()), ..OpenOptions::default() };
    let root = folder("m.csv", b"path,label\na.jpg,x\n");
    let error = opened(&root.path().join("m.csv"), column).err().unwrap();
    assert!(error.ends_with("it has no column \"kind\"; its columns are path, label"), "{error}");
    // Quotes that never end are one row of too few fields.
    check("m.csv", b"path,label\n\"a.jpg,x\nb.jpg,y\n", "line 2: it has 1 fields");
}
