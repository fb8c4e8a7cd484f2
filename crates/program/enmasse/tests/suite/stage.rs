//! `--stage`: runs on a copy of the data, which is made once, with the bits of a run on the data itself.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::runs::{Folder, assert_same};
use crate::common::{Ended, enmasse, failed, files};

/// What a run says about its copy.
fn told(ended: &Ended) -> Vec<String> {
    let lines = ended.stderr.lines().filter(|line| line.contains("copied ") || line.contains("copy of the data"));
    lines
        .map(|line| line.split(" to ").next().unwrap_or(line).split(" in ").next().unwrap_or(line).to_owned())
        .collect()
}

/// The images of the only copy in a folder.
fn copies(scratch: &Path) -> Vec<PathBuf> {
    files(scratch).into_iter().filter(|path| path.components().any(|part| part.as_os_str() == "images")).collect()
}

#[test]
fn a_staged_run_has_the_same_bits() {
    let folder = Folder::new("1");
    let (scratch, plain) = (folder.path("scratch"), folder.path("plain"));
    let stage = format!("--stage={}", scratch.display());
    enmasse(&folder.arguments(&plain, &["--devices", "cpu:2"])).well();
    let bytes: u64 = files(&folder.data).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let copied = format!("copied {:.1} MiB of data", bytes as f64 / f64::from(1 << 20));
    let there = "the copy of the data".to_owned();
    let check = |name: &str, others: &[&str], expected: &str| {
        let run = folder.path(name);
        let ended = enmasse(&folder.arguments(&run, &[&[stage.as_str()], others].concat())).well();
        assert_eq!(told(&ended), [expected], "{name}: {ended:?}");
        assert_same(&plain, &run);
        let saved = fs::read_to_string(run.join("config.toml")).unwrap();
        assert!(saved.contains(&format!("data = \"{}\"", folder.data.display())), "{saved}");
    };
    check("processes", &["--devices", "cpu:2"], &copied);
    check("threads", &["--devices", "cpu:2", "--ranks", "thread"], &there);
    assert_eq!(copies(&scratch).len(), 60);

    // The copy is what is read. A file of it that is gone is copied again, with all others.
    fs::remove_file(&copies(&scratch)[7]).unwrap();
    check("again", &["--devices", "cpu:2"], &copied);

    // A resumed run may read the data elsewhere.
    let run = folder.path("processes");
    let out = folder.path("processes").display().to_string();
    let resumed = enmasse(&["train", "--out", &out, "--resume", "--epochs", "2", &stage, "--json"]).well();
    assert_eq!(told(&resumed), [there.as_str()]);
    let resumed = enmasse(&folder.arguments(&plain, &["--epochs", "2", "--resume"])).well();
    assert!(told(&resumed).is_empty());
    assert_same(&plain, &run);
}

#[test]
fn launched_ranks_share_a_copy() {
    let folder = Folder::new("1");
    let scratch = folder.path("scratch");
    let plain = folder.path("plain");
    let run = folder.path("run");
    enmasse(&folder.arguments(&plain, &["--devices", "cpu:3"])).well();
    let train = folder.arguments(&run, &["--stage", &scratch.display().to_string()]);
    let launch: Vec<String> =
        ["launch", "-n", "3", env!("CARGO_BIN_EXE_enmasse")].map(str::to_owned).into_iter().chain(train).collect();
    let ended = enmasse(&launch).well();
    assert_eq!(told(&ended).len(), 1, "{ended:?}");
    assert_same(&plain, &run);
    assert_eq!(copies(&scratch).len(), 60);
}

/// On ranks of every kind: the copy is read, and the figures are those of the original.
#[test]
fn evaluation_reads_a_copy() {
    let folder = Folder::new("1");
    let scratch = folder.path("scratch");
    let run = folder.path("run").display().to_string();
    enmasse(&folder.arguments(&folder.path("run"), &["--devices", "cpu:1"])).well();
    let stage = format!("--stage={}", scratch.display());
    let data = folder.data.display().to_string();
    let figures = |ended: &Ended| {
        let found = ended.json().pop().unwrap();
        format!("{} {} {}", found["loss"], found["accuracy"], found["samples"])
    };
    let check = |others: &[&str], copied: bool| {
        let eval = [&["eval", &run, "--json"], others].concat();
        let plain = enmasse(&eval).well();
        assert!(told(&plain).is_empty());
        let staged = enmasse(&[&eval[..], &[&stage]].concat()).well();
        assert_eq!(told(&staged).first().is_some_and(|line| line.starts_with("copied ")), copied, "{staged:?}");
        assert_eq!((told(&staged).len(), figures(&staged)), (1, figures(&plain)), "{others:?}");
    };
    check(&["--devices", "cpu:1"], true);
    check(&["--devices", "cpu:2"], false);
    check(&["--devices", "cpu:2", "--ranks", "thread", &data], false);
    assert_eq!(copies(&scratch).len(), 60);
    fs::remove_file(&copies(&scratch)[7]).unwrap();
    let launch = ["launch", "-n", "2", env!("CARGO_BIN_EXE_enmasse"), "eval", &run, &data, "--json"];
    let launched = enmasse(&[&launch[..], &[&stage]].concat()).well();
    assert_eq!(told(&launched).len(), 1, "{launched:?}");
    assert_eq!(copies(&scratch).len(), 60);
    let idle = enmasse(&["eval", &run, &data, "--path-column", "a", "--devices", "cpu:2"]).well();
    let warning = "warning: --path-column a has no effect on data other than manifests and Parquet files";
    assert_eq!(idle.stderr.matches(warning).count(), 1, "{idle:?}");
}

#[test]
fn places_that_do_not_do() {
    let folder = Folder::new("1");
    let run = folder.path("run");
    let refused = |place: &Path, mention: &str| {
        let ended = enmasse(&folder.arguments(&run, &["--devices", "cpu:1", "--stage", &place.display().to_string()]));
        failed(&ended, 1, &["--stage: ", mention]);
        assert!(!run.exists());
    };
    refused(&folder.data.join("dark"), "the copy would be a part of the data");
    fs::write(folder.path("file"), "").unwrap();
    refused(&folder.path("file"), "cannot create");
}
