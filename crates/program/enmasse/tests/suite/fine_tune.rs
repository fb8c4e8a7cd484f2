//! Recipes and fine-tuning on the command line, and features for other uses.

use std::path::Path;

use crate::common::{enmasse, failed, images, metrics, refused};

/// A run on tiny images, whose weights the others begin with.
fn run(folder: &Path) -> (String, String) {
    let data = images(folder, 10).display().to_string();
    let out = folder.join("first").display().to_string();
    let model = ["--model", "mlp", "--size", "8", "--devices", "cpu:1"];
    enmasse(
        &[&["train", &data, "--epochs", "1", "--batch", "4", "--export-every", "1", "--out", &out], &model[..]]
            .concat(),
    )
    .well();
    (data, format!("{out}/weights/model-0.pth"))
}

#[test]
fn a_recipe_says_what_it_does_and_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (data, weights) = run(folder.path());
    let out = folder.path().join("tuned");
    let path = out.display().to_string();
    let line = ["train", &data, "--model", "mlp", "--size", "8", "--batch", "4", "--devices", "cpu:2", "--out", &path];
    let tuned = enmasse(&[&line[..], &["--weights", &weights, "--recipe", "fine-tune", "--epochs", "2"]].concat());
    assert_eq!(tuned.stderr.lines().filter(|line| line.starts_with("tune: ")).count(), 4, "{}", tuned.stderr);
    tuned.well();
    assert_eq!(metrics(&out).len(), 2);
    let kept = std::fs::read_to_string(out.join("config.toml")).unwrap();
    for line in ["recipe = \"fine-tune\"", "fine_tune = \"all\"", "epochs = 2", "head_lr_mult = 10.0"] {
        assert!(kept.lines().any(|kept| kept == line), "{line}: {kept}");
    }
    // Not even the recipe changes in a run.
    let other = enmasse(&["train", "--resume", &path, "--recipe", "other.toml"]);
    refused(&other, 2, &["recipe other.toml: cannot read the recipe"]);
    enmasse(&["train", "--resume", &path, "--epochs", "3", "--devices", "cpu:1"]).well();
    assert_eq!(metrics(&out).len(), 3);

    let head = folder.path().join("head");
    let head_line =
        ["--weights", &weights, "--fine-tune", "head", "--epochs", "5", "--out", &head.display().to_string()]
            .map(str::to_owned);
    let head_line: Vec<&str> = line[..10].iter().copied().chain(head_line.iter().map(String::as_str)).collect();
    let ended = enmasse(&head_line);
    let idle = "--epochs 5 has no effect with --fine-tune head, which trains on features in one epoch without steps";
    assert!(ended.stderr.contains(idle), "{}", ended.stderr);
    ended.well();
    assert_eq!(metrics(&head).len(), 1);
}

#[test]
fn settings_are_shown_with_their_sources() {
    // Known weights bring it.
    let known = enmasse(&["config", "show", "--pretrained"]).well().stdout;
    assert!(known.contains("# recipe fine-tune") && known.contains("fine_tune = \"all\""), "{known}");
    let shown = enmasse(&["config", "show", "--recipe", "fine-tune", "--epochs", "3"]).well().stdout;
    let words: Vec<String> = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in ["epochs = 3 # command line", "fine_tune = \"all\" # recipe fine-tune@1", "seed = 0 # default"] {
        assert!(words.iter().any(|found| found == line), "{line}: {shown}");
    }
    refused(&enmasse(&["config", "show", "--recipe", "fine"]), 2, &["recipe fine: there is no such recipe"]);
    let without = enmasse(&["train", "--recipe", "fine-tune"]);
    refused(&without, 2, &["fine_tune = all in the recipe fine-tune@1: needs --weights or --pretrained to begin with"]);
}

#[test]
fn recipes_from_scratch_train() {
    for (name, flip) in [
        ("airbench94", "alternating_flip"),
        ("airbench95", "alternating_flip"),
        ("mnist", ""),
        ("fashion-mnist", "erasing"),
    ] {
        let quick = ["--fast-dev-run", "--batch", "4", "--size", "28", "--devices", "cpu:1"];
        let said = enmasse(&[&["train", "--recipe", name], &quick[..]].concat()).well();
        assert!(said.stderr.contains(flip), "{name}: {said:?}");
    }
}

#[test]
fn features_are_written_and_have_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    let (data, weights) = run(folder.path());
    let out = folder.path().join("features.npy");
    let path = out.display().to_string();
    let model = ["--model", "mlp", "--size", "8", "--devices", "cpu:1"];
    let embed = |others: &[&str]| enmasse(&[&["embed", &data, "--weights", &weights], &model[..], others].concat());
    embed(&["--out", &path]).well();
    let bytes = std::fs::read(&out).unwrap();
    let table = std::fs::read_to_string(out.with_extension("csv")).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"), "{bytes:?}");
    assert_eq!(table.lines().next(), Some("path,class,part"));
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert_eq!(rows.len(), 30);
    assert!(rows[0].contains("images/dark/") && rows[0].ends_with(",dark,training"), "{table}");
    assert_eq!(rows.iter().filter(|row| row.ends_with(",validation")).count(), 6);
    let width = (bytes.len() - 128) / 4 / 30;
    assert_eq!(bytes.len(), 128 + 30 * width * 4, "{width} features");
    // The last layer's own output has a number for each class.
    embed(&["--out", &path, "--layer", "fc3"]).well();
    assert_eq!(std::fs::read(&out).unwrap().len(), 128 + 30 * 3 * 4);
    failed(&embed(&["--out", &path, "--layer", "fc9"]), 1, &["the model has no layer fc9; the last one is fc3"]);
    refused(&embed(&["--out", "features.txt"]), 2, &["--out features.txt: features are written as a NumPy array"]);
    // The same in one file.
    embed(&["--out", &folder.path().join("features.parquet").display().to_string()]).well();
    let bytes = std::fs::read(folder.path().join("features.parquet")).unwrap();
    let file = enmasse_parquet::ParquetFile::open(bytes.as_slice()).unwrap();
    let columns: Vec<&str> = file.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(columns, ["path", "class", "part", "features"]);
    let groups = file.row_groups([0, 1, 2]).unwrap();
    let mut found = vec![String::new(); 30];
    for column in 0..3 {
        let each = |row: u32, text: Option<&[u8]>| {
            let separator = if column > 0 { "," } else { "" };
            found[row as usize] += &format!("{separator}{}", String::from_utf8_lossy(text.unwrap()));
            Ok(())
        };
        file.each_value(column, groups[0].rows, groups[0].chunks[column], each).unwrap();
    }
    assert_eq!(found, rows);

    let knn = |others: &[&str]| enmasse(&[&["eval", &weights, &data, "--knn", "3"], &model[..], others].concat());
    let found = knn(&["--json"]).well().json().remove(0);
    assert_eq!((&found["event"], &found["samples"], &found["among"]), (&"knn".into(), &6.into(), &24.into()));
    assert_eq!(found["accuracy"], 1.0, "dark, light and red images");
    let text = knn(&[]).well().stdout;
    let expected = format!(
        "validation part, 6 images: accuracy 100.00 % by the 3 nearest neighbours of each among 24 training images, by the cosine \
         of {width} features\n"
    );
    assert_eq!(text, expected);
    let of_run = enmasse(&["eval", &folder.path().join("first").display().to_string(), "--knn", "1"]).well();
    assert!(of_run.stdout.contains("by the 1 nearest neighbour of each among 24 training images"), "{}", of_run.stdout);
    refused(&knn(&["--csv"]), 2, &["--knn"]);
}
