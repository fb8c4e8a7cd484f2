//! The whole program on an emulated GPU: NVIDIA's driver and libraries over host memory, with our kernels compiled for it.

use std::path::Path;

use crate::common::runs::arguments;
use crate::common::{Ended, assert_whole, failed, finish, pictures, program, refused};

/// The program with NVIDIA's libraries in a folder alone.
fn with_libraries<S: AsRef<str>>(folder: &Path, arguments: &[S]) -> Ended {
    let mut command = program();
    command.env("ENMASSE_CUDA_LIBRARIES", folder).args(arguments.iter().map(AsRef::as_ref));
    finish(&mut command)
}

/// The same on the emulated GPU. `None` without a compiler: the test is then in the table.
fn on_gpu<S: AsRef<str>>(arguments: &[S]) -> Option<Ended> {
    Some(with_libraries(enmasse_emulation::folder()?, arguments))
}

const MODEL: [&str; 6] = ["--model", "resnet18-cifar", "--size", "8", "--epochs", "1"];

#[test]
fn a_gpu_trains_evaluates_predicts_prints_and_is_timed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run) = (pictures(folder.path(), 8), folder.path().join("run"));
    let [data, run] = [&data, &run].map(|path| path.display().to_string());
    for precision in ["f32", "bf16"] {
        let fixed = ["--devices", "gpu:1", "--batch", "4", "--precision", precision, "--json", "--out", &run];
        let Some(trained) = on_gpu(&[&["train", &data], &MODEL[..], &fixed].concat()) else { return };
        let trained = trained.well();
        assert_eq!(trained.json()[0]["world_size"], 1);
        assert_whole(Path::new(&run));
        let on_gpu = |arguments: &[&str]| on_gpu(arguments).unwrap().well();
        // The same weights on the CPU give the same accuracy.
        let accuracy = |devices: &str| {
            on_gpu(&["eval", &run, &data, "--devices", devices, "--json"]).json()[0]["accuracy"].clone()
        };
        assert_eq!(accuracy("gpu:1"), accuracy("cpu:1"));
        let picture = crate::common::files(Path::new(&data))[0].display().to_string();
        let predicted = on_gpu(&["predict", &run, &picture, "--devices", "gpu:1"]);
        assert!(predicted.stdout.contains('%'), "{}", predicted.stdout);
        let printed = on_gpu(&[&["plan", "print", "--devices", "gpu:1"], &MODEL[..4], &fixed[4..6]].concat());
        let plan = &printed.stdout;
        assert!(plan.contains("filters ohwi") && plan.contains(" by eng"), "{plan}");
        let launches = ["one graph in one stream: ", "cross_entropy <", "descent <", "copies the batch"];
        assert!(launches.iter().all(|part| plan.contains(part)), "{plan}");
        let timed = ["bench", "step", "--devices", "gpu:1", "--batch", "2", "--steps", "2", "--json"];
        let timed = on_gpu(&[&timed[..], &MODEL[..4], &fixed[4..6]].concat());
        assert!(timed.json()[0]["images_per_second"].as_f64().unwrap() > 0.0);
        std::fs::remove_dir_all(&run).unwrap();
    }
}

/// A run changes its device at a resume, in both directions.
#[test]
fn a_run_changes_its_device_at_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run) = (pictures(folder.path(), 8), folder.path().join("run"));
    let mut devices = ["cpu:1", "gpu:1", "cpu:1"].into_iter().zip(1..);
    let go = |devices: &str, epochs: i32, others: &[&str]| {
        let epochs = epochs.to_string();
        on_gpu(&arguments(&data, &run, &[&["--epochs", &epochs, "--devices", devices], others].concat()))
    };
    let (first, epochs) = devices.next().unwrap();
    let Some(begun) = go(first, epochs, &[]) else { return };
    begun.well();
    for (device, epochs) in devices {
        let ended = go(device, epochs, &["--resume"]).unwrap().well();
        let epochs = ended.json().iter().filter(|line| line["event"] == "epoch").count();
        assert_eq!(epochs, 1, "{device}");
    }
}

#[test]
fn what_a_gpu_lacks_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run, nothing) = (pictures(folder.path(), 8), folder.path().join("run"), folder.path().join("nothing"));
    std::fs::create_dir(&nothing).unwrap();
    let gpu = |others: &[&str]| arguments(&data, &run, &[&["--devices", "gpu:1"], others].concat());
    let missing = with_libraries(&nothing, &gpu(&[]));
    // A machine with a driver finds it in the system's folders.
    if missing.code != Some(0) {
        refused(&missing, 2, &["NVIDIA's driver is missing: no libcuda.so.1 in ", "install"]);
    }
    let check = |others: &[&str], code: i32, mentions: &[&str]| {
        let Some(ended) = on_gpu(&arguments(&data, &run, others)) else { return };
        refused(&ended, code, mentions);
        assert!(!run.exists());
    };
    check(&["--devices", "gpu:7,"], 2, &["there is no GPU 7: the visible ones are 0 to 0"]);
    check(&["--devices", "gpu:2"], 2, &["2 GPUs: several are not supported yet; use --devices gpu:1"]);
    check(&["--devices", "gpu:1", "--isa", "avx2"], 2, &["--isa avx2: a GPU has no instruction-set levels"]);
}

#[test]
fn a_card_without_bf16() {
    let plan = ["plan", "print", "--devices", "gpu:1", "--model", "lenet", "--size", "32", "--precision", "bf16"];
    let mut command = program();
    let Some(folder) = enmasse_emulation::folder() else { return };
    command.env("ENMASSE_CUDA_LIBRARIES", folder).env("EMULATED_CAPABILITY", "7").args(plan);
    refused(&finish(&mut command), 1, &["Emulated GPU 0 (compute capability 7.0) has no bf16: use --precision f32"]);
}

/// The largest batch that fits is named before anything is allocated.
#[test]
fn a_batch_that_does_not_fit_on_the_card() {
    let batch = |batch: &str| {
        let mut command = program();
        command.env("ENMASSE_CUDA_LIBRARIES", enmasse_emulation::folder()?).env("EMULATED_GPU_MIB", "64");
        let bench =
            ["bench", "step", "--devices", "gpu:1", "--model", "lenet", "--size", "32", "--steps", "1", "--batch"];
        Some(finish(command.args(bench).arg(batch)))
    };
    let Some(ended) = batch("4096") else { return };
    failed(&ended, 1, &["the run needs ", " are free (on the device): use --batch "]);
    let fits: usize = ended.stderr.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(fits < 4096);
    failed(&batch(&(fits + 1).to_string()).unwrap(), 1, &[&format!("use --batch {fits}")]);
    batch(&fits.to_string()).unwrap().well();
}
