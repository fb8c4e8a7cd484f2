//! Manifests: which columns count, classes, parts, and errors that name the line.

use std::fs;
use std::path::Path;

use enmasse_data::Dataset;
use enmasse_datasets::{DataLayout, Folder, OpenData, OpenOptions, SplitKind, TaskKind, folder_of, open, open_whole};
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
    check("m.csv", b"path,label,class\na.jpg,1,2\n", "it has several columns for the label of an image (label, class)");
    check("m.csv", b"path,label\n", "it has no rows below");
    check("m.csv", b"path,label\na.jpg,x\nb.jpg\n", "line 3: it has 1 fields, and the first line names 2 columns");
    check("m.csv", b"path,label\na.jpg,x\nb.jpg,\xFF\n", "line 3: it is not valid UTF-8");
    check("m.csv", b"path,label\na.jpg,x\nb.jpg,\n", "line 3: b.jpg: it has no label");
    check("m.csv", b"path,label\n,x\n", "line 2: it names no image");
    check("m.csv", b"path,label\nz.jpg,x\n", "line 2: there is no ");
    check("m.csv", b"path,label,split\na.jpg,x,fold0\n", "line 2: its split is \"fold0\", which is none of train, val");
    check("m.csv", b"path,label,split\na.jpg,x,val\n", "its column \"split\" has no rows for training");
    check(
        "m.csv",
        b"path,label\na.jpg,x\nb.jpg,0.5\n",
        "line 3: b.jpg: its label is 0.5, a number, and others are classes",
    );
    let twice = b"path,label\na.jpg,x\nb.jpg,x\na.jpg,y\n";
    check(
        "m.csv",
        twice,
        "line 4: a.jpg is of the class \"y\", and of \"x\" in line 2; `task = multi-label` takes both",
    );
    check("m.jsonl", b"", "line 1: it is not JSON: EOF");
    check("m.jsonl", b"[1]", "line 1: it is not a JSON object");
    check("m.jsonl", b"{\"path\": \"a.jpg\", \"label\": 1}\n{", "line 2: it is not JSON");
    check("m.jsonl", b"{\"path\": \"a.jpg\", \"label\": null}", "line 1: a.jpg has no label");
    let column = OpenOptions { label_column: Some("kind".into()), ..OpenOptions::default() };
    let root = folder("m.csv", b"path,label\na.jpg,x\n");
    let error = opened(&root.path().join("m.csv"), column).err().unwrap();
    assert!(error.ends_with("it has no column \"kind\"; its columns are path, label"), "{error}");
    // Quotes that never end are one row of too few fields.
    check("m.csv", b"path,label\n\"a.jpg,x\nb.jpg,y\n", "line 2: it has 1 fields");
}

/// The task, the names, and all targets, training part first.
fn targets(name: &str, text: &str, options: OpenOptions) -> Result<(TaskKind, String, Vec<Vec<f32>>), String> {
    let root = folder(name, text.as_bytes());
    let data = opened(&root.path().join(name), options)?;
    let parts = [Some(&data.train), Some(&data.validation), data.test.as_ref()];
    let all = parts.into_iter().flatten().flat_map(|part| (0..part.len()).map(move |index| (part, index)));
    let values = all.map(|(part, index)| {
        assert!(data.task == TaskKind::Classification || part.label(index) == 0);
        part.targets(index)
    });
    let values = values.collect();
    assert_eq!(data.split.unwrap().train.classes(), data.classes);
    Ok((data.task, data.classes.join(","), values))
}

