//! `enmasse data split`: the parts of a run, as folders or as a table, whole or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use enmasse_datasets::Split;

use super::textured;
use crate::common::{enmasse, failed, files, refused};

/// Ten images of one class, and five of another.
fn data(root: &Path) -> PathBuf {
    let data = root.join("data");
    (0..10).for_each(|number| textured(&data.join(format!("many/{number}.png")), number));
    (0..5).for_each(|number| textured(&data.join(format!("some, few/{number}.png")), 20 + number));
    data
}

/// The files below a folder, by their relative paths.
fn names(folder: &Path) -> BTreeSet<String> {
    let name = |path: PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
    files(folder).into_iter().map(name).collect()
}

#[test]
fn folders_are_the_parts_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let text = data.display().to_string();
    let drawn = |seed: u64, val: f64| -> BTreeSet<String> {
        let Split { train, val, .. } = Split::open(&data, seed, val).unwrap();
        let train = train.files().map(|file| format!("train/{file}")).collect::<Vec<_>>();
        train.into_iter().chain(val.files().map(|file| format!("val/{file}"))).collect()
    };
    let check = |name: &str, others: &[&str], seed: u64, val: f64, is_as_linked: &dyn Fn(&Path, &Path) -> bool| {
        let out = folder.path().join(name);
        let ended = enmasse(&[&["data", "split", &text, &out.display().to_string()], others].concat()).well();
        assert_eq!((names(&out), ended.stderr.as_str()), (drawn(seed, val), ""), "{name}");
        for file in names(&out) {
            let (_, own) = file.split_once('/').unwrap();
            assert!(is_as_linked(&out.join(&file), &data.join(own)), "{name}: {file}");
            assert_eq!(fs::read(out.join(&file)).unwrap(), fs::read(data.join(own)).unwrap());
        }
    };
    let inode = |path: &Path| path.symlink_metadata().unwrap().ino();
    check("hard", &[], 0, 0.2, &|file, own| inode(file) == inode(own));
    check("link", &["--link", "symbolic", "--split-seed", "3"], 3, 0.2, &|file, _| file.is_symlink());
    let is_other = |file: &Path, own: &Path| !file.is_symlink() && inode(file) != inode(own);
    check("copy", &["--link", "copy", "--val", "0.5"], 0, 0.5, &is_other);
}

/// Validation stays what it is without a test part.
#[test]
fn a_test_part_comes_from_training() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path()).display().to_string();
    let parts = |others: &[&str]| {
        let out = tempfile::tempdir().unwrap();
        let place = out.path().join("parts");
        enmasse(&[&["data", "split", &data, &place.display().to_string()], others].concat()).well();
        names(&place)
    };
    let two = parts(&[]);
    let three = parts(&["--test", "0.3"]);
    let of = |names: &BTreeSet<String>, part: &str| -> Vec<String> {
        names.iter().filter(|name| name.starts_with(part)).cloned().collect()
    };
    assert_eq!(of(&two, "val/"), of(&three, "val/"));
    assert_eq!((of(&three, "test/many/").len(), of(&three, "test/some, few/").len()), (3, 1));
    let back: BTreeSet<String> = three.iter().map(|name| name.replace("test/", "train/")).collect();
    assert_eq!(back, two);
    assert_eq!(three, parts(&["--test", "0.3"]));
    assert_ne!(three, parts(&["--test", "0.3", "--split-seed", "1"]));
}

#[test]
fn a_table_has_relative_paths_below_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let check = |table: PathBuf, path: &dyn Fn(&str) -> String| {
        let ended =
            enmasse(&["data", "split", &data.display().to_string(), &table.display().to_string(), "--list"]).well();
        let said = format!("wrote {}: 12 images for training, 3 images for validation\n", table.display());
        assert_eq!(ended.stdout, said);
        let text = fs::read_to_string(&table).unwrap();
        let (head, rows) = text.split_once('\n').unwrap();
        assert_eq!((head, rows.lines().count()), ("path,label,split", 15));
        let Split { train, val, .. } = Split::open(&data, 0, 0.2).unwrap();
        for (file, part) in train.files().map(|file| (file, "train")).chain(val.files().map(|file| (file, "val"))) {
            let row = match file.starts_with("many") {
                true => format!("{},many,{part}", path(file)),
                false => format!("\"{}\",\"some, few\",{part}", path(file)),
            };
            assert!(rows.lines().any(|line| line == row), "{row} is not in {rows}");
        }
    };
    let other = tempfile::tempdir().unwrap();
    let full = data.canonicalize().unwrap().display().to_string();
    check(folder.path().join("table.csv"), &|file| format!("data/{file}"));
    check(other.path().join("table.csv"), &|file| format!("{full}/{file}"));
}

/// A link in the place of the folder in the making led to another folder, which was emptied.
#[test]
fn a_folder_behind_a_link_stays() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path()).display().to_string();
    let out = folder.path().join("out").display().to_string();
    let own = folder.path().join("mine/train/0.png");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "").unwrap();
    symlink("mine", folder.path().join(".out.enmasse.tmp")).unwrap();
    failed(&enmasse(&["data", "split", &data, &out]), 1, &[".out.enmasse.tmp: it is another user's, or no folder"]);
    assert!(own.exists());
}

#[test]
fn refusals_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let out = folder.path().join("out");
    let split = |data: &Path, others: &[&str]| {
        enmasse(&[&["data", "split", &data.display().to_string(), &out.display().to_string()], others].concat())
    };
    failed(&split(&data, &["--val", "0.6", "--test", "0.4"]), 2, &["--val and --test", "nothing would be left"]);
    failed(&split(&data, &["--val", "1"]), 2, &["--val", "must be at least 0 and below 1"]);
    refused(&split(&data, &["--list", "--link", "copy"]), 2, &["--list", "--link"]);
    let few = "the class \"some, few\" has too few images for a part for validation: raise --val, or add images";
    failed(&split(&data, &["--val", "0.15"]), 1, &[few]);
    failed(&split(&folder.path().join("none"), &[]), 1, &["none"]);
    fs::create_dir(&out).unwrap();
    refused(&split(&data, &[]), 2, &["exists already"]);
    fs::remove_dir(&out).unwrap();

    // A folder that a killed process left is no obstacle, one that another process writes is.
    let left = folder.path().join(".out.enmasse.tmp");
    fs::create_dir_all(left.join("train/many")).unwrap();
    fs::write(left.join("train/many/half.png"), "").unwrap();
    let lock = fs::File::open(&left).unwrap();
    lock.try_lock().unwrap();
    failed(&split(&data, &[]), 1, &["another process is writing it"]);
    // Children that other tests fork hold the open file until they exec, and with it a lock that is only dropped.
    lock.unlock().unwrap();
    split(&data, &[]).well();
    assert!(!left.exists() && !out.join("train/many/half.png").exists());
    // Parts are taken as they are.
    failed(&split(&out, &[]), 2, &["exists already"]);
    let parts = out.display().to_string();
    let again = folder.path().join("again").display().to_string();
    failed(&enmasse(&["data", "split", &parts, &again]), 1, &["comes in parts", "nothing to split"]);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
