//! Several ranks on emulated GPUs: which GPU each takes, and the same bits as on one.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::runs::{arguments, assert_same};
use crate::common::{Ended, Running, failed, finish, images, program, refused};

/// The program on a machine with this number of GPUs, of which a mask may hide some.
fn on_gpus(gpus: &str, mask: Option<&str>, arguments: &[impl AsRef<str>]) -> Option<Ended> {
    let mut command = program();
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("ENMASSE_CUDA_LIBRARIES", enmasse_emulation::folder()?)
        .env("EMULATED_GPUS", gpus);
    command.envs(mask.map(|mask| ("CUDA_VISIBLE_DEVICES", mask)));
    Some(finish(command.args(arguments.iter().map(AsRef::as_ref))))
}

/// A run of one epoch on devices of a machine with three GPUs.
fn train(data: &Path, run: &Path, mask: Option<&str>, others: &[&str]) -> Option<Ended> {
    on_gpus("3", mask, &arguments(data, run, &[&["--epochs", "1"], others].concat()))
}

/// The lines of ranks about their GPUs.
fn gpus(ended: &Ended) -> Vec<String> {
    let gpu = |line: &str| Some(line.split_once(", gpu ")?.1.split_once(", cuDNN")?.0.to_owned());
    ended.stderr.lines().filter_map(gpu).collect()
}

#[test]
fn ranks_on_gpus_give_the_bits_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let place = |name: &str| folder.path().join(name);
    let run = |name: &str, devices: &str, mask: Option<&str>| {
        let run = place(name);
        let ended = train(&data, &run, mask, &["--shards", "2", "--devices", devices])?.well();
        Some((gpus(&ended), run))
    };
    let Some((one, expected)) = run("one", "gpu:1", None) else { return };
    assert_eq!(one, ["0 (Emulated GPU 0, 0000:10:00.0"]);
    let check = |name: &str, devices: &str, mask: Option<&str>, of_ranks: [&str; 2]| {
        let (found, run) = run(name, devices, mask).unwrap();
        assert_eq!(found, of_ranks);
        assert_same(&run, &expected);
    };
    check("two", "gpu:2", None, ["0 (Emulated GPU 0, 0000:10:00.0", "1 (Emulated GPU 1, 0000:11:00.0"]);
    check("list", "gpu:2,0", None, ["2 (Emulated GPU 2, 0000:12:00.0", "0 (Emulated GPU 0, 0000:10:00.0"]);
    check("all", "gpu:all", Some("2,1"), ["0 (Emulated GPU 2, 0000:12:00.0", "1 (Emulated GPU 1, 0000:11:00.0"]);
}

#[test]
fn epochs_say_how_full_and_how_busy_each_gpu_is() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let Some(libraries) = enmasse_emulation::folder() else { return };
    let mut command = program();
    command.env_remove("CUDA_VISIBLE_DEVICES").env("ENMASSE_CUDA_LIBRARIES", libraries);
    command.env("EMULATED_GPUS", "2").env("EMULATED_UTILIZATION", "37");
    finish(command.args(arguments(&data, &run, &["--epochs", "1", "--devices", "gpu:2"]))).well();
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let epoch: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let ranks = &epoch["ranks"];
    assert_eq!(ranks["device_utilization"], serde_json::json!([0.37, 0.37]), "{ranks}");
    let numbers = |name: &str| -> Vec<f64> {
        ranks[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    for name in ["device_bytes", "resident_bytes"] {
        let bytes = numbers(name);
        assert!(bytes.len() == 2 && bytes.iter().all(|bytes| *bytes > f64::from(1 << 20)), "{name}: {ranks}");
    }
    let all = epoch["images_per_second"].as_f64().unwrap();
    assert_eq!(numbers("images_per_second"), [all / 2.0; 2]);
    assert_eq!(numbers("data_wait").into_iter().fold(0.0, f64::max), epoch["data_wait"].as_f64().unwrap());
}

#[test]
fn with_dp_the_first_gpu_updates_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let place = |name: &str| folder.path().join(name);
    for devices in ["gpu:2", "gpu:2,0"] {
        let run = |strategy: &str| {
            let others = ["--devices", devices, "--strategy", strategy, "--check-ranks"];
            train(&data, &place(&format!("{devices} {strategy}")), None, &others)
        };
        let [Some(ddp), Some(dp)] = ["ddp", "dp"].map(run) else { return };
        assert_eq!(gpus(&dp.well()), gpus(&ddp.well()));
        assert_same(&place(&format!("{devices} dp")), &place(&format!("{devices} ddp")));
    }
    for others in [["--sum", "tree"], ["--reduce-precision", "bf16"]] {
        let go = [&["--devices", "gpu:2", "--strategy", "dp"], &others[..]].concat();
        refused(&train(&data, &place("refused"), None, &go).unwrap(), 2, &[&others.join(" "), "needs --strategy ddp"]);
    }
}

