//! Every option takes effect, is refused, or is reported as having no effect.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::runs::tensors;
use crate::common::{Ended, enmasse, finish, images, metrics, program};
use enmasse_train::{Checkpoint, RunConfig};

/// The expected outcome of options.
enum Fate<'a> {
    /// Exit code 2, and only this line.
    Refused(&'a str),
    /// These lines of warning, and nothing else unusual.
    Warned(&'a [&'a str]),
}
use Fate::{Refused, Warned};

/// Data sets of every layout, and places for runs.
struct Place {
    folder: tempfile::TempDir,
    runs: usize,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = images(folder.path(), 5);
        let parts = folder.path().join("parts");
        for part in ["train", "val"] {
            fs::create_dir_all(&parts).unwrap();
            let made = images(&folder.path().join(part), 5);
            fs::rename(made, parts.join(part)).unwrap();
        }
        assert!(data.is_dir());
        write_mnist(&folder.path().join("mnist"), 20);
        Place { folder, runs: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A run of one step on a data set, with options in the environment and on the command line.
    fn train(&mut self, data: &str, variables: &[(&str, &str)], options: &str) -> Ended {
        self.runs += 1;
        let mut command = program();
        command.arg("train").arg(self.path(data)).arg("--out").arg(self.path(&format!("run-{}", self.runs)));
        command.args(["--model", "mlp", "--batch", "2", "--max-steps", "1", "--threads", "1", "--json"]);
        let size = if data == "mnist" { "28" } else { "8" };
        command.args(["--size", size]).args(options.split_whitespace()).envs(variables.iter().copied());
        finish(&mut command)
    }
}

/// Grey images in the files of MNIST.
fn write_mnist(folder: &Path, count: u8) {
    fs::create_dir(folder).unwrap();
    for part in ["train", "t10k"] {
        let pixels: Vec<u8> = (0..usize::from(count) * 28 * 28).map(|pixel| (pixel * 31 % 251) as u8).collect();
        let images = [&[0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28][..], &pixels].concat();
        fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let labels: Vec<u8> = (0..count).map(|index| index % 10).collect();
        let labels = [&[0, 0, 8, 1, 0, 0, 0, count][..], &labels].concat();
        fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

#[track_caller]
fn has_fate(ended: &Ended, fate: &Fate, case: &str) {
    match fate {
        Refused(line) => {
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(2), format!("error: {line}\n").as_str()), "{case}");
            assert_eq!(ended.stdout, "", "{case}");
        }
        Warned(lines) => {
            assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr);
            let warnings = ended.stderr.lines().filter_map(|line| line.strip_prefix("warning: "));
            assert_eq!(warnings.collect::<Vec<_>>(), *lines, "{case}");
        }
    }
}

#[test]
fn options_of_a_run() {
    let mut place = Place::new();
    let mut check = |data: &str, variables: &[(&str, &str)], options: &str, fate: Fate| {
        // Every kind of rank prints it once.
        for ranks in ["--devices cpu:1", "--devices cpu:2", "--devices cpu:2 --ranks thread"] {
            let ended = place.train(data, variables, &format!("{ranks} {options}"));
            has_fate(&ended, &fate, &format!("{data} {variables:?} {ranks} {options}"));
            let json = || ended.json().len();
            assert!(ended.code != Some(0) || json() > 0, "{options}");
        }
    };
    check("images", &[], "", Warned(&[]));
    // Options of the optimiser.
    let adamw = "has no effect with --optimizer adamw; leave it out, or use --optimizer sgd";
    check("images", &[], "--optimizer adamw --momentum 0.9", Refused(&format!("--momentum 0.9: {adamw} or lars")));
    check("images", &[], "--optimizer adamw --nesterov", Refused(&format!("--nesterov: {adamw}")));
    check("images", &[], "--nesterov --momentum 0", Refused("--nesterov: needs a --momentum above 0"));
    let momentum = "ENMASSE_MOMENTUM=0.5 has no effect with --optimizer adamw";
    check("images", &[("ENMASSE_MOMENTUM", "0.5")], "--optimizer adamw", Warned(&[momentum]));
    // Options of the schedule.
    let cosine = "--step-size 3: has no effect with --schedule cosine; leave it out, or use --schedule step";
    check("images", &[], "--schedule cosine --step-size 3", Refused(cosine));
    let step = "--lrf 0.1: has no effect with --schedule step; leave it out, or use --schedule cosine";
    check("images", &[], "--lrf 0.1 --schedule step", Refused(step));
    check("images", &[], "--gamma 0.5", Warned(&["--gamma 0.5 has no effect with --schedule cosine"]));
    check("images", &[], "--gamma 0.5 --step-size 3 --schedule step", Warned(&[]));
    // Options of the augmentation.
    let padding = "--crop-padding 2: has no effect with --augment none; leave it out, or use --augment crop";
    check("images", &[], "--augment none --crop-padding 2", Refused(padding));
    let padding = "--crop-padding 2 has no effect on this data set without --augment crop";
    check("images", &[], "--crop-padding 2", Warned(&[padding]));
    check("images", &[], "--crop-padding 2 --augment crop", Warned(&[]));
    // Options of the data set.
    check("images", &[], "--split python --split-seed 3 --convert-rgb", Warned(&[]));
    let parts = ["--split python", "--split-seed 3"]
        .map(|given| format!("{given} has no effect on a data set that comes in parts for training and validation"));
    let parts = parts.each_ref().map(String::as_str);
    check("parts", &[], "--split python --split-seed 3 --convert-rgb", Warned(&parts));
    check("mnist", &[], "--split python --split-seed 3", Warned(&parts));
    let converted = "--convert-rgb has no effect on CIFAR and MNIST: only images in folders are converted";
    check("mnist", &[], "--convert-rgb", Warned(&[converted]));
    let turned = "--exif-transpose has no effect on CIFAR and MNIST: only images in folders have an orientation";
    check("mnist", &[], "--exif-transpose", Warned(&[turned]));
}

