//! Predictions of a stream of names, and as a table that an interrupted command can go on with.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;

use enmasse_parquet::{ParquetFile, PhysicalType};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{Ended, Running, enmasse, finish, images, program, refused, until};

/// A run, and the images that it was trained on.
struct Trained {
    folder: TempDir,
    run: String,
    names: Vec<String>,
}

impl Trained {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = images(folder.path(), 5);
        let [data, run] = [data, folder.path().join("run")].map(|path| path.display().to_string());
        let model = ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4", "--devices", "cpu:1"];
        enmasse(&[&["train", &data, "--out", &run], &model[..]].concat()).well();
        let listed = enmasse(&["predict", &run, &data, "--json"]).well().json();
        let names = listed.iter().map(|line| line["image"].as_str().unwrap().to_owned()).collect();
        Trained { folder, run, names }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn predict(&self, others: &[&str]) -> Ended {
        enmasse(&[&["predict", &self.run], others].concat())
    }

    /// A command that reads names from what this returns.
    fn stream(&self, others: &[&str]) -> (Running, ChildStdin) {
        let mut command = program();
        command.args(["predict", &self.run, "--files-from", "-"]).args(others);
        Running::start_with_input(&mut command)
    }
}

fn lines(path: &str) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn tables_have_what_is_printed() {
    let trained = Trained::new();
    let list = trained.path("names.txt");
    fs::write(&list, trained.names.join("\n")).unwrap();
    let check = |name: &str, top: &[&str]| -> (String, Vec<String>) {
        let out = trained.path(name);
        let ended = trained.predict(&[&["--files-from", &list, "--out", &out], top].concat()).well();
        assert_eq!(ended.stdout, format!("wrote {out}: 15 images\n"));
        assert!(!Path::new(&format!("{out}.part")).exists());
        let paths: Vec<&str> = trained.names.iter().map(String::as_str).collect();
        let form = if name.ends_with("jsonl") { "--json" } else { "--csv" };
        let printed = trained.predict(&[&paths[..], top, &[form]].concat()).well();
        (out, printed.stdout.lines().map(str::to_owned).collect())
    };
    let (out, printed) = check("table.csv", &[]);
    assert_eq!(lines(&out), printed);
    let (out, printed) = check("table.jsonl", &["--top", "2"]);
    assert_eq!(lines(&out), printed);
    let (out, printed) = check("table.parquet", &["--top", "2"]);
    let bytes = fs::read(out).unwrap();
    let file = ParquetFile::open(bytes.as_slice()).unwrap();
    let names: Vec<&str> = file.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names.join(","), printed[0]);
    let mut rows = vec![Vec::new(); 15];
    for group in file.row_groups([0, 1, 2, 3, 4]).unwrap() {
        for (column, chunk) in group.chunks.iter().enumerate() {
            let is_number = file.columns[column].physical == PhysicalType::Float { bytes: 8 };
            let mut at = 0..;
            let each = |_, value: Option<&[u8]>| {
                let value = value.unwrap();
                rows[at.next().unwrap()].push(match is_number {
                    true => f64::from_le_bytes(value.try_into().unwrap()).to_string(),
                    false => String::from_utf8(value.to_vec()).unwrap(),
                });
                Ok(())
            };
            file.each_value(column, group.rows, *chunk, each).unwrap();
        }
    }
    assert_eq!(rows.iter().map(|row| row.join(",")).collect::<Vec<_>>(), printed[1..]);
}

#[test]
fn names_are_predicted_as_they_come() {
    let trained = Trained::new();
    let (mut running, mut names) = trained.stream(&["--csv"]);
    assert_eq!(running.line(), "path,class,probability\n");
    // Each is answered before the next is known.
    for name in &trained.names[..3] {
        writeln!(names, "{name}").unwrap();
        let row = running.line();
        assert!(row.starts_with(&format!("{name},")), "{row}");
    }
    writeln!(names, "no.png\n\n{}", trained.names[3]).unwrap();
    drop(names);
    let ended = running.finish();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.starts_with("error: no.png: "), "{}", ended.stderr);
    assert!(ended.stdout.starts_with(&trained.names[3]), "{}", ended.stdout);
}

