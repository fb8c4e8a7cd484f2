//! `--on-bad-sample` on files that are damaged or gone: the same weights and the same list on any number of ranks.

use std::fs;
use std::path::Path;

use crate::common::runs::{arguments, figures, tensors};
use crate::common::{Ended, enmasse, failed, images, metrics};

#[test]
fn damaged_images_are_skipped_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    let spoil = |name: &str, bytes: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let path = data.join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, bytes(whole)).unwrap();
        path.display().to_string()
    };
    let empty = spoil("dark/003.jpg", &|_| Vec::new());
    let cut = spoil("light/005.jpg", &|whole| whole[..whole.len() / 2].to_vec());
    let run = |name: &str, others: &[&str]| {
        let out = folder.path().join(name);
        let fixed = ["--epochs", "2", "--lr", "0.001", "--shards", "2", "--on-bad-sample", "skip"];
        (enmasse(&arguments(&data, &out, &[&fixed, others].concat())), out)
    };
    let list = |out: &Path| fs::read_to_string(out.join("logs/unreadable.txt")).unwrap();
    let (one, alone) = run("one", &["--devices", "cpu:1"]);
    let (two, together) = run("two", &["--devices", "cpu:2"]);
    let (one, two) = (one.well(), two.well());
    assert_eq!(figures(&one), figures(&two));
    assert!(tensors(&alone, "last.safetensors") == tensors(&together, "last.safetensors"));
    let expected = list(&alone);
    let names: Vec<&str> = expected.lines().map(|line| line.split_once('\t').unwrap().0).collect();
    assert_eq!((names, list(&together)), (vec![empty.as_str(), &cut], expected.clone()));
    assert_eq!(metrics(&together)[1]["unreadable"], 2);
    for (ended, out) in [(&one, &alone), (&two, &together)] {
        let warnings = ended.stderr.lines().filter(|line| line.starts_with("warning: ")).collect::<Vec<_>>();
        assert!(warnings.len() == 1 && warnings[0].contains("skipped an image that cannot be read: "), "{warnings:?}");
        let last = ended.stderr.lines().find(|line| line.starts_with("unreadable: ")).unwrap();
        let begin = format!("unreadable: 2 images were skipped: {empty} (the file is empty), {cut} (");
        let end = format!("; listed in {}", out.join("logs/unreadable.txt").display());
        assert!(last.starts_with(&begin) && last.ends_with(&end), "{last}");
    }

    // An evaluation of the run skips as the run did, and counts what it evaluated.
    let (run, all) = (alone.display().to_string(), data.display().to_string());
    for devices in ["cpu:1", "cpu:3"] {
        let eval = |others: &[&str]| {
            let fixed = ["eval", run.as_str(), &all, "--split", "all", "--batch", "4", "--devices", devices];
            enmasse(&[&fixed, others].concat())
        };
        let ended = eval(&["--json"]).well();
        assert_eq!((&ended.json()[0]["samples"], &ended.json()[0]["unreadable"]), (&58.into(), &2.into()));
        let ended = eval(&[]).well();
        assert!(ended.stdout.starts_with("all images, 58 images, 2 unreadable: accuracy "), "{ended:?}");
        assert!(ended.stderr.contains("unreadable: 2 images were skipped: "), "{ended:?}");
        let ended = eval(&["--on-bad-sample", "error"]);
        let refusal = "; to go on without such images, use --on-bad-sample skip";
        assert!(ended.code == Some(1) && ended.stderr.contains(refusal), "{ended:?}");
    }
}

/// Any number of images was skipped, so that a run could go on with a tenth of its data.
#[test]
fn too_many_unreadable_images_end_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    let run = |spoiled: usize, out: &str, others: &[&str]| {
        // Every other image is a JPEG.
        let names =
            ["dark", "light"].map(|class| (1..20).step_by(2).map(move |number| format!("{class}/{number:03}.jpg")));
        names.into_iter().flatten().take(spoiled).for_each(|name| fs::write(data.join(name), "").unwrap());
        let fixed = ["--epochs", "1", "--lr", "0.001"];
        enmasse(&arguments(&data, &folder.path().join(out), &[&fixed, others].concat()))
    };
    // Ten of sixty images.
    let ended = run(10, "ten", &["--devices", "cpu:2"]).well();
    assert!(ended.stderr.contains("unreadable: 10 images were skipped: "), "{ended:?}");
    for devices in ["cpu:1", "cpu:3", "cpu:3 --ranks thread"] {
        let flags: Vec<&str> = ["--devices"].into_iter().chain(devices.split(' ')).collect();
        let ended = run(11, devices, &flags);
        let limit = "11 images cannot be read, and at most 10 are skipped (1 % of the data set, at least 10): ";
        failed(&ended, 1, &[limit, " and 8 more; mend or remove them", "--on-bad-sample substitute"]);
    }
    let ended = run(11, "any", &["--devices", "cpu:1", "--on-bad-sample", "substitute"]).well();
    assert!(ended.stderr.contains("unreadable: 11 images were skipped: "), "{ended:?}");
}