#[test]
fn options_of_a_resumed_run() {
    let mut place = Place::new();
    place.train("images", &[("ENMASSE_GAMMA", "0.5")], "--devices cpu:1 --optimizer adamw").well();
    let run = place.path("run-1").display().to_string();
    let check = |options: &str, fate: Fate| {
        let options = ["train", "--out", &run, "--resume", "--json"].into_iter().chain(options.split_whitespace());
        has_fate(&enmasse(&options.collect::<Vec<_>>()), &fate, "resumed");
    };
    // Ineffective options in the saved run do not matter.
    check("--max-steps 2", Warned(&[]));
    check("--max-steps 3 --momentum 0.5", Warned(&["--momentum 0.5 has no effect with --optimizer adamw"]));
    check(
        "--max-steps 4 --weights a.pth",
        Refused(&format!(
            "--weights a.pth: the run in {run} was started with none, which cannot change; leave it out, or start a new run"
        )),
    );
}

#[test]
fn options_of_ranks_that_a_launcher_starts() {
    let place = Place::new();
    let data = place.path("images").display().to_string();
    let run = place.path("run").display().to_string();
    let check = |flags: &str, options: &str, fate: Fate| {
        let _ = fs::remove_dir_all(&run);
        let mut command = program();
        command.arg("launch").args(flags.split_whitespace()).args([
            "--",
            env!("CARGO_BIN_EXE_enmasse"),
            "train",
            &data,
        ]);
        command.args(["--model", "mlp", "--size", "8", "--batch", "2", "--max-steps", "1", "--out", &run]);
        has_fate(&finish(command.args(options.split_whitespace())), &fate, &format!("{flags} {options}"));
    };
    let threads = "--ranks thread has no effect in ranks that a launcher has started";
    check("-n 2", "--ranks thread", Warned(&[threads]));
    let interval = "--monitor-interval 5 has no effect: the end of a rank is noticed at once";
    check(
        "-n 2 --monitor-interval 5",
        "--gamma 1",
        Warned(&[interval, "--gamma 1 has no effect with --schedule cosine"]),
    );
    let store = "--rdzv-conf store_type=file has no effect: nodes meet at enmasse's own store";
    check("-n 1 --rdzv-conf store_type=file,join_timeout=5", "", Warned(&[store]));
    let keys = "join_timeout, timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt";
    check("-n 1 --rdzv-conf joint=1", "", Refused(&format!("--rdzv-conf joint: is not a key; the keys are {keys}")));
}

#[test]
fn frozen_by_name_and_all_but_the_classifier() {
    let mut place = Place::new();
    let options = "--devices cpu:1 --freeze-layers --freeze fc3.bias --weight-decay 0";
    place.train("images", &[], &format!("{options} --model lenet --size 32")).well();
    let trained = |(name, _): &(String, Vec<u32>)| name.starts_with("optimizer.");
    let state = tensors(&place.path("run-1"), "last.safetensors");
    assert_eq!(state.iter().filter(|tensor| trained(tensor)).count(), 1, "the classifier's weight alone is trained");
}

