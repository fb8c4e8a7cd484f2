//! `enmasse data stats`: the numbers of --mean and --std.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use test_support::Need;

use super::plain;
use crate::common::{enmasse, failed, files, finish, images, plain_environment, write_archive};

/// Three training images of two classes, and validation images that do not count.
fn two_classes(root: &Path) -> String {
    plain(&root.join("train/black/0.png"), 8, 8, [0, 0, 51]);
    plain(&root.join("train/black/1.png"), 16, 8, [0, 0, 51]);
    plain(&root.join("train/white/0.png"), 4, 12, [255, 0, 51]);
    plain(&root.join("val/black/0.png"), 8, 8, [9, 9, 9]);
    plain(&root.join("val/white/0.png"), 8, 8, [9, 9, 9]);
    root.display().to_string()
}

#[test]
fn numbers_of_the_training_part() {
    let folder = tempfile::tempdir().unwrap();
    let data = two_classes(folder.path());
    let text =
        |threads: &str| enmasse(&["data", "stats", &data, "--size", "8", "--loader-threads", threads]).well().stdout;
    let expected = "training: 3 images in 2 classes\nsizes:    4x12 to 16x8, most often 16x8 (33 %)\n\
                    pixels at 8x8: --mean 0.3333,0.0000,0.2000 --std 0.4714,0.0000,0.0000\n";
    assert_eq!((text("1").as_str(), text("3").as_str()), (expected, expected));

    let object = enmasse(&["data", "stats", &data, "--size", "8", "--json"]).well().json().remove(0);
    for (name, value) in [
        ("event", json!("stats")),
        ("data", json!(data)),
        ("kind", json!("folder")),
        ("classes", json!(2)),
        ("samples", json!(3)),
        ("unreadable", json!(0)),
        ("size", json!(8)),
        ("sizes", json!([[4, 12, 1], [8, 8, 1], [16, 8, 1]])),
    ] {
        assert_eq!(object[name], value, "{name}");
    }
    assert_eq!(object["mean"][0], 1.0 / 3.0);
}

#[test]
fn unreadable_images() {
    let folder = tempfile::tempdir().unwrap();
    let data = two_classes(folder.path());
    fs::write(folder.path().join("train/black/2.png"), "").unwrap();
    let stats = |rule: &str| enmasse(&["data", "stats", &data, "--size", "8", "--json", "--on-bad-sample", rule]);
    failed(&stats("error"), 1, &["black/2.png: the file is empty; to go on", "--on-bad-sample skip"]);
    let ended = stats("skip").well();
    assert_eq!((&ended.json()[0]["samples"], &ended.json()[0]["unreadable"]), (&json!(3), &json!(1)));
    assert!(ended.stderr.contains("unreadable: 1 image was skipped: "), "{ended:?}");
}

/// The mean over no image was printed: NaN, and null in JSON.
#[test]
fn no_readable_image_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let data = two_classes(folder.path());
    for path in files(&folder.path().join("train")) {
        fs::write(path, "").unwrap();
    }
    let ended = enmasse(&["data", "stats", &data, "--size", "8", "--json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let error = format!("error: {data}: none of its images for training can be read\n");
    assert!(ended.stderr.ends_with(&error), "{ended:?}");
}

/// Where the system has no more threads, opening several archives panicked.
#[test]
fn archives_are_opened_by_the_threads_that_there_are() {
    if !rustix::process::geteuid().is_root() {
        return test_support::skip(Need::Limits, "takes root");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let data = images(folder.path(), 1);
    for number in 0..20 {
        let name = |class: &str| (class.to_owned(), "000.png".to_owned());
        write_archive(&folder.path().join(format!("{number}.tar")), &data, &["dark", "light"].map(name));
    }
    let archives = folder.path().join("{0..19}.tar").display().to_string();
    let ended = (1..16).find_map(|limit| {
        let mut command = Command::new("setpriv");
        plain_environment(&mut command);
        // This user has no other processes.
        command.args(["--reuid=65532", "--clear-groups", "prlimit", &format!("--nproc={limit}")]);
        command.args([env!("CARGO_BIN_EXE_enmasse"), "data", "stats", &archives, "--size", "8"]);
        let ended = finish(command.args(["--loader-threads", "1"]));
        let says = ended.stderr.contains("cannot start ") || ended.stderr.contains("cannot handle signals");
        assert!(ended.code == Some(0) || (ended.code == Some(1) && says), "limit {limit}: {ended:?}");
        (ended.code == Some(0)).then_some(ended)
    });
    assert!(ended.unwrap().stdout.starts_with("training: 32 images in 2 classes\n"));
}

/// The constants that are published for CIFAR-10 are over all pixels, so a set of one size counts its images as they are.
#[test]
fn known_sets_have_their_own_channels() {
    let folder = tempfile::tempdir().unwrap();
    let idx = |name: &str, sizes: &[u8], bytes: &[u8]| {
        let numbers = sizes.iter().flat_map(|&size| [0, 0, 0, size]);
        let file: Vec<u8> =
            [0, 0, 8, sizes.len() as u8].into_iter().chain(numbers).chain(bytes.iter().copied()).collect();
        fs::write(folder.path().join(name), file).unwrap();
    };
    let shades: Vec<u8> = [[0; 28 * 28], [255; 28 * 28]].concat();
    for part in ["train", "t10k"] {
        idx(&format!("{part}-images-idx3-ubyte"), &[2, 28, 28], &shades);
        idx(&format!("{part}-labels-idx1-ubyte"), &[2], &[3, 7]);
    }
    let ended = enmasse(&["data", "stats", &folder.path().display().to_string(), "--split-seed", "3"]).well();
    assert!(ended.stdout.ends_with("sizes:    28x28\npixels: --mean 0.5000 --std 0.5000\n"), "{ended:?}");
    let warning =
        "warning: --split-seed 3 has no effect on a data set that comes in parts for training and validation\n";
    assert_eq!(ended.stderr, warning);
}
