//! Runs that are shorter than their epochs, and those that keep nothing: trials and searches.

use std::path::Path;

use crate::common::runs::{Folder, assert_same};
use crate::common::{Ended, files, finish, images, program, refused};

/// Runs the program in an empty folder beside its data, and returns what is left there.
fn in_folder(folder: &Path, arguments: &[&str]) -> (Ended, Vec<String>) {
    let place = folder.join("place");
    std::fs::create_dir(&place).unwrap();
    let ended = finish(program().current_dir(&place).args(arguments)).well();
    let left = files(&place).iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    std::fs::remove_dir_all(&place).unwrap();
    (ended, left)
}

const SMALL: [&str; 8] = ["../images", "--model", "mlp", "--size", "8", "--batch", "4", "--threads=1"];

/// The arguments of a small run.
fn small(others: &[&'static str]) -> Vec<&'static str> {
    ["train"].iter().chain(&SMALL).chain(others).copied().collect()
}

#[test]
fn a_fast_dev_run_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), 10);
    for others in [&["--devices", "cpu:1"][..], &["--devices", "cpu:2"], &["--devices", "cpu:2", "--ranks", "thread"]] {
        let others = [others, &["--fast-dev-run", "--epochs", "30", "--out", "run"]].concat();
        let (ended, left) = in_folder(folder.path(), &small(&others));
        assert_eq!(left, [""; 0], "{others:?}");
        let last = ended.stdout.lines().last().unwrap();
        assert!(last.contains(": 1 batch of training and of validation; nothing is kept"), "{last}");
        assert!(ended.stderr.contains("limit:    an epoch trains on 1 of its "), "{}", ended.stderr);
        assert!(ended.stdout.contains("epoch 1/1"), "{}", ended.stdout);
    }
    let launched =
        [&["launch", "-n", "2", "--", env!("CARGO_BIN_EXE_enmasse")], &small(&["--fast-dev-run=2", "--json"])[..]];
    let (ended, left) = in_folder(folder.path(), &launched.concat());
    assert_eq!((left, ended.json().len()), (Vec::new(), 2), "{}", ended.stdout);
    let both = small(&["--fast-dev-run", "--resume"]);
    let ended = finish(program().current_dir(folder.path()).args(&both));
    refused(&ended, 2, &["--resume", "--fast-dev-run", "keeps nothing; use one of them"]);
}

#[test]
fn a_search_for_a_rate_prints_the_line_to_type() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), 10);
    let search = |others: &[&'static str]| {
        let (ended, left) = in_folder(folder.path(), &small(&[&["--find-lr"], others].concat()));
        assert_eq!(left, ["find_lr.svg"]);
        ended
    };
    let ended = search(&["--devices", "cpu:1", "--scale-lr", "linear"]);
    let last = ended.stdout.lines().last().unwrap();
    let line = "enmasse train ../images --size 8 --model mlp --batch 4 --lr ";
    assert!(last.starts_with("it falls fastest at ") && last.contains(line), "{}", ended.stdout);
    assert!(last.contains(" --scale-lr linear") && !last.contains("find"), "{last}");
    let of = |others: &[&'static str]| search(&[others, &["--shards", "2", "--json"]].concat()).json();
    let [one, two] = [of(&["--devices", "cpu:1"]), of(&["--devices", "cpu:2"])];
    // The same bits on any number of ranks.
    assert_eq!(one, two);
    assert_eq!((one.len(), &one[0]["event"]), (1, &"find_lr".into()));
    assert!(one[0]["points"].as_array().unwrap().len() > 30 && one[0]["suggestion"].as_f64().unwrap() > 1e-7);
}

#[test]
fn a_search_for_a_batch_measures_powers_of_two() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), 10);
    // 24 images are for training.
    for (devices, largest) in [("cpu:1", 24), ("cpu:2", 12)] {
        let (ended, left) = in_folder(folder.path(), &small(&["--find-batch", "--json", "--devices", devices]));
        assert_eq!(left, [""; 0]);
        let json = ended.json();
        assert_eq!((json.len(), &json[0]["event"], &json[0]["limit"]), (1, &"find_batch".into(), &"data".into()));
        assert_eq!(json[0]["largest"], largest);
        let points = json[0]["points"].as_array().unwrap();
        let batches: Vec<u64> = points.iter().map(|point| point["batch"].as_u64().unwrap()).collect();
        assert!(batches.iter().zip([1, 2, 4, 8, 16]).all(|(found, expected)| *found == expected), "{batches:?}");
        assert!(points.iter().all(|point| point["images_per_second"].as_f64().unwrap() > 0.0));
        assert!(batches.contains(&json[0]["suggestion"].as_u64().unwrap()));
    }
    let (ended, _) = in_folder(folder.path(), &small(&["--find-batch", "--devices", "cpu:1"]));
    assert!(ended.stdout.contains("  batch  in all  images/s") && ended.stdout.contains(": enmasse train ../images"));
    let both = finish(program().current_dir(folder.path()).args(small(&["--find-batch", "--find-lr"])));
    refused(&both, 2, &["--find-batch", "--find-lr"]);
}

/// The run ends well, with the test of its weights, has nothing left to do, and goes on with more time.
#[test]
fn a_run_whose_time_is_over_is_done() {
    let folder = Folder::new("3");
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path(name));
    let run = |out: &Path, others: &[&str]| finish(program().args(folder.arguments(out, others))).well();
    run(&whole, &["--devices", "cpu:2"]);
    let ended = run(&cut, &["--devices", "cpu:2", "--max-time", "0.0001s"]);
    assert!(ended.stderr.contains("stopped early: the 0.0001s of --max-time are over"), "{}", ended.stderr);
    assert_eq!(ended.json().pop().unwrap()["event"], "done");
    let ended = finish(program().args(["train", "--resume", "--out", cut.to_str().unwrap()])).well();
    let line = "its time is over, after 0 of 3 epochs; use --max-time 0.0002s to continue";
    assert!(ended.stdout.contains(line), "{}", ended.stdout);
    finish(program().args([
        "train",
        "--resume",
        "--max-time",
        "00:01:00:00",
        "--json",
        "--out",
        cut.to_str().unwrap(),
    ]))
    .well();
    assert_same(&whole, &cut);
}

#[test]
fn what_is_less_than_was_meant_is_told() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), 10);
    let limits = ["--limit-train-batches", "2", "--limit_val_batches", "0.5", "--check_val_every_n_epoch", "2"];
    let (ended, _) = in_folder(
        folder.path(),
        &small(&[&limits[..], &["--devices", "cpu:1", "--epochs", "2", "--out", "run"]].concat()),
    );
    for line in ["an epoch trains on 2 of its 6 batches", "validation evaluates 4 of its 6 images, evenly spaced"] {
        assert!(ended.stderr.contains(line), "{}", ended.stderr);
    }
    let epochs: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("epoch ")).collect();
    assert!(!epochs[0].contains("  val ") && epochs[1].contains("  val "), "{epochs:?}");
}
