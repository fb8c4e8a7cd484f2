//! Folders of class folders: which pictures are found, how they are split, and errors.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use enmasse_data::{Dataset, Folder, LeftOut, OpenOptions, Split, SplitKind, list_pictures};
use rustix::fs::{CWD, Mode, mkfifoat};

/// Creates empty files; a path that ends in `/` is a folder.
fn tree(paths: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in paths {
        let full = root.path().join(path);
        if path.ends_with('/') {
            fs::create_dir_all(full).unwrap();
        } else {
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, b"").unwrap();
        }
    }
    root
}

/// Classes `a` and `b` with the given numbers of pictures.
fn classes(a: usize, b: usize) -> tempfile::TempDir {
    let paths: Vec<String> = [("a", a), ("b", b)]
        .iter()
        .flat_map(|&(class, n)| (0..n).map(move |i| format!("{class}/{i:03}.jpg")))
        .collect();
    tree(&paths.iter().map(String::as_str).collect::<Vec<_>>())
}

fn files(folder: &Folder) -> Vec<&str> {
    folder.files().collect()
}

#[test]
fn finds_pictures_in_byte_order() {
    let root = tree(&[
        "zebra/1.PNG",
        "Zoo/b.jpeg",
        "Zoo/a.JPG",
        "Zoo/B.jpg",
        "Zoo/.hidden.jpg",
        "Zoo/notes.txt",
        "Zoo/inner.jpg/",
        ".git/x.jpg",
        "readme.jpg",
    ]);
    let folder = Folder::scan(root.path()).unwrap();
    assert_eq!(folder.classes(), ["Zoo", "zebra"]);
    assert_eq!(files(&folder), ["Zoo/B.jpg", "Zoo/a.JPG", "Zoo/b.jpeg", "zebra/1.PNG"]);
    assert_eq!((0..4).map(|i| folder.label(i)).collect::<Vec<_>>(), [0, 0, 0, 1]);
    assert_eq!((folder.counts(), folder.class_names()), (vec![3, 1], vec!["Zoo".to_owned(), "zebra".to_owned()]));
    assert!(folder.name(3).ends_with("zebra/1.PNG"));
}