#[test]
fn labels_and_numbers_of_an_image() {
    let check = |name: &str, text: &str, options: &OpenOptions, task: TaskKind, names: &str, expected: &[&[f32]]| {
        let expected = expected.iter().map(|values| values.to_vec()).collect();
        assert_eq!(targets(name, text, options.clone()), Ok((task, names.to_owned(), expected)), "{text}");
    };
    let default = OpenOptions::default();
    let asked = |task: TaskKind| OpenOptions { task: Some(task), ..OpenOptions::default() };
    let columns = |names: &str| OpenOptions { label_column: Some(names.to_owned()), ..OpenOptions::default() };
    let (both, cat, none): (&[f32], &[f32], &[f32]) = (&[1.0, 1.0], &[1.0, 0.0], &[0.0, 0.0]);
    let labels = "path,labels,split\na.jpg,dog|cat,train\nb.jpg,cat,train\nc.jpg,,val\n";
    check("m.csv", labels, &default, TaskKind::MultiLabel, "cat,dog", &[both, cat, none]);
    let lists = r#"{"path": "a.jpg", "label": ["dog", "cat"], "split": "train"}
{"path": "b.jpg", "label": "cat", "split": "train"}
{"path": "c.jpg", "label": [], "split": "val"}"#;
    check("m.jsonl", lists, &default, TaskKind::MultiLabel, "cat,dog", &[both, cat, none]);
    let zeros = "id,path,split,cat,dog\n1,a.jpg,train,1,1\n2,b.jpg,train,1,0\n3,c.jpg,val,0,0\n";
    check("m.csv", zeros, &default, TaskKind::MultiLabel, "cat,dog", &[both, cat, none]);
    check("m.csv", zeros, &columns("dog, cat"), TaskKind::MultiLabel, "dog,cat", &[both, &[0.0, 1.0], none]);
    let planet = "image,tags,split\na.jpg,dog cat,train\nb.jpg,cat,train\nc.jpg,,val\n";
    check("m.csv", planet, &asked(TaskKind::MultiLabel), TaskKind::MultiLabel, "cat,dog", &[both, cat, none]);
    // Rows of one image are one.
    let rows = "path,label,split\na.jpg,dog,train\nb.jpg,cat,train\na.jpg,cat,train\nc.jpg,cat,val\n";
    check("m.csv", rows, &asked(TaskKind::MultiLabel), TaskKind::MultiLabel, "cat,dog", &[both, cat, cat]);
    let numbers = "path,label,split\na.jpg,0.5,train\nb.jpg,-3,train\nc.jpg,1e2,test\n";
    check("m.csv", numbers, &default, TaskKind::Regression, "label", &[&[0.5], &[-3.0], &[100.0]]);
    let ages = "path,age,split\na.jpg,7,train\nb.jpg,8,train\nc.jpg,9,test\n";
    check("m.csv", ages, &asked(TaskKind::Regression), TaskKind::Regression, "age", &[&[7.0], &[8.0], &[9.0]]);
    let points = "path,x,y pos,split\na.jpg,7,0.5,train\nb.jpg,8,1,train\nc.jpg,9,2,test\n";
    let expected: &[&[f32]] = &[&[7.0, 0.5], &[8.0, 1.0], &[9.0, 2.0]];
    check("m.csv", points, &columns("x,y_pos"), TaskKind::Regression, "x,y pos", expected);
    // A name with a comma is a column's.
    let comma = "path,\"a,b\",split\na.jpg,7.5,train\nb.jpg,8,train\nc.jpg,9,test\n";
    check("m.csv", comma, &columns("a,b"), TaskKind::Regression, "a,b", &[&[7.5], &[8.0], &[9.0]]);
    // One class each.
    let one = "path,label,split\na.jpg,dog,train\nb.jpg,cat,train\nc.jpg,cat,val\n";
    check("m.csv", one, &asked(TaskKind::MultiLabel), TaskKind::MultiLabel, "cat,dog", &[&[0.0, 1.0], cat, cat]);
}

/// Kaggle's tables have a column for each class, of which one has a 1.
#[test]
fn single_ones_are_classes() {
    let text = "image_path,healthy,rust,split\na.jpg,1,0,train\nb.jpg,0,1,train\nc.jpg,0,1,val\n";
    let classes = ["healthy", "rust"];
    check("m.csv", text, OpenOptions::default(), &classes, &[("a.jpg", 0), ("b.jpg", 1)], &[("c.jpg", 1)]);
    let root = folder("m.csv", text.as_bytes());
    let open = |task| opened(&root.path().join("m.csv"), OpenOptions { task, ..OpenOptions::default() }).unwrap();
    let warning =
        "each row has a 1 in one of 2 columns, which are taken for classes; say it by `task = classification`";
    let warnings = open(None).warnings;
    assert!(warnings[0].to_string().contains(warning), "{warnings:?}");
    assert_eq!(open(Some(TaskKind::Classification)).warnings, []);
    let labels = open(Some(TaskKind::MultiLabel));
    assert_eq!(
        (labels.task, labels.train.targets(1), labels.warnings),
        (TaskKind::MultiLabel, vec![0.0, 1.0], Vec::new())
    );
}

/// The lists that a run keeps say as much as the table.
#[test]
fn records_have_labels_and_numbers() {
    let check = |text: &str, task: &str, train: serde_json::Value| {
        let root = folder("m.csv", text.as_bytes());
        let record = serde_json::to_value(opened(&root.path().join("m.csv"), OpenOptions::default()).unwrap().split);
        let record = record.unwrap();
        assert_eq!([&record["task"], &record["train_targets"]], [&serde_json::json!(task), &train]);
        assert!(record.get("train_labels").is_none(), "{record}");
        let strings = |key: &str| serde_json::from_value::<Vec<String>>(record[key].clone()).unwrap();
        let (files, classes) = (strings("train"), strings("classes"));
        let lists: Vec<Vec<f32>> = serde_json::from_value(train).unwrap();
        let task = task.parse().unwrap();
        let again = Folder::from_targets(root.path(), task, classes.clone(), files.clone(), &lists).unwrap();
        let data = opened(&root.path().join("m.csv"), OpenOptions::default()).unwrap();
        let all = |part: &dyn Dataset| (0..part.len()).map(|index| part.targets(index)).collect::<Vec<_>>();
        assert_eq!(all(&again), all(data.train.as_ref()));
        let error = Folder::from_targets(root.path(), task, classes, files, &lists[1..]).unwrap_err();
        assert!(error.to_string().contains("the list of its files has 2 entries, and that of"), "{error}");
    };
    let labels = "path,labels,split\na.jpg,dog|cat,train\nb.jpg,,train\nc.jpg,cat,val\n";
    check(labels, "multi-label", serde_json::json!([[0, 1], []]));
    let numbers = "path,label,split\na.jpg,0.5,train\nb.jpg,3,train\nc.jpg,4,val\n";
    check(numbers, "regression", serde_json::json!([[0.5], [3.0]]));
    let root = Path::new("/");
    let of = |values: &[f32]| {
        let classes = vec!["x".to_owned(), "y".to_owned()];
        let files = vec!["a.jpg".to_owned()];
        Folder::from_targets(root, TaskKind::MultiLabel, classes, files, &[values.to_vec()])
            .map_err(|error| error.to_string())
    };
    for label in [2.0, -1.0, 0.5, f32::NAN] {
        assert_eq!(of(&[label]).err(), Some(format!("/a.jpg: its label {label} is not among the 2 listed ones")));
    }
}

