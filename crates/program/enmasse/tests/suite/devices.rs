//! Kinds of devices and shards in the whole program: the f64 reference trains a LeNet, and `--shards` fixes the bits.

use crate::common::runs::{arguments, tensors};
use crate::common::{assert_whole, enmasse, images, refused};
use serde_json::Value;

#[test]
fn the_reference_device_trains_evaluates_predicts_prints_and_is_timed() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let devices = ["--devices", "reference:2"];
    let lenet = ["--model", "lenet", "--size", "16"];
    let fixed = [&lenet[..], &["--epochs", "1", "--batch", "4"], &devices].concat();
    let arguments: Vec<String> = [
        vec!["train".to_owned(), data.display().to_string()],
        fixed.iter().map(|word| word.to_string()).collect(),
        vec!["--json".into(), "--out".into(), run.display().to_string()],
    ]
    .concat();
    let trained = enmasse(&arguments).well();
    assert_eq!(trained.json()[0]["world_size"], 2);
    assert_whole(&run);
    let (data, run) = (data.display().to_string(), run.display().to_string());
    let evaluated = enmasse(&["eval", &run, &data, "--devices", "reference:2", "--json"]).well();
    assert_eq!(evaluated.json()[0]["samples"], 3);
    let image = std::fs::read_dir(&data).unwrap().flatten().find_map(|class| {
        let mut images = std::fs::read_dir(class.path()).ok()?.flatten();
        images.next().map(|image| image.path().display().to_string())
    });
    let predicted = enmasse(&["predict", &run, &image.unwrap(), "--devices", "reference"]).well();
    assert!(predicted.stdout.contains('%'), "{}", predicted.stdout);
    let printed = enmasse(&[&["plan", "print"], &lenet[..], &devices].concat()).well();
    assert!(printed.stdout.contains("shards 2") && printed.stdout.contains("memory of a rank:"), "{}", printed.stdout);
    let timed = [&["bench", "step", "--batch", "2", "--steps", "1", "--json"], &lenet[..], &["--devices", "reference"]];
    let timed = enmasse(&timed.concat()).well();
    assert!(timed.json()[0]["images_per_second"].as_f64().unwrap() > 0.0);
    assert!(timed.json()[0]["share_of_peak"].is_null());
}

/// Figures of the machine are in the last line, and shares of them in profiles.
#[test]
fn the_roofline_of_this_machine() {
    let lenet = ["--model", "lenet", "--size", "32", "--batch", "4", "--threads", "1"];
    let print = |others: &[&str]| enmasse(&[&["plan", "print", "--roofline", "cpu"], &lenet[..], others].concat());
    let found = print(&["--precision", "bf16"]).well().stdout;
    for part in
        ["conv2d direct conv1\n", "  update\n", "the step moves ", " GFLOP/s in f32", " images/s; what caches save"]
    {
        assert!(found.contains(part), "{found}");
    }
    assert!(!print(&["--eval"]).well().stdout.contains("update"));
    refused(&print(&["--precision", "f16"]), 1, &["the cpu has no f16: use --precision bf16 or f32"]);
    refused(&print(&["--accumulate", "2"]), 1, &["a roofline is that of one shard"]);
    let profile = |others: &[&str]| {
        let step = ["bench", "step", "--steps", "1", "--profile", "--json", "--devices", "cpu:1"];
        let found = enmasse(&[&step[..], &lenet, others].concat()).well().json();
        found[0]["profile"][0]["percent_of_roofline"].clone()
    };
    assert!(profile(&[]).as_f64().is_some_and(|share| share > 0.0));
    assert!(profile(&["--accumulate", "2"]).is_null());
}

#[test]
fn unsupported_requests_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let check = |others: &[&str], expected: &str| {
        let ended = enmasse(&arguments(&data, &run, others));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with(expected) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
        assert!(!run.exists());
    };
    check(
        &["--devices", "tpu:1"],
        "error: --devices tpu:1: this build has no device of kind tpu; it has cpu, gpu and ",
    );
    check(&["--devices", "cpu:0,1"], "error: cores have no numbers here: use cpu:N");
    check(&["--devices", "reference:2", "--exact"], "error: --exact: the reference device has no other algorithms");
    check(&["--devices", "cpu:2", "--shards", "1"], "error: --shards 1: 1 shards cannot be divided among 2 ranks");
    check(&["--shards", "4", "--accumulate", "2"], "error: --accumulate 2: --shards already sets the number of shards");
}

