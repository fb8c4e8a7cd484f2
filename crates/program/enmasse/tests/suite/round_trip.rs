//! Train, evaluate, predict: the contract that scripts rely on, field by field.

use std::fs;
use std::path::Path;

use crate::common::{Ended, assert_whole, enmasse, files, finish, images, metrics, program, strip_metadata};
use enmasse_train::Checkpoint;
use serde_json::Value;

/// The arguments of a short run, then others.
fn train(data: &Path, run: &Path, others: &[&str]) -> Ended {
    let (data, run) = (data.display().to_string(), run.display().to_string());
    let fixed = ["train", &data, "--model", "mlp", "--size", "12", "--epochs", "2", "--batch", "4", "--out", &run];
    enmasse(&[&fixed[..], others].concat())
}

#[track_caller]
fn keys(object: &Value) -> Vec<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn train_eval_predict() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 15);
    let run = folder.path().join("run");
    let data_text = data.display().to_string();
    let run_text = run.display().to_string();
    let trained = train(&data, &run, &["--devices", "cpu:1", "--lr", "0.02", "--json"]).well();

    let lines = trained.json();
    let [first, second, done] = lines.as_slice() else { panic!("{lines:?}") };
    for (number, epoch) in [first, second].into_iter().enumerate() {
        let expected = [
            "event",
            "epoch",
            "train_loss",
            "train_accuracy",
            "val_loss",
            "val_accuracy",
            "balanced_accuracy",
            "val_macro_f1",
            "learning_rate",
            "images_per_second",
            "data_wait",
            "rank_wait",
            "seconds",
            "world_size",
            "ranks",
        ];
        assert_eq!(keys(epoch), expected);
        assert_eq!(
            (&epoch["event"], &epoch["epoch"], &epoch["world_size"]),
            (&"epoch".into(), &number.into(), &1.into())
        );
        let accuracy = epoch["val_accuracy"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&accuracy) && (0.0..=1.0).contains(&epoch["data_wait"].as_f64().unwrap()));
        assert!(epoch["images_per_second"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(first["learning_rate"], 0.02);
    assert_eq!(keys(done), ["event", "best_val_accuracy", "seconds", "peak_rss_bytes", "run", "run_bytes"]);
    assert_eq!((&done["event"], &done["run"]), (&"done".into(), &run_text.as_str().into()));
    assert!(done["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    let bytes: u64 = crate::common::files(&run).iter().map(|path| path.metadata().unwrap().len()).sum();
    // The last line of the log comes later.
    assert!((bytes - 1000..=bytes).contains(&done["run_bytes"].as_u64().unwrap()), "{bytes}: {done}");
    assert_eq!(metrics(&run), [first.clone(), second.clone()]);
    // Text for people is on standard error.
    for fact in ["45 images found in 3 classes: 36 for training, 9 for validation", "epoch 2/2", "done in", &run_text] {
        assert!(trained.stderr.contains(fact), "{fact}: {}", trained.stderr);
    }

    assert_whole(&run);
    let indices: Value = serde_json::from_str(&fs::read_to_string(run.join("class_indices.json")).unwrap()).unwrap();
    assert_eq!(indices, serde_json::json!({"0": "dark", "1": "light", "2": "red"}));
    let configuration = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(configuration.contains("devices = \"cpu:1\"") && configuration.contains("lr = 0.02"), "{configuration}");
    assert!(crate::common::files(&run).iter().any(|path| path.to_string_lossy().contains("tfevents")));

    // The run's own validation part gives the run's own figures, at any number of ranks, whether or not DATA is named.
    let best = done["best_val_accuracy"].as_f64().unwrap();
    for arguments in [&["--split", "val", &data_text][..], &["--split", "val"], &[&data_text], &[]] {
        let evaluated =
            enmasse(&[&["eval", &run_text, "--devices", "cpu:1", "--batch", "4", "--json"], arguments].concat()).well();
        let [found] = &evaluated.json()[..] else { panic!("{evaluated:?}") };
        let expected = "event loss accuracy balanced_accuracy samples unreadable averaged part crops accuracy_interval roc_auc \
             average_precision ece brier temperature per_class macro macro_precision macro_recall macro_f1 confused";
        assert_eq!(keys(found), expected.split(' ').collect::<Vec<_>>());
        // The classes have the same number of images.
        assert!((found["balanced_accuracy"].as_f64().unwrap() - best).abs() < 1e-12);
        assert_eq!(found["part"], "val");
        assert_eq!((&found["event"], &found["accuracy"], &found["samples"]), (&"eval".into(), &best.into(), &9.into()));
        let of_best = [first, second].into_iter().find(|epoch| epoch["val_accuracy"] == best).unwrap();
        assert_eq!(found["loss"], of_best["val_loss"]);
        assert_eq!(evaluated.stderr, "");
    }
    let whole = enmasse(&["eval", &run_text, &data_text, "--split", "all", "--devices", "cpu:1", "--json"]).well();
    assert_eq!((&whole.json()[0]["samples"], &whole.json()[0]["part"]), (&45.into(), &"all".into()));
    let matrix = folder.path().join("matrix.svg").display().to_string();
    let said = enmasse(&["eval", &run_text, "--devices", "cpu:1", "--confusion", &matrix]).well().stdout;
    assert!(said.starts_with("validation part, 9 images: accuracy "), "{said}");
    let drawn = fs::read_to_string(&matrix).unwrap();
    assert!(drawn.contains("confusion matrix, validation part") && drawn.contains(" of 9 samples"), "{drawn}");

    // By several crops, the same at any number of ranks.
    let crops = |others: &[&str]| enmasse(&[&["eval", &run_text, "--batch", "4"], others].concat()).well();
    let alone = crops(&["--crops", "10", "--devices", "cpu:1", "--json"]).json();
    let two = crops(&["--crops", "10", "--devices", "cpu:2", "--json"]).json();
    assert_eq!((&alone[0]["crops"], &alone[0]["samples"]), (&10.into(), &9.into()));
    assert_ne!(alone[0]["loss"], crops(&["--devices", "cpu:1", "--json"]).json()[0]["loss"]);
    assert_eq!(alone[0]["accuracy"], two[0]["accuracy"]);
    let loss = |found: &[Value]| found[0]["loss"].as_f64().unwrap();
    assert!((loss(&alone) - loss(&two)).abs() < 1e-6, "{alone:?} {two:?}");
    let views = |devices| crops(&["--tta", "flip+shift", "--devices", devices, "--json"]).json();
    let (seen, by_two) = (views("cpu:1"), views("cpu:2"));
    assert_eq!(seen[0]["crops"], 6);
    assert!((loss(&seen) - loss(&by_two)).abs() < 1e-6 && loss(&seen) != loss(&alone), "{seen:?} {by_two:?}");
    let said = crops(&["--crops", "5", "--devices", "cpu:1"]).stdout;
    assert!(said.starts_with("validation part, 9 images, by 5 crops of each: accuracy "), "{said}");

    // In the given order, which is not the order of names.
    let images = ["red/001.jpg", "dark/000.png", "light/002.png"].map(|image| data.join(image).display().to_string());
    let predict = ["predict", &run_text, &images[0], &images[1], &images[2], "--top", "2", "--json"];
    let predictions = enmasse(&predict).well().json();
    assert_eq!(predictions.iter().map(|line| line["image"].as_str().unwrap()).collect::<Vec<_>>(), images);
    for prediction in &predictions {
        assert_eq!(keys(prediction), ["image", "top"]);
        let top = prediction["top"].as_array().unwrap();
        assert_eq!((top.len(), keys(&top[0])), (2, vec!["index", "class", "probability"]));
        let probability = |place: usize| top[place]["probability"].as_f64().unwrap();
        assert!(probability(0) >= probability(1) && probability(0) + probability(1) <= 1.0 + 1e-9);
        let index = top[0]["index"].as_u64().unwrap() as usize;
        assert_eq!(top[0]["class"], ["dark", "light", "red"][index]);
    }

    // Bare weights use the order of class names, with numbers as names.
    let checkpoint = run.join("checkpoints/best.safetensors").display().to_string();
    let weights = folder.path().join("bare.safetensors").display().to_string();
    strip_metadata(&checkpoint, &weights);
    let same = enmasse(&["eval", &checkpoint, &data_text, "--devices", "cpu:1", "--json"]);
    assert_eq!(same.well().json()[0], whole.json()[0]);
    let bare = ["eval", &weights, &data_text, "--model", "mlp", "--size", "12", "--devices", "cpu:1", "--json"];
    assert_eq!(enmasse(&bare).well().json()[0]["accuracy"], whole.json()[0]["accuracy"]);
}

#[test]
fn the_start_and_steps_are_events() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 15);
    let run = folder.path().join("run");
    let others = ["--devices", "cpu:1", "--log-every", "4", "--max-steps", "13", "--json"];
    let ended = train(&data, &run, &others).well();
    let start = |ended: &Ended| serde_json::from_str::<Value>(ended.stdout.lines().next().unwrap()).unwrap();
    let started = start(&ended);
    let expected = [
        "event",
        "model",
        "parameters",
        "trainable",
        "data",
        "classes",
        "size",
        "train_samples",
        "dropped_samples",
        "validation_samples",
        "test_samples",
        "batch",
        "global_batch",
        "world_size",
        "shards",
        "device",
        "memory_bytes",
        "memory",
        "run",
        "resumed",
    ];
    assert_eq!(keys(&started), expected);
    let facts = ["event", "model", "train_samples"].map(|key| started[key].to_string());
    assert_eq!(facts, ["\"start\"", "\"mlp\"", "36"]);
    assert_eq!((started["run"].as_str(), &started["resumed"]), (run.to_str(), &Value::Null));
    // Nine steps are an epoch.
    let lines = ended.json();
    let events: Vec<_> = lines.iter().map(|line| (line["event"].as_str().unwrap(), line["step"].as_u64())).collect();
    let steps = [4, 8, 12].map(|step| ("step", Some(step)));
    assert_eq!(events, [steps[0], steps[1], ("epoch", None), steps[2], ("epoch", None), ("done", None)]);
    assert_eq!(keys(&lines[0]), ["event", "epoch", "step", "samples", "loss", "learning_rate", "images_per_second"]);
    assert_eq!((&lines[3]["epoch"], &lines[3]["samples"]), (&1.into(), &12.into()));
    assert_eq!((&lines[2]["partial"], &lines[4]["partial"]), (&Value::Null, &true.into()));
    assert!(ended.stderr.contains("a part of the epoch, up to --max-steps"), "{}", ended.stderr);
    // A part of an epoch is no candidate for the best.
    assert_eq!(lines[5]["best_val_accuracy"], lines[2]["val_accuracy"]);
    let resumed = train(&data, &run, &["--resume", "--devices", "cpu:1", "--json"]).well();
    assert_eq!(start(&resumed)["resumed"], serde_json::json!({"epoch": 1, "samples": 16}));
}

#[test]
fn a_run_in_bf16_is_evaluated_in_bf16() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 15);
    let run = folder.path().join("run");
    let trained = train(&data, &run, &["--devices", "cpu:2", "--lr", "0.02", "--precision", "bf16-mixed", "--json"]);
    let lines = trained.well().json();
    let configuration = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(configuration.contains("precision = \"bf16\""), "{configuration}");
    let best = &lines[lines.len() - 1]["best_val_accuracy"];
    let of_best = lines.iter().find(|epoch| epoch["val_accuracy"] == *best).unwrap();
    let loss = |others: &[&str]| {
        let fixed = ["eval", &run.display().to_string(), "--split", "val", "--batch", "4", "--json"];
        enmasse(&[&fixed, others].concat()).well().json()[0]["loss"].clone()
    };
    // At any number of ranks, also in separate processes.
    for devices in ["cpu:1", "cpu:2"] {
        assert_eq!(loss(&["--devices", devices]), of_best["val_loss"], "{devices}");
        assert_ne!(loss(&["--devices", devices, "--precision", "f32"]), of_best["val_loss"], "{devices}");
    }
    let image = data.join("red/001.jpg").display().to_string();
    let probabilities = |others: &[&str]| {
        let fixed = ["predict", &run.display().to_string(), &image, "--json"];
        enmasse(&[&fixed, others].concat()).well().json()[0]["top"].clone()
    };
    assert_eq!(probabilities(&[]), probabilities(&["--precision", "bf16"]));
    assert_ne!(probabilities(&[]), probabilities(&["--precision", "f32"]));
}

