//! Runs as ONNX models: ONNX Runtime gives what `predict` gives.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use enmasse_train::Checkpoint;
use serde_json::{Value, json};

use crate::common::{Ended, enmasse, finish, images, refused, write_png};

/// The page on exports, whose Python is run too.
const PAGE: &str = include_str!("../../../../../docs/export.md");

/// The resized shorter side of a run with `--size 12`.
const SIDE: usize = 14;

/// The outputs of a model for square images of the resized side, each alone and all at once.
const SCRIPT: &str = r#"
import json, sys, numpy, onnx, onnxruntime
from PIL import Image
file, *images = sys.argv[1:]
onnx.checker.check_model(file, full_check=True)
session = onnxruntime.InferenceSession(file)
meta = session.get_modelmeta().custom_metadata_map
is_int8 = "calibration_images" in meta
types = {value.data_type for value in onnx.load(file).graph.initializer}
assert is_int8 == (onnx.TensorProto.INT8 in types) and (is_int8 or types <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64})
edge, channels = int(meta["crop"]), int(meta["channels"])
start = (int(meta["resize"]) - edge) // 2
crop = lambda image: numpy.asarray(image)[start:start + edge, start:start + edge].reshape(edge, edge, channels)
batch = numpy.stack([crop(Image.open(image).convert("L" if channels == 1 else "RGB")) for image in images])
if meta["input"] == "float-nchw":
    batch = (batch / 255).transpose(0, 3, 1, 2).astype(numpy.float32)
(output,) = session.run(None, {"images": batch})
alone = numpy.concatenate([session.run(None, {"images": batch[i:i + 1]})[0] for i in range(len(batch))])
assert numpy.allclose(output, alone, rtol=1e-5, atol=0.05 if is_int8 else 1e-6), (output, alone)
print(json.dumps({"meta": meta, "output": output.tolist()}))
"#;

/// Images that need no resizing: noise on several colours.
fn squares(root: &Path) -> Vec<String> {
    let write = |number: usize| {
        let path = root.join(format!("square-{number}.png"));
        let noise = |place: usize| (place * 7919 + number * 104_729) % 251 % 90;
        let pixels = (0..SIDE * SIDE * 3).map(|place| (noise(place) + (place % 3 + 1) * number * 13) as u8);
        write_png(&path, SIDE as u16, SIDE as u16, &pixels.collect::<Vec<u8>>());
        path.display().to_string()
    };
    (0..4).map(write).collect()
}

/// A table of `images`, with what each class's images have in a column.
fn table(data: &Path, head: &str, row: fn(&str) -> &str) -> String {
    let mut text = format!("path,{head}\n");
    for class in ["dark", "light", "red"] {
        for number in 0..12 {
            text += &format!("{class}/{number:03}.{},{}\n", ["png", "jpg"][number % 2], row(class));
        }
    }
    let path = data.join("table.csv");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn train(data: &str, run: &str, others: &[&str]) -> Ended {
    let fixed = ["--size", "12", "--batch", "8", "--lr", "0.02", "--epochs", "2", "--devices", "cpu:1"];
    enmasse(&[&["train", data, "--out", run], &fixed[..], others].concat()).well()
}

/// What ONNX Runtime gives for each image, by class, label or number; and the model's metadata.
fn exported(python: &PathBuf, source: &str, out: &Path, images: &[String], others: &[&str]) -> (Vec<Value>, Value) {
    let file = out.display().to_string();
    let said = enmasse(&[&["export", source, "--to", "onnx", "--out", &file, "--json"], others].concat()).well().json();
    assert_eq!((&said[0]["format"], &said[0]["opset"], &said[0]["file"]), (&"onnx".into(), &17.into(), &json!(file)));
    let mut found = finish(Command::new(python).args(["-c", SCRIPT, &file]).args(images)).well().json().remove(0);
    let classes: Vec<String> = serde_json::from_str(found["meta"]["classes"].as_str().unwrap()).unwrap();
    let rows: Vec<Vec<f64>> = serde_json::from_value(found["output"].take()).unwrap();
    let named = |row: &Vec<f64>| json!(classes.iter().zip(row).collect::<HashMap<_, _>>());
    (rows.iter().map(named).collect(), found["meta"].take())
}

/// What `predict` gives for each image, by class, label or number, in f32 as the model computes.
fn predicted(source: &str, images: &[String]) -> Vec<Value> {
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    let fixed = ["predict", source, "--devices", "cpu:1", "--precision", "f32", "--top", "4", "--json"];
    let said = enmasse(&[&fixed[..], &images].concat());
    let of_image = |image: &Value| {
        let entries = |list: &str, name: &str, value: &str| {
            let list = image[list].as_array().into_iter().flatten();
            list.map(|entry| (entry[name].as_str().unwrap().to_owned(), entry[value].clone())).collect::<Vec<_>>()
        };
        let found = [entries("top", "class", "probability"), entries("values", "name", "value")].concat();
        Value::Object(found.into_iter().collect())
    };
    said.well().json().iter().map(of_image).collect()
}

/// Whether all are the same within a part of `scale`.
#[track_caller]
fn same(a: &[Value], b: &[Value], scale: f64) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a.as_object().unwrap(), b.as_object().unwrap());
        assert!(!a.is_empty() && a.len() == b.len(), "{a:?} {b:?}");
        for (name, a) in a {
            let difference = (a.as_f64().unwrap() - b[name].as_f64().unwrap()).abs();
            assert!(difference <= 1e-4 * scale, "{name}: {a}, not {}", b[name]);
        }
    }
    assert!(a[0] != a[3], "all images are the same: {a:?}");
}

