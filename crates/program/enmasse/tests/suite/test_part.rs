//! The test part of data: opened with them, evaluated at the end of a run with its best weights, and by `eval --split test`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::runs::arguments;
use crate::common::{Ended, enmasse, failed, images, metrics};

/// Tiny images in three parts: 36 for training, 12 for validation, 12 for the test.
fn parts(root: &Path) -> PathBuf {
    let whole = images(root, 20);
    let out = root.join("parts");
    let words = [&whole, &out].map(|path| path.display().to_string());
    enmasse(&["data", "split", &words[0], &words[1], "--val", "0.2", "--test", "0.2"]).well();
    out
}

fn train(data: &Path, run: &Path, others: &[&str]) -> Ended {
    enmasse(&arguments(data, run, &[&["--epochs", "3"], others].concat()))
}

fn tests(ended: &Ended) -> Vec<Value> {
    ended.json().into_iter().filter(|event| event["event"] == "test").collect()
}

/// Regression test: a folder `test/` beside `train/` and `val/` was ignored.
#[test]
fn a_test_part_was_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let data = parts(folder.path());
    for (name, others) in [
        ("one", &["--devices", "cpu:1"][..]),
        ("threads", &["--devices", "cpu:2", "--ranks", "thread"]),
        ("processes", &["--devices", "cpu:2"]),
        ("averages", &["--devices", "cpu:2", "--ema", "0.5"]),
    ] {
        let run = folder.path().join(name);
        let ended = train(&data, &run, others).well();
        let facts = "60 images found in 3 classes: 36 for training, 12 for validation, 12 for test";
        assert!(ended.stderr.contains(facts), "{}", ended.stderr);
        assert!(ended.stdout.lines().next().unwrap().contains("\"test_samples\":12"));
        let [test] = &tests(&ended)[..] else { panic!("{ended:?}") };
        assert_eq!((&test["samples"], &test["unreadable"]), (&12.into(), &0.into()));
        assert_eq!(ended.json().last().unwrap()["event"], "done");
        // It is the best epoch's.
        let epochs = metrics(&run);
        assert!(epochs.len() == 3 && epochs.iter().all(|epoch| epoch["event"] == "epoch"));
        let accuracy = |epoch: &Value| epoch["val_accuracy"].as_f64().unwrap();
        let most = epochs.iter().map(accuracy).fold(0.0, f64::max);
        let best = epochs.iter().position(|epoch| accuracy(epoch) == most).unwrap();
        assert_eq!(test["epoch"], best);
        assert_eq!(serde_json::from_str::<Value>(&fs::read_to_string(run.join("test.json")).unwrap()).unwrap(), *test);
        // The commands that evaluate it agree.
        let run = run.display().to_string();
        for command in [&["eval", &run, "--split", "test", "--json"][..], &["test", &run, "--json"]] {
            let found = enmasse(command).well().json().remove(0);
            assert_eq!((&found["part"], &found["samples"]), (&"test".into(), &12.into()), "{command:?}");
            assert_eq!(found["accuracy"], test["accuracy"], "{name} {command:?}");
            let loss = |event: &Value| event["loss"].as_f64().unwrap();
            assert!((loss(&found) - loss(test)).abs() < 1e-5, "{name}: {found} {test}");
        }
    }
}

/// Regression test: a run that ended between its last epoch and the test had "nothing left to do".
#[test]
fn a_run_that_ended_before_its_test_makes_up_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = parts(folder.path());
    let run = folder.path().join("run");
    let own = env!("CARGO_BIN_EXE_enmasse");
    let first = tests(&train(&data, &run, &["--devices", "cpu:2"]).well());
    let path = run.display().to_string();
    let resume = |launch: &[&str], others: &[&str]| {
        enmasse(&[launch, &["train", "--resume", "--out", &path, "--json"], others].concat()).well()
    };
    for launch in [&[][..], &["launch", "-n", "2", own]] {
        fs::remove_file(run.join("test.json")).unwrap();
        let ended = resume(launch, &[]);
        assert_eq!(tests(&ended), first, "{ended:?}");
        assert!(run.join("test.json").exists());
        let again = resume(launch, &[]);
        assert!(tests(&again).is_empty() && again.stderr.contains("nothing left to do"), "{again:?}");
    }
    // Further epochs end in a test of their own, and so does a part of one.
    assert_eq!(tests(&resume(&[], &["--epochs", "4"])).len(), 1);
    assert_eq!(
        tests(&train(&data, &folder.path().join("part"), &["--max-steps", "2"]).well())[0]["epoch"],
        Value::Null
    );
}

