//! Settings: parsing, ranges, layers and their sources, as tables.

use std::ffi::OsString;
use std::path::Path;

use proptest::prelude::*;

use super::layers::is_internal;
use super::setting::VARIABLE_PREFIX;
use super::*;

fn set(name: &str, value: &str) -> Result<RunConfig, ConfigError> {
    let mut layers = LayeredConfig::new();
    layers.argument(name, value)?;
    layers.finish()
}

#[test]
fn refused_values_say_what_is_allowed() {
    let check = |name, value, expected: &str| assert_eq!(set(name, value).unwrap_err().to_string(), expected);
    check("batch", "0", "--batch 0: must be 1 or more");
    check("batch", "-1", "--batch -1: must be a whole number, 1 or more");
    check("batch", "2.5", "--batch 2.5: must be a whole number, 1 or more");
    check("batch", "", "--batch \"\": must be a whole number, 1 or more");
    check("epochs", "0", "--epochs 0: must be 1 or more");
    check("size", "0", "--size 0: must be 1 or more");
    check("lr", "nan", "--lr nan: must be a finite number, above 0");
    check("lr", "inf", "--lr inf: must be a finite number, above 0");
    check("lr", "0", "--lr 0: must be a finite number, above 0");
    check("lr", "fast", "--lr fast: must be a number, above 0");
    check("momentum", "1", "--momentum 1: must be a finite number, from 0 to below 1");
    check("weight_decay", "-0.1", "--weight-decay -0.1: must be a finite number, 0 or more");
    check("metrics", "top5,f1", "--metrics top5,f1: has no metric \"f1\": use top5, another topK, or gradient_norm");
    check("ema", "1", "--ema 1: must be a finite number, from 0 to below 1");
    check("clip_norm", "0", "--clip-norm 0: must be a finite number, above 0");
    check("lrf", "1.1", "--lrf 1.1: must be a finite number, from 0 to 1");
    check("label_smoothing", "1", "--label-smoothing 1: must be a finite number, from 0 to below 1");
    check("seed", "-3", "--seed -3: must be a whole number");
    check("precision", "fp8", "--precision fp8: must be f32 or tf32 or bf16 or f16");
    // Lightning's word for a precision with bf16 weights as well.
    check("precision", "bf16-true", "--precision bf16-true: must be f32 or tf32 or bf16 or f16");
    check(
        "strategy",
        "fsdp",
        "--strategy fsdp: must be ddp or dp or zero1; zero1 cuts the optimiser's state, and every rank holds the model",
    );
    check(
        "optimizer",
        "adam",
        "--optimizer adam: must be sgd or adamw or lars; adamw is adam whose weight decay is no part of the gradient",
    );
    let schedules =
        "cosine or cosine-annealing or warm-restarts or one-cycle or polynomial or step or plateau or constant";
    check("schedule", "linear", &format!("--schedule linear: must be {schedules}"));
    check("pct_start", "1.5", "--pct-start 1.5: must be a finite number, from 0 to 1");
    check("sync_bn", "no", "--sync-bn no: must be true or false");
    check("num_classes", "0", "--num-classes 0: must be 1 or more");
    check("mean", "0.5,0.5", "--mean 0.5,0.5: must be 1 number, or 3 separated by commas");
    check("mean", "123.675", "--mean 123.675: must be finite numbers, from 0 to 1");
    check("mean", "0.1,,0.2", "--mean 0.1,,0.2: must be numbers separated by commas, from 0 to 1");
    check("std", "0.2,0,0.2", "--std 0.2,0,0.2: must be finite numbers, above 0 to 1");
    check("std", "nan", "--std nan: must be finite numbers, above 0 to 1");
    check("augment", "cutmix", "--augment cutmix: must be resized-crop or crop or none");
    let pair = "must be 2 numbers separated by a comma, the smaller one first";
    check("scale", "0.5", &format!("--scale 0.5: {pair}"));
    check("scale", "1,0.5", &format!("--scale 1,0.5: {pair}"));
    check("scale", "0,1", "--scale 0,1: must be finite numbers, above 0 to 1");
    check("ratio", "1,2,3", &format!("--ratio 1,2,3: {pair}"));
    check("flip", "1.5", "--flip 1.5: must be a finite number, from 0 to 1");
    let methods = "must be randaugment or trivialaugment or augmix or imagenet or cifar10 or svhn or none";
    check("auto_augment", "rand-m9-mstd0.5", &format!("--auto-augment rand-m9-mstd0.5: {methods}"));
    check("ra_magnitude", "31", "--ra-magnitude 31: must be from 0 to 30");
    check("ra_num_ops", "0", "--ra-num-ops 0: must be from 1 to 100");
    check("augmix_severity", "11", "--augmix-severity 11: must be from 1 to 10");
    check("rotation", "-5", "--rotation -5: must be a finite number, from 0 to 180");
    check("color_jitter", "0.4,0.4", "--color-jitter 0.4,0.4: must be 1, 3 or 4 numbers separated by commas");
    check("color_jitter", "-1", "--color-jitter -1: must be finite numbers, 0 or more");
    let hue = "--color-jitter 0.4,0.4,0.4,0.6: the hue, its last number, must be at most 0.5";
    check("color_jitter", "0.4,0.4,0.4,0.6", hue);
    check("random_erasing", "nan", "--random-erasing nan: must be a finite number, from 0 to 1");
    check("erasing_value", "0", "--erasing-value 0: must be mean or random");
    check("balance", "true", "--balance true: must be none or classes");
    check("repeat_augment", "0", "--repeat-augment 0: must be 1 or more");
    check("sampler", "random", "--sampler random: must be shuffle or distributed");
    check("split", "cpython", "--split cpython: must be seeded or python");
    check("model", "", "--model \"\": must not be empty");
    let devices = "must be auto, or KIND:N with N ranks, 1 or more, KIND:all, KIND:free:N or KIND:LIST, such as cpu:2, gpu:all or gpu:0,3";
    check("devices", "cpu:0", &format!("--devices cpu:0: {devices}"));
    check("devices", "CPU:1", &format!("--devices CPU:1: {devices}"));
    check("devices", "gpu:1,1", "--devices gpu:1,1: names gpu 1 twice: a device has one rank");
    check("warmup_epochs", "11", "--warmup-epochs 11: must not be more than the 10 epochs of the run");
    check("bacth", "1", "unknown key bacth on the command line: did you mean batch?");
    check("model\n", "x", "unknown key \"model\\n\" on the command line: did you mean model?");
}