#[test]
fn onnx_runtime_gives_the_probabilities_of_predict() {
    let Some(python) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12);
    let squares = squares(folder.path());
    // Some images have another class, so that a temperature fits.
    for number in (0..12).step_by(4) {
        fs::rename(data.join(format!("dark/{number:03}.png")), data.join(format!("red/of-dark-{number}.png"))).unwrap();
    }
    let [data, out] = [data, folder.path().join("model.onnx")].map(|path| path.display().to_string());
    let out = Path::new(&out);
    for (number, channels, precision) in [(0, "3", "bf16"), (1, "1", "f32")] {
        let run = folder.path().join(format!("run-{number}")).display().to_string();
        train(&data, &run, &["--model", "resnet18", "--channels", channels, "--precision", precision, "--ema", "0.5"]);
        let best = Path::new(&run).join("checkpoints/best.safetensors").display().to_string();
        for source in [&run, &best] {
            for input in [&[][..], &["--input", "float-nchw"]] {
                let (found, meta) = exported(&python, source, out, &squares, input);
                same(&found, &predicted(source, &squares), 1.0);
                assert_eq!((&meta["task"], &meta["temperature"]), (&"classification".into(), &"1".into()), "{meta}");
                assert_eq!((&meta["size"], &meta["channels"]), (&"12".into(), &channels.into()), "{meta}");
                assert_eq!(
                    (&meta["resize"], &meta["input"]),
                    (&SIDE.to_string().into(), &json!(input.last().unwrap_or(&"uint8-nhwc")))
                );
            }
        }

        // The temperature that an evaluation keeps is that of predictions and of the model.
        let (before, _) = exported(&python, &run, out, &squares, &[]);
        enmasse(&["eval", &run, "--devices", "cpu:1"]).well();
        let (found, meta) = exported(&python, &run, out, &squares, &[]);
        assert!(found != before && meta["temperature"] != "1", "{meta}");
        same(&found, &predicted(&run, &squares), 1.0);
    }
}

#[test]
fn onnx_runtime_gives_labels_and_numbers() {
    let Some(python) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12);
    let squares = squares(folder.path());
    let [run, other] = ["labels", "numbers"].map(|name| folder.path().join(name).display().to_string());
    let out = folder.path().join("model.onnx");
    let labels = table(&data, "labels", |class| if class == "dark" { "dim" } else { "bright|neutral" });
    train(&labels, &run, &["--model", "mlp"]);
    enmasse(&["eval", &run, "--devices", "cpu:1"]).well();
    let (found, meta) = exported(&python, &run, &out, &squares, &[]);
    same(&found, &predicted(&run, &squares), 1.0);
    let thresholds: Vec<f64> = serde_json::from_str(meta["thresholds"].as_str().unwrap()).unwrap();
    assert_eq!((meta["task"].as_str(), thresholds.len()), (Some("multi-label"), 3), "{meta}");

    let numbers = table(&data, "height,weight", |class| if class == "dark" { "-1000.5,1" } else { "3000.5,2" });
    train(&numbers, &other, &["--model", "mlp", "--task", "regression", "--label-column", "height,weight"]);
    let (found, meta) = exported(&python, &other, &out, &squares, &[]);
    // In thousands.
    same(&found, &predicted(&other, &squares), 1000.0);
    assert_eq!((meta["task"].as_str(), &meta["temperature"]), (Some("regression"), &Value::Null), "{meta}");
}

