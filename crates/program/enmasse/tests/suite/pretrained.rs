//! Weights by name: from a hub, from an address, from files that are known.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use enmasse_weights::safetensors;
use serde_json::{Value, json};

use crate::common::{Ended, Running, enmasse, failed, finish, images, program, refused};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How long a slow server takes for a file.
const SECONDS: usize = 9;

/// A server on loopback with some files, which other addresses are not. It tells the paths that were asked for.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// The head's first line, and the body.
type Response = (&'static str, Vec<u8>);

impl Server {
    fn start(files: impl IntoIterator<Item = (String, Response)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let files = Arc::new(BTreeMap::from_iter(files));
        let requests = Arc::default();
        let told: Arc<Mutex<Vec<String>>> = Arc::clone(&requests);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (files, told) = (files.clone(), told.clone());
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                    let first = lines.next().unwrap_or_default();
                    lines.find(|line| line.is_empty());
                    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                    let missing = ("404 Not Found", Vec::new());
                    let (status, body) = files.get(&path).unwrap_or(&missing);
                    told.lock().unwrap().push(path.clone());
                    let length = body.len();
                    let _ =
                        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
                    // A slow server sends a piece each second.
                    for piece in body.chunks(if path.contains("slow") { length / SECONDS + 1 } else { length.max(1) }) {
                        if path.contains("slow") {
                            thread::park_timeout(Duration::from_secs(1));
                        }
                        let _ = stream.write_all(piece);
                    }
                });
            }
        });
        Server { address, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn well(body: impl Into<Vec<u8>>) -> Response {
    ("200 OK", body.into())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hexadecimal(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// What a hub answers for a repository with these weights and this configuration.
fn repository(name: &str, weights: &[u8], config: &Value) -> Vec<(String, Response)> {
    let config = config.to_string();
    let readme = "---\nlicense: cc-by-4.0\n---\n";
    let blob = |text: &str| {
        let blob = [format!("blob {}\0", text.len()).as_bytes(), text.as_bytes()].concat();
        hexadecimal(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref())
    };
    let listing = json!({
        "sha": COMMIT, "siblings": [
            {"rfilename": "README.md", "blobId": blob(readme), "size": readme.len()},
            {"rfilename": "config.json", "blobId": blob(&config), "size": config.len()},
            {"rfilename": "model.safetensors", "size": weights.len(), "lfs": {"sha256": sha256(weights), "size": weights.len()}},
        ]
    });
    let file = |file: &str| format!("/{name}/resolve/{COMMIT}/{file}");
    vec![
        (format!("/api/models/{name}/revision/main?blobs=true"), well(listing.to_string())),
        (file("config.json"), well(config)),
        (file("README.md"), well(readme)),
        (file("model.safetensors"), well(weights)),
    ]
}

/// timm's description of images of 12 x 12 pixels.
fn described(architecture: Option<&str>) -> Value {
    let images = json!({
        "input_size": [3, 12, 12], "crop_pct": 0.8, "interpolation": "bicubic", "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25]
    });
    json!({"architecture": architecture, "num_classes": 2, "pretrained_cfg": images})
}

/// The program, with its caches in a folder, and a hub.
fn with_hub(folder: &Path, hub: &Server) -> Command {
    let mut command = program();
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "SSL_CERT_FILE"] {
        command.env_remove(name);
    }
    command.env("HF_HOME", folder.join("hf")).env("TORCH_HOME", folder.join("torch")).env("HF_ENDPOINT", &hub.address);
    command.env("ENMASSE_CACHE", folder.join("own"));
    command
}

/// The weights of a small model as safetensors, for two classes.
fn weights(folder: &Path, data: &str) -> (String, Vec<u8>) {
    let run = folder.join("first").display().to_string();
    let small = ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4", "--devices", "cpu:1"];
    enmasse(&[&["train", data, "--out", &run][..], &small].concat()).well();
    let file = folder.join("first.safetensors").display().to_string();
    enmasse(&["export", &run, "--to", "safetensors", "--out", &file]).well();
    let bytes = fs::read(file).unwrap();
    (run, bytes)
}

#[test]
fn weights_of_a_hub_bring_the_preparation_of_their_images() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
    let (_, bytes) = weights(folder.path(), &data);
    let hub = Server::start(repository("own/tiny", &bytes, &described(None)));
    let train = |out: &str, others: &[&str], offline: &str| {
        let out = folder.path().join(out).display().to_string();
        let fixed = ["train", &data, "--pretrained", "hf:own/tiny", "--model", "mlp", "--batch", "4", "--epochs", "1"];
        let mut command = with_hub(folder.path(), &hub);
        finish(command.args(fixed).args(["--out", &out]).args(others).env("HF_HUB_OFFLINE", offline)).well()
    };
    let config = |out: &str| fs::read_to_string(folder.path().join(out).join("config.toml")).unwrap();
    let has = |text: &str, lines: &[&str]| {
        for expected in lines {
            assert!(text.lines().any(|line| line == *expected), "{expected} is not in {text}");
        }
    };
    let first = train("a", &["--devices", "cpu:2"], "0");
    let origin = "hf:own/tiny, licence cc-by-4.0, from hf:own/tiny";
    let images = "images:   size 12, crop_pct 0.8, interpolation bicubic, mean 0.5,0.5,0.5, std 0.25,0.25,0.25, as for these weights";
    has(&first.stderr, &[&format!("weights:  {origin}"), images]);
    let cache = folder.path().join("hf/hub/models--own--tiny");
    let file = cache.join(format!("snapshots/{COMMIT}/model.safetensors"));
    let lines = [
        "size = 12",
        "crop_pct = 0.8",
        "interpolation = \"bicubic\"",
        "mean = [0.5, 0.5, 0.5]",
        "pretrained = \"hf:own/tiny\"",
        &format!("weights_file = \"{}\"", file.display()),
        &format!("weights_origin = \"{origin}\""),
    ];
    has(&config("a"), &lines);
    // As Python's library keeps them.
    assert_eq!(fs::read_to_string(cache.join("refs/main")).unwrap(), COMMIT);
    let blob = format!("../../blobs/{}", sha256(&bytes));
    assert_eq!(fs::read_link(&file).unwrap(), Path::new(&blob));
    assert_eq!(fs::read_dir(cache.join("blobs")).unwrap().count(), 3);
    assert_eq!(hub.requests().len(), 4);

    // What the user says comes first, and nothing is asked any more.
    let second = train("b", &["--devices", "cpu:1", "--mean", "0.1", "--crop-pct", "1"], "1");
    assert!(second.stderr.contains("images:   size 12, interpolation bicubic, std 0.25,0.25,0.25, as"), "{second:?}");
    has(&config("b"), &["crop_pct = 1.0", "mean = [0.1]", "size = 12"]);
    assert_eq!(hub.requests().len(), 4);
    // Rank 0 finds them for the ranks of a launcher.
    let out = folder.path().join("c").display().to_string();
    let launched = ["launch", "-n", "2", env!("CARGO_BIN_EXE_enmasse"), "train", &data, "--pretrained", "hf:own/tiny"];
    let others = ["--model", "mlp", "--batch", "4", "--epochs", "1", "--out", &out];
    finish(with_hub(folder.path(), &hub).args(launched).args(others)).well();
    has(&config("c"), &lines);
    assert_eq!(hub.requests().len(), 4);
    // A run goes on with the line that began it.
    let resumed = train("a", &["--devices", "cpu:1", "--resume", "--epochs", "2"], "1");
    assert!(!resumed.stderr.contains("as for these weights"), "{resumed:?}");
    has(&config("a"), &lines);
    let predicted =
        with_hub(folder.path(), &hub).args(["predict", "hf:own/tiny", &data, "--model", "mlp"]).output().unwrap();
    assert!(predicted.status.success(), "{predicted:?}");
}

#[test]
fn a_hub_that_does_not_give_weights() {
    let hub_of = |files: Vec<(String, Response)>| Server::start(files);
    let listed = "/api/models/a/b/revision/main?blobs=true";
    let check = |files: Vec<(String, Response)>, others: &[&str], code: i32, mentions: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let hub = hub_of(files);
        let ended = finish(with_hub(folder.path(), &hub).args(["weights", "fetch", "hf:a/b"]).args(others));
        failed(&ended, code, &[&["hf:a/b: "], mentions].concat());
        let blobs = folder.path().join("hf/hub/models--a--b/blobs");
        let whole = blobs.read_dir().into_iter().flatten().flatten();
        assert!(whole.filter(|file| !file.path().to_string_lossy().ends_with(".incomplete")).count() == 0);
        assert!(!folder.path().join("hf/hub/models--a--b/refs").exists());
    };
    let status = |status: &'static str| vec![(listed.to_owned(), (status, Vec::new()))];
    let token = "it answers 401 Unauthorized: there is no such repository, or HF_TOKEN does not open it";
    check(status("401 Unauthorized"), &[], 1, &[listed, token]);
    check(vec![], &[], 1, &["it answers 404 Not Found: there is no such repository or revision"]);
    check(vec![(listed.to_owned(), well("<html>"))], &[], 1, &["its answer is not JSON, as a hub's is"]);
    check(vec![(listed.to_owned(), well("{}"))], &[], 1, &["the hub's answer names no commit"]);
    let of_commit = |sha: &str, file: &str| json!({"sha": sha, "siblings": [{"rfilename": file}]}).to_string();
    check(vec![(listed.to_owned(), well(of_commit("../..", "a.pth")))], &[], 1, &["the hub's answer names no commit"]);
    let none = "it has no file model.safetensors or pytorch_model.bin";
    check(vec![(listed.to_owned(), well(of_commit(COMMIT, "../a.pth")))], &[], 1, &[none]);
    let other = "the hub does not tell the SHA-256 of a.pth";
    check(vec![(listed.to_owned(), well(of_commit(COMMIT, "a.pth")))], &[], 1, &[other]);
    let mut swapped = repository("a/b", b"weights", &described(None));
    swapped[3].1 = well("WEIGHTS");
    check(swapped, &["--model", "mlp"], 1, &["model.safetensors could not be fetched", "its SHA-256 is "]);
    let mut swapped = repository("a/b", b"weights", &described(None));
    swapped[1].1 = well("{}");
    check(swapped, &["--model", "mlp"], 1, &["it has other bytes than those that the hub lists"]);
}

