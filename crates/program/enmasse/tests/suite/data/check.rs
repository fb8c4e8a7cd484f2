//! `enmasse data check`: each fault has its line, and decides the exit code.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::textured;
use crate::common::{enmasse, failed, images, write_png};

/// Two classes of different images, three of each in training and one in validation.
fn sound(root: &Path) {
    for (label, class) in ["green", "red"].into_iter().enumerate() {
        for number in 0..3 {
            textured(&root.join(format!("train/{class}/{number}.png")), (label * 10 + number) as u64);
        }
        textured(&root.join(format!("val/{class}/3.png")), (label * 10 + 3) as u64);
    }
}

#[test]
fn a_sound_data_set() {
    let folder = tempfile::tempdir().unwrap();
    sound(folder.path());
    let data = folder.path().display().to_string();
    let expected = format!(
        "data:    {data}, folder of class folders\nclass    training  validation\ngreen           3           1\n\
         red             3           1\nall             6           2\nsizes:   18x16\nno problems\n"
    );
    for threads in ["1", "3"] {
        assert_eq!(enmasse(&["data", "check", &data, "--loader-threads", threads]).well().stdout, expected);
    }
    let object = enmasse(&["data", "check", &data, "--json"]).well().json().remove(0);
    assert_eq!(object["parts"][1], json!({ "part": "validation", "samples": 2, "counts": [1, 1], "targets": null }));
    assert_eq!((&object["problems"], &object["notes"]), (&json!([]), &json!([])));
}

#[test]
fn each_fault_has_its_line() {
    let check = |spoil: &dyn Fn(&Path), code: i32, lines: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        sound(folder.path());
        spoil(folder.path());
        let data = folder.path().display().to_string();
        let ended = enmasse(&["data", "check", &data]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(code), ""), "{ended:?}");
        let found = ended.stdout.lines().filter(|line| line.starts_with("note: ") || line.starts_with("problem: "));
        let found: Vec<String> = found.map(|line| line.replace(&format!("{data}/"), "")).collect();
        assert_eq!(found, lines);
    };
    let copy = |from: &'static str, to: &'static str| {
        move |root: &Path| assert!(fs::copy(root.join(from), root.join(to)).unwrap() > 0)
    };
    check(
        &|root| fs::write(root.join("val/red/9.jpg"), "").unwrap(),
        1,
        &["problem: 1 image cannot be read: val/red/9.jpg (the file is empty)"],
    );
    check(
        &|root| {
            let whole = fs::read(root.join("train/red/1.png")).unwrap();
            (4..9).for_each(|number| fs::write(root.join(format!("train/red/{number}.png")), &whole[..40]).unwrap());
        },
        1,
        &["problem: 5 images cannot be read: train/red/4.png (a damaged or truncated PNG: unexpected end of file), \
           train/red/5.png (a damaged or truncated PNG: unexpected end of file), train/red/6.png (a damaged or truncated PNG: unexpected end of file) \
           and 2 more"],
    );
    check(
        &copy("train/red/0.png", "val/red/0.png"),
        1,
        &["problem: 1 image is in two parts: train/red/0.png = val/red/0.png"],
    );
    // Regression test: a test part was not looked at.
    let with_test = |root: &Path| {
        for (label, class) in ["green", "red"].into_iter().enumerate() {
            fs::create_dir_all(root.join(format!("test/{class}"))).unwrap();
            textured(&root.join(format!("test/{class}/4.png")), (label * 10 + 4) as u64);
        }
    };
    check(
        &|root| {
            with_test(root);
            copy("train/red/0.png", "test/red/5.png")(root);
            copy("val/green/3.png", "test/green/6.png")(root);
            fs::write(root.join("test/red/9.jpg"), "").unwrap();
        },
        1,
        &[
            "problem: 1 image cannot be read: test/red/9.jpg (the file is empty)",
            "problem: 2 images are in two parts: train/red/0.png = test/red/5.png, val/green/3.png = test/green/6.png",
        ],
    );
    check(
        &copy("train/red/0.png", "train/green/7.png"),
        1,
        &["problem: 1 image has two classes: train/green/7.png (green) = train/red/0.png (red)"],
    );
    check(
        &copy("train/red/0.png", "train/red/7.png"),
        0,
        &["note:    1 image is more than once in a part: train/red/0.png = train/red/7.png"],
    );
    check(
        &|root| fs::rename(root.join("train/red/0.png"), root.join("train/red/0.JPG")).unwrap(),
        0,
        &["note:    1 image by another format's name; its content counts: train/red/0.JPG (PNG)"],
    );
    check(
        &|root| {
            ["a", "b"]
                .iter()
                .for_each(|name| super::grey(&root.join(format!("train/red/{name}.jpg")), name.as_bytes()[0]));
        },
        0,
        &[
            "note:    2 images are not RGB and are converted: train/red/a.jpg (L (grayscale)), train/red/b.jpg (L (grayscale))",
        ],
    );
    check(
        &|root| {
            fs::write(root.join("train/red/Thumbs.db"), "").unwrap();
            fs::create_dir_all(root.join("train/__MACOSX/red")).unwrap();
        },
        0,
        &[],
    );
    check(
        &|root| {
            fs::write(root.join("train/red/notes.txt"), "").unwrap();
            fs::write(root.join("train/red/.hidden"), "").unwrap();
            fs::create_dir(root.join("val/green/more")).unwrap();
        },
        0,
        &["note:    2 paths beside the images are in no part: train/red/notes.txt, val/green/more"],
    );
    check(
        &|root| std::os::unix::fs::symlink("nowhere", root.join("train/red/5.png")).unwrap(),
        0,
        &["note:    left out 1 entry: train/red/5.png (a broken link)"],
    );
    // The same image in another file looks alike; only its brightness differs.
    check(
        &|root| super::brighter(&root.join("val/red/8.png"), 10, 20),
        0,
        &["note:    1 image outside training looks like a training image (at most 4 of 64 bits differ): \
           val/red/8.png = train/red/0.png"],
    );
}

