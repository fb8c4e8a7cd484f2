//! `--devices auto` in the whole program: with a GPU that works, with one that does not, and without one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::runs::arguments;
use crate::common::{Ended, files, finish, images, program};

/// The program with NVIDIA's libraries in a folder alone, this number of emulated GPUs, and a cache of its own.
fn command_with_gpus(libraries: &Path, gpus: &str) -> Command {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let cache = CACHE.get_or_init(|| tempfile::tempdir().unwrap());
    let mut command = program();
    command.env_remove("CUDA_VISIBLE_DEVICES").env("ENMASSE_CUDA_LIBRARIES", libraries).env("EMULATED_GPUS", gpus);
    command.env("ENMASSE_CACHE", cache.path());
    command
}

fn with_gpus(libraries: &Path, gpus: &str, arguments: &[impl AsRef<str>]) -> Ended {
    finish(command_with_gpus(libraries, gpus).args(arguments.iter().map(AsRef::as_ref)))
}

/// What a run said about its device, and its warnings.
fn said(ended: &Ended) -> (bool, Vec<&str>) {
    let on_gpu = ended.stderr.contains("gpu 0 (Emulated GPU 0, 0000:10:00.0, cuDNN");
    assert!(on_gpu != ended.stderr.contains("cpu ("), "{}", ended.stderr);
    (on_gpu, ended.stderr.lines().filter(|line| line.starts_with("warning: ")).collect())
}

/// A folder with only the emulation's driver.
fn driver_alone(folder: &Path, emulation: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    std::os::unix::fs::symlink(emulation.join("libcuda.so.1"), folder.join("libcuda.so.1")).unwrap();
}

#[test]
fn a_run_takes_what_its_machine_has_at_each_start() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let driver = folder.path().join("driver");
    driver_alone(&driver, emulation);
    let mut epochs = 0;
    let mut go = |libraries: &Path, gpus: &str, devices: &[&str]| {
        epochs += 1;
        let own = ["--resume", "--epochs", &epochs.to_string()].map(str::to_owned);
        let given: Vec<String> = own.into_iter().chain(devices.iter().map(|word| word.to_string())).collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let ended = with_gpus(libraries, gpus, &arguments(&data, &run, &given)).well();
        let kept = std::fs::read_to_string(run.join("config.toml")).unwrap();
        assert!(kept.contains("devices = \"auto\""), "{kept}");
        ended
    };
    assert_eq!(said(&go(emulation, "1", &["--devices", "auto"])), (true, vec![]));
    // The run looks again. A machine without a GPU is nothing to warn of, unless this one has one.
    let without = go(emulation, "0", &[]);
    let (on_gpu, warnings) = said(&without);
    assert!(!on_gpu && warnings.iter().all(|line| line.contains("not the machine's GPU")), "{warnings:?}");
    let unusable = go(&driver, "1", &[]);
    let (on_gpu, warnings) = said(&unusable);
    assert!(!on_gpu);
    let expected = "warning: --devices auto takes cpu, not the machine's GPU: cuDNN is missing: no libcudnn.so.9 in ";
    assert!(matches!(warnings[..], [line] if line.starts_with(expected)), "{warnings:?}");
    let asked = go(emulation, "1", &["--isa", "avx2"]);
    let (on_gpu, warnings) = said(&asked);
    assert!(!on_gpu && matches!(warnings[..], [line] if line.contains("--isa avx2: a GPU has no")), "{warnings:?}");
}

#[test]
fn commands_of_one_device_take_auto() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let model = ["--model", "mlp", "--size", "8", "--batch", "2"];
    let bench = [&["bench", "step", "--steps", "1", "--devices", "auto"], &model[..]].concat();
    let plan = [&["plan", "print", "--devices", "auto"], &model[..]].concat();
    let check = |gpus: &str, on_gpu: bool| {
        let timed = with_gpus(emulation, gpus, &bench).well();
        assert_eq!(timed.stdout.contains("gpu 0 (Emulated GPU 0"), on_gpu, "{}", timed.stdout);
        let printed = with_gpus(emulation, gpus, &plan).well();
        assert_eq!(printed.stdout.contains("one graph in one stream"), on_gpu, "{}", printed.stdout);
    };
    check("1", true);
    check("0", false);
}