#[test]
fn a_killed_command_loses_no_prediction() {
    let trained = Trained::new();
    let [out, list, whole] = ["table.csv", "names.txt", "whole.csv"].map(|name| trained.path(name));
    let part = format!("{out}.part");
    // One image is there twice.
    let names = [&trained.names[..], &trained.names[..1]].concat();
    fs::write(&list, names.join("\n")).unwrap();
    trained.predict(&["--files-from", &list, "--out", &whole]).well();

    let (running, mut stream) = trained.stream(&["--out", &out]);
    let written = || fs::read_to_string(&part).ok().map(|text| text.matches('\n').count());
    for (count, name) in names[..5].iter().enumerate() {
        writeln!(stream, "{name}").unwrap();
        until("the row is written", || written().filter(|lines| *lines == count + 2));
    }
    refused(&trained.predict(&["--files-from", &list, "--out", &out, "--resume"]), 1, &[&part, "another command"]);
    running.signal(Signal::KILL);
    running.finish();
    assert!(!Path::new(&out).exists());
    // As if it had been killed while it wrote.
    let begun = fs::read_to_string(&part).unwrap();
    fs::write(&part, format!("{begun}{{\"image\":\"a")).unwrap();

    let resume = |others: &[&str]| trained.predict(&[&["--files-from", &list, "--out", &out], others].concat());
    refused(&resume(&[]), 2, &[&part, "give --resume"]);
    refused(&resume(&["--resume", "--top", "2"]), 2, &[&part, "of other weights or settings"]);
    refused(&resume(&["--resume", "--temperature", "2"]), 2, &[&part, "of other weights or settings"]);
    fs::write(&part, begun.replacen("\"image\"", "\"file\"", 1)).unwrap();
    refused(&resume(&["--resume"]), 1, &[&part, "line 2 is no prediction"]);
    fs::write(&part, &begun).unwrap();
    let ended = resume(&["--resume"]).well();
    assert_eq!(ended.stdout, format!("wrote {out}: 16 images, 5 of them by earlier commands\n"));
    assert_eq!(lines(&out), lines(&whole));
    assert!(!Path::new(&part).exists());
    let ended = resume(&["--resume"]).well();
    assert_eq!((ended.stdout.as_str(), ended.stderr.contains("nothing left to do")), ("", true));
}

#[test]
fn wrong_tables_and_streams_are_refused() {
    let trained = Trained::new();
    let image = &trained.names[0];
    let left = || -> Vec<PathBuf> {
        let found = fs::read_dir(trained.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        found.filter(|path| path.to_string_lossy().contains("table")).collect()
    };
    let check = |others: &[&str], code: i32, mentions: &[&str]| {
        refused(&trained.predict(others), code, mentions);
        assert_eq!(left(), [] as [PathBuf; 0]);
    };
    let [csv, text, nowhere] = ["table.csv", "table.txt", "no/table.csv"].map(|name| trained.path(name));
    check(&[image, "--out", &text], 2, &["--out", ".csv, .jsonl or .parquet"]);
    check(&[image, "--out", &csv, "--csv"], 2, &["--csv"]);
    check(&[image, "--out", &nowhere], 1, &[&nowhere, "No such file"]);
    check(&[image, "--out", &csv, "--devices", "gpu:nonsense"], 2, &["gpu:nonsense"]);
    check(&["-", "--files-from", "-"], 2, &["standard input has either"]);
    check(&["--files-from", &trained.path("names.txt")], 1, &["names.txt", "No such file"]);
    check(&[image, "--resume"], 2, &["--out"]);
    // Nothing to predict is a table without rows.
    let empty = trained.path("empty.txt");
    fs::write(&empty, "\n").unwrap();
    trained.predict(&["--files-from", &empty, "--out", &csv]).well();
    assert_eq!(lines(&csv), ["path,class,probability"]);
    let mut command = program();
    let ended = finish(command.args(["predict", &trained.run, "--json", "--out", &csv, image]));
    let summary = &ended.well().json()[0];
    assert_eq!((&summary["event"], &summary["images"]), (&"predict".into(), &1.into()));
}
