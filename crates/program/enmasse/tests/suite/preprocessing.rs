//! The JSON file beside exported weights: with it, a program in Python prepares images as this one does.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{enmasse, finish, images, metrics, refused, write_png};
use serde_json::Value;

/// Predicts images by torchvision's model, from the weights and the file beside them.
const SCRIPT: &str = r#"
import json, sys, torch, torchvision
from PIL import Image
weights, beside, images = sys.argv[1], sys.argv[2], sys.argv[3:]
recipe = json.load(open(beside))
exec(recipe["imports"])
transform = eval(recipe["transform"])
model = torchvision.models.get_model(recipe["model"], num_classes=len(recipe["classes"]))
if recipe["channels"] != 3:
    model.conv1 = torch.nn.Conv2d(recipe["channels"], 64, 7, 2, 3, bias=False)
model.load_state_dict(torch.load(weights, weights_only=True))
model.eval()
for image in images:
    with torch.no_grad():
        found = model(transform(Image.open(image)).unsqueeze(0)).softmax(1)[0]
    print(json.dumps({"image": image, "found": dict(zip(recipe["classes"], found.tolist()))}))
"#;

/// Regression test: exported weights did not say how images are prepared, so a program in Python guessed.
#[test]
fn torchvisions_compose_prepares_images_as_the_run_does() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 6);
    let wide = folder.path().join("wide.png");
    let pixels: Vec<u8> = (0..150 * 90 * 3).map(|place: usize| (place * 7 + place / 450 * 31) as u8).collect();
    write_png(&wide, 150, 90, &pixels);
    let images = [wide, data.join("red/001.jpg"), data.join("light/000.png")].map(|path| path.display().to_string());
    let data = data.display().to_string();
    let Some(python) = test_support::pytorch() else { return };
    for channels in [3, 1] {
        let run = folder.path().join(format!("run-{channels}"));
        let run_text = run.display().to_string();
        let fixed =
            ["train", &data, "--model", "resnet18", "--size", "40", "--epochs", "1", "--batch", "8", "--devices"];
        let others = ["cpu:1", "--export-every", "1", "--out", &run_text, "--channels", &channels.to_string()];
        enmasse(&[&fixed[..], &others].concat()).well();
        assert_eq!(metrics(&run).len(), 1);
        let exported = enmasse(&["export", &run_text, "--to", "pth", "--json"]).well().json().remove(0);
        let [best, beside] = ["file", "preprocessing"].map(|key| exported[key].as_str().unwrap().to_owned());
        let epoch = run.join("weights/model-0.json");
        assert_eq!(fs::read(&beside).unwrap(), fs::read(&epoch).unwrap());
        let recipe: Value = serde_json::from_str(&fs::read_to_string(&beside).unwrap()).unwrap();
        assert_eq!(
            (&recipe["size"], &recipe["resize"], &recipe["channels"]),
            (&40.into(), &46.into(), &channels.into())
        );

        let torch = finish(Command::new(&python).args(["-c", SCRIPT, &best, &beside]).args(&images)).well().json();
        let predict = ["predict", &run_text, "--devices", "cpu:1", "--json", "--top", "3"];
        let own = enmasse(&[&predict[..], &images.each_ref().map(String::as_str)].concat()).well().json();
        assert_eq!((torch.len(), own.len()), (3, 3));
        for (torch, own) in torch.iter().zip(&own) {
            assert_eq!(torch["image"], own["image"]);
            for guess in own["top"].as_array().unwrap() {
                let own = &guess["probability"];
                let other = &torch["found"][guess["class"].as_str().unwrap()];
                let difference = (own.as_f64().unwrap() - other.as_f64().unwrap()).abs();
                assert!(difference < 1e-4, "{channels} channels, {guess}: torch has {other}");
            }
        }
    }
}

/// The file beside the weights replaces an earlier one of its kind, and no other.
#[test]
fn the_preparation_overwrites_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
    let run = folder.path().join("run").display().to_string();
    let train =
        ["train", &data, "--model", "mlp", "--size", "12", "--epochs", "1", "--devices", "cpu:1", "--out", &run];
    enmasse(&train).well();
    let export = |name: &str, format: &str| {
        let out = Path::new(&run).join(name).display().to_string();
        enmasse(&["export", &run, "--to", format, "--out", &out])
    };
    for _ in 0..2 {
        let said = export("mine.pth", "pth").well().stdout;
        assert!(said.contains("mine.json: how images are prepared"), "{said}");
    }
    let classes = fs::read(Path::new(&run).join("class_indices.json")).unwrap();
    refused(&export("class_indices.pth", "pth"), 2, &["class_indices.json", "over another file; choose another --out"]);
    assert_eq!(fs::read(Path::new(&run).join("class_indices.json")).unwrap(), classes);
    assert!(!Path::new(&run).join("class_indices.pth").exists());
    refused(&export("weights.json", "pth"), 2, &["weights.json", "choose another --out"]);
    // Safetensors have none.
    export("class_indices.safetensors", "safetensors").well();
}