#[test]
fn integers_of_8_bits_give_nearly_the_probabilities_of_predict() {
    let Some(python) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12).display().to_string();
    let squares = squares(folder.path());
    let run = folder.path().join("run").display().to_string();
    train(&data, &run, &["--model", "resnet18", "--precision", "bf16"]);
    let out = folder.path().join("model.onnx");
    let [whole, few] = [&["--int8"][..], &["--int8", "--calibration-images", "5"]];
    for (others, images) in [(whole, "30"), (few, "5")] {
        let (found, meta) = exported(&python, &run, &out, &squares, others);
        assert_eq!(meta["calibration_images"], images);
        same(&found, &predicted(&run, &squares), 1000.0);
    }
    let best = Path::new(&run).join("checkpoints/best.safetensors").display().to_string();
    let refuse = |source: &str, others: &[&str], expected: &[&str]| {
        refused(&enmasse(&[&["export", source, "--to"], others].concat()), 2, expected);
    };
    refuse(&best, &["onnx", "--int8"], &["best.safetensors", "--int8 needs a run folder"]);
    refuse(&run, &["pth", "--int8"], &["--int8", "--to onnx"]);
    refuse(&run, &["pth", "--calibration-images", "3"], &["--calibration-images", "--to onnx"]);
    refuse(&run, &["onnx", "--calibration-images", "3"], &["--calibration-images", "--int8"]);
}

/// The page's lines run as they are, but for the names of the two files.
#[test]
fn the_pages_python_predicts_as_predict_does() {
    let Some(python) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12).display().to_string();
    let run = folder.path().join("run").display().to_string();
    let image = folder.path().join("wide.png");
    let pixels: Vec<u8> = (0..60 * 41 * 3).map(|place: usize| (place / 3 * 4 + place % 3 * 50) as u8).collect();
    write_png(&image, 60, 41, &pixels);
    let image = image.display().to_string();
    train(&data, &run, &["--model", "mlp"]);
    let said = enmasse(&["export", &run, "--to", "onnx"]).well().stdout;
    assert!(said.contains("weights/best.onnx: opset 17, ") && said.ends_with(" images as uint8-nhwc\n"), "{said}");
    let lines = PAGE.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let lines = lines.replace("runs/flowers", &run).replace("rose.jpg", &image);
    let printed = finish(Command::new(python).args(["-c", &lines])).well().stdout;
    let (class, probability) = printed.trim().split_once(' ').unwrap();
    let top = enmasse(&["predict", &run, &image, "--devices", "cpu:1", "--json"]).well().json().remove(0);
    let own = top["top"][0]["probability"].as_f64().unwrap();
    // Pillow rounds resized pixels as we do, up to one step.
    assert!((probability.parse::<f64>().unwrap() - own).abs() < 1e-2, "{printed} {top}");
    assert_eq!(top["top"][0]["class"], class);
}

#[test]
fn what_has_no_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
    let run = folder.path().join("run").display().to_string();
    train(&data, &run, &["--model", "mlp"]);
    let best = Path::new(&run).join("checkpoints/best.safetensors").display().to_string();
    let bare = folder.path().join("bare.safetensors").display().to_string();
    enmasse(&["export", &run, "--to", "safetensors", "--out", &bare]).well();
    refused(
        &enmasse(&["export", &bare, "--to", "onnx"]),
        2,
        &["bare.safetensors", "holds weights alone", "a run folder"],
    );
    refused(&enmasse(&["export", &best, "--to", "onnx", "--out", &best]), 2, &["is the file to be exported itself"]);
    refused(&enmasse(&["export", &run, "--to", "pth", "--input", "float-nchw"]), 2, &["--input", "--to onnx"]);
    let lacking = folder.path().join("lacking").display().to_string();
    refused(&enmasse(&["export", &lacking, "--to", "onnx"]), 1, &["lacking"]);
    // A model that a program has defined itself.
    let Checkpoint { mut meta, tensors } = Checkpoint::load(Path::new(&best)).unwrap();
    meta.model = "mine".to_owned();
    let own = folder.path().join("own.safetensors");
    Checkpoint { meta, tensors }.save(&own).unwrap();
    let own = own.display().to_string();
    refused(&enmasse(&["export", &own, "--to", "onnx"]), 2, &["\"mine\"", "Classifier::to_onnx"]);
    assert!(!folder.path().join("own.onnx").exists());
}
