//! Copies of folders on another disk: complete, used again while they are right, and made once.

use std::fs::{self, File, create_dir_all};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use enmasse_dataset_tools::{Stage, StageEvent, Staged};
use enmasse_system::files::Lock;

/// A folder with files in folders, an empty folder, a link, and things that are not copied.
fn data(root: &Path) -> PathBuf {
    let data = root.join("photos");
    create_dir_all(data.join("red/deep")).unwrap();
    create_dir_all(data.join("blue")).unwrap();
    create_dir_all(data.join("empty")).unwrap();
    fs::write(data.join("red/1.jpg"), b"one").unwrap();
    fs::write(data.join("red/deep/2.jpg"), vec![7; 3 << 20]).unwrap();
    fs::write(data.join("blue/none.jpg"), b"").unwrap();
    fs::write(data.join(".hidden"), b"x").unwrap();
    symlink("../red/1.jpg", data.join("blue/link.jpg")).unwrap();
    symlink(&data, data.join("red/deep/around")).unwrap();
    symlink("nowhere", data.join("blue/lost.jpg")).unwrap();
    data
}

fn make(data: &Path, place: &Path) -> Result<Staged, String> {
    Stage::new(data, place).and_then(|stage| stage.make(&mut |_| ())).map_err(|error| error.to_string())
}

/// Every file below a folder with its content and time, by path.
fn files(root: &Path) -> Vec<(String, Vec<u8>, SystemTime)> {
    let mut found = Vec::new();
    let mut rest = vec![root.to_owned()];
    while let Some(folder) = rest.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => rest.push(path),
                false => {
                    let modified = fs::metadata(&path).unwrap().modified().unwrap();
                    let name = path.strip_prefix(root).unwrap().display().to_string();
                    found.push((name, fs::read(&path).unwrap(), modified));
                }
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_copy_is_complete_and_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let place = folder.path().join("scratch/a");
    let bytes = (3 << 20) + 6;
    let first = make(&data, &place).unwrap();
    assert_eq!((first.copied, first.left_out.count()), (Some(bytes), 2));
    assert!(first.root.starts_with(&place) && first.root.ends_with("photos"));
    let copied = files(&first.root);
    let names: Vec<&str> = copied.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["blue/link.jpg", "blue/none.jpg", "red/1.jpg", "red/deep/2.jpg"]);
    for (name, content, modified) in &copied {
        let original = data.join(name);
        assert!(fs::read(&original).unwrap() == *content, "{name}");
        assert_eq!(fs::metadata(&original).unwrap().modified().unwrap(), *modified, "{name}");
    }
    assert!(first.root.join("empty").is_dir());

    let again = |expected: Option<u64>| assert_eq!(make(&data, &place).unwrap().copied, expected);
    again(None);
    // The original changes: a time, a length, a new folder.
    let touched = File::options().write(true).open(data.join("red/1.jpg")).unwrap();
    touched.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(7)).unwrap();
    again(Some(bytes));
    again(None);
    fs::write(data.join("blue/none.jpg"), b"1").unwrap();
    again(Some(bytes + 1));
    fs::create_dir(data.join("green")).unwrap();
    again(Some(bytes + 1));
    // Something has cleaned the copy up, or it was never finished.
    fs::remove_file(first.root.join("red/1.jpg")).unwrap();
    again(Some(bytes + 1));
    fs::remove_file(first.root.parent().unwrap().join("staged.txt")).unwrap();
    create_dir_all(first.root.parent().unwrap().join("copying/photos")).unwrap();
    again(Some(bytes + 1));
    again(None);
}

#[test]
fn a_single_file_and_data_of_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["one", "two"] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("data.bin"), name).unwrap();
    }
    let place = path("scratch");
    let one = make(&path("one/data.bin"), &place).unwrap();
    let two = make(&path("two/data.bin"), &place).unwrap();
    assert_eq!((fs::read(&one.root).unwrap(), fs::read(&two.root).unwrap()), (b"one".to_vec(), b"two".to_vec()));
    assert_eq!(one.root.file_name().unwrap(), "data.bin");
    // By another path to the same data, the same copy.
    symlink(path("one/data.bin"), path("link")).unwrap();
    assert_eq!(make(&path("link"), &place).unwrap(), Staged { copied: None, ..one });
}

#[test]
fn places_and_data_that_do_not_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let refused = |data: &Path, place: &Path, expected: &str| {
        let error = make(data, place).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    refused(&folder.path().join("none"), folder.path(), "cannot read");
    refused(&data, &data.join("scratch"), "the copy would be a part of the data; choose another folder");
    assert_eq!(fs::read_dir(data.join("scratch")).unwrap().count(), 0);
    fs::remove_dir(data.join("scratch")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    refused(&data, &folder.path().join("file"), "cannot create");
    // Larger than any disk, without taking any of it.
    let large = folder.path().join("large");
    File::create(&large).unwrap().set_len(1 << 42).unwrap();
    let place = folder.path().join("scratch");
    refused(&large, &place, "the copy needs 4398047 MB and 1 files, and there is space for ");
    let left: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.iter().all(|place| !place.join("large").exists() && !place.join("staged.txt").exists()), "{left:?}");
}

/// Processes of one node begin at the same time.
#[test]
fn only_one_of_many_copies() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let place = folder.path().join("scratch");
    let copies = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let staged = make(&data, &place).unwrap();
                copies.fetch_add(usize::from(staged.copied.is_some()), Ordering::Relaxed);
                assert_eq!(files(&staged.root).len(), 4);
            });
        }
    });
    assert_eq!(copies.into_inner(), 1);
}

#[test]
fn a_process_that_does_not_go_on_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let place = folder.path().join("scratch");
    let root = make(&data, &place).unwrap().root;
    let lock = root.parent().unwrap().join("lock");
    let held = Lock::take(&lock).unwrap().unwrap();
    fs::write(&lock, "4711 00000000000000000007").unwrap();
    let mut waited = 0;
    let timeout = Duration::from_millis(250);
    let stage = Stage::new(&data, &place).unwrap().timeout(timeout);
    let error = stage.make(&mut |event| waited += usize::from(event == StageEvent::Waiting)).unwrap_err().to_string();
    let place = root.parent().unwrap().display();
    let remedy = "for 0.25 s; check the disk or file server, or raise the timeout";
    assert_eq!(error, format!("process 4711, which copies to {place}, does not go on {remedy}"));
    assert!(waited > 1);
    drop(held);
    assert_eq!(stage.make(&mut |_| ()).unwrap().copied, None);
}

#[test]
fn what_others_have_made_is_taken_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(folder.path());
    let place = folder.path().join("scratch");
    let stage = Stage::new(&data, &place).unwrap();
    assert!(stage.made().unwrap_err().to_string().ends_with("photos: the copy is gone"));
    let root = stage.make(&mut |_| ()).unwrap().root;
    assert_eq!(stage.made().unwrap(), root);
}