#[test]
fn settings_that_contradict_each_other() {
    let check = |settings: &[(&str, &str)], expected: Option<&str>| {
        let mut config = RunConfig::default();
        for (name, value) in settings {
            config.set(name, value).unwrap();
        }
        assert_eq!(config.check().err().map(|error| error.to_string()).as_deref(), expected);
    };
    let refused = Some("nesterov true: needs a `momentum` above 0");
    check(&[("nesterov", "true")], None);
    check(&[("nesterov", "true"), ("momentum", "0")], refused);
    check(&[("nesterov", "true"), ("momentum", "0"), ("optimizer", "adamw")], None);
    let refused = Some("no_decay_norm_bias true: needs a `weight_decay` above 0");
    check(&[("no_decay_norm_bias", "true")], None);
    check(&[("no_decay_norm_bias", "true"), ("weight_decay", "0")], refused);
    check(&[("no_decay_norm_bias", "true"), ("weight_decay", "0"), ("optimizer", "lars")], None);
    let cycle = Some("warmup_epochs 2: `schedule = one-cycle` rises by itself, by `pct_start`; use one of them");
    check(&[("schedule", "one-cycle")], None);
    check(&[("schedule", "one-cycle"), ("warmup_epochs", "2")], cycle);
    let refused = Some("tune true: `exact` leaves nothing to choose; use one of them");
    check(&[("tune", "true")], None);
    check(&[("tune", "true"), ("exact", "true")], refused);
    let refused = Some("fine_tune all: needs `weights` or `pretrained` to begin with");
    check(&[("fine_tune", "all")], refused);
    check(&[("fine_tune", "all"), ("weights", "a.pth")], None);
    let refused = Some("fine_tune head: already says which layers are trained; leave out `freeze_layers`");
    check(&[("fine_tune", "head"), ("weights", "a.pth"), ("freeze_layers", "true")], refused);
    let refused = Some("warmup_epochs 3: must not be more than the 2 epochs of the run");
    check(&[("fine_tune", "all"), ("weights", "a"), ("epochs", "3"), ("warmup_epochs", "3")], refused);
    let infinite = TrainConfig { lr: f64::INFINITY, ..TrainConfig::default() };
    assert_eq!(infinite.check().unwrap_err().to_string(), "lr inf: must be a finite number, above 0");
}

