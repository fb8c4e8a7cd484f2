//! Resuming: changes are reported, contradictions are refused, and a finished run is left alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::common::runs::{Folder, tensors};
use crate::common::{Ended, enmasse, failed, files, finish, images, program, refused};

/// Every file of a run, with its content and the time of its last change.
fn state(run: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let mut files: Vec<_> = files(run)
        .into_iter()
        .map(|path| {
            let content = fs::read(&path).unwrap();
            let modified = path.metadata().unwrap().modified().unwrap();
            (path, content, modified)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_finished_run_is_left_alone() {
    let folder = Folder::new("2");
    let own = env!("CARGO_BIN_EXE_enmasse");
    for (devices, launch, steps) in
        [("cpu:1", &[][..], 48), ("cpu:2", &[], 24), ("cpu:2", &["launch", "-n", "2", own], 24)]
    {
        let run = folder.path(&format!("{devices}-{}", launch.len()));
        enmasse(&folder.arguments(&run, &["--devices", devices])).well();
        let before = state(&run);
        let resumed = |others: &[&str]| {
            let run = run.display().to_string();
            enmasse(&[launch, &["train", "--resume", "--out", &run], others].concat()).well()
        };
        let done = format!("nothing left to do in {}:", run.display());
        let said = format!("{done} 2 of 2 epochs are done; use --epochs 4 to continue\n");
        assert_eq!(resumed(&[]).stdout, said);
        let more =
            format!("{done} {steps} steps are done, and 9 were asked for; use --max-steps {} to continue\n", 2 * steps);
        assert_eq!(resumed(&["--epochs", "9", "--max-steps", "9"]).stdout, more);
        let json = resumed(&["--json"]);
        let [done] = &json.json()[..] else { panic!("{json:?}") };
        assert_eq!((&done["event"], done["run"].as_str()), (&"done".into(), run.to_str()));
        assert!(json.stderr.contains(&said), "{}", json.stderr);
        assert!(state(&run) == before, "{devices}: files have changed");
    }
}

#[test]
fn a_run_in_another_folder_is_told_where_its_teacher_is() {
    let folder = Folder::new("1");
    let (teacher, run) = (folder.path("teacher"), folder.path("run"));
    enmasse(&folder.arguments(&teacher, &["--devices", "cpu:1"])).well();
    let arguments = folder.arguments(&run, &["--devices", "cpu:1", "--teacher", "teacher"]);
    finish(program().current_dir(folder.path("")).args(arguments)).well();
    let [run, teacher] = [run, teacher].map(|path| path.display().to_string());
    let elsewhere = tempfile::tempdir().unwrap();
    let resume = |others: &[&str]| {
        let fixed = ["train", "--resume", "--out", &run, "--epochs", "2"];
        finish(program().current_dir(&elsewhere).args(fixed).args(others))
    };
    failed(&resume(&[]), 2, &["teacher teacher: does not exist in the folder where this was started"]);
    resume(&["--teacher", &teacher]).well();
    // Only training needs it.
    fs::remove_dir_all(&teacher).unwrap();
    enmasse(&["eval", &run, "--devices", "cpu:1"]).well();
}

#[test]
fn changes_of_a_resumed_run_are_reported() {
    let folder = Folder::new("2");
    let run = folder.path("run");
    let resume = |epochs: &str, others: &[&str]| {
        let run = run.display().to_string();
        enmasse(&[&["train", "--resume", "--out", &run, "--epochs", epochs], others].concat()).well()
    };
    let changes = |ended: &Ended| -> Vec<String> {
        ended.stderr.lines().filter(|line| line.contains(" -> ")).map(str::to_owned).collect()
    };
    let first = enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    assert!(changes(&first).is_empty(), "{}", first.stderr);
    let second = resume("3", &["--lr", "0.01", "--schedule", "constant", "--json"]);
    assert_eq!(changes(&second), ["epochs: 2 -> 3", "lr: 0.001 -> 0.01", "schedule: cosine -> constant"]);
    // They last.
    assert_eq!(changes(&resume("4", &[])), ["epochs: 3 -> 4"]);
}

#[test]
fn a_best_checkpoint_that_is_lost_is_told_and_replaced() {
    let folder = Folder::new("1");
    let run = folder.path("run");
    let best = run.join("checkpoints/best.safetensors");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    let whole = fs::read(&best).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let check = |content: Option<&[u8]>, epochs: &str, expected: Option<&str>| {
        match content {
            Some(content) => fs::write(&best, content).unwrap(),
            None => fs::remove_file(&best).unwrap(),
        }
        let run = run.display().to_string();
        if content.is_none() {
            // The last weights in its place would be a guess.
            let last = format!("best.safetensors: is gone; name {run}/checkpoints/last.safetensors to use the last");
            refused(&enmasse(&["eval", &run]), 1, &[&last]);
            refused(&enmasse(&["export", &run, "--to", "pth"]), 1, &[&last]);
        }
        let resumed = enmasse(&["train", "--resume", "--out", &run, "--epochs", epochs]).well();
        let told = resumed.stderr.lines().find(|line| line.starts_with("best:"));
        match (told, expected) {
            (Some(told), Some(expected)) => {
                assert!(told.contains("best.safetensors") && told.contains(expected), "{told}");
                assert!(told.ends_with("; the best of the epochs to come replaces it"), "{told}");
            }
            (None, None) => {}
            other => panic!("{other:?}"),
        }
        enmasse(&["eval", &run]).well();
    };
    check(Some(&whole), "2", None);
    check(None, "3", Some("it does not exist"));
    check(Some(&damaged), "4", Some("is damaged"));
    check(Some(&whole[..99]), "5", Some(""));
}

/// Regression test: it was started anew, with the settings of the command line, over what was left of it.
#[test]
fn a_run_whose_last_checkpoint_is_gone_goes_on_from_another() {
    let folder = Folder::new("3");
    let run = folder.path("run");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1", "--keep", "all"])).well();
    let checkpoints = run.join("checkpoints");
    let last = checkpoints.join("last.safetensors");
    let whole = tensors(&run, "last.safetensors");
    fs::remove_file(&last).unwrap();
    let resume = || enmasse(&["train", "--resume", "--out", &run.display().to_string()]);
    let ended = resume();
    failed(&ended, 1, &["checkpoints/last.safetensors is gone, though 3 epochs are recorded", "--resume best"]);
    fs::copy(checkpoints.join("epoch-0.safetensors"), &last).unwrap();
    resume().well();
    assert!(tensors(&run, "last.safetensors") == whole);
}

/// Regression test: the records of earlier epochs vanished without a word.
#[test]
fn records_that_are_lost_are_told() {
    let folder = Folder::new("2");
    let run = folder.path("run");
    let records = run.join("metrics.jsonl");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    let check = |damage: &dyn Fn(&str) -> String, epochs: &str, expected: Option<&str>| {
        fs::write(&records, damage(&fs::read_to_string(&records).unwrap())).unwrap();
        let run = run.display().to_string();
        let resumed = enmasse(&["train", "--resume", "--out", &run, "--epochs", epochs]).well();
        let told = resumed.stderr.lines().find(|line| line.starts_with("metrics:"));
        let expected = expected.map(|text| format!("metrics:  {text}; the charts lack them too"));
        assert_eq!(told, expected.as_deref());
    };
    check(&str::to_owned, "3", None);
    check(&|text| text.replacen('{', "[", 1), "4", Some("metrics.jsonl lacks 1 record of the 3 epochs before"));
    check(&|_| String::new(), "5", Some("metrics.jsonl lacks 4 records of the 4 epochs before"));
}

/// Regression test: the error named the folder, and had the code of a wrong command line.
#[test]
fn a_damaged_configuration_is_named() {
    let folder = Folder::new("1");
    let run = folder.path("run");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    let config = run.join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replacen("epochs = ", "epochs + ", 1)).unwrap();
    let ended = enmasse(&["train", "--resume", "--out", &run.display().to_string()]);
    refused(&ended, 1, &[&config.display().to_string(), "is not TOML"]);
}

/// Regression test: the error asked whether the run is of another model.
#[test]
fn a_change_that_needs_other_optimiser_state_is_named() {
    let folder = Folder::new("1");
    let check = |before: &[&str], now: &[&str], parameter: &str| {
        let run = folder.path(&before.join(" "));
        enmasse(&folder.arguments(&run, &[&["--devices", "cpu:1"], before].concat())).well();
        let resumed = run.display().to_string();
        let ended = enmasse(&[&["train", "--resume", "--epochs", "2", "--out", &resumed], now].concat());
        let found = format!("has no optimiser state for {parameter}, because --optimizer, --freeze or --freeze-layers");
        let last = run.join("checkpoints/last.safetensors");
        failed(&ended, 1, &[&found, "--weights ", &last.display().to_string()]);
        let anew = folder.path(&now.join(" "));
        let weights = last.display().to_string();
        enmasse(&folder.arguments(&anew, &[&["--devices", "cpu:1", "--weights", &weights], now].concat())).well();
    };
    check(&["--optimizer", "adamw"], &["--optimizer", "sgd"], "fc1.weight");
    check(&["--freeze-layers"], &["--freeze-layers=false"], "fc1.weight");
}

/// Regression test: the rest of the epoch repeated some images and left out others.
#[test]
fn a_seed_changes_only_between_epochs() {
    let folder = Folder::new("2");
    let run = folder.path("run");
    let seventeen = ["--devices", "cpu:1", "--max-steps", "17"];
    enmasse(&folder.arguments(&run, &seventeen)).well();
    let resume = |others: &[&str]| {
        let run = run.display().to_string();
        enmasse(&[&["train", "--resume", "--out", &run, "--seed", "9"], others].concat())
    };
    let expected = "is within an epoch in the order of --seed 0, and takes --seed 9 only where an epoch begins";
    failed(&resume(&[]), 1, &[expected]);
    enmasse(&["train", "--resume", "--epochs", "1", "--out", &run.display().to_string()]).well();
    let changed = resume(&["--epochs", "2"]).well();
    assert!(changed.stderr.contains("seed: 0 -> 9"), "{}", changed.stderr);
}

#[test]
fn settings_that_do_not_fit_the_run_are_refused() {
    let folder = Folder::new("1");
    let run = folder.path("run");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    let checkpoints = || -> Vec<_> {
        state(&run).into_iter().filter(|(path, ..)| path.extension().is_some_and(|end| end == "safetensors")).collect()
    };
    let before = checkpoints();
    let check = |others: &[&str], code: i32, mentions: &[&str]| {
        let run = run.display().to_string();
        let ended = enmasse(&[&["train", "--resume", "--epochs", "2", "--out", &run], others].concat());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let error = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(mentions.iter().all(|mention| error.contains(mention)), "{mentions:?}: {}", ended.stderr);
        assert!(checkpoints() == before, "a checkpoint has changed");
    };
    check(&["--size", "12"], 1, &["--size 8", "--size 12", "fc1.weight"]);
    check(&["--model", "lenet"], 2, &["--model lenet", "mlp"]);
    // Images of fewer classes.
    let other = images(&folder.path("other"), 20);
    fs::remove_dir_all(other.join("red")).unwrap();
    fs::remove_file(run.join("split.json")).unwrap();
    check(&[&other.display().to_string()], 1, &["3 classes (dark, light, red)", "2 classes (dark, light)"]);
}

/// Regression test: it began anew with the embedded data set and the default model.
#[test]
fn a_run_without_a_checkpoint_keeps_its_settings() {
    let folder = Folder::new("1");
    let run = folder.path("run");
    enmasse(&folder.arguments(&run, &["--devices", "cpu:1"])).well();
    let settings = || -> Vec<String> {
        let text = fs::read_to_string(run.join("config.toml")).unwrap();
        let of_invocation = |line: &&str| line.starts_with("resume") || line.starts_with("json");
        text.lines().filter(|line| !of_invocation(line)).map(str::to_owned).collect()
    };
    let before = settings();
    let whole = tensors(&run, "last.safetensors");
    let resume = |others: &[&str]| {
        fs::remove_dir_all(run.join("checkpoints")).unwrap();
        fs::remove_file(run.join("metrics.jsonl")).unwrap();
        enmasse(&[&["train", "--resume", "--out", &run.display().to_string()], others].concat()).well();
        settings()
    };
    assert_eq!(resume(&[]), before);
    assert!(tensors(&run, "last.safetensors") == whole);
    // It starts anew, so no setting is fixed yet.
    assert!(resume(&["--model", "lenet", "--size", "28"]).contains(&"model = \"lenet\"".to_owned()));
}

/// Regression test: a mistyped path led to a run with the embedded data set.
#[test]
fn a_resume_without_a_run_and_data_is_refused() {
    let folder = Folder::new("1");
    let place = folder.path("");
    let check = |arguments: &[&str], expected: &str| {
        let before = files(&place);
        let words = [&["train", "--resume", "--devices", "cpu:1"], arguments].concat();
        let ended = finish(program().args(words).current_dir(&place));
        refused(&ended, 2, &[&format!("{expected} holds no run to resume; check --out, or name the DATA")]);
        assert_eq!(files(&place), before);
    };
    check(&["--out", "typo"], "typo");
    check(&[], "runs");
}
