//! Predictions of folders and as a table: order, images that cannot be read, and the exit code.

use std::fs;
use std::path::Path;

use crate::common::{enmasse, failed, images};

fn run_of(data: &Path, run: &Path) {
    let (data, run) = (data.display().to_string(), run.display().to_string());
    let model = ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4", "--devices", "cpu:1"];
    enmasse(&[&["train", &data, "--out", &run], &model[..]].concat()).well();
}

#[test]
fn folders_and_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 5);
    let run = path("run");
    run_of(&data, Path::new(&run));
    // Another tree, with an image at the top, one in an inner folder, and files that are not images.
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("b/inner")).unwrap();
    fs::create_dir_all(tree.join(".hidden")).unwrap();
    for (from, to) in [("red/000.png", "c.PNG"), ("red/001.jpg", "b/inner/x,y.jpg"), ("dark/000.png", "a.png")] {
        fs::copy(data.join(from), tree.join(to)).unwrap();
    }
    fs::copy(data.join("red/000.png"), tree.join(".hidden/no.png")).unwrap();
    fs::write(tree.join("notes.txt"), "no image").unwrap();
    std::os::unix::fs::symlink(&tree, tree.join("b/again")).unwrap();
    let tree_text = tree.display().to_string();
    let names = ["a.png", "b/inner/x,y.jpg", "c.PNG"].map(|name| tree.join(name).display().to_string());
    let single = format!("{}/light/000.png", data.display());

    let json = enmasse(&["predict", &run, &tree_text, &single, "--json"]).well().json();
    let found: Vec<&str> = json.iter().map(|line| line["image"].as_str().unwrap()).collect();
    assert_eq!(found, [&names[0], &names[1], &names[2], &single]);
    // Several batches, the last of them not full, predict the same.
    let batches = enmasse(&["predict", &run, &tree_text, &single, "--json", "--batch", "3", "--loader-threads", "3"]);
    let classes = |lines: &[serde_json::Value]| -> Vec<[serde_json::Value; 2]> {
        lines.iter().map(|line| [line["image"].clone(), line["top"][0]["class"].clone()]).collect()
    };
    assert_eq!(classes(&batches.well().json()), classes(&json));

    let table = |others: &[&str]| {
        let ended = enmasse(&[&["predict", &run, &tree_text, "--csv"], others].concat()).well();
        ended.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = |top: usize| -> Vec<String> {
        let rows = json[..3].iter().map(|line| {
            let guess = |place: usize| {
                let guess = &line["top"][place];
                format!(",{},{}", guess["class"].as_str().unwrap(), guess["probability"].as_f64().unwrap())
            };
            let name = line["image"].as_str().unwrap();
            let name = if name.contains(',') { format!("\"{name}\"") } else { name.to_owned() };
            format!("{name}{}", (0..top).map(guess).collect::<String>())
        });
        let more = (2..=top).map(|place| format!(",class_{place},probability_{place}")).collect::<String>();
        [format!("path,class,probability{more}")].into_iter().chain(rows).collect()
    };
    assert_eq!(table(&[]), expected(1));
    assert_eq!(table(&["--top", "2"]), expected(2));
    // There are three classes.
    assert_eq!(table(&["--top", "9"]), expected(3));
}