#[test]
fn metrics_of_a_run_are_in_its_records_and_evaluations() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 15);
    let run = folder.path().join("run");
    let lines = train(&data, &run, &["--metrics", "top2,gradient_norm", "--epochs", "1", "--json"]).well().json();
    assert_eq!(keys(&lines[0])[15..], ["train_gradient_norm", "train_top2", "val_top2"]);
    assert_eq!(metrics(&run), lines[..1]);
    let eval = |others: &[&str]| {
        let fixed = ["eval", &run.display().to_string(), "--split", "val", "--json", "--devices", "cpu:2"];
        enmasse(&[&fixed, others].concat())
    };
    let found = eval(&[]).well().json();
    assert_eq!(found[0]["top2"], lines[0]["val_top2"]);
    assert_eq!(
        keys(&found[0]),
        "event loss accuracy balanced_accuracy samples unreadable averaged part crops top2 accuracy_interval roc_auc \
         average_precision ece brier temperature per_class macro macro_precision macro_recall macro_f1 confused"
            .split(' ')
            .collect::<Vec<_>>()
    );
    assert!(keys(&eval(&["--metrics", "top3"]).well().json()[0]).contains(&"top3"));
    let refused = eval(&["--metrics", "gradient_norm"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("--metrics gradient_norm: only training"),
        "{refused:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_losses_to_the_last_digit() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let losses = |run: &str, others: &[&str]| {
        let lines =
            train(&data, &folder.path().join(run), &[&["--devices", "cpu:1", "--json"], others].concat()).well().json();
        lines
            .iter()
            .filter(|line| line["event"] == "epoch")
            .map(|line| line["train_loss"].to_string())
            .collect::<Vec<_>>()
    };
    let first = losses("a", &[]);
    assert_eq!(losses("b", &["--threads", "2", "--loader-threads", "3"]), first);
    assert_ne!(losses("c", &["--seed", "1"]), first);
}