#[test]
fn accepted_values() {
    let check = |name, value, expected: &str| {
        assert_eq!(set(name, value).unwrap().get(name).as_deref(), Some(expected), "{name} {value}")
    };
    check("devices", "cpu", "cpu:1");
    check("devices", "cpu:16", "cpu:16");
    check("devices", "auto", "auto");
    check("sync-bn", "1", "true");
    check("lr", "1e-3", "0.001");
    check("lrf", "0", "0");
    ["f32", "fp32", "float32", "32", "32-true"].into_iter().for_each(|word| check("precision", word, "f32"));
    check("precision", "tf32", "tf32");
    ["bf16", "bfloat16", "bf16-mixed"].into_iter().for_each(|word| check("precision", word, "bf16"));
    ["f16", "fp16", "float16", "16", "16-mixed"].into_iter().for_each(|word| check("precision", word, "f16"));
    check("momentum", "0", "0");
    check("seed", "18446744073709551615", "18446744073709551615");
    check("freeze", "layer1.*, conv1.weight,", "layer1.*,conv1.weight");
    check("freeze", "", "");
    check("mean", "0.4914, 0.4822,0.4465", "0.4914,0.4822,0.4465");
    check("std", "1", "1");
    check("flip", "0", "0");
    check("augment", "crop", "crop");
    check("crop_padding", "0", "0");
    ["randaugment", "ra"].into_iter().for_each(|word| check("auto_augment", word, "randaugment"));
    ["trivialaugment", "ta_wide"].into_iter().for_each(|word| check("auto_augment", word, "trivialaugment"));
    ["augmix", "imagenet", "cifar10", "svhn", "none"].into_iter().for_each(|word| check("auto_augment", word, word));
    check("color_jitter", "0.4, 0.4,0.4,0.1", "0.4,0.4,0.4,0.1");
    check("size", "32", "32");
    check("balance", "classes", "classes");
    check("repeat_augment", "3", "3");
    ["one-cycle", "OneCycleLR", "onecycle"].into_iter().for_each(|word| check("schedule", word, "one-cycle"));
}

/// Python's `type=bool` makes any text true, even `False`.
#[test]
fn false_means_false() {
    let check = |value: &str, expected: bool| {
        for name in ["sync_bn", "freeze_layers"] {
            assert_eq!(set(name, value).unwrap().get(name), Some(expected.to_string()), "{name} {value}");
            let config = RunConfig::from_toml(&format!("{name} = \"{value}\"")).unwrap();
            assert_eq!(config.get(name), Some(expected.to_string()), "{name} = {value}");
        }
    };
    ["False", "false", "FALSE", "0"].into_iter().for_each(|value| check(value, false));
    ["True", "true", "TRUE", "1"].into_iter().for_each(|value| check(value, true));
}

#[test]
fn the_home_folder_is_found_everywhere() {
    let home = std::env::home_dir().unwrap();
    for name in ["data", "weights", "out"] {
        let check = |path: &str, expected: &Path| {
            let expected = Some(expected.display().to_string());
            assert_eq!(set(name, path).unwrap().get(name), expected, "{name} {path}");
            let config = RunConfig::from_toml(&format!("{name} = \"{path}\"")).unwrap();
            assert_eq!(config.get(name), expected);
            let mut layers = LayeredConfig::new();
            let variable = Setting::find(name).unwrap().variable();
            layers.environment([(variable.into(), path.into())]).unwrap();
            assert_eq!(layers.finish().unwrap().get(name), expected);
        };
        check("~", &home);
        check("~/photos/a", &home.join("photos/a"));
        check("a/~", Path::new("a/~"));
    }
}

