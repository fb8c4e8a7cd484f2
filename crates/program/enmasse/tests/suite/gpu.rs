//! The whole program on an emulated GPU: NVIDIA's driver and libraries over host memory, with our kernels compiled for it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use enmasse_train::Checkpoint;

use crate::common::runs::{arguments, assert_same, tensors};
use crate::common::{Ended, assert_whole, enmasse, failed, finish, images, plain_environment, program, refused};

/// The program with NVIDIA's libraries in a folder alone.
fn with_libraries<S: AsRef<str>>(folder: &Path, arguments: &[S]) -> Ended {
    let mut command = program();
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("ENMASSE_CUDA_LIBRARIES", folder)
        .args(arguments.iter().map(AsRef::as_ref));
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
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let [data, run] = [&data, &run].map(|path| path.display().to_string());
    for precision in ["tf32", "bf16"] {
        let fixed = ["--devices", "gpu:1", "--batch", "4", "--precision", precision, "--json", "--out", &run];
        let Some(trained) = on_gpu(&[&["train", &data], &MODEL[..], &fixed].concat()) else { return };
        let trained = trained.well();
        assert_eq!(trained.json()[0]["world_size"], 1);
        assert_whole(Path::new(&run));
        let on_gpu = |arguments: &[&str]| on_gpu(arguments).unwrap().well();
        // The same weights on the CPU give the same accuracy.
        let accuracy = |devices: &str, precision: &str| {
            let evaluation = ["eval", &run, &data, "--devices", devices, "--precision", precision, "--json"];
            on_gpu(&evaluation).json()[0]["accuracy"].clone()
        };
        assert_eq!(accuracy("gpu:1", precision), accuracy("cpu:1", "f32"));
        let image = crate::common::files(Path::new(&data))[0].display().to_string();
        let predicted = on_gpu(&["predict", &run, &image, "--devices", "gpu:1"]);
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
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
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

/// A run that was trained on a GPU goes on where there is none, if the command line says so.
#[test]
fn a_resume_looked_for_the_runs_gpu_in_spite_of_device_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let nothing = folder.path().join("nothing");
    std::fs::create_dir(&nothing).unwrap();
    let Some(begun) = on_gpu(&arguments(&data, &run, &["--epochs", "1", "--devices", "gpu:1"])) else { return };
    begun.well();
    for (epochs, devices) in [("2", ["--device", "cpu"]), ("3", ["--devices", "cpu:1"])] {
        let others = [&["--epochs", epochs, "--resume"], &devices[..]].concat();
        let ended = with_libraries(&nothing, &arguments(&data, &run, &others)).well();
        assert!(ended.stderr.contains(" devices=cpu:1 "), "{devices:?}: {}", ended.stderr);
    }
    let [run, image] = [run, crate::common::files(&data)[0].clone()].map(|path| path.display().to_string());
    for command in [&["eval", &run][..], &["predict", &run, &image]] {
        with_libraries(&nothing, &[command, &["--devices", "cpu:1"]].concat()).well();
    }
}

/// The scale of the loss is part of a run: of its checkpoints, of a resume, and of what it says.
#[test]
fn a_run_in_f16_keeps_its_loss_scale() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let go = |run: &Path, device: &str, precision: &str, others: &[&str]| {
        let fixed = ["--model", "lenet", "--size", "20", "--devices", device, "--precision", precision];
        let fixed =
            [&fixed[..], &["--shards", "2", "--ema", "0.5", "--schedule", "constant", "--lr", "0.001"]].concat();
        on_gpu(&arguments(&data, run, &[&fixed, others].concat()))
    };
    let epochs = |run: &Path| crate::common::metrics(run);
    let Some(ended) = go(&whole, "gpu:1", "f16", &["--epochs", "2"]) else { return };
    ended.well();
    go(&parts, "gpu:1", "f16", &["--epochs", "2", "--max-steps", "3"]).unwrap().well();
    go(&parts, "gpu:1", "f16", &["--epochs", "2", "--resume"]).unwrap().well();
    assert_same(&whole, &parts);
    assert!(epochs(&whole).iter().all(|epoch| epoch["loss_scale"].as_f64().is_some_and(|scale| scale >= 1.0)));
    // With a scale that is far too large, every step is skipped.
    let last = parts.join("checkpoints/last.safetensors");
    let mut checkpoint = Checkpoint::load(&last).unwrap();
    let scale = |checkpoint: &mut Checkpoint| -> f32 {
        let found = checkpoint.tensors.iter_mut().find(|tensor| tensor.name == "optimizer.loss_scale.scale").unwrap();
        std::mem::replace(&mut found.values[0], 2f32.powi(120))
    };
    assert!(scale(&mut checkpoint) <= 65536.0);
    checkpoint.save(&last).unwrap();
    let weights = || {
        let all = tensors(&parts, "last.safetensors").into_iter();
        all.filter(|(name, _)| !name.contains("loss_scale")).collect::<Vec<_>>()
    };
    let before = weights();
    let ended = go(&parts, "gpu:1", "f16", &["--epochs", "4", "--resume"]).unwrap().well();
    assert!(weights() == before);
    // 21 images to train on, in steps of four, the last one of one.
    let skipped: Vec<_> = epochs(&parts).iter().map(|epoch| epoch["skipped_steps"].as_u64()).collect();
    assert_eq!(skipped[2..], [Some(6), Some(6)]);
    let line = format!("6 steps were skipped: gradients overflowed f16; loss scale now {}", 2f64.powi(108));
    for line in [line.as_str(), "warning: 10 steps in a row were skipped"] {
        assert!(ended.stderr.contains(line), "{line}: {}", ended.stderr);
    }
    let accuracy = |devices: &str, precision: &str| {
        let evaluation = ["eval", parts.to_str().unwrap(), data.to_str().unwrap(), "--devices", devices];
        on_gpu(&[&evaluation[..], &["--precision", precision, "--json"]].concat()).unwrap().well().json()[0]["accuracy"]
            .clone()
    };
    assert_eq!(accuracy("gpu:1", "f16"), accuracy("cpu:1", "f32"));
    // In another precision there is no scale, and back in f16 it begins anew.
    go(&parts, "cpu:1", "bf16", &["--epochs", "5", "--resume"]).unwrap().well();
    go(&parts, "gpu:1", "f16", &["--epochs", "6", "--resume"]).unwrap().well();
    let last = epochs(&parts).pop().unwrap();
    assert!(last["loss_scale"].as_f64().is_some_and(|scale| scale <= 65536.0), "{last}");
}

