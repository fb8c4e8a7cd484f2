//! The commands over data, on images with labels or numbers.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::textured;
use crate::common::{enmasse, refused};

/// Ten images, and a table with these cells in a column. The last two validate.
fn table(folder: &Path, column: &str, cell: impl Fn(usize) -> String) -> String {
    let mut rows = format!("path,{column},split\n");
    for number in 0..10 {
        textured(&folder.join(format!("{number}.png")), number as u64);
        let part = if number < 8 { "train" } else { "val" };
        rows += &format!("{number}.png,{},{part}\n", cell(number));
    }
    let path = folder.join("table.csv");
    fs::write(&path, rows).unwrap();
    path.display().to_string()
}

fn has(text: &str, lines: &[&str]) {
    lines.iter().for_each(|line| assert!(text.lines().any(|own| own == *line), "{line:?} is not in {text}"));
}

#[test]
fn labels_are_counted_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let table =
        table(folder.path(), "labels", |number| ["sea|sky", "sky", "", "sky|tree", "sea"][number % 5].to_owned());
    let stats = enmasse(&["data", "stats", &table, "--size", "8"]).well().stdout;
    has(&stats, &["training: 8 images with 3 labels", "targets:  1.12 labels an image, 2 images without any"]);
    let check = enmasse(&["data", "check", &table]);
    has(
        &check.stdout,
        &[
            "label    training  validation",
            "sea             3           1",
            "sky             5           1",
            "tree            1           1",
            "all             8           2",
            "training: 1.12 labels an image, 2 images without any",
            "no problems",
        ],
    );
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (sheet, classes) = (path("sheet.png"), path("classes.svg"));
    let show =
        ["data", "show", &table, "--size", "8", "--samples", "8", "--sheet", &sheet, "--classes", &classes, "--json"];
    let shown = enmasse(&show).well().json().remove(0);
    let first = shown["samples"].as_array().unwrap().iter().find(|sample| sample["index"] == 0).unwrap();
    assert_eq!((&first["labels"], &shown["task"]), (&json!(["sea", "sky"]), &json!("multi-label")));
    assert!(fs::read_to_string(&classes).unwrap().contains(">tree<"));

    let packed = path("packed");
    let ended = enmasse(&["data", "pack", &table, &packed]).well();
    assert!(ended.stdout.contains("8 images for training and 2 for validation, with 3 labels; "), "{ended:?}");
    let again = enmasse(&["data", "check", &packed]).well().stdout;
    has(&again, &["tree            1           1", "training: 1.12 labels an image, 2 images without any"]);
    refused(
        &enmasse(&["data", "check", &packed, "--task", "regression"]),
        1,
        &["not numbers as --task regression asks for"],
    );
}

#[test]
fn numbers_are_told_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path(), "age", |number| format!("{number}.5"));
    let range = "age: 0.500000 to 7.500000, mean 4.000000";
    let stats = enmasse(&["data", "stats", &table, "--size", "8"]).well().stdout;
    has(&stats, &["training: 8 images with 1 number", &format!("targets:  {range}")]);
    let check = enmasse(&["data", "check", &table]).well().stdout;
    has(&check, &["training: 8 images", &format!("training: {range}"), "no problems"]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (sheet, classes) = (path("sheet.png"), path("classes.svg"));
    let shown =
        enmasse(&["data", "show", &table, "--size", "8", "--sheet", &sheet, "--classes", &classes]).well().stdout;
    assert!(shown.contains("classes.svg, since images have numbers and no classes"), "{shown}");
    assert!(PathBuf::from(&sheet).exists() && !PathBuf::from(&classes).exists());
    let packed = path("packed");
    enmasse(&["data", "pack", &table, &packed]).well();
    has(&enmasse(&["data", "check", &packed]).well().stdout, &[&format!("training: {range}")]);
}

/// A table of the drawn parts is read as what it was.
#[test]
fn parts_are_written_as_tables() {
    let check = |column: &str, cell: &dyn Fn(usize) -> String, line: &str| {
        let folder = tempfile::tempdir().unwrap();
        let own = table(folder.path(), column, cell);
        let whole =
            fs::read_to_string(&own).unwrap().replace(",split", "").replace(",train\n", "\n").replace(",val\n", "\n");
        fs::write(&own, whole).unwrap();
        let out = folder.path().join("out.csv").display().to_string();
        refused(&enmasse(&["data", "split", &own, &out]), 2, &["cannot be put into folders of classes; give --list"]);
        refused(
            &enmasse(&["data", "split", &own, &out, "--list", "--test", "0.2"]),
            2,
            &["--test: takes a share of each class"],
        );
        enmasse(&["data", "split", &own, &out, "--list"]).well();
        let [one, other] = [&own, &out].map(|table| enmasse(&["data", "check", table]).stdout);
        let from_training = |text: &str| {
            text.lines().filter(|line| line.starts_with("training")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(from_training(&one), from_training(&other));
        assert!(from_training(&one).iter().any(|own| own.contains(line)), "{one}");
    };
    check("labels", &|number| ["sea|sky", "sky", ""][number % 3].to_owned(), "labels an image");
    // No image has two labels.
    check("tags", &|number| ["sea|", "sky"][number % 2].to_owned(), "labels an image");
    check("score", &|number| format!("{number}.25"), "score: ");
}
