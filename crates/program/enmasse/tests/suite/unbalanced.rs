//! Classes of different sizes: figures that accuracy alone hides, and what is said of a model that predicts one class for all.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, enmasse, images, metrics, refused};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

/// 25 dark images, 25 light ones and 5 red ones.
pub fn unequal(root: &Path) -> PathBuf {
    let data = images(root, 25);
    for entry in fs::read_dir(data.join("red")).unwrap().skip(5) {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    data
}

/// The weights of an MLP for three classes that predicts the first one for every image, whatever is in it.
pub fn one_class_for_all(root: &Path, data: &str) -> String {
    let run = root.join("short").display().to_string();
    let path = root.join("one.safetensors");
    let short = ["train", data, "--model", "mlp", "--size", "12", "--devices", "cpu:1", "--max-steps", "1"];
    enmasse(&[&short[..], &["--out", &run]].concat()).well();
    let bytes = fs::read(Path::new(&run).join("checkpoints/last.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let own: Vec<_> = tensors.tensors().into_iter().filter(|(name, _)| !name.starts_with("optimizer.")).collect();
    let bias: Vec<u8> = [1e3f32, 0.0, 0.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let changed = own.iter().map(|(name, tensor)| {
        let data = if tensor.shape() == [3] { &bias } else { tensor.data() };
        (name.clone(), TensorView::new(tensor.dtype(), tensor.shape().to_vec(), data).unwrap())
    });
    fs::write(&path, safetensors::serialize(changed, None).unwrap()).unwrap();
    path.display().to_string()
}

/// Regression test: nothing said which images were predicted wrong, and how certainly.
#[test]
fn mistakes_are_listed_once_at_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let data = unequal(folder.path()).display().to_string();
    let weights = one_class_for_all(folder.path(), &data);
    let eval = |others: &[&str]| {
        let fixed = ["eval", &weights, &data, "--model", "mlp", "--size", "12"];
        enmasse(&[&fixed[..], others].concat()).well()
    };
    let found = |ranks: &str| eval(&["--devices", ranks, "--json", "--mistakes"]).json().remove(0);
    let one = found("cpu:1");
    let mistakes = one["mistakes"].as_array().unwrap();
    let mut names: Vec<&str> = mistakes.iter().map(|mistake| mistake["image"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 30, "each once");
    for mistake in mistakes {
        let class = if mistake["image"].as_str().unwrap().contains("light") { "light" } else { "red" };
        assert_eq!((&mistake["class"], &mistake["predicted"]), (&class.into(), &"dark".into()), "{mistake}");
        assert!(mistake["probability"].as_f64().unwrap() > mistake["class_probability"].as_f64().unwrap(), "{mistake}");
    }
    let two = found("cpu:2");
    for key in ["per_class", "macro", "confused", "mistakes"] {
        let names = |found: &Value| match key {
            // Batches of other sizes round differently.
            "mistakes" => found[key].as_array().unwrap().iter().map(|mistake| mistake["class"].clone()).collect(),
            _ => found[key].clone(),
        };
        assert_eq!(names(&two), names(&one), "{key}");
    }

    let check = |others: &[&str], lines: usize, last: &str| {
        let said = eval(&[&["--devices", "cpu:1"], others].concat()).stdout;
        let listed: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("mistakes: 30 of 55")).collect();
        assert_eq!(listed.len(), lines, "{said}");
        assert!(listed.last().unwrap().contains(last), "{said}");
    };
    check(&["--mistakes"], 22, "  and 10 more; --mistakes 30 lists all, as do --csv and --json");
    check(&["--mistakes", "30"], 31, "predicted as dark (100.00 %)");
    let table = eval(&["--devices", "cpu:1", "--csv", "--mistakes"]).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("path,class,predicted,probability,class_probability", 31));
    refused(&enmasse(&["eval", &weights, &data, "--csv", "--json"]), 2, &["--csv: cannot be combined with --json"]);
}

/// Regression test: the table of a thousand classes would fill the screen.
#[test]
fn many_classes_take_a_short_table() {
    let folder = tempfile::tempdir().unwrap();
    let three = images(folder.path(), 5);
    let data = folder.path().join("many");
    for class in 0..30 {
        let to = data.join(format!("class-{class:02}"));
        fs::create_dir_all(&to).unwrap();
        for (number, from) in (0..5).flat_map(|number| ["dark", "red"].map(|class| (number, class))) {
            let name = format!("{number:03}.{}", if number % 2 == 0 { "png" } else { "jpg" });
            fs::copy(three.join(from).join(&name), to.join(format!("{from}-{name}"))).unwrap();
        }
    }
    let data = data.display().to_string();
    let run = folder.path().join("run").display().to_string();
    enmasse(&["train", &data, "--model", "mlp", "--size", "12", "--devices", "cpu:1", "--epochs", "1", "--out", &run])
        .well();
    let eval = |others: &[&str]| {
        let fixed = ["eval", &run, &data, "--split", "all", "--devices", "cpu:1"];
        enmasse(&[&fixed[..], others].concat()).well().stdout
    };
    let said = eval(&[]);
    assert_eq!(said.lines().filter(|line| line.starts_with("class-")).count(), 20, "{said}");
    assert!(
        said.contains("\nthese are the 20 with the lowest F1 of 30 classes; --csv and --json have all\n"),
        "{said}"
    );
    assert!(said.lines().count() < 30, "{said}");
    assert_eq!(eval(&["--csv"]).lines().count(), 32);
}

fn on_one_device(arguments: &[&str]) -> Ended {
    enmasse(&[arguments, &["--devices", "cpu:1", "--size", "12"]].concat()).well()
}

/// Its class was named at the start alone, and with as few images of each class in the validation nothing told of 10 times as many in
/// training.
#[test]
fn a_class_that_nothing_evaluates_was_forgotten_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    for entry in fs::read_dir(data.join("red")).unwrap().skip(2) {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let data = data.display().to_string();
    let run = folder.path().join("run").display().to_string();
    let trained = on_one_device(&["train", &data, "--model", "mlp", "--epochs", "1", "--out", &run]);
    let line = "warning: in the validation 1 of 3 classes has no image, so nothing evaluated it: red";
    assert_eq!(trained.stderr.lines().last(), Some(line), "{}", trained.stderr);
    assert!(trained.stdout.contains("\n    balanced accuracy "), "{}", trained.stdout);
    let said = enmasse(&["eval", &run, "--devices", "cpu:1"]).well().stdout;
    assert!(said.contains("\n1 of 3 classes has no image, so nothing evaluated it: red\n"), "{said}");
}

/// After a resume with ties it named the first epoch of its own start, though the best checkpoint was an earlier one's.
#[test]
fn the_best_epoch_of_an_earlier_start_is_no_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = unequal(folder.path()).display().to_string();
    let weights = one_class_for_all(folder.path(), &data);
    let run = folder.path().join("run").display().to_string();
    let train = ["train", &data, "--model", "mlp", "--weights", &weights, "--lr", "1e-9", "--out", &run];
    let best = |others: &[&str]| {
        let ended = on_one_device(&[&train[..], others].concat());
        ended.stderr.lines().filter(|line| line.contains(", the best, ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = best(&["--epochs", "1"]);
    assert!(matches!(&first[..], [line] if line.contains("of epoch 1, the best")), "{first:?}");
    assert_eq!(best(&["--epochs", "3", "--resume"]), [""; 0]);
}

/// Regression test: "accuracy 45.45 %" was all that was said of a model that predicts one class of three for all.
#[test]
fn one_class_for_all_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let data = unequal(folder.path()).display().to_string();
    let weights = one_class_for_all(folder.path(), &data);

    let eval = ["eval", &weights, &data, "--model", "mlp"];
    let said = on_one_device(&eval).stdout;
    assert!(said.contains("accuracy 45.45 % (95 % interval 32.7 to 58.2), balanced accuracy 33.33 %, loss "), "{said}");
    let rows = [
        "class             images  precision     recall         F1  ROC AUC     AP",
        "dark                  25    45.45 %   100.00 %    62.50 %    0.500  0.455",
        "light                 25     0.00 %     0.00 %     0.00 %    0.500  0.455",
        "red                    5     0.00 %     0.00 %     0.00 %    0.500  0.091",
        "macro average         55    15.15 %    33.33 %    20.83 %    0.500  0.333",
        "2 of 3 classes were never predicted: light, red",
        "most confused: light predicted as dark (25), red predicted as dark (5)",
        "calibration: Brier score 1.0909, expected error of probabilities (ECE) 54.55 %",
    ];
    assert_eq!(said.lines().skip(1).collect::<Vec<_>>(), rows);
    let found = &on_one_device(&[&eval[..], &["--json"]].concat()).json()[0];
    assert_eq!(found["balanced_accuracy"], 1.0 / 3.0);
    let class = json!({"class": "dark", "images": 25, "predicted": 55, "precision": 25.0 / 55.0, "recall": 1.0, "f1": 50.0 / 80.0,
        "roc_auc": 0.5, "average_precision": 25.0 / 55.0});
    assert_eq!(found["per_class"][0], class);
    let confused = json!([{"class": "light", "predicted": "dark", "images": 25}, {"class": "red", "predicted": "dark", "images": 5}]);
    assert_eq!((&found["confused"], &found["mistakes"]), (&confused, &json!(null)));
    assert_eq!(found["macro"], json!({"precision": 25.0 / 55.0 / 3.0, "recall": 1.0 / 3.0, "f1": 50.0 / 80.0 / 3.0}));
    let table = on_one_device(&[&eval[..], &["--csv"]].concat());
    let rows = [
        "label,class,images,predicted,precision,recall,f1,confused_with,confused,roc_auc,average_precision",
        "0,dark,25,55,0.45454545454545453,1,0.625,,0,0.5,0.45454545454545453",
        "1,light,25,0,0,0,0,dark,25,0.5,0.45454545454545453",
        "2,red,5,0,0,0,0,dark,5,0.5,0.09090909090909091",
        ",macro average,55,,0.15151515151515152,0.3333333333333333,0.20833333333333334,,,0.5,0.3333333333333333",
    ];
    assert_eq!(table.stdout.lines().collect::<Vec<_>>(), rows);
    assert!(table.stderr.contains("balanced accuracy 33.33 %"), "{}", table.stderr);

    let run = folder.path().join("run");
    let train = ["train", &data, "--model", "mlp", "--weights", &weights, "--lr", "1e-9", "--epochs", "1"];
    let trained = on_one_device(&[&train[..], &["--out", &run.display().to_string()]].concat());
    let (said, told) = (&trained.stdout, &trained.stderr);
    assert!(said.contains("\n    balanced accuracy 33.33 %\n"), "{said}");
    assert!(said.contains("best validation accuracy 45.45 %, balanced accuracy 33.33 %; peak"), "{said}");
    let warning = "warning: in the validation of epoch 1, the best, 2 of 3 classes were never predicted: light, red\n";
    assert!(told.contains(warning), "{told}");
    assert_eq!(metrics(&run)[0]["balanced_accuracy"], 1.0 / 3.0);
    assert_eq!(metrics(&run)[0]["val_macro_f1"], 50.0 / 80.0 / 3.0);

    // Classes of about the same size: nothing is added.
    let equal = images(&folder.path().join("equal"), 5).display().to_string();
    let said = on_one_device(&["eval", &weights, &equal, "--model", "mlp"]).stdout;
    assert!(said.contains("accuracy 33.33 % (95 % interval ") && said.contains("), loss "), "{said}");
}
