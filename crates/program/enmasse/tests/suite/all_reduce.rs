//! `--all-reduce`: ranks train by every algorithm, and a run says which.

use crate::common::runs::{arguments, tensors};
use crate::common::{enmasse, images, refused};

#[test]
fn ranks_train_by_every_algorithm_to_the_same_weights_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = |name: &str, others: &[&str]| {
        let out = folder.path().join(name);
        let fixed = "--model lenet --size 16 --epochs 1 --batch 1 --check-ranks --devices cpu:3".split(' ');
        let fixed: Vec<&str> = fixed.collect();
        let ended = enmasse(&arguments(&data, &out, &[&fixed, others].concat())).well();
        let config = std::fs::read_to_string(out.join("config.toml")).unwrap();
        (tensors(&out, "last.safetensors"), config, ended.stderr)
    };
    let (tree, ..) = run("tree", &[]);
    for name in ["ring", "halving-doubling", "direct", "hierarchical"] {
        let (found, config, _) = run(name, &["--all-reduce", name]);
        assert!(config.contains(&format!("all_reduce = \"{name}\"")), "{config}");
        // Over other sums rounding differs.
        let near = tree.iter().zip(&found).all(|(one, other)| one.0 == other.0);
        assert!(near && found.len() == tree.len(), "{name}");
        // Ranks as threads, and again, have the same bits.
        assert!(run(&format!("{name} threads"), &["--all-reduce", name, "--ranks", "thread"]).0 == found, "{name}");
    }
    // On one node nothing costs less than the tree.
    let (chosen, config, told) = run("auto", &["--all-reduce", "auto"]);
    assert!(config.contains("all_reduce = \"auto\""), "{config}");
    assert!(
        chosen == tree && told.contains("sums:     all-reduce tree (auto: 0.1 MiB over 3 ranks on 1 node)\n"),
        "{told}"
    );
    for name in ["ring", "auto"] {
        let alone = run(&format!("{name} alone"), &["--devices", "cpu:1", "--all-reduce", name]).2;
        assert!(alone.contains(&format!("--all-reduce {name} has no effect with one rank")), "{alone}");
        assert!(!alone.contains("sums: "), "{alone}");
    }
}

/// Regression test: launched ranks met for the tree, and the plan named the algorithm of the run that they went on with.
#[test]
fn launched_ranks_resume_by_the_algorithm_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let launch = |arguments: &[String]| {
        let launcher = ["launch", "-n", "3", env!("CARGO_BIN_EXE_enmasse")].map(str::to_owned);
        enmasse(&[&launcher[..], arguments].concat()).well();
    };
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let begin = |out, epochs| launch(&arguments(&data, out, &["--all-reduce", "ring", "--epochs", epochs]));
    begin(&whole, "2");
    begin(&parts, "1");
    launch(&["train", "--resume", &parts.display().to_string(), "--epochs", "2"].map(str::to_owned));
    assert!(tensors(&whole, "last.safetensors") == tensors(&parts, "last.safetensors"), "other sums");
}

#[test]
fn plans_name_the_algorithm() {
    let plan = ["plan", "print", "--model", "lenet", "--shards", "2"];
    let named = enmasse(&[&plan[..], &["--all-reduce", "halving-doubling"]].concat()).well().stdout;
    assert!(named.contains(", all-reduce halving-doubling\n"), "{named}");
    assert!(!enmasse(&plan).well().stdout.contains("all-reduce"));
}

#[test]
fn algorithms_that_have_no_place_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let out = folder.path().join("run");
    let check = |others: &[&str], expected: &str| {
        refused(&enmasse(&arguments(&data, &out, others)), 2, &[expected]);
    };
    check(&["--all-reduce", "star"], "must be tree or ring or halving-doubling or direct or hierarchical or auto");
    for name in ["ring", "auto"] {
        check(
            &["--strategy", "dp", "--devices", "cpu:2", "--all-reduce", name],
            &format!("--all-reduce {name}: needs --strategy ddp, in which all ranks get all sums"),
        );
    }
}