#[test]
fn data_without_a_test_part_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = parts(folder.path());
    // Only training and test: the latter validates.
    fs::remove_dir_all(data.join("val")).unwrap();
    let run = folder.path().join("run");
    let ended = train(&data, &run, &["--devices", "cpu:1"]).well();
    assert!(tests(&ended).is_empty() && !run.join("test.json").exists());
    let line = "there is no validation part, so test/ is used for validation; add a validation part (val)";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
    let run = run.display().to_string();
    let none = ["there is no test part besides the one for validation", "--split val"];
    failed(&enmasse(&["eval", &run, "--split", "test"]), 1, &none);
    failed(&enmasse(&["test", &run]), 1, &none);
    enmasse(&["eval", &run, "--split", "val"]).well();
}

/// Regression test: a packed file had no place for a test part.
#[test]
fn a_test_part_was_not_packed() {
    let folder = tempfile::tempdir().unwrap();
    let data = parts(folder.path());
    let run = folder.path().join("run");
    let file = folder.path().join("packed");
    let words = [&data, &file, &run].map(|path| path.display().to_string());
    let packed = enmasse(&["data", "pack", &words[0], &words[1]]).well().stdout;
    assert!(packed.contains("36 images for training, 12 for validation and 12 for test, in 3 classes"), "{packed}");
    let ended = train(&file, &run, &["--devices", "cpu:1"]).well();
    let [test] = &tests(&ended)[..] else { panic!("{ended:?}") };
    for of in [&words[0], &words[1]] {
        let found = enmasse(&["eval", &words[2], of, "--split", "test", "--json"]).well().json().remove(0);
        assert_eq!((&found["accuracy"], &found["samples"]), (&test["accuracy"], &12.into()), "{of}");
    }
}

/// Of a run whose weights stay as they are, the first epoch is the best one.
#[test]
fn a_run_that_no_longer_improves_ends_with_its_test() {
    let folder = tempfile::tempdir().unwrap();
    let data = parts(folder.path());
    let run = folder.path().join("run");
    let others = ["--epochs", "9", "--devices", "cpu:2", "--lr", "1e-30", "--patience", "2"];
    let ended = enmasse(&arguments(&data, &run, &others)).well();
    let said = "stopped early: val_accuracy has not improved for 2 epochs; the best is ";
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with(said)).collect();
    assert!(lines.len() == 1 && lines[0].ends_with(", of epoch 1"), "{}", ended.stderr);
    assert_eq!((metrics(&run).len(), &tests(&ended)[0]["epoch"]), (3, &0.into()));
    assert_eq!(ended.json().last().unwrap()["event"], "done");
    let path = run.display().to_string();
    let resume = |others: &[&str]| enmasse(&[&["train", "--resume", "--out", &path], others].concat()).well();
    let left =
        format!("nothing left to do in {path}: it stopped early, after 3 of 9 epochs; use --patience 4 to continue\n");
    assert_eq!(resume(&[]).stdout, left);
    // Its test is made up for, without another epoch.
    fs::remove_file(run.join("test.json")).unwrap();
    let again = resume(&[]);
    assert!(again.stderr.contains(said) && again.stdout.contains("test: "), "{again:?}");
    assert_eq!(metrics(&run).len(), 3);
    // More patience goes on with the count.
    assert!(resume(&["--patience", "4"]).stderr.contains("has not improved for 4 epochs"));
    assert_eq!(metrics(&run).len(), 5);
}
