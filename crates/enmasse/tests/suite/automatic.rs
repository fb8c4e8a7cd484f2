//! `--devices auto` in the whole program: with a GPU that works, with one that does not, and without one.

use std::path::Path;

use crate::common::runs::arguments;
use crate::common::{Ended, finish, pictures, program};

/// The program with NVIDIA's libraries in a folder alone, and this number of emulated GPUs.
fn with_gpus(libraries: &Path, gpus: &str, arguments: &[impl AsRef<str>]) -> Ended {
    let mut command = program();
    command.env("ENMASSE_CUDA_LIBRARIES", libraries).env("EMULATED_GPUS", gpus);
    finish(command.args(arguments.iter().map(AsRef::as_ref)))
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
    let (data, run, driver) = (pictures(folder.path(), 8), folder.path().join("run"), folder.path().join("driver"));
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
    let (data, run) = (pictures(folder.path(), 8), folder.path().join("run"));
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
