//! Bad input of every kind: the exit code, one line with the error and its place, and no partial files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::runs::Folder;
use crate::common::{
    Ended, assert_whole, enmasse, failed, finish, images, metrics, plain_environment, program, refused, strip_metadata,
    write_jpeg,
};
use jpeg_encoder::ColorType;
use test_support::Need;

/// A folder with good images, and a place for a run.
struct Place {
    folder: tempfile::TempDir,
    data: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = images(folder.path(), 5);
        Place { folder, data }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A short training run on the images with further arguments, which take precedence.
    fn train(&self, others: &[&str]) -> Ended {
        enmasse(&self.arguments(others))
    }

    fn arguments(&self, others: &[&str]) -> Vec<String> {
        let data = self.data.display().to_string();
        let out = self.path("run");
        let given = |flag: &str| others.contains(&flag);
        let mut arguments = vec!["train".to_owned()];
        if others.first().is_none_or(|first| first.starts_with('-')) {
            arguments.push(data);
        }
        let fixed = [
            ("--model", "mlp"),
            ("--size", "8"),
            ("--epochs", "1"),
            ("--batch", "2"),
            ("--devices", "cpu:1"),
            ("--out", &out),
        ];
        for (flag, value) in fixed.into_iter().filter(|(flag, _)| !given(flag)) {
            arguments.extend([flag.to_owned(), value.to_owned()]);
        }
        arguments.extend(others.iter().map(|argument| argument.to_string()));
        arguments
    }

    /// A finished run.
    fn trained(&self, run: &str) -> String {
        let run = self.path(run);
        self.train(&["--out", &run]).well();
        run
    }
}

/// As of a user without a home. The error named a file that the user had never heard of, and no way out.
#[test]
fn a_cache_that_cannot_be_written() {
    let place = Place::new();
    let file = place.path("file");
    fs::write(&file, "").unwrap();
    let ended = finish(program().args(["train", "--model", "mlp"]).env("ENMASSE_CACHE", &file));
    refused(&ended, 1, &[&format!("cannot write {file}"), "; set ENMASSE_CACHE to a writable folder"]);
}

#[test]
fn invalid_values() {
    let place = Place::new();
    let check = |others: &[&str], code: i32, mentions: &[&str]| {
        let ended = place.train(others);
        refused(&ended, code, mentions);
        assert!(!Path::new(&place.path("run")).exists(), "{others:?} left a run folder");
        assert_eq!(ended.stdout, "");
    };
    check(&["--batch", "0"], 2, &["--batch 0", "1 or more"]);
    check(&["--lr", "nan"], 2, &["--lr", "finite"]);
    check(&["--lr", "-0.1"], 2, &["--lr -0.1", "above 0"]);
    check(&["--lr", "inf"], 2, &["--lr", "finite"]);
    check(&["--epochs", "many"], 2, &["--epochs many", "whole number"]);
    check(&["--momentum", "1"], 2, &["--momentum 1", "below 1"]);
    check(&["--precision", "fp8"], 2, &["--precision fp8", "bf16 or f16"]);
    check(&["--optimizer", "sdg"], 2, &["--optimizer sdg", "sgd or adamw"]);
    check(&["--devices", "cpu:0"], 2, &["--devices cpu:0", "KIND:N"]);
    check(&["--devices", "tpu:1"], 2, &["--devices tpu:1", "it has cpu, gpu and reference"]);
    check(&["--model", "resnet43"], 2, &["resnet43", "resnet34"]);
    check(&["--freeze", "layer9.*"], 1, &["layer9.*", "matches no parameter"]);
    check(&["--epoch", "3"], 2, &["--epoch", "--epochs"]);
    check(&["--config", "/nowhere/x.toml"], 2, &["/nowhere/x.toml"]);
    check(&["--batch", "18446744073709551615"], 2, &["--batch 18446744073709551615", "smaller"]);
    check(&["--size", "4294967296"], 2, &["--size 4294967296", "smaller"]);
    check(&["--devices", "cpu:1000000000"], 2, &["cpu:1000000000", "1024 ranks"]);
    check(&["--size", "1", "--model", "lenet"], 1, &["conv1", "--size"]);
    check(&["--num-classes", "5"], 2, &["--num-classes 5", "images has 3 classes (dark, light, red)"]);
    check(&["--nesterov", "--momentum", "0"], 2, &["nesterov", "--momentum"]);
}