/// Catches a table that does not match the fields: each setting's own text reads back, and names do not collide.
#[test]
fn every_setting_is_complete() {
    let config = RunConfig::default();
    for setting in SETTINGS {
        let is_sentences = setting.details.is_empty() || setting.details.ends_with('.');
        assert!(!setting.summary.is_empty() && !setting.summary.ends_with('.') && is_sentences, "{}", setting.name);
        // Otherwise the help would give two defaults.
        assert!(setting.default_words.is_empty() || setting.default_text().is_none(), "{}", setting.name);
        assert_eq!(setting.placeholder.is_empty(), setting.kind == SettingKind::Switch, "{}", setting.name);
        assert!(!is_internal(&setting.variable()), "{}", setting.name);
        if let Some(text) = setting.default_text() {
            let mut again = config.clone();
            again.set(&setting.flag()[2..], &text).unwrap();
            assert_eq!(again, config, "{}", setting.name);
        }
    }
    config.check().unwrap();
}

/// Regression test: train refused the variable for MPI's library.
#[test]
fn variables_of_the_documents_are_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let documents = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let documents = documents.chain(["README.md", "SECURITY.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    let mut count = 0;
    for path in documents.filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        // The last stands for all settings.
        for name in words.filter(|word| word.starts_with(VARIABLE_PREFIX) && *word != "ENMASSE_NAME") {
            let is_setting = SETTINGS.iter().any(|setting| setting.variable() == name);
            assert!(is_setting || is_internal(name), "{}: {name}", path.display());
            count += 1;
        }
    }
    assert!(count > 5, "{count}");
}

#[test]
fn precedence_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    std::fs::write(&file, "epochs = 2\nbatch = 2\nlr = 2\nweight-decay = 2.0\nfreeze = [\"a\", \"b\"]\n").unwrap();
    let variables = || [("ENMASSE_EPOCHS", "3"), ("ENMASSE_BATCH", "3"), ("ENMASSE_TOKEN", "t"), ("HOME", "/")];
    let variables = || variables().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let saved = "epochs = 1\nbatch = 1\nlr = 1.0\nweight_decay = 1.0\nsize = 1\njson = true\nmax_steps = 1\n";
    type Layer<'a> = &'a dyn Fn(&mut LayeredConfig) -> Result<(), ConfigError>;
    let layers: [Layer; 4] = [
        &|layers| layers.saved_run(saved, Path::new("runs/a")),
        &|layers| layers.file(&file),
        &|layers| layers.environment(variables()),
        &|layers| layers.argument("epochs", "4"),
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut layered = LayeredConfig::new();
        for layer in order {
            layers[layer](&mut layered).unwrap();
        }
        let source = |name: &str| layered.source(name).cloned().unwrap();
        assert_eq!(source("epochs"), SettingSource::CommandLine);
        assert_eq!(source("batch"), SettingSource::Environment);
        assert_eq!(source("lr"), SettingSource::File(file.clone()));
        assert_eq!(source("size"), SettingSource::Saved("runs/a".into()));
        assert_eq!(source("json"), SettingSource::Default);
        let config = layered.finish().unwrap();
        assert_eq!(
            (config.train.epochs, config.train.batch, config.train.lr, config.train.weight_decay),
            (4, Some(3), 2.0, 2.0)
        );
        // Settings of one invocation are not taken from the saved run.
        assert_eq!((config.train.size, config.program.json, config.train.max_steps), (Some(1), false, None));
        assert_eq!(config.train.freeze, ["a", "b"]);
    }
}

#[test]
fn what_follows_from_weights_stands_between_the_saved_run_and_the_user() {
    let mut layers = LayeredConfig::new();
    layers.begun_run("size = 64\ncrop_pct = 0.5\n", Path::new("runs/a")).unwrap();
    layers.argument("mean", "0.5").unwrap();
    for (name, value) in [("size", "224"), ("mean", "0.1,0.2,0.3"), ("interpolation", "bicubic")] {
        layers.weights("hf:a/b", name, value).unwrap();
    }
    let train = layers.config().train.clone();
    assert_eq!((train.size, train.crop_pct, train.mean), (Some(224), Some(0.5), Some(vec![0.5])));
    assert_eq!(layers.source("interpolation"), Some(&SettingSource::Weights("hf:a/b".to_owned())));
    let error = layers.weights("hf:a/b", "std", "0").unwrap_err().to_string();
    assert_eq!(error, "std = 0 of the weights hf:a/b: must be finite numbers, above 0 to 1");
}