#[test]
fn two_ranks_on_one_gpu_by_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let launch = ["launch", "--nproc-per-node", "2", env!("CARGO_BIN_EXE_enmasse")].map(str::to_owned);
    let go = |others: &[&str]| {
        let train = arguments(&data, &run, &[&["--epochs", "1", "--devices", "gpu:1"], others].concat());
        on_gpus("2", Some("1"), &[&launch[..], &train].concat())
    };
    let Some(mistake) = go(&[]) else { return };
    let both = "ranks 0 and 1 would both compute on Emulated GPU 1 at 0000:11:00.0";
    assert_eq!(mistake.code, Some(1));
    assert!([both, "--share-devices"].iter().all(|part| mistake.stderr.contains(part)), "{}", mistake.stderr);
    assert!(!run.exists());
    assert_eq!(gpus(&go(&["--share-devices"]).unwrap().well()), ["0 (Emulated GPU 1, 0000:11:00.0"; 2]);
}

#[test]
fn gpus_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let check = |mask: Option<&str>, devices: &str, expected: &str| {
        let Some(ended) = train(&data, &run, mask, &["--devices", devices]) else { return };
        refused(&ended, 2, &[&format!("--devices {devices}: {expected}")]);
        assert!(!run.exists());
    };
    check(None, "gpu:4", "there is no number 3: this machine has 3 visible GPUs; check CUDA_VISIBLE_DEVICES");
    check(Some("1,2"), "gpu:0,2", "there is no number 2: this machine has 2 visible GPUs");
}

/// The same on a machine where another process computes on GPU 0, and GPU 1 is too hot, in an environment.
fn train_beside_others(data: &Path, run: &Path, environment: &[(&str, &str)], others: &[&str]) -> Option<Ended> {
    let mut command = program();
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("ENMASSE_CUDA_LIBRARIES", enmasse_emulation::folder()?)
        .env("EMULATED_GPUS", "3");
    // The first process of the machine is nobody's rank.
    command.env("EMULATED_BUSY", "0:1:8589934592").env("EMULATED_SLOW", "1:0x44");
    command.envs(environment.iter().copied());
    Some(finish(command.args(arguments(data, run, &[&["--epochs", "2"], others].concat()))))
}

#[test]
fn idle_gpus_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let go = |environment: &[(&str, &str)], devices: &str| {
        train_beside_others(&data, &run, environment, &["--devices", devices])
    };
    let Some(two) = go(&[], "gpu:free:2") else { return };
    assert_eq!(gpus(&two.well()), ["1 (Emulated GPU 1, 0000:11:00.0", "2 (Emulated GPU 2, 0000:12:00.0"]);
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    // A resumed run takes the same ones.
    assert!(config.contains("devices = \"gpu:1,2\""), "{config}");
    std::fs::remove_dir_all(&run).unwrap();
    let three = go(&[], "gpu:free:3").unwrap();
    let why = "--devices gpu:free:3: programs compute on all but 2 of the 3 visible; wait for them, or set fewer";
    refused(&three, 2, &[why]);
    let first = ("CUDA_VISIBLE_DEVICES", "0");
    refused(&go(&[first], "gpu:free:1").unwrap(), 2, &["programs compute on all but 0 of the 1 visible"]);
    refused(&go(&[], "cpu:free:1").unwrap(), 2, &["which devices of kind cpu are idle is not known here"]);
    assert!(!run.exists());
}

/// Any error of the driver read as an empty list of processes, and thus as an idle GPU.
#[test]
fn a_gpu_is_not_idle_when_the_driver_does_not_list_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let check = |setting: &str, value: &str, expected: &str| {
        let environment = [("CUDA_VISIBLE_DEVICES", "0"), (setting, value)];
        let go = train_beside_others(&data, &run, &environment, &["--devices", "gpu:free:1"]);
        if let Some(ended) = go {
            refused(&ended, 2, &[expected]);
            assert!(!run.exists());
        }
    };
    check("EMULATED_BUSY_COUNT", "64", "programs compute on all but 0 of the 1 visible");
    check("EMULATED_BUSY_COUNT", "65", "programs compute on all but 0 of the 1 visible");
    // NVML_ERROR_NO_PERMISSION.
    check("EMULATED_NVML_ERROR", "4", "which devices of kind gpu are idle is not known here; name them");
}

