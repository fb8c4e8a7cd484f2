//! `enmasse data pack`: the file trains, evaluates and predicts like the folder.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::common::lease::Lease;
use crate::common::runs::{arguments, figures, tensors};
use crate::common::{Ended, Running, enmasse, images, program, refused, until};

fn pack(data: &Path, file: &Path, others: &[&str]) -> Ended {
    let (data, file) = (data.display().to_string(), file.display().to_string());
    enmasse(&[&["data", "pack", &data, &file], others].concat())
}

#[test]
fn a_packed_file_gives_the_bits_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let file = folder.path().join("photos.enmasse");
    let ended = pack(&data, &file, &["--json"]).well();
    let object = ended.json().remove(0);
    for (name, value) in [
        ("event", json!("pack")),
        ("data", json!(data)),
        ("file", json!(file)),
        ("kind", json!("folder")),
        ("classes", json!(3)),
        ("train", json!(24)),
        ("validation", json!(6)),
        ("unreadable", json!(0)),
        ("bytes", json!(fs::metadata(&file).unwrap().len())),
    ] {
        assert_eq!(object[name], value, "{name}");
    }
    for devices in ["cpu:1", "cpu:2"] {
        let run = |data: &Path, name: &str| {
            let out = folder.path().join(format!("{name}-{devices}"));
            let ended = enmasse(&arguments(data, &out, &["--devices", devices, "--epochs", "2"])).well();
            (figures(&ended), tensors(&out, "last.safetensors"))
        };
        let (by_folder, by_file) = (run(&data, "folder"), run(&file, "file"));
        assert_eq!(by_file.0, by_folder.0, "{devices}");
        assert!(by_file.1 == by_folder.1, "{devices}: weights differ");
        assert!(!by_file.0.is_empty());
    }

    // Each run evaluates the validation part of either.
    let eval = |run: &str, data: &[&Path]| {
        let run = folder.path().join(run).display().to_string();
        let data: Vec<String> = data.iter().map(|data| data.display().to_string()).collect();
        let mut line = vec!["eval", &run, "--json", "--devices", "cpu:1"];
        line.extend(data.iter().map(String::as_str));
        enmasse(&line).well().json().remove(0)
    };
    let own = eval("folder-cpu:1", &[]);
    assert_eq!((&own["samples"], &own["part"]), (&json!(6), &json!("val")));
    for found in [eval("folder-cpu:1", &[&file]), eval("file-cpu:1", &[]), eval("file-cpu:1", &[&file])] {
        assert_eq!(found, own);
    }
    // All images of the file, those of training first.
    let predict = |images: &Path| {
        let run = folder.path().join("file-cpu:1").display().to_string();
        let images = images.display().to_string();
        let lines = enmasse(&["predict", &run, &images, "--json"]).well().json();
        let inside = |line: &serde_json::Value| {
            let name = line["image"].as_str().unwrap().strip_prefix(&format!("{images}/")).unwrap().to_owned();
            (name, line["top"][0]["class"].as_str().unwrap().to_owned())
        };
        let mut found: Vec<_> = lines.iter().map(inside).collect();
        assert_eq!(found.len(), 30);
        found.sort_unstable();
        found
    };
    assert_eq!(predict(&file), predict(&data));
}

