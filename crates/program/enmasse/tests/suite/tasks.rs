//! Runs that predict several labels of an image, or numbers: from a table to the figures and predictions of their weights.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Ended, enmasse, failed, images, metrics, refused};

const MODEL: [&str; 8] = ["--model", "mlp", "--size", "12", "--batch", "8", "--lr", "0.02"];

/// A table of dark, light and red images, and its path. `row` gives what a class's images have.
pub fn table(root: &Path, head: &str, row: fn(&str) -> &str) -> String {
    let data = images(root, 12);
    let mut text = format!("path,{head}\n");
    for class in ["dark", "light", "red"] {
        for number in 0..12 {
            let ending = ["png", "jpg"][number % 2];
            text += &format!("{class}/{number:03}.{ending},{}\n", row(class));
        }
    }
    let path = data.join("table.csv");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

pub fn labels(class: &str) -> &str {
    match class {
        "dark" => "dim",
        "light" => "bright|neutral",
        _ => "bright|coloured",
    }
}

pub fn train(data: &str, run: &str, others: &[&str]) -> Ended {
    enmasse(&[&["train", data, "--out", run], &MODEL[..], others].concat())
}

/// The figures of an evaluation that do not depend on the order of sums.
fn evaluated(run: &str, devices: &str) -> Value {
    let mut found = enmasse(&["eval", run, "--devices", devices, "--json"]).well().json().remove(0);
    let loss = found["loss"].take().as_f64().unwrap();
    found["loss"] = Value::from((loss * 1e4).round());
    found
}

#[test]
fn several_labels_of_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let data = table(folder.path(), "labels", labels);
    let run = folder.path().join("run").display().to_string();
    let trained = train(&data, &run, &["--epochs", "6", "--devices", "cpu:2", "--class-weights", "balanced"]).well();
    assert!(trained.stdout.contains("best val_map ") && trained.stderr.contains(" with 4 labels: "), "{trained:?}");
    let epochs = metrics(Path::new(&run));
    let best = epochs.iter().map(|epoch| epoch["val_map"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(best > 0.9 && epochs[0]["val_accuracy"].is_null(), "{epochs:?}");

    let found = evaluated(&run, "cpu:1");
    assert_eq!(found, evaluated(&run, "cpu:2"));
    assert_eq!((found["task"].as_str(), found["map"].as_f64()), (Some("multi-label"), Some(best)));
    let classes: Vec<_> = found["per_class"].as_array().unwrap().iter().map(|class| &class["class"]).collect();
    assert_eq!(classes, ["bright", "coloured", "dim", "neutral"]);
    let shown = enmasse(&["eval", &run, "--devices", "cpu:1"]).well().stdout;
    assert!(shown.contains("macro_f1") && shown.contains("\ncoloured "), "{shown}");

    let red = Path::new(&data).with_file_name("red").join("000.png").display().to_string();
    let top = enmasse(&["predict", &run, &red, "--devices", "cpu:1", "--json"]).well().json().remove(0);
    assert_eq!((&top["top"][0]["class"], top["top"].as_array().map(Vec::len)), (&"coloured".into(), Some(4)), "{top}");

    // The evaluation has kept thresholds.
    let kept = fs::read_to_string(Path::new(&run).join("thresholds.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let best = |label: &str| found["per_class"].as_array().unwrap().iter().find(|row| row["class"] == label).unwrap();
    assert_eq!(kept["thresholds"]["dim"], best("dim")["best_threshold"]);
    let expected: Vec<&Value> = {
        let mut above: Vec<_> = top["top"].as_array().unwrap().iter().collect();
        above.retain(|guess| {
            guess["probability"].as_f64() >= kept["thresholds"][guess["class"].as_str().unwrap()].as_f64()
        });
        above.sort_by_key(|guess| guess["index"].as_u64());
        above.iter().map(|guess| &guess["class"]).collect()
    };
    assert!(!expected.is_empty());
    assert_eq!(top["labels"].as_array().unwrap().iter().collect::<Vec<_>>(), expected, "{top}");

    let page = folder.path().join("report.html").display().to_string();
    enmasse(&["report", &run, "--html", &page, "--devices", "cpu:1"]).well();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("<td>coloured</td>") && page.contains(" map ") && !page.contains("not evaluated"), "{page}");

    refused(&enmasse(&["eval", &run, "--mistakes"]), 2, &["--mistakes", "multi-label"]);
    refused(&enmasse(&["eval", &run, "--knn", "3"]), 2, &["--knn", "multi-label"]);
    refused(&enmasse(&["eval", &run, "--curves", "x.svg"]), 2, &["--curves", "multi-label"]);
    // The settings of the loss belong to the task.
    let other = folder.path().join("other").display().to_string();
    refused(&train(&data, &other, &["--loss", "mse"]), 2, &["loss mse", "multi-label", "bce, focal or asymmetric"]);
    refused(
        &train(&data, &other, &["--loss", "focal", "--class-weights", "balanced"]),
        2,
        &["class_weights balanced", "bce"],
    );
    let weights = Path::new(&run).join("checkpoints/best.safetensors").display().to_string();
    let tune = ["--weights", &weights, "--epochs", "2", "--devices", "cpu:1"];
    failed(
        &train(&data, &other, &[&tune[..], &["--fine-tune", "head"]].concat()),
        2,
        &["fine_tune head", "--freeze-layers"],
    );
    assert!(!Path::new(&other).join("checkpoints").exists());
    // A recipe's parts that are for classes do not stand in the way.
    let tuned = train(&data, &other, &[&tune[..], &["--recipe", "fine-tune", "--fine-tune", "all"]].concat()).well();
    let said = tuned.stderr;
    assert!(
        said.contains("--fine-tune all has no effect on labels and numbers") && !said.contains("the head alone"),
        "{said}"
    );
}

#[test]
fn a_resumed_run_of_labels_has_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let data = table(folder.path(), "labels", labels);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name).display().to_string());
    let fixed = ["--devices", "cpu:1", "--epochs", "3", "--mixup", "0.4"];
    train(&data, &whole, &fixed).well();
    train(&data, &parts, &[&fixed[..], &["--max-steps", "5"]].concat()).well();
    train(&data, &parts, &[&fixed[..], &["--resume"]].concat()).well();
    let losses = |run: &str| metrics(Path::new(run)).iter().map(|epoch| epoch["val_loss"].clone()).collect::<Vec<_>>();
    assert_eq!(losses(&whole), losses(&parts));
}

