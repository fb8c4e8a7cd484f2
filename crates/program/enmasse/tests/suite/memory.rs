//! The memory that a run states before its first step: near its peak, and compared with what is free.

use std::path::Path;
use std::process::Command;

use crate::common::{enmasse, finish, images, plain_environment};
use serde_json::Value;

const MIB: f64 = 1024.0 * 1024.0;
/// A share of what is said, and what any run may take besides.
const ALLOWED: (f64, f64) = (0.1, 16.0 * MIB);

/// Runs an epoch with validation and checkpoints, and compares.
#[track_caller]
fn check(data: &Path, run: &Path, words: &str) {
    let (data, run) = (data.display().to_string(), run.display().to_string());
    let fixed = ["train", &data, "--json", "--batch", "8", "--out", &run];
    let words: Vec<&str> = fixed.into_iter().chain(words.split(' ')).collect();
    let ended = enmasse(&words).well();
    let events: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str, field: &str| {
        let event = events.iter().find(|line| line["event"] == event).unwrap_or_else(|| panic!("{}", ended.stdout));
        event[field].as_f64().unwrap()
    };
    let parts: f64 = events[0]["memory"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
    assert_eq!(parts, of("start", "memory_bytes"));
    let said = of("start", "memory_bytes") * of("start", "world_size");
    let peak = of("done", "peak_rss_bytes");
    let off = (peak - said).abs();
    let (said, peak) = (said / MIB, peak / MIB);
    assert!(
        off <= (said * MIB * ALLOWED.0).max(ALLOWED.1),
        "{}: said {said:.1} MiB, peak {peak:.1} MiB",
        words.join(" ")
    );
}

#[test]
fn stated_memory_is_the_peak() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12);
    let mut cases = vec![
        "--model resnet18 --size 96 --devices cpu:1 --precision bf16 --accumulate 2",
        "--model resnet18 --size 64 --devices cpu:2 --keep 1",
        "--model mlp --size 16 --devices cpu:1",
    ];
    if test_support::time() {
        cases.extend([
            "--model resnet34 --size 64 --devices cpu:1 --loader-threads 3",
            "--model resnet18 --size 96 --devices cpu:1 --optimizer adamw --ema 0.9 --export-every 1",
            "--model mobilenet_v2 --size 96 --devices cpu:1 --freeze-layers",
        ]);
    }
    for (number, words) in cases.into_iter().enumerate() {
        check(&data, &folder.path().join(number.to_string()), &format!("{words} --epochs 1"));
    }
    // A run that resumes.
    let run = folder.path().join("1");
    check(&data, &run, "--model resnet18 --size 64 --devices cpu:2 --keep 1 --epochs 2 --resume");
}

#[test]
fn a_run_that_does_not_fit_ends_before_its_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 130);
    let run = folder.path().join("run").display().to_string();
    let data = data.display().to_string();
    let check = |words: &str, who: &str| {
        let ended = enmasse(&["train", &data, "--out", &run].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        let error = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default().to_owned();
        assert!(error.contains(who) && error.contains(" GiB are free ("), "{}", ended.stderr);
        assert!(!Path::new(&run).exists());
        error
    };
    // Hundreds of GiB: a sample takes more than 1 GiB.
    let many = "--model resnet152 --size 640 --batch 150";
    for (ranks, who) in [
        ("--devices cpu:1", "the run needs "),
        ("--devices cpu:2 --ranks thread", "2 ranks of a machine need "),
        ("--devices cpu:2", "2 ranks of a machine need "),
    ] {
        let error = check(&format!("{many} {ranks}"), who);
        let batch = error.split("use --batch ").nth(1).and_then(|number| number.parse::<usize>().ok());
        assert!(batch.is_some_and(|batch| (1..150).contains(&batch)), "{error}");
    }
    // The weights alone.
    let error = check("--model mlp --size 8192 --batch 8 --devices cpu:1", "the run needs ");
    assert!(error.ends_with("even --batch 1 needs more; use a smaller --size or --model"), "{error}");
}

/// Such a batch was killed, or was aborted with a backtrace, before its memory was counted. Here it cannot take the machine's memory.
#[test]
fn a_huge_batch_took_all_memory_before_it_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let line = "ulimit -v 3000000 && exec \"$0\" train \"$1\" --out \"$2\" --model lenet --size 28 --devices cpu:1 --batch \"$3\"";
    for batch in ["30000000", "1000000000"] {
        let mut command = Command::new("sh");
        plain_environment(&mut command);
        command.args(["-c", line, env!("CARGO_BIN_EXE_enmasse")]).args([&data, &run]).arg(batch);
        let ended = finish(&mut command);
        let error = ended.stderr.lines().last().unwrap_or_default();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(error.starts_with("error: the run needs ") && error.contains("use --batch "), "{}", ended.stderr);
    }
}

/// It computed 125 places for each image, at a hundredth of the rate.
#[test]
fn a_batch_larger_than_the_data_had_no_word() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let (data, run) = (data.display().to_string(), run.display().to_string());
    let line = ["train", &data, "--out", &run, "--model", "mlp", "--size", "8", "--max-steps", "1"];
    let check = |batch: &str, others: &[&str], expected: Option<&str>| {
        let ended = enmasse(&[&line[..], &["--batch", batch], others].concat()).well();
        let warnings: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("the global batch")).collect();
        assert_eq!(warnings, expected.into_iter().collect::<Vec<_>>(), "{}", ended.stderr);
        std::fs::remove_dir_all(&run).unwrap();
    };
    let line = "warning: --batch 25: the global batch of 50 is larger than the 24 images for training, and all its places are computed; use --batch 12";
    check("25", &["--devices", "cpu:2"], Some(line));
    check("12", &["--devices", "cpu:2"], None);
}