#[test]
fn a_run_without_arguments_makes_its_own_data_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let go = || {
        let arguments =
            ["train", "--model", "mlp", "--size", "8", "--epochs", "1", "--max-steps", "2", "--devices", "cpu:1"];
        finish(program().args(arguments).env("ENMASSE_CACHE", &cache).current_dir(folder.path())).well()
    };
    let said = go();
    assert!(said.stderr.contains("3,000 images found in 10 classes"), "{}", said.stderr);
    assert!(said.stderr.contains(" size=8 "), "{}", said.stderr);
    let made = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let images = crate::common::files(&cache);
    let times: Vec<_> = images.iter().map(|path| made(path)).collect();
    go();
    assert_eq!(images.iter().map(|path| made(path)).collect::<Vec<_>>(), times);
    // Each run has its own folder, by time and model.
    let runs: Vec<_> =
        fs::read_dir(folder.path().join("runs")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(runs.len() == 2 && runs.iter().all(|run| run.to_string_lossy().contains("-mlp")), "{runs:?}");
}

#[test]
fn bench_and_plan_give_figures() {
    for part in [&[][..], &["--eval"]] {
        let step = ["bench", "step", "--model", "mlp", "--size", "8", "--batch", "4", "--steps", "3", "--json"];
        let [found] = &enmasse(&[&step, part].concat()).well().json()[..] else { panic!("one line") };
        let times = ["images_per_second", "median_ms", "min_ms", "latency_ms", "start_ms", "first_step_ms"];
        assert_eq!(keys(found), [&times[..], &["peak_rss_bytes", "gflops", "share_of_peak", "profile"]].concat());
        let number = |key: &str| found[key].as_f64().unwrap();
        assert!(number("min_ms") > 0.0 && number("min_ms") <= number("median_ms"));
        assert!((number("images_per_second") * number("median_ms") / 4e3 - 1.0).abs() < 1e-12);
    }
    let plan = enmasse(&["plan", "print", "--model", "resnet18", "--size", "64", "--devices", "cpu:2"]).well().stdout;
    for part in [
        "plan resnet18 train: batch 32 x 64x64x3, classes 10, shards 2",
        "all_reduce_start",
        "memory of a rank: ",
        "buckets: 3 sums",
    ] {
        assert!(plan.contains(part), "{part} is not in the plan");
    }
    let check = |others: &[&str], header: &str, map: &str| {
        let fixed = ["plan", "print", "--model", "lenet", "--size", "28", "--batch", "2", "--devices", "cpu:1"];
        let plan = enmasse(&[&fixed, others].concat()).well().stdout;
        assert!(plan.lines().next().is_some_and(|line| line.ends_with(header)) && plan.contains(map), "{plan}");
    };
    check(&[], "precision f32, filters hwio", "f32[2,24,24,6] @activations");
    check(&["--precision", "bf16"], "precision bf16, filters hwio", "bf16[2,24,24,6] @activations");
    check(&["--precision", "bf16-mixed", "--eval"], "precision bf16, filters hwio", "bf16[2,24,24,6] @activations");
}