/// Regression test: YOLO's `--weights ""` was a file without a name.
#[test]
fn weights_without_a_name_are_none() {
    let mut layers = LayeredConfig::new();
    layers.environment([("ENMASSE_WEIGHTS".into(), "a.pth".into())]).unwrap();
    assert_eq!(layers.config().train.weights.as_deref(), Some(Path::new("a.pth")));
    layers.argument("weights", "").unwrap();
    assert_eq!(layers.config().train.weights, None);
    assert!(LayeredConfig::new().argument("out", "").is_err());
}

#[test]
fn none_leaves_out_a_number_of_a_recipe() {
    let mut layers = LayeredConfig::new();
    layers.recipe("fine-tune").unwrap();
    assert!(layers.config().train.ema.is_some());
    for (name, value) in [("ema", "none"), ("lookahead", "5"), ("patience", "none")] {
        layers.argument(name, value).unwrap();
    }
    let train = &layers.config().train;
    assert_eq!((train.ema, train.lookahead, train.patience), (None, Some(5), None));
    let error = layers.argument("epochs", "none").unwrap_err().to_string();
    assert_eq!(error, "--epochs none: must be a whole number, 1 or more");
}

#[test]
fn errors_say_where_a_value_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str, expected: &str| {
        let path = folder.path().join("x.toml");
        std::fs::write(&path, text).unwrap();
        let error = LayeredConfig::new().file(&path).unwrap_err().to_string();
        assert_eq!(error.replace(&path.display().to_string(), "x.toml"), expected);
    };
    check("batch = 0", "batch = 0 in x.toml: must be 1 or more");
    check("lr = nan", "lr = nan in x.toml: must be a finite number, above 0");
    check("bach = 1", "unknown key bach in x.toml: did you mean batch?");
    check("gpus = 0", "x.toml: gpus = 0: give devices = \"cpu:N\" for N ranks on CPUs");
    check("gpus = -2", "x.toml: gpus = -2: must be a number of GPUs, -1 for all, or a list such as 0,1");
    check("gpus = 1\ndevices = \"cpu:1\"", "x.toml: devices is given twice, as devices and as gpus");
    check("[train]\nbatch = 1", "unknown key train in x.toml; see enmasse train --help");
    check("freeze_backbone = true", &format!("freeze_backbone in x.toml: {}", answer("freeze_backbone").unwrap()));
    check(
        "fp16 = { mode = 1 }",
        "fp16 in x.toml: give --precision bf16, which needs no loss scaling, or f16, on a GPU",
    );
    check("sync-bn = false\nsync_bn = true", "x.toml: sync_bn is given twice, as sync-bn and as sync_bn");
    check("BATCH_SIZE = 4\nbatch = 8", "x.toml: batch is given twice, as BATCH_SIZE and as batch");
    check("batch = [[1]]", "x.toml: batch must be a string, a number, true or false");
    check("mean = [0.5, \"0.5\", 1]", "x.toml: mean must be a string, a number, true or false");
    check("mean = [0.5, 2]", "mean = 0.5,2 in x.toml: must be finite numbers, from 0 to 1");
    check("batch = 1\nepochs =\n", "x.toml: line 2 is not TOML: string values must be quoted, expected literal string");

    let environment = |name: &str, value: &str| {
        LayeredConfig::new().environment([(name.into(), value.into())]).unwrap_err().to_string()
    };
    assert_eq!(environment("ENMASSE_LR", "-1"), "ENMASSE_LR=-1: must be a finite number, above 0");
    let unknown = "unknown variable ENMASSE_EPOCH in the environment: did you mean ENMASSE_EPOCHS?";
    assert_eq!(environment("ENMASSE_EPOCH", "1"), unknown);
    let alias = "unknown variable ENMASSE_WD in the environment: did you mean ENMASSE_WEIGHT_DECAY?";
    assert_eq!(environment("ENMASSE_WD", "0"), alias);
    let foreign =
        "ENMASSE_AMP in the environment: give --precision bf16, which needs no loss scaling, or f16, on a GPU";
    assert_eq!(environment("ENMASSE_AMP", "1"), foreign);
    let missing = LayeredConfig::new().file(Path::new("/nowhere.toml")).unwrap_err().to_string();
    assert_eq!(missing, "/nowhere.toml: cannot read the configuration: No such file or directory (os error 2)");

    // Errors that only appear in the whole configuration still name their source.
    let mut layers = LayeredConfig::new();
    let given = [("ENMASSE_SHARDS", "4"), ("ENMASSE_ACCUMULATE", "2")];
    layers.environment(given.map(|(name, value)| (name.into(), value.into()))).unwrap();
    let twice = "ENMASSE_ACCUMULATE=2: `shards` already sets the number of shards; use one of them";
    assert_eq!(layers.finish().unwrap_err().to_string(), twice);
}