#[test]
fn gpus_that_are_shared_or_hot_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let place = |name: &str| folder.path().join(name);
    let check = |name: &str, environment: &[(&str, &str)], devices: &str, expected: &[&str]| {
        let go = train_beside_others(&data, &place(name), environment, &["--devices", devices]);
        let Some(ended) = go else { return };
        let ended = ended.well();
        let warnings: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.contains(expected), "{warning}");
        }
    };
    let hot = "slowed down: it is too hot; check its cooling";
    check("idle", &[("CUDA_VISIBLE_DEVICES", "2")], "gpu:1", &[]);
    check("hot", &[("CUDA_VISIBLE_DEVICES", "1")], "gpu:1", &[&format!("warning: gpu 0 is {hot}")]);
    let shared = "warning: rank 0: gpu 0 is shared with ";
    check("two", &[], "gpu:2", &[shared, &format!("warning: rank 1: gpu 1 is {hot}")]);
    check("shared", &[], "gpu:1", &[" (pid 1) with 8192 MiB; both are slower"]);
    // A job that was started from the shell that starts this one.
    let sibling = Running::start(Command::new("tail").args(["-f", "/dev/null"]));
    let busy = format!("0:{}:8589934592", sibling.pid());
    let named = format!("warning: gpu 0 is shared with tail (pid {}) with 8192 MiB; both are slower", sibling.pid());
    check("sibling", &[("EMULATED_BUSY", &busy)], "gpu:1", &[&named]);
    let crowded = "warning: gpu 0 is shared with more than 64 processes; both are slower";
    check("crowded", &[("EMULATED_BUSY_COUNT", "65")], "gpu:1", &[crowded]);
}

/// A run on two of three GPUs, in an environment.
fn two(data: &Path, run: &Path, libraries: &Path, environment: &[(&str, &str)], others: &[&str]) -> Ended {
    let mut command = program();
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("ENMASSE_CUDA_LIBRARIES", libraries)
        .env("EMULATED_GPUS", "3")
        .envs(environment.iter().copied());
    let fixed = ["--epochs", "1", "--shards", "2", "--devices", "gpu:2"];
    finish(command.args(arguments(data, run, &[&fixed[..], others].concat())))
}

#[test]
fn gradients_go_by_nccl_or_by_way_of_the_hosts_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let place = |name: &str| folder.path().join(name);
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let run = |name: &str, libraries: &Path, environment: &[(&str, &str)], line: &str| {
        let ended = two(&data, &place(name), libraries, environment, &[]).well();
        assert_eq!(ended.stderr.lines().filter(|found| found.starts_with(line)).count(), 1, "{}", ended.stderr);
        assert_same(&place(name), &place("nccl"));
    };
    run("nccl", emulation, &[], "gradients go by NCCL 2.27.3, and are summed in its order");
    let narrow = ["--reduce-precision", "bf16"];
    let ended = two(&data, &place("bf16"), emulation, &[], &narrow).well();
    assert!(ended.stderr.contains("gradients go by NCCL 2.27.3 in bf16, and are summed"), "{}", ended.stderr);
    // Libraries of which NCCL is left out, or is another one.
    let without = |name: &str, nccl: Option<&str>| {
        let libraries = place(name);
        std::fs::create_dir(&libraries).unwrap();
        for entry in std::fs::read_dir(emulation).unwrap().map(|entry| entry.unwrap().path()) {
            let file = entry.file_name().unwrap().to_str().unwrap();
            let target =
                if file == "libnccl.so.2" { nccl.map(|other| emulation.join(other)) } else { Some(entry.clone()) };
            target.map_or(Ok(()), |target| std::os::unix::fs::symlink(target, libraries.join(file))).unwrap();
        }
        libraries
    };
    let host = "gradients go by way of the hosts, not by NCCL: on rank 0, NCCL";
    run("missing", &without("no NCCL", None), &[], &format!("{host} is missing: no libnccl.so.2 in "));
    let refused = two(&data, &place("refused"), &place("no NCCL"), &[], &narrow);
    failed(&refused, 1, &["--reduce-precision bf16 needs NCCL: on rank 0, NCCL is missing"]);
    let path = place("another").join("libnccl.so.2");
    let expected = format!("{host} ({}) has no function ncclGetVersion: its version is too old", path.display());
    run("lacking", &without("another", Some("libcublasLt.so.12")), &[], &expected);
    let path = emulation.join("libnccl.so.2");
    let expected =
        format!("{host} ({}) has version 2.17.1, which is older than 2.19; PyPI's nvidia-nccl-cu12", path.display());
    run("old", emulation, &[("EMULATED_NCCL", "21701")], &expected);
}