/// Manifests, archives, Parquet files and packed files, with labels and without.
#[test]
fn images_of_data_sets() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 5);
    let run = path("run");
    run_of(&data, Path::new(&run));
    let files = ["red/000.png", "dark/000.png", "light/000.png"];
    let list = files.map(|file| format!("{{\"image\": \"{file}\", \"file\": \"{file}\"}}\n")).concat();
    fs::write(data.join("list.jsonl"), list).unwrap();
    fs::create_dir(path("shards")).unwrap();
    let mut archive = tar::Builder::new(fs::File::create(path("shards/0.tar")).unwrap());
    files.iter().for_each(|file| archive.append_path_with_name(data.join(file), file).unwrap());
    archive.finish().unwrap();
    fs::create_dir(path("parquet")).unwrap();
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/datasets/tests/fixtures/parquet.unlabelled.parquet");
    fs::copy(fixture, path("parquet/test-0.parquet")).unwrap();
    enmasse(&["data", "pack", &data.display().to_string(), &path("packed")]).well();

    let predict = |given: &[&str], flags: &[&str]| {
        let ended = enmasse(&[&["predict", &run, "--json"], given, flags].concat()).well();
        let names = ended.json().into_iter().map(|line| line["image"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        let top = ended.json().iter().map(|line| line["top"].clone()).collect::<Vec<_>>();
        (names, top, ended.stderr)
    };
    let named = files.map(|file| data.join(file).display().to_string());
    let (_, expected, _) = predict(&named.each_ref().map(String::as_str), &[]);
    let in_archive = files.map(|file| format!("{}/{file}", path("shards/0.tar")));
    let list = data.join("list.jsonl").display().to_string();
    failed(&enmasse(&["predict", &run, &list]), 1, &["list.jsonl: ", "(image, file); choose one with --path-column"]);
    assert_eq!(predict(&[&list], &["--path-column", "file"]), (named.to_vec(), expected.clone(), String::new()));
    for given in ["shards", "shards/0.tar", "shards/{0..0}.tar"] {
        assert_eq!(predict(&[&path(given)], &[]), (in_archive.to_vec(), expected.clone(), String::new()), "{given}");
    }
    let rows: Vec<String> = (0..4).map(|row| format!("{}/{row}", path("parquet/test-0.parquet"))).collect();
    for given in ["parquet", "parquet/test-0.parquet", "parquet/*.parquet"] {
        assert_eq!(predict(&[&path(given)], &[]).0, rows, "{given}");
    }
    let (packed, _, _) = predict(&[&path("packed")], &[]);
    assert_eq!(packed.len(), 15);
    let (all, _, told) = predict(&[&list, &path("packed"), &named[0]], &["--path-column", "file"]);
    assert_eq!((all.len(), told.as_str()), (19, ""));
    // A flag that no path takes.
    let (_, _, told) = predict(&[&path("packed"), &named[0]], &["--path-column", "file"]);
    assert_eq!(told, "warning: --path-column file has no effect on data other than manifests and Parquet files\n");
}

#[test]
fn images_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 5);
    let run = path("run");
    run_of(&data, Path::new(&run));
    fs::write(data.join("dark/damaged.jpg"), b"\xff\xd8\xff\xe0 cut short").unwrap();
    fs::write(data.join("red/empty.png"), b"").unwrap();

    let ended = enmasse(&["predict", &run, &data.display().to_string(), &path("none.jpg"), "--json", "--batch", "4"]);
    assert_eq!((ended.code, ended.json().len()), (Some(1), 15));
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let mentions = ["dark/damaged.jpg", "red/empty.png", "none.jpg"];
    assert_eq!(lines.len(), mentions.len(), "{lines:?}");
    for (line, mention) in lines.iter().zip(mentions) {
        assert!(line.starts_with("error: ") && line.contains(mention), "{mention}: {line}");
    }

    let check = |others: &[&str], code: i32, expected: &str| {
        let ended = enmasse(&[&["predict", &run], others].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""));
        assert_eq!(ended.stderr, format!("error: {expected}\n"));
    };
    fs::create_dir_all(path("empty/inner")).unwrap();
    check(
        &[&path("empty")],
        1,
        &format!("{}: there are no images (jpg, jpeg, png, webp, bmp, gif) in it", path("empty")),
    );
    check(&[&path("empty"), "--csv", "--json"], 2, "--csv: cannot be combined with --json; use one of them");
}

/// The same numbers as of the library, in files of their own.
#[test]
fn heatmaps_are_images_beside_the_predictions() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 5);
    let [run, out] = [path("run"), path("out/heatmaps")];
    let model = ["--model", "lenet", "--size", "32", "--epochs", "1", "--batch", "4", "--devices", "cpu:1"];
    enmasse(&[&["train", &data.display().to_string(), "--out", &run], &model[..]].concat()).well();
    let files = ["red/000.png", "dark/000.png"].map(|name| data.join(name).display().to_string());
    let predict = |others: &[&str]| {
        enmasse(&[&["predict", &run, &files[0], &files[1], "--explain", &out, "--json"], others].concat())
    };
    let found = predict(&[]).well().json();
    let named = ["000.png", "000-2.png"].map(|name| format!("{out}/{name}"));
    assert_eq!(found.iter().map(|line| line["heatmap"].as_str().unwrap()).collect::<Vec<_>>(), named);
    let read = || named.each_ref().map(|name| fs::read(name).unwrap());
    let of_most_probable = read();
    let mut trained = enmasse::TrainedModel::open(&run).unwrap();
    for ((file, png), line) in files.iter().zip(&of_most_probable).zip(&found) {
        let heatmap = trained.explain(file, None).unwrap();
        assert_eq!((heatmap.width, heatmap.height, heatmap.values.len()), (32, 32, 32 * 32));
        assert_eq!(serde_json::json!(heatmap.class), line["top"][0]["index"]);
        assert!(heatmap.values.iter().all(|value| (0.0..=1.0).contains(value)));
        assert_eq!(&heatmap.png().unwrap(), png);
    }
    // Another class has another heatmap, and a class is given by its name or its label.
    let other = found[0]["top"][2]["class"].as_str().unwrap();
    predict(&["--explain-class", other]).well();
    let of_other = read();
    assert_ne!(of_other[0], of_most_probable[0]);
    predict(&["--explain-class", &found[0]["top"][2]["index"].to_string()]).well();
    assert_eq!(read(), of_other);
    let text = enmasse(&["predict", &run, &files[0], "--explain", &out]).well().stdout;
    assert!(text.ends_with(&format!("  heatmap: {}\n", named[0])), "{text}");

    failed(&predict(&["--explain-class", "blue"]), 2, &["--explain-class blue: none of the model's 3 classes"]);
    assert!(trained.explain(&files[0], Some(3)).unwrap_err().to_string().contains("3 classes"));
    fs::write(path("taken"), "").unwrap();
    failed(&enmasse(&["predict", &run, &files[0], "--explain", &path("taken")]), 1, &["cannot create", "taken"]);
    run_of(&data, Path::new(&path("mlp")));
    let no_map = enmasse(&["predict", &path("mlp"), &files[0], "--explain", &out]);
    failed(&no_map, no_map.code.unwrap(), &["no map of features"]);
}