#[test]
fn what_a_repository_says_of_its_model() {
    let check = |config: Value, others: &[&str]| -> Ended {
        let folder = tempfile::tempdir().unwrap();
        let hub = Server::start(repository("a/b", b"weights", &config));
        finish(with_hub(folder.path(), &hub).args(["weights", "fetch", "hf:a/b", "--json"]).args(others))
    };
    let found = check(described(Some("resnet18")), &[]).well().json().remove(0);
    assert_eq!((&found["model"], &found["license"]), (&json!("resnet18"), &json!("cc-by-4.0")));
    assert_eq!((&found["images"]["size"], &found["images"]["std"]), (&json!("12"), &json!("0.25,0.25,0.25")));
    assert_eq!(check(described(None), &["--model", "mlp"]).well().json()[0]["model"], Value::Null);
    let none = "hf:a/b: its config.json names no architecture of timm; give --model NAME";
    failed(&check(described(None), &[]), 2, &[none]);
    failed(&check(json!({"architectures": ["X"]}), &[]), 2, &[none]);
    let other = "hf:a/b: its architecture \"maxvit\" is not among the models of enmasse models";
    failed(&check(described(Some("maxvit")), &[]), 1, &[other]);
    // Of the same shapes as tf_efficientnet_lite0, which the model is, with another padding.
    let trap = "hf:a/b: its architecture is timm's efficientnet_lite0, and the model efficientnet_lite0 is timm's tf_efficientnet_lite0";
    failed(&check(described(Some("efficientnet_lite0")), &[]), 1, &[trap]);
    failed(&check(described(Some("efficientnet_lite0")), &["--model", "efficientnet_lite0"]), 1, &[trap]);
    let trap = "hf:a/b: its architecture is timm's resnet50d, and the model resnet50 is timm's resnet50";
    failed(&check(described(Some("resnet50d")), &["--model", "resnet50"]), 1, &[trap]);
    let mut squashed = described(Some("resnet18"));
    squashed["pretrained_cfg"]["crop_mode"] = json!("squash");
    let told = check(squashed, &[]).well().stderr;
    assert!(told.contains("warning: hf:a/b: its images are made squares by crop_mode \"squash\" in timm"), "{told}");
}

