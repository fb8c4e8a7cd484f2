//! `--stages`: a model that several ranks compute one after another, with the bits of one rank.

use std::fs;

use crate::common::runs::{Folder, assert_same, figures, tensors};
use crate::common::{Running, enmasse, exists, failed, program, refused, send};
use rustix::process::Signal;

/// Two stages of the fully connected model.
const TWO: [&str; 2] = ["--stages", "fc2"];

#[test]
fn stages_train_to_the_bits_of_one_rank() {
    let folder = Folder::new("2");
    let check = |name: &str, model: &[&str], shards: &str, stages: &[&str]| {
        let place = |kind: &str| folder.path(&format!("{name} {kind}"));
        let one = [model, &["--devices", "cpu:1", "--shards", shards]].concat();
        let one = enmasse(&folder.arguments(&place("one"), &one)).well();
        let staged = enmasse(&folder.arguments(&place("stages"), &[model, stages, &["--check-ranks"]].concat())).well();
        assert_eq!(figures(&staged), figures(&one), "{name}");
        assert_same(&place("stages"), &place("one"));
    };
    let adamw = ["--optimizer", "adamw"];
    check("gpipe", &adamw, "3", &[&TWO[..], &["--micro-batches", "3", "--devices", "cpu:2"]].concat());
    let turns = ["--schedule-stages", "1f1b", "--micro-batches", "4", "--devices", "cpu:2", "--ranks", "thread"];
    check("turns", &adamw, "4", &[&TWO[..], &turns].concat());
    check("replicas", &adamw, "4", &[&TWO[..], &["--micro-batches", "2", "--devices", "cpu:4"]].concat());
    check("default", &[], "8", &[&TWO[..], &["--devices", "cpu:2"]].concat());
    let residual = ["--model", "resnet18", "--size", "32", "--limit-train-batches", "2", "--precision", "bf16"];
    let three = ["--stages", "layer2,layer4", "--micro-batches", "2", "--devices", "cpu:3"];
    check("residual", &residual, "2", &three);
}

/// A run may be cut, and go on whole, and the other way round; its weights are those of any other.
#[test]
fn checkpoints_do_not_depend_on_the_cut() {
    let folder = Folder::new("2");
    let fixed = ["--optimizer", "adamw"];
    let one = ["--devices", "cpu:1", "--shards", "2"];
    let cut = ["--micro-batches", "2", "--devices", "cpu:2"];
    let cut = [&TWO[..], &cut].concat();
    let run = |name: &str, others: &[&str]| enmasse(&folder.arguments(&folder.path(name), others));
    run("whole", &[&fixed[..], &one].concat()).well();
    let expected = tensors(&folder.path("whole"), "last.safetensors");
    run("cut first", &[&fixed[..], &cut, &["--max-steps", "3"]].concat()).well();
    run("cut first", &[&["--resume", "--stages", ""], &one[..]].concat()).well();
    run("cut last", &[&fixed[..], &one, &["--max-steps", "3"]].concat()).well();
    run("cut last", &[&["--resume"], &cut[..]].concat()).well();
    for name in ["cut first", "cut last"] {
        assert!(tensors(&folder.path(name), "last.safetensors") == expected, "{name}");
    }
    // Its weights begin another run in stages, and are exported.
    let run_folder = folder.path("cut last");
    let weights = folder.path("weights.pth");
    enmasse(&["export", run_folder.to_str().unwrap(), "--to", "pth", "--out", weights.to_str().unwrap()]).well();
    let begin = |name: &str, others: &[&str]| {
        run(name, &[&["--weights", weights.to_str().unwrap(), "--max-steps", "2"], others].concat()).well();
        tensors(&folder.path(name), "last.safetensors")
    };
    assert!(begin("from weights", &one) == begin("from weights, cut", &cut));
}

#[test]
fn the_plan_says_what_each_stage_does() {
    let print = ["plan", "print", "--model", "resnet18", "--size", "32", "--batch", "2", "--devices", "cpu:2"];
    let print = |others: &[&str]| enmasse(&[&print[..], others].concat()).well().stdout;
    let text = print(&["--stages", "layer3", "--micro-batches", "2", "--schedule-stages", "1f1b"]);
    let turns = [
        "stage 0 of 2, 1f1b: forward 0, forward 1, backward 0, backward 1",
        "stage 1 of 2, 1f1b: forward 0, backward 0, forward 1, backward 1",
    ];
    // Two images of 4 x 4 pixels with 128 channels.
    let bytes = 2 * 4 * 4 * 128 * 4;
    let values = ["send {to stage 1", "receive {from stage 0", "send {to stage 0", "receive {from stage 1"]
        .map(|what| format!("{what} bytes {bytes}}}"));
    for part in turns.iter().map(|turn| (*turn).to_owned()).chain(values) {
        assert_eq!(text.matches(&part).count(), 1, "{part}: {text}");
    }
    assert!(print(&["--stages", "layer3"]).contains(", gpipe: forward 0, forward 1,"));
}

#[test]
fn what_needs_all_stages_is_refused() {
    let folder = Folder::new("1");
    let out = folder.path("refused");
    let check = |others: &[&str], mention: &str| {
        let devices = if others[0] == "--devices" { &[][..] } else { &["--devices", "cpu:2"] };
        refused(&enmasse(&folder.arguments(&out, &[&TWO[..], devices, others].concat())), 2, &[mention]);
        assert!(!out.exists(), "{others:?}");
    };
    check(&["--sync-bn"], "--sync-bn: has no meaning for a model in --stages");
    check(&["--strategy", "dp"], "--strategy dp: has no meaning for a model in --stages; use --strategy ddp");
    check(&["--ema", "0.5"], "--ema 0.5: has no meaning for a model in --stages");
    check(&["--clip-norm", "1"], "--clip-norm 1: has no meaning for a model in --stages");
    check(&["--devices", "cpu:3"], "2 stages need 2 ranks or a multiple of them, got 3");
    let other = |stages: &str, mention: &str| {
        let words = ["--devices", "cpu:2", "--stages", stages];
        failed(&enmasse(&folder.arguments(&out, &words)), 1, &[mention]);
    };
    other("fc9", "a stage cannot begin at fc9: the model has no such layer (it has fc1, fc2");
    other("fc1", "stage 0 has no parameter to train: cut the model elsewhere");
    let ended = enmasse(&folder.arguments(&out, &["--devices", "cpu:1", "--max-steps", "1", "--micro-batches", "2"]));
    assert!(ended.well().stderr.contains("--micro-batches 2 has no effect without --stages"));
}

#[test]
fn a_stage_that_dies_ends_the_others() {
    let folder = Folder::new("1000000");
    for victim in 0..2 {
        let out = folder.path(&format!("run{victim}"));
        let others = [&TWO[..], &["--devices", "cpu:2", "--micro-batches", "2"]].concat();
        let mut running = Running::start(program().args(folder.arguments(&out, &others)));
        assert!(running.line().contains("\"epoch\":0"));
        let ranks = running.children();
        send(ranks[victim], Signal::KILL);
        let ended = running.finish();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let mut stories = ended.stderr.lines().filter(|line| line.starts_with("error: "));
        let story = stories.next().unwrap_or_default();
        assert!(story.contains(&format!("rank {victim} ")) && story.contains("signal 9"), "{ended:?}");
        assert!(ranks.iter().all(|pid| !exists(*pid)));
        fs::remove_dir_all(out).unwrap();
    }
}