/// Nothing evaluated such a class, and nobody was told.
#[test]
fn a_class_without_a_validation_image_is_named_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    fs::create_dir(data.join("rare")).unwrap();
    fs::copy(data.join("red/001.jpg"), data.join("rare/1.jpg")).unwrap();
    let ended = enmasse(&arguments(&data, &folder.path().join("run"), &["--epochs", "1", "--devices", "cpu:2"])).well();
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("no image for validation")).collect();
    assert_eq!(lines, ["warning: 1 class has no image for validation, so nothing evaluates it: rare"]);
}

/// A file that vanishes after the run has listed it is skipped by the part of the run that follows.
#[test]
fn a_resumed_run_goes_on_with_its_list() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    let out = folder.path().join("run");
    let fixed = ["--lr", "0.001", "--devices", "cpu:1", "--on-bad-sample", "skip"];
    let run = |others: &[&str]| enmasse(&arguments(&data, &out, &[&fixed, others].concat())).well();
    fs::write(data.join("red/001.jpg"), "text").unwrap();
    run(&["--epochs", "1"]);
    fs::remove_file(data.join("dark/001.jpg")).unwrap();
    let part = fs::read_to_string(out.join("split.json")).unwrap();
    assert!(part.contains("dark/001.jpg"));
    let ended = run(&["--epochs", "2", "--resume"]);
    assert!(ended.stderr.contains("unreadable: 2 images were skipped: "), "{ended:?}");
    let list = fs::read_to_string(out.join("logs/unreadable.txt")).unwrap();
    assert!(list.contains("dark/001.jpg\tno such file or directory\n"), "{list}");
    assert!(list.contains("red/001.jpg\tnot a JPEG, PNG, WebP, BMP or GIF image, but text\n"), "{list}");
    assert_eq!(metrics(&out).iter().map(|epoch| epoch["unreadable"].clone()).collect::<Vec<_>>(), [1, 2]);
}

/// Training left out pipes and broken links without a word.
#[test]
fn what_is_no_image_is_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    let out = folder.path().join("run");
    let (link, pipe) = (data.join("dark/lost.jpg"), data.join("red/pipe.jpg"));
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let (run, all) = (out.display().to_string(), data.display().to_string());
    let named = format!("{} (a broken link), {} (a pipe)", link.display(), pipe.display());
    let told = format!("left out 2 entries: {named}");
    let check = |ended: Ended| {
        let lines = ended.stderr.lines().chain(ended.stdout.lines()).filter(|line| line.contains("left out"));
        assert_eq!(lines.collect::<Vec<_>>(), [format!("warning: {told}")]);
    };
    check(enmasse(&arguments(&data, &out, &["--devices", "cpu:2"])).well());
    for devices in ["cpu:1", "cpu:2", "cpu:2 --ranks thread"] {
        let fixed = ["eval", &run, &all, "--split", "all", "--batch", "4", "--devices"];
        check(enmasse(&fixed.into_iter().chain(devices.split(' ')).collect::<Vec<_>>()).well());
    }
    check(enmasse(&["predict", &run, &all]).well());
    let page = enmasse(&["doctor", "--data", &all]);
    let page = page.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("left out 2 entries: "), "{page}");
}

/// A pipe that took the place of an image after the scan stopped a loader thread for ever.
#[test]
fn a_pipe_in_the_place_of_an_image_is_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    let out = folder.path().join("run");
    let run = |others: &[&str]| {
        enmasse(&arguments(&data, &out, &[&["--lr", "0.001", "--devices", "cpu:1"], others].concat()))
    };
    run(&["--epochs", "1"]).well();
    // The run's list of files has both names.
    for name in ["red/001.jpg", "light/001.jpg"] {
        fs::remove_file(data.join(name)).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, data.join(name), rustix::fs::Mode::RWXU).unwrap();
    }
    let ended = run(&["--epochs", "2", "--resume", "--on-bad-sample", "error"]);
    let problem = "001.jpg: it is a pipe, not a file";
    assert!(ended.code == Some(1) && ended.stderr.contains(problem), "{ended:?}");
    run(&["--epochs", "2", "--resume", "--on-bad-sample", "skip"]).well();
    let list = fs::read_to_string(out.join("logs/unreadable.txt")).unwrap();
    assert_eq!(list.matches("/001.jpg\tit is a pipe, not a file\n").count(), 2, "{list}");

    let run = out.display().to_string();
    let pipe = data.join("red/001.jpg").display().to_string();
    let ended = enmasse(&["predict", &run, &pipe]);
    assert!(ended.code == Some(1) && ended.stderr.contains("red/001.jpg: it is a pipe, not a file"), "{ended:?}");
}

/// Regression test: rank 0, which the launcher stopped, told that it saves.
#[test]
fn a_failure_is_told_as_no_request_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    fs::write(data.join("dark/003.jpg"), "").unwrap();
    for number in 0..4 {
        let out = folder.path().join(number.to_string());
        let ended = enmasse(&arguments(&data, &out, &["--devices", "cpu:2", "--on-bad-sample", "error"]));
        failed(&ended, 1, &["dark/003.jpg"]);
        assert!(!ended.stderr.contains("terminated"), "{}", ended.stderr);
    }
}