/// A run's own settings give the digits of its own validation.
#[test]
fn eval_computes_as_the_run_did() {
    let mut place = Place::new();
    let options = "--devices cpu:1 --batch 3 --epochs 1 --max-steps 4 --lr 0.01 --isa portable --exact";
    place.train("images", &[], &format!("{options} --model resnet18-cifar --size 16")).well();
    let run = place.path("run-1");
    let own = &metrics(&run)[0]["val_loss"];
    let run = run.display().to_string();
    let loss = |others: &[&str]| {
        let fixed = ["eval", &run, "--split", "val", "--json", "--devices", "cpu:1", "--batch", "3", "--threads", "1"];
        enmasse(&[&fixed, others].concat()).well().json()[0]["loss"].clone()
    };
    assert_eq!(loss(&[]), *own);
    assert_ne!(loss(&["--exact=false"]), *own, "overridden");
}

#[test]
fn a_missing_level_is_reported() {
    let levels = enmasse::devices::with_threads("cpu", 1).unwrap().levels();
    let lacking = ["avx2", "avx512", "avx512_bf16", "amx"].into_iter().find(|level| !levels.contains(level));
    let Some(lacking) = lacking else { return };
    let mut place = Place::new();
    place.train("images", &[], "--devices cpu:1").well();
    let run = place.path("run-1");
    let file = run.join("checkpoints/best.safetensors");
    fs::copy(run.join("checkpoints/last.safetensors"), &file).unwrap();
    let mut checkpoint = Checkpoint::load(&file).unwrap();
    let mut configuration = RunConfig::from_toml(&checkpoint.meta.configuration).unwrap();
    configuration.program.isa = Some(lacking.to_string());
    checkpoint.meta.configuration = configuration.to_toml();
    checkpoint.save(&file).unwrap();
    let best = levels.last().unwrap();
    let line = format!("the run used --isa {lacking}, which this machine lacks; it now uses {best}");
    let run = run.display().to_string();
    let image = place.path("images/red/000.png").display().to_string();
    has_fate(&enmasse(&["predict", &run, &image]), &Warned(&[&line]), "predict");
    for devices in ["cpu:1", "cpu:2"] {
        has_fate(&enmasse(&["eval", &run, "--split", "val", "--devices", devices]), &Warned(&[&line]), devices);
    }
    has_fate(&enmasse(&["predict", &run, &image, "--isa", "portable"]), &Warned(&[]), "another level");
}

/// A single number for each of --mean and --std trained a model of one channel on colour images.
#[test]
fn channels_come_from_the_data_or_from_their_setting() {
    let mut place = Place::new();
    let mut check = |data: &str, options: &str, channels: usize, mean: &[f32]| {
        place.train(data, &[], &format!("--devices cpu:1 {options}")).well();
        let run = place.path(&format!("run-{}", place.runs));
        let checkpoint = Checkpoint::load(&run.join("checkpoints/last.safetensors")).unwrap();
        let size = if data == "mnist" { 28 } else { 8 };
        let inputs = checkpoint.tensors.iter().find(|tensor| tensor.shape.len() == 2).unwrap().shape[1];
        assert_eq!((inputs, &checkpoint.meta.mean[..]), (channels * size * size, mean), "{data} {options}");
        // Every later use takes the channels of the run.
        let run = run.display().to_string();
        let data = place.path(data).display().to_string();
        enmasse(&["eval", &run, &data, "--devices", "cpu:1", "--batch", "4"]).well();
        let resumed = ["train", "--resume", "--out", &run, "--max-steps", "2", "--json"];
        enmasse(&resumed).well();
    };
    let imagenet = [0.485, 0.456, 0.406];
    check("images", "", 3, &imagenet);
    check("images", "--mean 0.5 --std 0.5", 3, &[0.5; 3]);
    check("images", "--mean 0.5 --std 0.5 --channels 1", 1, &[0.5]);
    check("images", "--channels 1", 1, &[0.299 * imagenet[0] + 0.587 * imagenet[1] + 0.114 * imagenet[2]]);
    check("mnist", "", 1, &[0.1307]);
    check("mnist", "--mean 0.5", 1, &[0.5]);
    check("mnist", "--channels 3", 3, &[0.1307; 3]);
    let refused = |place: &mut Place, options: &str, expected: &str| {
        let ended = place.train("images", &[], options);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(2), expected));
    };
    let several = "--channels 1 takes one number; use one of them";
    refused(&mut place, "--channels 1 --mean 0.5,0.5,0.5", &format!("error: --mean 0.5,0.5,0.5: {several}\n"));
    refused(&mut place, "--channels 1 --std 0.5,0.5,0.5", &format!("error: --std 0.5,0.5,0.5: {several}\n"));
    refused(&mut place, "--channels 2", "error: --channels 2: must be 1 or 3\n");
    refused(&mut place, "--channels 4", "error: --channels 4: must be 1 or 3\n");
}