/// Launched ranks take one GPU each, or CPUs where the GPUs do not work, and one says why.
#[test]
fn launched_ranks_decide_alike() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let driver = folder.path().join("driver");
    driver_alone(&driver, emulation);
    let go = |libraries: &Path, epochs: &str| {
        let launch = ["launch", "--nproc-per-node", "2", env!("CARGO_BIN_EXE_enmasse")].map(str::to_owned);
        let train = arguments(&data, &run, &["--epochs", epochs, "--devices", "auto", "--resume"]);
        with_gpus(libraries, "2", &[&launch[..], &train].concat()).well()
    };
    let both = go(emulation, "1");
    let (on_gpu, warnings) = said(&both);
    assert!(on_gpu && warnings.is_empty() && both.stderr.contains("gpu 1 (Emulated GPU 1"), "{}", both.stderr);
    let none = go(&driver, "2");
    let (on_gpu, warnings) = said(&none);
    let expected = "takes cpu, not the machine's GPU: cuDNN is missing";
    assert!(!on_gpu && matches!(warnings[..], [line] if line.contains(expected)), "{warnings:?}");
}

/// The numbers of the GPUs on which a run's ranks computed.
fn gpus(ended: &Ended) -> Vec<usize> {
    let number = |line: &str| line.split_once(", gpu ")?.1.split_once(" (Emulated GPU")?.0.parse().ok();
    ended.stderr.lines().filter_map(number).collect()
}

/// The lines about GPUs that stay idle.
fn idle(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.contains("idle") || line.starts_with("warning: --devices auto")).collect()
}

/// Images, and runs on GPUs that are taken without a word.
struct Place {
    folder: tempfile::TempDir,
    data: PathBuf,
    emulation: &'static Path,
}

