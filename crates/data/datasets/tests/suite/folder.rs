//! Folders of class folders: which images are found, how they are split, and errors.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use enmasse_data::{Dataset, Locality};
use enmasse_datasets::{Folder, LeftOut, OpenOptions, Split, SplitKind, TaskKind, list_images, open, relabel};
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

/// Classes `a` and `b` with the given numbers of images.
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
fn finds_images_in_byte_order() {
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
    assert_eq!((folder.counts(), folder.classes()), (vec![3, 1], &["Zoo".to_owned(), "zebra".to_owned()][..]));
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
    let Split { train, val, .. } = Split::open_with(root.path(), &options).unwrap();
    assert_eq!((train.len(), val.len()), (2939, 731));
    let document: serde_json::Value =
        serde_json::from_str(include_str!("../../../data/tests/fixtures/orders.json")).unwrap();
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
fn what_is_no_image_is_counted_and_named() {
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
    check(left_out("1 entry: ROOT/b/9.jpg (a broken link)", ""));
    // A class whose folder is gone.
    std::os::unix::fs::symlink("/nowhere", path("roses")).unwrap();
    std::os::unix::fs::symlink("loop.jpg", path("c/loop.jpg")).unwrap();
    mkfifoat(CWD, path("c/2.jpg"), Mode::RWXU).unwrap();
    mkfifoat(CWD, path("c/.hidden.jpg"), Mode::RWXU).unwrap();
    let named = "ROOT/b/9.jpg (a broken link), ROOT/c/2.jpg (a pipe), ROOT/c/loop.jpg (a link that cannot be followed)";
    check(left_out(&format!("4 entries: {named}"), " and 1 more"));
    let mut listed = LeftOut::default();
    assert_eq!(list_images(root.path(), &mut listed).unwrap().len(), 8);
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
    let expected = "b: this class folder holds no images: left out 1 entry: ";
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
    check(tree(&["a/1.jpg", "empty/"]).path(), &["empty: this class folder holds no images", "jpg, jpeg, png"]);
    check(tree(&["only/1.jpg", "only/2.jpg"]).path(), &["only one class (only); a classifier needs at least two"]);
    check(tree(&["flowers/a/1.jpg", "flowers/b/2.jpg"]).path(), &["if its folders are the classes, name ", "/flowers"]);
    check(classes(4, 4).path(), &["too few images per class", "0.2"]);
    check(tree(&["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"]).path(), &["\"b\" is in train/ but not in val/"]);
    check(tree(&["train/a/1.jpg", "test/a/1.jpg", "test/c/1.jpg"]).path(), &["\"c\" is in test/ but not in train/"]);
    let fraction = Split::open(some.path(), 0, 1.0).unwrap_err().to_string();
    assert!(fraction.contains("validation fraction"), "{fraction}");
}

/// Only the first of them was named, so that a folder was mended class by class.
#[test]
fn all_empty_classes_are_named_at_once() {
    let check = |paths: &[&str], expected: &str| {
        let root = tree(paths);
        let error = Split::open(root.path(), 0, 0.2).unwrap_err().to_string();
        let root = root.path().display();
        assert_eq!(error, format!("{root}: {expected}; fill them or remove them"));
    };
    let formats = "(jpg, jpeg, png, webp, bmp, gif)";
    let two = format!("2 class folders hold no images {formats}: bird, dog");
    check(&["bird/", "cat/1.jpg", "dog/notes.txt", "emu/1.jpg"], &two);
    let parts = format!("3 class folders hold no images {formats}: train/bird, train/dog, val/dog");
    check(&["train/bird/", "train/cat/1.jpg", "train/dog/", "val/bird/1.jpg", "val/cat/1.jpg", "val/dog/"], &parts);
    let many: Vec<String> = (0..102).map(|class| format!("{class:03}/")).collect();
    let names: Vec<String> = (0..100).map(|class| format!("{class:03}")).collect();
    let all = format!("102 class folders hold no images {formats}: {}, 2 more", names.join(", "));
    check(&many.iter().map(String::as_str).collect::<Vec<_>>(), &all);
}

/// Every class in one part alone is named, too.
#[test]
fn all_classes_that_a_part_lacks_are_named_at_once() {
    let check = |paths: &[&str], expected: &str| {
        let root = tree(paths);
        let error = Split::open(root.path(), 0, 0.2).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {expected}; both need the same classes", root.path().display()));
    };
    let train = ["train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg"];
    let of = |others: &[&'static str]| [&train[..], others].concat();
    check(&of(&["val/a/1.jpg", "val/b/1.jpg"]), "the class \"c\" is in train/ but not in val/");
    check(&of(&["val/a/1.jpg"]), "the classes \"b\", \"c\" are in train/ but not in val/");
    let both =
        "the classes \"b\", \"c\" are in train/ but not in val/, and the class \"d\" is in val/ but not in train/";
    check(&of(&["val/a/1.jpg", "val/d/1.jpg"]), both);
}

/// Such a folder was a class without images, and an error.
#[test]
fn what_file_managers_leave_is_skipped_without_a_word() {
    let root = tree(&[
        "__MACOSX/a/._1.jpg",
        ".DS_Store",
        "Thumbs.db",
        "desktop.ini",
        "a/1.jpg",
        "a/._1.jpg",
        "a/.DS_Store",
        "a/Thumbs.db",
        "a/__MACOSX/2.jpg",
        "b/1.jpg",
        "b/Desktop.ini",
    ]);
    let folder = Folder::scan(root.path()).unwrap();
    assert_eq!((files(&folder), folder.left_out().is_empty()), (vec!["a/1.jpg", "b/1.jpg"], true));
    assert!(!enmasse_datasets::is_clutter("thumbs.png".as_ref()));
}

/// Two links in each of 18 folders lead 262,144 times into the last one, which took 24 seconds.
#[test]
fn branching_links_end_a_scan() {
    let chain = |levels: usize, links: usize| {
        let root = tree(&["class/", &format!("{levels}/1.jpg")]);
        for level in 0..levels {
            let folder = root.path().join(level.to_string());
            fs::create_dir_all(&folder).unwrap();
            let link = |name: &str, to: &Path| std::os::unix::fs::symlink(to, folder.join(name)).unwrap();
            (0..links).for_each(|number| link(&number.to_string(), &root.path().join((level + 1).to_string())));
            // Counts how often the folder is listed.
            link("counted", Path::new("/nowhere"));
        }
        root
    };
    let list = |root: &tempfile::TempDir| {
        let mut left_out = LeftOut::default();
        let found = list_images(&root.path().join("0"), &mut left_out).map(|found| found.len());
        (found.map_err(|error| error.to_string()), left_out.count())
    };
    assert_eq!(list(&chain(5, 2)), (Ok(32), 31));
    // A path may lead over forty links.
    assert_eq!(list(&chain(30, 1)), (Ok(1), 30));
    for levels in [18, 30] {
        let root = chain(levels, 2);
        let (found, listed) = list(&root);
        let error = found.unwrap_err();
        assert!(error.contains("links lead into this folder more than 100 times; remove links"), "{error}");
        assert!(error.starts_with(&root.path().display().to_string()) && listed <= 100 * levels, "{listed}: {error}");
    }
    // What finds out whether a folder has images at all looks into each folder once.
    let root = chain(30, 2);
    fs::remove_file(root.path().join("30/1.jpg")).unwrap();
    assert!(open(root.path(), &OpenOptions::default()).is_err());
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
    let again = Folder::from_lists(root.path(), val.classes().to_vec(), list.clone(), None).unwrap();
    assert_eq!(files(&again), files(&val));
    assert!((0..val.len()).all(|i| again.label(i) == val.label(i)));
    let unknown = Folder::from_lists(root.path(), vec!["a".into()], list, None).unwrap_err().to_string();
    assert!(unknown.contains("not among the listed classes"), "{unknown}");
}

#[test]
fn relabels_by_another_list() {
    let check = |own: &[&str], known: &[&str], expected: Result<&[usize], &str>| {
        let paths: Vec<String> = own.iter().map(|class| format!("{class}/1.jpg")).collect();
        let root = tree(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
        let folder = Folder::scan(root.path()).unwrap();
        let own = folder.classes().to_vec();
        let relabelled = relabel(Arc::new(folder), root.path(), TaskKind::Classification, &own, &known);
        match (relabelled, expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!((0..found.len()).map(|index| found.label(index)).collect::<Vec<_>>(), expected);
                assert_eq!(found.name(0), root.path().join(&paths[0]).display().to_string());
            }
            (found, expected) => {
                let error = found.err().expect("an error").to_string();
                assert!(error.contains(expected.expect_err("an error")), "{error}");
            }
        }
    };
    check(&["a", "b"], &["a", "b"], Ok(&[0, 1]));
    check(&["a", "b"], &["x", "b", "a"], Ok(&[2, 1]));
    check(&["a", "b"], &["a", "c"], Err("\"b\" is not among the 2 expected"));
    // ImageNet's classes may have their names after their numbers, or not.
    check(&["n01440764", "n01443537"], &["n01443537 goldfish", "n01440764 tench"], Ok(&[1, 0]));
    check(&["n01440764 tench"], &["n01440764"], Ok(&[0]));
    check(&["n01440764 tench"], &["n01443537 tench"], Err("\"n01440764 tench\" is not among"));
}

#[test]
fn classes_of_any_depth() {
    let root = tree(&["a/2.jpg", "a/deep/deeper/1.jpg", "a/deep/empty/", "a-b/1.jpg", "b/x/y/1.jpg", "b/x.txt"]);
    let folder = Folder::scan(root.path()).unwrap();
    assert_eq!(folder.classes(), ["a", "a-b", "b"]);
    let expected = ["a/2.jpg", "a/deep/deeper/1.jpg", "a-b/1.jpg", "b/x/y/1.jpg"];
    assert_eq!(files(&folder), expected);
    assert_eq!(folder.counts(), [2, 1, 1]);
}

/// Such a link put the images of other classes into its own, without a word.
#[test]
fn a_link_to_a_folder_above_it_is_left_out() {
    let root = tree(&["data/a/1.jpg", "data/b/x/1.jpg", "elsewhere/c/1.jpg", "elsewhere/d/1.jpg"]);
    let data = root.path().join("data");
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, data.join(at)).unwrap();
    let check = |counts: &[usize], names: &[&str]| {
        let folder = Folder::scan(&data).unwrap();
        let named: Vec<_> =
            names.iter().map(|name| format!("{} (a link to a folder above it)", data.join(name).display())).collect();
        let said = format!(
            "left out {} entr{}: {}",
            names.len(),
            if names.len() == 1 { "y" } else { "ies" },
            named.join(", ")
        );
        assert_eq!((folder.counts(), folder.left_out().to_string()), (counts.to_vec(), said));
    };
    link("..", "a/loop");
    check(&[1, 1], &["a/loop"]);
    link("../../..", "b/x/out");
    check(&[1, 1], &["a/loop", "b/x/out"]);
    // A class that is kept elsewhere, and a link within one.
    link("../elsewhere/c", "c");
    link("../../data", "c/back");
    link("../../elsewhere/d", "a/other");
    check(&[2, 1, 1], &["a/loop", "b/x/out", "c/back"]);
    link(".", "self");
    // A class of its own.
    let error = Folder::scan(&data).unwrap_err().to_string();
    assert!(error.contains("self: this class folder holds no images: left out 1 entry: "), "{error}");
}

/// A folder of TIFFs was told of CIFAR and MNIST, and single ones were left out without a word.
#[test]
fn images_in_formats_that_are_not_read_are_named() {
    let told = |paths: &[&str]| {
        let root = tree(paths);
        let error = open(root.path(), &OpenOptions::default()).err().map(|error| error.to_string()).unwrap_or_default();
        error.replace(&format!("{}", root.path().display()), "ROOT")
    };
    let expected = "ROOT: it has no images but such as ROOT/a/1.tif (TIFF is not read; convert it to PNG or JPEG)";
    assert_eq!(told(&["a/1.tif", "a/2.tif", "b/1.TIFF"]), expected);
    assert!(told(&["1.heic", "2.heic"]).ends_with("ROOT/1.heic (HEIC is not read; convert it to PNG or JPEG)"));
    let one = told(&["a/1.avif", "b/1.jpg"]);
    assert!(
        one.contains("this class folder holds no images: left out 1 entry: ROOT/a/1.avif (AVIF is not read"),
        "{one}"
    );
    let root = tree(&["a/1.jpg", "a/2.tif", "b/1.jpg", "b/2.heif"]);
    let said = Folder::scan(root.path()).unwrap().left_out().to_string();
    assert!(said.starts_with("left out 2 entries: ") && said.contains("a/2.tif (TIFF is not read"), "{said}");
}

/// Every usual name of a part, in any case.
#[test]
fn parts_by_their_names() {
    let check = |paths: &[&str], expected: &[usize; 2]| {
        let root = tree(paths);
        let data = open(root.path(), &OpenOptions::default()).unwrap_or_else(|error| panic!("{paths:?}: {error}"));
        assert_eq!([data.train.len(), data.validation.len()], *expected, "{paths:?}");
    };
    for [train, val] in [["train", "valid"], ["Training", "Validation"], ["TRAIN", "dev"], ["training", "Testing"]] {
        let paths = ["a/1", "a/2", "b/1", "b/2"].map(|file| format!("{train}/{file}.jpg"));
        let held_out = ["a/3", "b/3"].map(|file| format!("{val}/{file}.png"));
        check(&[&paths[0], &paths[1], &paths[2], &paths[3], &held_out[0], &held_out[1]], &[4, 2]);
    }
    let mut many: Vec<String> =
        ["a", "b"].iter().flat_map(|class| (0..5).map(move |i| format!("train/{class}/{i}.jpg"))).collect();
    let all = |many: &[String], more: &[&str], expected: &[usize; 2]| {
        check(&[&many.iter().map(String::as_str).collect::<Vec<_>>(), more].concat(), expected);
    };
    // Without another part, and beside test images without labels.
    all(&many, &[], &[8, 2]);
    all(&many, &["readme.txt", "test/1.jpg"], &[8, 2]);
    // A class that is called train.
    many.iter_mut().for_each(|path| *path = path.replace("train/b", "car"));
    all(&many, &[], &[8, 2]);
    let twice = tree(&["train/a/1.jpg", "val/a/1.jpg", "Val/a/1.jpg"]);
    let error = Split::open(twice.path(), 0, 0.2).unwrap_err().to_string();
    assert!(error.ends_with("it has both Val/ and val/: rename or remove one of them"), "{error}");
}

/// Regression test: a folder for tests beside that for validation was not opened.
#[test]
fn a_test_part_beside_validation_was_ignored() {
    let check = |paths: &[&str], expected: [usize; 3], warnings: &[&str]| {
        let root = tree(paths);
        let data = open(root.path(), &OpenOptions::default()).unwrap_or_else(|error| panic!("{paths:?}: {error}"));
        let test = data.test.as_ref().map_or(0, |test| test.len());
        assert_eq!([data.train.len(), data.validation.len(), test], expected, "{paths:?}");
        let place = root.path().display().to_string();
        let found: Vec<String> = data.warnings.iter().map(|found| found.problem.replace(&place, "D")).collect();
        assert_eq!(found, warnings, "{paths:?}");
        let split = data.split.unwrap();
        assert_eq!(split.test.as_ref().map_or(0, Folder::len), expected[2]);
        let record = serde_json::to_value(&split).unwrap();
        assert_eq!(record.get("test").and_then(|files| files.as_array()).map_or(0, Vec::len), expected[2]);
    };
    let train = ["train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg"];
    let with = |more: &[&'static str]| [&train[..], more].concat();
    for [val, test] in [["val", "test"], ["valid", "Test"], ["validation", "testing"]] {
        let more = [(val, "a/3"), (val, "b/3"), (test, "a/4"), (test, "a/5"), (test, "b/4")];
        let more = more.map(|(part, file)| format!("{part}/{file}.png"));
        check(&[&train[..], &more.iter().map(String::as_str).collect::<Vec<_>>()].concat(), [3, 2, 3], &[]);
    }
    let validates = "D: there is no validation part, so test/ is used for validation";
    check(&with(&["test/a/4.jpg", "test/b/4.jpg"]), [3, 2, 0], &[validates]);
    let unlabelled = "D/test: the test part is not used: it has no class folders";
    check(&with(&["val/a/3.jpg", "val/b/3.jpg", "test/4.jpg"]), [3, 2, 0], &[unlabelled]);
    // Both parts need the classes of the training part.
    let refuse = |more: &[&'static str], expected: &str| {
        let error = open(tree(&with(more)).path(), &OpenOptions::default()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let val = ["val/a/3.jpg", "val/b/3.jpg", "test/a/4.jpg"];
    refuse(&val, "the class \"b\" is in train/ but not in test/; both need the same classes");
    refuse(&[&val[..], &["test/b/4.jpg", "test/c/4.jpg"]].concat(), "the class \"c\" is in test/ but not in train/");
}

/// Dogs vs. Cats: the class is in the name of the file.
#[test]
fn classes_in_names() {
    let mut paths: Vec<String> = (0..10).map(|i| format!("cat.{i}.jpg")).collect();
    paths.extend((0..5).map(|i| format!("more/dog.{i}.jpg")));
    let root = tree(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let options = OpenOptions { label_pattern: Some("{class}.{number}.jpg".to_owned()), ..OpenOptions::default() };
    let data = open(root.path(), &options).unwrap();
    assert_eq!(
        (data.classes.as_slice(), data.train.len(), data.validation.len()),
        (&["cat".into(), "dog".into()][..], 12, 3)
    );
    // The labels are not those of the folders, so a record of the split has them.
    let record = serde_json::to_value(data.split.unwrap()).unwrap();
    assert_eq!(record["validation"], serde_json::json!(["cat.2.jpg", "cat.9.jpg", "more/dog.3.jpg"]));
    assert_eq!(record["validation_labels"], serde_json::json!([0, 0, 1]));
    fs::write(root.path().join("cow.jpg"), b"").unwrap();
    let error = open(root.path(), &options).err().unwrap().to_string();
    assert!(error.contains("cow.jpg: its name does not match the label pattern"), "{error}");
}
