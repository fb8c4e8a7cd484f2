//! What `eval` says beside accuracy: its interval, areas under curves, calibration, and the temperature that `predict` uses.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{enmasse, failed, images, refused};

/// A run on images of three classes, of which some lie in the folder of another class, so that no model is right about all.
fn run(root: &Path) -> [String; 2] {
    let data = images(root, 40);
    for number in (0..40).step_by(4) {
        let dark = data.join(format!("dark/{number:03}.png"));
        let red = data.join(format!("red/{number:03}.png"));
        fs::rename(dark, data.join(format!("light/of-dark-{number}.png"))).unwrap();
        fs::rename(red, data.join(format!("dark/of-red-{number}.png"))).unwrap();
    }
    let [data, run] = [data, root.join("run")].map(|path| path.display().to_string());
    let train = ["train", &data, "--model", "mlp", "--size", "12", "--devices", "cpu:1", "--batch", "8", "--out", &run];
    enmasse(&[&train[..], &["--epochs", "4"]].concat()).well();
    [data, run]
}

fn temperature(run: &str) -> Option<f64> {
    let text = fs::read_to_string(Path::new(run).join("calibration.json")).ok()?;
    serde_json::from_str::<Value>(&text).unwrap()["temperature"].as_f64()
}

#[test]
fn figures_are_the_same_at_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let [_, run] = run(folder.path());
    let eval = |others: &[&str]| enmasse(&[&["eval", &run, "--batch", "4"], others].concat()).well();
    let one = eval(&["--devices", "cpu:1", "--json"]).json().remove(0);
    for ranks in ["thread", "process"] {
        let mut several = eval(&["--devices", "cpu:2", "--ranks", ranks, "--json"]).json().remove(0);
        // The sum over ranks has another order.
        assert!((several["loss"].as_f64().unwrap() - one["loss"].as_f64().unwrap()).abs() < 1e-6);
        several["loss"] = one["loss"].clone();
        assert_eq!(several, one);
    }
    let number = |name: &str| one[name].as_f64().unwrap_or_else(|| panic!("{name}: {one}"));
    let [low, high] = [0, 1].map(|end| one["accuracy_interval"][end].as_f64().unwrap());
    assert!(low < number("accuracy") && number("accuracy") < high && low > 0.0 && high < 1.0, "{one}");
    for name in ["ece", "roc_auc", "average_precision", "macro_f1", "macro_precision", "macro_recall"] {
        assert!(number(name) > 0.0 && number(name) < 1.0, "{name}: {one}");
    }
    let means = |name: &str| {
        let classes = one["per_class"].as_array().unwrap();
        classes.iter().map(|class| class[name].as_f64().unwrap()).sum::<f64>() / 3.0
    };
    assert!((means("roc_auc") - number("roc_auc")).abs() < 1e-12 && one["macro_f1"] == one["macro"]["f1"], "{one}");

    let [curves, diagram] =
        ["curves.svg", "reliability.svg"].map(|name| folder.path().join(name).display().to_string());
    let said = eval(&["--devices", "cpu:2", "--curves", &curves, "--reliability", &diagram]).stdout;
    assert!(said.contains(" % (95 % interval ") && said.contains("  ROC AUC     AP\n"), "{said}");
    assert!(said.contains(" (ECE) ") && said.contains(" %; at temperature "), "{said}");
    let [curves, diagram] = [curves, diagram].map(|file| fs::read_to_string(file).unwrap());
    assert!(curves.contains("curves of the classes, validation part") && curves.contains(">light<"), "{curves}");
    assert!(
        diagram.contains("reliability, validation part: ECE ") && diagram.contains(">images, 24 in all"),
        "{diagram}"
    );
}

#[test]
fn predictions_have_the_temperature_of_the_validation_part() {
    let folder = tempfile::tempdir().unwrap();
    let [data, run] = run(folder.path());
    let image = Path::new(&data).join("light/002.png").display().to_string();
    let eval =
        |others: &[&str]| enmasse(&[&["eval", &run, "--devices", "cpu:1", "--json"], others].concat()).well().json();
    let predict = |others: &[&str]| {
        let predicted = enmasse(&[&["predict", &run, &image, "--json", "--top", "3"], others].concat()).well();
        let top = predicted.json()[0]["top"].clone();
        let found = [0, 1, 2].map(|place| top[place]["probability"].as_f64().unwrap());
        (found, predicted.stderr)
    };
    let (own, said) = predict(&[]);
    assert_eq!(said, "");
    // Other images than those of the validation part, and several crops, keep nothing.
    assert_eq!(eval(&[&data, "--split", "all"])[0]["temperature"], Value::Null);
    eval(&["--crops", "5"]);
    assert_eq!(temperature(&run), None);

    let fitted = eval(&[])[0]["temperature"].as_f64().unwrap();
    assert_eq!(temperature(&run), Some(fitted));
    let (calibrated, said) = predict(&[]);
    assert!(said.contains("at temperature") && said.contains("on 24 images of the validation part"), "{said}");
    assert!(said.contains("--temperature 1 gives the model's own"), "{said}");
    let logarithm = |found: [f64; 3]| (found[0] / found[1]).ln();
    assert!((logarithm(own) / logarithm(calibrated) / fitted - 1.0).abs() < 1e-6, "{own:?} {calibrated:?} {fitted}");
    assert_eq!(predict(&["--temperature", "1"]), (own, String::new()));
    let halves = predict(&["--temperature", "2"]).0;
    assert!((logarithm(own) / logarithm(halves) - 2.0).abs() < 1e-6, "{own:?} {halves:?}");
    for wrong in ["0", "-1", "nan", "inf", "warm"] {
        let ended = enmasse(&["predict", &run, &image, &format!("--temperature={wrong}")]);
        refused(&ended, 2, &["--temperature", "must be a number above 0"]);
    }

    let file = Path::new(&run).join("calibration.json");
    let kept = fs::read_to_string(&file).unwrap();
    // That of other weights has no effect.
    let mut other: Value = serde_json::from_str(&kept).unwrap();
    other["optimizer_step"] = 1.into();
    fs::write(&file, other.to_string()).unwrap();
    assert_eq!(predict(&[]), (own, String::new()));
    for (content, problem) in [("{", "is malformed"), (&kept.replace(&fitted.to_string(), "-1.0"), "not above 0")] {
        fs::write(&file, content).unwrap();
        failed(&enmasse(&["predict", &run, &image]), 1, &["calibration.json", problem]);
    }
    // Other weights may become the best.
    enmasse(&["train", &data, "--resume", "--epochs", "5", "--devices", "cpu:1", "--out", &run]).well();
    assert!(!file.exists());
}
