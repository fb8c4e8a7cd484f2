//! Names of classes, files and members of archives that try to steer the terminal, to forge lines, or to be run by a spreadsheet.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, enmasse, images, write_archive};

/// Classes in the order of their labels.
const CLASSES: [&str; 3] = ["\x1b[2J\x1b]0;owned\x07red\u{202e}", "=1+1", "light\nerror: forged"];
const FILE: &str = "-evil\x1b[31m\r\nerror: forged\u{9b}.png";
const BROKEN: &str = "broken\x1b[2J\nwarning: forged.jpg";

/// A folder of hostile names, with an image that cannot be read and a link that leads nowhere.
fn hostile(root: &Path) -> PathBuf {
    let data = images(root, 10);
    for (from, to) in ["red", "dark", "light"].into_iter().zip(CLASSES) {
        fs::rename(data.join(from), data.join(to)).unwrap();
        fs::rename(data.join(to).join("000.png"), data.join(to).join(FILE)).unwrap();
    }
    fs::write(data.join(CLASSES[1]).join(BROKEN), "no image").unwrap();
    std::os::unix::fs::symlink("/nowhere", data.join("\x1b[2Jlink\nerror: forged")).unwrap();
    data
}

/// All that a command printed, in which no character steers a terminal and no line is forged.
#[track_caller]
fn clean(ended: Ended) -> String {
    let said = ended.stdout + &ended.stderr;
    let steers =
        |c: char| c != '\n' && c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!said.contains(steers), "{said:?}");
    let forged = |line: &&str| line.trim_start().starts_with("error: forged") || line.starts_with("warning: forged");
    assert_eq!(said.lines().find(forged), None, "{said}");
    said
}

/// Regression test: `predict` printed names of classes and files as they are, in text and in tables.
#[test]
fn foreign_names_neither_steer_the_terminal_nor_forge_lines() {
    let folder = tempfile::tempdir().unwrap();
    let data = hostile(folder.path());
    let path = data.display().to_string();
    let run = folder.path().join("run").display().to_string();
    let skip = ["--on-bad-sample", "skip"];
    let model =
        ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4", "--devices", "cpu:1", "--out", &run];
    let trained = clean(enmasse(&[&["train", &path], &model[..], &skip].concat()).well());
    assert!(trained.contains("broken [2J warning: forged.jpg"), "{trained}");
    let log = fs::read_to_string(Path::new(&run).join("logs/rank-0.log")).unwrap();
    clean(Ended { code: None, stdout: log, stderr: String::new() });

    let use_of =
        |command: &str, others: &[&str]| clean(enmasse(&[&[command, &run], others, &["--devices", "cpu:1"]].concat()));
    let whole = [&path, "--split", "all", "--on-bad-sample", "skip"];
    let text = use_of("eval", &[&whole[..], &["--mistakes"]].concat());
    assert!(text.contains("\nlight error: forged"), "{text}");
    let table = use_of("eval", &[&whole[..], &["--csv"]].concat());
    assert!(table.contains("\n1,'=1+1,10,"), "{table}");
    use_of("eval", &[&whole[..], &["--csv", "--mistakes"]].concat());
    let text = use_of("predict", &[&path, "--top", "3"]);
    assert!(text.contains("[2J ]0;owned red  (0)"), "{text}");
    let table = use_of("predict", &[&path, "--csv", "--top", "3"]);
    assert!(table.contains(",'=1+1,") && !table.contains(",=1+1,"), "{table}");

    // A member of an archive, and a file in the current folder, whose whole name is a formula.
    let archive = folder.path().join("evil.tar");
    let member = |class: &str| (class.to_owned(), FILE.to_owned());
    write_archive(&archive, &data, &CLASSES.map(member));
    let archive = archive.display().to_string();
    use_of("predict", &[&archive]);
    use_of("predict", &[&archive, "--csv"]);
    clean(enmasse(&["data", "check", &archive]));

    clean(enmasse(&["data", "check", &path]));
    clean(enmasse(&["data", "stats", &path, "--on-bad-sample", "skip"]));
    let strict = format!("{run}-strict");
    let strict = [&model[..8], &["--out", &strict, "--on-bad-sample", "error"]].concat();
    clean(enmasse(&[&["train", &path], &strict[..]].concat()));
    clean(enmasse(&["launch", "--dry-run", "-n", "2", "./train\x1b[2J", "a\nerror: forged"]));
    clean(enmasse(&["eval", "no\x1b[2J\nerror: forged"]));
    clean(enmasse(&["predict", &run, "no\x1b[2J\nerror: forged"]));
    clean(enmasse(&["train", "--no\x1b[2J\nerror: forged"]));
}