#[test]
fn recipes_are_below_what_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("base.toml", "version = 3\nlr = 0.5\nepochs = 7\nema = 0.9");
    write("mine.toml", "extends = \"base.toml\"\nlr = 0.25\nbatch = 9");
    let mut layers = LayeredConfig::new();
    layers.argument("batch", "4").unwrap();
    layers.recipe(&path("mine.toml")).unwrap();
    let train = &layers.config().train;
    assert_eq!((train.lr, train.epochs, train.ema, train.batch), (0.25, 7, Some(0.9), Some(4)));
    let shown = layers.to_toml().replace(&path(""), "");
    for line in ["epochs = 7 # recipe base.toml@3", "lr = 0.25 # recipe mine.toml", "batch = 4 # command line"] {
        let words: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(words.iter().any(|found| found == line), "{line}: {shown}");
    }
    assert!(shown.contains("# clip_norm: no limit\n"), "{shown}");
    assert!(RunConfig::from_toml(&shown).is_ok(), "{shown}");
    // A run that goes on has what its recipe gave when it began, and nothing else of it.
    let saved = RunConfig { train: TrainConfig { lr: 0.125, ..TrainConfig::default() }, ..RunConfig::default() };
    layers.saved_run(&saved.to_toml(), Path::new("runs/a")).unwrap();
    let train = &layers.config().train;
    assert_eq!((train.lr, train.epochs, train.ema, train.batch), (0.125, 10, None, Some(4)));
}

/// Regression test: `--pretrained --epochs 1` was refused, since the recipe warms up for an epoch after the head's.
#[test]
fn a_run_shorter_than_the_warm_up_of_its_recipe() {
    let check = |epochs: &str, warmup: Option<&str>, expected: Result<f64, &str>| {
        let mut layers = LayeredConfig::new();
        for (name, value) in [("weights", Some("a.pth")), ("epochs", Some(epochs)), ("warmup_epochs", warmup)] {
            value.into_iter().for_each(|value| layers.argument(name, value).unwrap());
        }
        layers.recipe("fine-tune").unwrap();
        let found = layers.finish().map(|config| config.train.warmup_epochs).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned));
    };
    check("1", None, Ok(0.0));
    check("2", None, Ok(1.0));
    check("9", None, Ok(1.0));
    check("2", Some("2"), Err("--warmup-epochs 2: must not be more than the 1 epochs of the run"));
}

#[test]
fn recipes_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str, expected: &str| {
        let path = folder.path().join("x.toml");
        std::fs::write(&path, text).unwrap();
        let error = LayeredConfig::new().recipe(&path.display().to_string()).unwrap_err().to_string();
        assert_eq!(error.replace(&format!("{}/", folder.path().display()), ""), expected);
    };
    check("bach = 1", "unknown key bach in x.toml: did you mean batch?");
    check("lr = -1", "lr = -1 in the recipe x.toml: must be a finite number, above 0");
    check("version = \"1\"", "recipe x.toml: version must be a whole number");
    check("extends = 1", "recipe x.toml: extends must be the name or the file of a recipe");
    check("recipe = \"fine-tune\"", "recipe x.toml: a recipe names another one by extends");
    check("extends = \"x.toml\"", "recipe x.toml: it extends itself: x.toml extends x.toml");
    let missing = "recipe y.toml: cannot read the recipe: No such file or directory (os error 2)";
    check("extends = \"y.toml\"", missing);
    let unknown = "recipe fine: there is no such recipe; use fine-tune, airbench94, airbench95, mnist, fashion-mnist, or a file NAME.toml";
    check("extends = \"fine\"", unknown);
    assert_eq!(LayeredConfig::new().recipe("fine").unwrap_err().to_string(), unknown);
}