#[test]
fn what_a_gpu_lacks_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let nothing = folder.path().join("nothing");
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
    let two = "there is no number 1: this machine has 1 visible GPU; check CUDA_VISIBLE_DEVICES";
    check(&["--devices", "gpu:2"], 2, &["--devices gpu:2: ", two]);
    check(&["--devices", "gpu:0,3"], 2, &["--devices gpu:0,3: there is no number 3: this machine has 1 visible GPU"]);
    check(&["--devices", "gpu:1", "--isa", "avx2"], 2, &["--isa avx2: a GPU has no instruction-set levels"]);
}

/// A plan on a GPU of this compute capability.
fn print_on_gpu(capability: &str, devices: &str, precision: &str) -> Option<Ended> {
    let plan = ["plan", "print", "--model", "lenet", "--size", "32", "--devices", devices, "--precision", precision];
    let mut command = program();
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("ENMASSE_CUDA_LIBRARIES", enmasse_emulation::folder()?)
        .env("EMULATED_CAPABILITY", capability);
    Some(finish(command.args(plan)))
}

/// It was refused by the driver, which cannot compile the kernels for it, in words that name no GPU.
#[test]
fn a_gpu_older_than_the_kernels_is_named() {
    let Some(ended) = print_on_gpu("7.0", "gpu:1", "f32") else { return };
    let old =
        "Emulated GPU 0 (compute capability 7.0): 7.5 (Turing, 2018) is the oldest that works; use --devices cpu:N";
    refused(&ended, 2, &[old]);
    print_on_gpu("7.0", "auto", "f32").unwrap().well();
}

#[test]
fn precisions_that_a_device_lacks() {
    let print = |devices: &str, precision: &str| print_on_gpu("7.5", devices, precision);
    for precision in ["bf16", "tf32"] {
        let Some(ended) = print("gpu:1", precision) else { return };
        let lacks = format!("Emulated GPU 0 (compute capability 7.5) has no {precision}: use --precision f16 or f32");
        refused(&ended, 1, &[&lacks]);
    }
    print("gpu:1", "f16").unwrap().well();
    for precision in ["tf32", "f16"] {
        let lacks = format!("the cpu has no {precision}: use --precision bf16 or f32");
        refused(&print("cpu:1", precision).unwrap(), 1, &[&lacks]);
    }
}