#[test]
fn invalid_data() {
    let check = |name: &str, spoil: &dyn Fn(&Place) -> String, mentions: &[&str]| {
        let place = Place::new();
        let data = spoil(&place);
        let ended = place.train(&[&data]);
        refused(&ended, 1, &[&[data.as_str()], mentions].concat());
        assert_eq!(ended.stdout, "", "{name}");
        assert!(!Path::new(&place.path("run")).exists(), "{name} left a run folder");
    };
    let same = |place: &Place| place.data.display().to_string();
    check("missing folder", &|place| place.path("nowhere"), &["no such file or directory"]);
    check("a file", &|place| place.data.join("red/000.png").display().to_string(), &["this is a file"]);
    check(
        "empty class folder",
        &|place| {
            fs::create_dir(place.data.join("blue")).unwrap();
            same(place)
        },
        &["blue", "no images"],
    );
    check(
        "one class",
        &|place| {
            fs::remove_dir_all(place.data.join("red")).unwrap();
            fs::remove_dir_all(place.data.join("dark")).unwrap();
            same(place)
        },
        &["only one class", "light"],
    );
    check("images without class folders", &|place| place.data.join("red").display().to_string(), &["no class folders"]);

    let place = Place::new();
    // Twelve images train: 5 per class, one of which is held out.
    let drops = |others: &[&str]| place.train(&[&["--drop-last"], others].concat());
    refused(&drops(&["--devices", "cpu:64"]), 1, &["12 samples", "global batch of 128", "64 shards of 2", "drop_last"]);
    refused(&drops(&["--batch", "13"]), 1, &["12 samples", "global batch of 13", "drop_last"]);
}

#[test]
fn non_finite_losses() {
    let place = Place::new();
    for (devices, ranks) in [("cpu:1", "process"), ("cpu:2", "process"), ("cpu:2", "thread")] {
        let out = place.path(&format!("{devices}-{ranks}"));
        let ended = place.train(&["--devices", devices, "--ranks", ranks, "--lr", "1e30", "--out", &out]);
        failed(&ended, 1, &["non-finite", "rank ", "step ", "--lr"]);
        assert_whole(Path::new(&out));
    }
}