impl Place {
    fn new() -> Option<Self> {
        let emulation = enmasse_emulation::folder()?;
        let folder = tempfile::tempdir().unwrap();
        Some(Place { data: images(folder.path(), 8), folder, emulation })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A run of one epoch, started by these words, on a machine with this number of GPUs.
    fn train(&self, name: &str, count: &str, environment: &[(&str, &str)], start: &[&str], others: &[&str]) -> Ended {
        let train = arguments(&self.data, &self.path(name), &[&["--epochs", "1"], others].concat());
        let mut command = command_with_gpus(self.emulation, count);
        finish(command.envs(environment.iter().copied()).args(start).args(train))
    }
}

const LAUNCH: [&str; 4] = ["launch", "-n", "2", env!("CARGO_BIN_EXE_enmasse")];

/// On a machine with eight GPUs these trained on CPUs, without a word.
#[test]
fn gpus_were_idle_unless_they_were_named() {
    let Some(place) = Place::new() else { return };
    let all = place.train("all", "8", &[], &[], &[]).well();
    assert_eq!((gpus(&all), idle(&all)), ((0..8).collect(), vec![]));
    let kept = std::fs::read_to_string(place.path("all/config.toml")).unwrap();
    assert!(kept.contains("devices = \"auto\""), "{kept}");
    let launched = place.train("launched", "2", &[], &LAUNCH, &[]).well();
    assert_eq!((gpus(&launched), idle(&launched)), (vec![0, 1], vec![]));
    let run = place.path("launched").display().to_string();
    let evaluate = |others: &[&str]| {
        let ended = with_gpus(place.emulation, "2", &[&["eval", &run, "--json"], others].concat()).well();
        (ended.json()[0]["loss"].clone(), idle(&ended).len())
    };
    assert_eq!(evaluate(&[]), evaluate(&["--devices", "gpu:2"]));
    assert_eq!(evaluate(&["--devices", "cpu:2"]).1, 1);
    let image = files(&place.data)[0].display().to_string();
    assert_eq!(idle(&with_gpus(place.emulation, "2", &["predict", &run, &image]).well()), [""; 0]);
    let bench = ["bench", "step", "--model", "mlp", "--size", "8", "--batch", "2", "--steps", "1"];
    let timed = with_gpus(place.emulation, "2", &bench).well().stdout;
    assert!(timed.contains("gpu 0 (Emulated GPU 0"), "{timed}");
    for (name, start, devices) in [("cpus", &[][..], "cpu:2"), ("ranks", &LAUNCH, "cpu")] {
        let asked = place.train(name, "8", &[], start, &["--devices", devices]).well();
        let said = format!("--devices {}", if devices == "cpu" { "cpu:1" } else { devices });
        let line = format!("8 GPUs stay idle, by {said}; --devices auto takes them");
        assert_eq!((gpus(&asked), idle(&asked)), (vec![], vec![line.as_str()]));
    }
}

/// Without `--devices` the record of such a run was `cpu:2`, so it stayed on CPUs where GPUs were.
#[test]
fn a_run_that_found_no_gpu_never_looked_again() {
    let Some(place) = Place::new() else { return };
    let driver = place.path("driver").display().to_string();
    driver_alone(Path::new(&driver), place.emulation);
    let cache = place.path("cache").display().to_string();
    let wrong = [("EMULATED_WRONG", "0:convolution"), ("ENMASSE_CACHE", &cache)];
    let check = |name: &str, count: &str, environment: &[(&str, &str)], start: &[&str]| {
        let first = place.train(name, count, environment, start, &[]).well();
        assert!(gpus(&first).is_empty(), "{}", first.stderr);
        let later = place.train(name, "2", &[], start, &["--resume", "--epochs", "2"]).well();
        assert_eq!((gpus(&later), idle(&later)), (vec![0, 1], vec![]), "{name}");
    };
    check("none", "0", &[], &[]);
    check("library", "1", &[("ENMASSE_CUDA_LIBRARIES", &driver)], &[]);
    check("wrong", "1", &wrong, &[]);
    check("launched", "0", &[], &LAUNCH);
}

/// PyTorch's line for five processes took CPUs, and the line named flags that nobody had typed.
#[test]
fn a_number_of_ranks_takes_as_many_gpus() {
    let Some(place) = Place::new() else { return };
    let two = place.train("two", "4", &[], &[], &["--world-size", "2"]).well();
    assert_eq!((gpus(&two), idle(&two)), (vec![0, 1], vec![]));
    for (name, words) in [("few", ["--world-size", "3"]), ("none", ["--gpus", "0"]), ("cpu", ["--device", "cpu"])] {
        let ended = place.train(name, "2", &[], &[], &words).well();
        let line = format!("2 GPUs stay idle, by {}; --devices auto takes them", words.join(" "));
        assert_eq!((gpus(&ended), idle(&ended)), (vec![], vec![line.as_str()]));
    }
}

/// Six of eight GPUs were idle, and a bad one put all ranks on CPUs, without a remedy.
#[test]
fn gpus_were_idle_beside_fewer_ranks() {
    let Some(place) = Place::new() else { return };
    let two = place.train("two", "8", &[], &LAUNCH, &[]).well();
    let line = "6 GPUs stay idle, by 2 ranks for 8; start 8 ranks, one for each, to take all";
    assert_eq!((gpus(&two), idle(&two)), (vec![0, 1], vec![line]));
    let cache = place.path("cache").display().to_string();
    let environment = [("EMULATED_WRONG", "1:convolution"), ("ENMASSE_CACHE", cache.as_str())];
    let bad = place.train("bad", "4", &environment, &LAUNCH, &[]).well();
    let remedy = " (rank 1); start 2 ranks with --devices gpu:0,2 to take the others";
    assert!(gpus(&bad).is_empty() && matches!(idle(&bad)[..], [line] if line.ends_with(remedy)), "{}", bad.stderr);
    let others = place.train("others", "4", &environment, &LAUNCH, &["--devices", "gpu:0,2"]).well();
    assert_eq!(gpus(&others), [0, 2], "{}", others.stderr);
}

#[test]
fn a_gpu_that_computes_wrongly_is_named_and_left() {
    let Some(place) = Place::new() else { return };
    let check = |what: &str, expected: &str| {
        let cache = place.path(&format!("cache of {what}")).display().to_string();
        let environment = |wrong| [("EMULATED_WRONG", wrong), ("ENMASSE_CACHE", cache.as_str())];
        let (first, second) = (format!("0:{what}"), format!("1:{what}"));
        let two = place.train(&format!("two {what}"), "2", &environment(&second), &[], &[]).well();
        assert_eq!(gpus(&two), [0], "{}", two.stderr);
        let line =
            format!("warning: gpu 1 (Emulated GPU 1, 0000:11:00.0) fails its self-test: in training, {expected}");
        assert!(matches!(idle(&two)[..], [found] if found.starts_with(&line)), "{}", two.stderr);
        // The one that passed is known; no other is.
        let one = place.train(&format!("one {what}"), "1", &environment(&first), &[], &[]).well();
        assert_eq!((gpus(&one), idle(&one)), (vec![0], vec![]));
        let other = [&environment(&first)[..], &[("EMULATED_DRIVER", "575.1")]].concat();
        let one = place.train(&format!("other driver {what}"), "1", &other, &[], &[]).well();
        assert!(gpus(&one).is_empty(), "{}", one.stderr);
        assert!(
            matches!(idle(&one)[..], [found] if found.ends_with("it stays idle, so the cpu is used")),
            "{}",
            one.stderr
        );
    };
    // A batch norm after it hides the factor from the loss.
    check("convolution", "gradient.");
    check("its weight gradient", "gradient.");
    check("its data gradient", "gradient.");
    check("descent", "conv1.weight is off by ");
}

#[test]
fn only_whole_outcomes_of_this_version_count() {
    let Some(place) = Place::new() else { return };
    let cache = place.path("cache");
    let environment = |wrong| [("EMULATED_WRONG", wrong), ("ENMASSE_CACHE", cache.to_str().unwrap())];
    let passed = place.train("passed", "1", &environment(""), &[], &[]).well();
    assert_eq!(gpus(&passed), [0]);
    let [outcome] = &files(&cache.join("self-tests"))[..] else { panic!("one file in {}", cache.display()) };
    let text = std::fs::read_to_string(outcome).unwrap();
    let check = |number: usize, text: &str, expected: &[usize]| {
        std::fs::write(outcome, text).unwrap();
        let ended = place.train(&format!("run {number}"), "1", &environment("0:convolution"), &[], &[]).well();
        assert_eq!(gpus(&ended), expected, "{text}");
    };
    check(0, &text, &[0]);
    check(1, &text.replace("enmasse ", "enmasse 9"), &[]);
    check(2, &text[..text.len() - 3], &[]);
    check(3, "", &[]);
}

#[test]
fn gpus_of_other_jobs_and_hot_ones_are_left() {
    let Some(place) = Place::new() else { return };
    let environment = [("EMULATED_BUSY", "0:1:8589934592"), ("EMULATED_SLOW", "1:0x44")];
    let three = place.train("three", "3", &environment, &[], &[]).well();
    assert_eq!(gpus(&three), [2]);
    let lines = idle(&three);
    assert!(lines[0].ends_with(" (pid 1) with 8192 MiB computes on it; --devices gpu:all takes it"), "{lines:?}");
    let hot = "warning: gpu 1 (Emulated GPU 1, 0000:11:00.0) stays idle: it is too hot; check its cooling; --devices gpu:all takes it";
    assert_eq!(lines[1..], [hot]);
}

#[test]
fn more_ranks_than_gpus() {
    let Some(place) = Place::new() else { return };
    let go = |name: &str, count: &str, others: &[&str]| place.train(name, count, &[], &LAUNCH, others).well();
    let alone = go("cpus", "1", &[]);
    let line = "not the machine's GPU: it has the same as rank 0 (Emulated GPU 0 at 0000:10:00.0";
    assert!(gpus(&alone).is_empty() && matches!(idle(&alone)[..], [found] if found.contains(line)), "{}", alone.stderr);
    assert!(idle(&alone)[0].contains("or let them share with --share-devices"));
    let shared = go("shared", "1", &["--share-devices"]);
    assert_eq!((gpus(&shared), idle(&shared)), (vec![0, 0], vec![]));
}
