//! Data in other forms than class folders: a run trains on them, finds its validation part again, and evaluates other data.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::runs::{arguments, tensors};
use crate::common::{enmasse, failed, images, write_archive};

const MODEL: [&str; 8] = ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4"];

/// Trains on `data` with `flags` for one epoch, resumes for a second one, and evaluates: the run's own validation part, of
/// `validation` images, and all of `other`, of `all` images.
fn check(folder: &Path, data: &str, flags: &[&str], [validation, all]: [u64; 2], other: &str) {
    let run = folder.join("run").display().to_string();
    let train = [&["train", data, "--out", &run, "--devices", "cpu:2", "--json"], &MODEL[..], flags].concat();
    let epoch = |lines: &[Value]| lines.iter().rfind(|line| line["event"] == "epoch").unwrap().clone();
    let first = epoch(&enmasse(&train).well().json());
    let resumed = enmasse(&["train", "--out", &run, "--resume", "--epochs", "2", "--json"]).well().json();
    assert_ne!(epoch(&resumed)["epoch"], first["epoch"], "{data}");
    let eval = |arguments: &[&str]| {
        let ended = enmasse(&[&["eval", &run, "--json"], arguments].concat()).well().json();
        let found = ended.last().unwrap();
        (found["samples"].as_u64().unwrap(), found["part"].as_str().unwrap().to_owned())
    };
    assert_eq!(eval(&[]), (validation, "val".to_owned()), "{data}");
    assert_eq!(eval(&[&[other], flags].concat()), (all, "all".to_owned()), "{data}");
    fs::remove_dir_all(run).unwrap();
}

/// Forty rows in two Parquet files.
fn parquet(folder: &Path) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/datasets/tests/fixtures");
    let data = folder.join("parquet");
    fs::create_dir(&data).unwrap();
    for (number, name) in ["snappy", "gzip"].into_iter().enumerate() {
        fs::copy(fixtures.join(format!("parquet.{name}.parquet")), data.join(format!("train-{number}.parquet")))
            .unwrap();
    }
    data
}

/// The order by blocks is the same on any number of ranks, and after a stop; and another one than that of all samples.
#[test]
fn an_order_by_blocks_is_the_same_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let data = parquet(folder.path());
    let run = |name: &str, others: &[&str]| {
        let out = folder.path().join(name);
        let fixed = ["--epochs", "2", "--lr", "0.001", "--shards", "2"];
        let ended = enmasse(&arguments(&data, &out, &[&fixed, others].concat())).well();
        assert!(!ended.stderr.contains("warning: --shuffle"), "{ended:?}");
        out
    };
    let alone = run("one", &["--devices", "cpu:1"]);
    let together = run("two", &["--devices", "cpu:2", "--shuffle", "block"]);
    run("stopped", &["--devices", "cpu:2", "--max-steps", "5"]);
    let stopped = run("stopped", &["--devices", "cpu:1", "--resume"]);
    let full = run("full", &["--devices", "cpu:1", "--shuffle", "full"]);
    let weights = tensors(&alone, "last.safetensors");
    assert!(weights == tensors(&together, "last.safetensors"));
    assert!(weights == tensors(&stopped, "last.safetensors"));
    assert!(weights != tensors(&full, "last.safetensors"));
    let refused = |flags: &[&str], expected: &str| {
        let ended = enmasse(&arguments(&data, &folder.path().join("no"), &[&["--shuffle", "block"], flags].concat()));
        failed(&ended, 2, &["--shuffle block", expected]);
    };
    refused(&["--balance", "classes"], "--balance classes draws from all samples; use one of them");
    refused(&["--repeat-augment", "2"], "--repeat-augment draws from all samples; use one of them");
    refused(&["--sampler", "distributed"], "has no effect with --sampler distributed");
}

#[test]
fn every_source_is_trained_on_and_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    // Three classes of ten images.
    let data = images(folder.path(), 10);
    let classes = ["dark", "light", "red"];
    let mut files: Vec<(String, String)> = Vec::new();
    for class in classes {
        let names =
            fs::read_dir(data.join(class)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        files.extend(names.map(|name| (class.to_owned(), name)));
    }
    files.sort();
    let total = files.len() as u64;
    let held_out = total / 5;
    let text = |path: &Path| path.display().to_string();

    let flat = folder.path().join("flat");
    fs::create_dir(&flat).unwrap();
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for (class, name) in &files {
        for to in [&flat, &copy] {
            fs::copy(data.join(class).join(name), to.join(format!("{class}.{name}"))).unwrap();
        }
    }
    let pattern = ["--label-pattern", "{class}.{number}.*"];
    check(folder.path(), &text(&flat), &pattern, [held_out, total], &text(&copy));

    let manifest = folder.path().join("list.csv");
    let rows: String = files.iter().map(|(class, name)| format!("{class}/{name},{class},1\n")).collect();
    fs::write(&manifest, format!("image,label,class\n{rows}")).unwrap();
    let root = text(&data);
    let columns = ["--label-column", "label", "--manifest-root", &root];
    let copy = folder.path().join("copy.csv");
    fs::copy(&manifest, &copy).unwrap();
    check(folder.path(), &text(&manifest), &columns, [held_out, total], &text(&copy));

    let staged = enmasse(&["train", &text(&manifest), "--stage", &text(folder.path())]);
    assert!(staged.code == Some(2) && staged.stderr.contains("--stage: copies one folder or file, and "), "{staged:?}");

    let shards = folder.path().join("shards");
    fs::create_dir(&shards).unwrap();
    for (number, files) in files.chunks(12).enumerate() {
        write_archive(&shards.join(format!("{number:03}.tar")), &data, files);
    }
    check(folder.path(), &text(&shards), &[], [held_out, total], &text(&shards.join("*.tar")));

    // Of fourteen, fourteen and twelve rows of the classes.
    let parquet = parquet(folder.path());
    check(folder.path(), &text(&parquet), &[], [6, 40], &text(&parquet.join("train-*.parquet")));
}