#[test]
fn invalid_images() {
    let grey = vec![90; 12 * 14];
    let cmyk = vec![90; 12 * 14 * 4];
    type Spoil<'a> = (&'a str, &'a dyn Fn(&Path), &'a [&'a str]);
    let spoil: [Spoil; 5] = [
        ("zero bytes", &|path| drop(File::create(path).unwrap()), &["empty"]),
        ("text", &|path| fs::write(path, "not an image").unwrap(), &["not a JPEG, PNG"]),
        (
            "grayscale",
            &|path| write_jpeg(path, 12, 14, &grey, ColorType::Luma),
            &["not an RGB image", "--no-convert-rgb"],
        ),
        ("CMYK", &|path| write_jpeg(path, 12, 14, &cmyk, ColorType::Cmyk), &["not an RGB image", "--no-convert-rgb"]),
        (
            "truncated",
            &|path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            &["truncated"],
        ),
    ];
    for (name, spoil, mentions) in spoil {
        let place = Place::new();
        let image = place.data.join("light/001.jpg");
        spoil(&image);
        let image = image.display().to_string();
        let is_mode = mentions.contains(&"--no-convert-rgb");
        let strict = if is_mode { "--no-convert-rgb" } else { "--on-bad-sample=error" };
        for devices in ["cpu:1", "cpu:2"] {
            let out = place.path(devices);
            let ended = place.train(&["--devices", devices, "--out", &out, strict]);
            failed(&ended, 1, &[&[image.as_str()], mentions].concat());
            assert_whole(Path::new(&out));
            assert!(!Path::new(&out).join("checkpoints/best.safetensors").exists(), "{name}");
        }
        // Any image is converted, and any other file skipped.
        let out = place.path("default");
        let ended = place.train(&["--devices", "cpu:2", "--out", &out]).well();
        let epoch = &metrics(Path::new(&out))[0];
        let counts = ["converted", "unreadable"].map(|count| epoch[count].as_u64().unwrap_or(0));
        assert_eq!(counts, if is_mode { [1, 0] } else { [0, 1] }, "{name}");
        let lines = ended.stderr.lines().filter(|line| line.starts_with("converted: 1 image of this epoch to RGB; "));
        assert_eq!(lines.count(), usize::from(is_mode), "{name}: {ended:?}");
        // Where grey was asked for, the line told that grey images became RGB.
        let ended = place.train(&["--devices", "cpu:2", "--channels", "1", "--out", &place.path("grey")]).well();
        assert!(!ended.stderr.contains("converted: "), "{name}: {ended:?}");
    }
}

#[test]
fn invalid_outputs() {
    let place = Place::new();
    let file = place.path("file");
    fs::write(&file, "mine").unwrap();
    let check = |out: &str, mentions: &[&str]| {
        let ended = place.train(&["--out", out]);
        refused(&ended, 1, &[&[out], mentions].concat());
        assert_eq!(ended.stdout, "");
    };
    check(&file, &["is a file"]);
    check(&format!("{file}/run"), &["cannot create"]);
    // Not even root can write here.
    check("/proc/enmasse", &["cannot create"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");

    let run = place.trained("run");
    let before = fs::read(format!("{run}/metrics.jsonl")).unwrap();
    check(&run, &["already holds a run", "--resume"]);
    assert_eq!(fs::read(format!("{run}/metrics.jsonl")).unwrap(), before);
    // A run in the place of data.
    refused(&enmasse(&["train", &run]), 2, &["is a run, not data", &format!("pass --resume {run}")]);
    // Another model cannot resume it.
    let resumed = place.train(&["--out", &run, "--resume", "--model", "lenet"]);
    refused(&resumed, 2, &["--model lenet", "mlp", &run]);

    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut printing = program();
    printing.args(["plan", "print", "--model", "mlp"]).stdout(full);
    let ended = printing.output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cannot write to standard output"), "{ended:?}");
}

#[test]
fn invalid_weights() {
    let place = Place::new();
    let run = place.trained("run");
    let data = place.data.display().to_string();
    let best = format!("{run}/checkpoints/best.safetensors");
    let last = format!("{run}/checkpoints/last.safetensors");
    let image = place.data.join("red/000.png").display().to_string();

    let bare = place.path("bare.safetensors");
    strip_metadata(&best, &bare);
    refused(&enmasse(&["eval", &best, &data, "--model", "lenet"]), 1, &[&best, "mlp", "lenet"]);
    refused(&enmasse(&["eval", &bare, &data, "--model", "lenet", "--size", "28"]), 1, &[&bare, "lenet"]);
    refused(&enmasse(&["eval", &bare, &data, "--model", "mlp", "--size", "9"]), 1, &[&bare, "fc1.weight"]);
    refused(&enmasse(&["eval", &bare, &data]), 1, &[&bare, "--model"]);
    refused(&enmasse(&["eval", &best, &data, "--size", "9"]), 2, &["--size 9"]);
    refused(&enmasse(&["eval", &best, &data, "--crops", "4"]), 2, &["--crops", "1, 5", "10"]);
    refused(&enmasse(&["eval", &best, &data, "--crops", "5", "--metrics", "top2"]), 2, &["--metrics", "--crops"]);
    refused(&enmasse(&["eval", &best, &data, "--tta", "shift"]), 2, &["--tta", "flip+shift"]);
    refused(&enmasse(&["eval", &best, &data, "--tta", "flip", "--crops", "5"]), 2, &["--tta", "--crops"]);
    refused(&enmasse(&["predict", &place.path("nowhere"), &image]), 1, &[&place.path("nowhere"), "does not exist"]);
    refused(&enmasse(&["predict", &data, &image]), 1, &[&data, "not a run"]);
    refused(&enmasse(&["predict", &image, &image]), 1, &[&image, "not a safetensors file"]);
    refused(&enmasse(&["predict", &run, &place.path("no.jpg")]), 1, &[&place.path("no.jpg")]);
    refused(&enmasse(&["eval", &best]), 2, &["DATA", &best]);
    refused(&enmasse(&["eval", &run, &data, "--size", "9"]), 2, &["--size 9"]);
    refused(&enmasse(&["eval", &best, &data, "--split", "val"]), 2, &["--split val", "run folder"]);
    let packed = place.path("packed.enmasse");
    enmasse(&["data", "pack", &data, &packed]).well();
    refused(&enmasse(&["eval", &run, &packed, "--split", "all"]), 2, &["--split all", &packed, "validation part"]);
    refused(&enmasse(&["eval", &place.path("typo")]), 1, &["typo: it does not exist"]);
    refused(&enmasse(&["eval", &place.path("typo"), &data]), 1, &["typo: it does not exist"]);

    // A flipped bit in the middle of the tensors.
    for path in [&best, &last] {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    refused(&enmasse(&["eval", &run, &data]), 1, &[&best, "checksum"]);
    refused(&place.train(&["--out", &run, "--resume", "--epochs", "2"]), 1, &[&last, "checksum"]);
    // A truncated file.
    let bytes = fs::read(&best).unwrap();
    fs::write(&best, &bytes[..bytes.len() / 3]).unwrap();
    refused(&enmasse(&["predict", &run, &image]), 1, &[&best]);
}

/// A command that read a pipe waited for ever.
#[test]
fn pipes_in_the_place_of_files() {
    let place = Place::new();
    let run = place.trained("run");
    let data = place.data.display().to_string();
    let (pipe, image) = (place.path("pipe.jpg"), place.path("images/red/000.jpg"));
    let make = |path: &str| rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    make(&pipe);
    let problem = "it is a pipe, not a file";
    refused(&enmasse(&["eval", &pipe, &data, "--model", "mlp"]), 1, &[&pipe, problem]);
    refused(&enmasse(&["predict", &pipe, &image, "--model", "mlp"]), 1, &[&pipe, problem]);
    refused(&place.train(&["--config", &pipe]), 2, &[&pipe, problem]);
    refused(&place.train(&["--out", &place.path("new"), "--weights", &pipe]), 1, &[&pipe, "is not a file"]);
    for file in ["config.toml", "split.json", "metrics.jsonl", "checkpoints/last.safetensors"] {
        let path = format!("{run}/{file}");
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        make(&path);
        failed(&place.train(&["--out", &run, "--resume", "--epochs", "2"]), 1, &[&path, problem]);
        fs::remove_file(&path).unwrap();
        fs::write(&path, whole).unwrap();
    }
}

/// A separate small disk, which only this command sees: nothing stays mounted.
fn on_small_disk(place: &Place, options: &str) -> Option<Ended> {
    let disk = place.path("disk");
    fs::create_dir_all(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o {options} tmpfs \"$0\" || exit 77; \"$@\"; code=$?; find \"$0\" -name '.enmasse-*' -printf 'left %f\\n'; exit $code"
    );
    let mut command = Command::new("unshare");
    plain_environment(&mut command);
    let out = format!("{disk}/run");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, &disk, env!("CARGO_BIN_EXE_enmasse")]);
    command.args(place.arguments(&["--out", &out, "--size", "32"]));
    if Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .status()
        .map_or(true, |s| !s.success())
    {
        test_support::skip(Need::Namespaces, "no mount namespace can be made");
        return None;
    }
    let ended = finish(&mut command);
    if ended.code == Some(77) {
        test_support::skip(Need::Namespaces, "no tmpfs can be mounted");
        return None;
    }
    Some(ended)
}

#[test]
fn a_full_disk_and_one_that_cannot_be_written() {
    let place = Place::new();
    // Room for the small files, but not for the weights.
    if let Some(ended) = on_small_disk(&place, "size=200k") {
        failed(&ended, 1, &["cannot write", "best.safetensors", "disk is full"]);
        assert!(!ended.stdout.contains("left "), "left behind: {}", ended.stdout);
    }
    if let Some(ended) = on_small_disk(&place, "ro") {
        refused(&ended, 1, &["cannot create", "Read-only"]);
        assert_eq!(ended.stdout, "");
    }
}

/// Regression test: each image was said to be unreadable, and skipping it was advised.
#[test]
fn data_of_a_run_that_have_moved_are_named() {
    let folder = Folder::new("1");
    let run = folder.path("run").display().to_string();
    let words =
        ["train", "images", "--model", "mlp", "--size", "8", "--epochs", "1", "--devices", "cpu:1", "--out", &run];
    finish(program().args(words).current_dir(folder.path(""))).well();
    let elsewhere = tempfile::tempdir().unwrap();
    let expected = format!("images: it does not exist; {run} read its data there from the folder where it was started");
    for words in [&["eval", &run][..], &["train", "--resume", "--epochs", "2", "--out", &run]] {
        let ended = finish(program().args(words).current_dir(elsewhere.path()));
        refused(&ended, 1, &[&expected, "name the DATA"]);
    }
}
