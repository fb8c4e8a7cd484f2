//! `--recompute`: blocks that backward computes again, by a budget of memory.

use crate::common::runs::assert_same;
use crate::common::{Ended, enmasse, failed, finish, images, program, refused};

const PLAN: [&str; 8] = ["plan", "print", "--model", "resnet18-cifar", "--size", "32", "--batch", "8"];

fn print(flags: &[&str]) -> Ended {
    enmasse(&[&PLAN, &["--devices", "cpu:1"][..], flags].concat())
}

/// The line of the plan about what is computed again.
fn line(ended: &Ended) -> Option<&str> {
    ended.stdout.lines().find(|line| line.starts_with("recompute "))
}

#[test]
fn a_plan_says_what_is_computed_again() {
    let all = print(&["--recompute"]).well();
    assert!(line(&all).unwrap().starts_with("recompute 8 of 8 blocks, "), "{}", all.stdout);
    for words in [&["--recompute", "all"][..], &["--grad-checkpointing"], &["--grad-checkpointing", "True"]] {
        assert_eq!(print(words).well().stdout, all.stdout, "{words:?}");
    }
    assert_eq!(line(&print(&["--no-recompute"]).well()), None);
    assert_eq!(line(&print(&["--no-grad-checkpointing"]).well()), None);
    assert!(line(&print(&["--recompute", "4GiB"]).well()).unwrap().starts_with("recompute 0 of 8 blocks, "));
    let some = print(&["--recompute", "92%"]).well();
    let again: usize = line(&some).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    assert!((1..8).contains(&again), "{}", some.stdout);
    let none = print(&["--recompute", "1MiB"]);
    failed(&none, 1, &["--recompute within 1024 KiB: no choice of blocks to compute again takes less than ", " MiB"]);
    refused(&print(&["--recompute=half"]), 2, &["--recompute half: must be all, auto, a number of bytes"]);
    refused(&print(&["--recompute", "auto"]), 2, &["--recompute auto follows from what is free when a run starts"]);
}

/// On any number of ranks, which choose the same.
#[test]
fn a_run_within_a_budget_has_the_bits_of_one_without() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8).display().to_string();
    let run = |name: &str, flags: &[&str]| {
        let place = folder.path().join(name);
        let out = place.display().to_string();
        let fixed =
            ["train", &data, "--model", "lenet", "--size", "32", "--batch", "2", "--epochs", "1", "--out", &out];
        let ended = enmasse(&[&fixed, &["--shards", "2", "--threads", "1"][..], flags].concat()).well();
        (place, ended.stderr)
    };
    let (usual, said) = run("usual", &["--devices", "cpu:2"]);
    assert!(!said.contains("recompute"), "{said}");
    let (again, said) = run("again", &["--devices", "cpu:2", "--recompute", "99%"]);
    let line = said.lines().find(|line| line.contains("recompute ")).unwrap();
    assert!(line.starts_with("memory:   recompute ") && line.ends_with(" % more operations"), "{line}");
    assert_same(&again, &usual);
    // It fits.
    let (auto, said) = run("auto", &["--devices", "cpu:1", "--recompute", "auto"]);
    assert!(!said.lines().any(|line| line.starts_with("memory:   recompute")), "{said}");
    assert_same(&auto, &usual);
}

#[test]
fn what_does_not_fit_on_the_gpu_is_computed_again() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let on_gpu = |mebibytes: &str, arguments: &[&str]| {
        let mut command = program();
        command.env_remove("CUDA_VISIBLE_DEVICES").env("ENMASSE_CUDA_LIBRARIES", emulation);
        finish(command.env("EMULATED_GPU_MIB", mebibytes).args(arguments))
    };
    let model = ["--model", "lenet", "--size", "32", "--batch", "1024", "--devices", "gpu:1"];
    let memory = |flags: &[&str]| -> f64 {
        let printed = on_gpu("4096", &[&["plan", "print"], &model[..], flags].concat()).well().stdout;
        let line = printed.lines().find_map(|line| line.strip_prefix("memory of a rank: ")?.strip_suffix(" MiB"));
        line.unwrap().parse().unwrap()
    };
    let without = memory(&[]);
    let with = memory(&["--recompute"]);
    assert!(with + 4.0 < without, "{with} of {without} MiB");
    let between = ((without + with) / 2.0).round().to_string();
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8).display().to_string();
    let out = folder.path().join("run").display().to_string();
    let train = ["train", &data, "--max-steps", "1", "--out", &out];
    failed(&on_gpu(&between, &[&train, &model[..]].concat()), 1, &["the run needs ", "(on the device)"]);
    let ended = on_gpu(&between, &[&train, &model[..], &["--recompute", "auto"]].concat()).well();
    assert!(ended.stderr.lines().any(|line| line.starts_with("memory:   recompute ")), "{}", ended.stderr);
}