/// The seeded split leaves nothing of a class with one image for validation.
#[test]
fn a_class_that_lacks_a_part() {
    let folder = tempfile::tempdir().unwrap();
    (0..5).for_each(|number| textured(&folder.path().join(format!("many/{number}.png")), number));
    textured(&folder.path().join("one/0.png"), 9);
    let data = folder.path().display().to_string();
    let ended = enmasse(&["data", "check", &data, "--json"]);
    assert_eq!(ended.code, Some(1));
    let expected = json!([{
        "kind": "lacking", "what": "1 class lacks images in a part", "count": 1,
        "items": [{ "class": "one", "part": "validation" }]
    }]);
    assert_eq!(ended.json()[0]["problems"], expected);
    failed(&enmasse(&["data", "check", "/nowhere"]), 1, &["/nowhere"]);
}

#[test]
fn json_names_every_case() {
    let folder = tempfile::tempdir().unwrap();
    sound(folder.path());
    let names: Vec<String> = (4..9).map(|number| format!("train/red/{number}.jpg")).collect();
    names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    let data = folder.path().display().to_string();
    let ended = enmasse(&["data", "check", &data, "--json"]);
    let items = ended.json()[0]["problems"][0]["items"].as_array().unwrap().clone();
    let expected: Vec<Value> =
        names.iter().map(|name| json!({ "file": name, "matter": "the file is empty" })).collect();
    assert_eq!(items, expected);
}

/// A twentieth of the images has another class's label. A model of the data, flips included, lists them among the first tenth.
#[test]
fn a_model_finds_labels_that_are_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 40);
    let flipped = ["003.jpg", "011.jpg", "018.png", "024.png", "030.png", "037.jpg"];
    for (number, name) in flipped.into_iter().enumerate() {
        let (from, to) = [("dark", "light"), ("light", "red"), ("red", "dark")][number % 3];
        fs::rename(data.join(from).join(name), data.join(to).join(format!("moved-{name}"))).unwrap();
    }
    // An image like no other.
    let noise: Vec<u8> =
        (0..14 * 14 * 3u32).map(|at| if at / 3 % 2 == 0 { 255 } else { (at * 97 % 251) as u8 }).collect();
    write_png(&data.join("dark/odd.png"), 14, 14, &noise);
    let data = data.display().to_string();
    let run = folder.path().join("run").display().to_string();
    let model = ["--model", "mlp", "--size", "12", "--batch", "8", "--epochs", "3", "--devices", "cpu:1"];
    enmasse(&[&["train", &data, "--out", &run], &model[..]].concat()).well();
    let sheets = folder.path().join("sheets");
    let checked =
        enmasse(&["data", "check", &data, "--model", &run, "--sheets", &sheets.display().to_string(), "--json"]);
    let found = checked.json().remove(0);
    let list = |kind: &str| {
        let finding = found["notes"].as_array().unwrap().iter().find(|finding| finding["kind"] == kind);
        finding.map_or(Vec::new(), |finding| finding["items"].as_array().unwrap().clone())
    };
    let first: Vec<String> = list("mislabelled").iter().take(12).map(|item| item["file"].to_string()).collect();
    let recalled = flipped.iter().filter(|name| first.iter().any(|file| file.contains(*name))).count();
    assert!(recalled >= 5, "{recalled} of 6 in {first:?}");
    assert!(list("mislabelled")[0]["matter"].as_str().unwrap().contains(", rather "), "{found}");
    assert!(fs::read_to_string(sheets.join("mislabelled.svg")).unwrap().contains(", rather "));
    failed(&enmasse(&["data", "check", &data, "--sheets", "x"]), 2, &[]);
}
