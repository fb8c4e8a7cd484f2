//! `--strategy zero1`: the bits of ranks that all update, and checkpoints that do not know which rank had what.

use crate::common::enmasse;
use crate::common::runs::{Folder, assert_same, tensors};

const ADAMW: [&str; 7] = ["--optimizer", "adamw", "--clip-norm", "0.5", "--ema", "0.5", "--check-ranks"];

#[test]
fn ranks_that_update_a_part_give_the_bits_of_ranks_that_all_update() {
    let runs = Folder::new("2");
    let check = |devices: &str, others: &[&str]| {
        let [ddp, zero] = ["ddp", "zero1"].map(|strategy| {
            let run = runs.path(&format!("{devices} {strategy} {}", others.len()));
            let fixed = ["--devices", devices, "--strategy", strategy];
            let ended = enmasse(&runs.arguments(&run, &[&fixed, others].concat())).well();
            let start: serde_json::Value = serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
            (run, start["memory_bytes"].as_u64().unwrap())
        });
        assert!(tensors(&ddp.0, "last.safetensors") == tensors(&zero.0, "last.safetensors"), "{devices} {others:?}");
        [ddp.1, zero.1]
    };
    check("cpu:2", &ADAMW);
    check("cpu:3", &[&ADAMW[..], &["--ranks", "process"]].concat());
    check("reference:2", &ADAMW);
    // 43 MiB of momentum, of which each rank has a half. What processes have before the run differs by some of 0.1 MiB.
    let [ddp, zero] = check(
        "cpu:2",
        &["--model", "resnet18", "--size", "32", "--max-steps", "2", "--optimizer", "lars", "--ranks", "thread"],
    );
    assert!(zero + (20 << 20) < ddp, "{zero} bytes, of ddp {ddp}");
}

#[test]
fn checkpoints_do_not_know_of_the_parts() {
    let runs = Folder::new("2");
    let run = |name: &str, others: &[&str]| {
        let fixed = [&ADAMW[..], &["--shards", "6", "--batch", "1"]].concat();
        enmasse(&runs.arguments(&runs.path(name), &[&fixed, others].concat())).well();
    };
    let zero = |devices: &'static str| ["--devices", devices, "--strategy", "zero1"];
    let ddp = |devices: &'static str| ["--devices", devices, "--strategy", "ddp"];
    run("whole", &ddp("cpu:3"));
    let check = |name: &str, first: [&str; 4], second: [&str; 4]| {
        run(name, &[&first[..], &["--max-steps", "3"]].concat());
        run(name, &[&second[..], &["--resume"]].concat());
        let [found, expected] = [name, "whole"].map(|run| tensors(&runs.path(run), "last.safetensors"));
        assert!(found == expected, "{name}");
    };
    check("fewer ranks", zero("cpu:3"), zero("cpu:2"));
    check("more ranks", zero("cpu:2"), zero("cpu:5"));
    check("to ddp", zero("cpu:3"), ddp("cpu:2"));
    check("from ddp", ddp("cpu:2"), zero("cpu:3"));
    check("to one rank", zero("cpu:2"), ddp("cpu:1"));
}

#[test]
fn one_rank_has_nothing_to_share() {
    let runs = Folder::new("1");
    let [ddp, zero] = ["ddp", "zero1"].map(|strategy| {
        let run = runs.path(strategy);
        let ended = enmasse(&runs.arguments(&run, &["--devices", "cpu:1", "--strategy", strategy])).well();
        (run, ended.stderr)
    });
    assert_same(&ddp.0, &zero.0);
    let line = "--strategy zero1 has no effect with one rank";
    assert!(zero.1.contains(line) && !ddp.1.contains(line), "{}", zero.1);
}
