//! From where a run goes on: `--resume`, `--resume RUN`, `--resume best`.

use std::fs;
use std::path::Path;

use crate::common::runs::{Folder, tensors};
use crate::common::{Ended, enmasse, files, finish, images, program, refused};

/// Runs `enmasse` with these words in a folder.
fn within(place: &Path, words: &[&str]) -> Ended {
    finish(program().args(words).current_dir(place))
}

/// The line that says where a run goes on.
fn resumed(ended: &Ended) -> &str {
    ended.stderr.lines().find(|line| line.starts_with("resume:")).unwrap_or_default()
}

/// Regression test: it resumed the newest run.
#[test]
fn a_run_that_is_missing_is_not_replaced_by_the_newest() {
    let folder = Folder::new("1");
    let place = folder.path("");
    enmasse(&folder.arguments(&folder.path("runs/a"), &["--devices", "cpu:1"])).well();
    fs::create_dir_all(folder.path("runs/empty")).unwrap();
    let check = |words: &[&str], expected: &str| {
        let before = files(&place);
        refused(&within(&place, &[&["train"], words].concat()), 2, &[expected]);
        assert_eq!(files(&place), before);
    };
    check(&["--resume", "runs/foo"], "--resume runs/foo: there is no such folder to resume");
    check(&["images", "--resume", "runs/foo"], "--resume runs/foo: there is no such folder to resume");
    check(&["--resume=runs/foo", "images"], "--resume runs/foo: there is no such folder to resume");
    check(&["--resume", "runs/empty"], "--resume runs/empty: holds no run to resume");
    check(&["--resume=images"], "--resume images: holds no run to resume");
    check(&["--resume", "runs/a", "--out", "runs/b"], "leave out --out runs/b");
    check(&["--out", "runs/empty", "--resume", "best"], "runs/empty holds no run to resume");
    check(&["images", "--out", "runs/empty", "--resume", "best"], "runs/empty holds no run to resume");
    check(&["runs/a"], "runs/a is a run, not data: to resume it, pass --resume runs/a");
}

#[test]
fn a_run_may_be_named() {
    let folder = Folder::new("1");
    let place = folder.path("");
    let data = folder.data.display().to_string();
    for run in ["runs/a", "elsewhere", "runs/newest"] {
        enmasse(&folder.arguments(&folder.path(run), &["--devices", "cpu:1"])).well();
    }
    let mut epochs = 1;
    let mut check = |words: &[&str], variable: Option<&str>, run: &str| {
        epochs += 1;
        let epochs = epochs.to_string();
        let mut command = program();
        command.args(["train", "--epochs", &epochs]).args(words).current_dir(&place);
        command.envs(variable.map(|run| ("ENMASSE_RESUME", run)));
        let ended = finish(&mut command).well();
        assert!(resumed(&ended).starts_with("resume:   epoch "), "{}", ended.stderr);
        assert!(ended.stdout.contains(&format!("evaluate: enmasse eval {run}\n")), "{words:?}: {}", ended.stdout);
    };
    check(&["--resume", "runs/a"], None, "runs/a");
    check(&["--resume=elsewhere"], None, "elsewhere");
    check(&["--resume", "elsewhere", &data], None, "elsewhere");
    check(&["--resume", "./runs/a", "--out", "./runs/a"], None, "./runs/a");
    check(&[], Some("elsewhere"), "elsewhere");
    check(&[], Some("best"), "runs/a");
    // As before, without a name: the newest, and the word after it is DATA.
    check(&["--resume"], None, "runs/a");
    check(&["--resume", &data, "--out", "runs/newest"], None, "runs/newest");
    check(&["--resume", "True", &data], None, "runs/newest");
    check(&["--resume", "false", "--resume"], None, "runs/newest");
    check(&["--out", "runs/a"], Some("true"), "runs/a");
    fs::write(folder.path("settings.toml"), "resume = \"runs/newest\"").unwrap();
    check(&["--config", "settings.toml"], None, "runs/newest");
}