/// The largest batch that fits is named before anything is allocated.
#[test]
fn a_batch_that_does_not_fit_on_the_gpu() {
    let Some(ended) = bench_with_memory(320, 4096) else { return };
    failed(&ended, 1, &["the run needs ", " are free (on the device): use --batch "]);
    let fits: usize = ended.stderr.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(fits < 4096);
    failed(&bench_with_memory(320, fits + 1).unwrap(), 1, &[&format!("use --batch {fits}")]);
    bench_with_memory(320, fits).unwrap().well();
}

/// A batch that left no memory for what libraries load in the first step was said to fit.
#[test]
fn the_largest_batch_leaves_memory_for_the_kernels_of_libraries() {
    let plan = ["plan", "print", "--devices", "gpu:1", "--model", "lenet", "--size", "32", "--batch", "256"];
    let Some(printed) = on_gpu(&plan) else { return };
    let printed = printed.well().stdout;
    let all = printed.lines().find_map(|line| line.strip_prefix("memory of a rank: ")?.strip_suffix(".0 MiB")).unwrap();
    let all: u64 = all.parse().unwrap();
    // Its regions alone would fit in both.
    failed(&bench_with_memory(all - 256, 256).unwrap(), 1, &["the run needs "]);
    failed(&bench_with_memory(all - 1, 256).unwrap(), 1, &["the run needs ", "use --batch "]);
    bench_with_memory(all, 256).unwrap().well();
}

/// It was said to be memory on the GPU, whatever the driver's reason.
#[test]
fn page_locked_memory_that_the_driver_refuses_is_the_hosts() {
    let mut command = program();
    let Some(emulation) = enmasse_emulation::folder() else { return };
    command.env_remove("CUDA_VISIBLE_DEVICES").env("ENMASSE_CUDA_LIBRARIES", emulation).env("EMULATED_PINNED_MIB", "0");
    let bench =
        ["bench", "step", "--devices", "gpu:1", "--model", "lenet", "--size", "32", "--steps", "1", "--batch", "2"];
    let ended = finish(command.args(bench));
    let what = "bytes of page-locked memory of the host for the inputs and results of steps: ";
    failed(&ended, 1, &[what, "cuMemHostAlloc failed: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"]);
    assert!(!ended.stderr.contains("on the GPU"), "{}", ended.stderr);
}

/// A step of lenet in 32 x 32 pixels on a GPU with this much memory.
fn bench_with_memory(mebibytes: u64, batch: usize) -> Option<Ended> {
    let mut command = program();
    command.env_remove("CUDA_VISIBLE_DEVICES").env("ENMASSE_CUDA_LIBRARIES", enmasse_emulation::folder()?);
    command.env("EMULATED_GPU_MIB", mebibytes.to_string());
    let bench = ["bench", "step", "--devices", "gpu:1", "--model", "lenet", "--size", "32", "--steps", "1", "--batch"];
    Some(finish(command.args(bench).arg(batch.to_string())))
}

/// A run keeps its engines in algorithms.txt. Another run on the GPU takes them from the user's cache, and measures nothing.
#[test]
fn engines_are_measured_once() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let cache = folder.path().join("cache");
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let go = |run: &Path, others: &[&str]| {
        let own = ["--model", "lenet", "--size", "16", "--tune", "--precision", "bf16", "--devices", "gpu:1"];
        let mut command = program();
        command
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("ENMASSE_CUDA_LIBRARIES", emulation)
            .env("ENMASSE_CACHE", &cache);
        finish(command.args(arguments(&data, run, &[&own[..], others].concat())))
    };
    let tuned = |ended: Ended| {
        let lines = ended.well().stderr;
        lines.lines().find_map(|line| Some(line.strip_prefix("tuned:    ")?.to_owned())).unwrap()
    };
    let chosen = |run: &Path| std::fs::read_to_string(run.join("algorithms.txt")).unwrap();
    let line = tuned(go(&first, &["--epochs", "1"]));
    let (measured, rest) = line.split_once(" operations measured in ").unwrap();
    assert!(measured.parse::<usize>().unwrap() > 0 && rest.contains(" s; another algorithm than untuned: "), "{line}");
    let reused = format!("{measured} choices reused; 0 operations measured in ");
    assert!(tuned(go(&second, &["--epochs", "1"])).starts_with(&reused));
    assert_eq!(chosen(&first), chosen(&second));
    // A resumed run takes its own, also where the cache is gone.
    std::fs::remove_dir_all(&cache).unwrap();
    assert!(tuned(go(&first, &["--epochs", "2", "--resume"])).starts_with(&reused));
    // An engine of another GPU is refused by the layer's name.
    let path = first.join("algorithms.txt");
    std::fs::write(&path, chosen(&first).replace("eng", "eng7")).unwrap();
    let refused = go(&first, &["--epochs", "3", "--resume"]);
    failed(&refused, 1, &["layer ", ": the engine eng7", "chosen on another GPU", "continue with --no-tune"]);
    // So is any engine on a CPU.
    std::fs::write(&path, chosen(&second)).unwrap();
    let refused = go(&first, &["--epochs", "3", "--resume", "--devices", "cpu:1"]);
    failed(&refused, 1, &["the cpu has no algorithm \"eng", "continues with --no-tune"]);
    go(&first, &["--epochs", "3", "--resume", "--devices", "cpu:1", "--tune=false"]).well();
}