#[test]
fn a_number_of_an_image_in_its_own_units() {
    let folder = tempfile::tempdir().unwrap();
    let value = |class: &str| if class == "dark" { "-1000.5" } else { "3000.5" };
    let data = table(folder.path(), "height", value);
    let run = folder.path().join("run").display().to_string();
    let task = ["--task", "regression", "--label-column", "height"];
    train(&data, &run, &[&task[..], &["--epochs", "8", "--devices", "cpu:2", "--loss", "huber"]].concat()).well();
    let found = evaluated(&run, "cpu:1");
    assert_eq!(found, evaluated(&run, "cpu:2"));
    assert!(found["r2"].as_f64().unwrap() > 0.5 && found["mae"].as_f64().unwrap() > 1.0, "{found}");
    assert_eq!(found["per_class"][0]["class"], "height");

    let predict = |class: &str| {
        let image = Path::new(&data).with_file_name(class).join("000.png").display().to_string();
        let found = enmasse(&["predict", &run, &image, "--devices", "cpu:1", "--json"]).well().json().remove(0);
        assert_eq!((&found["values"][0]["name"], found["top"].as_array().map(Vec::len)), (&"height".into(), Some(0)));
        found["values"][0]["value"].as_f64().unwrap()
    };
    assert!(predict("dark") < 500.0 && predict("light") > 1500.0);
    let image = Path::new(&data).with_file_name("red").join("000.png").display().to_string();
    let table = enmasse(&["predict", &run, &image, "--devices", "cpu:1", "--csv"]).well().stdout;
    assert!(table.starts_with("path,height\n"), "{table}");
    refused(&enmasse(&["predict", &run, &image, "--explain", "x"]), 2, &["--explain", "numbers"]);
    refused(&enmasse(&["predict", &run, &image, "--temperature", "2"]), 2, &["--temperature", "numbers"]);
    // Data of another task are no data for these weights.
    let classes = Path::new(&data).parent().unwrap().display().to_string();
    refused(&enmasse(&["eval", &run, &classes, "--split", "all"]), 1, &["classification", "regression"]);
}

#[test]
fn weights_of_classes_change_training_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    for entry in fs::read_dir(data.join("red")).unwrap().skip(3) {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let data = data.display().to_string();
    let weights = folder.path().join("weights.json");
    let file = weights.display().to_string();
    fs::write(&weights, r#"{"dark": 1, "light": 1, "red": 5}"#).unwrap();
    let losses = |name: &str, others: &[&str]| {
        let run = folder.path().join(name).display().to_string();
        train(&data, &run, &[&["--epochs", "2", "--devices", "cpu:1"], others].concat()).well();
        let epochs = metrics(Path::new(&run));
        epochs.iter().map(|epoch| epoch["train_loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let none = losses("none", &[]);
    let balanced = losses("balanced", &["--class-weights", "balanced"]);
    assert!(none != balanced && losses("file", &["--class-weights", &file])[0] != none[0]);
    fs::write(&weights, r#"{"dark": 1}"#).unwrap();
    let run = folder.path().join("lacking").display().to_string();
    refused(&train(&data, &run, &["--class-weights", &file]), 2, &["class_weights", "no weight for \"light\""]);
    refused(&train(&data, &run, &["--loss", "bce"]), 2, &["loss bce", "classification"]);
    refused(
        &train(&data, &run, &["--loss", "focal", "--label-smoothing", "0.1"]),
        2,
        &["label_smoothing 0.1", "focal"],
    );
}