#[test]
fn every_recipe_of_the_program_is_whole() {
    for (name, _) in RECIPES {
        let mut layers = LayeredConfig::new();
        layers.recipe(name).unwrap();
        layers.argument("weights", "a.pth").unwrap();
        layers.finish().unwrap();
    }
}

/// Regression test: CIFAR-10 as a folder of images has no size of its own, so its recipe trained at 224 pixels, in 27.7 GiB.
#[test]
fn recipes_of_small_images_say_their_size() {
    let check = |name: &str, size: usize| {
        let mut layers = LayeredConfig::new();
        layers.recipe(name).unwrap();
        assert_eq!(layers.finish().unwrap().train.size, Some(size), "{name}");
    };
    check("airbench94", 32);
    check("airbench95", 32);
    check("mnist", 28);
    check("fashion-mnist", 28);
}

#[test]
fn a_resumed_run_keeps_model_first_weights_and_split() {
    let check = |name: &str, value: &str, expected: Result<&str, &str>| {
        let mut layers = LayeredConfig::new();
        layers.argument(name, value).unwrap();
        let train = TrainConfig { model: "resnet34".to_owned(), split_seed: 5, ..TrainConfig::default() };
        let saved = RunConfig { train, ..RunConfig::default() };
        layers.saved_run(&saved.to_toml(), Path::new("runs/a")).unwrap();
        let found = layers.finish().map(|config| config.get(name).unwrap()).map_err(|error| error.to_string());
        assert_eq!(found.as_ref().map(String::as_str).map_err(String::as_str), expected);
    };
    check("model", "resnet34", Ok("resnet34"));
    check("epochs", "99", Ok("99"));
    let ending = "which cannot change; leave it out, or start a new run";
    let model = format!("--model resnet18: the run in runs/a was started with resnet34, {ending}");
    check("model", "resnet18", Err(&model));
    let split = format!("--split-seed 0: the run in runs/a was started with 5, {ending}");
    check("split_seed", "0", Err(&split));
    let weights = format!("--weights a.pth: the run in runs/a was started with none, {ending}");
    check("weights", "a.pth", Err(&weights));
}

proptest! {
    #[test]
    fn toml_reads_back(
        lr in 1e-12..1e3f64, seed: u64, batch in proptest::option::of(1..1000usize), sync_bn: bool,
        model in "[ -~]{1,20}", out in proptest::option::of("[a-zé\"\\\\]{1,9}"),
        mean in proptest::option::of(proptest::collection::vec(0.0..1f64, 3)), flip in proptest::option::of(0.0..1f64),
        freeze in proptest::collection::vec("[a-z*.]{1,8}", 0..3), bf16: bool,
    ) {
        let devices = batch.map(|count| Devices::new("cpu", count));
        let out = out.map(PathBuf::from);
        let precision = if bf16 { Precision::Bf16 } else { Precision::F32 };
        let train = TrainConfig {
            lr, seed, batch, sync_bn, model, out, freeze, mean, flip: flip.map(Flip::Chance), precision, ..TrainConfig::default()
        };
        let config = RunConfig { train, program: ProgramConfig { devices, ..ProgramConfig::default() } };
        prop_assert_eq!(RunConfig::from_toml(&config.to_toml()).unwrap(), config);
    }
}

/// Lightning's word is read in files too.
#[test]
fn gpus_are_devices() {
    let check = |text: &str, expected: &str| {
        let config = RunConfig::from_toml(text).unwrap();
        assert_eq!(config.program.devices.map(|devices| devices.to_string()).as_deref(), Some(expected), "{text}");
    };
    check("gpus = -1", "gpu:all");
    check("GPUS = \"-1\"", "gpu:all");
    check("gpus = 2", "gpu:2");
    check("gpus = [0]", "gpu:0,");
    check("gpus = [0, 3]", "gpu:0,3");
}