#[test]
fn a_roofline_needs_no_gpu() {
    let print = |others: &[&str]| enmasse(&[&["plan", "print", "--model", "lenet", "--roofline"], others].concat());
    let found = print(&["a100", "--batch", "8", "--precision", "bf16"]).well().stdout;
    for part in ["conv2d conv1\n", "  update\n", "roofline of the step on an a100 with 2039 GB/s: at least "] {
        assert!(found.contains(part), "{found}");
    }
    assert!(!print(&["a100", "--eval"]).well().stdout.contains("update"));
    refused(&print(&["t4", "--precision", "bf16"]), 1, &["t4 has no bf16: use --precision f16 or f32"]);
    refused(&print(&["h200", "--accumulate", "2"]), 1, &["a roofline is that of one shard"]);
    refused(&print(&["h200", "--devices", "cpu:1"]), 2, &["'--roofline <DEVICE>' cannot be used with '--devices"]);
}

/// Programs of tests beside the program itself, as `scripts/gpu-check pack` arranges them, and a peer.
#[test]
fn gpu_check_has_a_deadline_for_each_step_and_ends_with_a_report() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [script, out] = ["gpu-check", "out"].map(|name| folder.path().join(name));
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/gpu-check"), &script).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_enmasse"), folder.path().join("enmasse")).unwrap();
    let shell = |name: &str, line: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let check = |tests: &str, peer: &str, minutes: &str, code: i32, expected: &[&str]| {
        ["suite", "growth", "enmasse_cuda"].iter().for_each(|name| drop(shell(name, tests)));
        let mut command = Command::new("python3");
        plain_environment(&mut command);
        command
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("ENMASSE_CUDA_LIBRARIES", emulation)
            .arg(&script)
            .arg("run")
            .arg(&out);
        let ended = finish(command.args(["--small", "--peer", peer, "--minutes", minutes]));
        let report = std::fs::read_to_string(out.join("gpu.md")).unwrap();
        assert_eq!(ended.code, Some(code), "{ended:?}\n{report}");
        for part in expected {
            assert!(report.contains(part), "{part}\n{report}");
        }
    };
    let passes = "echo 'test result: ok. 3 passed; 0 failed'";
    let figures = shell("figures", r#"echo '{"images_per_second": 100.0, "kernels": [["sm90_xmma_fprop", 1.5]]}'"#);
    // Programs that end only if they are ended.
    let endless = shell("endless", "exec tail -f /dev/null");
    let late = [
        "**doctor: not in time, after 0 s**",
        "**PyTorch, eager: not in time",
        "Without a result: Libraries and GPU, ",
    ];
    check("exec tail -f /dev/null", &endless, "0", 1, &late);
    let refused =
        ["- whole steps against f64: failed", "**PyTorch, eager: no word**", "| lenet, 32², batch 8, f32, tuned | "];
    check("echo 'test a ... FAILED'; exit 1", "/bin/false", "20", 1, &refused);
    let rows = [
        "- NCCL within a graph: 3 pass",
        "| lenet, 32², batch 8, f16 | ",
        "| lenet, 32², batch 8, f32, untuned | ",
        "| lenet, 32², batch 8, f32, default | 100 | ",
        "| 1.500 |",
        "All steps have results.",
    ];
    check(passes, &figures, "20", 0, &rows);
}

/// Each block of the document is a command and lines of what it prints, in their order.
#[test]
fn documented_rooflines() {
    let text = include_str!("../../../../../docs/roofline.md");
    for block in text.split("```").skip(1).step_by(2) {
        let mut lines = block.lines().skip(1);
        let command = lines.next().unwrap().strip_prefix("$ enmasse ").unwrap();
        let printed = enmasse(&command.split(' ').collect::<Vec<_>>()).well().stdout;
        let mut rest = printed.lines();
        lines.for_each(|line| assert!(rest.any(|printed| printed == line), "{command}: {line}\n{printed}"));
    }
}