/// Such a folder was taken as DATA of the newest run, which went on without a word.
#[test]
fn a_folder_that_is_no_run_resumed_the_newest_run_of_other_data() {
    let folder = Folder::new("1");
    let place = folder.path("");
    let none = within(&place, &["train", "--resume"]);
    refused(&none, 2, &["runs holds no run to resume; check --out, or name the DATA to start a run"]);
    // It left an empty folder.
    assert!(!folder.path("runs").exists());
    enmasse(&folder.arguments(&folder.path("runs/a"), &["--devices", "cpu:1"])).well();
    let other = images(&folder.path("other"), 8).display().to_string();
    let go = |words: &[&str]| within(&place, &[&["train", "--epochs", "2"], words].concat());
    let before = files(&place);
    let mentions = [
        "--resume other/images: it is no run, and runs has none of these data; to go on with runs/a, whose data are ",
        "images, pass --resume runs/a; to start a run, leave --resume out",
    ];
    refused(&go(&["--resume", "other/images"]), 2, &mentions);
    refused(&go(&["--resume", "best", &other]), 2, &[" whose data are "]);
    assert_eq!(files(&place), before);
    // Of several runs the newest of these data goes on.
    enmasse(&[
        "train",
        &other,
        "--out",
        &folder.path("runs/b").display().to_string(),
        "--epochs",
        "1",
        "--model",
        "mlp",
    ])
    .well();
    let ended = go(&["--resume", &folder.data.display().to_string()]).well();
    assert!(ended.stdout.contains("evaluate: enmasse eval runs/a\n"), "{}", ended.stdout);
    assert!(resumed(&ended).starts_with("resume:   epoch 2"), "{}", ended.stderr);
}

/// The epochs after the best one are trained again, with the same bits.
#[test]
fn a_run_goes_on_from_its_best_checkpoint() {
    let folder = Folder::new("3");
    let (whole, run) = (folder.path("whole"), folder.path("run"));
    for run in [&whole, &run] {
        enmasse(&folder.arguments(run, &["--devices", "cpu:2", "--keep", "all"])).well();
    }
    let best = run.join("checkpoints/best.safetensors");
    fs::copy(run.join("checkpoints/epoch-0.safetensors"), &best).unwrap();
    let name = run.display().to_string();
    let resume = |words: &[&str]| enmasse(&[&["train", "--out", &name], words].concat());
    let ended = resume(&["--resume", "best"]).well();
    assert_eq!(resumed(&ended), "resume:   epoch 2, after 0 images");
    assert!(tensors(&whole, "last.safetensors") == tensors(&run, "last.safetensors"));
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count(), 3);

    // A last checkpoint that is lost is not needed, and the best one stays.
    fs::copy(run.join("checkpoints/epoch-1.safetensors"), &best).unwrap();
    fs::remove_file(run.join("checkpoints/last.safetensors")).unwrap();
    refused(&resume(&["--resume"]), 1, &["go on with --resume best"]);
    let ended = resume(&["--resume", "best", "--max-steps", "45"]).well();
    assert_eq!(resumed(&ended), "resume:   epoch 3, after 0 images");
    // Killed here, it would go on from its last checkpoint.
    let ended = resume(&["--resume"]).well();
    assert!(!resumed(&ended).ends_with(" 0 images"), "{}", ended.stderr);
    assert!(tensors(&whole, "last.safetensors") == tensors(&run, "last.safetensors"));

    let none = folder.path("none").display().to_string();
    enmasse(&folder.arguments(Path::new(&none), &["--devices", "cpu:1", "--max-steps", "3"])).well();
    let ended = enmasse(&["train", "--out", &none, "--resume", "best"]);
    refused(&ended, 2, &["has no checkpoints/best.safetensors: no epoch of the run has ended; use --resume"]);
}

/// Regression test: the second line was refused, since the first had left a run without a checkpoint.
#[test]
fn a_line_that_failed_before_a_checkpoint_may_be_typed_again() {
    let folder = Folder::new("1");
    let place = folder.path("");
    let bad = folder.data.join("red/001.jpg");
    let whole = fs::read(&bad).unwrap();
    for out in [&["--out", "run"][..], &[]] {
        fs::write(&bad, &whole[..whole.len() / 4]).unwrap();
        let line = ["train", "images", "--model", "mlp", "--size", "8", "--epochs", "1", "--devices", "cpu:1"];
        let line = [&line[..], out].concat();
        let failed = within(&place, &[&line[..], &["--on-bad-sample", "error"]].concat());
        assert_eq!(failed.code, Some(1), "{failed:?}");
        fs::write(&bad, &whole).unwrap();
        let ended = within(&place, &[&line[..], &["--lr", "0.01"]].concat()).well();
        assert!(resumed(&ended).is_empty(), "{}", ended.stderr);
    }
}

/// Regression test: the epochs to come had a line of "0 img/s", and nobody said that the rate rises again.
#[test]
fn more_epochs_say_what_the_rate_does() {
    let folder = Folder::new("2");
    let run = folder.path("run");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    let ended = enmasse(&["train", "--resume", &run.display().to_string(), "--epochs", "4"]).well();
    let line = "schedule: the cosine now spans 4 epochs, not 2: lr goes from 5.05e-4 to 5.05e-4";
    assert!(ended.stderr.lines().any(|found| found == line), "{}", ended.stderr);
    assert!(!ended.stdout.contains(" 0 img/s"), "{}", ended.stdout);
}