#[test]
fn tasks_that_tables_cannot_have() {
    let check = |name: &str, text: &str, task: Option<TaskKind>, expected: &str| {
        let error = targets(name, text, OpenOptions { task, ..OpenOptions::default() }).unwrap_err();
        assert!(error.contains(&format!("{name}: {expected}")) && !error.contains('\n'), "{error}");
    };
    let several = "path,labels\na.jpg,dog\nb.jpg,x\na.jpg,cat\n";
    check(
        "m.csv",
        several,
        None,
        "line 4: a.jpg is of the class \"cat\", and of \"dog\" in line 2; `task = multi-label`",
    );
    let other = "path,label\na.jpg,0.5\na.jpg,1\n";
    check("m.csv", other, None, "line 3: a.jpg has other numbers in line 2; list each image once");
    let list = "{\"path\": \"a.jpg\", \"label\": [\"x\", \"y\"]}";
    check("m.jsonl", list, Some(TaskKind::Classification), "line 1: a.jpg: it has a list of labels, not one class");
    check(
        "m.jsonl",
        "{\"path\": \"a.jpg\", \"label\": [[1]]}",
        None,
        "line 1: a.jpg has a label that is no text, number",
    );
    let kinds = "path,kind,more\na.jpg,1,0\nb.jpg,cat,1\n";
    check(
        "m.csv",
        kinds,
        None,
        "line 3: b.jpg has \"cat\" in the column kind, neither 0 nor 1, and none of its columns",
    );
    check("m.csv", "path,kind\na.jpg,1\n", None, "none of its columns (path, kind) is called label, class, target, ");
    check("m.csv", kinds, Some(TaskKind::Regression), "none of its columns (path, kind, more) is called label, ");
    check("m.csv", "path,label\na.jpg,dog\n", Some(TaskKind::Regression), "line 2: a.jpg: it has \"dog\" instead of a");
    let root = folder("x", b"");
    fs::create_dir(root.path().join("cat")).unwrap();
    fs::create_dir(root.path().join("dog")).unwrap();
    for path in ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"] {
        fs::write(root.path().join(path), b"").unwrap();
    }
    let options = OpenOptions { task: Some(TaskKind::MultiLabel), val_fraction: 0.5, ..OpenOptions::default() };
    let error = opened(root.path(), options).err().unwrap();
    let expected = "it has one class of each image, not labels as `task = multi-label` asks for; name a table of images \
                    (.csv, .tsv, .jsonl, .parquet) that has them";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn labels_and_numbers_are_split() {
    let open = |rows: &str, split: SplitKind| {
        let root = folder("m.csv", rows.as_bytes());
        fs::write(root.path().join("0.jpg"), b"").unwrap();
        opened(&root.path().join("m.csv"), OpenOptions { split, ..OpenOptions::default() })
    };
    let labels: String = (0..40).map(|i| format!("{i}.jpg,{}\n", ["x|y", "x", ""][i % 3])).collect();
    let data = open(&format!("path,labels\n{labels}"), SplitKind::Seeded).unwrap();
    let count =
        |part: &dyn Dataset, label: usize| (0..part.len()).filter(|&index| part.targets(index)[label] == 1.0).count();
    let validation = data.validation.as_ref();
    assert_eq!((data.train.len(), validation.len(), data.has_parts), (32, 8, false));
    assert_eq!([count(validation, 0), count(validation, 1)], [5, 3]);
    let numbers: String = (0..20).map(|i| format!("{i}.jpg,{i}.5\n")).collect();
    let data = open(&format!("path,label\n{numbers}"), SplitKind::Seeded).unwrap();
    assert_eq!((data.task, data.train.len(), data.validation.len()), (TaskKind::Regression, 16, 4));
    let error = open(&format!("path,label\n{numbers}"), SplitKind::Python).err().unwrap();
    assert!(error.ends_with("`split = python` is one of classes, and the data have numbers; leave it out"), "{error}");
    let error = open("path,label\n0.jpg,0.5\n1.jpg,1.5\n", SplitKind::Seeded).err().unwrap();
    assert!(
        error.ends_with(
            "too few images to hold out 0.2 of them for validation; add images, or a validation part of its own"
        ),
        "{error}"
    );
}