#[test]
fn errors_of_nccl_are_causes_of_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let check = |environment: (&str, &str), others: &[&str], expected: &str| {
        let ended = two(&data, &run, emulation, &[environment], others);
        failed(&ended, 1, &[expected]);
        let record = std::fs::read_to_string(run.join("logs/failure.json")).unwrap_or_default();
        assert!(record.is_empty() || record.contains(expected.split(':').next_back().unwrap()), "{record}");
        let _ = std::fs::remove_dir_all(&run);
    };
    let internal = "NCCL: ncclCommGetAsyncError failed: internal error";
    check(("EMULATED_NCCL_FAILURE", "1 4 3"), &[], internal);
    let remote = "NCCL: ncclCommGetAsyncError failed: remote process exited or there was a network error";
    check(("EMULATED_NCCL_FAILURE", "0 1 6"), &[], remote);
    check(("EMULATED_NCCL_ABSENT", "1"), &["--timeout", "1"], "ncclCommInitRankConfig");
}

/// The rank dies in the sum of a step that the other one has joined, after the steps became graphs.
#[test]
fn a_rank_that_is_killed_within_a_sum_by_nccl_is_named_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let place = |name: &str| folder.path().join(name);
    let Some(emulation) = enmasse_emulation::folder() else { return };
    for (victim, other) in [(1, 0), (0, 1)] {
        let run = place(&format!("killed {victim}"));
        let failure = format!("{victim} 4 -9");
        let began = Instant::now();
        let failure = [("EMULATED_NCCL_FAILURE", failure.as_str())];
        let ended = two(&data, &run, emulation, &failure, &["--log-ranks"]);
        // Far below the time in which ranks wait for each other.
        assert!(began.elapsed() < Duration::from_secs(300), "it took {:?}", began.elapsed());
        let story = ended.stderr.lines().find(|line| line.starts_with(&format!("error: rank {victim} (process ")));
        assert!(ended.code == Some(1) && story.is_some_and(|story| story.contains("signal 9")), "{ended:?}");
        let log = std::fs::read_to_string(run.join(format!("logs/rank-{other}.log"))).unwrap();
        assert!(log.contains(&format!("rank {victim} ")), "{log}");
        let record = std::fs::read_to_string(run.join("logs/failure.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        assert_eq!(record["rank"], victim, "{record}");
    }
}

#[test]
fn lines_of_nccl_are_in_a_file_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let Some(emulation) = enmasse_emulation::folder() else { return };
    two(&data, &run, emulation, &[("NCCL_DEBUG", "INFO")], &[]).well().json();
    let logs = std::fs::read_dir(run.join("logs")).unwrap().map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("nccl-"));
    let lines: Vec<String> = logs.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("NCCL INFO a world of 2 ranks")), "{lines:?}");
}

#[test]
fn the_tree_of_shards_by_nccl_gives_the_bits_of_one_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let place = |name: &str| folder.path().join(name);
    let run = |name: &str, others: &[&str]| train(&data, &place(name), None, &[&["--shards", "3"], others].concat());
    let Some(alone) = run("one", &["--devices", "gpu:1"]) else { return };
    alone.well();
    let three = run("three", &["--devices", "gpu:3", "--sum", "tree"]).unwrap().well();
    assert!(three.stderr.contains("to every rank, which sums them in the fixed tree"), "{}", three.stderr);
    assert_same(&place("three"), &place("one"));
}

#[test]
fn the_plan_of_two_gpus_has_the_collectives() {
    let print = |others: &[&str]| {
        let plan = ["plan", "print", "--model", "lenet", "--size", "32", "--batch", "2", "--devices", "gpu:2"];
        Some(on_gpus("2", None, &[&plan[..], others].concat())?.well().stdout)
    };
    let check = |others: &[&str], mentions: &[&str]| {
        let Some(printed) = print(others) else { return };
        assert!(mentions.iter().all(|mention| printed.contains(mention)), "{printed}");
    };
    let allowance = "libraries       960.0 MiB, an allowance";
    check(&[], &["one graph in one stream", "beside: ncclAllReduce f32 (gradients", "wait for event", allowance]);
    check(&["--strategy", "dp"], &["beside: ncclReduce (gradients", "beside: ncclBroadcast (parameters"]);
    check(&["--sum", "tree"], &["beside: ncclAllGather (gradients", "beside: add_f32"]);
    check(&["--reduce-precision", "bf16"], &["beside: cast_f32_to_bf16", "beside: ncclAllReduce bf16 (collectives"]);
}