#[test]
fn bench_scaling_compares_one_device_with_several() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12);
    let svg = folder.path().join("rows.svg");
    let (data, svg) = (data.display().to_string(), svg.display().to_string());
    let lenet = ["bench", "scaling", "--model", "lenet", "--size", "32", "--batch", "2", "--steps", "2", "--json"];
    let check = |others: &[&str], expected: &[(&str, u64, bool)]| {
        let mut command = program();
        let rows = finish(command.current_dir(folder.path()).args([&lenet, others].concat())).well().json();
        let found = rows.iter().map(|row| {
            let number = |key: &str| row[key].as_f64().unwrap();
            let of_one = number("images_per_second") / rows[0]["images_per_second"].as_f64().unwrap();
            assert_eq!((number("speed_up"), number("efficiency")), (of_one, of_one / number("devices")));
            let shares = ["waiting_for_gradients", "waiting_for_data"].map(number);
            assert!(
                shares.iter().all(|share| (0.0..=1.0).contains(share)) && number("peak_memory_bytes") > 0.0,
                "{row}"
            );
            (row["strategy"].as_str().unwrap(), row["devices"].as_u64().unwrap(), row["sync_bn"].as_bool().unwrap())
        });
        assert_eq!(found.collect::<Vec<_>>(), expected);
    };
    let several = [("single", 1, false), ("dp", 2, false), ("dp", 3, false), ("ddp", 2, false), ("ddp", 3, false)];
    check(&["--devices", "cpu:3", "--svg", &svg], &several);
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains(">dp, 3 devices<") && svg.contains(">ddp, 3 devices<"));
    check(&["--devices", "reference:2", "--ranks", "thread", &data], &[several[0], several[1], several[3]]);
    let resnet = ["--model", "resnet18", "--size", "8", "--devices", "cpu:2", "--ranks", "thread"];
    check(&resnet, &[several[0], several[1], several[3], ("ddp", 2, true)]);
    // Predicted, each row twice the one before.
    let cluster = ["--devices", "cpu:1", "--simulate", "nodes=2,gpus=2,link=1Gbit,bus=1GB"];
    check(&cluster, &[several[0], several[3], ("ddp", 4, false)]);
    let pairs = [several[3], ("ddp", 2, true), ("ddp", 4, false), ("ddp", 4, true)];
    check(&[&resnet[..4], &cluster].concat(), &[&several[..1], &pairs].concat());
    assert!(!folder.path().join("runs").exists(), "its runs are its own");
}

