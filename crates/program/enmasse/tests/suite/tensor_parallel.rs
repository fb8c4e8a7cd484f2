//! `--tensor-parallel`: layers cut over ranks, with the weights of whole layers up to the rounding of sums.

use std::fs;
use std::path::Path;

use crate::common::runs::{Folder, assert_same, figures, tensors};
use crate::common::{Running, enmasse, exists, failed, program, refused, send};
use rustix::process::Signal;

/// Of each tensor the largest difference relative to its largest value is at most this.
const ROUNDING: f32 = 1e-4;

/// Asserts that the last checkpoints of two runs have the same tensors up to rounding.
#[track_caller]
fn assert_near(one: &Path, other: &Path) {
    let [one, other] = [one, other].map(|run| tensors(run, "last.safetensors"));
    assert_eq!(one.len(), other.len());
    for ((name, one), (same, other)) in one.into_iter().zip(other) {
        assert_eq!((&name, one.len()), (&same, other.len()));
        let values = one.into_iter().zip(other).map(|(one, other)| (f32::from_bits(one), f32::from_bits(other)));
        let largest = values.clone().map(|(one, _)| one.abs()).fold(1e-6, f32::max);
        let most = values.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(most <= ROUNDING * largest, "{name}: {most} of {largest}");
    }
}

#[test]
fn cut_layers_train_as_whole_ones_do() {
    let folder = Folder::new("2");
    let check = |name: &str, model: &[&str], shards: &str, cut: &[&str]| {
        let place = |kind: &str| folder.path(&format!("{name} {kind}"));
        let one = [model, &["--devices", "cpu:1", "--shards", shards]].concat();
        enmasse(&folder.arguments(&place("one"), &one)).well();
        let run =
            |kind: &str| enmasse(&folder.arguments(&place(kind), &[model, cut, &["--check-ranks"]].concat())).well();
        let (first, again) = (run("cut"), run("again"));
        assert_near(&place("one"), &place("cut"));
        assert_eq!(figures(&again), figures(&first), "{name}");
        assert_same(&place("cut"), &place("again"));
    };
    check("two", &[], "1", &["--tensor-parallel", "2", "--devices", "cpu:2"]);
    check("replicas", &[], "2", &["--tensor-parallel", "2", "--devices", "cpu:4"]);
    let threads = ["--tensor-parallel", "4", "--devices", "cpu:4", "--ranks", "thread"];
    check("four", &[], "1", &threads);
}

/// A run may be cut, and go on whole or over other ranks; its weights are those of any other.
#[test]
fn checkpoints_do_not_depend_on_the_cut() {
    let folder = Folder::new("2");
    let one = ["--devices", "cpu:1", "--shards", "1"];
    let two = ["--tensor-parallel", "2", "--devices", "cpu:2"];
    let four = ["--tensor-parallel", "4", "--devices", "cpu:4"];
    let whole = ["--tensor-parallel", "1", "--devices", "cpu:1"];
    let run = |name: &str, others: &[&str]| enmasse(&folder.arguments(&folder.path(name), others)).well();
    run("whole", &one);
    run("two", &two);
    for (name, begins, goes_on) in [
        ("stopped", &two[..], &two[..]),
        ("two to four", &two, &four),
        ("two to one", &two, &whole),
        ("one to two", &one, &two),
    ] {
        run(name, &[begins, &["--max-steps", "3"]].concat());
        run(name, &[&["--resume"], goes_on].concat());
        assert_near(&folder.path("whole"), &folder.path(name));
    }
    assert!(tensors(&folder.path("two"), "last.safetensors") == tensors(&folder.path("stopped"), "last.safetensors"));
    // Its weights begin another run, and are exported.
    let (run_folder, weights) = (folder.path("two"), folder.path("weights.pth"));
    enmasse(&["export", run_folder.to_str().unwrap(), "--to", "pth", "--out", weights.to_str().unwrap()]).well();
    let begin = ["--weights", weights.to_str().unwrap(), "--max-steps", "1"];
    run("from weights", &[&begin[..], &one].concat());
    run("from weights, cut", &[&begin[..], &four].concat());
    assert_near(&folder.path("from weights"), &folder.path("from weights, cut"));
}