#[test]
fn one_process_fetches_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = vec![7; 3 << 20];
    let hub = Server::start(repository("a/b", &bytes, &described(None)));
    let fetch = || Running::start(with_hub(folder.path(), &hub).args(["weights", "fetch", "hf:a/b", "--model", "mlp"]));
    let [first, second] = [fetch(), fetch()].map(|running| running.finish().well().stdout);
    assert_eq!(first.lines().last(), second.lines().last());
    let files = hub.requests().into_iter().filter(|path| path.ends_with("/model.safetensors"));
    assert_eq!(files.count(), 1);
}

/// Regression test: the ranks that wait for the one that fetches reached the deadline of their operation.
#[test]
fn a_slow_download_ends_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
    let (_, bytes) = weights(folder.path(), &data);
    let server = Server::start([("/slow/tiny.pth".to_owned(), well(bytes))]);
    let address = format!("{}/slow/tiny.pth", server.address);
    let out = folder.path().join("run").display().to_string();
    let launched = ["launch", "-n", "2", env!("CARGO_BIN_EXE_enmasse"), "train", &data, "--weights", &address];
    let others = ["--model", "mlp", "--size", "12", "--batch", "4", "--epochs", "1", "--timeout", "4", "--out", &out];
    finish(with_hub(folder.path(), &server).args(launched).args(others)).well();
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn weights_at_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
    let (run, bytes) = weights(folder.path(), &data);
    let digest = &sha256(&bytes)[..8];
    let [named, plain, wrong] =
        [format!("/w/tiny-{digest}.pth"), "/w/tiny.pth".to_owned(), "/w/tiny-00000000.pth".to_owned()];
    let files = [&named, &plain, &wrong].map(|path| (path.clone(), well(bytes.clone())));
    let server = Server::start(files);
    let eval = |path: &str| {
        let address = format!("{}{path}", server.address);
        let fixed = ["eval", &address, &data, "--model", "mlp", "--size", "12", "--devices", "cpu:1", "--json"];
        finish(with_hub(folder.path(), &server).args(fixed))
    };
    let own = enmasse(&["eval", &run, &data, "--split", "all", "--devices", "cpu:1", "--json"]).well();
    for path in [&named, &plain] {
        assert_eq!(eval(path).well().json()[0]["accuracy"], own.json()[0]["accuracy"]);
        eval(path).well();
    }
    // As torch.hub keeps what is known by its name; the other one below its address.
    assert!(folder.path().join(format!("torch/hub/checkpoints/tiny-{digest}.pth")).is_file());
    let place = server.address.trim_start_matches("http://");
    assert!(folder.path().join(format!("own/weights/{place}/w/tiny.pth")).is_file());
    assert_eq!(server.requests(), [named, plain]);
    let mentions = [&format!("its SHA-256 is {digest}, not 00000000"), "; without a network, put the file into "];
    failed(&eval(&wrong), 1, &mentions.map(|mention| mention as &str));
    failed(&eval("/w/none.pth"), 1, &["none.pth could not be fetched", "it answers 404 Not Found"]);
    refused(
        &finish(with_hub(folder.path(), &server).args(["eval", &server.address, &data])),
        2,
        &["must be the address of a file"],
    );
}