/// The flags that say where classes are were unexpected arguments, so only class folders were timed.
#[test]
fn bench_scaling_takes_classes_from_the_names_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let named = folder.path().join("named");
    fs::create_dir(&named).unwrap();
    for path in files(&data) {
        let class = path.parent().unwrap().file_name().unwrap().display();
        fs::rename(&path, named.join(format!("{class}.{}", path.file_name().unwrap().display()))).unwrap();
    }
    let named = named.display().to_string();
    let fixed = ["bench", "scaling", "--model", "lenet", "--size", "32", "--batch", "2", "--steps", "2"];
    let others = ["--devices", "cpu:2", "--json", "--label-pattern", "{class}.{number}.*", &named];
    let rows = enmasse(&[&fixed[..], &others].concat()).well().json();
    let found: Vec<_> = rows.iter().map(|row| (row["strategy"].as_str().unwrap(), row["devices"].as_u64())).collect();
    assert_eq!(found, [("single", Some(1)), ("dp", Some(2)), ("ddp", Some(2))]);
}

#[test]
fn exported_weights_are_the_runs() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    train(&data, &run, &["--devices", "cpu:1", "--lr", "0.01"]).well();
    let best = run.join("checkpoints/best.safetensors");
    let mut expected = Checkpoint::load(&best).unwrap().tensors;
    expected.retain(|tensor| !tensor.name.starts_with("optimizer."));
    let (run, data) = (run.display().to_string(), data.display().to_string());
    let evaluate = |weights: &str| {
        let arguments = ["eval", weights, &data, "--split", "all", "--model", "mlp", "--devices", "cpu:1", "--json"];
        let size: &[&str] = if weights == run { &[] } else { &["--size", "12"] };
        enmasse(&[&arguments, size].concat()).well().json()
    };
    for format in ["pth", "safetensors"] {
        let exported = enmasse(&["export", &run, "--to", format, "--json"]).well().json();
        let file = exported[0]["file"].as_str().unwrap();
        assert_eq!(file, format!("{run}/weights/best.{format}"));
        assert_eq!(enmasse_weights::read(Path::new(file)).unwrap().tensors, expected);
        assert_eq!(keys(&exported[0]), ["event", "file", "format", "tensors", "elements", "averaged", "preprocessing"]);
        let beside = if format == "pth" { format!("{run}/weights/best.json").into() } else { Value::Null };
        assert_eq!(exported[0]["preprocessing"], beside);
        assert_eq!(exported[0]["tensors"], expected.len());
        assert_eq!(evaluate(file), evaluate(&run));
        // Only the weights, without anything specific to this program.
        let again = folder.path().join(format!("again.{format}")).display().to_string();
        let said = enmasse(&["export", file, "--to", format, "--out", &again]).well().stdout;
        assert!(said.starts_with(&format!("wrote {again}: ")), "{said}");
        assert_eq!(enmasse_weights::read(Path::new(&again)).unwrap().tensors, expected);
        let ended = enmasse(&["export", &again, "--to", format]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.contains(&again) && ended.stderr.contains("--out"), "{}", ended.stderr);
    }
    let check = |arguments: &[&str], code: i32, mention: &str| {
        let ended = enmasse(&[&["export"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
        assert!(ended.stderr.contains(mention) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    };
    check(&[&run, "--to", "torchscript"], 2, "pth, safetensors, onnx");
    check(&[&run], 2, "--to");
    check(&[&data, "--to", "pth"], 1, "not a run");
    check(&["/nowhere.pth", "--to", "safetensors"], 1, "/nowhere.pth");
    check(&[&run, "--to", "pth", "--out", "/nowhere/x.pth"], 1, "/nowhere/x.pth");
    assert_whole(Path::new(&run));
}

/// Keras' and Lightning's name, and those of others. A name that no epoch has ends the run before it begins.
#[test]
fn another_value_decides_which_epoch_is_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 15);
    let run = folder.path().join("run");
    let ended = train(&data, &run, &["--devices", "cpu:2", "--monitor", "val_loss", "--json"]).well();
    let lines = ended.json();
    let done = &lines[lines.len() - 1];
    assert_eq!(keys(done), ["event", "best_val_loss", "seconds", "peak_rss_bytes", "run", "run_bytes"]);
    let losses = lines.iter().filter_map(|line| line["val_loss"].as_f64());
    let best = losses.fold(f64::INFINITY, f64::min);
    assert_eq!(done["best_val_loss"], best);
    assert!(ended.stderr.contains(&format!("best val_loss {best:.4}; peak memory")), "{}", ended.stderr);
    let eval = ["eval", &run.display().to_string(), "--split", "val", "--batch", "4", "--json", "--devices", "cpu:1"];
    assert_eq!(enmasse(&eval).well().json()[0]["loss"], best);
    // The same again, with nothing left to do.
    let again = train(&data, &run, &["--resume", "--json"]).well().json();
    assert_eq!(again[0]["best_val_loss"], done["best_val_loss"]);
    for flag in ["--monitor", "--best-by", "--eval-metric", "--metric-for-best-model"] {
        let other = folder.path().join("other");
        let refused = train(&data, &other, &["--devices", "cpu:2", flag, "f1"]);
        let names = "train_loss, val_loss, train_accuracy, val_accuracy, balanced_accuracy, val_macro_f1";
        let message = format!("monitor f1: an epoch has no such value: use {names}");
        assert!(refused.code == Some(2) && refused.stderr.contains(&message), "{flag}: {refused:?}");
        assert!(!other.exists());
    }
}
