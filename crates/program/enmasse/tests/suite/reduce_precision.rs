//! `--reduce-precision` on CPUs: where it has no effect a line says so, and plans say what it does.

use crate::common::runs::{Folder, arguments, assert_same};
use crate::common::{enmasse, images, refused};

#[test]
fn ranks_that_share_memory_round_nothing_and_say_so() {
    let runs = Folder::new("1");
    let run = |name: &str, others: &[&str]| {
        let out = runs.path(name);
        let ended = enmasse(&runs.arguments(&out, others)).well();
        (out, ended.stderr)
    };
    let (exact, _) = run("f32", &["--devices", "cpu:2"]);
    for precision in ["bf16", "f16"] {
        let narrow = ["--devices", "cpu:2", "--reduce-precision", precision];
        let (out, told) = run(precision, &narrow);
        assert_same(&exact, &out);
        let line = format!("--reduce-precision {precision} has no effect: all ranks share memory, and sum f32 there");
        assert_eq!(told.lines().filter(|found| found.contains(&line)).count(), 1, "{told}");
    }
    let (_, told) = run("alone", &["--devices", "cpu:1", "--reduce-precision", "bf16"]);
    assert!(told.contains("--reduce-precision bf16 has no effect with one rank"), "{told}");
}

#[test]
fn plans_say_what_crosses_between_nodes() {
    let plan = ["plan", "print", "--model", "lenet", "--shards", "2"];
    for precision in ["bf16", "f16"] {
        let narrow = enmasse(&[&plan[..], &["--reduce-precision", precision]].concat()).well().stdout;
        let buckets: Vec<&str> = narrow.lines().filter(|line| line.starts_with("bucket ")).collect();
        let (metrics, gradients) = buckets.split_last().unwrap();
        let ending = format!(" in {precision} between nodes");
        assert!(!gradients.is_empty() && gradients.iter().all(|bucket| bucket.ends_with(&ending)), "{narrow}");
        assert!(!metrics.contains("between nodes"), "{narrow}");
        assert!(narrow.contains("\narena residuals "), "{narrow}");
    }
    let exact = enmasse(&plan).well().stdout;
    assert!(!exact.contains("residuals") && !exact.contains("between nodes"), "{exact}");
}

#[test]
fn what_sums_otherwise_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let out = folder.path().join("run");
    let check = |others: &[&str], expected: &str| {
        let narrow = ["--devices", "cpu:2", "--reduce-precision", "f16"];
        refused(&enmasse(&arguments(&data, &out, &[&narrow, others].concat())), 2, &[expected]);
    };
    let of_parts = "--reduce-precision f16: needs --strategy ddp, in which all ranks get all sums";
    check(&["--strategy", "zero1"], of_parts);
    check(&["--strategy", "dp"], of_parts);
    check(&["--all-reduce", "ring"], "--reduce-precision f16: needs --all-reduce tree");
    check(&["--model", "resnet18", "--stages", "layer3"], "--reduce-precision f16: needs a model without --stages");
    check(&["--sum", "tree"], "--reduce-precision f16: --sum tree sums f32 alone; use one of them");
}