#[test]
fn exported_weights_know_their_preparation() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
    let (run, _) = weights(folder.path(), &data);
    let file = folder.path().join("best.pth").display().to_string();
    enmasse(&["export", &run, "--to", "pth", "--out", &file]).well();
    let image = format!("{data}/red/000.png");
    let predict = |weights: &str, others: &[&str]| {
        enmasse(&[&["predict", weights, &image, "--devices", "cpu:1", "--json"][..], others].concat())
    };
    assert_eq!(predict(&file, &[]).well().json(), predict(&run, &[]).well().json());
    failed(
        &predict(&file, &["--model", "lenet"]),
        2,
        &["--model lenet: the weights best.pth are for mlp; leave --model out"],
    );
    let out = folder.path().join("second").display().to_string();
    enmasse(&["train", &data, "--weights", &file, "--epochs", "1", "--out", &out, "--devices", "cpu:1"]).well();
    let config = fs::read_to_string(Path::new(&out).join("config.toml")).unwrap();
    assert!(config.contains("\nsize = 12\n") && config.contains("\nmodel = \"mlp\"\n"), "{config}");
}

/// Such as DINOv2's.
#[test]
fn weights_without_a_classifier_give_features_and_begin_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 5).display().to_string();
    let (run, _) = weights(folder.path(), &data);
    let mut tensors = enmasse_weights::read(&folder.path().join("first.safetensors")).unwrap().tensors;
    tensors.retain(|tensor| !tensor.name.starts_with("fc3."));
    let file = path("features.safetensors");
    let mut written = fs::File::create(&file).unwrap();
    safetensors::write(&mut written, &BTreeMap::new(), &tensors, 1).unwrap();
    let model = ["--model", "mlp", "--size", "12", "--devices", "cpu:1"];
    let embed = |weights: &str, out: &str, others: &[&str]| {
        enmasse(&[&["embed", &data, "--weights", weights, "--out", &path(out)], others].concat()).well();
        fs::read(path(out)).unwrap()
    };
    assert!(embed(&file, "a.npy", &model) == embed(&run, "b.npy", &["--devices", "cpu:1"]));
    let eval = |others: &[&str]| enmasse(&[&["eval", &file, &data], &model[..], others].concat());
    eval(&["--knn", "3"]).well();
    let lacking = format!(
        "{file} has no classifier: train one with --weights, or use the features (enmasse embed, enmasse eval --knn)"
    );
    failed(&eval(&[]), 1, &[&lacking]);
    failed(&enmasse(&[&["predict", &file, &data], &model[..]].concat()), 1, &[&lacking]);
    let out = path("second");
    let trained =
        enmasse(&[&["train", &data, "--pretrained", &file, "--epochs", "1", "--out", &out], &model[..]].concat());
    assert!(trained.stderr.contains("missing in the file: fc3.weight, fc3.bias"), "{}", trained.stderr);
    trained.well();
}