/// The tutorials' split of flower_photos (`fixtures/orders.py`): 3,670 = 2,939 + 731. Files with other extensions are
/// in neither part.
#[test]
fn the_python_split_is_cpython_s() {
    const SIZES: [(&str, usize); 5] =
        [("daisy", 633), ("dandelion", 898), ("roses", 641), ("sunflowers", 699), ("tulips", 799)];
    let mut paths: Vec<String> = vec!["daisy/0000.jpeg".into(), "roses/0100.Jpg".into(), "tulips/notes.txt".into()];
    for (class, n) in SIZES {
        paths.extend((0..n).map(|i| format!("{class}/{i:04}.{}", ["jpg", "JPG", "png", "PNG"][i % 4])));
    }
    let root = tree(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let options = OpenOptions { split: SplitKind::Python, ..OpenOptions::default() };
    let Split { train, val } = Split::open_with(root.path(), &options).unwrap();
    assert_eq!((train.len(), val.len()), (2939, 731));
    let document: serde_json::Value = serde_json::from_str(include_str!("../fixtures/orders.json")).unwrap();
    for ((class, n), case) in SIZES.into_iter().zip(document["flowers"].as_array().unwrap()) {
        let held: Vec<usize> =
            files(&val).iter().filter_map(|file| file.strip_prefix(class)?.get(1..5)?.parse().ok()).collect();
        let sum: usize = held.iter().enumerate().map(|(at, number)| (at + 1) * number).sum();
        let brief = serde_json::json!([held.len(), held[..10], held[held.len() - 10..], sum]);
        assert_eq!((&case["n"], &case["held"]), (&n.into(), &brief), "{class}");
    }
    let all: HashSet<&str> = files(&train).into_iter().chain(files(&val)).collect();
    assert_eq!((all.len(), all.contains("daisy/0000.jpeg"), all.contains("roses/0100.Jpg")), (3670, false, false));
    // Another seed gives another split, and so does enmasse's own rule.
    for other in [OpenOptions { split_seed: 1, ..options.clone() }, OpenOptions::default()] {
        assert_ne!(files(&Split::open_with(root.path(), &other).unwrap().val), files(&val));
    }
}

#[test]
fn links_are_followed() {
    let root = tree(&["a/1.jpg", "elsewhere/2.jpg"]);
    let data = tree(&["b/3.jpg"]);
    std::os::unix::fs::symlink(root.path().join("a"), data.path().join("linked")).unwrap();
    assert_eq!(files(&Folder::scan(data.path()).unwrap()), ["b/3.jpg", "linked/1.jpg"]);
}

/// Pipes and broken links were left out without a word.
#[test]
fn what_is_no_picture_is_counted_and_named() {
    let root =
        tree(&["a/1.jpg", "a/2.jpg", "a/3.jpg", "a/4.jpg", "a/5.jpg", "b/1.jpg", "b/2.jpg", "b/notes.txt", "c/1.jpg"]);
    let path = |name: &str| root.path().join(name);
    let left_out = |named: &str, more: &str| {
        let named = named.replace("ROOT", &root.path().display().to_string());
        format!("left out {named}{more}")
    };
    let check = |expected: String| {
        let drawn = Split::open(root.path(), 0, 0.2).unwrap();
        assert_eq!(drawn.left_out().to_string(), expected);
        assert_eq!(Folder::scan(root.path()).unwrap().left_out().to_string(), expected);
    };
    assert!(Split::open(root.path(), 0, 0.2).unwrap().left_out().is_empty());
    std::os::unix::fs::symlink("/nowhere", path("b/9.jpg")).unwrap();
    check(left_out("1 entry that is neither a file nor a folder: ROOT/b/9.jpg (a broken link)", ""));
    // A class whose folder is gone.
    std::os::unix::fs::symlink("/nowhere", path("roses")).unwrap();
    std::os::unix::fs::symlink("loop.jpg", path("c/loop.jpg")).unwrap();
    mkfifoat(CWD, path("c/2.jpg"), Mode::RWXU).unwrap();
    mkfifoat(CWD, path("c/.hidden.jpg"), Mode::RWXU).unwrap();
    let named = "ROOT/b/9.jpg (a broken link), ROOT/c/2.jpg (a pipe), ROOT/c/loop.jpg (a link that cannot be followed)";
    check(left_out(&format!("4 entries that are neither files nor folders: {named}"), " and 1 more"));
    let mut listed = LeftOut::default();
    assert_eq!(list_pictures(root.path(), &mut listed).unwrap().len(), 8);
    assert_eq!(&listed, Folder::scan(root.path()).unwrap().left_out());

    // Two parts, each with its own.
    let parts = tree(&["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg"]);
    mkfifoat(CWD, parts.path().join("train/a/2.jpg"), Mode::RWXU).unwrap();
    mkfifoat(CWD, parts.path().join("val/a/2.jpg"), Mode::RWXU).unwrap();
    assert_eq!(Split::open(parts.path(), 0, 0.2).unwrap().left_out().count(), 2);

    // Nothing else in a class.
    let only = tree(&["a/1.jpg", "b/"]);
    mkfifoat(CWD, only.path().join("b/1.jpg"), Mode::RWXU).unwrap();
    let error = Folder::scan(only.path()).unwrap_err().to_string();
    let expected = "b: this class folder holds no pictures: left out 1 entry that is neither a file nor a folder: ";
    assert!(error.contains(expected) && error.ends_with("b/1.jpg (a pipe)"), "{error}");
}

#[test]
fn problems_are_named() {
    let check = |root: &Path, expected: &[&str]| {
        let error = Split::open(root, 0, 0.2).unwrap_err().to_string();
        assert!(expected.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{error}");
    };
    let some = classes(10, 10);
    check(&some.path().join("nope"), &["nope: no such file or directory"]);
    check(&some.path().join("a/000.jpg"), &["a/000.jpg: this is a file"]);
    check(&some.path().join("a"), &["no class folders"]);
    check(tree(&["a/1.jpg", "empty/"]).path(), &["empty: this class folder holds no pictures", "jpg, jpeg, png"]);
    check(tree(&["a/1.jpg", "b/c/1.jpg"]).path(), &["b: this class folder holds folders (c"]);
    check(tree(&["only/1.jpg", "only/2.jpg"]).path(), &["only one class (only)"]);
    check(classes(4, 4).path(), &["too few pictures per class", "0.2"]);
    check(tree(&["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"]).path(), &["\"b\" is in train/ but not in val/"]);
    check(tree(&["train/a/1.jpg", "test/a/1.jpg", "test/c/1.jpg"]).path(), &["\"c\" is in test/ but not in train/"]);
    let fraction = Split::open(some.path(), 0, 1.0).unwrap_err().to_string();
    assert!(fraction.contains("validation fraction"), "{fraction}");
}

#[test]
fn splits_by_folders() {
    let check = |paths: &[&str], train: &[&str], val: &[&str]| {
        let root = tree(paths);
        let split = Split::open(root.path(), 0, 0.2).unwrap();
        assert_eq!((files(&split.train), files(&split.val)), (train.to_vec(), val.to_vec()));
        assert_eq!(split.train.classes(), split.val.classes());
    };
    let both = ["train/a/1.jpg", "train/b/2.jpg"];
    check(&[both[0], both[1], "val/a/3.jpg", "val/b/4.jpg"], &both, &["val/a/3.jpg", "val/b/4.jpg"]);
    check(&[both[0], both[1], "test/a/3.jpg", "test/b/4.jpg"], &both, &["test/a/3.jpg", "test/b/4.jpg"]);
    let all = [both[0], both[1], "test/a/3.jpg", "test/b/4.jpg", "val/a/5.jpg", "val/b/6.jpg"];
    check(&all, &both, &["val/a/5.jpg", "val/b/6.jpg"]);
}

#[test]
fn splits_by_a_draw_per_class() {
    let check = |a, b, held_a, held_b| {
        let root = classes(a, b);
        let whole = Folder::scan(root.path()).unwrap();
        let split = whole.split(0, 0.2).unwrap();
        assert_eq!(split.val.counts(), [held_a, held_b]);
        let mut together = [files(&split.train), files(&split.val)].concat();
        together.sort_unstable();
        assert_eq!(together, files(&whole));
        assert!(files(&split.train).is_sorted() && files(&split.val).is_sorted());
    };
    check(10, 13, 2, 2);
    check(1, 4, 0, 0);
    check(5, 100, 1, 20);
}

#[test]
fn a_split_depends_on_its_seed_and_the_class_alone() {
    let held = |root: &tempfile::TempDir, seed| {
        let val = Folder::scan(root.path()).unwrap().split(seed, 0.2).unwrap().val;
        val.files().filter(|file| file.starts_with("a/")).map(str::to_owned).collect::<Vec<_>>()
    };
    let root = classes(50, 50);
    assert_eq!(held(&root, 0), held(&root, 0));
    assert_ne!(held(&root, 0), held(&root, 1));
    assert_eq!(held(&root, 0), held(&classes(50, 7), 0));
    // A change of this list would give stored runs another validation part.
    assert_eq!(held(&classes(20, 5), 0), ["a/003.jpg", "a/006.jpg", "a/012.jpg", "a/015.jpg"]);
}

#[test]
fn rebuilds_from_lists() {
    let root = classes(10, 10);
    let val = Split::open(root.path(), 0, 0.2).unwrap().val;
    let list: Vec<String> = val.files().map(str::to_owned).collect();
    let again = Folder::from_lists(root.path(), val.classes().to_vec(), list.clone()).unwrap();
    assert_eq!(files(&again), files(&val));
    assert!((0..val.len()).all(|i| again.label(i) == val.label(i)));
    let unknown = Folder::from_lists(root.path(), vec!["a".into()], list).unwrap_err().to_string();
    assert!(unknown.contains("not among the listed classes"), "{unknown}");
}

#[test]
fn relabels_by_another_list() {
    let root = classes(1, 1);
    let folder = Folder::scan(root.path()).unwrap();
    let classes = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let relabelled = folder.clone().relabel(&classes(&["x", "b", "a"])).unwrap();
    assert_eq!((relabelled.label(0), relabelled.label(1), relabelled.classes().len()), (2, 1, 3));
    let error = folder.relabel(&classes(&["a", "c"])).unwrap_err().to_string();
    assert!(error.contains("\"b\" is not among the 2 expected"), "{error}");
}