#[test]
fn the_plan_says_what_is_cut_and_what_it_takes() {
    let print = |model: &str, size: &str, others: &[&str]| {
        let words = ["plan", "print", "--model", model, "--size", size, "--batch", "2"];
        enmasse(&[&words[..], others].concat()).well().stdout
    };
    let parameters = |text: &str| -> f64 {
        let line = text.lines().find(|line| line.trim_start().starts_with("parameters ")).unwrap();
        line.split_whitespace().nth(1).unwrap().replace(',', "").parse().unwrap()
    };
    let [one, two] = [&["--devices", "cpu:1"][..], &["--devices", "cpu:2", "--tensor-parallel", "2"]]
        .map(|devices| print("vgg11", "224", devices));
    assert!(two.contains("tensor parallel over 2 ranks: classifier.0 by columns, classifier.3 by rows"), "{two}");
    // 119.5 of 132.9 million parameters are halved.
    let share = parameters(&two) / parameters(&one);
    assert!((0.52..0.57).contains(&share), "{share}");
    let vit = print("vit_tiny_patch16_224", "32", &["--devices", "cpu:3", "--tensor-parallel", "3"]);
    let first = "tensor parallel over 3 ranks: blocks.0.attn.qkv by heads, blocks.0.attn.proj by rows, \
                 blocks.0.mlp.fc1 by columns, blocks.0.mlp.fc2 by rows, ";
    assert!(vit.contains(first), "{vit}");
}

#[test]
fn what_needs_whole_layers_is_refused() {
    let folder = Folder::new("1");
    let out = folder.path("refused");
    let two = ["--tensor-parallel", "2"];
    let check = |others: &[&str], mention: &str| {
        let devices = if others[0] == "--devices" { &[][..] } else { &["--devices", "cpu:2"] };
        refused(&enmasse(&folder.arguments(&out, &[&two[..], devices, others].concat())), 2, &[mention]);
        assert!(!out.exists(), "{others:?}");
    };
    check(
        &["--strategy", "zero1"],
        "--strategy zero1: does not work with layers cut by --tensor-parallel; use --strategy ddp",
    );
    check(&["--stages", "fc2"], "--stages fc2: does not work with layers cut by --tensor-parallel; use one of them");
    check(&["--clip-norm", "1"], "--clip-norm 1: does not work with layers cut by --tensor-parallel");
    check(&["--optimizer", "lars"], "--optimizer lars: does not work with layers cut by --tensor-parallel");
    check(&["--devices", "cpu:3"], "layers cut over 2 ranks need 2 ranks or a multiple of them, got 3");
    let other = |others: &[&str], mention: &str| {
        failed(&enmasse(&folder.arguments(&out, others)), 1, &[mention]);
    };
    other(&["--devices", "cpu:3", "--tensor-parallel", "3"], "layer fc1: its 256 outputs cannot be cut over 3 ranks");
    let without = ["--devices", "cpu:2", "--tensor-parallel", "2", "--model", "resnet18", "--size", "32"];
    other(&without, "tensor parallelism has nothing to cut");
}

#[test]
fn a_rank_that_dies_ends_the_others() {
    let folder = Folder::new("1000000");
    let out = folder.path("run");
    let others = ["--devices", "cpu:4", "--tensor-parallel", "2"];
    let mut running = Running::start(program().args(folder.arguments(&out, &others)));
    assert!(running.line().contains("\"epoch\":0"));
    let ranks = running.children();
    send(ranks[1], Signal::KILL);
    let ended = running.finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let story = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(story.contains("rank 1 ") && story.contains("signal 9"), "{ended:?}");
    assert!(ranks.iter().all(|pid| !exists(*pid)));
    fs::remove_dir_all(out).unwrap();
}