#[test]
fn names_that_are_known_or_not() {
    let listed = enmasse(&["weights", "list", "resnet50", "--json"]).well().json();
    let names: Vec<_> = listed.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["resnet50.IMAGENET1K_V1", "resnet50.IMAGENET1K_V2"]);
    assert_eq!((&listed[1]["best"], &listed[1]["top1"]), (&json!(true), &json!(80.858)));
    let table = enmasse(&["weights", "list"]).well().stdout;
    assert!(table.lines().any(|line| line.starts_with("alexnet.IMAGENET1K_V1 ")), "{table}");
    let shown = enmasse(&["weights", "show", "ResNet50_Weights.DEFAULT"]).well().stdout;
    assert!(shown.contains("source: https://download.pytorch.org/models/resnet50-11ad3fa6.pth\n"), "{shown}");
    refused(&enmasse(&["weights", "list", "resnet51"]), 2, &["resnet51"]);
    refused(
        &enmasse(&["weights", "show", "V9"]),
        2,
        &["V9: no weights of this name are known; see enmasse weights list"],
    );
    let train = |others: &[&str]| enmasse(&[&["train", "none", "--devices", "cpu:1"], others].concat());
    let unknown =
        "--weights V9: there is no such file, and no weights of this name are known; see enmasse weights list";
    refused(&train(&["--weights", "V9"]), 2, &[unknown]);
    refused(&train(&["--pretrained=V9"]), 2, &["--pretrained V9: there is no such file"]);
    refused(&train(&["--weights", "IMAGENET1K_V1"]), 2, &["several models have weights of this name; give --model"]);
    refused(&train(&["--pretrained", "--model", "mlp"]), 2, &["--pretrained: no weights are known for mlp"]);
    refused(
        &train(&["--pretrained", "resnet50", "--model", "vgg11"]),
        2,
        &["no weights of this name are known for vgg11, but for resnet50"],
    );
    refused(&train(&["--pretrained", "--weights", "a"]), 2, &["--weights a: --pretrained names weights too; use one"]);
    refused(&train(&["--weights", "hf:a"]), 2, &["hf:a: must be hf:OWNER/REPO or hf:OWNER/REPO@REVISION"]);
}

/// Regression test: what the program finds was a flag like others, which began with another file without its preparation.
#[test]
fn what_is_found_is_no_flag() {
    let given = enmasse(&["train", "--weights-file", "a.pth"]);
    let refused = "error: --weights-file a.pth: is found by --pretrained and --weights; leave it out\n";
    assert_eq!((given.code, given.stderr.as_str()), (Some(2), refused));
    assert!(!enmasse(&["train", "--help"]).well().stdout.contains("--weights-file"));
}