#[test]
fn shards_fix_the_weights_on_any_number_of_processes() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = |devices: &str, others: &[&str]| {
        let out = folder.path().join(format!("{devices}{}", others.join("")));
        let fixed = "--model mobilenet_v2 --size 64 --lr 0.001 --epochs 1 --max-steps 2 --devices".split(' ');
        let fixed: Vec<&str> = fixed.chain([devices]).collect();
        enmasse(&arguments(&data, &out, &[&fixed, others].concat())).well();
        tensors(&out, "last.safetensors")
    };
    let all = &["cpu:2", "cpu:3", "cpu:4"][..];
    let of_synchronised = if test_support::time() { all } else { &["cpu:3"] };
    let cases = [(&["--shards", "4"][..], all), (&["--shards", "4", "--sync-bn"], of_synchronised)];
    for (others, worlds) in cases {
        let alone = run("cpu:1", others);
        for devices in worlds {
            assert!(run(devices, others) == alone, "{devices} {others:?}");
        }
    }
    // Two ranks with two accumulated shards each are four shards.
    assert!(run("cpu:2", &["--accumulate", "2"]) == run("cpu:1", &["--accumulate", "4"]));
}

/// Ranks of one machine sum through shared memory and over TCP, and each size has a line.
#[test]
fn sums_over_both_transports() {
    let command = ["bench", "allreduce", "--ranks", "3", "--bytes", "4096,1048580"];
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("sums.svg");
    let others = ["--algorithms", "tree,ring,halving-doubling", "--svg", chart.to_str().unwrap(), "--json"];
    let found = enmasse(&[&command[..], &others].concat()).well().json();
    let (barriers, found): (Vec<_>, Vec<_>) = found.iter().partition(|row| row["operation"] == "barrier");
    let waited: Vec<_> = barriers.iter().map(|row| row["transport"].as_str().unwrap()).collect();
    assert!(waited.starts_with(&["shared", "tcp"]) && waited[2..].iter().all(|over| *over == "mpi"), "{waited:?}");
    assert!(barriers.iter().all(|row| row["bytes"] == 0 && row["min_us"].as_f64().unwrap() > 0.0), "{barriers:?}");
    let (found, beside): (Vec<_>, Vec<_>) = found.into_iter().partition(|row| !row["model"].is_null());
    let named = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        (text("transport"), text("algorithm"), row["bytes"].as_u64().unwrap())
    };
    let rows: Vec<_> = found.iter().map(|row| named(row)).collect();
    let expected = ["shared", "tcp"].map(|over| {
        ["tree", "ring", "halving-doubling"]
            .map(|algorithm| [4096, 1_048_580].map(|bytes| (over.to_owned(), algorithm.to_owned(), bytes)))
    });
    assert_eq!(rows, expected.as_flattened().as_flattened());
    // Where there is an mpirun, its library's own sums.
    assert!(beside.iter().all(|row| row["transport"] == "mpi" && row["sent"].is_null()), "{beside:?}");
    assert!(std::fs::read_to_string(&chart).unwrap().contains(">halving-doubling<"));
    for row in &found {
        // All ranks together receive what each needs of the two others, and over TCP tags and headers.
        let bytes = row["bytes"].as_u64().unwrap();
        let received = row["received"].as_u64().unwrap();
        assert!(bytes <= received && received < 3 * bytes + 1000, "{row}");
        let figure = |key: &str| row[key].as_f64().unwrap();
        assert!(figure("ranks") == 3.0 && figure("calls") >= 5.0, "{row}");
        assert!(0.0 < figure("min_us") && figure("min_us") <= figure("median_us"), "{row}");
        assert!((figure("busbw") / figure("algbw") - 4.0 / 3.0).abs() < 1e-9, "{row}");
    }
    let table = enmasse(&command).well().stdout;
    let firsts: Vec<_> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(firsts[..3], ["3", "algorithm", "shared"], "{table}");
    assert_eq!(
        ["shared", "tcp"].map(|over| firsts.iter().filter(|first| **first == over).count()),
        [11, 11],
        "{table}"
    );
    refused(&enmasse(&["bench", "allreduce", "--ranks", "1"]), 2, &["--ranks 1: a sum needs at least 2"]);
    refused(
        &enmasse(&["bench", "allreduce", "--bytes", "4096,5"]),
        2,
        &["'5' for '--bytes <BYTES,...>': must be a multiple of 4"],
    );
}