#[test]
fn forms_and_their_flags() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let file = folder.path().join("photos.enmasse");
    let check = |others: &[&str], code: i32, mention: &str| {
        refused(&pack(&data, &file, others), code, &[mention]);
        assert!(!file.exists());
    };
    check(&["--form", "raw"], 2, "--form raw: images in folders have many sizes; add --size PIXELS");
    check(&["--form", "raw", "--size", "8", "--resize", "8"], 2, "--resize: has no effect with --form raw");
    check(&["--form", "raw", "--size", "8", "--quality", "8"], 2, "--quality: has no effect with --form raw");
    check(&["--size", "8"], 2, "--size: has no effect with --form jpeg; --resize makes large images smaller");
    check(&["--quality", "8"], 2, "--quality: has no effect without --resize");
    check(&["--resize", "8", "--quality", "101"], 1, "a quality of 101 is out of range: 1 to 100");
    check(&["--form", "png"], 2, "invalid value 'png' for '--form <FORM>' [possible values: jpeg, raw]");

    // The tutorials' words of other tools.
    let ended = pack(&data, &file, &["--write_mode", "jpg", "--max_resolution", "8", "--jpeg_quality", "80"]).well();
    assert!(
        ended.stdout.contains(": 12 images for training and 3 for validation, in 3 classes; 0.0 MiB\n"),
        "{ended:?}"
    );
    refused(&pack(&data, &file, &[]), 1, &["photos.enmasse: it exists: remove it, or choose another name"]);
    let stats = enmasse(&["data", "stats", &file.display().to_string(), "--size", "8", "--split-seed", "3"]).well();
    assert!(stats.stdout.starts_with("training: 12 images in 3 classes\n"), "{stats:?}");
    let warning = "--split-seed 3 has no effect on a data set that comes in parts for training and validation";
    assert_eq!(stats.stderr, format!("warning: {warning}\n"));
}

/// The flags that say where classes are found were unknown, so such data could not be packed.
#[test]
fn named_images_and_manifests() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let (flat, list) = (folder.path().join("flat"), folder.path().join("list.csv"));
    fs::create_dir(&flat).unwrap();
    let mut rows = "one,other,label\n".to_owned();
    for class in ["dark", "light", "red"] {
        for entry in fs::read_dir(data.join(class)).unwrap().map(|entry| entry.unwrap()) {
            let name = entry.file_name().into_string().unwrap();
            fs::copy(entry.path(), flat.join(format!("{class}.{name}"))).unwrap();
            rows += &format!("none/{name},{class}/{name},{class}\n");
        }
    }
    fs::write(&list, rows).unwrap();
    let check = |data: &Path, name: &str, flags: &[&str]| {
        let object = pack(data, &folder.path().join(name), &[&["--json"], flags].concat()).well().json().remove(0);
        let counts = ["classes", "train", "validation"].map(|count| object[count].as_u64().unwrap());
        assert_eq!(counts, [3, 12, 3], "{name}");
    };
    check(&flat, "flat.enmasse", &["--label-pattern", "{class}.{number}.*"]);
    let root = data.display().to_string();
    check(&list, "list.enmasse", &["--path-column", "other", "--manifest-root", &root]);
}

#[test]
fn bad_images_and_damaged_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let file = folder.path().join("photos.enmasse");
    fs::write(data.join("red/000.png"), "").unwrap();
    let strict = pack(&data, &file, &["--on-bad-sample", "error"]);
    refused(&strict, 1, &["red/000.png: the file is empty; to go on", "--on-bad-sample skip"]);
    let ended = pack(&data, &file, &["--json"]).well();
    assert_eq!(ended.json()[0]["unreadable"], 1);
    assert!(ended.stderr.contains("unreadable: 1 image was skipped: "), "{ended:?}");

    let text = file.display().to_string();
    let check = |bytes: &[u8], mention: &str| {
        fs::write(&file, bytes).unwrap();
        for line in [&["train", &text][..], &["data", "stats", &text]] {
            refused(&enmasse(line), 1, &[mention]);
        }
    };
    let whole = fs::read(&file).unwrap();
    check(&whole[..whole.len() - 1], "truncated, or still being copied; copy it again");
    let newer = [&whole[..8], &[5], &whole[9..]].concat();
    check(&newer, "it is a packed file of version 5, and this program reads versions 1 to 4");
}

/// Ctrl-C ends it at once, also while a disk does not answer, and leaves no file.
#[test]
fn an_interrupted_one_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let lease = Lease::replace(&data.join("red/003.jpg"));
    let running = Running::start(program().args(["data", "pack"]).arg(&data).arg(out.join("photos.enmasse")));
    until("a reader", || lease.is_awaited().then_some(()));
    running.signal(Signal::INT);
    let ended = running.finish();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(130), "interrupted\n"));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}
